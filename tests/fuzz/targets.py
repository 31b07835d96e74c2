"""All targets, and the counts of a campaign over them: injected, survived, told, lost, wrong."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from pathlib import Path

from . import calls, commands, experiments, files, runs, tables
from .campaign import Counts, Target, campaign

TARGETS: list[Target] = [
    *experiments.TARGETS,
    *files.TARGETS,
    *tables.TARGETS,
    *runs.TARGETS,
    *commands.TARGETS,
    *calls.TARGETS,
]


def examples_of(target: Target, whole: int) -> int:
    """Return how many examples of so many a target has."""
    return max(1, round(whole * target.share / sum(each.share for each in TARGETS)))


def counted(examples: int) -> list[Counts]:
    """Return the counts of so many examples in all, one row a target; other examples each time."""
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):

        def fresh() -> Path:
            made = Path(folder) / str(next(numbers))
            made.mkdir()
            os.chdir(made)  # as a user would stand there; `contextlib.chdir` goes back in the end
            return made

        return campaign(TARGETS, examples, fresh)
