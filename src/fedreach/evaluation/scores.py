"""Scores of runs and their spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fedreach._util.arrays import Bools, Floats

Value = TypeVar("Value", float, Floats)
HARM_POINTS = 5
"""A client is harmed where adaptation costs it more percentage points of accuracy than this."""


@dataclass(frozen=True)
class MainScore:
    """The score that every evaluation reports: accuracy for classes, mean absolute error for numbers."""

    name: str  # end of its columns, such as ``participant_accuracy``
    words: str
    lower_is_better: bool
    percent: bool  # shown in percent, else in the unit of the targets
    top: float  # largest possible value; the smallest is 0

    def rank(self, value: float) -> float:
        """Return a number that is higher for better values."""
        return -value if self.lower_is_better else value

    def gap(self, first: Value, second: Value) -> Value:
        """Return by how much the second value is worse than the first: positive where it is worse.

        Example:
            >>> ACCURACY.gap(0.75, 0.5), MAE.gap(0.5, 0.75)
            (0.25, 0.25)
        """
        return second - first if self.lower_is_better else first - second

    def worst_decile(self, values: Floats) -> float:
        """Return the mean over the worst 10% of the values, rounded up to at least one value.

        Example:
            >>> ACCURACY.worst_decile(np.arange(20.0)), MAE.worst_decile(np.arange(20.0))
            (0.5, 18.5)
        """
        return worst_decile(values, lower_is_better=self.lower_is_better)

    def reached(self, values: Floats, target: float) -> Bools:
        """Return which values are at least as good as a target."""
        return np.asarray(values <= target if self.lower_is_better else values >= target)

    @property
    def unit(self) -> str:
        """Suffix of a value: a percent sign, or nothing where it is in the unit of the targets."""
        return "%" if self.percent else ""

    @property
    def points(self) -> str:
        """Suffix of a difference."""
        return " points" if self.percent else ""

    def number(self, value: float, *, sign: bool = False) -> str:
        """Return a value or a difference without its unit, with a true minus sign.

        Example:
            >>> ACCURACY.number(0.875), MAE.number(41.3125), MAE.number(-0.5), ACCURACY.number(-0.0001, sign=True)
            ('87.5', '41.3', '−0.5', '0.0')
        """
        plus = "+" if sign else ""
        text = f"{100 * value:{plus}.1f}" if self.percent else f"{value:{plus}.3g}"
        return ("0.0" if self.percent else "0") if float(text) == 0 else text.replace("-", "−")

    def spread(self, mean: float, sd: float | None) -> str:
        """Return a mean and its standard deviation as text.

        Example:
            >>> ACCURACY.spread(0.7134, 0.0081), MAE.spread(41.3125, 0.75)
            ('71.3 ± 0.8', '41.3 ± 0.75')
        """
        return self.number(mean) + ("" if sd is None else f" ± {self.number(sd)}")

    def shown(self, value: float | None) -> str:
        """Return a value with its unit.

        Example:
            >>> ACCURACY.shown(0.875), MAE.shown(41.3125), MAE.shown(None)
            ('87.5%', '41.3', '-')
        """
        return "-" if value is None else f"{self.number(value)}{self.unit}"


ACCURACY = MainScore("accuracy", "accuracy", lower_is_better=False, percent=True, top=1.0)
MAE = MainScore("mae", "mean absolute error", lower_is_better=True, percent=False, top=math.inf)


def main_score_of(columns: Iterable[str]) -> MainScore:
    """Return the main score of rows with these columns.

    Example:
        >>> main_score_of(["round", "participant_mae", "participant_loss"]).words, main_score_of([]).words
        ('mean absolute error', 'accuracy')
    """
    endings = {name.partition("_")[2] for name in columns}
    return MAE if MAE.name in endings else ACCURACY


def is_evaluated(columns: Iterable[str]) -> bool:
    """Return whether a row with these columns holds an evaluation.

    Example:
        >>> is_evaluated(["round", "train_loss"]), is_evaluated(["round", "unseen_accuracy"])
        (False, True)
    """
    scores = {
        f"{part}_{score.name}" for part in ("participant", "unseen", "test", "train") for score in (ACCURACY, MAE)
    }
    return not scores.isdisjoint(columns)


def worst_decile(values: Floats, *, lower_is_better: bool = False) -> float:
    """Return the mean over the lowest (or highest) 10% of the values, rounded up to at least one value.

    Example:
        >>> worst_decile(np.arange(20.0))
        0.5
    """
    count, ordered = -(-len(values) // 10), np.sort(values)
    return float((ordered[-count:] if lower_is_better else ordered[:count]).mean())
