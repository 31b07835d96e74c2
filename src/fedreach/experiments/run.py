"""One run: rounds, evaluation, rows, checkpoints, and going on where an interrupted run stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedreach.config.sections import Experiment
from fedreach.config.user_code import blamed, identity
from fedreach.data.federated import FederatedData
from fedreach.engines.choice import ENGINES
from fedreach.engines.parallel.ranks import LostRankError, Ranks
from fedreach.errors import ConfigError, RunFolderError
from fedreach.evaluation import Evaluator
from fedreach.experiments.build import Builder
from fedreach.experiments.ranks import announce, distributed, placed, serve_run
from fedreach.runs.checkpoint import MEMORY
from fedreach.runs.describe import cores, environment, federation_record, git_revision
from fedreach.runs.folder import RunFolder
from fedreach.runs.identity import finished
from fedreach.runs.loop import Progress, _Loop
from fedreach.runs.recorder import check_federation
from fedreach.threads import one_thread

ENGINE = "engine.json"


@one_thread()
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
        ranks: This process and others that share the work, see `fedreach.engines.parallel.launch.joined`. Only rank 0
            writes, calls `begin` and `tell`, and returns a result; the others serve it and return nothing. Changes no
            number.
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
