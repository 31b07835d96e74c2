"""Choosing settings: each method, with each seed, is given those that serve it best on its participants' own data.

A run tries each candidate on the federation of that seed, in which a part of what participants train on is held out,
and from which all else that models are scored on is gone (`fedreach.data.validation`). So no number that is reported
had a say, and nothing passes from one seed to another: a seed is all of it once, the choice included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path

from fedreach.config.cells import Cell, candidates, trials
from fedreach.config.grid import in_words
from fedreach.config.sections import Experiment
from fedreach.config.sweep import folders
from fedreach.config.user_code import identity
from fedreach.evidence.scores import MainScore, main_score_of
from fedreach.experiments.executors.base import Executor
from fedreach.experiments.executors.scheduler import run_jobs
from fedreach.experiments.jobs import ComparisonCallback, ComparisonStatus, Job
from fedreach.runs.folder import RunFolder
from fedreach.runs.identity import finished
from fedreach.runs.recorder import DIVERGED
from fedreach.runs.schema import Result, RoundRow, RunRecord, TuningRecord

Key = tuple[str, int]
"""Method and seed."""
FOLDER = "tuning"


@dataclass
class Tuned:
    """What was chosen, and for whom nothing could be."""

    chosen: dict[Key, Experiment] = field(default_factory=dict)
    failed: dict[Key, str] = field(default_factory=dict)


def tune(
    experiment: Experiment,
    out: Path,
    seeds: Sequence[int],
    executor: Executor,
    base: Path,
    workers: int | None,
    callbacks: Sequence[ComparisonCallback],
) -> Tuned:
    """Try what of ``[tune]`` is not tried yet, note what is best in ``tuning.json``, and return the chosen experiments.

    A method with one candidate only is given it, and nothing is tried. A candidate with which training diverges is the
    worst there is; if it fails in another way, or all diverge, nothing can be chosen.

    Args:
        experiment: With its methods.
        out: Folder of the comparison; the runs lie in ``tuning/METHOD/seed-N/``.
        seeds: Of the comparison.

    The others are those of `fedreach.experiments.compare.compare`.
    """
    section = experiment.tune
    assert section is not None  # who asks knows
    cells = {method: candidates(experiment, method, base) for method in experiment.methods}
    jobs: dict[Key, list[Job]] = {}
    for seed in seeds:
        for method, tried in cells.items():
            if len(tried) > 1:
                places = folders([cell.setting for cell in tried], out / FOLDER / method / f"seed-{seed}")
                jobs[method, seed] = [
                    Job(method, seed, place, trial, out, in_words(cell.setting))
                    for place, trial, cell in zip(places, trials(section, tried), tried, strict=True)
                ]
    status = ComparisonStatus([job for some in jobs.values() for job in some])
    waiting = [job for job in status.jobs if not _is_over(job, status, base)]
    status.skipped = len(status.finished)
    if waiting:
        for callback in callbacks:
            callback.planned(f"Tuning: {len(waiting)} runs, scored on a part of what participants train on")
    run_jobs(
        executor, experiment.engine, waiting, status, out=out, base=base, workers=workers, callbacks=callbacks
    )  # fmt: skip
    return _chosen(experiment, out, seeds, cells, jobs)


def _is_over(job: Job, status: ComparisonStatus, base: Path) -> bool:
    """Say whether a candidate needs no run any more: it was run to the end, or diverges."""
    folder = RunFolder(job.folder)
    done = finished(folder, identity(job.experiment, job.seed, job.method, base))
    if done is not None:
        status.finished.append(job)
    return done is not None or _diverged(folder)


def _diverged(folder: RunFolder) -> bool:
    result = folder.read(Result)
    return result is not None and (result.error or "").startswith(DIVERGED)


def _chosen(
    experiment: Experiment,
    out: Path,
    seeds: Sequence[int],
    cells: Mapping[str, Sequence[Cell]],
    jobs: Mapping[Key, Sequence[Job]],
) -> Tuned:
    section, tuned = experiment.tune, Tuned()
    assert section is not None
    scores: dict[str, dict[str, list[float | None]]] = {}
    chosen: dict[str, dict[str, int]] = {}
    settings = section.settings()
    name = "accuracy"
    for method, tried in cells.items():
        for seed in seeds:
            found: list[float | None] = [None] * len(settings)
            best = 0
            if (method, seed) in jobs:
                judged = [_judged(job, experiment.plan.last_rounds) for job in jobs[method, seed]]
                if why := _unusable(jobs[method, seed], judged):
                    tuned.failed[method, seed] = f"nothing could be chosen for it: {why}"
                    continue
                best = min(range(len(judged)), key=lambda place: judged[place].order)  # noqa: B023 (called at once)
                name = judged[best].by
                for cell, each in zip(tried, judged, strict=True):
                    found[settings.index(dict(cell.setting))] = each.score if isfinite(each.score) else None
            tuned.chosen[method, seed] = tried[best].experiment
            scores.setdefault(method, {})[str(seed)] = found
            chosen.setdefault(method, {})[str(seed)] = settings.index(dict(tried[best].setting))
    record = TuningRecord(
        settings=settings,
        samples=section.samples,
        rounds=experiment.rounds if section.rounds is None else section.rounds,
        validation=section.validation,
        score=name,
        scores=scores,
        chosen=chosen,
        runs={method: sum(len(jobs.get((method, seed), ())) for seed in seeds) for method in cells},
    )
    RunFolder(out).write(record)
    return tuned


@dataclass(frozen=True)
class _Judged:
    """How good a candidate is on validation data: the main score over the last evaluated rounds, then the loss."""

    score: float
    loss: float
    by: str = "accuracy"
    lower_is_better: bool = False

    @property
    def order(self) -> tuple[float, float]:
        """The less, the better; where all is the same, the candidate that was named first is taken."""
        if not isfinite(self.score):
            return inf, inf
        return (self.score if self.lower_is_better else -self.score), self.loss


def _judged(job: Job, last_rounds: int) -> _Judged:
    folder = RunFolder(job.folder)
    result = folder.read(Result)
    if result is None or result.status != "finished":
        return _Judged(inf, inf)
    rows = [row.evaluated for row in folder.records(RoundRow) if "id_loss" in row.evaluated]
    if not rows:
        return _Judged(inf, inf)
    by: MainScore = main_score_of(rows[-1])
    rows = rows[-last_rounds:]

    def mean(column: str) -> float:
        values = [row[column] for row in rows]
        return inf if None in values else sum(value for value in values if value is not None) / len(values)

    return _Judged(mean(f"id_{by.name}"), mean("id_loss"), by.name, by.lower_is_better)


def _unusable(jobs: Sequence[Job], judged: Sequence[_Judged]) -> str:
    """Say why nothing can be chosen; empty where something can."""
    for job, each in zip(jobs, judged, strict=True):
        folder = RunFolder(job.folder)
        if not isfinite(each.score) and not _diverged(folder):
            result = folder.read(Result) if folder.read(RunRecord) is not None else None
            return f"{job.label}: {'it did not finish' if result is None else result.error}"
    if all(not isfinite(each.score) for each in judged):
        return f"training diverged with all {len(judged)} settings. Lower local.rate"
    return ""
