"""What a run leaves in its folder as its rounds end: rows, checkpoints, the best and the last model.

The simulator and Flower keep the same books, so that runs of both are gone on with, reported and compared alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedreach.arrays import AnyArray
from fedreach.errors import RunFolderError, TrainingError
from fedreach.federation.federation import Federation
from fedreach.federation.state import FederationState
from fedreach.federation.values import RoundCost, RoundResult
from fedreach.models.flat import Layout
from fedreach.runs.checkpoint import CHECKPOINT, Snapshot, finish, load, save
from fedreach.runs.folder import RunFolder

Columns = Mapping[str, float]
Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Ledger:
    """Writes one run folder.

    Args:
        store: The folder.
        federation: Whose parts say which models are served.
        layout: Of the model.
        stop_if_diverged: Whether an evaluation that is not finite ends the run.
    """

    store: RunFolder
    federation: Federation
    layout: Layout
    stop_if_diverged: bool = True

    def load(self) -> Snapshot | None:
        """Return the run at its checkpoint, its rows cut back to it; None where there is no checkpoint."""
        return load(self.store, self.layout.num_trainable)

    def begin(self, state: FederationState) -> tuple[Snapshot, dict[str, Any]]:
        """Return a run before round 1 and its row of round 0, on empty files of rows.

        Raises:
            RunFolderError: If the folder holds rounds already.
        """
        if len(self.store.rows("rounds.jsonl")) > 1:  # with one row it was interrupted before the first checkpoint
            raise RunFolderError(
                f"{self.store.path} holds rounds, but {CHECKPOINT} is missing. Put it back, or move the run folder "
                "away to start this run anew."
            )
        self.store.rewind(dict.fromkeys(self.store.lengths(), 0), -1)
        snapshot = Snapshot(state, 0, 0, np.inf, 0, {})
        row: dict[str, Any] = {
            "round": 0,
            "cohort": [],
            "weights": [],
            "lost": [],
            "bytes_down": 0,
            "bytes_up": 0,
            "bytes_total": 0,
            "probe_bytes": 0,
        }
        if self.federation.radio is not None:
            row |= _spent(RoundCost(0.0, 0.0, 0.0, 0.0, None), snapshot)
        return snapshot, row

    def after(self, snapshot: Snapshot, state: FederationState, report: RoundResult) -> tuple[Snapshot, dict[str, Any]]:
        """Return the run after a round and the round's row, which is not written yet."""
        total = snapshot.bytes_total + report.bytes_down + report.bytes_up
        snapshot = replace(snapshot, state=state, bytes_total=total)
        row: dict[str, Any] = {
            "round": state.round,
            "cohort": list(report.cohort),
            "weights": [round(w, 9) for w in report.weights],
            "lost": list(report.lost),
            "metrics": {name: [round(value, 9) for value in values] for name, values in report.metrics.items()},
            "train_loss": None if report.train_loss is None else round(report.train_loss, 9),
            "bytes_down": report.bytes_down,
            "bytes_up": report.bytes_up,
            "bytes_total": total,
            "probe_bytes": report.probe_bytes,
        }
        if report.cost is not None:
            snapshot = replace(
                snapshot,
                seconds_total=snapshot.seconds_total + report.cost.seconds,
                joules_total=snapshot.joules_total + report.cost.joules,
            )
            row |= _spent(report.cost, snapshot)
        if report.remark:
            row["remark"] = report.remark
        if report.by_server:
            row["by_server"] = True
        if len(state.models) > 1:
            row["clusters"] = state.clusters.tolist()
        return snapshot, row

    def close(
        self,
        snapshot: Snapshot,
        row: Mapping[str, Any],
        timing: Mapping[str, Any],
        evaluated: tuple[Columns, Lines] | None = None,
    ) -> tuple[Snapshot, dict[str, Any]]:
        """Append the rows of a round, with what was evaluated in it; return the run after them and the whole row.

        The model with the lowest loss on the participants' held-out data is kept; the test set is never looked at.
        """
        number, (columns, lines) = snapshot.state.round, evaluated or ({}, ())
        if evaluated is not None:
            self._refuse_if_diverged(number, columns)
            snapshot = self._judge(snapshot, columns.get("id_loss", np.inf))
        whole = {**row, **columns}
        self.store.append("rounds.jsonl", whole)
        for line in lines:
            self.store.append("clients.jsonl", line)
        self.store.append("timing.jsonl", {"round": number, **timing})
        return replace(snapshot, lengths=self.store.lengths()), whole

    def save(self, snapshot: Snapshot) -> None:
        """Write a checkpoint."""
        save(self.store, snapshot)

    def finish(self, snapshot: Snapshot) -> dict[str, Any]:
        """Write the last model and the last checkpoint; return the content of ``result.json``.

        Raises:
            TrainingError: If no client's update counted in any round, though some were asked.
        """
        self._refuse_if_nobody_counted()
        self.store.write_tensors("last.safetensors", self._models(snapshot.state), {"round": snapshot.state.round})
        finish(self.store, snapshot)
        return {
            "status": "finished",
            "rounds": snapshot.state.round,
            "best_round": snapshot.best_round,
            "lengths": self.store.lengths(),
            "error": None,
        }

    def _refuse_if_nobody_counted(self) -> None:
        if any(row["cohort"] for row in self.store.each_row("rounds.jsonl")):  # mostly that of round 1: no more is read
            return
        rows = self.store.rows("rounds.jsonl")[1:]
        lost = sum(len(row["lost"]) for row in rows)
        if lost:
            raise TrainingError(
                f"No client's update counted in any of the {len(rows)} rounds: all {lost} were lost or not finite. "
                "Lower local.rate or set local.clip_norm, and choose another folder with --out."
            )

    def _refuse_if_diverged(self, number: int, columns: Columns) -> None:
        diverged = [name for name, value in columns.items() if not np.isfinite(value)]
        if diverged and self.stop_if_diverged:
            raise TrainingError(
                f"The model diverged: {diverged[0]} is not finite after round {number}. Lower local.rate or set "
                "local.clip_norm; or go on all the same by run.on_failure = 'drop'."
            )

    def _judge(self, snapshot: Snapshot, loss: float) -> Snapshot:
        if loss < snapshot.best_loss:
            number = snapshot.state.round
            self.store.write_tensors("best.safetensors", self._models(snapshot.state), {"round": number})
            return replace(snapshot, best_round=number, best_loss=loss, evaluations_since_best=0)
        return replace(snapshot, evaluations_since_best=snapshot.evaluations_since_best + 1)

    def _models(self, state: FederationState) -> dict[str, AnyArray]:
        """Return the served model by parameter name; of several, one a cluster, under ``0/...``, ``1/...``."""
        models = state.served(self.federation)
        return {
            (f"{number}/{name}" if len(models) > 1 else name): view.numpy()
            for number, params in enumerate(models)
            for name, view in self.layout.views(torch.from_numpy(params.copy())).items()
        }


