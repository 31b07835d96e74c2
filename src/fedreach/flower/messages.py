"""Messages between server and clients."""

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from zlib import crc32

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from torch import nn

from fedreach._util.arrays import AnyArray, Float32s
from fedreach._util.errors import ConfigError
from fedreach._util.tables import visible
from fedreach.engines.models.flat import Layout, bind
from fedreach.federation.base import name_of
from fedreach.federation.checks import MAX_MAGNITUDE, invalid_update
from fedreach.federation.federation import Federation
from fedreach.federation.secure_aggregation import MIN_CLIENTS

# ---- Contents of the messages between server and clients
# ```
# query          constants: of the model, if any; client_app keeps them in its context
#                -> metrics: client, num-examples, held-out-examples,        fedreach: how it trains,
#                            bits-per-example                                      the form of its samples
# query.labels   fedreach: fact                               -> labels: label_counts or label_entropy
# query.table    fedreach: question, exchange                -> fedreach: names of its table; sums
# query.loss     arrays: model             fedreach: run, round, batch-size  -> metrics: loss
# train          arrays: model    config: the user's own, server-round
#                fedreach: run, round, lr, share, memory-round             -> update, or arrays: the local model
#                          draws, where it was drawn with replacement
#                solver: state of the server's solver                           metrics: train_loss, num-examples
#                memory: if the client lost it                                  and measurements
#                secure: shares for secure aggregation                       -> masked, instead of update
# evaluate       arrays: model                          fedreach: run, round -> metrics: eval_loss, eval_acc, ...
#                                                                               (of numbers eval_mae, ...)
# query.adaptation  nothing                                                     -> metrics: num-examples, held out
# query.adaptation  arrays: model    fedreach: run, session, exchange, fits
#                query-0, query-1 ...: of a rule, one per fit                -> sums-0, sums-1 ...: over its examples
#                secure: shares for secure aggregation                          each of them masked
# query.secure   secure: step, content                                        -> secure: content, see `secure`
# evaluate.adaptation  arrays: model    state: of the fitted rule
#                fedreach: part, inputs, online                              -> metrics: adapted_accuracy, ...
# ```
# The reply to a question of a round names the run and the round in `fedreach`. Messages from and to `client_app` also
# have a digest there (see `seal`). Models are sent under the names of their
# `state_dict`. `client_app` gets the constants once and then only trained and averaged tensors. Other apps get the full
# state dict each time. A missing or malformed value raises a `ReplyError` with the reason.

RUN = "run"  # its name: a context may store several runs
FEDREACH = "fedreach"  # FedReach's record, in addition to Flower's own
MODEL, CONFIG, METRICS = "arrays", "config", "metrics"  # as Flower's own strategies name them
UPDATE, MASKED, SOLVER, MEMORY, LABELS = "update", "masked", "solver", "memory", "labels"
STATE, SESSION, EXCHANGE, FITS = "state", "session", "exchange", "fits"  # of an adaptation rule
PART, INPUTS, ONLINE = "part", "inputs", "online"
SAMPLES = "samples"  # their form
TABLE, QUESTION, DESCRIPTION, SUMS = "fedreach-table", "question", "told", "sums"
LOSS, EXAMPLES, CLIENT = "train_loss", "num-examples", "client"
LACKS_MEMORY = "lacks-memory-of-round"
CONSTANTS = "constants"  # of the model, see `fedreach.engines.models.state`
DIGEST = "digest"
ROUND, DRAWS, HELD_OUT, BITS = "round", "draws", "held-out-examples", "bits-per-example"
PARTS = {"held_out": (EXAMPLES, "eval"), "train": ("train-examples", "train"), "both": ("both-examples", "both")}
"""Part of a client's data -> name of its number of examples, and the prefix of the names of its scores."""
SHORT_NAMES = {"accuracy": "acc", "mae": "mae"}  # names of main scores, after the part of the data

MAX_COUNT = 2**40  # largest whole number in a reply
FAILED = "it failed: "  # before the error of a client's app
WRAPPED = re.compile(r"^Exception ClientAppException occurred\. Message: (.*?)(?:'>)?$")  # by Flower's simulation


class ReplyError(Exception):
    """A reply does not count because its content is wrong."""


class AlteredError(ReplyError):
    """A message does not have the digest that its sender computed, so it was altered on the way."""


