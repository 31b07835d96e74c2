"""Which round is the best where rounds heard different participants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedreach.engines.models.flat import Layout
from fedreach.federation.state import initial_state
from fedreach.federation.types import ServerView
from fedreach.runs.checkpoint import Snapshot
from fedreach.runs.folder import RunFolder
from fedreach.runs.recorder import Recorder
from fedreach.runs.schema import RoundRow, Timing
from fedreach.testing.problems import tiny_federation

Losses = dict[int, float]


def evaluated(round_: int, losses: Losses) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return what clients with these losses are recorded as."""
    ones = [1] * len(losses)
    line = {"round": round_, "population": "participants", "ids": [*losses], "examples": ones, "accuracy": ones}
    mean = float(np.mean([*losses.values()]))
    return {"participant_accuracy": 1.0, "participant_loss": mean}, [{**line, "loss": [*losses.values()]}]


def closed(recorder: Recorder, snapshot: Snapshot, row: RoundRow, losses: Losses) -> Snapshot:
    """Return a run after another round, in which these clients were heard."""
    number = snapshot.state.round + 1
    moved = replace(snapshot, state=replace(snapshot.state, round=number))
    row = replace(row, round=number)
    after, _ = recorder.close(moved, row, Timing(round=number), evaluated(number, losses))
    return recorder.written(after)


@pytest.mark.parametrize("by_another_process", [False, True])
@pytest.mark.parametrize(
    ("rounds", "best"),
    [
        ([{0: 0.5, 1: 2.0}, {0: 0.6}], 1),  # the mean falls, as the worst client was away
        ([{0: 0.5, 1: 2.0}, {0: 0.4}], 2),
        ([{0: 0.6}, {0: 0.5, 1: 2.0}], 2),  # the mean rises, as the worst client came
        ([{0: 0.5, 1: 2.0}, {0: 0.6}, {0: 0.45, 1: 1.9}], 3),
        ([{0: 0.5}, {1: 0.1}], 1),  # no client tells them apart
    ],
)
def test_a_round_is_not_the_best_because_the_worst_client_was_away(
    rounds: list[Losses], best: int, by_another_process: bool, tmp_path: Path
) -> None:
    federation, layout, folder = tiny_federation(), Layout.of(nn.Linear(2, 2)), RunFolder(tmp_path)
    view = ServerView.of(np.arange(2), np.ones(2, np.int64))
    recorder = Recorder(folder, federation, layout)
    state = initial_state(federation, np.zeros(layout.size, np.float32), view, None)
    snapshot, row = recorder.begin(state)
    for losses in rounds:
        if by_another_process:
            recorder = Recorder(folder, federation, layout)
        snapshot = closed(recorder, snapshot, row, losses)
    assert snapshot.best_round == best
