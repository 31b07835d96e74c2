"""The experiments of a sweep, and tuning of options."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

from fedreach._util.errors import STEADIER, ConfigError, RunFolderError, nearest
from fedreach.evaluation.scores import ACCURACY, MainScore, main_score_of
from fedreach.experiment.components import identity
from fedreach.experiment.load import checked, folders, with_setting
from fedreach.experiment.schema import PARTS, Choice, Experiment, Setting, TuneSection, format_setting
from fedreach.experiment.workers import ComparisonStatus, Job, Resources, run_jobs
from fedreach.runs.folder import RunFolder
from fedreach.runs.identity import OtherExperimentError, OtherFilesError, finished_result
from fedreach.runs.schema import Result, RoundRow, RunRecord, TuningRecord

# -------------------- The experiments of a sweep, and the candidates of tuning


class Variant(NamedTuple):
    """An experiment with one setting."""

    setting: Setting
    experiment: Experiment


def cells(experiment: Experiment, base: Path) -> list[Variant]:
    """Return the comparison for each setting of ``[sweep]``: the experiment after ``--set`` with that setting.

    Raises:
        ConfigError: If a setting makes the experiment invalid.

    Example:
        >>> from fedreach.experiment.load import load
        >>> swept = load(None, ['sweep={"local.lr"=[0.1, 0.2]}'])
        >>> [cell.experiment.local.lr for cell in cells(swept, Path())]
        [0.1, 0.2]
    """
    plain = experiment.model_copy(update={"sweep": None})
    settings = [] if experiment.sweep is None else experiment.sweep.settings()
    return [Variant(setting, at(plain, setting, base)) for setting in settings]


def at(experiment: Experiment, setting: Setting, base: Path) -> Experiment:
    """Return an experiment with a setting.

    Raises:
        ConfigError: If the setting makes the experiment invalid.
    """
    # Unset keys stay unset, so that another `name` of a component comes without the options of the default.
    raw: dict[str, Any] = experiment.model_dump(mode="json", exclude_unset=True)
    return checked(with_setting(raw, setting), base, format_setting(setting))


def candidates(experiment: Experiment, method: str, base: Path) -> list[Variant]:
    """Return the settings of ``[tune]`` that change a method; each of these settings is tried in one run.

    Candidates are scored only on validation data, a part of the participants' training data.

    Raises:
        ConfigError: If a setting makes the experiment invalid.
    """
    if experiment.tune is None:
        return []
    plain = experiment.model_copy(update={"tune": None})
    cells_by_config: dict[str, Variant] = {}
    for setting in experiment.tune.settings():
        resolved = at(plain, setting, base).resolved(method)
        cells_by_config.setdefault(resolved.model_dump_json(), Variant(setting, resolved))
    return [*cells_by_config.values()]


def trials(tune: TuneSection, tried: Sequence[Variant]) -> list[Experiment]:
    """Return the runs that score candidates."""
    return [_trial(tune, cell.experiment) for cell in tried]


def _trial(tune: TuneSection, e: Experiment) -> Experiment:
    rounds = e.rounds if tune.rounds is None else tune.rounds
    return e.model_copy(
        update={
            "rounds": rounds,
            "target_accuracy": None,
            "population": e.population.model_copy(update={"validation": tune.validation, "refit": False}),
            "evaluation": e.evaluation.model_copy(update={"local": False}),
            "run": e.run.model_copy(update={"trackers": []}),  # they would show more trials than runs
            "method": e.method.model_copy(update={"adaptation": Choice(name=PARTS["adaptation"] or "")}),
        }
    )


# -------------------- Running a method again: old runs are moved aside, and nothing is deleted

BACKUP_FOLDER, TUNING = "rerun", "tuning"
UNDER_WAY = ".under-way"
"""Mark of a folder in `BACKUP_FOLDER`: FedReach is repeating its runs, so the comparison contains the new runs."""


def check_rerun_methods(experiment: Experiment, methods: Sequence[str]) -> None:
    """Reject methods that are not in the experiment."""
    for method in methods:
        if method not in experiment.methods:
            raise ConfigError(f"Unknown method {method!r} to rerun." + nearest(method, experiment.methods))


def set_aside(job: Job) -> None:
    """Move a run and its tuning runs into ``rerun/METHOD-N/`` of its comparison.

    Runs that are being repeated are not moved a second time, so that rerunning the command resumes an interrupted
    rerun.
    """
    place, run_folder = _backup_folder(job), job.folder
    tried = job.out / TUNING / job.method / run_folder.name
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / UNDER_WAY).touch()
        for path, aside in ((run_folder, place / run_folder.name), (tried, place / TUNING / run_folder.name)):
            if aside.exists():
                continue
            aside.parent.mkdir(exist_ok=True)
            if not path.exists():
                aside.mkdir()  # empty: later runs are new
                continue
            with RunFolder(path).locked():  # no process writes to it
                path.rename(aside)
    except OSError as error:
        raise RunFolderError(
            f"{run_folder} cannot be moved to {place}: {error.strerror}. Move the run folder to another place."
        ) from error


def with_remedy(errors: Mapping[Job, OtherFilesError]) -> OtherFilesError:
    """Return the first error of runs that used other files, with a command that repeats all of these runs."""
    methods = dict.fromkeys(job.method for job in errors)
    options = " ".join(f"--rerun {shlex.quote(method)}" for method in methods)
    first_error = next(iter(errors.values()))
    return OtherFilesError(
        f"{first_error} Or rerun the methods that depend on these files: {options} (in Python, rerun={[*methods]!r})."
    )


def finish_rerun(jobs: Sequence[Job], status: ComparisonStatus) -> None:
    """Remove the marks of repeated runs once all of them are finished, so that these runs can be moved again."""
    if not {job.folder for job in jobs} <= {job.folder for job in status.finished}:
        return
    for place in {_backup_folder(job) for job in jobs}:
        (place / UNDER_WAY).unlink(missing_ok=True)


def _backup_folder(job: Job) -> Path:
    """Return the folder that runs of a method are moved to: a new one, or the one under way."""
    number = 1
    while (place := job.out / BACKUP_FOLDER / f"{job.method}-{number}").exists() and not (place / UNDER_WAY).exists():
        number += 1
    return place


# -------------------- Choosing the best setting of each method and seed on validation data
# A run tries each candidate on the federation of that seed. A part of the participants' training data is held out, and
# all other data that scores models is removed (`fedreach.data.validation`). So reported numbers do not affect the
# choice, and seeds stay independent: each repeats everything once, including the choice.

Key = tuple[str, int]
"""Method and seed."""


@dataclass
class TunedSettings:
    """The chosen settings, and the methods and seeds for which no setting could be chosen."""

    chosen: dict[Key, Experiment] = field(default_factory=dict)
    failed: dict[Key, str] = field(default_factory=dict)


@dataclass
class Search:
    """The tuning runs of one comparison, in ``tuning/METHOD/seed-N/``.

    Args:
        experiment: Experiment with its methods and a ``[tune]`` section.
        out: Folder of the comparison.
        seeds: Seeds of the comparison.
        base: Folder that paths in the experiment are relative to.
    """

    experiment: Experiment
    out: Path
    seeds: Sequence[int]
    base: Path

    @property
    def section(self) -> TuneSection:
        """The ``[tune]`` section."""
        assert self.experiment.tune is not None  # callers check it
        return self.experiment.tune

    @cached_property
    def cells(self) -> dict[str, Sequence[Variant]]:
        """The candidates of each method."""
        return {method: candidates(self.experiment, method, self.base) for method in self.experiment.methods}

    @cached_property
    def jobs(self) -> dict[Key, list[Job]]:
        """A run for each candidate, if a method has several candidates."""
        jobs: dict[Key, list[Job]] = {}
        for seed in self.seeds:
            for method, tried in self.cells.items():
                places = folders([cell.setting for cell in tried], self.out / TUNING / method / f"seed-{seed}")
                runs = zip(places, trials(self.section, tried), tried, strict=True)
                of = [Job(method, seed, p, e, self.out, format_setting(cell.setting)) for p, e, cell in runs]
                jobs |= {(method, seed): of} if len(of) > 1 else {}
        return jobs


def skip_finished(status: ComparisonStatus, base: Path) -> list[Job]:
    """Return the jobs to run, and add finished jobs and jobs with an unusable folder to the status."""
    waiting: list[Job] = []
    status.finished, status.failed = [], {}
    files_errors: dict[Job, OtherFilesError] = {}
    for job in status.jobs:
        if job.source is not None and job.source not in status.finished:
            waiting.append(job)  # its options are not known yet
            continue
        try:
            done = finished_result(RunFolder(job.folder), identity(job.with_amounts(), job.seed, job.method, base))
        except OtherFilesError as error:
            files_errors[job] = error
        except OtherExperimentError:
            raise
        except RunFolderError as error:
            status.failed[job] = str(error)
        else:
            (waiting if done is None else status.finished).append(job)
    if files_errors:
        raise with_remedy(files_errors)
    return waiting


def tune(searches: Sequence[Search], resources: Resources) -> list[TunedSettings]:
    """Try the remaining settings, store the best settings in ``tuning.json`` of each comparison, and return them.

    A method with a single candidate uses this candidate without a trial. A candidate whose training diverges ranks
    last. If a candidate fails for another reason, or all candidates diverge, tuning fails.
    """
    if not searches:
        return []
    status = ComparisonStatus([job for search in searches for of in search.jobs.values() for job in of])
    waiting = [job for job in skip_finished(status, resources.base) if not _has_diverged(RunFolder(job.folder))]
    if status.failed:
        raise RunFolderError(next(iter(status.failed.values())))
    status.skipped = len(status.finished)
    if waiting:
        for callback in resources.callbacks:
            callback.planned(f"Tuning: {len(waiting)} runs, scored on a part of the participants' training data")
        run_jobs(searches[0].experiment.engine, waiting, status, resources)
    return [_choose_settings(search) for search in searches]


def _has_diverged(folder: RunFolder) -> bool:
    result = folder.read(Result)
    return result is not None and STEADIER in (result.error or "")


def _choose_settings(search: Search) -> TunedSettings:
    """Return the candidate that each method takes with each seed, and store the scores."""
    tuned, settings, by = TunedSettings(), search.section.settings(), ACCURACY.name
    scores: dict[str, dict[str, list[float | None]]] = {method: {} for method in search.cells}
    chosen: dict[str, dict[str, int]] = {method: {} for method in search.cells}
    for method, tried in search.cells.items():
        places = [settings.index(dict(cell.setting)) for cell in tried]
        for seed in search.seeds:
            candidate_scores = [
                _score_candidate(job, search.experiment.plan.last_rounds) for job in search.jobs.get((method, seed), ())
            ]
            if candidate_scores and (why := _explain_unusable(search.jobs[method, seed], candidate_scores)):
                tuned.failed[method, seed] = f"no setting could be chosen: {why}"
                continue
            best = min(range(len(candidate_scores)), key=lambda n: candidate_scores[n].order) if candidate_scores else 0
            by = candidate_scores[best].by if candidate_scores else by
            tuned.chosen[method, seed] = tried[best].experiment
            chosen[method][str(seed)] = places[best]
            seed_scores: list[float | None] = [None] * len(settings)
            for place, candidate_score in zip(places, candidate_scores, strict=False):
                seed_scores[place] = candidate_score.score if isfinite(candidate_score.score) else None
            scores[method][str(seed)] = seed_scores
    record = TuningRecord(
        settings=settings,
        samples=search.section.samples,
        rounds=search.experiment.rounds if search.section.rounds is None else search.section.rounds,
        validation=search.section.validation,
        score=by,
        scores=scores,
        chosen=chosen,
        runs={
            method: sum(len(search.jobs.get((method, seed), ())) for seed in search.seeds) for method in search.cells
        },
    )
    RunFolder(search.out).write(record)
    return tuned


class _CandidateScore(NamedTuple):
    """A candidate's scores on validation data: the main score over the last evaluated rounds, then the loss."""

    order: tuple[float, float]  # sort key, smaller is better; ties go to the candidate that is listed first
    score: float
    by: str = ACCURACY.name