class LostError(ReplyError):
    """A reply is lost because it was late or because the client failed, not because of wrong content."""


class ModelWriter:
    """Writer of (d,) models as records of named tensors."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        self.module, self.layout = module, layout

    def record(self, params: Float32s) -> ArrayRecord:
        """Return the trained and averaged tensors of a model, as `client_app` expects them."""
        views = self.layout.views(torch.from_numpy(np.array(params, np.float32)))
        return ArrayRecord({name: Array(tensor.numpy()) for name, tensor in views.items()})

    def whole(self, params: Float32s) -> ArrayRecord:
        """Return the full state dict of a model, for custom apps and for the user."""
        bind(self.module, torch.from_numpy(np.array(params, np.float32)), layout=self.layout)
        state = {name: tensor.detach().cpu() for name, tensor in self.module.state_dict().items()}
        # numpy has no bfloat16; float32 represents its numbers, and `load_state_dict` accepts them
        return ArrayRecord(
            {
                name: Array((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())
                for name, tensor in state.items()
            }
        )


def params_of(record: ArrayRecord, layout: Layout) -> Float32s:
    """Return a model as a (d,) vector; its tensors must match the layout."""
    vector = torch.empty(layout.size)
    for name, view in layout.views(vector).items():
        if name not in record:
            raise ReplyError(f"its model has no {name!r}")
        float16 = name in layout.narrow and name in record and record[name].dtype == "float16"
        values = array(record, name, tuple(view.shape), np.float16 if float16 else np.float32)
        view.copy_(torch.from_numpy(values.copy()))
    return vector.numpy()


def array(
    record: ArrayRecord,
    name: str,
    shape: tuple[int, ...] | None,
    kind: type = np.float32,
    largest: float = MAX_MAGNITUDE,
) -> AnyArray:
    """Return an array; check its shape (None: any), its kind, and that numbers are finite and at most `largest`."""
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
    if kind is not np.uint64 and (wrong := invalid_update(values, largest)):
        raise ReplyError(f"its {name!r} {wrong}")
    return values


def arrays(message: Message, name: str) -> ArrayRecord:
    """Return the array record of a message with this name."""
    if name not in message.content.array_records:
        raise ReplyError(f"it sent no arrays {name!r}")
    return message.content.array_records[name]


def number(metrics: Mapping[str, Any], name: str) -> float:
    """Return a finite number of a reply."""
    value = metrics.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ReplyError(f"it sent no number {name!r}" if value is None else f"its {name!r} is not a number: {value!r}")
    if not np.isfinite(value):
        raise ReplyError(f"its {name!r} is not finite")
    return value


def whole_number(metrics: Mapping[str, Any], name: str, minimum: int = 0) -> int:
    """Return a whole number of a reply that is not below `minimum`."""
    value = number(metrics, name)
    if value != int(value) or not minimum <= value <= MAX_COUNT:
        raise ReplyError(f"its {name!r} must be a whole number from {minimum} to {MAX_COUNT}; got {value}")
    return int(value)


def same_count(metrics: Mapping[str, Any], name: str, count: int) -> int:
    """Return a number of examples, which must equal the number reported at the start of the run."""
    if (reported := whole_number(metrics, name)) != count:
        raise ReplyError(f"its {name!r} must be {count}, as at the start of the run; got {reported}")
    return reported


def check_question(message: Message, run: str, round_: int) -> None:
    """Reject a reply that does not belong to this round of this run."""
    question: Mapping[str, Any] = message.content.config_records.get(FEDREACH, {})
    if question.get(RUN) != run:
        raise ReplyError("it does not reply to a request of this run")
    if question.get(ROUND) != round_:
        raise ReplyError(f"its reply must be for round {round_}; got round {question.get(ROUND)!r}")


def seal(message: Message, node: int, hashed: dict[int, bytes] | None = None) -> Message:
    """Add to a message a digest of its content, kind and node, with which the receiver notices alterations.

    Arrays enter the digest by their CRC-32. The digest protects against accidents, not against attackers, who can
    compute it.

    Args:
        node: Node of the client that sends or receives the message.
        hashed: Digests of records by id, which this function extends; records that many messages share are then
            hashed once.
    """
    record = message.content[FEDREACH] = ConfigRecord({**message.content.config_records.get(FEDREACH, {})})
    record[DIGEST] = _digest(message, node, {} if hashed is None else hashed)
    return message


def check_digest(message: Message, node: int, *, required: bool) -> Message:
    """Return the message; raise AlteredError if its digest is wrong, or missing although it is required."""
    record: Mapping[str, Any] = message.content.config_records.get(FEDREACH, {})
    digest = record.get(DIGEST)
    if (digest is not None or required) and digest != _digest(message, node, {}):
        raise AlteredError("its content does not match its checksum, so it was altered on the way")
    return message


def _digest(message: Message, node: int, hashed: dict[int, bytes]) -> bytes:
    metadata = message.metadata
    total = sha256(repr((node, metadata.message_type, metadata.group_id)).encode())
    for name, record in sorted(message.content.items()):
        if id(record) not in hashed:
            hashed[id(record)] = _record_digest(record)
        total.update(repr(name).encode() + hashed[id(record)])
    return total.digest()


def _record_digest(record: Mapping[str, Any]) -> bytes:
    parts = sha256()
    for name, value in sorted(record.items()):
        if isinstance(value, Array):
            parts.update(repr((name, value.dtype, tuple(value.shape), value.stype, len(value.data))).encode())
            parts.update(crc32(value.data).to_bytes(4, "big"))  # twice as fast as SHA-256
        elif name != DIGEST:
            values = value if isinstance(value, list) else [value]
            parts.update(repr((name, [float(v) if isinstance(v, float) else v for v in values])).encode())
    return parts.digest()


def content_of(message: Message) -> Message:
    """Return the message; if it is an error, raise the last line of the client's traceback."""
    if message.has_error():
        lines = (message.error.reason or "").strip().splitlines() or ["it gave no reason"]
        last_line = WRAPPED.sub(r"\1", lines[-1].strip()).rstrip(".")
        raise LostError(f"{FAILED}{visible(last_line)[:300]}")
    return message


