"""Comparisons and sweeps: runs of each method with each seed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fedreach._util.errors import ANOTHER_FOLDER, ConfigError, RunFolderError
from fedreach.experiment.load import folders
from fedreach.experiment.schema import Experiment
from fedreach.experiment.tune import (
    Search,
    TunedSettings,
    cells,
    check_rerun_methods,
    finish_rerun,
    set_aside,
    skip_finished,
    tune,
)
from fedreach.experiment.workers import ComparisonStatus, Job, Resources, run_jobs
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import ComparisonRecord, Result, RoundRow, SweepRecord

# -------------------- The declared questions of a comparison, and changes to them

DECLARE = f"The planned comparisons are fixed before the first result. Choose {ANOTHER_FOLDER}."


def check_declared(
    experiment: Experiment, stored: ComparisonRecord | None, out: Path, *, add_seeds: bool
) -> Sequence[int]:
    """Return the earlier numbers of seeds, if seeds were added; reject changes that results could have suggested.

    Before the first result, everything may change. After the first result, the planned comparisons are fixed, and no
    seed may be removed. Choosing the number of seeds based on results (optional stopping) finds differences that do not
    exist. You may add or remove methods. If you do both, FedReach treats the comparison as a new one and does not
    overwrite the report. If options of the same methods change, FedReach recognizes that the runs differ.
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
            f"{out} has results of another comparison, with {', '.join(dropped_methods)} and without "
            f"{', '.join(new)}. Choose {ANOTHER_FOLDER}, or give this experiment another `name`."
        )
    questions = vars(experiment.plan)
    changed = [key for key in questions if stored.statistics.get(key) != questions[key]]
    if changed:
        stored_plan = stored.statistics
        changes = "; ".join(
            f"statistics.{key}: stored {stored_plan.get(key)!r}, now {questions[key]!r}" for key in changed
        )
        raise RunFolderError(f"{out} has results of other planned comparisons. {changes}. {DECLARE}")
    pilot = experiment.plan.detect_points is not None
    before, now = list(stored.pilot or []) if pilot else list(stored.seeds), list(experiment.seeds)
    if pilot and before != now:
        raise RunFolderError(f"{out} has results of a pilot with the seeds {before}; got {now}. {DECLARE}")
    if left_out := sorted({*before} - {*now}):
        raise RunFolderError(
            f"{out} has results of a comparison with {len(before)} planned seeds; {len(left_out)} of these seeds are "
            f"missing now. Results must not decide when to stop. Use all {len(before)} seeds, or choose "
            f"{ANOTHER_FOLDER}."
        )
    if len(now) == len(before):
        return seed_counts_before
    if not add_seeds:
        raise RunFolderError(
            f"{out} has results of {len(before)} seeds; got {len(now)} seeds. Seeds that are added after the first "
            "result make p-values too small. Use --detect (in Python, detect_points) in a new folder, which chooses "
            "the number of seeds from a pilot. Or use --add-seeds (in Python, add_seeds); the report then draws no "
            "conclusion."
        )
    return (*seed_counts_before, len(before))


def has_results(stored: ComparisonRecord, out: Path) -> bool:
    """Return whether any run of a comparison has ended."""
    return any((out / place / Result.FILE).exists() for places in stored.runs.values() for place in places.values())


def rounds_seen_before(experiment: Experiment, stored: ComparisonRecord | None, out: Path) -> Sequence[int]:
    """Return the numbers of rounds at which results were visible before the runs of a comparison were extended."""
    if stored is None:
        return ()
    before, lengths = stored.config.get("rounds"), tuple(stored.lengths or ())
    begun = any((out / place / RoundRow.FILE).exists() for of in stored.runs.values() for place in of.values())
    return (*lengths, before) if begun and isinstance(before, int) and before < experiment.rounds else lengths


def _has_ended_well(folder: Path) -> bool:
    result = RunFolder(folder).read(Result)
    return result is not None and result.status == "finished"


# -------------------- Methods x seeds in parallel processes


class SeedPlanner(Protocol):
    """Planner of the number of seeds of a comparison after its pilot."""

    def __call__(self, out: Path) -> tuple[int, str]:
        """Return the number of seeds, including the seeds of the pilot, and the reason as text."""


