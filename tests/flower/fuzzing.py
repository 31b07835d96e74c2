"""Messages of clients that were changed somewhere, in any way that Flower can carry, for the fuzzing of the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from hypothesis import assume
from hypothesis import strategies as st

INTS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3))
FLOATS = st.one_of(st.floats(), st.sampled_from([0.0, -0.0, -1.0, 0.5, 1e30, 3e38, float("nan"), float("inf")]))
NUMBERS = st.one_of(INTS, FLOATS, st.lists(INTS, max_size=3), st.lists(FLOATS, max_size=3))
WORDS = st.one_of(INTS, FLOATS, st.booleans(), st.text(max_size=20), st.binary(max_size=40), st.lists(INTS, max_size=3))
NAMES = st.text(max_size=12)
DTYPES = st.sampled_from(["float32", "float64", "float16", "int8", "int64", "uint64", "bool", "complex64", "<U3"])
SHAPES = st.lists(st.integers(0, 7), max_size=3).map(tuple)
FILLS = st.sampled_from([0, 1, -1, 7, 0.5, 1e9, 1e30, 3e38, float("nan"), float("inf"), -float("inf")])


@st.composite
def arrays(draw: st.DrawFn, given: Array | None) -> Array:
    """Draw an array, mostly made of the one that was given."""
    kinds = ["new", "junk", "declared"] + (
        ["scaled", "filled", "typed", "cut", "grown", "one"] if given is not None else []
    )
    kind = draw(st.sampled_from(kinds))
    if kind == "junk":
        return Array("float32", draw(SHAPES), "numpy.ndarray", draw(st.binary(max_size=64)))
    values = np.zeros(draw(SHAPES)) if given is None else given.numpy().copy()
    if kind == "declared":  # a type and shape that its bytes have not
        made = Array(values)
        huge = draw(st.sampled_from([(), (2**31 - 1,), (3, 2**31 - 1)]))
        return Array(draw(DTYPES), huge, draw(st.sampled_from(["numpy.ndarray", "pickle", ""])), made.data)
    with np.errstate(all="ignore"):
        if kind == "new":
            values = np.full(draw(SHAPES), draw(FILLS)).astype(draw(DTYPES))
        elif kind == "scaled":
            values = (values * draw(FILLS)).astype(values.dtype)
        elif kind == "filled":
            values = np.full(values.shape, draw(FILLS)).astype(values.dtype)
        elif kind == "typed":
            values = values.astype(draw(DTYPES))
        elif kind == "cut":
            values = values.reshape(-1)[: draw(st.integers(0, 5))]
        elif kind == "grown":
            values = np.stack([values] * draw(st.integers(1, 3)))
        elif kind == "one" and values.size:
            values.reshape(-1)[draw(st.integers(0, values.size - 1))] = np.float64(draw(FILLS)).astype(values.dtype)
    return Array(np.asarray(values))


def changed(reply: Message) -> st.SearchStrategy[Message]:
    """Return a strategy for messages that are this reply but for one to three changes of their content."""
    return _changed(lambda: reply)  # which hypothesis need not write out


@st.composite
def _changed(draw: st.DrawFn, given: Callable[[], Message]) -> Message:
    reply = given()
    content = RecordDict({name: type(record)(dict(record)) for name, record in reply.content.items()})
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.one_of(st.sampled_from(sorted(content) or ["x"]), NAMES))
        record = content.get(name)
        what = draw(st.sampled_from(["value", "value", "value", "value", "drop", "another", "gone", "new"]))
        if record is None or what == "another":
            content[name] = draw(st.sampled_from([ArrayRecord(), MetricRecord({"x": 1}), ConfigRecord({"x": "y"})]))
            continue
        if what == "gone":
            del content[name]
            continue
        key = draw(NAMES) if what == "new" or not record else draw(st.sampled_from(sorted(record)))
        if what == "drop":
            record.pop(key, None)
            continue
        record[key] = draw(_value(record, key))
    sent = Message(content, reply_to=reply)
    try:
        return _from(reply, message_from_proto(message_to_proto(sent)))
    except (ValueError, TypeError, OverflowError, UnicodeEncodeError):
        assume(False)  # Flower does not carry it
        raise


def _value(record: Any, key: str) -> st.SearchStrategy[Any]:
    if isinstance(record, ArrayRecord):
        return arrays(_readable(record.get(key)))
    return NUMBERS if isinstance(record, MetricRecord) else WORDS


def _readable(given: Array | None) -> Array | None:
    """Return the array unless it is junk, of an earlier change."""
    try:
        return None if given is None else Array(given.numpy())
    except Exception:  # whatever numpy says of junk
        return None


def _from(reply: Message, made: Message) -> Message:
    """Return the message as if the same node had sent it as an answer to the same question."""
    made.metadata.__dict__.update(reply.metadata.__dict__)
    return made
