"""The nodes of clients and the statistics that each client reported."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import getLogger
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedreach._util.arrays import AnyArray, Floats
from fedreach._util.errors import ConfigError, TrainingError
from fedreach.data.splits import Population
from fedreach.engines.models.state import constant_bytes
from fedreach.federation.federation import Federation
from fedreach.federation.labels import released_entropy
from fedreach.federation.types import ServerView
from fedreach.flower import messages
from fedreach.flower.agreement import MAX_CLIENTS, Checks, ClientStatistics, first_difference
from fedreach.flower.messages import (
    BITS,
    CLIENT,
    CONSTANTS,
    DIGEST,
    EXAMPLES,
    FEDREACH,
    HELD_OUT,
    KEY,
    LABELS,
    SAMPLES,
    LostError,
    ReplyError,
    is_public_key,
)

LOG = getLogger("flwr")
POLL_SECONDS = 0.2
QUIET_SECONDS = 2.0  # without a new node: then all are taken to be there
MEETING_SECONDS = 5.0  # that a round waits for the handshakes of new nodes
AGAIN_SECONDS = 10.0  # until a node that failed is asked again


class Handshake(NamedTuple):
    """A node that was asked for its client's id."""

    node: int
    until: float  # when the server stops waiting


@dataclass
class ClientRegistry:
    """Clients by id, and their nodes in this run of the app."""

    federation: Federation
    terms: dict[str, str]  # what clients must agree to, see `terms_of`
    checks: Checks
    timeout: float  # seconds that a client has for a reply
    population: Population | None = None  # None: all clients that are online at first participate
    known: dict[int, ClientStatistics] = field(default_factory=dict)  # an earlier process of the run may have asked
    nodes: dict[int, int] = field(default_factory=dict)  # client -> node
    online: frozenset[int] = frozenset()  # nodes
    refused: dict[int, str] = field(default_factory=dict)  # node -> why it is rejected
    blamed: dict[str, str] = field(default_factory=dict)  # "client 3" or "node 7" -> its wrong reply
    duplicates: dict[int, int] = field(default_factory=dict)  # node -> client that another node already has
    samples: str | None = None  # form of all clients' examples, see `samples_of`; None: unknown
    asked: dict[str, Handshake] = field(default_factory=dict)  # by message, of nodes that have not replied
    ask_again: dict[int, float] = field(default_factory=dict)  # failed node -> time of the next attempt
    constants: Mapping[str, AnyArray] = field(default_factory=dict)  # of the model; nodes get them once
    lacking: set[int] = field(default_factory=set)  # nodes that do not have them yet

    def gather(self, grid: Grid, min_clients: int, patience: float) -> None:
        """Wait for the population; without one, wait for `min_clients` and the clients that come right after them.

        Raises:
            TrainingError: If fewer than `min_clients` participants are online after `patience` seconds, or if all
                expected nodes are online and all of them fail.
        """
        population, began = self.population, time.monotonic()
        until, last_arrival, last_change = began + patience, began, began
        training = None if population is None else set(population.participants.tolist())
        expected_clients = None if population is None or training is None else training | {*population.unseen.tolist()}
        while True:
            before, online = len(self.nodes), self.online
            self.meet(grid, min(MEETING_SECONDS, until - time.monotonic()))
            ready = [c for c in self.nodes if (training is None or c in training) and self._can_train(c)]
            now = time.monotonic()
            last_arrival = now if len(self.nodes) > before else last_arrival
            last_change = now if self.online != online else last_change
            all_there = (
                now > last_arrival + QUIET_SECONDS if expected_clients is None else expected_clients <= set(self.nodes)
            )
            if len(ready) >= min_clients and (all_there or now > until):
                break
            if now > last_change + QUIET_SECONDS and self._all_fail(
                min_clients if expected_clients is None else len(expected_clients)
            ):
                raise TrainingError(
                    f"All {len(self.online)} nodes fail.{self._why_refused()} Run again once they do not."
                )
            if now > until:
                raise TrainingError(
                    f"{len(ready)} clients that may train and have examples were there after {patience:.0f} seconds, "
                    f"and {min_clients} are needed.{self._why_refused()} Start more SuperNodes, or lower `min_clients`."
                )
            time.sleep(POLL_SECONDS)
        if population is None:
            self.population = Population(np.array(sorted(self.nodes), np.int64), np.empty(0, np.int64))

    def _all_fail(self, expected: int) -> bool:
        """Return whether all expected nodes are online and every one of them failed."""
        return (
            len(self.online) >= expected
            and not self.asked
            and self.online <= self.ask_again.keys() & self.refused.keys()
        )

    def _why_refused(self) -> str:
        """Return why nodes were rejected, each reason once."""
        nodes: dict[str, list[int]] = {}
        for node, text in self.refused.items():
            nodes.setdefault(text.rstrip("."), []).append(node)
        return "".join(
            f" Node {first} was refused: {text}{f' (and {len(more)} more nodes for the same reason)' if more else ''}."
            for text, (first, *more) in nodes.items()
        )

    def meet(self, grid: Grid, patience: float = MEETING_SECONDS) -> None:
        """Update the online nodes and ask new ones for their client; a later call reads replies that take longer."""
        now, new_messages = time.monotonic(), set[str]()
        self.online = frozenset(grid.get_node_ids())
        self.duplicates = {
            node: client for node, client in self.duplicates.items() if self.nodes[client] in self.online
        }
        self.asked = {name: sent for name, sent in self.asked.items() if now < sent.until and sent.node in self.online}
        known_nodes = {*self.nodes.values(), *self.duplicates, *(sent.node for sent in self.asked.values())}
        for node in sorted(self.online - known_nodes):
            if now >= self.ask_again.get(node, 0.0):
                for name in grid.push_messages([self._message(node, MessageType.QUERY, RecordDict())]):
                    self.asked[name] = Handshake(node, now + self.timeout)
                    new_messages.add(name)
        while self.asked:
            replies = list(grid.pull_messages(list(self.asked)))
            for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
                sent = self.asked.pop(reply.metadata.reply_to_message_id, None)
                if sent is not None:
                    self._take_handshake(reply, sent.node)
            self.asked = {name: sent for name, sent in self.asked.items() if time.monotonic() < sent.until}
            if not new_messages & self.asked.keys() or time.monotonic() > now + patience:
                break
            time.sleep(POLL_SECONDS)
        self._send_constants(grid)

    def trains_as_asked(self, client: int) -> bool:
        """Return whether a client runs `client_app`."""
        facts = self.known.get(client)
        return facts is not None and facts.trains_as_asked

    def _send_constants(self, grid: Grid) -> None:
        """Send the model's constants to new nodes; a node that does not accept them is asked again later."""
        nodes = {node: client for client, node in self.nodes.items() if node in self.lacking & self.online}
        self.lacking.clear()
        if not nodes:
            return
        digest_record = ConfigRecord({DIGEST: messages.constants_digest(self.constants)})
        content = RecordDict({CONSTANTS: messages.array_record(self.constants), FEDREACH: digest_record})
        sent = [self._message(node, "query.constants", content) for node in nodes]
        replies = replies_by_node(grid, sent, self.timeout)
        for node, client in nodes.items():
            try:
                reply_of(replies, node, self.timeout)
            except ReplyError as error:
                del self.nodes[client]
                self.refused[node], self.ask_again[node] = str(error), time.monotonic() + AGAIN_SECONDS
                LOG.warning("Client %s does not take part: it did not take the model's constants: %s.", client, error)

    def _take_handshake(self, reply: Message, node: int) -> None:
        """Register the client of a node, or note why the node is rejected."""
        try:
            client, facts = self._read_handshake(reply)
        except ReplyError as error:
            disagrees = not reply.has_error()
            self.ask_again[node] = np.inf if disagrees else time.monotonic() + AGAIN_SECONDS
            if node not in self.refused:
                LOG.warning("Node %s does not take part: %s.", node, error)
            self.refused[node] = str(error)
            self.blame(f"node {node}", error)
            return
        self.refused.pop(node, None)
        holder = self.nodes.get(client)
        if holder in self.online:  # a dead node may count as online for a minute
            self._refuse_duplicate(node, client)
            return
        before = self.known.get(client)
        labels = (before.label_counts, before.label_entropy) if before else (None, None)
        self.known[client] = replace(facts, label_counts=labels[0], label_entropy=labels[1])
        self.nodes[client] = node
        if self.constants and facts.trains_as_asked:
            self.lacking.add(node)

    def _refuse_duplicate(self, node: int, client: int) -> None:
        """Reject a node that claims the client of another online node; it is asked again once that one is gone."""
        reason = f"says it is client {client}, and so does node {self.nodes[client]}, which is online"
        self.duplicates[node] = client
        self.blame(f"node {node}", ReplyError(f"it {reason}"))
        LOG.warning("Node %s %s: it is refused until that one is gone.", node, reason)

    def blame(self, who: str, error: ReplyError) -> None:
        """Note an impossible reply for the next row of the run; a lost reply is not one."""
        if not isinstance(error, LostError):
            self.blamed.setdefault(who, str(error))

    def blamed_since(self) -> dict[str, str]:
        """Return the impossible replies since the last call, and forget them."""
        blamed, self.blamed = self.blamed, {}
        return blamed

    def _read_handshake(self, reply: Message) -> tuple[int, ClientStatistics]:
        content = messages.content_of(reply).content
        metrics = messages.metrics_of(reply)
        client = messages.whole_number(metrics, CLIENT)
        if client >= MAX_CLIENTS:
            raise ReplyError(f"its partition-id must be below {MAX_CLIENTS}; got {client}")
        count, bits = messages.whole_number(metrics, EXAMPLES), messages.whole_number(metrics, BITS)
        agreed = content.config_records.get(FEDREACH)
        if agreed is not None:
            reason = first_difference(self.terms, agreed)
            if reason is not None:
                raise ReplyError(f"{reason}; server and clients must be given the same federation and model")
        elif self.federation.has_memory or self.federation.measurements():
            raise ReplyError(
                "it trains by itself, and the federation's solver or measurements need fedreach.flower.app.client_app"
            )
        elif self.federation.adapts:
            raise ReplyError(
                "it trains by itself, and the federation's adaptation rule needs fedreach.flower.app.client_app"
            )
        held_out = None if agreed is None else messages.whole_number(metrics, HELD_OUT)
        samples = None if agreed is None else self._read_samples(agreed)
        facts = ClientStatistics(
            count, bits, agreed is not None, held_out, public_key=self._read_key(agreed, client), samples=samples
        )
        self.checks.examples(client, facts, self.known.get(client))
        return client, facts

    def _read_samples(self, agreed: ConfigRecord) -> str:
        """Return the form of a client's examples, which must be that of the run's other clients."""
        samples = agreed.get(SAMPLES)
        if not isinstance(samples, str):
            raise ReplyError("it does not tell what its samples look like")
        if self.samples is not None and samples != self.samples:
            raise ReplyError(
                first_difference(_sample_terms(self.samples), _sample_terms(samples))
                or "its samples are of another kind"
            )
        return samples

    def _agree_on_samples(self) -> set[int]:
        """Reject and return clients whose examples differ in form from most, such as images on another scale."""
        samples_by_client = {
            client: facts.samples for client, facts in sorted(self.known.items()) if facts.samples is not None
        }
        counts = Counter(samples_by_client.values())  # a tie goes to the form of the lowest id
        self.samples = max(counts, key=lambda kind: counts[kind], default=None)
        refused = {client for client, kind in samples_by_client.items() if kind != self.samples}
        for client in sorted(refused):
            error = ReplyError(
                first_difference(_sample_terms(self.samples), _sample_terms(samples_by_client[client])) or ""
            )
            self.blame(f"client {client}", error)
            LOG.warning("Client %s does not take part: %s.", client, error)
            del self.known[client]
            if (node := self.nodes.pop(client, None)) is not None:
                self.refused[node], self.ask_again[node] = str(error), np.inf
        return refused

    def _read_key(self, agreed: ConfigRecord | None, client: int) -> str | None:
        """Return the public key of a client in hex if secure aggregation needs it; reject a weak key."""
        if not self.federation.label_statistics.only_sum:
            return None
        key = None if agreed is None else agreed.get(KEY)
        if not isinstance(key, bytes) or not is_public_key(key):
            raise ReplyError("it has no key for secure aggregation, which needs fedreach.flower.app.client_app")
        if any(facts.public_key == key.hex() for other_client, facts in self.known.items() if other_client != client):
            raise ReplyError("its key for secure aggregation is that of another client")
        return key.hex()

    # ------------------------------------------------------------------------------------------------ facts and view

    def learn_labels(self, grid: Grid, clients: Iterable[int]) -> dict[int, str]:
        """Ask clients for the label statistics that components need; return why some did not send them."""
        lacking: dict[int, str] = {}
        for fact in sorted(self._needs()):  # entropies last: the server computes them from counts
            available = [client for client in clients if client in self.nodes and client not in lacking]
            asked_clients = [client for client in available if getattr(self.known[client], fact) is None]
            content = RecordDict({FEDREACH: ConfigRecord({"fact": fact})})
            sent = {c: self._message(self.nodes[c], "query.labels", content) for c in asked_clients}
            replies = replies_by_node(grid, sent.values(), self.timeout)
            for client in asked_clients:
                try:
                    self.known[client] = replace(self.known[client], **self._read_fact(fact, replies, client))
                except ReplyError as error:
                    lacking[client] = str(error)
                    self.blame(f"client {client}", error)
        return lacking | self._drop_odd_label_counts()

    def _drop_odd_label_counts(self) -> dict[int, str]:
        """Drop label counts that have another number of classes than most clients'; return the reasons."""
        widths = {c: len(facts.label_counts) for c, facts in self.known.items() if facts.label_counts is not None}
        usual = max(widths.values(), key=lambda width: (list(widths.values()).count(width), width), default=0)
        reasons = {
            c: f"its label_counts are {w} numbers, and most clients' {usual}" for c, w in widths.items() if w != usual
        }
        for client in reasons:
            self.known[client] = replace(self.known[client], label_counts=None)
        return reasons

    def settle(self, grid: Grid, min_clients: int) -> None:
        """Choose the participants: named or online clients that send the label statistics that components need.

        Raises:
            ConfigError: If there are fewer than `min_clients` of them.
        """
        assert self.population is not None  # `gather` comes first
        refused = self._agree_on_samples()
        participants = [client for client in self.population.participants.tolist() if client not in refused]
        unseen = [client for client in self.population.unseen.tolist() if client not in refused]
        lacking: dict[int, str] = {}
        if self._needs():
            lacking = dict.fromkeys((client for client in participants if client not in self.nodes), "it is not there")
            lacking |= self.learn_labels(grid, participants)
            for client, reason in sorted(lacking.items()):
                LOG.warning("Client %s never trains: the parts need to know of its labels, but %s.", client, reason)
        participants = [client for client in participants if client not in lacking]
        if len(participants) < min_clients:
            reasons = "; ".join(f"client {client}: {reason}" for client, reason in sorted(lacking.items()))
            raise ConfigError(
                f"{len(participants)} clients tell of their labels what the federation's parts need to know, and "
                f"{min_clients} are needed ({reasons}). Choose parts that need less, or lower min_clients."
            )
        LOG.info("Clients %s take part; whoever else comes is evaluated only.", participants)
        self.population = Population(np.array(participants, np.int64), np.array(sorted({*unseen, *lacking}), np.int64))

    def return_to(self, participants: Sequence[int]) -> None:
        """Restore the participants of an earlier process of the same run; all other named clients are unseen."""
        named = set() if self.population is None else {*self.population.participants.tolist()}
        unseen = set() if self.population is None else {*self.population.unseen.tolist()}
        remaining = sorted((named | unseen) - set(participants))
        self.population = Population(np.array(participants, np.int64), np.array(remaining, np.int64))
        self.samples = next((facts.samples for facts in self.known.values() if facts.samples is not None), None)

    def _read_fact(self, fact: str, replies: dict[int, Message], client: int) -> dict[str, Any]:
        facts = self.known[client]
        record = messages.arrays(reply_of(replies, self.nodes[client], self.timeout), LABELS)
        if fact not in record:
            raise ReplyError(f"it sent no {fact!r}")
        try:
            values = record[fact].numpy().astype(np.float64, casting="same_kind")  # rejects complex numbers
        except Exception as error:
            raise ReplyError(f"its {fact!r} cannot be read: {error}") from error
        if fact == "label_entropy":
            return {fact: self.checks.label_entropy(values, facts)}
        counts = self.checks.label_counts(values, facts)
        entropy = float(released_entropy(np.array([counts]))[0]) if "label_entropy" in self._needs() else None
        return {fact: counts, "label_entropy": entropy}

    def view(self, participants: Sequence[int]) -> ServerView:
        """Return the server's view of the participants at the start of a round; unknown ones have no examples."""
        ids = np.array(participants, np.int64)
        facts = [self.known.get(client) for client in participants]
        present = [c in self.nodes and self.nodes[c] in self.online and self._can_train(c) for c in participants]
        view = ServerView.of(
            ids,
            np.array([0 if f is None else f.num_examples for f in facts], np.int64),
            available=np.array(present, np.bool_),
        )
        needs = self._needs()
        counts: Floats | None = None
        entropy: Floats | None = None
        if "label_counts" in needs:
            counts = np.array([f.label_counts for f in facts if f is not None], np.float64)
        if "label_entropy" in needs:
            entropy = np.array([f.label_entropy for f in facts if f is not None], np.float64)
        size = constant_bytes(self.constants)
        return replace(view, label_counts=counts, label_entropy=entropy, constant_bytes=size)

    def bits_per_example(self) -> float:
        """Return the median size of an example over participants; a single client can hardly change it.

        Raises:
            ConfigError: If most participants do not report it.
        """
        assert self.population is not None
        participants = self.population.participants.tolist()
        bits = float(np.median([self.known[c].bits_per_example for c in participants if c in self.known]))
        if bits == 0:
            raise ConfigError(
                "The radio needs to know how large an example is, and no client told. Call share_labels with "
                "bits_per_example."
            )
        return bits

    def _needs(self) -> frozenset[str]:
        """Return the label statistics that the server needs; secure aggregation needs none."""
        return frozenset() if self.federation.label_statistics.only_sum else self.federation.needs()

    def keys(self, clients: Iterable[int]) -> ConfigRecord:
        """Return the public keys of clients, in the form that the server distributes."""
        public_keys = {client: self.known[client].public_key or "" for client in clients}
        return ConfigRecord({"ids": list(public_keys), "keys": [bytes.fromhex(key) for key in public_keys.values()]})

    def _can_train(self, client: int) -> bool:
        return self.known[client].num_examples > 0

    def nodes_of(self, clients: Iterable[int]) -> dict[int, int]:
        """Return the nodes of these clients that are online."""
        nodes = self.nodes
        return {client: nodes[client] for client in clients if client in nodes and nodes[client] in self.online}

    def unseen(self) -> list[int]:
        """Return the clients that never train: named ones and those that came too late."""
        assert self.population is not None
        participants = set(self.population.participants.tolist())
        return sorted({*self.population.unseen.tolist(), *(set(self.nodes) - participants)})

    def _message(self, node: int, kind: str, content: RecordDict) -> Message:
        return Message(content, node, kind, ttl=self.timeout)


