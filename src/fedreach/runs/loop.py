"""The loop over the rounds of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedreach._util import files
from fedreach._util.arrays import Float32s
from fedreach._util.errors import ANOTHER_FOLDER, STEADIER, TrainingError
from fedreach.evaluation.evaluator import Evaluator
from fedreach.evaluation.modes import AdaptationEvaluator
from fedreach.federation.accounting import sum_noise
from fedreach.federation.state import FederationState
from fedreach.runs.adaptation import write_adaptation
from fedreach.runs.budget import UNLIMITED, Budget
from fedreach.runs.callbacks import Callback, callback_lifecycle
from fedreach.runs.checkpoint import Snapshot
from fedreach.runs.describe import Baselines, federation_record
from fedreach.runs.folder import CONSTANTS, REFIT, RunFolder
from fedreach.runs.recorder import Evaluated, Recorder, check_federation
from fedreach.runs.schema import Result, RoundRow, RunRecord, Timing
from fedreach.runs.simulation import Simulation

# ---- The loop over the rounds of a run
# It is a generator, so that a program can use each round; `consume` returns only the result.

R = TypeVar("R")
ROWS_SECONDS = 0.05
"""Maximum wait before rows are written. Writing the rows of many short rounds together halves the time."""


def consume(rounds: Generator[RoundRow, None, R]) -> R:
    """Run all rounds and return the result."""
    while True:
        try:
            next(rounds)
        except StopIteration as end:
            result: R = end.value
            return result


@dataclass(frozen=True, eq=False, kw_only=True)
class RunSpec:
    """A run without its folder.

    Args:
        record: Record of the run, which is written to the folder.
        simulation: Simulation of the federation, whose `rounds` are the maximum number of rounds.
        evaluator: Evaluator of the models. None: no evaluation.
        every: Number of rounds between evaluations. The last round is always evaluated.
        patience: Number of evaluations without a lower held-out loss after which the run ends. None: never.
        budget: Budget of the run.
        local: Also evaluate the cohort's local models.
        checkpoint_seconds: Seconds between checkpoints; there is also one at the end.
        callbacks: Callbacks of the run.
        engine: Description of the engine for the callbacks.
        adaptation: Evaluator that adapts the last and the best model at the end. None: no adaptation.
        baselines: Baselines to write at the end. None: no baselines.
        refit: Refit at the end, which trains the model again on all rows for the rounds of the best model. None: no
            refit.
        last_round: Round after which the run ends. None: the last round of the simulation.
    """

    record: RunRecord
    simulation: Simulation
    evaluator: Evaluator | None
    every: int = 1
    patience: int | None = None
    budget: Budget = UNLIMITED
    local: bool = False
    checkpoint_seconds: float = 2.0
    callbacks: Sequence[Callback] = ()
    engine: str = ""
    adaptation: AdaptationEvaluator | None = None
    baselines: Baselines | None = None
    refit: Refit | None = None
    last_round: int | None = None

    def is_over(self, snapshot: Snapshot) -> bool:
        """Return whether all rounds are finished or the budget is spent."""
        last = self.simulation.rounds if self.last_round is None else self.last_round
        return snapshot.state.round >= last or self.budget.is_spent(snapshot)

    def is_last(self, snapshot: Snapshot) -> bool:
        """Return whether this is the last round."""
        ran_out = self.patience is not None and snapshot.evaluations_since_best >= self.patience
        return ran_out or self.is_over(snapshot)


def each_round(spec: RunSpec, recorder: Recorder) -> Generator[RoundRow, None, Result]:
    """Run the rounds that the run folder does not contain yet; yield the row of each round, and return the result.

    If the caller stops the generator, the folder contains all finished rounds.

    Args:
        spec: The run.
        recorder: Recorder of the run folder, which this process has locked.

    Raises:
        RunFolderError: If the folder contains another federation or is not writable.
        TrainingError: If the run fails.
    """
    simulation, callbacks = spec.simulation, spec.callbacks
    record = federation_record(simulation.data)
    check_federation(recorder.folder, record)
    run = recorder.describe(spec.record, record)
    constants = recorder.constants(simulation.engine.constants)
    if constants:
        simulation.engine.start_from(constants)

    def finish_run() -> Mapping[str, Any] | None:
        if spec.adaptation is not None:
            noise = sum_noise(simulation.federation, last.state.aggregation[0])
            write_adaptation(recorder.folder, recorder.layout, replace(spec.adaptation, noise=noise))
        if spec.baselines is not None:
            spec.baselines.write(recorder.folder)
        if spec.refit is None:
            return None
        rounds = last.best_round if np.isfinite(last.best_loss) else last.state.round
        return spec.refit.write(recorder, rounds, callbacks)

    engine = "\n".join(filter(None, [spec.engine, simulation.engine.note]))
    with callback_lifecycle(callbacks, run, simulation.data, engine, recorder.folder.path):
        last = yield from _Loop(spec, recorder).run()
        result = recorder.finish(last, finish_run)
        for callback in callbacks:
            callback.end(result)
    return result


class LocalModels(NamedTuple):
    """The local models of a round before aggregation: the broadcast model plus the update."""

    cohort: tuple[int, ...]
    broadcast: Float32s  # (d,), or (r, d) if clusters have their own models
    update: Float32s  # (r, d)


@dataclass(eq=False)
class _Loop:
    spec: RunSpec
    recorder: Recorder
    saved: Snapshot | None = None  # clients' memory in it must not be overwritten before the next checkpoint

    def run(self) -> Generator[RoundRow, None, Snapshot]:
        written = saved = time.monotonic()
        snapshot = self.saved = self._load() or self._begin()
        try:
            while not self.spec.is_last(snapshot):
                snapshot, row, timing, lost = self._run_round(snapshot)
                now = time.monotonic()
                if now - saved >= self.spec.checkpoint_seconds:
                    snapshot = self._save(snapshot)
                    saved = written = now
                elif now - written >= ROWS_SECONDS:
                    snapshot = self.recorder.written(snapshot)
                    written = now
                for callback in self.spec.callbacks:
                    callback.round(row, timing, lost)
                yield row
        finally:
            # Also on Ctrl-C or a full disk: the snapshot is always that of the last finished round.
            snapshot = self._save(snapshot)
        return snapshot

    def _load(self) -> Snapshot | None:
        """Return the run at its checkpoint; reopen a run that is extended."""
        snapshot = self.recorder.load()
        if snapshot is None or snapshot.state.round % self.spec.every == 0 or self.spec.is_over(snapshot):
            return snapshot
        return self.recorder.save(self.recorder.reopened(snapshot))  # so that all rounds so far can be read

    def _save(self, snapshot: Snapshot) -> Snapshot:
        self.saved = self.recorder.save(snapshot)
        return self.saved

    def _begin(self) -> Snapshot:
        snapshot, row = self.recorder.begin(self.spec.simulation.start())
        evaluated, seconds = self._evaluate(snapshot, None)
        snapshot, _ = self.recorder.close(snapshot, row, Timing(round=0, evaluate_seconds=seconds), evaluated)
        return self.recorder.save(snapshot)

    def _run_round(self, snapshot: Snapshot) -> tuple[Snapshot, RoundRow, Timing, Mapping[int, str]]:
        began = time.perf_counter()
        done = self.spec.simulation.step(snapshot.state)
        cohort = done.result.cohort
        local = LocalModels(cohort, self._broadcast(snapshot.state, cohort), done.update)
        snapshot, row = self.recorder.after(snapshot, done.state, done.result)
        trained = round(time.perf_counter() - began, 6)
        evaluated, seconds = self._evaluate(snapshot, local)
        timing = Timing(round=row.round, train_seconds=trained, evaluate_seconds=seconds)
        snapshot, row = self.recorder.close(snapshot, row, timing, evaluated)
        return snapshot, row, timing, done.result.lost

    def _evaluate(self, snapshot: Snapshot, local: LocalModels | None) -> tuple[Evaluated | None, float | None]:
        """Return the evaluation after a round and its duration in seconds, if an evaluation is due."""
        state, evaluator = snapshot.state, self.spec.evaluator
        if evaluator is None or (state.round % self.spec.every != 0 and not self.spec.is_last(snapshot)):
            return None, None
        began = time.perf_counter()
        models = state.adapted(self.spec.simulation.federation)
        columns, lines = evaluator.evaluate(models, state.round, state.clusters)
        if local is not None and self.spec.local and local.cohort:
            cohort = np.array(local.cohort, dtype=np.int64)
            local_columns, local_lines = evaluator.evaluate_local(local.broadcast + local.update, cohort, state.round)
            columns, lines = {**columns, **local_columns}, lines + local_lines
        return (columns, lines), round(time.perf_counter() - began, 6)

    def _broadcast(self, state: FederationState, cohort: tuple[int, ...]) -> Float32s:
        """Return the model that was sent to these clients."""
        if len(state.models) == 1:
            return state.params
        rows = self.spec.simulation.first_view.rows(np.array(cohort, dtype=np.int64))
        return np.asarray(state.models[state.clusters[rows]])


# ---- Refit: train again on all rows after the model was scored on held-out rows
# The rounds use a folder inside the run folder, with its own checkpoint. An interrupted refit resumes there, and no
# score depends on it. The folder is removed when the model is written.

FOLDER = "refit"


@dataclass(frozen=True, eq=False)
class Refit:
    """Refit of a run's model, from the same seed and initial model, on all rows of the participants.

    Args:
        simulation: Function that returns the simulation in which participants train on all rows, given the folder for
            client states (see `fedreach.data.validation.on_all_rows`).
        checkpoint_seconds: Seconds between checkpoints; there is also one at the end.
    """

    simulation: Callable[[Path], Simulation]
    checkpoint_seconds: float = 2.0

    def write(self, recorder: Recorder, rounds: int, callbacks: Sequence[Callback] = ()) -> Mapping[str, Any]:
        """Train for `rounds` unless this is finished, write the model, and return the costs (see `Result.refit`).

        Args:
            recorder: Recorder of the run's folder, which this process has locked.
            rounds: Number of rounds, equal to the number of the best round.
            callbacks: Callbacks that receive each round (see `Callback.refit_round`).

        Raises:
            TrainingError: If a client fails, or the model diverges.
            RunFolderError: If the folder is not writable.
        """
        folder, refit_folder = recorder.folder, RunFolder(recorder.folder.path / FOLDER)
        stored = folder.read_tensors(REFIT)
        if stored is not None and (stored[1]["run"], stored[1]["round"]) == (folder.run, rounds):
            costs: Mapping[str, Any] = stored[1]["took"]
        else:
            simulation, constants = self.simulation(refit_folder.path), folder.read_tensors(CONSTANTS)
            if constants is not None:
                simulation.engine.start_from(constants[0])
            refit_recorder = Recorder(refit_folder, recorder.federation, recorder.layout)
            last = self._train(refit_recorder, simulation, folder.required(RunRecord), rounds, callbacks)
            costs = _training_costs(last, radio=recorder.federation.radio is not None)
            record = {"round": rounds, "run": folder.run, "took": costs}
            folder.write_tensors(REFIT, refit_recorder.models(last.state), record)
            folder.sync()
        _remove(refit_folder)
        return costs

    def _train(
        self, recorder: Recorder, simulation: Simulation, run: RunRecord, rounds: int, callbacks: Sequence[Callback]
    ) -> Snapshot:
        """Return the training after its last round; resume an interrupted one."""
        stored = recorder.folder.read(RunRecord)
        if stored is None or stored.id != run.id:
            _remove(recorder.folder)
            recorder.folder.write(run)
        spec = RunSpec(
            record=run,
            simulation=simulation,
            evaluator=None,
            last_round=rounds,
            checkpoint_seconds=self.checkpoint_seconds,
        )
        loop = _Loop(spec, recorder)
        for callback in callbacks:
            callback.refit_round(0, rounds)
        with closing(loop.run()) as rows:  # also after an error of a callback
            for row in rows:
                for callback in callbacks:
                    callback.refit_round(row.round, rounds)
        assert loop.saved is not None  # after the last round
        if not np.isfinite(loop.saved.state.models).all():
            raise TrainingError(
                f"The model diverged: in the training on all rows, it is not finite after round {rounds}. {STEADIER}, "
                f"and choose {ANOTHER_FOLDER}, or remove population.refit."
            )
        return loop.saved


def _remove(place: RunFolder) -> None:
    """Remove the folder of the training with its contents."""
    place.close()
    with files.disk(place.path):
        files.remove_folder(place.path)


def _training_costs(last: Snapshot, *, radio: bool) -> dict[str, Any]:
    """Return rounds and costs of a training, and the model of each participant if there are several."""
    took: dict[str, Any] = {"rounds": last.state.round, "bytes_total": last.bytes_total}
    if radio:
        took |= {key: float(f"{getattr(last, key):.12g}") for key in ("seconds_total", "joules_total")}
    if len(last.state.models) > 1:
        took["clusters"] = last.state.clusters.tolist()
    return dict(sorted(took.items()))  # in the order of the stored file
