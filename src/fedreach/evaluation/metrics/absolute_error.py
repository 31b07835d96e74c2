"""How far off predicted numbers are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.arrays import Floats


@dataclass(frozen=True)
class MeanAbsoluteError:
    """The mean absolute error, (1 / (m t)) sum_ij |y_ij - z_ij|, in the target's unit.

    What models are judged by where targets are numbers: always there as ``mae``, as accuracy is of classes. Less is
    better, so that the worst clients are those with most. scikit-learn's ``mean_absolute_error`` is the same number.

    When: numbers are predicted; always there then.

    Example:
        >>> MeanAbsoluteError().of(np.array([[1.0], [2.0]]), np.array([[1.5], [4.0]]))
        1.25
    """

    needs_numbers: ClassVar[bool] = True
    lower_is_better: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "mae"

    def of(self, labels: Floats, scores: Floats) -> float:
        return float(np.abs(labels - scores).mean())
