"""One run, computed by one process or by several processes (ranks).

With several ranks, rank 0 announces its run before the first round, and all ranks read their data at the same time.
Rank 0 then announces its engine and the digest of its federation. The other ranks confirm that they have the same
engine and digest.
"""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedreach._util.errors import ConfigError, DataError, RunFolderError
from fedreach._util.processes import cores, one_thread
from fedreach.data.datasets import Dataset
from fedreach.data.federated import FederatedData
from fedreach.data.stored import OwnData, digest
from fedreach.data.validation import on_all_rows
from fedreach.engines.choice import ENGINES
from fedreach.engines.distributed import SWITCH_ENGINE, DistributedEngine, LostRankError, Ranks, serve
from fedreach.engines.engine import TorchEngine
from fedreach.evaluation.evaluator import Evaluator
from fedreach.evaluation.metrics import Metric
from fedreach.evaluation.modes import AdaptationEvaluator
from fedreach.experiment import components
from fedreach.experiment.build import Builder
from fedreach.experiment.components import locate_user_errors
from fedreach.experiment.options import trackers_of
from fedreach.experiment.schema import Experiment
from fedreach.federation.secure_aggregation import exact_sum
from fedreach.runs.adaptation import take_training
from fedreach.runs.budget import Budget
from fedreach.runs.callbacks import Callback
from fedreach.runs.checkpoint import MEMORY_FILE
from fedreach.runs.describe import Baselines, environment, git_revision
from fedreach.runs.folder import RunFolder
from fedreach.runs.identity import ENGINE, check_data, check_unchanged, finished_result, forget_failed
from fedreach.runs.loop import Refit, RunSpec, consume, each_round
from fedreach.runs.recorder import Recorder, note_failure
from fedreach.runs.schema import Result, RoundRow, RunRecord
from fedreach.runs.simulation import Simulation
from fedreach.runs.trackers import NamedTracker, TrackerGroup, Warn, warn


def on_rank_device(experiment: Experiment, ranks: Ranks | None, engine: str | None = None) -> Experiment:
    """Return the experiment on this process's device, with `engine` in place of ``auto``."""
    if ranks is None:
        return experiment
    section = experiment.engine
    update = {"device": ranks.device(section.device), "name": engine or section.name}
    return experiment.model_copy(update={"engine": section.model_copy(update=update)})


def distribute(simulation: Simulation, ranks: Ranks) -> Simulation:
    """Wait for all ranks, and return rank 0's simulation with its work distributed among the ranks.

    Raises:
        FedReachError: If another rank failed; the message contains the error of that rank.
    """
    for rank in range(1, ranks.size):
        ranks.send((simulation.engine.name, simulation.data.digest()), rank)
    for rank in range(1, ranks.size):
        ranks.receive(rank)
    assert isinstance(simulation.engine, TorchEngine)  # the builder made it
    return replace(simulation, engine=DistributedEngine(simulation.engine, ranks))


def distribute_again(simulation: Simulation, ranks: Ranks) -> Simulation:
    """Distribute another simulation of rank 0 after the other ranks have finished the previous simulation."""
    for rank in range(1, ranks.size):
        ranks.send(SWITCH_ENGINE, rank)
    return distribute(simulation, ranks)


def serve_run(experiment: Experiment, identity: Mapping[str, Any], base: Path, threads: int, ranks: Ranks) -> None:
    """Work for rank 0 until its run is finished, without printing or writing anything.

    Raises:
        ConfigError: If rank 0 runs another experiment.
        DataError: If rank 0 has other data.
        LostRankError: If rank 0 ends before its run is finished.
    """
    theirs = ranks.receive(0)
    if theirs is None:  # the run is already finished
        return
    ours = _shared_identity(identity)
    if different := [name for name in ours if ours[name] != theirs[name]]:
        raise ConfigError(
            f"This rank differs from rank 0 in {' and '.join(different)}. Start all ranks with the same files, the "
            "same options and the same versions of the packages."
        )
    with locate_user_errors(experiment, base):
        builder = Builder(experiment, base)
        data = builder.federated(builder.dataset(), identity["seed"])
        first = partial(Builder.simulation, examined=True)  # by rank 0
        if _serve(experiment, data, first, identity["seed"], base, threads, ranks):
            _serve(experiment, on_all_rows(data), Builder.refit_simulation, identity["seed"], base, threads, ranks)


