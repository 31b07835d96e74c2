"""Who else is told of a run: made from what an experiment says, or from names that stand in its place."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedreach.config import parts
from fedreach.config.messages import listed
from fedreach.config.options import check_choice
from fedreach.config.paths import seen_from
from fedreach.config.sections import Choice, Experiment
from fedreach.errors import ConfigError

KEY = ("run", "trackers")


def trackers_of(experiment: Experiment, base: Path) -> list[tuple[str, Any]]:
    """Return the trackers of an experiment, each with its name there.

    Raises:
        ConfigError: If there is no such tracker, or its package is not installed.
    """
    return [(choice.name, parts.make("tracker", choice, base)) for choice in experiment.run.trackers]


def with_trackers(experiment: Experiment, names: Sequence[str], base: Path) -> Experiment:
    """Return an experiment with these trackers, which are checked, in place of its own; without names, its own are.

    Raises:
        ConfigError: If one cannot be had.
    """
    choices = [Choice(name=seen_from(base, KEY, name)) for name in names] or experiment.run.trackers
    problems = [
        problem
        for i, choice in enumerate(choices)
        for problem in check_choice("tracker", (*KEY, i), choice.model_dump(), base)
    ]
    if problems:
        raise ConfigError(listed(problems, Path("--track" if names else "run.json"), "", ()))
    return experiment.model_copy(update={"run": experiment.run.model_copy(update={"trackers": choices})})
