"""Many runs: methods x seeds in parallel processes, resumed where they stopped, never repeated once done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedreach.config.sections import Experiment
from fedreach.config.user_code import identity
from fedreach.errors import ConfigError, RunFolderError
from fedreach.experiments.executors.base import Executor
from fedreach.experiments.executors.local import Local
from fedreach.experiments.executors.scheduler import Scheduler
from fedreach.experiments.jobs import ComparisonCallback, ComparisonStatus, Job
from fedreach.runs.folder import RunFolder
from fedreach.runs.identity import OtherExperimentError, finished
from fedreach.runs.schema import ComparisonRecord


def plan(experiment: Experiment, out: Path) -> list[Job]:
    """Return the runs of a comparison, all methods of one seed before the next seed."""
    if not experiment.methods:
        raise ConfigError(
            "There is nothing to compare: the experiment has no [methods.NAME] table. Use `fedreach run`."
        )
    return [
        Job(method, seed, out / "runs" / method / f"seed-{seed}", experiment.resolved(method))
        for seed in experiment.seeds
        for method in experiment.methods
    ]


def compare(
    experiment: Experiment,
    *,
    out: Path,
    base: Path,
    workers: int | None = None,
    executor: Executor | None = None,
    callbacks: Sequence[ComparisonCallback] = (),
) -> ComparisonStatus:
    """Run all methods with all seeds; results depend neither on the number of workers nor on where they are.

    Args:
        experiment: With its methods.
        out: Folder of the comparison.
        base: Folder that paths in the experiment are relative to.
        workers: Processes at a time; None takes as many as the executor's machines hold.
        executor: Where the runs are computed; None: on this machine.
        callbacks: Are told as it goes on.

    Returns:
        What finished and what failed. A failing run does not stop the others.

    Raises:
        RunFolderError: If `out` holds another comparison, or another process writes to it. Nothing is changed then.
        ConfigError: If the executor's machines cannot run this experiment.
    """
    status, executor, folder = ComparisonStatus(plan(experiment, out)), executor or Local(), RunFolder(out)
    runs: dict[str, dict[str, str]] = {}
    for job in status.jobs:
        runs.setdefault(job.method, {})[str(job.seed)] = job.folder.relative_to(out).as_posix()
    with folder.locked():
        waiting = _skip_finished(status, base)
        folder.write(
            ComparisonRecord(
                name=experiment.name,
                baseline=experiment.baseline or next(iter(experiment.methods)),
                target_accuracy=experiment.target_accuracy,
                methods=list(experiment.methods),
                seeds=list(experiment.seeds),
                runs=runs,
                config=experiment.model_dump(mode="json"),
            )
        )
        for ended in [None, *status.failed]:
            status.ended = ended
            for callback in callbacks:
                callback.update(status)
        if waiting:
            for callback in callbacks:
                callback.begin()
            with executor.pool(experiment.engine, out, len(waiting), workers) as pool:
                Scheduler(pool, executor.tries, waiting, status, out, base).work(callbacks)
    return status


def _skip_finished(status: ComparisonStatus, base: Path) -> list[Job]:
    """Return the jobs that are to be run; note those that are finished and those whose folder cannot be used."""
    waiting = []
    for job in status.jobs:
        try:
            done = finished(RunFolder(job.folder), identity(job.experiment, job.seed, job.method, base))
        except OtherExperimentError:
            raise
        except RunFolderError as error:
            status.failed[job] = str(error)
            continue
        if done is None:
            waiting.append(job)
        else:
            status.finished.append(job)
    status.skipped = len(status.finished)
    return waiting
