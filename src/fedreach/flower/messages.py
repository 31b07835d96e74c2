"""Messages between server and clients."""

import re
from collections.abc import Mapping, MutableMapping
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from flwr.app import Array, ArrayRecord, Message
from torch import nn

from fedreach._util.arrays import AnyArray, Float32s
from fedreach._util.errors import ConfigError, TrainingError
from fedreach.engines.models.flat import Layout, bind
from fedreach.federation.checks import ANY, Range
from fedreach.federation.federation import Federation
from fedreach.federation.secure_aggregation import Words, mask
from fedreach.federation.traits import name_of

# -------------------- What stands in the messages between server and clients, and what of a reply can be believed
# ```
# query          -> metrics: client, num-examples, held-out-examples,        fedreach: how it trains, its public key,
#                            bits-per-example                                      what its samples look like
# query.constants  constants: by name      fedreach: digest      -> nothing; client_app keeps them in its context
# query.labels   fedreach: fact                               -> labels: label_counts or label_entropy
# query.table    fedreach: question, exchange                -> fedreach: names that it tells; sums
# query.loss     arrays: model             fedreach: run, round, batch-size  -> metrics: loss
# train          arrays: model    config: the user's own, server-round
#                fedreach: run, round, rate, share, memory-round             -> update, or arrays: the local model
#                          draws, where it was drawn with replacement
#                solver: what the server's solver sends                         metrics: train_loss, num-examples, steps
#                memory: if the client lost it                                  and what the parts have clients measure
#                keys: of a secure sum                                       -> masked, in place of update and measures
# evaluate       arrays: model                          fedreach: run, round -> metrics: eval_loss, eval_acc, ...
#                                                                               (of numbers eval_mae, ...)
# query.serving  nothing                                                     -> metrics: num-examples, held out
# query.serving  arrays: model    fedreach: run, session, exchange, fits
#                query-0, query-1 ...: what a rule asks, one a fit           -> sums-0, sums-1 ...: over its examples
#                keys: of a secure sum                                          each of them masked
# evaluate.serving  arrays: model    state: of the fitted rule
#                fedreach: part, inputs, online                              -> metrics: served_accuracy, ...
# ```
# What answers a question of a round says in `fedreach`, too, which round of which run that was. Models travel under the
# names of their `state_dict`: to `client_app` what is trained and averaged, after the constants once; to clients that
# know nothing of FedReach all of it, each time, so that they can train it. What is missing, of another form or out of
# its
# range makes a `ReplyError`, which says why the reply does not count.

RUN = "run"  # name of it: contexts may serve several
OURS = "fedreach"  # the record of what FedReach says beside Flower's own records
MODEL, CONFIG, METRICS = "arrays", "config", "metrics"  # as Flower's own strategies name them
UPDATE, MASKED, SOLVER, MEMORY, LABELS = "update", "masked", "solver", "memory", "labels"
STATE, SESSION, EXCHANGE, FITS = "state", "session", "exchange", "fits"  # of a serving rule
PART, INPUTS, ONLINE = "part", "inputs", "online"
KEY, KEYS = "public-key", "keys"  # of a secure sum
SAMPLES = "samples"  # what they look like
TABLE, QUESTION, TOLD, SUMS, NAME = "fedreach-table", "question", "told", "sums", "name"
LOSS, EXAMPLES, STEPS, CLIENT = "train_loss", "num-examples", "steps", "client"
LACKS = "lacks-memory-of-round"
CONSTANTS, DIGEST = "constants", "digest"  # of the model, see `fedreach.engines.models.state`
KEPT = "kept-memory-of-round"
SHORT = {"accuracy": "acc", "mae": "mae"}  # what a main score is called, after the part that it is of
ROUND, DRAWS, HELD_OUT, BITS = "round", "draws", "held-out-examples", "bits-per-example"

LARGEST = 2**40  # whole number of a reply
FAILED = "it failed: "  # before what a client's app raised
WRAPPED = re.compile(r"^Exception ClientAppException occurred\. Message: (.*?)(?:'>)?$")  # by Flower's simulation
HUGE = 1e30  # number of an update: with larger ones the model soon is not finite


def query_name(fit: int) -> str:
    """Return the record of what a serving rule asks in one of the fits that go on at a time."""
    return f"query-{fit}"


def sums_name(fit: int) -> str:
    """Return the record of what a client answers to that."""
    return f"sums-{fit}"


def members_name(fit: int) -> str:
    """Return where the clients of that fit stand, who share masks."""
    return f"members-{fit}"


class ReplyError(Exception):
    """Why a reply does not count: what it says cannot be believed."""


class LostError(ReplyError):
    """Why a client's reply is lost, though it said nothing wrong: it was late, or the client failed."""


def model_record(layout: Layout, params: Float32s) -> ArrayRecord:
    """Return a (d,) vector as what is trained and averaged of a model, by name."""
    views = layout.views(torch.from_numpy(np.array(params, np.float32)))
    return ArrayRecord({name: Array(tensor.numpy()) for name, tensor in views.items()})


