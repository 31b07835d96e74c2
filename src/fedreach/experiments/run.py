"""One run: rounds, evaluation, rows, checkpoints, and going on where an interrupted run stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedreach.arrays import Float32s
from fedreach.data.federated import FederatedData
from fedreach.engines.choice import ENGINES
from fedreach.engines.ranks import LostRankError, Ranks
from fedreach.engines.simulation import Simulation
from fedreach.errors import ConfigError, RunFolderError
from fedreach.evaluation import Evaluator
from fedreach.experiments.build import Builder
from fedreach.experiments.checkpoint import MEMORY, Snapshot
from fedreach.experiments.config import Experiment
from fedreach.experiments.describe import environment, federation_record, git_revision
from fedreach.experiments.folder import RunFolder
from fedreach.experiments.identity import blamed, finished, identity
from fedreach.experiments.ledger import Ledger, check_federation
from fedreach.experiments.machine import cores
from fedreach.experiments.serving import announce, distributed, placed, serve_run
from fedreach.federation.round import FederationState

ENGINE = "engine.json"


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


def run(
    experiment: Experiment,
    *,
    seed: int,
    folder: Path,
    base: Path,
    method: str = "run",
    threads: int | None = None,
    ranks: Ranks | None = None,
    agreed: Path | None = None,
    explain: Callable[[str], None] = lambda why: None,
    begin: Callable[[FederatedData], None] = lambda data: None,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> dict[str, Any]:
    """Run one resolved experiment in a folder, or go on with it; return the content of ``result.json``.

    Args:
        experiment: Of one method, see `Experiment.resolved`.
        seed: Of this run.
        folder: The run folder. A finished run of the same experiment is left as it is.
        base: Folder that paths in the experiment are relative to.
        method: Name under which the run is reported.
        threads: At work where the experiment does not say; default: the cores. Changes no number.
        ranks: This process and others that share the work, see `fedreach.engines.joining.joined`. Only rank 0 writes,
            calls `begin` and `tell`, and returns a result; the others serve it and return nothing. Changes no number.
        agreed: Folder in which all runs of a comparison note the engine of the one that tried first, so that all are
            computed alike; None: the run folder. An engine that the experiment names is not noted.
        explain: Called with which engine trains and why.
        begin: Called once with the federation, before the first round that is to be run.
        tell: Called after every round.

    Raises:
        RunFolderError: If the folder holds another experiment or cannot be read.
        FedReachError: If the run fails; ``result.json`` then says why.
    """
    store = RunFolder(folder)
    described = identity(experiment, seed, method, base)
    local_size = 1 if ranks is None else ranks.local_size
    threads = experiment.engine.threads or threads or max(1, cores() // local_size)
    if ranks is not None and ranks.rank:
        serve_run(experiment, described, base, threads, ranks)
        return {}
    with store.locked():
        done = finished(store, described)
        noted = RunFolder(agreed or folder)
        return done or _run(store, experiment, described, base, threads, ranks, noted, explain, begin, tell)


def _run(
    store: RunFolder,
    experiment: Experiment,
    described: Mapping[str, Any],
    base: Path,
    threads: int,
    ranks: Ranks | None,
    noted: RunFolder,
    explain: Callable[[str], None],
    begin: Callable[[FederatedData], None],
    tell: Callable[[Progress], None],
) -> dict[str, Any]:
    seed = described["seed"]
    try:
        if ranks is not None:
            announce(described, ranks)
        with blamed(experiment, base):
            builder = Builder(placed(experiment, ranks), base)
            data = builder.federated(builder.dataset(), seed)
            builder = _with_engine(builder, data, seed, threads, noted, explain)
            with _noted_engine(experiment, noted):
                simulation = replace(builder.simulation(data, seed, threads), memory_file=store.path / MEMORY)
            if ranks is not None:
                simulation = distributed(simulation, ranks)
            record = federation_record(data)
            check_federation(store, record)
            store.write_json("run.json", {**described, "environment": environment(), "git": git_revision(base)})
            store.write_json("federation.json", record)
            begin(data)
            evaluator = Evaluator(simulation.engine, data, seed, experiment.evaluation.samples_per_client)
            result = _Loop(experiment, simulation, evaluator, store, tell).run()
    except (RunFolderError, LostRankError):  # neither is the run's own failure
        raise
    except Exception as error:
        store.write_json("result.json", {"status": "failed", "error": f"{error}" or type(error).__name__})
        raise
    store.write_json("result.json", result)
    return result


def _with_engine(
    builder: Builder, data: FederatedData, seed: int, threads: int, noted: RunFolder, explain: Callable[[str], None]
) -> Builder:
    """Return the builder with the engine that was noted, or tried now, where the experiment leaves that open."""
    section = builder.experiment.engine
    if section.name != "auto":
        explain(f"engine {section.name}: the experiment says so")
        return builder
    record = noted.read_json(ENGINE)
    if record is None:
        choice = builder.choice(data, seed, threads)
        explain(str(choice))
        record = noted.agreed(ENGINE, {"name": choice.name})
    elif record.get("name") in ENGINES:
        explain(f"engine {record['name']}: noted in {noted.path / ENGINE}")
    else:
        raise RunFolderError(
            f"{noted.path / ENGINE} must name an engine; got {record.get('name')!r}. Remove it to have one tried anew."
        )
    engine = section.model_copy(update={"name": record["name"]})
    return replace(builder, experiment=builder.experiment.model_copy(update={"engine": engine}))


@contextmanager
def _noted_engine(experiment: Experiment, noted: RunFolder) -> Iterator[None]:
    """Say where an engine was named that cannot be used here, if not by the experiment."""
    try:
        yield
    except ConfigError as error:
        if experiment.engine.name != "auto" or not f"{error}".startswith("engine.name"):
            raise
        raise ConfigError(
            f"{error} It was named by {noted.path / ENGINE}: remove that file to have an engine tried anew, whose "
            "numbers differ by rounding."
        ) from error


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
        cohort = done.report.cohort
        local = LocalModels(cohort, self._broadcast(snapshot.state, cohort), done.update)
        snapshot, row = self.ledger.after(snapshot, done.state, done.report)
        timing = {"train_seconds": self.round_time.add(time.perf_counter() - began)}
        snapshot, row = self._close(snapshot, row, local, timing)
        return snapshot, row, done.report.lost

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
