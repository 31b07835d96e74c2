"""How much better predicted numbers are than their mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.arrays import Floats


@dataclass(frozen=True)
class R2:
    """The coefficient of determination, 1 - sum_i (y_i - z_i)^2 / sum_i (y_i - mean y)^2, a mean over t targets.

    1 is perfect; the mean of the very targets gets 0, and a model that is worse than it less than 0, without bound. It
    is nan where all targets are the same, as of a client with one example: such clients are left out. As it compares
    with the client's own mean, a model that is right about differences between clients gains nothing by that here:
    look at ``unseen_r2_pooled`` for it. Otherwise as scikit-learn's ``r2_score``, which has 0 or 1 for nan.

    When: numbers are predicted, and errors shall be told beside how much targets vary. Of few examples it says little.

    Reference: Wright, "Correlation and causation", Journal of Agricultural Research 20, 1921.

    Example:
        >>> R2().of(np.array([[1.0], [3.0]]), np.array([[1.5], [2.5]]))
        0.75
    """

    needs_numbers: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "r2"

    def of(self, labels: Floats, scores: Floats) -> float:
        spread = np.square(labels - labels.mean(axis=0)).sum(axis=0)
        if not (labels != labels[0]).any(axis=0).all():
            return float("nan")
        return float((1 - np.square(labels - scores).sum(axis=0) / spread).mean())