def _serve(
    experiment: Experiment,
    data: FederatedData,
    make: Callable[[Builder, FederatedData, int, int], Simulation],
    seed: int,
    base: Path,
    threads: int,
    ranks: Ranks,
) -> bool:
    """Serve rank 0 with the simulation that `make` returns; return whether the run continues with other data."""
    engine, digest = ranks.receive(0)
    if data.digest() != digest:
        raise DataError(
            f"The data of this rank ({data.digest()[:12]}) differ from the data of rank 0 ({digest[:12]}). Copy the "
            "files of rank 0's machine to this machine."
        )
    simulation = make(Builder(on_rank_device(experiment, ranks, engine), base), data, seed, threads)
    ranks.send("ready", 0)
    assert isinstance(simulation.engine, TorchEngine)  # the builder made it
    return serve(simulation.engine, ranks)


def _shared_identity(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must be the same on all ranks: the run's identity and the versions of the packages."""
    current_environment = environment()
    return {**identity, "packages": {"fedreach": current_environment["fedreach"], **current_environment["packages"]}}


# -------------------- One run: rounds, evaluation, rows, checkpoints

TRACEBACK = "traceback.txt"  # of a run that failed

Read = Callable[[Builder], Dataset | OwnData]


@one_thread()
def run(experiment: Experiment, **arguments: Any) -> Result | None:
    """Run or resume one resolved experiment in a folder, and return its result, as in ``result.json``.

    The arguments and errors are the same as for `each_round_of`.
    """
    return consume(each_round_of(experiment, **arguments))


def each_round_of(
    experiment: Experiment,
    *,
    seed: int,
    folder: Path,
    base: Path,
    method: str = "run",
    threads: int | None = None,
    ranks: Ranks | None = None,
    agreed: Path | None = None,
    twin: Path | None = None,
    files: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    warn: Warn = warn,
    read: Read = Builder.dataset,
) -> Generator[RoundRow, None, Result | None]:
    """Run or resume one resolved experiment, and yield the row of each round; a stopped run can be resumed later.

    Args:
        experiment: Experiment of one method (see `Experiment.resolved`).
        seed: Seed of this run.
        folder: Run folder. A finished run of the same experiment is not changed.
        base: Folder that paths in the experiment are relative to.
        method: Name of the run in reports.
        threads: Number of threads if the experiment does not set it, which does not affect results. Default: the number
            of cores.
        ranks: Processes that share the work (see `fedreach.engines.distributed.join`), which does not affect results.
            Only rank 0 writes files, calls callbacks and returns a result. The other ranks work for rank 0 and return
            None.
        agreed: Folder in which all runs of a comparison store the digest of the data and the engine of the first trial,
            so that all runs use this engine. Default: the run folder. FedReach stores an engine that the experiment
            names when it has checked that the engine supports the model. It does not store `sequential`, which supports
            all models.
        twin: Folder of a run that differs only in its name and `method.adaptation`. If that run is finished, FedReach
            reuses its training and runs only the adaptation.
        files: Digests of the user's files at the start of the comparison (see
            `fedreach.experiment.components.file_digests`). Default: digests are not checked.
        callbacks: Callbacks that follow the progress. They are called before the experiment's trackers, and not at all
            if the run is already finished.
        warn: Function that receives warnings, with the name of a failed tracker, or with ``"engine"`` if the model
            affects how it is trained or evaluated.
        read: Function that reads the experiment's data set.

    Raises:
        RunFolderError: If the folder contains another experiment or cannot be read.
        FedReachError: If the run fails. ``result.json`` then contains the reason.
    """
    if (target := experiment.method.method_to_follow) is not None:
        raise ConfigError(
            f"method.cohort_size is that of the method {target!r}, which only a comparison knows. Use `fedreach "
            "compare` (in Python, fedreach.compare), or a number."
        )
    identity = components.identity(experiment, seed, method, base)
    if files is not None:
        check_unchanged(files, identity)
    local_size = 1 if ranks is None else ranks.local_size
    threads = experiment.engine.threads or threads or max(1, cores() // local_size)
    if ranks is not None and ranks.rank:
        serve_run(experiment, identity, base, threads, ranks)
        return None
    run_folder, noted, e = RunFolder(folder), RunFolder(agreed or folder), experiment
    with run_folder.locked():
        if (done := finished_result(run_folder, identity)) is not None:
            return done
        trackers = [NamedTracker(*tracker) for tracker in trackers_of(experiment, base)]
        callbacks = [*callbacks, TrackerGroup(trackers, run_folder, warn)]
        forget_failed(run_folder, identity)
        (folder / TRACEBACK).unlink(missing_ok=True)
        try:
            if ranks is not None:
                for rank in range(1, ranks.size):  # so that they read their data meanwhile
                    ranks.send(_shared_identity(identity), rank)
            with locate_user_errors(experiment, base):
                builder = Builder(on_rank_device(experiment, ranks), base)
                dataset = read(builder)
                if agreed is not None:
                    check_data(noted, digest(dataset), e.data.name)
                data = builder.federated(dataset, seed)
                engine = _engine(builder, data, seed, threads, noted)
                builder = _with_engine(builder, seed, engine, noted)
                with _recorded_engine(experiment, noted.path / _note(builder, seed)):
                    plain_simulation = builder.simulation(data, seed, threads, examined=True)
                _note_examined(builder, seed, noted)
                simulation = replace(plain_simulation, memory_file=folder / MEMORY_FILE)
                for line in (engine.warning, _draw_warning(simulation)):
                    if line is not None:
                        warn("engine", line)
                if ranks is not None:
                    simulation = distribute(simulation, ranks)
                learned = [data.to_json() for data in builder.what_the_server_learns(simulation.federation)]
                record = RunRecord(**identity, environment=environment(), git=git_revision(base), learned=learned)
                adaptation, metrics = _adaptation(e, simulation), builder.metrics_of(dataset)
                baselines = _baselines(e, data, metrics, agreed)
                recorder = Recorder(
                    run_folder, simulation.federation, simulation.engine.layout, e.run.on_failure == "stop"
                )
                if simulation.federation.is_private:
                    twin = None  # the noise of its training depends on its own fit
                is_taken = adaptation and twin and take_training(recorder, RunFolder(twin), record, identity)
                spec = RunSpec(
                    record=record,
                    simulation=simulation,
                    evaluator=Evaluator(
                        simulation.engine, data, e.evaluation.examples_per_client, metrics, e.evaluation.training
                    ),
                    every=e.evaluation.every,
                    patience=e.evaluation.patience,
                    budget=Budget(**dict(e.budget)),
                    local=e.evaluation.local,
                    checkpoint_seconds=e.run.checkpoint_seconds,
                    callbacks=callbacks,
                    engine="trained as another run" if is_taken else engine.why,
                    adaptation=adaptation,
                    baselines=baselines,
                    refit=_refit(builder, data, seed, threads, ranks),
                )
                return (yield from each_round(spec, recorder))
        except (RunFolderError, LostRankError):  # not failures of the run itself
            raise
        except Exception as error:
            note_failure(run_folder, error)
            _write_traceback(run_folder, error)
            raise


def _write_traceback(folder: RunFolder, error: Exception) -> None:
    """Store the traceback of an error, of which the message shows one line at most."""
    with suppress(RunFolderError):
        folder.write_whole(TRACEBACK, "".join(traceback.format_exception(error)).encode())


@one_thread()
def explain(experiment: Experiment, *, seed: int, folder: Path, base: Path) -> tuple[FederatedData, str, str]:
    """Return the data of a run, the engine that would train it, and the reason, without training more than a trial.

    This function writes no files. The arguments are the same as for `run`.
    """
    with locate_user_errors(experiment, base):
        builder = Builder(experiment, base)
        data = builder.federated(builder.dataset(), seed)
        threads = experiment.engine.threads or cores()
        engine = _engine(builder, data, seed, threads, RunFolder(folder))
        return data, engine.name, engine.why


def _adaptation(experiment: Experiment, simulation: Simulation) -> AdaptationEvaluator | None:
    """Return the evaluator that adapts to clients at the end; None without an adaptation rule."""
    federation, e = simulation.federation, experiment.evaluation
    if not federation.adapts:
        return None
    summed = exact_sum if federation.label_statistics.only_sum else None
    rule, examples_per_client = federation.adaptation, e.examples_per_client
    return AdaptationEvaluator(
        simulation.engine, simulation.data, rule, examples_per_client, tuple(e.inputs), summed, simulation.fitting_cost
    )


def _refit(builder: Builder, data: FederatedData, seed: int, threads: int, ranks: Ranks | None) -> Refit | None:
    """Return the refit after the last round; None unless `population.refit` is set."""
    e = builder.experiment
    if not e.population.refit:
        return None

    def simulation(folder: Path) -> Simulation:
        refitted = replace(builder.refit_simulation(on_all_rows(data), seed, threads), memory_file=folder / MEMORY_FILE)
        return refitted if ranks is None else distribute_again(refitted, ranks)

    return Refit(simulation, e.run.checkpoint_seconds)


def _baselines(
    experiment: Experiment, data: FederatedData, metrics: Sequence[Metric], agreed: Path | None
) -> Baselines | None:
    """Return the baselines that the models must beat; None for a run that tries a setting on validation data."""
    if experiment.population.validation is not None:
        return None
    shared = None if agreed is None else agreed / "baselines"
    return Baselines(data, experiment.evaluation.examples_per_client, metrics, shared)


class _Engine(NamedTuple):
    """The engine that trains; it is known to compute the model."""

    name: str
    why: str  # named by the experiment, stored by another run, or chosen by a trial
    warning: str | None = None  # shown to the user once
    is_chosen: bool = False  # by a trial; other runs of a comparison may have stored another engine meanwhile


def _engine(builder: Builder, data: FederatedData, seed: int, threads: int, agreed: RunFolder) -> _Engine:
    experiment, note = builder.experiment, _note(builder, seed)
    name, record = experiment.engine.name, agreed.read_json(note)
    why = f"engine {name}: set by the experiment"
    if name == "auto" and record is None:
        choice = builder.choice(data, seed, threads)
        return _Engine(choice.name, str(choice), choice.warning, is_chosen=True)
    if name == "auto":
        name = (record or {}).get("name", "")
        why = f"engine {name}: stored in {agreed.path / note}"
        if name not in ENGINES:
            raise RunFolderError(
                f"{agreed.path / note} must name an engine; got {name!r}. Remove the file to choose the engine again."
            )
    if record is None or record.get("name") != name or record.get("examined") != _model_digest(builder):
        with _recorded_engine(experiment, agreed.path / note):
            warning = _with_name(builder, name).examine_named_engine(data, seed)
        if warning is not None:
            return _Engine("sequential", warning, warning)
    return _Engine(name, why)


def _model_digest(builder: Builder) -> str:
    """Return a digest of what an examination depends on: the model, the loss and the user's code."""
    config = builder.experiment.model_dump(mode="json")
    code = components.file_digests(builder.experiment, builder.base)["code"]
    examined = {"model": config["model"], "loss": config["method"]["loss"], "code": code}
    return hashlib.blake2b(json.dumps(examined, sort_keys=True).encode(), digest_size=8).hexdigest()


def _note(builder: Builder, seed: int) -> str:
    """Return the name of the file that stores the engine; methods that exclude engines have their own file."""
    federation = builder.federation(seed)
    parts = federation.solver, federation.loss, federation.local
    without = [name for name, kind in ENGINES.items() if kind.refusal(*parts) is not None]
    return f"{Path(ENGINE).stem}-without-{'-'.join(without)}.json" if without else ENGINE


def _with_engine(builder: Builder, seed: int, engine: _Engine, agreed: RunFolder) -> Builder:
    """Return the builder with the engine that trains; an engine chosen by a trial is stored."""
    name = engine.name
    if engine.is_chosen:
        content = {"name": name, "examined": _model_digest(builder)}
        name = agreed.agree_on(_note(builder, seed), content)["name"]
    return _with_name(builder, name)


def _with_name(builder: Builder, name: str) -> Builder:
    """Return the builder with the engine of this name."""
    section = builder.experiment.engine.model_copy(update={"name": name})
    return replace(builder, experiment=builder.experiment.model_copy(update={"engine": section}))


def _note_examined(builder: Builder, seed: int, agreed: RunFolder) -> None:
    """Store an engine that the experiment names, so that a resumed run does not examine it again."""
    name, note = builder.experiment.engine.name, _note(builder, seed)
    if name != "sequential" and agreed.read_json(note) is None:
        agreed.agree_on(note, {"name": name, "examined": _model_digest(builder)})


def _draw_warning(simulation: Simulation) -> str | None:
    """Return the warning about a model that draws random numbers in evaluation, or None."""
    engine = simulation.engine
    if not isinstance(engine, TorchEngine) or not engine.trainer.behavior.draws_in_evaluation:
        return None
    return (
        "the model draws random numbers in evaluation. FedReach evaluates each example alone, with its own seed, so "
        "that its outputs are always the same"
    )


@contextmanager
def _recorded_engine(experiment: Experiment, note: Path) -> Iterator[None]:
    """Add to the error of an unusable engine the file that named it, unless the experiment did."""
    try:
        yield
    except ConfigError as error:
        if experiment.engine.name != "auto" or not f"{error}".startswith("engine.name"):
            raise
        raise ConfigError(
            f"{error} {note} names that engine. Remove the file to choose another engine, whose numbers differ by "
            "rounding."
        ) from error
