"""What stands in the messages between server and clients, and what of a reply can be believed.

```
query          -> metrics: client, num-examples, held-out-examples,        fedreach: how it trains, its public key,
                           bits-per-example                                      what its samples look like
query.constants  constants: by name      fedreach: digest      -> nothing; client_app keeps them in its context
query.labels   fedreach: fact                               -> labels: label_counts or label_entropy
query.table    fedreach: question, exchange                -> fedreach: names that it tells; sums
query.loss     arrays: model             fedreach: run, round, batch-size  -> metrics: loss
train          arrays: model    config: the user's own, server-round
               fedreach: run, round, rate, share, memory-round             -> update, or arrays: the local model
                         draws, where it was drawn with replacement
               solver: what the server's solver sends                         metrics: train_loss, num-examples, steps
               memory: if the client lost it                                  and what the parts have clients measure
               keys: of a secure sum                                       -> masked, in place of update and measures
evaluate       arrays: model                          fedreach: run, round -> metrics: eval_loss, eval_acc, ...
                                                                              (of numbers eval_mae, ...)
query.serving  nothing                                                     -> metrics: num-examples, held out
query.serving  arrays: model    fedreach: run, session, exchange, fits
               query-0, query-1 ...: what a rule asks, one a fit           -> sums-0, sums-1 ...: over its examples
               keys: of a secure sum                                          each of them masked
evaluate.serving  arrays: model    state: of the fitted rule
               fedreach: part, inputs, online                              -> metrics: served_accuracy, ...
```
What answers a question of a round says in `fedreach`, too, which round of which run that was. Models travel under the
names of their `state_dict`: to `client_app` what is trained and averaged, after the constants once; to clients that
know nothing of FedReach all of it, each time, so that they can train it. What is missing, of another form or out of its
range makes a `ReplyError`, which says why the reply does not count.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message
from torch import nn

from fedreach.arrays import AnyArray, Float32s
from fedreach.errors import ConfigError
from fedreach.federation.ranges import ANY, Range
from fedreach.models.flat import Layout, bind

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
CONSTANTS, DIGEST = "constants", "digest"  # of the model, see `fedreach.models.state`
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
    known = sha256()
    for name, values in sorted(constants.items()):
        known.update(f"{name} {values.dtype} {values.shape}".encode() + np.ascontiguousarray(values).tobytes())
    return known.hexdigest()


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
    given = record[name]
    try:
        values = given.numpy()
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
    said: Mapping[str, Any] = message.content.config_records.get(OURS, {})
    if said.get(RUN) != run:
        raise ReplyError("it answers no question of this run")
    if said.get(ROUND) != round_:
        raise ReplyError(f"it answers round {said.get(ROUND)!r}, and was asked for round {round_}")


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