@dataclass
class LockedComparison:
    """A comparison whose folder this process has locked."""

    experiment: Experiment
    out: Path
    looks: Sequence[int] = ()
    lengths: Sequence[int] = ()
    again: Sequence[Job] = ()  # runs that were moved aside and are made again
    seeds: Sequence[int] = ()  # to run
    recorded_seeds: Sequence[int] = ()  # of the comparison's record: those of a pilot, and those that followed before
    tuned: TunedSettings = field(default_factory=TunedSettings)

    def record(self) -> ComparisonRecord:
        """Return the record to store in the folder of the comparison."""
        experiment, seeds, runs = self.experiment, self.recorded_seeds, dict[str, dict[str, str]]()
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
    experiment: Experiment, out: Path, seeds: Sequence[int] | None = None, tuned: TunedSettings | None = None
) -> list[Job]:
    """Return the runs of a comparison, ordered by seed and then by method; a run follows the run that it depends on.

    Args:
        experiment: Experiment with its methods.
        out: Folder of the comparison.
        seeds: Seeds of the runs. Default: the seeds of the experiment.
        tuned: Chosen setting of each method with each seed, if settings were tuned.
    """
    if not experiment.methods:
        raise ConfigError("A comparison must have a [methods.NAME] table; got none. Use `fedreach run`.")
    tuned_experiments = {} if tuned is None else tuned.chosen
    jobs = dict[tuple[str, int], Job]()

    def job_of(method: str, seed: int) -> Job:
        if (method, seed) not in jobs:
            resolved = tuned_experiments.get((method, seed)) or experiment.resolved(method)
            followed = resolved.method.method_to_follow
            source = None if followed is None else job_of(followed, seed)
            place = out / "runs" / method / f"seed-{seed}"
            jobs[method, seed] = Job(method, seed, place, resolved, out, source=source)
        return jobs[method, seed]

    for seed in seeds or experiment.seeds:
        for method in experiment.methods:
            job_of(method, seed)
    return [*jobs.values()]


def compare(
    experiment: Experiment,
    *,
    out: Path,
    add_seeds: bool = False,
    rerun: Sequence[str] = (),
    further: SeedPlanner | None = None,
    **resources: Any,
) -> ComparisonStatus:
    """Run all methods with all seeds, for each setting of ``[sweep]`` if the experiment has this table.

    Args:
        experiment: Experiment with its methods.
        out: Folder of the comparison or sweep.
        add_seeds: Allow more seeds after the first result. The report then draws no conclusion.
        rerun: Methods whose runs are moved to ``rerun/`` and repeated.
        further: Planner of the number of seeds, required with `statistics.detect_points`. `experiment.seeds` are then
            the seeds of the pilot.
        **resources: Other fields of `fedreach.experiment.workers.Resources`. `base` is required.

    Returns:
        The finished and the failed runs. A failed run does not stop other runs.

    Raises:
        RunFolderError: If `out` contains another comparison, if the planned comparisons changed after the first result,
            or if another process writes to `out`. No file has been changed then.
        ConfigError: If the executor's machines cannot run the experiment, or if `statistics.detect_points` is set
            without `further`.
    """
    if experiment.plan.detect_points is not None and further is None:
        raise ConfigError(
            "statistics.detect_points requires `further`, which chooses the number of seeds from a pilot."
        )
    how = Resources(out=out, **resources)
    if experiment.sweep is not None:
        return _sweep(experiment, how, add_seeds=add_seeds, rerun=rerun)
    return compare_several([(experiment, out)], how, add_seeds=add_seeds, rerun=rerun, further=further)


