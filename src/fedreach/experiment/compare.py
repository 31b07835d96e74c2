"""Comparisons and sweeps: methods by seeds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fedreach._util.errors import ANOTHER_FOLDER, ConfigError, RunFolderError, nearest
from fedreach.experiment.cells import cells
from fedreach.experiment.components import identity
from fedreach.experiment.load import folders
from fedreach.experiment.schema import Experiment
from fedreach.experiment.tune import Search, Tuned, check_redone, forget_redone, set_aside, tune, with_remedy
from fedreach.experiment.workers import ComparisonCallback, ComparisonStatus, Executor, Job, Local, run_jobs
from fedreach.runs.folder import RunFolder
from fedreach.runs.identity import OtherExperimentError, OtherFilesError, finished
from fedreach.runs.schema import ComparisonRecord, Result, RoundRow, SweepRecord

# -------------------- What a comparison was asked before its results could be seen, and what may still be changed then

DECLARE = f"What is asked is said before results can be seen: choose {ANOTHER_FOLDER}."


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
    seed_counts_before = tuple(stored.looks or ())
    if not has_results(stored, out):
        return seed_counts_before
    dropped_runs = {method: places for method, places in stored.runs.items() if method not in experiment.methods}
    dropped_methods = [
        method for method, places in dropped_runs.items() if any(_has_ended_well(out / p) for p in places.values())
    ]
    if dropped_methods and (new := [method for method in experiment.methods if method not in stored.methods]):
        raise RunFolderError(
            f"{out} has results of another comparison, with {', '.join(dropped_methods)} and without {', '.join(new)}. "
            f"Choose {ANOTHER_FOLDER}, or give this experiment a `name` of its own."
        )
    questions = vars(experiment.plan)
    changed = [key for key in questions if stored.statistics.get(key) != questions[key]]
    if changed:
        stored_plan = stored.statistics
        changes = "; ".join(
            f"statistics.{key}: {stored_plan.get(key)!r} there, {questions[key]!r} now" for key in changed
        )
        raise RunFolderError(f"{out} has results, and was asked something else before. {changes}. {DECLARE}")
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
        return seed_counts_before
    if not add_seeds:
        raise RunFolderError(
            f"{out} has results of {len(before)} seeds; now {len(now)} are asked for. Seeds added once results "
            "can be seen make p-values too small. With --detect (in Python, detect_points), in a new folder, the "
            "number follows from the spread; --add-seeds (in Python, add_seeds) adds them all the same, and the report "
            "gives no verdict then."
        )
    return (*seed_counts_before, len(before))


def has_results(stored: ComparisonRecord, out: Path) -> bool:
    """Say whether a run of a comparison has ended."""
    return any((out / place / Result.FILE).exists() for places in stored.runs.values() for place in places.values())


def lengths_seen(experiment: Experiment, stored: ComparisonRecord | None, out: Path) -> Sequence[int]:
    """Return after how many rounds results could be seen before the runs of a comparison were made longer."""
    if stored is None:
        return ()
    before, lengths = stored.config.get("rounds"), tuple(stored.lengths or ())
    begun = any((out / place / RoundRow.FILE).exists() for of in stored.runs.values() for place in of.values())
    return (*lengths, before) if begun and isinstance(before, int) and before < experiment.rounds else lengths


def _has_ended_well(folder: Path) -> bool:
    result = RunFolder(folder).read(Result)
    return result is not None and result.status == "finished"


# -------------------- Where the runs of a comparison are computed: processes of this machine, or of a Ray cluster

NAMES = ("local", "ray")


def chosen(name: str, address: str | None = None) -> Executor:
    """Return an executor by name.

    The address is that of a Ray cluster; None starts one on this machine.

    Raises:
        ConfigError: If there is no such executor, the address is not for it, or Ray is not installed.

    Example:
        >>> chosen("local")
        Local(tries=1)
    """
    from fedreach.experiment.ray import OnRay
    from fedreach.experiment.workers import Local

    if name not in NAMES:
        raise ConfigError(f"There is no executor {name!r}.{nearest(name, NAMES)}")
    if name == "ray":
        return OnRay(address)
    if address is not None:
        raise ConfigError(f"--address is that of a Ray cluster; got {address!r} without Ray. Add --executor ray.")
    return Local()


# --- Many runs: methods x seeds in parallel processes, resumed where they stopped, never repeated once done


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
    tuned_experiments = {} if tuned is None else tuned.chosen
    return [
        Job(
            method,
            seed,
            out / "runs" / method / f"seed-{seed}",
            tuned_experiments.get((method, seed)) or experiment.resolved(method),
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
        comparison = _open_comparison(experiment, out, locks, add_seeds=add_seeds, redo=redo)

        def run(seeds: Sequence[int], recorded_seeds: Sequence[int]) -> None:
            """Run what of these seeds is not finished; the comparison holds more of them if it did before."""
            run_comparisons([comparison], [seeds], [recorded_seeds], status, executor, out, base, workers, callbacks)

        if experiment.plan.detect_points is None or further is None:  # both or neither
            run(experiment.seeds, experiment.seeds)
            forget_redone(comparison.again, status)
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
        forget_redone(comparison.again, status)
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
        opened = [
            _open_comparison(experiment, place, locks, add_seeds=add_seeds, redo=redo)
            for experiment, place in experiments
        ]
        seeds = [comparison.experiment.seeds for comparison in opened]
        run_comparisons(opened, seeds, seeds, status, executor or Local(), out, base, workers, callbacks)
        for comparison in opened:
            forget_redone(comparison.again, status)
    return status


def _open_comparison(
    experiment: Experiment, out: Path, locks: ExitStack, *, add_seeds: bool, redo: Sequence[str]
) -> Comparison:
    """Lock the folder of a comparison, and return it unless what is asked cannot be asked any more."""
    plan(experiment, out)  # nothing to compare is said before anything is written
    check_redone(experiment, redo)
    if (out / SweepRecord.FILE).exists():
        raise RunFolderError(f"{out} holds a sweep, whose comparisons lie in {out}/cells. Choose {ANOTHER_FOLDER}.")
    folder = RunFolder(out)
    locks.enter_context(folder.locked())
    stored = folder.read(ComparisonRecord)
    seed_counts_before = check_declared(experiment, stored, out, add_seeds=add_seeds)
    seeds = dict.fromkeys([*experiment.seeds, *(() if stored is None else stored.seeds)])
    moved_jobs = [job for job in plan(experiment, out, [*seeds]) if job.method in redo]
    for job in moved_jobs:
        set_aside(job)
    return Comparison(experiment, out, seed_counts_before, lengths_seen(experiment, stored, out), moved_jobs)


def run_comparisons(
    opened: Sequence[Comparison],
    seeds: Sequence[Sequence[int]],
    recorded_seeds: Sequence[Sequence[int]],
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
    tuning = [
        (comparison, run_seeds)
        for comparison, run_seeds in zip(opened, seeds, strict=True)
        if comparison.experiment.tune is not None
    ]
    searches = [Search.of(comparison.experiment, comparison.out, run_seeds, base) for comparison, run_seeds in tuning]
    for (comparison, _), tuned in zip(tuning, tune(searches, executor, out, base, workers, callbacks), strict=True):
        comparison.tuned = tuned
    status.jobs = [
        job
        for comparison, run_seeds in zip(opened, seeds, strict=True)
        for job in plan(comparison.experiment, comparison.out, run_seeds, comparison.tuned)
    ]
    waiting = _skip_finished(status, base)
    for comparison in opened:
        for job in [
            job for job in waiting if job.out == comparison.out and (job.method, job.seed) in comparison.tuned.failed
        ]:
            waiting.remove(job)
            status.failed[job] = comparison.tuned.failed[job.method, job.seed]
    for comparison, all_seeds in zip(opened, recorded_seeds, strict=True):
        RunFolder(comparison.out).write(comparison.record(all_seeds))
    run_jobs(executor, engine, waiting, status, out=out, base=base, workers=workers, callbacks=callbacks)


def _skip_finished(status: ComparisonStatus, base: Path) -> list[Job]:
    """Return the jobs that are to be run; note those that are finished and those whose folder cannot be used."""
    waiting = []
    status.finished, status.failed = [], {}
    files_errors: dict[Job, OtherFilesError] = {}
    for job in status.jobs:
        try:
            done = finished(RunFolder(job.folder), identity(job.experiment, job.seed, job.method, base))
        except OtherFilesError as error:
            files_errors[job] = error
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
    if files_errors:
        raise with_remedy(files_errors)
    status.skipped = len(status.finished)
    return waiting


# -------------------- A comparison at each setting of ``[sweep]``, all of them by the same workers

FOLDER = "cells"


def sweep(
    experiment: Experiment,
    *,
    out: Path,
    base: Path,
    workers: int | None = None,
    executor: Executor | None = None,
    callbacks: Sequence[ComparisonCallback] = (),
    add_seeds: bool = False,
    redo: Sequence[str] = (),
) -> ComparisonStatus:
    """Compare at each setting of the experiment's ``[sweep]``; the same call goes on, and settings may be added.

    Each setting is a comparison in a folder of its own, ``cells/SETTING``, byte for byte the one that `compare` makes
    of the experiment with that setting.

    Args:
        experiment: With methods and settings.
        out: Folder of the sweep.

    The others, and what is returned and raised, are those of `fedreach.experiment.compare.compare`.
    """
    if experiment.sweep is None:
        raise ConfigError("There is nothing to sweep: the experiment has no [sweep] table.")
    sweep_cells = cells(experiment, base)
    places = folders([cell.setting for cell in sweep_cells], Path(FOLDER))
    record = SweepRecord(
        name=experiment.name,
        keys=list(experiment.sweep.values),
        settings=[dict(cell.setting) for cell in sweep_cells],
        cells=[place.as_posix() for place in places],
        samples=experiment.sweep.samples,
        config=experiment.model_dump(mode="json"),
    )
    folder = RunFolder(out)
    with folder.locked():
        stored = folder.read(SweepRecord)
        if (out / ComparisonRecord.FILE).exists() or (stored is not None and [*stored.keys] != record.keys):
            what = "one comparison" if stored is None else f"a sweep over {', '.join(stored.keys)}"
            raise RunFolderError(f"{out} holds {what}; now {', '.join(record.keys)} is swept. Choose {ANOTHER_FOLDER}.")
        folder.write(record)
        return compare_several(
            [(cell.experiment, out / place) for cell, place in zip(sweep_cells, places, strict=True)],
            out=out,
            base=base,
            workers=workers,
            executor=executor,
            callbacks=callbacks,
            add_seeds=add_seeds,
            redo=redo,
        )
