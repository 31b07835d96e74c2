"""The experiments that a sweep is made of, and those that tuning tries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedreach._util.errors import ConfigError
from fedreach.experiment.load import check, with_setting
from fedreach.experiment.messages import listed
from fedreach.experiment.schema import PARTS, Choice, Experiment, Setting, TuneSection, in_words


class Cell(NamedTuple):
    """An experiment at a setting."""

    setting: Setting
    experiment: Experiment


def cells(experiment: Experiment, base: Path) -> list[Cell]:
    """Return the comparison at each setting of ``[sweep]``: what ``--set`` with that setting makes of the experiment.

    Raises:
        ConfigError: If an experiment cannot be like that.

    Example:
        >>> from fedreach.experiment.load import load
        >>> swept = load(None, ['sweep={"local.rate"=[0.1, 0.2]}'])
        >>> [cell.experiment.local.rate for cell in cells(swept, Path())]
        [0.1, 0.2]
    """
    plain = experiment.model_copy(update={"sweep": None})
    settings = [] if experiment.sweep is None else experiment.sweep.settings()
    return [Cell(setting, at(plain, setting, base)) for setting in settings]


def at(experiment: Experiment, setting: Setting, base: Path) -> Experiment:
    """Return an experiment with a setting.

    Raises:
        ConfigError: If it cannot be like that.
    """
    # What was not said is left open, so that another `name` of a part comes without the default's options.
    raw: dict[str, Any] = experiment.model_dump(mode="json", exclude_unset=True)
    varied, problems = check(with_setting(raw, setting), base)
    if problems or varied is None:
        raise ConfigError(listed(problems, Path(in_words(setting)), "", ()))
    return varied


def candidates(experiment: Experiment, method: str, base: Path) -> list[Cell]:
    """Return what of ``[tune]`` is tried for a method: a run each, without settings that make no difference to it.

    Of participants a part of what they train on is held out, and nobody else is looked at.

    Raises:
        ConfigError: If an experiment cannot be like that.
    """
    if experiment.tune is None:
        return []
    plain = experiment.model_copy(update={"tune": None})
    cells_by_config: dict[str, Cell] = {}
    for setting in experiment.tune.settings():
        resolved = at(plain, setting, base).resolved(method)
        cells_by_config.setdefault(resolved.model_dump_json(), Cell(setting, resolved))
    return [*cells_by_config.values()]


def trials(tune: TuneSection, tried: Sequence[Cell]) -> list[Experiment]:
    """Return the runs by which candidates are judged."""
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
            "method": e.method.model_copy(update={"serving": Choice(name=PARTS["serving"] or "")}),
        }
    )