FAILED = _CandidateScore((inf, inf), inf)


def _score_candidate(job: Job, last_rounds: int) -> _CandidateScore:
    folder = RunFolder(job.folder)
    result = folder.read(Result)
    if result is None or result.status != "finished":
        return FAILED
    rows = [row.evaluated for row in folder.records(RoundRow) if "participant_loss" in row.evaluated]
    if not rows:
        return FAILED
    by: MainScore = main_score_of(rows[-1])

    def mean(column: str) -> float:
        values = [row[column] for row in rows[-last_rounds:]]
        return inf if None in values else sum(value for value in values if value is not None) / len(values)

    score = mean(f"participant_{by.name}")
    if not isfinite(score):
        return FAILED
    return _CandidateScore((score if by.lower_is_better else -score, mean("participant_loss")), score, by.name)


def _explain_unusable(jobs: Sequence[Job], candidate_scores: Sequence[_CandidateScore]) -> str:
    """Return why the choice fails, or "" if it does not."""
    for job, candidate_score in zip(jobs, candidate_scores, strict=True):
        folder = RunFolder(job.folder)
        if not isfinite(candidate_score.score) and not _has_diverged(folder):
            result = folder.read(Result) if folder.read(RunRecord) is not None else None
            return f"{job.label}: {'the run did not finish' if result is None else result.error}"
    if all(not isfinite(candidate_score.score) for candidate_score in candidate_scores):
        return f"training diverged with all {len(candidate_scores)} settings. {STEADIER}"
    return ""