def metrics_of(message: Message) -> Mapping[str, Any]:
    """Return the numbers of a reply."""
    if METRICS not in message.content.metric_records:
        raise ReplyError(f"it sent no {METRICS!r}")
    return message.content.metric_records[METRICS]


def array_record(values: Mapping[str, AnyArray]) -> ArrayRecord:
    """Return a record of named arrays."""
    return ArrayRecord({name: Array(np.asarray(array, order="C")) for name, array in values.items()})


def arrays_of(record: ArrayRecord) -> dict[str, AnyArray]:
    """Return the arrays of a record by name."""
    return {name: array.numpy() for name, array in record.items()}


def refuse_unknown_noise(federation: Federation) -> None:
    """Reject an epsilon if clients add the noise, because they would have to trust the server with the amount.

    Raises:
        ConfigError: If the aggregation has no noise multiplier.
    """
    rule = federation.distributed_noise
    if rule is not None and rule.noise_multiplier is None:
        raise ConfigError(
            f"{name_of(rule)} with secure aggregation on Flower must have noise_multiplier, so that clients, which add "
            f"the noise, know its amount; got epsilon = {rule.epsilon}. Remove epsilon, and set the noise_multiplier "
            "that a simulation reports."
        )


def refuse_without_secure_aggregation_support(federation: Federation) -> None:
    """Reject components that secure aggregation on Flower does not support.

    Raises:
        ConfigError: If the federation has clusters of clients, a solver with client state, a cohort of one, or noise
            that clients do not know.
    """
    refuse_unknown_noise(federation)
    reason = None
    if federation.cohort_size < MIN_CLIENTS:
        reason = f"a sum over one client reveals its report. Set cohort_size to at least {MIN_CLIENTS}"
    elif federation.schedule is not None:
        reason = "a cohort of a schedule may have one client, whose report its sum reveals. Set cohort_size to a number"
    elif federation.has_memory:
        keeper = federation.loss if federation.memory_solver is None else federation.solver
        reason = (
            f"{name_of(keeper)} needs updates of single clients, which are hidden. Use a solver and a loss without "
            "memory"
        )
    elif federation.selection.makes_clusters:
        reason = (
            f"{name_of(federation.selection)} trains one model per cluster, but the server sees only one sum over the "
            "cohort"
        )
    if reason is not None:
        raise ConfigError(f"SecureAggregation on Flower does not support this federation: {reason}.")
