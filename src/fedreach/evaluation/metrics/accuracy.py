"""The share that is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedreach.arrays import Floats, Ints


@dataclass(frozen=True)
class Accuracy:
    """The share of examples whose class has the largest output, ties going to the lower class.

    When: classes are about as frequent as they matter; always there.

    Example:
        >>> import numpy as np
        >>> Accuracy().of(np.array([0, 1, 1]), np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]])).__round__(3)
        0.667
    """

    needs_classes: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "accuracy"

    def of(self, labels: Ints, scores: Floats) -> float:
        return float((scores.argmax(axis=1) == labels).mean())
