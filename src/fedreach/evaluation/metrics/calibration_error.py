"""How far confidence is from accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.federation.serving.softmax import log_softmax

BINS = 15
"""Of confidence."""


@dataclass(frozen=True)
class Miscalibration:
    """The expected calibration error: sum_b m_b / m |accuracy_b - mean confidence_b| over 15 bins of confidence.

    The m_b examples of bin b have their largest probability, the confidence, between (b - 1) / 15 and b / 15. It does
    not reach 0 for a client with few examples. The same as that of the report about serving.

    When: somebody relies on the stated probability.

    Reference: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, eq. 3.

    Example:
        >>> Miscalibration().of(np.array([0, 1]), np.log([[0.75, 0.25], [0.75, 0.25]])).__round__(9)
        0.25
    """

    needs_classes: ClassVar[bool] = True
    lower_is_better: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "calibration_error"

    def of(self, labels: Ints, scores: Floats) -> float:
        return expected_calibration_error(log_softmax(scores), labels)


def expected_calibration_error(log_p: Floats, labels: Ints) -> float:
    """Return the error of (m, c) log-probabilities, see `Miscalibration`."""
    right = log_p.argmax(axis=1) == labels
    confidence = np.exp(log_p.max(axis=1))
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    return float(np.abs(np.bincount(bins, right - confidence, minlength=BINS)).sum() / len(labels))