def whole_record(module: nn.Module, layout: Layout, params: Float32s) -> ArrayRecord:
    """Return a (d,) vector as the model's whole state dict, which `load_state_dict` takes.

    The module is bound to a copy of the vector.
    """
    bind(module, torch.from_numpy(np.array(params, np.float32)), layout=layout)
    state = {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}
    # numpy has no bfloat16; float32 holds its numbers, and `load_state_dict` takes them
    plain = {name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor for name, tensor in state.items()}
    return ArrayRecord({name: Array(tensor.numpy()) for name, tensor in plain.items()})


def constants_digest(constants: Mapping[str, AnyArray]) -> str:
    """Return the digest by which a client knows whether it has these constants.

    Example:
        >>> constants_digest({"mask": np.ones(3, bool)})[:8]
        'aa58294a'
    """
    digest = sha256()
    for name, values in sorted(constants.items()):
        digest.update(f"{name} {values.dtype} {values.shape}".encode() + np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def params_of(record: ArrayRecord, layout: Layout) -> Float32s:
    """Return the (d,) vector of a model that came by name; its tensors must be what the layout says."""
    vector = torch.empty(layout.size)
    for name, view in layout.views(vector).items():
        if name not in record:
            raise ReplyError(f"its model has no {name!r}")
        float16 = name in layout.narrow and name in record and record[name].dtype == "float16"
        values = array(record, name, tuple(view.shape), np.float16 if float16 else np.float32)
        view.copy_(torch.from_numpy(values.copy()))
    return vector.numpy()


def first_model(record: ArrayRecord, layout: Layout) -> Float32s:
    """Return the (d,) vector of a model that the user handed over."""
    try:
        return params_of(record, layout)
    except ReplyError as error:
        raise ConfigError(
            f"initial_arrays must be the strategy's model, ArrayRecord(model.state_dict()): {error}."
        ) from error


def array(record: ArrayRecord, name: str, shape: tuple[int, ...] | None, kind: type = np.float32) -> AnyArray:
    """Return a finite array of this shape (None: any) and kind, and refuse anything else."""
    if name not in record:
        raise ReplyError(f"it sent no {name!r}")
    encoded = record[name]
    try:
        values = encoded.numpy()
    except Exception as error:
        raise ReplyError(f"its {name!r} cannot be read: {error}") from error
    if values.dtype != kind or shape not in (None, values.shape):
        rule = f"{np.dtype(kind)} {'' if shape is None else shape}".rstrip()
        raise ReplyError(f"its {name!r} must be {rule}; got {values.dtype} {values.shape}")
    if not np.isfinite(values).all():
        raise ReplyError(f"its {name!r} is not finite")
    if kind is np.float32 and values.size and (largest := float(np.abs(values).max())) > HUGE:
        raise ReplyError(f"its {name!r} holds numbers up to {largest:.3g}")
    return values


def arrays(message: Message, name: str) -> ArrayRecord:
    """Return the array record of this name of a message."""
    if name not in message.content.array_records:
        raise ReplyError(f"it sent no arrays {name!r}")
    return message.content.array_records[name]


def number(metrics: Mapping[str, Any], name: str, within: Range = ANY) -> float:
    """Return a finite number of a reply, which must lie in this range."""
    value = metrics.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ReplyError(f"it sent no number {name!r}" if value is None else f"its {name!r} is not a number: {value!r}")
    if not np.isfinite(value):
        raise ReplyError(f"its {name!r} is not finite")
    if not within.holds(value):
        below = within.minimum is not None and value < within.minimum
        rule = Range(minimum=within.minimum) if below else Range(maximum=within.maximum)
        raise ReplyError(f"its {name!r} must be {rule}; got {value}")
    return value


def whole(metrics: Mapping[str, Any], name: str, minimum: int = 0) -> int:
    """Return a whole number of a reply that is not below `minimum`."""
    value = number(metrics, name)
    if value != int(value) or not minimum <= value <= LARGEST:
        raise ReplyError(f"its {name!r} must be a whole number from {minimum} to {LARGEST}; got {value}")
    return int(value)


def check_question(message: Message, run: str, round_: int) -> None:
    """Refuse what does not say that it answers this round of this run."""
    question: Mapping[str, Any] = message.content.config_records.get(OURS, {})
    if question.get(RUN) != run:
        raise ReplyError("it answers no question of this run")
    if question.get(ROUND) != round_:
        raise ReplyError(f"it answers round {question.get(ROUND)!r}, and was asked for round {round_}")


def content_of(message: Message) -> Message:
    """Return the message, unless it tells an error: then the last line of a client's traceback says what happened."""
    if message.has_error():
        lines = (message.error.reason or "").strip().splitlines() or ["it gave no reason"]
        what = WRAPPED.sub(r"\1", lines[-1].strip()).rstrip(".")
        raise LostError(f"{FAILED}{printable(what)[:300]}")
    return message


def printable(text: str) -> str:
    """Return what a client wrote without what a terminal would take for a command.

    Example:
        >>> printable("oh \\x1b[2J")
        'oh ?[2J'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def metrics_of(message: Message) -> Mapping[str, Any]:
    """Return the numbers of a reply."""
    if METRICS not in message.content.metric_records:
        raise ReplyError(f"it sent no {METRICS!r}")
    return message.content.metric_records[METRICS]


def array_record(values: Mapping[str, AnyArray]) -> ArrayRecord:
    """Return a record of named arrays."""
    return ArrayRecord({name: Array(np.asarray(array, order="C")) for name, array in values.items()})


# --- Masks that two clients share and the server does not know: see `fedreach.federation.secure_aggregation`
# Each client has a key pair of its own for the run, and the server passes the public halves on: X25519 gives two
# clients
# a common secret, HKDF a key for the round, ChaCha20 the words of the mask. This hides clients from a server that looks
# at what it gets; one that cheats could pass on public keys of its own making. If a report is missing, the masks of the
# others do not cancel, and the round counts for nobody.
#
# Reference: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017,
# section 4.

MIN_CLIENTS = 2  # clients in a sum: that of one is its report


def new_private_key() -> bytes:
    """Return 32 random bytes that never leave the client."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """Return the 32 bytes that all may know."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def is_public_key(key: bytes) -> bool:
    """Return whether two clients can share a secret by this key: of some, all that comes out is zeros.

    Example:
        >>> is_public_key(public_key(new_private_key())), is_public_key(bytes(32)), is_public_key(b"short")
        (True, False, False)
    """
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        return False
    return True


def pad(private: bytes, other_key: bytes, run: str, round_: int, count: int) -> Words:
    """Return what two clients share in a round, from the private key of one and the public key of the other.

    Example:
        >>> ann, bob = new_private_key(), new_private_key()
        >>> bool((pad(ann, public_key(bob), "run", 3, 5) == pad(bob, public_key(ann), "run", 3, 5)).all())
        True
        >>> bool((pad(ann, public_key(bob), "run", 3, 5) == pad(ann, public_key(bob), "run", 4, 5)).any())
        False
    """
    secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(other_key))
    key = HKDF(SHA256(), 32, salt=None, info=f"fedreach mask {run} {round_}".encode()).derive(secret)
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * count))
    return np.frombuffer(stream, "<u8").astype(np.uint64)


