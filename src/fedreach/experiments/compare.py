"""Many runs: methods x seeds in parallel processes, resumed where they stopped, never repeated once done."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fedreach.config.sections import Experiment
from fedreach.config.user_code import identity
from fedreach.errors import ANOTHER_FOLDER, ConfigError, RunFolderError
from fedreach.experiments.declared import check_declared, lengths_seen
from fedreach.experiments.executors.base import Executor
from fedreach.experiments.executors.local import Local
from fedreach.experiments.executors.scheduler import run_jobs
from fedreach.experiments.jobs import ComparisonCallback, ComparisonStatus, Job
from fedreach.experiments.redo import check_redone, forget_redone, set_aside, with_remedy
from fedreach.experiments.tune import Search, Tuned, tune
from fedreach.runs.folder import RunFolder
from fedreach.runs.identity import OtherExperimentError, OtherFilesError, finished
from fedreach.runs.schema import ComparisonRecord, SweepRecord


class Further(Protocol):
    """Says how many seeds a comparison has, once those of its pilot are finished."""

    def __call__(self, out: Path) -> tuple[int, str]:
        """Return the number of seeds, those of the pilot included, and why in words."""


@dataclass
class Comparison:
    """One comparison, whose folder this process has locked."""

    experiment: Experiment
    out: Path
    looks: Sequence[int] = ()
    lengths: Sequence[int] = ()
    again: Sequence[Job] = ()  # runs that were moved aside and are made again
    tuned: Tuned = field(default_factory=Tuned)

    def record(self, seeds: Sequence[int]) -> ComparisonRecord:
        """Return what is written of it."""
        experiment, runs = self.experiment, dict[str, dict[str, str]]()
        for job in plan(experiment, self.out, seeds):
            runs.setdefault(job.method, {})[str(job.seed)] = job.folder.relative_to(self.out).as_posix()
        return ComparisonRecord(
            name=experiment.name,
            baseline=experiment.baseline or next(iter(experiment.methods)),
            target_accuracy=experiment.target_accuracy,
            methods=list(experiment.methods),
            seeds=list(seeds),
            runs=runs,
            statistics=dict(vars(experiment.plan)),
            pilot=None if experiment.plan.detect_points is None else list(experiment.seeds),
            looks=list(self.looks) or None,
            lengths=list(self.lengths) or None,
            config=experiment.model_dump(mode="json"),
        )


def plan(
    experiment: Experiment, out: Path, seeds: Sequence[int] | None = None, tuned: Tuned | None = None
) -> list[Job]:
    """Return the runs of a comparison, all methods of one seed before the next seed.

    Args:
        experiment: With its methods.
        out: Folder of the comparison.
        seeds: Of the runs; None: as the experiment says.
        tuned: Which setting each method takes with each seed, where settings were chosen.
    """
    if not experiment.methods:
        raise ConfigError(
            "There is nothing to compare: the experiment has no [methods.NAME] table. Use `fedreach run`."
        )
    found = {} if tuned is None else tuned.chosen
    return [
        Job(
            method,
            seed,
            out / "runs" / method / f"seed-{seed}",
            found.get((method, seed)) or experiment.resolved(method),
            out,
        )
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
    redo: Sequence[str] = (),
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
        redo: Methods whose runs are moved aside, into ``redone/``, and made again.
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
    status, executor = ComparisonStatus([]), executor or Local()
    with ExitStack() as locks:
        stored = RunFolder(out).read(ComparisonRecord)
        one = _opened(experiment, out, locks, add_seeds=add_seeds, redo=redo)

        def run(seeds: Sequence[int], held: Sequence[int]) -> None:
            """Run what of these seeds is not finished; the comparison holds more of them if it did before."""
            run_comparisons([one], [seeds], [held], status, executor, out, base, workers, callbacks)

        if experiment.plan.detect_points is None or further is None:  # both or neither
            run(experiment.seeds, experiment.seeds)
            forget_redone(one.again, status)
            return status
        pilot = list(experiment.seeds)
        run(pilot, stored.seeds if stored is not None and stored.pilot == pilot else pilot)
        if status.failed:
            return status
        number, why = further(out)
        for callback in callbacks:
            callback.planned(why)
        first = max(pilot) + 1
        seeds = [*pilot, *range(first, first + number - len(pilot))]
        run(seeds, seeds)
        forget_redone(one.again, status)
    return status


def compare_several(
    experiments: Sequence[tuple[Experiment, Path]],
    *,
    out: Path,
    base: Path,
    workers: int | None = None,
    executor: Executor | None = None,
    callbacks: Sequence[ComparisonCallback] = (),
    add_seeds: bool = False,
    redo: Sequence[str] = (),
) -> ComparisonStatus:
    """Run several comparisons by the same workers, each as `compare` does into a folder of its own.

    Args:
        experiments: Each with the folder of its comparison.
        out: Where what the workers say is kept.

    The others are those of `compare`.
    """
    status = ComparisonStatus([])
    with ExitStack() as locks:
        opened = [_opened(each, place, locks, add_seeds=add_seeds, redo=redo) for each, place in experiments]
        seeds = [one.experiment.seeds for one in opened]
        run_comparisons(opened, seeds, seeds, status, executor or Local(), out, base, workers, callbacks)
        for one in opened:
            forget_redone(one.again, status)
    return status


def _opened(experiment: Experiment, out: Path, locks: ExitStack, *, add_seeds: bool, redo: Sequence[str]) -> Comparison:
    """Lock the folder of a comparison, and return it unless what is asked cannot be asked any more."""
    plan(experiment, out)  # nothing to compare is said before anything is written
    check_redone(experiment, redo)
    if (out / SweepRecord.FILE).exists():
        raise RunFolderError(f"{out} holds a sweep, whose comparisons lie in {out}/cells. Choose {ANOTHER_FOLDER}.")
    folder = RunFolder(out)
    locks.enter_context(folder.locked())
    stored = folder.read(ComparisonRecord)
    looks = check_declared(experiment, stored, out, add_seeds=add_seeds)
    seeds = dict.fromkeys([*experiment.seeds, *(() if stored is None else stored.seeds)])
    again = [job for job in plan(experiment, out, [*seeds]) if job.method in redo]
    for job in again:
        set_aside(job)
    return Comparison(experiment, out, looks, lengths_seen(experiment, stored, out), again)


def run_comparisons(
    opened: Sequence[Comparison],
    seeds: Sequence[Sequence[int]],
    held: Sequence[Sequence[int]],
    status: ComparisonStatus,
    executor: Executor,
    out: Path,
    base: Path,
    workers: int | None,
    callbacks: Sequence[ComparisonCallback],
) -> None:
    """Run what is not finished of comparisons whose folders are locked; choose settings first where they ask for it.

    Args:
        seeds: Of each, to be run.
        held: Of each, all that it has.
        status: Is kept up to date.
    """
    engine = opened[0].experiment.engine
    tuning = [(one, some) for one, some in zip(opened, seeds, strict=True) if one.experiment.tune is not None]
    searches = [Search.of(one.experiment, one.out, some, base) for one, some in tuning]
    for (one, _), tuned in zip(tuning, tune(searches, executor, out, base, workers, callbacks), strict=True):
        one.tuned = tuned
    status.jobs = [
        job for one, some in zip(opened, seeds, strict=True) for job in plan(one.experiment, one.out, some, one.tuned)
    ]
    waiting = _skip_finished(status, base)
    for one in opened:
        for job in [job for job in waiting if job.out == one.out and (job.method, job.seed) in one.tuned.failed]:
            waiting.remove(job)
            status.failed[job] = one.tuned.failed[job.method, job.seed]
    for one, all_seeds in zip(opened, held, strict=True):
        RunFolder(one.out).write(one.record(all_seeds))
    run_jobs(executor, engine, waiting, status, out=out, base=base, workers=workers, callbacks=callbacks)


def _skip_finished(status: ComparisonStatus, base: Path) -> list[Job]:
    """Return the jobs that are to be run; note those that are finished and those whose folder cannot be used."""
    waiting = []
    status.finished, status.failed = [], {}
    others: dict[Job, OtherFilesError] = {}
    for job in status.jobs:
        try:
            done = finished(RunFolder(job.folder), identity(job.experiment, job.seed, job.method, base))
        except OtherFilesError as error:
            others[job] = error
            continue
        except OtherExperimentError:
            raise
        except RunFolderError as error:
            status.failed[job] = str(error)
            continue
        if done is None:
            waiting.append(job)
        else:
            status.finished.append(job)
    if others:
        raise with_remedy(others)
    status.skipped = len(status.finished)
    return waiting