def _spent(spending: RoundCost, after: Snapshot) -> dict[str, Any]:
    """Return the columns of a round's seconds and joules, and who got which share and frequency."""
    row: dict[str, Any] = {
        key: float(f"{getattr(spending, key):.9g}") for key in ("seconds", "joules", "probe_seconds", "probe_joules")
    }
    row |= {key: float(f"{getattr(after, key):.12g}") for key in ("seconds_total", "joules_total")}
    given = spending.allocation
    if given is not None:
        columns = {"share": given.share, "hertz": given.hertz, "upload_seconds": given.upload_seconds}
        columns |= {"compute_seconds": given.compute_seconds, "joules": given.upload_joules + given.compute_joules}
        told = {name: [float(f"{value:.6g}") for value in values] for name, values in columns.items()}
        row["allocation"] = {"ids": given.ids.tolist(), **told}
    return row


def check_federation(store: RunFolder, record: Mapping[str, Any]) -> None:
    """Refuse to go on with a run of another federation.

    Raises:
        RunFolderError: If the folder's federation is not that of the `record`.
    """
    stored = store.read_json("federation.json")
    if stored is not None and stored["hash"] != record["hash"]:
        raise RunFolderError(
            f"{store.path} was begun on another federation ({stored['hash'][:12]}, now {record['hash'][:12]}): "
            "the data or the way of partitioning it changed. Choose another folder with --out."
        )