def _sample_terms(samples: str | None) -> dict[str, str]:
    """Return the form of examples, term by term; a client may send anything."""
    try:
        terms = json.loads(samples or "{}")
    except ValueError:
        terms = None
    return {key: repr(value) for key, value in terms.items()} if isinstance(terms, dict) else {"samples": str(samples)}


def send_and_wait(grid: Grid, sent: Iterable[Message], timeout: float) -> list[Message]:
    """Send messages and return the replies that arrive in time, in any order.

    `Grid.send_and_receive` does the same, but looks for replies only every three seconds in a deployment.
    """
    waiting = set(grid.push_messages(list(sent)))
    until, replies = time.monotonic() + timeout, []
    while waiting:
        arrived = list(grid.pull_messages(waiting))
        replies += arrived
        waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
        if not waiting or time.monotonic() > until:
            break
        time.sleep(POLL_SECONDS)
    return replies


def replies_by_node(grid: Grid, sent: Iterable[Message], timeout: float) -> dict[int, Message]:
    """Send one message to each of several nodes and return their replies by node, see `send_and_wait`."""
    return {reply.metadata.src_node_id: reply for reply in reversed(send_and_wait(grid, sent, timeout))}


def reply_of(replies: Mapping[int, Message], node: int, timeout: float) -> Message:
    """Return the reply of a node; raise a ReplyError if it is an error, or none arrived in time."""
    if node not in replies:
        raise LostError(f"no answer within {timeout:g} s")
    return messages.content_of(replies[node])
