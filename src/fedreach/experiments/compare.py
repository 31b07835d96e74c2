"""Many runs: methods x seeds in parallel processes, resumed where they stopped, never repeated once done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from fedreach.config.sections import Experiment
from fedreach.config.user_code import identity
from fedreach.errors import ANOTHER_FOLDER, ConfigError, RunFolderError
from fedreach.experiments.executors.base import Executor
from fedreach.experiments.executors.local import Local
from fedreach.experiments.executors.scheduler import run_jobs
from fedreach.experiments.jobs import ComparisonCallback, ComparisonStatus, Job
from fedreach.runs.folder import RunFolder
from fedreach.runs.identity import OtherExperimentError, finished
from fedreach.runs.schema import ComparisonRecord, Result

DECLARE = f"What is asked is said before results can be seen: choose {ANOTHER_FOLDER}."


class Further(Protocol):
    """Says how many seeds a comparison has, once those of its pilot are finished."""

    def __call__(self, out: Path) -> tuple[int, str]:
        """Return the number of seeds, those of the pilot included, and why in words."""


def plan(experiment: Experiment, out: Path, seeds: Sequence[int] | None = None) -> list[Job]:
    """Return the runs of a comparison, all methods of one seed before the next seed."""
    if not experiment.methods:
        raise ConfigError(
            "There is nothing to compare: the experiment has no [methods.NAME] table. Use `fedreach run`."
        )
    return [
        Job(method, seed, out / "runs" / method / f"seed-{seed}", experiment.resolved(method))
        for seed in seeds or experiment.seeds
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
    add_seeds: bool = False,
    further: Further | None = None,
) -> ComparisonStatus:
    """Run all methods with all seeds; results depend neither on the number of workers nor on where they are.

    Args:
        experiment: With its methods.
        out: Folder of the comparison.
        base: Folder that paths in the experiment are relative to.
        workers: Processes at a time; None takes as many as the executor's machines hold.
        executor: Where the runs are computed; None: on this machine.
        callbacks: Are told as it goes on.
        add_seeds: Whether seeds may be added although there are results; the report says so and gives no verdict.
        further: Needed where `statistics.detect_points` is set: then `experiment.seeds` are the pilot's.

    Returns:
        What finished and what failed. A failing run does not stop the others.

    Raises:
        RunFolderError: If `out` holds another comparison, or one that was asked something else and has results, or
            another process writes to it. Nothing is changed then.
        ConfigError: If the executor's machines cannot run this experiment, or `statistics.detect_points` is set and
            nobody says how many seeds it takes.
    """
    if experiment.plan.detect_points is not None and further is None:
        raise ConfigError("statistics.detect_points has the number of seeds follow from a pilot: give `further`.")
    status, executor, folder = ComparisonStatus([]), executor or Local(), RunFolder(out)
    pilot = None if experiment.plan.detect_points is None else list(experiment.seeds)
    plan(experiment, out)  # nothing to compare is said before anything is written

    def run(seeds: Sequence[int], held: Sequence[int]) -> None:
        """Run what of these seeds is not finished; the comparison holds more of them if it did before."""
        status.jobs = plan(experiment, out, seeds)
        waiting = _skip_finished(status, base)
        folder.write(_record(experiment, out, held, pilot, looks))
        run_jobs(executor, experiment.engine, waiting, status, out=out, base=base, workers=workers, callbacks=callbacks)

    with folder.locked():
        stored = folder.read(ComparisonRecord)
        looks = check_declared(experiment, stored, out, add_seeds=add_seeds)
        if pilot is None or further is None:  # both or neither
            run(experiment.seeds, experiment.seeds)
            return status
        run(pilot, stored.seeds if stored is not None and stored.pilot == pilot else pilot)
        if status.failed:
            return status
        number, why = further(out)
        for callback in callbacks:
            callback.planned(why)
        first = max(pilot) + 1
        seeds = [*pilot, *range(first, first + number - len(pilot))]
        run(seeds, seeds)
    return status


def _record(
    experiment: Experiment, out: Path, seeds: Sequence[int], pilot: Sequence[int] | None, looks: Sequence[int]
) -> ComparisonRecord:
    runs: dict[str, dict[str, str]] = {}
    for job in plan(experiment, out, seeds):
        runs.setdefault(job.method, {})[str(job.seed)] = job.folder.relative_to(out).as_posix()
    return ComparisonRecord(
        name=experiment.name,
        baseline=experiment.baseline or next(iter(experiment.methods)),
        target_accuracy=experiment.target_accuracy,
        methods=list(experiment.methods),
        seeds=list(seeds),
        runs=runs,
        statistics=dict(vars(experiment.plan)),
        pilot=pilot,
        looks=list(looks) or None,
        config=experiment.model_dump(mode="json"),
    )


def check_declared(
    experiment: Experiment, stored: ComparisonRecord | None, out: Path, *, add_seeds: bool
) -> Sequence[int]:
    """Return the numbers of seeds before seeds were added, if they were; refuse what only results could have suggested.

    Before there is a result everything may be changed. Then the questions are what they were, and no seed is left out:
    to stop where a difference happens to be large, or to go on until it is, finds differences that are not there.
    Methods come or go; where some come and others go it is another comparison, whose report is not written over. One
    with the same methods has other runs, which are recognised.
    """
    if stored is None:
        return ()
    looks = tuple(stored.looks or ())
    if not any((out / place / Result.FILE).exists() for places in stored.runs.values() for place in places.values()):
        return looks
    others = {method: places for method, places in stored.runs.items() if method not in experiment.methods}
    gone = [method for method, places in others.items() if any(_has_ended_well(out / p) for p in places.values())]
    if gone and (new := [method for method in experiment.methods if method not in stored.methods]):
        raise RunFolderError(
            f"{out} has results of another comparison, with {', '.join(gone)} and without {', '.join(new)}. "
            f"Choose {ANOTHER_FOLDER}, or give this experiment a `name` of its own."
        )
    asked = vars(experiment.plan)
    changed = [key for key in asked if stored.statistics.get(key) != asked[key]]
    if changed:
        there = stored.statistics
        said = "; ".join(f"statistics.{key}: {there.get(key)!r} there, {asked[key]!r} now" for key in changed)
        raise RunFolderError(f"{out} has results, and was asked something else before. {said}. {DECLARE}")
    pilot = experiment.plan.detect_points is not None
    before, now = list(stored.pilot or []) if pilot else list(stored.seeds), list(experiment.seeds)
    if pilot and before != now:
        raise RunFolderError(f"{out} has results of a pilot with the seeds {before}; got {now}. {DECLARE}")
    if left_out := sorted({*before} - {*now}):
        raise RunFolderError(
            f"{out} has results, and {len(before)} seeds were declared; now {len(left_out)} of them would be left out. "
            f"A comparison is not ended early: name all {len(before)}, or choose {ANOTHER_FOLDER}."
        )
    if len(now) == len(before):
        return looks
    if not add_seeds:
        raise RunFolderError(
            f"{out} has results of {len(before)} seeds; now {len(now)} are asked for. Seeds added once results "
            "can be seen make p-values too small. With --detect (in Python, detect_points), in a new folder, the "
            "number follows from the spread; --add-seeds (in Python, add_seeds) adds them all the same, and the report "
            "gives no verdict then."
        )
    return (*looks, len(before))


def _has_ended_well(folder: Path) -> bool:
    result = RunFolder(folder).read(Result)
    return result is not None and result.status == "finished"


def _skip_finished(status: ComparisonStatus, base: Path) -> list[Job]:
    """Return the jobs that are to be run; note those that are finished and those whose folder cannot be used."""
    waiting = []
    status.finished, status.failed = [], {}
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
