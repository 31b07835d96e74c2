"""The client's side of serving: sums over its examples while a rule is fitted, scores once it is served by it.

Labels stay here. Of what a client holds out, sums leave it; of a client that never takes part, metrics only.
"""

from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, RecordDict

from fedreach.arrays import AnyArray
from fedreach.errors import TrainingError
from fedreach.evaluation.rungs import Score
from fedreach.federation.aggregation.secure_sum import Words, limbs
from fedreach.federation.values import State
from fedreach.flower import masks, messages
from fedreach.flower.local import LocalClient
from fedreach.flower.messages import EXCHANGE, FITS, INPUTS, KEYS, MODEL, ONLINE, OURS, PART, RUN, SESSION, STATE

PARTS = ("held_out", "both")


def contributions(sent: RecordDict, local: LocalClient) -> dict[int, State]:
    """Return what the client contributes to each fit that it is asked for."""
    if not local.num_held_out:
        raise TrainingError("it holds no examples out, by which a serving rule is fitted")
    asked: Mapping[str, Any] = sent.config_records[OURS]
    fits: list[int] = asked[FITS]
    params = messages.params_of(sent.array_records[MODEL], local.engine.layout)
    queries = [_arrays(sent.array_records[messages.query_name(fit)]) for fit in fits]
    return dict(zip(fits, local.contributions(params, queries), strict=True))


def hidden(
    answers: Mapping[int, State], sent: RecordDict, client: int, private: bytes, used: MutableMapping[str, Any]
) -> dict[int, Mapping[str, Words]]:
    """Return the (4, ...) words of each array under the client's masks with the others of its fit.

    Args:
        answers: Fit -> what the client contributes.
        sent: The message, with the others' public keys and who is in which fit.
        client: Its id.
        private: Its key.
        used: See `fedreach.flower.masks.masked`.
    """
    asked: Mapping[str, Any] = sent.config_records[OURS]
    keys = masks.keys_of(sent.config_records[KEYS])
    found: dict[int, Mapping[str, Words]] = {}
    for fit, answer in answers.items():
        members: list[int] = asked[messages.members_name(fit)]
        names = sorted(answer)  # all clients mask in one order
        words = [limbs(answer[name]) for name in names]
        whole = np.concatenate([each.ravel() for each in words]) if words else np.empty(0, np.uint64)
        run, exchange = f"{asked[RUN]!s} serving {asked[SESSION]!s} {fit}", int(messages.number(asked, EXCHANGE))
        public = {member: keys[member] for member in members}
        whole = masks.masked(whole, client, public, private, run, exchange, used)
        parts = np.split(whole, np.cumsum([each.size for each in words])[:-1])
        found[fit] = {name: part.reshape(each.shape) for name, part, each in zip(names, parts, words, strict=False)}
    return found


def scores(sent: RecordDict, local: LocalClient) -> dict[str, float]:
    """Return how well the client is served, rung by rung, and what was decided for it."""
    asked: Mapping[str, Any] = sent.config_records[OURS]
    part, inputs = str(asked[PART]), [int(n) for n in asked[INPUTS]]
    if part not in PARTS:
        raise TrainingError(f"a client is served on one of {', '.join(PARTS)}; the server asked for {part!r}")
    params = messages.params_of(sent.array_records[MODEL], local.engine.layout)
    if not local.num_held_out + (local.num_examples if part == "both" else 0):
        return {}
    found = local.served(params, _arrays(sent.array_records[STATE]), part, inputs, online=bool(asked[ONLINE]))
    numbers: dict[str, float] = dict(found.noted)
    for rung, clients in found.rungs.items():
        for name, value in zip(Score._fields, clients[local.client], strict=True):
            numbers[f"{rung}_{name}"] = value
    return numbers


def _arrays(record: ArrayRecord) -> dict[str, AnyArray]:
    return {name: array.numpy() for name, array in record.items()}
