"""One run: rounds, evaluation, rows, checkpoints, and going on where an interrupted run stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedreach.arrays import AnyArray, Float32s
from fedreach.engines.simulation import Round, Simulation
from fedreach.errors import RunFolderError
from fedreach.evaluation import Evaluator
from fedreach.experiments.build import Builder
from fedreach.experiments.config import Experiment
from fedreach.experiments.describe import environment, federation_record, git_revision, user_code
from fedreach.experiments.folder import RunFolder
from fedreach.federation.round import FederationState

CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class Progress:
    """What is told after every round."""

    round: int
    rounds: int
    row: Mapping[str, Any]
    seconds: float  # since this process started or resumed the run
    rounds_done: int  # in this process, for the time left


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A run between two rounds; writing it is a checkpoint."""

    state: FederationState
    bytes_total: int
    best_round: int
    best_loss: float
    evaluations_since_best: int
    lengths: Mapping[str, int]


def run(
    experiment: Experiment,
    *,
    seed: int,
    folder: Path,
    base: Path,
    method: str = "run",
    tell: Callable[[Progress], None] = lambda progress: None,
) -> dict[str, Any]:
    """Run one resolved experiment in a folder, or go on with it; return the content of ``result.json``.

    Args:
        experiment: Of one method, see `Experiment.resolved`.
        seed: Of this run.
        folder: The run folder. A finished run of the same experiment is left as it is.
        base: Folder that paths in the experiment are relative to.
        method: Name under which the run is reported.
        tell: Called after every round.

    Raises:
        RunFolderError: If the folder holds another experiment or cannot be read.
        FedReachError: If the run fails; ``result.json`` then says why.
    """
    store = RunFolder(folder)
    with store.locked():
        return _run(store, experiment, seed, base, method, tell)


def _run(
    store: RunFolder,
    experiment: Experiment,
    seed: int,
    base: Path,
    method: str,
    tell: Callable[[Progress], None],
) -> dict[str, Any]:
    description = {
        "method": method,
        "seed": seed,
        "config": experiment.model_dump(mode="json"),
        "code": user_code(experiment, base),
    }
    stored = store.read_json("run.json")
    if stored is not None:
        _check_same(stored, description, store.path)
        result = store.read_json("result.json")
        if result is not None and result["status"] == "finished":
            return result
    torch.set_num_threads(experiment.engine.threads)
    try:
        builder = Builder(experiment, base)
        data = builder.federated(builder.dataset(), seed)
        simulation = builder.simulation(data, seed)
        record = federation_record(data)
        _check_federation(store, record)
        store.write_json("run.json", {**description, "environment": environment(), "git": git_revision(base)})
        store.write_json("federation.json", record)
        result = _Loop(experiment, simulation, Evaluator(simulation.engine, data, seed), store, tell).run()
    except RunFolderError:
        raise
    except Exception as error:
        store.write_json("result.json", {"status": "failed", "error": f"{error}" or type(error).__name__})
        raise
    store.write_json("result.json", result)
    return result


