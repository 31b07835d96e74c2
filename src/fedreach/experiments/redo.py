"""Making the runs of a method again: those that are there are moved aside, and nothing is deleted."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedreach.config.sections import Experiment
from fedreach.errors import ConfigError, RunFolderError, nearest
from fedreach.experiments.jobs import ComparisonStatus, Job
from fedreach.runs.folder import RunFolder
from fedreach.runs.identity import OtherFilesError

REDONE, TUNING = "redone", "tuning"
UNDER_WAY = ".under-way"
"""Of a folder in `REDONE`: its runs are being made again, and what is there of them now is new."""


def check_redone(experiment: Experiment, methods: Sequence[str]) -> None:
    """Refuse methods that the experiment does not have."""
    for method in methods:
        if method not in experiment.methods:
            raise ConfigError(f"There is no method {method!r} to redo." + nearest(method, experiment.methods))


def set_aside(job: Job) -> None:
    """Move a run, and what its setting was chosen by, into ``redone/METHOD-N/`` of its comparison.

    That is done once, and not to what is being made again.

    So the same command goes on where it was interrupted.
    """
    place, there = _place(job), job.folder
    tried = job.out / TUNING / job.method / there.name
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / UNDER_WAY).touch()
        for path, aside in ((there, place / there.name), (tried, place / TUNING / there.name)):
            if aside.exists():
                continue
            aside.parent.mkdir(exist_ok=True)
            if not path.exists():
                aside.mkdir()  # empty: what is made from now on is new
                continue
            with RunFolder(path).locked():  # nobody writes to it
                path.rename(aside)
    except OSError as error:
        raise RunFolderError(f"{there} cannot be moved to {place}: {error.strerror}. Move it away yourself.") from error


def with_remedy(others: Mapping[Job, OtherFilesError]) -> OtherFilesError:
    """Return what to say of runs that were made with other files: the first refusal, and what would make all anew."""
    methods = dict.fromkeys(job.method for job in others)
    redo = " ".join(f"--redo {shlex.quote(method)}" for method in methods)
    said = next(iter(others.values()))
    return OtherFilesError(f"{said} Or have what depends on it made again: {redo} (in Python, redo={[*methods]!r}).")


def forget_redone(jobs: Sequence[Job], status: ComparisonStatus) -> None:
    """Note that runs were made again, once all of them are: the next time they are moved aside anew."""
    if not {job.folder for job in jobs} <= {job.folder for job in status.finished}:
        return
    for place in {_place(job) for job in jobs}:
        (place / UNDER_WAY).unlink(missing_ok=True)


def _place(job: Job) -> Path:
    """Return where runs of a method are moved: a new folder, or the one that is under way."""
    number = 1
    while (place := job.out / REDONE / f"{job.method}-{number}").exists() and not (place / UNDER_WAY).exists():
        number += 1
    return place
