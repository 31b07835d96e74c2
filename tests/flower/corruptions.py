"""What can happen to a message on its way, and what a faulty client may send, for the schedules of faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ConfigRecord, Error, Message, MetricRecord
from flwr.common.serde import message_from_proto, message_to_proto

from fedreach.flower.messages import seal

Rng = np.random.Generator
Change = Callable[[Rng, Message], Message]


def copied(message: Message) -> Message:
    """Return a copy, as it arrives."""
    copy = message_from_proto(message_to_proto(message))
    copy.metadata.__dict__.update(message.metadata.__dict__)
    return copy


def resealed(reply: Message) -> Message:
    """Return a reply with the digest that a client computes of what it sends."""
    return reply if reply.has_error() else seal(reply, reply.metadata.src_node_id)


def _arrays(message: Message) -> list[tuple[Any, str]]:
    return [(record, name) for record in message.content.array_records.values() for name in record]


def changing_an_array(change: Callable[[Rng, np.ndarray], np.ndarray]) -> Change:
    """Return a change of one array of a message; a message without arrays loses a record."""

    def changed(rng: Rng, message: Message) -> Message:
        message = copied(message)
        found = _arrays(message)
        if not found:
            return without_a_record(rng, message)
        record, name = found[int(rng.integers(len(found)))]
        record[name] = Array(np.asarray(change(rng, np.array(record[name].numpy())), order="C"))
        return message

    return changed


def flipped_bit(rng: Rng, message: Message) -> Message:
    """Flip a bit of an array as it is encoded, so that also its header may be hit."""
    message = copied(message)
    found = _arrays(message)
    if not found:
        return another_number(rng, message)
    record, name = found[int(rng.integers(len(found)))]
    old = record[name]
    data = bytearray(old.data)
    data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    record[name] = Array(old.dtype, old.shape, old.stype, bytes(data))
    return message


def _filled(value: float) -> Callable[[Rng, np.ndarray], np.ndarray]:
    def change(rng: Rng, values: np.ndarray) -> np.ndarray:
        if values.dtype.kind == "f" and values.size:
            values.ravel()[int(rng.integers(values.size))] = value
        return values

    return change


def without_a_record(rng: Rng, message: Message) -> Message:
    message = copied(message)
    names = [name for name in message.content if name != "fedreach"] or [*message.content]
    del message.content[names[int(rng.integers(len(names)))]]
    return message


def without_a_value(rng: Rng, message: Message) -> Message:
    message = copied(message)
    records = [record for record in message.content.values() if record]
    record = records[int(rng.integers(len(records)))]
    del record[[*record][int(rng.integers(len(record)))]]
    return message


def with_numbers(**numbers: Any) -> Change:
    """Return a change of the numbers in a reply."""

    def changed(rng: Rng, message: Message) -> Message:
        message = copied(message)
        metrics: Mapping[str, Any] = message.content.metric_records.get("metrics", {})
        message.content["metrics"] = MetricRecord({**metrics, **{k.replace("_", "-"): v for k, v in numbers.items()}})
        return message

    return changed


def another_number(rng: Rng, message: Message) -> Message:
    """Change one number a little, which nobody can notice without a digest."""
    message = copied(message)
    metrics: Mapping[str, Any] = message.content.metric_records.get("metrics", {})
    if not metrics:
        return without_a_record(rng, message)
    name = [*metrics][int(rng.integers(len(metrics)))]
    value = metrics[name]
    message.content["metrics"] = MetricRecord({**metrics, name: value + 1 if isinstance(value, int) else value * 1.25})
    return message


def with_text(rng: Rng, message: Message) -> Message:
    """Send a record of another type."""
    message = copied(message)
    names = [*message.content]
    message.content[names[int(rng.integers(len(names)))]] = ConfigRecord({"x": "y"})
    return message


def an_error(rng: Rng, message: Message) -> Message:
    message = copied(message)
    message.__dict__["_content"], message.__dict__["_error"] = None, Error(code=0, reason="")
    return message


def from_another_node(rng: Rng, message: Message) -> Message:
    message = copied(message)
    message.metadata.__dict__["_src_node_id"] = 77
    return message


def in_another_group(rng: Rng, message: Message) -> Message:
    message = copied(message)
    message.metadata.__dict__["_group_id"] = "7"
    return message


def another_round(rng: Rng, message: Message) -> Message:
    message = copied(message)
    own: Mapping[str, Any] = message.content.config_records.get("fedreach", {})
    message.content["fedreach"] = ConfigRecord({**own, "round": int(rng.integers(7))})
    return message


ARRAYS: dict[str, Change] = {
    "NaN": changing_an_array(_filled(np.nan)),
    "infinity": changing_an_array(_filled(np.inf)),
    "1e20": changing_an_array(_filled(1e20)),
    "another shape": changing_an_array(lambda rng, values: np.append(values, values.ravel()[:1])),
    "another type": changing_an_array(lambda rng, values: values.astype(np.float16)),
}
WAYS: dict[str, Change] = {
    **ARRAYS,
    "a bit": flipped_bit,
    "another number": another_number,
    "no record": without_a_record,
    "no value": without_a_value,
    "text": with_text,
    "a huge count": with_numbers(num_examples=2**40),
    "a negative count": with_numbers(num_examples=-1),
    "an error": an_error,
    "another node": from_another_node,
    "another group": in_another_group,
    "another round": another_round,
}
"""What happens to a reply on its way: its digest is that of the reply as it was sent."""

REQUESTS: dict[str, Change] = {
    **ARRAYS,
    "a bit": flipped_bit,
    "no record": without_a_record,
    "no value": without_a_value,
    "text": with_text,
    "another round": another_round,
}
"""What happens to a request on its way."""

LIES: dict[str, Change] = {
    **ARRAYS,
    "no record": without_a_record,
    "text": with_text,
    "a huge count": with_numbers(num_examples=2**40),
    "a negative count": with_numbers(num_examples=-1),
    "another round": another_round,
}
"""What a faulty client sends with the digest of it; nobody can notice a wrong number that may be right."""
