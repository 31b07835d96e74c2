"""Secure aggregation on Flower, the side of a client: keys, shares, masked sums and their unmasking."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from logging import getLogger
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.app import ConfigRecord, Context
from flwr.supercore.primitives.asymmetric import sign_message, verify_signature
from pydantic import BaseModel

from fedreach._util.errors import ConfigError, TrainingError
from fedreach.federation.base import LabelStatistics
from fedreach.federation.secure_aggregation import MIN_CLIENTS, Words, mask
from fedreach.flower.secret_sharing import (
    SHARE_BYTES,
    common_key,
    derived_key,
    is_public_key,
    new_private_key,
    pad,
    public_key,
    seal,
    split,
    unseal,
)

# -------------------- The protocol of one sum
# ```
# keys    cohort                         -> two public keys of the client, signed if it has a roster
# shares  public keys of U1              -> for each client of U1, sealed: a share of the mask key and of the seed
# (mask)  sealed shares from U2, groups  -> words + pad(seed) + pads with each other client of U2
# sign    survivors U3                   -> signature of U3; only where clients have rosters
# reveal  U3, signatures                 -> for each client of U2: a share of its seed, or of its mask key if it left
# ```
# U1 contains U2, which contains U3; each has at least t clients. The request for the masked words is the message that
# asks for the work, such as training. A client that left before is missing in the next set. Because its masks with
# others are in their words, t clients reveal its mask key. Of the others they reveal the seed. The server never gets
# both of one client, since t is above half of the cohort and each client reveals its shares once.
#
# Keys are new for each sum. A revealed mask key would expose the later sums of a client that left, and the cohort
# changes. All keys are signed together with the cohort, so clients agree on t. The number of a sum rises, so the server
# cannot use signed keys again.
#
# Reference: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, figure 4
# with the additions for active adversaries.

LOG = getLogger("flwr")
SECURE = "secure"  # record in messages and in a client's context
KEY_FILE, ROSTER_FILE = "secure-key", "secure-roster"  # in a node config

Groups = Mapping[str, Sequence[int]]
"""Name of several sums over the same clients -> these clients of the cohort."""
Sums = Mapping[str, Mapping[str, Words]]
"""Group -> words of a client for each sum, by name."""


class PublicKeys(BaseModel, frozen=True):
    """The public keys of a client for one sum, in hex."""

    sealing: str
    masking: str
    signature: str = ""  # of the client's long-term key


class Session(BaseModel):
    """What a client keeps of one sum; keys and shares in hex."""

    name: str
    number: int
    cohort: list[int]
    done: str  # the last step
    sealing: str = ""  # private keys
    masking: str = ""
    seed: str = ""
    keys: dict[int, PublicKeys] = {}  # U1
    shares: dict[int, str] = {}  # U2 -> shares of its mask key and of its seed
    groups: dict[str, list[int]] = {}
    subject: tuple[str, int] = "", 0
    survivors: list[int] = []  # that were signed


class Kept(BaseModel):
    """What a client keeps in its context."""

    numbers: dict[str, int] = {}  # name -> last number of a sum
    revealed: dict[str, int] = {}  # run -> last round in an unmasked sum
    session: Session | None = None


class Roster(NamedTuple):
    """The long-term keys with which clients sign."""

    private: ec.EllipticCurvePrivateKey
    public: Mapping[int, ec.EllipticCurvePublicKey]  # by client


def read_roster(context: Context, client: int) -> Roster | None:
    """Return the keys in the files that the node config names, or None if it names none.

    ``secure-key`` is the path of the client's private key, such as the key with which its SuperNode authenticates.
    ``secure-roster`` is the path of a file with a line for each client: its id and its public key in OpenSSH format.

    Raises:
        ConfigError: If a file is missing or malformed, or if the roster has another key for this client.
    """
    files = [context.node_config.get(name) for name in (KEY_FILE, ROSTER_FILE)]
    if files == [None, None]:
        return None
    if None in files:
        raise ConfigError(f"A node's config must contain both {KEY_FILE!r} and {ROSTER_FILE!r}, or neither; got one.")
    try:
        private = load_ssh_private_key(Path(str(files[0])).read_bytes(), password=None)
        lines = [line.split(maxsplit=1) for line in Path(str(files[1])).read_text(encoding="utf-8").splitlines()]
        public = {int(line[0]): load_ssh_public_key(line[1].encode()) for line in lines if line}
    except Exception as error:
        raise ConfigError(
            f"{KEY_FILE} must be an OpenSSH private key without a password, and each line of {ROSTER_FILE} a client's "
            f"id and its public key; got {error}."
        ) from error
    curves = {i: key for i, key in public.items() if isinstance(key, ec.EllipticCurvePublicKey)}
    if not isinstance(private, ec.EllipticCurvePrivateKey) or len(curves) < len(public):
        raise ConfigError(f"{KEY_FILE} and {ROSTER_FILE} must contain ECDSA keys: ssh-keygen -t ecdsa -b 384.")
    if curves.get(client) != private.public_key():
        raise ConfigError(f"{ROSTER_FILE} must contain the public key of {KEY_FILE} for client {client}.")
    return Roster(private, curves)


@cache  # once in a process, which may run many clients
def warn_of_trust() -> None:
    """Warn that the keys of other clients cannot be checked."""
    LOG.warning(
        "This client trusts the server to pass on the keys of secure aggregation. To check them, set %r and %r in the "
        "node config.",
        *(KEY_FILE, ROSTER_FILE),
    )


def new_record(name: str, number: int, step: str, content: Mapping[str, Any]) -> ConfigRecord:
    """Return the record of a request."""
    return ConfigRecord({"name": name, "number": number, "step": step, "content": json.dumps(content)})


def purpose(*parts: object) -> str:
    """Return an unambiguous text of parts."""
    return json.dumps(parts)


def pair_pads(masking: bytes, keys: Mapping[int, bytes], client: int, about: Sequence[object]) -> Any:
    """Return the function `pad` of `fedreach.federation.secure_aggregation.mask` for one client.

    Args:
        masking: The client's private mask key.
        keys: Public mask keys of the other clients.
        about: What the pad is for; no two pads of a key are for the same.
    """

    def pad_of_pair(low: int, high: int, count: int) -> Words:
        return pad(common_key(masking, keys[high if low == client else low], purpose("mask", *about)), count)

    return pad_of_pair


def own_pad(seed: bytes, about: Sequence[object], count: int) -> Words:
    """Return the pad of a client's seed."""
    return pad(derived_key(seed, purpose("seed", *about)), count)


