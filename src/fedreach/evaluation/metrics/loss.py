"""How surprising the truth is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.federation.serving.softmax import log_softmax


@dataclass(frozen=True)
class MeanLoss:
    """The mean cross-entropy, log sum_c exp(z_c) - z_y, in nats: always there as `loss`, which `log_loss` is, too.

    scikit-learn's `log_loss` is the same number, but for probabilities below 2e-16, which it raises to that.

    When: probabilities are used, and not decisions alone; always there.

    Example:
        >>> MeanLoss().of(np.array([1]), np.array([[0.0, 0.0]])).__round__(4)
        0.6931
    """

    needs_classes: ClassVar[bool] = True
    lower_is_better: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "loss"

    def of(self, labels: Ints, scores: Floats) -> float:
        return float(-log_softmax(scores)[np.arange(len(labels)), labels].mean())
