"""Main score of a run: accuracy, or mean absolute error."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fedreach._util.arrays import Bools, Floats

Value = TypeVar("Value", float, Floats)
HARM_POINTS = 5
"""Drop in accuracy, in percentage points, above which adaptation counts as harmful to a client."""


@dataclass(frozen=True)
class MainScore:
    """Score that every evaluation reports: accuracy for classes, mean absolute error for numeric targets."""

    name: str  # end of its columns, as in ``participant_accuracy``
    words: str  # name in texts
    lower_is_better: bool
    percent: bool  # in percent if true, else in the unit of the targets
    top: float  # largest possible value; the smallest one is 0

    def rank(self, value: float) -> float:
        """Return a number that is larger for better values."""
        return -value if self.lower_is_better else value

    def gap(self, first: Value, second: Value) -> Value:
        """Return how much worse the second value is than the first value; negative if it is better.

        Example:
            >>> ACCURACY.gap(0.75, 0.5), MAE.gap(0.5, 0.75)
            (0.25, 0.25)
        """
        return second - first if self.lower_is_better else first - second

    def worst_decile(self, values: Floats) -> float:
        """Return the mean of the worst 10% of the values, but of at least one value.

        Example:
            >>> ACCURACY.worst_decile(np.arange(20.0)), MAE.worst_decile(np.arange(20.0))
            (0.5, 18.5)
        """
        return worst_decile(values, lower_is_better=self.lower_is_better)

    def reached(self, values: Floats, target: float) -> Bools:
        """Return a mask of the values that are at least as good as a target."""
        return np.asarray(values <= target if self.lower_is_better else values >= target)

    @property
    def unit(self) -> str:
        """Suffix of a value: a percent sign, or nothing if the value is in the unit of the targets."""
        return "%" if self.percent else ""

    @property
    def points(self) -> str:
        """Suffix of a difference: points, or nothing if it is in the unit of the targets."""
        return " points" if self.percent else ""

    def number(self, value: float, *, sign: bool = False) -> str:
        """Format a value or difference without its unit, with a true minus sign.

        Example:
            >>> ACCURACY.number(0.875), MAE.number(41.3125), MAE.number(-0.5), ACCURACY.number(-0.0001, sign=True)
            ('87.5', '41.3', '−0.5', '0.0')
        """
        plus = "+" if sign else ""
        text = f"{100 * value:{plus}.1f}" if self.percent else f"{value:{plus}.3g}"
        return ("0.0" if self.percent else "0") if float(text) == 0 else text.replace("-", "−")

    def spread(self, mean: float, sd: float | None) -> str:
        """Format a mean and a standard deviation.

        Example:
            >>> ACCURACY.spread(0.7134, 0.0081), MAE.spread(41.3125, 0.75)
            ('71.3 ± 0.8', '41.3 ± 0.75')
        """
        return self.number(mean) + ("" if sd is None else f" ± {self.number(sd)}")

    def shown(self, value: float | None) -> str:
        """Format a value with its unit, or return "-" for None.

        Example:
            >>> ACCURACY.shown(0.875), MAE.shown(41.3125), MAE.shown(None)
            ('87.5%', '41.3', '-')
        """
        return "-" if value is None else f"{self.number(value)}{self.unit}"


ACCURACY = MainScore("accuracy", "accuracy", lower_is_better=False, percent=True, top=1.0)
MAE = MainScore("mae", "mean absolute error", lower_is_better=True, percent=False, top=math.inf)


def main_score_of(columns: Iterable[str]) -> MainScore:
    """Return the main score of rows with the given columns, or accuracy if no column contains a main score.

    Example:
        >>> main_score_of(["round", "participant_mae", "participant_loss"]).words, main_score_of([]).words
        ('mean absolute error', 'accuracy')
    """
    endings = {name.partition("_")[2] for name in columns}
    return MAE if MAE.name in endings else ACCURACY


def is_evaluated(columns: Iterable[str]) -> bool:
    """Return whether rows with the given columns contain an evaluation.

    Example:
        >>> is_evaluated(["round", "train_loss"]), is_evaluated(["round", "unseen_accuracy"])
        (False, True)
    """
    scores = {
        f"{part}_{score.name}" for part in ("participant", "unseen", "test", "train") for score in (ACCURACY, MAE)
    }
    return not scores.isdisjoint(columns)


def worst_decile(values: Floats, *, lower_is_better: bool = False) -> float:
    """Return the mean of the lowest (or highest) 10% of the values, but of at least one value.

    Example:
        >>> worst_decile(np.arange(20.0))
        0.5
    """
    count, ordered = -(-len(values) // 10), np.sort(values)
    return float((ordered[-count:] if lower_is_better else ordered[:count]).mean())
