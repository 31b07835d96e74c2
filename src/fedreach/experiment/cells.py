"""The experiments of a sweep, and the candidates of tuning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedreach.experiment.load import checked, with_setting
from fedreach.experiment.schema import PARTS, Choice, Experiment, Setting, TuneSection, format_setting


class Cell(NamedTuple):
    """An experiment at a setting."""

    setting: Setting
    experiment: Experiment


def cells(experiment: Experiment, base: Path) -> list[Cell]:
    """Return the comparison at each setting of ``[sweep]``: the experiment after ``--set`` with that setting.

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
    return [Cell(setting, at(plain, setting, base)) for setting in settings]


def at(experiment: Experiment, setting: Setting, base: Path) -> Experiment:
    """Return an experiment with a setting.

    Raises:
        ConfigError: If the setting makes the experiment invalid.
    """
    # Unset keys stay unset, so that another `name` of a component comes without the options of the default.
    raw: dict[str, Any] = experiment.model_dump(mode="json", exclude_unset=True)
    return checked(with_setting(raw, setting), base, format_setting(setting))


def candidates(experiment: Experiment, method: str, base: Path) -> list[Cell]:
    """Return the settings of ``[tune]`` to try for a method, one run each, without settings that do not change it.

    Candidates are scored only on validation data, a part of the participants' training data.

    Raises:
        ConfigError: If a setting makes the experiment invalid.
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
