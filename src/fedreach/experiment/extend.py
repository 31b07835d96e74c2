"""Extend finished runs to more rounds; the results are identical to runs of that length, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydantic

from fedreach._util.errors import ANOTHER_FOLDER, ConfigError, RunFolderError
from fedreach._util.files import below
from fedreach.experiment import components
from fedreach.experiment.compare import compare
from fedreach.experiment.components import identity, locate_user_errors
from fedreach.experiment.options import with_trackers
from fedreach.experiment.run import run
from fedreach.experiment.schema import Experiment
from fedreach.experiment.tune import finish_rerun, set_aside
from fedreach.experiment.workers import ComparisonStatus, Job
from fedreach.federation.round import refers_to_length
from fedreach.runs.callbacks import Callback
from fedreach.runs.folder import ADAPTATION_FILE, LAST, REFIT, RunFolder
from fedreach.runs.identity import finished_result, run_of
from fedreach.runs.schema import CHECKPOINT, AdaptationRecord, AdaptedLine, ComparisonRecord, Result, RunRecord

LAST_ROUND_REPLACED_BEST = (
    "the additional evaluation in its last round found the best model, and the best model before that is not stored"
)
ON_FLOWER = "client_statistics.json"  # client statistics of a Flower run, which the simulator cannot reproduce


def extend_run(
    path: Path,
    rounds: int,
    *,
    base: Path,
    callbacks: Sequence[Callback] = (),
    threads: int | None = None,
    trackers: Sequence[str] = (),
) -> Result:
    """Extend a run to a number of rounds and return its result.

    Except for timing, the folder is then identical to the folder of a single run of this length. Repeat an interrupted
    call to resume it.

    Args:
        path: The run folder.
        rounds: Total number of rounds.
        base: Folder that paths in the experiment are relative to: the folder of its TOML file.
        callbacks: Callbacks that follow the progress.
        threads: As in `fedreach.experiment.run.run`.
        trackers: Names of trackers that replace the trackers of the run. Default: the trackers of the run.

    Raises:
        RunFolderError: If the folder is not a run folder, or if the run cannot be extended. The message states the
            reason.
    """
    folder = RunFolder(path)
    experiment = with_trackers(_experiment(run_of(folder).config, path), trackers, base)
    stored = _prepare_runs([path], rounds, base)[path]
    experiment = experiment.model_copy(update={"rounds": rounds})
    result = run(
        experiment, seed=stored.seed, folder=path, base=base, method=stored.method, threads=threads,
        callbacks=callbacks,
    )  # fmt: skip
    assert result is not None  # runs without ranks return a result
    return result


def extend_comparison(
    out: Path, rounds: int, *, base: Path, restart: bool = False, trackers: Sequence[str] = (), **resources: Any
) -> ComparisonStatus:
    """Extend all runs of a comparison to a number of rounds, as `extend_run` does for one run.

    Args:
        out: The comparison's folder.
        rounds: Total number of rounds.
        base: Folder that paths in the experiment are relative to.
        restart: Move runs that cannot be extended to a backup folder (see `set_aside`), and repeat them with this
            length.
        trackers: As in `extend_run`.
        **resources: The other fields of `fedreach.experiment.workers.Resources`.

    Raises:
        RunFolderError: If a run cannot be extended and `restart` is false. No file has been changed then.
        ConfigError: If the number of seeds was chosen from the results of a pilot.
    """
    record = RunFolder(out).required(ComparisonRecord)
    experiment = with_trackers(_experiment(record.config, out), trackers, base)
    if experiment.plan.detect_points is not None:
        raise ConfigError(
            f"The number of seeds of {out} was chosen from its pilot after {experiment.rounds} rounds, and may differ "
            f"after {rounds} rounds. Compare with rounds = {rounds} in {ANOTHER_FOLDER}."
        )
    _check_longer(experiment.rounds, rounds, out)
    if experiment.tune is not None and experiment.tune.rounds is None and rounds > experiment.rounds:
        raise ConfigError(
            f"{out} was tuned after {experiment.rounds} rounds, because [tune] does not set `rounds`. After {rounds} "
            f"rounds, other settings may be the best. Compare with rounds = {rounds} in {ANOTHER_FOLDER}."
        )
    experiment = experiment.model_copy(update={"rounds": rounds})
    runs = {below(out, place): (method, int(seed)) for method, of in record.runs.items() for seed, place in of.items()}
    with RunFolder(out).locked():
        existing = [path for path in runs if (path / RunRecord.FILE).exists()]
        refused = _prepare_runs(existing, rounds, base, restart=restart)
        moved_jobs = [Job(*runs[path], path, experiment, out) for path in (refused if restart else ())]
        for job in moved_jobs:
            set_aside(job)
    status = compare(experiment, out=out, base=base, **resources)
    finish_rerun(moved_jobs, status)
    return status


def _prepare_runs(paths: Sequence[Path], rounds: int, base: Path, *, restart: bool = False) -> dict[Path, RunRecord]:
    """Turn finished runs into unfinished runs with more rounds.

    Returns the records of the runs, or with `restart` of those that cannot be extended.

    All runs are checked before any is changed. A run that is interrupted here can still be extended.

    Raises:
        RunFolderError: If a run cannot be extended and `restart` is false.
    """
    stored = {path: RunFolder(path).required(RunRecord) for path in paths}
    reasons = {
        path: why for path, record in stored.items() if (why := reason_not_extendable(path, record, rounds, base))
    }
    if reasons and not restart:
        several = len(paths) > 1
        message = "\n  ".join(f"{path}: {why}." for path, why in reasons.items())
        how = f"To rerun it with {rounds} rounds: `fedreach run {paths[0]}/run.json --set rounds={rounds} --out OTHER`."
        if several:
            how = "Use --restart to rerun these runs with {rounds} rounds and to extend all other runs."
            message = f"{len(reasons)} of {len(paths)} runs cannot be extended.\n  {message}\n"
        raise RunFolderError(f"{message} {how}")
    for path in stored:
        if path not in reasons:
            _reopen(path, stored[path], rounds)
    return {path: stored[path] for path in (reasons if restart else stored)}


def reason_not_extendable(path: Path, stored: RunRecord, rounds: int, base: Path) -> str:
    """Return why a run cannot be extended to a number of rounds, or "" if it can.

    Raises:
        RunFolderError: If the user's files have changed since the run, if the run was altered, or if it is already
            longer.
    """
    folder, experiment = RunFolder(path), _experiment(stored.config, path)
    before = experiment.rounds
    _check_longer(before, rounds, path)
    result = finished_result(folder, identity(experiment, stored.seed, stored.method, base))
    if before == rounds:
        return ""
    if (path / ON_FLOWER).exists():
        return "it was run on Flower, and its clients' data are not on this machine"
    with locate_user_errors(experiment, base):
        federation = components.federation(experiment, stored.seed, base)
    if why := next(filter(None, (refers_to_length(federation, n, m) for n, m in _pairs(before, rounds))), ""):
        return why
    if not folder.plain(CHECKPOINT).exists():
        return ""  # it has not begun
    record = folder.stored_record(CHECKPOINT)
    done, every = record["round"], experiment.evaluation.every
    if result is not None and done < before:
        limit = "a budget" if experiment.limits else "early stopping (evaluation.patience)"
        return f"{limit} ended it after round {done} of {before}, where a longer run would end, too"
    if record["gone"]:
        return f"it deleted what clients store between rounds ({', '.join(record['gone'])}) when it finished"
    if done >= before and done % every and record["best_round"] == done:
        return f"{LAST_ROUND_REPLACED_BEST}; evaluation.every = {every} does not divide {done}"
    return ""


def _pairs(before: int, rounds: int) -> tuple[tuple[int, int], ...]:
    return (before, before + 1), (rounds, rounds + 1), (before, rounds)


def _check_longer(before: int, rounds: int, path: Path) -> None:
    if rounds < before:
        raise RunFolderError(f"--rounds must be at least {before}, the number of rounds of {path}; got {rounds}.")


def _reopen(path: Path, stored: RunRecord, rounds: int) -> None:
    """Turn a run into an unfinished run with more rounds; after each step the run can still be extended."""
    if stored.config["rounds"] == rounds:
        return
    folder = RunFolder(path)
    with folder.locked():
        folder.remove(Result.FILE)
        folder.remove(AdaptationRecord.FILE, AdaptedLine.FILE, ADAPTATION_FILE, LAST, REFIT)
        folder.write(replace(stored, config={**stored.config, "rounds": rounds}))


def _experiment(config: Mapping[str, object], path: Path) -> Experiment:
    try:
        return Experiment.model_validate(config)
    except pydantic.ValidationError as error:
        raise RunFolderError(
            f"{path} must be a run of an experiment file or of fedreach.compare to be extended; got "
            f"{error.error_count()} options that are not in such files."
        ) from None
