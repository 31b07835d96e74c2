"""The loop over the rounds of a run: step, evaluate, record, go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedreach.arrays import Float32s
from fedreach.config.sections import Experiment
from fedreach.evaluation import Evaluator
from fedreach.federation.state import FederationState
from fedreach.runs.checkpoint import MEMORY, Snapshot
from fedreach.runs.folder import RunFolder
from fedreach.runs.recorder import Ledger
from fedreach.simulation.simulation import Simulation


@dataclass(frozen=True)
class Progress:
    """What is told after every round."""

    round: int
    rounds: int
    row: Mapping[str, Any]
    lost: Mapping[int, str]  # client -> why its reply does not count
    rounds_done: int  # in this process, as are the seconds
    seconds: float  # in all
    round_seconds: float  # mean of a round without its evaluation
    evaluation_seconds: float  # mean of an evaluation; 0 before the first


class LocalModels(NamedTuple):
    """The local models of a round before aggregation, as the broadcast model and what was added to it."""

    cohort: tuple[int, ...]
    broadcast: Float32s  # (d,), or (r, d) where clusters have models of their own
    update: Float32s  # (r, d)


class _Mean:
    """Mean duration of what was done so far, 0 before the first; a list of them would be summed anew every round."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, seconds: float) -> float:
        """Count one more; return it in whole microseconds, as rows of timing tell it."""
        self.total, self.count = self.total + seconds, self.count + 1
        return round(seconds, 6)

    @property
    def seconds(self) -> float:
        return self.total / max(1, self.count)


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
        stops = experiment.run.on_failure == "stop"
        self.ledger = Ledger(store, simulation.federation, simulation.engine.layout, stops)
        self.round_time, self.evaluation_time = _Mean(), _Mean()

    def run(self) -> dict[str, Any]:
        began = written = time.monotonic()
        snapshot = self.saved = self.ledger.load() or self._begin()
        first = snapshot.state.round
        try:
            while snapshot.state.round < self.experiment.rounds and not self._patience_is_over(snapshot):
                snapshot, row, lost = self._round(snapshot)
                now = time.monotonic()
                if now - written >= self.experiment.run.checkpoint_seconds:
                    self._save(snapshot)
                    written = now
                done = snapshot.state.round
                means = self.round_time.seconds, self.evaluation_time.seconds
                self.tell(Progress(done, self.experiment.rounds, row, lost, done - first, now - began, *means))
        finally:
            # Also on Ctrl-C or a full disk: the snapshot is always that of the last round that ended.
            self._save(snapshot)
        return self.ledger.finish(snapshot)

    def _save(self, snapshot: Snapshot) -> None:
        """Write a checkpoint, and hold on to it: what clients kept then must not be written over before the next."""
        self.ledger.save(snapshot)
        self.saved = snapshot

    def _begin(self) -> Snapshot:
        snapshot, row = self.ledger.begin(self.simulation.start())
        snapshot, _ = self._close(snapshot, row, None, {})
        self.ledger.save(snapshot)
        return snapshot

    def _round(self, snapshot: Snapshot) -> tuple[Snapshot, dict[str, Any], Mapping[int, str]]:
        began = time.perf_counter()
        with self.store.disk(MEMORY):
            done = self.simulation.step(snapshot.state)
        cohort = done.result.cohort
        local = LocalModels(cohort, self._broadcast(snapshot.state, cohort), done.update)
        snapshot, row = self.ledger.after(snapshot, done.state, done.result)
        timing = {"train_seconds": self.round_time.add(time.perf_counter() - began)}
        snapshot, row = self._close(snapshot, row, local, timing)
        return snapshot, row, done.result.lost

    def _close(
        self, snapshot: Snapshot, row: dict[str, Any], local: LocalModels | None, timing: dict[str, Any]
    ) -> tuple[Snapshot, dict[str, Any]]:
        """Evaluate where it is due, append the rows and return the snapshot after them."""
        number, e = snapshot.state.round, self.experiment.evaluation
        if number % e.every != 0 and number != self.experiment.rounds:
            return self.ledger.close(snapshot, row, timing)
        began = time.perf_counter()
        models = snapshot.state.served(self.simulation.federation)
        columns, lines = self.evaluator.evaluate(models, number, snapshot.state.clusters)
        if local is not None and e.local and local.cohort:
            cohort = np.array(local.cohort, dtype=np.int64)
            more, more_lines = self.evaluator.evaluate_local(local.broadcast + local.update, cohort, number)
            columns, lines = {**columns, **more}, lines + more_lines
        timing = {**timing, "evaluate_seconds": self.evaluation_time.add(time.perf_counter() - began)}
        return self.ledger.close(snapshot, row, timing, (columns, lines))

    def _patience_is_over(self, snapshot: Snapshot) -> bool:
        patience = self.experiment.evaluation.patience
        return patience is not None and snapshot.evaluations_since_best >= patience

    def _broadcast(self, state: FederationState, cohort: tuple[int, ...]) -> Float32s:
        """Return the model that these clients were sent."""
        if len(state.models) == 1:
            return state.params
        rows = self.simulation.first_view.rows(np.array(cohort, dtype=np.int64))
        broadcast: Float32s = state.models[state.clusters[rows]]
        return broadcast