def compare_several(
    experiments: Sequence[tuple[Experiment, Path]],
    resources: Resources,
    *,
    add_seeds: bool = False,
    rerun: Sequence[str] = (),
    further: SeedPlanner | None = None,
) -> ComparisonStatus:
    """Run several comparisons with the same workers, each in its own folder, as `compare` does.

    Args:
        experiments: Experiments, each with the folder of its comparison.
        resources: Executor, callbacks and other resources of the runs.
        add_seeds: As in `compare`.
        rerun: As in `compare`.
        further: As in `compare`; allowed for a single comparison only.
    """
    status = ComparisonStatus([])
    with ExitStack() as locks:
        opened = [
            _open_comparison(experiment, place, locks, add_seeds=add_seeds, rerun=rerun)
            for experiment, place in experiments
        ]
        _run(opened, status, resources)
        if further is not None and opened[0].experiment.plan.detect_points is not None and not status.failed:
            number, why = further(opened[0].out)
            for callback in resources.callbacks:
                callback.planned(why)
            pilot = list(opened[0].seeds)
            first = max(pilot) + 1
            opened[0].seeds = opened[0].recorded_seeds = [*pilot, *range(first, first + number - len(pilot))]
            _run(opened, status, resources)
        for comparison in opened:
            finish_rerun(comparison.again, status)
    return status


def _open_comparison(
    experiment: Experiment, out: Path, locks: ExitStack, *, add_seeds: bool, rerun: Sequence[str]
) -> LockedComparison:
    """Lock the folder of a comparison and return the comparison, or reject changes of its questions."""
    plan(experiment, out)  # reject an experiment without methods before anything is written
    check_rerun_methods(experiment, rerun)
    if (out / SweepRecord.FILE).exists():
        raise RunFolderError(f"{out} contains a sweep, whose comparisons are in {out}/cells. Choose {ANOTHER_FOLDER}.")
    folder = RunFolder(out)
    locks.enter_context(folder.locked())
    stored = folder.read(ComparisonRecord)
    seed_counts_before = check_declared(experiment, stored, out, add_seeds=add_seeds)
    seeds = dict.fromkeys([*experiment.seeds, *(() if stored is None else stored.seeds)])
    moved_jobs = [job for job in plan(experiment, out, [*seeds]) if job.method in rerun]
    for job in moved_jobs:
        set_aside(job)
    same_pilot = stored is not None and stored.pilot == list(experiment.seeds)
    return LockedComparison(
        experiment,
        out,
        seed_counts_before,
        rounds_seen_before(experiment, stored, out),
        moved_jobs,
        experiment.seeds,
        stored.seeds if stored is not None and same_pilot else experiment.seeds,
    )


def _run(opened: Sequence[LockedComparison], status: ComparisonStatus, resources: Resources) -> None:
    """Run the unfinished runs of comparisons whose folders are locked; tune settings first where requested."""
    base, tuning = resources.base, [comparison for comparison in opened if comparison.experiment.tune is not None]
    searches = [Search(comparison.experiment, comparison.out, comparison.seeds, base) for comparison in tuning]
    for comparison, tuned in zip(tuning, tune(searches, resources), strict=True):
        comparison.tuned = tuned
    status.jobs = [job for c in opened for job in plan(c.experiment, c.out, c.seeds, c.tuned)]
    waiting = skip_finished(status, base)
    status.skipped = len(status.finished)
    for comparison in opened:
        RunFolder(comparison.out).write(comparison.record())
        unusable = comparison.tuned.failed
        for job in [job for job in waiting if job.out == comparison.out and (job.method, job.seed) in unusable]:
            waiting.remove(job)
            status.failed[job] = unusable[job.method, job.seed]
    run_jobs(opened[0].experiment.engine, waiting, status, resources)


# -------------------- Sweeps: a comparison at each setting

FOLDER = "cells"


def _sweep(experiment: Experiment, resources: Resources, *, add_seeds: bool, rerun: Sequence[str]) -> ComparisonStatus:
    """Compare at each setting of the experiment's ``[sweep]``; the same call resumes, and settings may be added.

    Each setting is a comparison in its own folder, ``cells/SETTING``. `compare` writes the same bytes for the
    experiment with that setting.
    """
    assert experiment.sweep is not None  # `compare` checks it
    out, sweep_cells = resources.out, cells(experiment, resources.base)
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
            raise RunFolderError(
                f"{out} contains {what}; got a sweep over {', '.join(record.keys)}. Choose {ANOTHER_FOLDER}."
            )
        folder.write(record)
        experiments = [(cell.experiment, out / place) for cell, place in zip(sweep_cells, places, strict=True)]
        return compare_several(experiments, resources, add_seeds=add_seeds, rerun=rerun)