class _Loop:
    def __init__(
        self,
        experiment: Experiment,
        simulation: Simulation,
        evaluator: Evaluator,
        store: RunFolder,
        tell: Callable[[Progress], None],
    ) -> None:
        self.experiment, self.simulation, self.evaluator = experiment, simulation, evaluator
        self.store, self.tell = store, tell

    def run(self) -> dict[str, Any]:
        began = written = time.monotonic()
        snapshot = self._resume() or self._begin()
        first = snapshot.state.round
        try:
            while snapshot.state.round < self.experiment.rounds and not self._patience_is_over(snapshot):
                snapshot, row = self._round(snapshot)
                now = time.monotonic()
                if now - written >= self.experiment.run.checkpoint_seconds:
                    self._checkpoint(snapshot)
                    written = now
                done = snapshot.state.round
                self.tell(Progress(done, self.experiment.rounds, row, now - began, done - first))
        finally:
            # Also on Ctrl-C or a full disk: the snapshot is always that of the last round that ended.
            self._checkpoint(snapshot)
        self.store.write_tensors(
            "last.safetensors", self._model(snapshot.state.params), {"round": snapshot.state.round}
        )
        return {
            "status": "finished",
            "rounds": snapshot.state.round,
            "best_round": snapshot.best_round,
            "error": None,
        }

    def _begin(self) -> Snapshot:
        state = self.simulation.start()
        self.store.cut(dict.fromkeys(self.store.lengths(), 0))
        snapshot = Snapshot(state, 0, 0, np.inf, 0, {})
        row = {
            "round": 0,
            "cohort": [],
            "weights": [],
            "lost": [],
            "bytes_down": 0,
            "bytes_up": 0,
            "bytes_total": 0,
            "probe_bytes": 0,
        }
        snapshot, _ = self._close(snapshot, row, None, {})
        self._checkpoint(snapshot)
        return snapshot

    def _round(self, snapshot: Snapshot) -> tuple[Snapshot, dict[str, Any]]:
        began = time.perf_counter()
        done = self.simulation.step(snapshot.state)
        report = done.report
        total = snapshot.bytes_total + report.bytes_down + report.bytes_up
        row = {
            "round": done.state.round,
            "cohort": list(report.cohort),
            "weights": [round(w, 9) for w in report.weights],
            "lost": list(report.lost),
            "train_loss": None if report.train_loss is None else round(report.train_loss, 9),
            "bytes_down": report.bytes_down,
            "bytes_up": report.bytes_up,
            "bytes_total": total,
            "probe_bytes": report.probe_bytes,
        }
        timing = {"round": done.state.round, "train_seconds": round(time.perf_counter() - began, 6)}
        return self._close(replace(snapshot, state=done.state, bytes_total=total), row, done, timing)

    def _close(
        self, snapshot: Snapshot, row: dict[str, Any], done: Round | None, timing: dict[str, Any]
    ) -> tuple[Snapshot, dict[str, Any]]:
        """Evaluate where it is due, append the rows and return the snapshot after them."""
        number, e = snapshot.state.round, self.experiment.evaluation
        lines: list[dict[str, Any]] = []
        if number % e.every == 0 or number == self.experiment.rounds:
            began = time.perf_counter()
            columns, lines = self.evaluator.evaluate(snapshot.state.params, number)
            if done is not None and e.local and done.report.cohort:
                cohort = np.array(done.report.cohort, dtype=np.int64)
                more, more_lines = self.evaluator.evaluate_local(done.local_models, cohort, number)
                columns, lines = {**columns, **more}, lines + more_lines
            row = {**row, **columns}
            timing = {**timing, "evaluate_seconds": round(time.perf_counter() - began, 6)}
            snapshot = self._judge(snapshot, columns.get("id_loss", np.inf))
        self.store.append("rounds.jsonl", row)
        for line in lines:
            self.store.append("clients.jsonl", line)
        self.store.append("timing.jsonl", {"round": number, **timing})
        return replace(snapshot, lengths=self.store.lengths()), row

    def _judge(self, snapshot: Snapshot, loss: float) -> Snapshot:
        """Keep the model with the lowest loss on the participants' held-out data; never look at the test set."""
        if loss < snapshot.best_loss:
            number = snapshot.state.round
            self.store.write_tensors("best.safetensors", self._model(snapshot.state.params), {"round": number})
            return replace(snapshot, best_round=number, best_loss=loss, evaluations_since_best=0)
        return replace(snapshot, evaluations_since_best=snapshot.evaluations_since_best + 1)

    def _patience_is_over(self, snapshot: Snapshot) -> bool:
        patience = self.experiment.evaluation.patience
        return patience is not None and snapshot.evaluations_since_best >= patience

    def _model(self, params: Float32s) -> dict[str, AnyArray]:
        engine = self.simulation.engine
        return {name: view.numpy() for name, view in engine.layout.views(torch.from_numpy(params.copy())).items()}

    # ------------------------------------------------------------------------------------------ checkpoints

    def _checkpoint(self, snapshot: Snapshot) -> None:
        state = snapshot.state
        tensors: dict[str, AnyArray] = {"params": state.params, "loss": state.loss}
        for part in ("selection", "weighting", "server"):
            tensors |= {f"{part}.{key}": value for key, value in getattr(state, part).items()}
        record = {
            "round": state.round,
            "bytes_total": snapshot.bytes_total,
            "best_round": snapshot.best_round,
            "best_loss": None if np.isinf(snapshot.best_loss) else snapshot.best_loss,
            "evaluations_since_best": snapshot.evaluations_since_best,
            "lengths": dict(snapshot.lengths),
        }
        self.store.write_tensors(CHECKPOINT, tensors, record)

    def _resume(self) -> Snapshot | None:
        found = self.store.read_tensors(CHECKPOINT)
        if found is None:
            return None
        tensors, record = found
        parts = {
            part: {key.partition(".")[2]: value for key, value in tensors.items() if key.startswith(part + ".")}
            for part in ("selection", "weighting", "server")
        }
        state = FederationState(record["round"], tensors["params"], tensors["loss"], **parts)
        self.store.cut(record["lengths"])
        best_loss = np.inf if record["best_loss"] is None else record["best_loss"]
        return Snapshot(
            state,
            record["bytes_total"],
            record["best_round"],
            best_loss,
            record["evaluations_since_best"],
            record["lengths"],
        )


def _check_same(stored: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Refuse a folder that holds another experiment; settings that change no number may differ."""
    before, after = _flat(stored), _flat(now)
    harmless = {"config.run.checkpoint_seconds", "config.data.folder", "config.data.download", "config.name"}
    harmless |= {"config.target_accuracy"}
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    changed = [key for key in changed if key.split(".")[0] in ("method", "seed", "config", "code")]
    changed = [key for key in changed if key not in harmless]
    if changed:
        shown = "; ".join(f"{key}: {before.get(key)!r} there, {after.get(key)!r} now" for key in changed[:5])
        more = f" (and {len(changed) - 5} more)" if len(changed) > 5 else ""
        raise RunFolderError(
            f"{folder} holds another experiment. {shown}{more}. Choose another folder with --out, "
            "or move this one away."
        )


def _check_federation(store: RunFolder, record: Mapping[str, Any]) -> None:
    stored = store.read_json("federation.json")
    if stored is not None and stored["hash"] != record["hash"]:
        raise RunFolderError(
            f"{store.path} was begun on another federation ({stored['hash'][:12]}, now {record['hash'][:12]}): "
            "the data or the way of partitioning it changed. Choose another folder with --out."
        )


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    result: dict[str, Any] = {}
    for key, inner in value.items():
        result |= _flat(inner, f"{prefix}.{key}" if prefix else key)
    return result
