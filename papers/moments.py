"""Mean and variance of a squared loss, from which both of a paper's bounds follow at any distance."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedreach.evaluation.metrics import Metric
from fedreach.federation.convergence import LOSSES


@dataclass(frozen=True)
class SquaredLoss(Metric):
    """Mean or variance (divisor m - 1) of the squared losses on m examples, as `convergence.bounds` estimates them.

    Args:
        loss: ``"jsd"`` or ``"zero_one"``, a loss from 0 to 1.
        moment: ``"mean"`` or ``"variance"``.

    Example:
        >>> wrong_and_right = np.array([1, 0]), np.array([[4.0, 0.0], [4.0, 0.0]])
        >>> [SquaredLoss("zero_one", moment).of(*wrong_and_right) for moment in ("mean", "variance")]
        [0.5, 0.5]
    """

    needs_classes = True
    lower_is_better = True

    loss: Literal["jsd", "zero_one"] = "jsd"
    moment: Literal["mean", "variance"] = "mean"

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"squared_{self.loss}_{self.moment}"

    def of(self, labels: NDArray[np.int64], scores: NDArray[np.float64]) -> float:
        squared = LOSSES[self.loss](scores, labels) ** 2
        if self.moment == "mean":
            return float(squared.mean())
        return float(squared.var(ddof=1)) if len(squared) > 1 else 0.0
