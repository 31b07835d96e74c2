"""Making the runs of a method again: those that are there are moved aside, and nothing is deleted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedreach.config.sections import Experiment
from fedreach.errors import ConfigError, RunFolderError, nearest
from fedreach.experiments.jobs import ComparisonStatus, Job
from fedreach.runs.folder import RunFolder

REDONE = "redone"
UNDER_WAY = ".under-way"
"""Of a folder in `REDONE`: its runs are being made again, and what is there of them now is new."""


def check_redone(experiment: Experiment, methods: Sequence[str]) -> None:
    """Refuse methods that the experiment does not have."""
    for method in methods:
        if method not in experiment.methods:
            raise ConfigError(f"There is no method {method!r} to redo." + nearest(method, experiment.methods))


def set_aside(job: Job) -> None:
    """Move a run into ``redone/METHOD-N/`` of its comparison, unless that was done before and it is being made again.

    So the same command goes on where it was interrupted.
    """
    place, there = _place(job), job.folder
    if (place / there.name).exists():
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / UNDER_WAY).touch()
        if not there.exists():
            (place / there.name).mkdir()  # empty: what is made from now on is new
            return
        with RunFolder(there).locked():  # nobody writes to it
            there.rename(place / there.name)
    except OSError as error:
        raise RunFolderError(f"{there} cannot be moved to {place}: {error.strerror}. Move it away yourself.") from error


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