def masked(
    words: Words,
    client: int,
    public: Mapping[int, bytes],
    private: bytes,
    run: str,
    round_: int,
    used: MutableMapping[str, Any],
) -> Words:
    """Return a client's words under the masks that it shares with the others of a sum, if that hides them.

    Args:
        words: (n,) of this client.
        public: Client -> public key, of all in the sum.
        private: The client's own key.
        run: Of which there are rounds.
        round_: Later than all in which masks of this run were used.
        used: Run -> the last round of it; it is noted here.

    Raises:
        TrainingError: If others could see the words through these masks.
    """
    ids = list(public)
    if client not in public or len(set(public.values())) < MIN_CLIENTS or len(set(public.values())) != len(ids):
        raise TrainingError(f"a secure sum needs {MIN_CLIENTS} clients at least, each with a key of its own; got {ids}")
    if round_ <= int(used.get(run, 0)):
        raise TrainingError(f"the masks of round {round_} were used before: a second report would show the difference")
    used[run] = round_  # an entry a run: the server chooses its name
    return mask(
        words, client, ids, lambda low, high, n: pad(private, public[high if low == client else low], run, round_, n)
    )


def keys_of(record: Mapping[str, Any]) -> dict[int, bytes]:
    """Return client -> public key, as the server hands them out."""
    return dict(zip(record["ids"], record["keys"], strict=True))


def refuse_more_than_a_sum(federation: Federation) -> None:
    """Refuse parts that a secure sum on Flower cannot serve.

    Raises:
        ConfigError: If clusters of clients, or a solver's memory, or a cohort of one ask for more than one sum.
    """
    if federation.cohort < MIN_CLIENTS:
        raise ConfigError(
            f"SecureSum needs a cohort of at least {MIN_CLIENTS}, as a sum over one client is its report; got "
            f"{federation.cohort}."
        )
    if federation.has_memory:
        keeper = federation.loss if federation.memory_solver is None else federation.solver
        raise ConfigError(
            f"SecureSum hides single updates from the server, and on Flower {type(keeper).__name__} "
            f"has it look at them. Use a {'loss' if keeper is federation.loss else 'solver'} without memory, such as "
            f"{'FedNTD' if keeper is federation.loss else 'FedProx'}."
        )
    if federation.traits["selection"].clusters:
        raise ConfigError(
            f"SecureSum on Flower is one sum over the whole cohort, and {name_of(federation.selection)} gives clusters "
            "of clients a model each. Use a selection without clusters."
        )
