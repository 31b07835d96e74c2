"""Secure aggregation on Flower, the side of the server: it passes on keys and shares, and unmasks sums."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from logging import getLogger
from typing import Any, TypeVar

import numpy as np
from flwr.app import Message
from pydantic import TypeAdapter

from fedreach._util.errors import ComponentError
from fedreach.federation.secure_aggregation import NO_SUM, Words, mask, too_few
from fedreach.flower import messages
from fedreach.flower.clients import ClientRegistry
from fedreach.flower.secret_sharing import NONCE_BYTES, SHARE_BYTES, TAG_BYTES, is_public_key, join, public_key
from fedreach.flower.secure import SECURE, Groups, PublicKeys, Sums, new_record, own_pad, pair_pads

LOG = getLogger("flwr")
KIND = "query.secure"
KEYS, TEXTS = TypeAdapter(PublicKeys), TypeAdapter(dict[int, str])
SEALED_BYTES = NONCE_BYTES + 2 * SHARE_BYTES + TAG_BYTES

R = TypeVar("R")


class IncompleteError(messages.LostError):
    """Fewer than t clients stayed until the sum could be unmasked; `lost` has those that left in the last step."""

    def __init__(self, reason: str, lost: Mapping[int, str]) -> None:
        super().__init__(reason)
        self.lost = lost


class SecureSum:
    """Sums over the clients of a cohort in one exchange, see `fedreach.flower.secure`.

    The constructor exchanges keys and shares. Clients that leave, at any step, do not spoil the sums over the clients
    whose words arrived, as long as t of them stay to the end.

    Args:
        registry: Clients and their nodes.
        cohort: Clients that are asked, by increasing id.
        groups: Clients of each group of sums. Default: one group "" of the whole cohort.
    """

    def __init__(self, registry: ClientRegistry, cohort: Sequence[int], groups: Groups | None = None) -> None:
        self.registry, self.cohort = registry, [*cohort]
        self.groups: Groups = {"": self.cohort} if groups is None else groups
        self.statistics = registry.federation.label_statistics
        registry.sums += 1
        self.name, self.number = registry.process, registry.sums
        self.keys, self.lost = self._ask("keys", self.cohort, {"cohort": self.cohort}, self._read_keys())
        self.sealed: Mapping[int, Mapping[int, str]] = {}  # U2 -> receiver -> its shares
        self.reason = too_few(self.statistics, len(self.keys), len(self.cohort))
        if self.reason is None:
            sent = {"keys": {client: keys.model_dump() for client, keys in self.keys.items()}}
            self.sealed, lost = self._ask("shares", self.keys, sent, self._reader(set(self.keys), SEALED_BYTES))
            self.lost |= lost
            self.reason = too_few(self.statistics, len(self.sealed), len(self.cohort))
        if self.reason is not None:
            self.sealed, self.lost = {}, dict.fromkeys(self.cohort, self.reason) | self.lost
        if registry.sums == 1 and not self._signs:
            LOG.info("Clients trust this server to pass on the keys of secure aggregation: not all have a roster.")

    def request(self, client: int) -> Mapping[str, Any]:
        """Return the record that goes with the request for the words of a client in `sealed`."""
        received = {sender: texts[client] for sender, texts in self.sealed.items()}
        return {SECURE: new_record(self.name, self.number, "mask", {"sealed": received, "groups": self.groups})}

    def total(self, words: Mapping[int, Sums]) -> dict[str, dict[str, Words]]:
        """Return the unmasked sums over the clients whose words arrived, as group -> name -> words.

        Raises:
            IncompleteError: If fewer than t clients stay to the end.
            ComponentError: If clients revealed wrong shares.
        """
        survivors = sorted(words)
        self._require(survivors, {})
        content: dict[str, Any] = {"survivors": survivors}
        staying = survivors
        if self._signs:
            content["signatures"], lost = self._ask("sign", staying, content, _read_signature)
            staying = [*content["signatures"]]
            self._require(staying, lost)
        shares, lost = self._ask("reveal", staying, content, self._reader(set(self.sealed), SHARE_BYTES))
        self._require(shares, lost)
        secrets = {client: self._join(client, shares) for client in self.sealed}
        for client in secrets.keys() - words:
            if public_key(secrets[client]).hex() != self.keys[client].masking:
                raise ComponentError(f"{NO_SUM} The revealed shares of the mask key of client {client} are wrong.")
        of_group = {group: [client for client in survivors if client in self.groups[group]] for group in self.groups}
        return {
            group: {name: self._sum(group, name, words, secrets) for name in words[members[0]][group]}
            for group, members in of_group.items()
        }

    def _sum(self, group: str, name: str, words: Mapping[int, Sums], secrets: Mapping[int, bytes]) -> Words:
        """Return a sum without masks."""
        about, members = (self.name, self.number, group, name), self.groups[group]
        parts = {client: words[client][group][name] for client in members if client in words}
        total: Words = np.sum(list(parts.values()), axis=0, dtype=np.uint64)
        shape, total = total.shape, total.ravel()
        keys = {client: bytes.fromhex(self.keys[client].masking) for client in parts}
        for client in members:
            if client in parts:
                total = total - own_pad(secrets[client], about, total.size)  # wraps around at 2^64
            elif client in secrets:  # it left: add the masks that it would have added
                pads = pair_pads(secrets[client], keys, client, about)
                total = mask(total, client, [*parts], pads)
        return total.reshape(shape)

    def _ask(
        self,
        step: str,
        clients: Iterable[int],
        content: Mapping[str, Any],
        reader: Callable[[int, Mapping[str, Any]], R],
    ) -> tuple[dict[int, R], dict[int, str]]:
        """Return the replies of clients to a step, by increasing id, and the reasons of missing ones."""

        def read(client: int, reply: Message) -> R:
            try:
                record = reply.content.config_records[SECURE]
                return reader(client, json.loads(str(record["content"])))
            except (KeyError, TypeError, ValueError, RecursionError) as error:
                raise messages.ReplyError(f"its {step!r} for secure aggregation cannot be read: {error}") from error

        self.registry.online = frozenset(self.registry.grid.get_node_ids())
        record = {SECURE: new_record(self.name, self.number, step, content)}
        failed = f"did not take the step {step!r} of secure aggregation"
        replies, lost = self.registry.ask(KIND, dict.fromkeys(clients, record), read, failed)
        return dict(sorted(replies.items())), lost

    def _read_keys(self) -> Callable[[int, Mapping[str, Any]], PublicKeys]:
        used = set[str]()

        def read(client: int, content: Mapping[str, Any]) -> PublicKeys:
            keys = KEYS.validate_python(content, strict=True)
            pair = {keys.sealing, keys.masking}
            if len(pair) == 1 or not all(is_public_key(bytes.fromhex(key)) for key in pair):
                raise messages.ReplyError("its keys for secure aggregation hide nothing")
            if pair & used:
                raise messages.ReplyError("its key for secure aggregation is also the key of another client")
            used.update(pair)
            bytes.fromhex(keys.signature)
            return keys

        return read

    def _reader(self, peers: set[int], size: int) -> Callable[[int, Mapping[str, Any]], dict[int, str]]:
        """Return the reader of a reply with so many bytes for each of these clients."""

        def read(client: int, content: Mapping[str, Any]) -> dict[int, str]:
            texts = TEXTS.validate_python(content)
            if set(texts) != peers or any(len(bytes.fromhex(text)) != size for text in texts.values()):
                raise messages.ReplyError(f"its shares must be {size} bytes for each of the clients {sorted(peers)}")
            return texts

        return read

    @property
    def _signs(self) -> bool:
        return all(keys.signature for keys in self.keys.values())

    def _require(self, clients: Sized, lost: Mapping[int, str]) -> None:
        reason = too_few(self.statistics, len(clients), len(self.cohort))
        if reason is not None:
            raise IncompleteError(reason, lost)

    def _join(self, client: int, shares: Mapping[int, Mapping[int, str]]) -> bytes:
        """Return the secret of a client from t revealed shares."""
        senders = [*shares][: self.statistics.needed_replies(len(self.cohort))]
        places = {self.cohort.index(sender) + 1: bytes.fromhex(shares[sender][client]) for sender in senders}
        try:
            return join(places)
        except ValueError as error:
            raise ComponentError(f"{NO_SUM} The revealed shares of a key of client {client} are wrong.") from error


def _read_signature(client: int, content: Mapping[str, Any]) -> str:
    return bytes.fromhex(content["signature"]).hex()
