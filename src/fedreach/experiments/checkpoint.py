"""A run between two rounds, and how it is written to its folder and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedreach.arrays import AnyArray
from fedreach.experiments.folder import RunFolder
from fedreach.federation.round import FederationState

CHECKPOINT = "checkpoint.safetensors"
PARTS = ("selection", "weighting", "server")


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A run between two rounds; writing it is a checkpoint."""

    state: FederationState
    bytes_total: int
    best_round: int
    best_loss: float
    evaluations_since_best: int
    lengths: Mapping[str, int]


def save(store: RunFolder, snapshot: Snapshot) -> None:
    """Write the checkpoint of a run."""
    state = snapshot.state
    tensors: dict[str, AnyArray] = {"params": state.params, "loss": state.loss}
    for part in PARTS:
        tensors |= {f"{part}.{key}": value for key, value in getattr(state, part).items()}
    record = {
        "round": state.round,
        "bytes_total": snapshot.bytes_total,
        "best_round": snapshot.best_round,
        "best_loss": None if np.isinf(snapshot.best_loss) else snapshot.best_loss,
        "evaluations_since_best": snapshot.evaluations_since_best,
        "lengths": dict(snapshot.lengths),
    }
    store.write_tensors(CHECKPOINT, tensors, record)


def load(store: RunFolder) -> Snapshot | None:
    """Return the run at its checkpoint, its rows cut back to it; None where there is no checkpoint."""
    found = store.read_tensors(CHECKPOINT)
    if found is None:
        return None
    tensors, record = found
    parts = {
        part: {key.partition(".")[2]: value for key, value in tensors.items() if key.startswith(part + ".")}
        for part in PARTS
    }
    state = FederationState(record["round"], tensors["params"], tensors["loss"], **parts)
    store.rewind(record["lengths"], record["round"])
    best_loss = np.inf if record["best_loss"] is None else record["best_loss"]
    return Snapshot(
        state,
        record["bytes_total"],
        record["best_round"],
        best_loss,
        record["evaluations_since_best"],
        record["lengths"],
    )
