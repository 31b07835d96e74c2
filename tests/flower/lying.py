"""Replies that no honest client sends: for the tests, and for the table of faults."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message

from ..conftest import rows  # noqa: TID252
from .faulty import (
    CLIENTS,
    FEDAVG,
    Method,
    Outcome,
    app_of,
    culprit_of,
    experiment,
    flower,
    spoiled,
    with_update,
)
from .in_process import InProcess

Lie = Callable[[Message, Callable[[], Message]], Any]
CLIPPED: Method = ("local.clip_norm=0.1",)
COUNTS: Method = ("method.selection=kl_filter",)
ENTROPY: Method = ("method.weighting=entropy",)


def asked_before(**changed: Any) -> Lie:
    """Say that another question was answered."""

    def lie(message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        reply.content["fedreach"] = ConfigRecord({**reply.content["fedreach"], **changed})
        return reply

    return lie


def silent_about_the_question(message: Message, answer: Callable[[], Message]) -> Message:
    reply = answer()
    del reply.content["fedreach"]
    return reply


LIES: dict[str, tuple[Method, Lie, str]] = {
    "a round that was before": (FEDAVG, asked_before(round=1), "its reply must be for round 2; got round 1"),
    "another run": (FEDAVG, asked_before(run="x"), "it does not reply to a request of this run"),
    "no run": (FEDAVG, silent_about_the_question, "its content does not match its checksum"),
    "further than clipped steps": (CLIPPED, with_update(lambda u: 100 * u), "the norm of its update must be at most"),
}


def telling(client: int, fact: str, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    def answering(asked: int, message: Message, answer: Callable[[], Message]) -> Message:
        reply = answer()
        if (asked, message.metadata.message_type) == (client, "query.labels"):
            values = change(reply.content["labels"][fact].numpy().copy())
            reply.content["labels"] = ArrayRecord({fact: Array(np.asarray(values))})
        return reply

    return answering


def ending(name: str, folder: Path) -> str:
    """Return how a run with a lie in round 2 ends: told, if it is that without the reply, and names whose it was."""
    method, spoil, _ = LIES[name]
    culprit = culprit_of(method)
    grid = InProcess(app_of(method), range(CLIENTS), answering=spoiled(culprit, 2, spoil))
    try:
        found = flower(experiment(method), grid, folder)
    except Exception:
        return "lost"
    told = [row["round"] for row in rows(folder) if f"client {culprit}" in row.get("refused", {})] == [2]
    return "told" if told and found == silent(method) else "wrong"


@cache
def silent(method: Method) -> Outcome:
    """Return what the run comes to if nothing comes in place of the lie."""
    say_nothing = spoiled(culprit_of(method), 2, lambda message, answer: None)
    with tempfile.TemporaryDirectory() as folder:
        grid = InProcess(app_of(method), range(CLIENTS), answering=say_nothing)
        return flower(experiment(method), grid, Path(folder))