def refuse_revealing_groups(groups: Groups, present: Iterable[int]) -> None:
    """Reject sums over groups if their differences would reveal a single client.

    Each group must omit other clients than all other groups: none, or at least two.

    Raises:
        TrainingError: If a sum or a difference of sums is over one client.
    """
    omitted = [set(present).difference(group) for group in groups.values()]
    common = set(present).difference(*omitted)
    overlap = sum(map(len, omitted)) > len(set[int]().union(*omitted))
    if overlap or any(len(part) == 1 for part in (*omitted, common)):
        raise TrainingError(
            f"the server asks for sums over {list(map(list, groups.values()))}, whose differences would reveal the "
            "report of a single client"
        )


class SecureClient:
    """The steps of one client; `answer` replies to all requests except the request for masked words, see `mask`.

    Args:
        context: Context of the client, which keeps keys and shares between messages.
        client: Id of the client.
        statistics: Label statistics of the federation, such as `SecureAggregation`.
    """

    def __init__(self, context: Context, client: int, statistics: LabelStatistics) -> None:
        self.context, self.client, self.statistics = context, client, statistics
        self.roster = read_roster(context, client)
        stored = context.state.config_records.get(SECURE)
        self.kept = Kept() if stored is None else Kept.model_validate_json(str(stored["kept"]))

    def answer(self, request: ConfigRecord) -> ConfigRecord:
        """Return the reply to a request; a client replies once to each step of a sum.

        Raises:
            TrainingError: If the request could reveal more than a sum over at least t clients.
        """
        steps = {"keys": self._keys, "shares": self._shares, "sign": self._sign, "reveal": self._reveal}
        reply = steps[str(request["step"])](request, json.loads(str(request["content"])))
        self._store()
        return ConfigRecord({"content": json.dumps(reply)})

    @property
    def cohort_size(self) -> int:
        """Number of clients in the cohort of the current sum."""
        return len(self.kept.session.cohort) if self.kept.session else 0

    def _store(self) -> None:
        self.context.state.config_records[SECURE] = ConfigRecord({"kept": self.kept.model_dump_json()})

    def _follow(self, request: ConfigRecord, previous: str) -> Session:
        """Return the session of the request, if `previous` is the last step that this client has done."""
        session = self.kept.session
        if session is None or (session.name, session.number) != (request["name"], request["number"]):
            raise TrainingError(f"this client has no keys for sum {request['number']!r} of secure aggregation")
        if session.done != previous:
            raise TrainingError(
                f"the step {request['step']!r} of secure aggregation must follow the step {previous!r}, but the last "
                f"step of this client was {session.done!r}. A client takes each step of a sum once, because a second "
                "answer could reveal a single report"
            )
        session.done = str(request["step"])
        return session

    def _need(self, count: int, session: Session, what: str) -> None:
        """Reject a sum that fewer clients are left in than must be."""
        needed = self.statistics.needed_replies(len(session.cohort))
        if count < needed:
            raise TrainingError(
                f"secure aggregation needs {what} of at least {needed} of {len(session.cohort)} clients; got {count}"
            )

    def _signed(self, session: Session, kind: str, content: object) -> bytes:
        """Return the text that clients sign."""
        return purpose("fedreach", kind, session.name, session.number, session.cohort, content).encode()

    def _is_signed(self, client: int, text: bytes, signature: str) -> bool:
        assert self.roster is not None
        public = self.roster.public.get(client)
        return public is not None and verify_signature(public, text, bytes.fromhex(signature))

    def _keys(self, request: ConfigRecord, content: Mapping[str, Any]) -> dict[str, str]:
        cohort, name, number = [*map(int, content["cohort"])], str(request["name"]), int(str(request["number"]))
        if cohort != sorted(set(cohort)) or self.client not in cohort or len(cohort) < MIN_CLIENTS:
            raise TrainingError(
                f"secure aggregation requires a cohort of at least {MIN_CLIENTS} different clients, including client "
                f"{self.client}; got {cohort}"
            )
        if number <= self.kept.numbers.get(name, 0):
            raise TrainingError(
                f"the number of a sum of secure aggregation must be above {self.kept.numbers[name]}; got {number}"
            )
        if self.roster is None and not self.kept.numbers:
            warn_of_trust()
        self.kept.numbers[name] = number  # one entry per process of the server
        sealing, masking = new_private_key(), new_private_key()
        self.kept.session = session = Session(
            name=name, number=number, cohort=cohort, done="keys", sealing=sealing.hex(), masking=masking.hex()
        )
        public = public_key(sealing).hex(), public_key(masking).hex()
        keys = PublicKeys(sealing=public[0], masking=public[1])
        if self.roster is not None:
            text = self._signed(session, "keys", [self.client, *public])
            keys = keys.model_copy(update={"signature": sign_message(self.roster.private, text).hex()})
        session.keys = {self.client: keys}
        return keys.model_dump()

    def _shares(self, request: ConfigRecord, content: Mapping[str, Any]) -> dict[int, str]:
        session = self._follow(request, "keys")
        keys = {int(client): PublicKeys.model_validate(sent) for client, sent in content["keys"].items()}
        self._check_keys(session, keys)
        session.keys, session.seed = keys, new_private_key().hex()
        places = {client: session.cohort.index(client) + 1 for client in keys}
        needed = self.statistics.needed_replies(len(session.cohort))
        masking, seed = (
            split(bytes.fromhex(secret), [*places.values()], needed) for secret in (session.masking, session.seed)
        )
        return {
            client: seal(self._sealing_key(session, client), masking[place] + seed[place], self._label(client)).hex()
            for client, place in places.items()
        }

    def _check_keys(self, session: Session, keys: Mapping[int, PublicKeys]) -> None:
        if not set(keys) <= set(session.cohort) or keys.get(self.client) != session.keys[self.client]:
            raise TrainingError(
                f"the server must pass on the keys of the cohort, and those of client {self.client} as they were sent"
            )
        self._need(len(keys), session, "keys")
        public = [key for sent in keys.values() for key in (sent.sealing, sent.masking)]
        if len(set(public)) < len(public) or not all(is_public_key(bytes.fromhex(key)) for key in public):
            raise TrainingError("two clients have the same key for secure aggregation, or a key that hides nothing")
        for client, sent in keys.items() if self.roster is not None else ():
            text = self._signed(session, "keys", [client, sent.sealing, sent.masking])
            if not self._is_signed(client, text, sent.signature):
                raise TrainingError(
                    f"the keys that the server passed on for client {client} do not have the signature of this client "
                    f"in {ROSTER_FILE}"
                )

    def _sealing_key(self, session: Session, peer: int) -> bytes:
        key = bytes.fromhex(session.keys[peer].sealing)
        return common_key(bytes.fromhex(session.sealing), key, purpose("seal", session.name, session.number))

    def _label(self, receiver: int, sender: int | None = None) -> str:
        return purpose(self.client if sender is None else sender, receiver)

    def mask(self, request: ConfigRecord, sums: Sums, subject: tuple[str, int]) -> dict[str, dict[str, Words]]:
        """Return masked words; the server can read only their sums over each group.

        Args:
            request: Record of the request, with the sealed shares of other clients and the groups.
            sums: Words of this client, of any shape.
            subject: Run and round of these words. Words of a round are in one unmasked sum only, as the difference of
                two sums over different clients would reveal single reports.

        Raises:
            TrainingError: If the masks would not hide the words.
        """
        session, content = self._follow(request, "shares"), json.loads(str(request["content"]))
        if subject[1] <= self.kept.revealed.get(subject[0], 0):
            raise TrainingError(
                f"this client's report {subject[1]} is already in a sum, and a second sum would reveal the difference"
            )
        sealed: dict[int, str] = {int(sender): text for sender, text in content["sealed"].items()}
        if not {self.client} <= set(sealed) <= set(session.keys):
            raise TrainingError(f"the server must pass on the shares of client {self.client} and of clients with keys")
        self._need(len(sealed), session, "shares")
        groups = {str(name): [*map(int, group)] for name, group in content["groups"].items()}
        if not all(set(group) <= set(session.cohort) for group in groups.values()):
            raise TrainingError(f"sums must be over clients of the cohort; got {groups}")
        refuse_revealing_groups(groups, sealed)
        for sender, text in sealed.items():
            try:
                label = self._label(self.client, sender)
                opened = unseal(self._sealing_key(session, sender), bytes.fromhex(text), label)
            except ValueError as error:
                raise TrainingError(f"the share from client {sender} was changed on its way") from error
            session.shares[sender] = opened.hex()
        session.groups, session.subject = groups, subject
        masked = {
            group: {name: self._masked(session, group, name, words) for name, words in of_group.items()}
            for group, of_group in sums.items()
        }
        self._store()
        return masked

    def _masked(self, session: Session, group: str, name: str, words: Words) -> Words:
        about = session.name, session.number, group, name
        members = [client for client in session.groups[group] if client in session.shares]
        keys = {client: bytes.fromhex(session.keys[client].masking) for client in members}
        pads = pair_pads(bytes.fromhex(session.masking), keys, self.client, about)
        padded = words.ravel() + own_pad(bytes.fromhex(session.seed), about, words.size)
        return mask(padded, self.client, members, pads).reshape(words.shape)

    def _check_survivors(self, session: Session, survivors: list[int]) -> None:
        if survivors != sorted(set(survivors)) or not {self.client} <= set(survivors) <= set(session.shares):
            raise TrainingError(
                f"the clients whose words arrived must be clients with shares, including {self.client}; got {survivors}"
            )
        self._need(len(survivors), session, "the masked words")
        refuse_revealing_groups(session.groups, survivors)

    def _sign(self, request: ConfigRecord, content: Mapping[str, Any]) -> dict[str, str]:
        session = self._follow(request, "mask")
        if self.roster is None:
            raise TrainingError(f"this client has no {ROSTER_FILE} to sign with")
        self._check_survivors(session, content["survivors"])
        session.survivors = content["survivors"]
        text = self._signed(session, "survivors", session.survivors)
        return {"signature": sign_message(self.roster.private, text).hex()}

    def _reveal(self, request: ConfigRecord, content: Mapping[str, Any]) -> dict[int, str]:
        session, survivors = self._follow(request, "mask" if self.roster is None else "sign"), content["survivors"]
        self._check_survivors(session, survivors)
        if self.roster is not None:
            text = self._signed(session, "survivors", survivors)
            signed = {int(client): signature for client, signature in content["signatures"].items()}
            valid = [client for client in survivors if self._is_signed(client, text, signed.get(client, ""))]
            self._need(len(valid), session, "signatures of the same list")
        run, number = session.subject
        self.kept.revealed[run] = number  # one entry per run
        self.kept.session = Session(name=session.name, number=session.number, cohort=session.cohort, done="reveal")
        middle = 2 * SHARE_BYTES  # of hex digits
        return {
            client: shares[middle:] if client in survivors else shares[:middle]
            for client, shares in session.shares.items()
        }
