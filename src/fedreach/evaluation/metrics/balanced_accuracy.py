"""The share that is right of each class, each class counting the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.arrays import Floats, Ints


@dataclass(frozen=True)
class BalancedAccuracy:
    """The mean over classes of the share of their examples that is right, ties going to the lower class.

    (1 / |C|) sum over k in C of right_k / m_k, where C are the classes among the labels, m_k the examples of class k
    and right_k those of them that are predicted as k. As scikit-learn's `balanced_accuracy_score`, it leaves out
    classes that are only predicted: it is always defined, and with one class among the labels the accuracy.

    When: every class matters alike, however rare.

    Reference: Brodersen et al., "The Balanced Accuracy and Its Posterior Distribution", ICPR 2010.

    Example:
        >>> scores = np.array([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0], [1.0, 0.0]])  # says class 0 of all
        >>> BalancedAccuracy().of(np.array([0, 0, 0, 1]), scores)
        0.5
    """

    needs_classes: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "balanced_accuracy"

    def of(self, labels: Ints, scores: Floats) -> float:
        right = scores.argmax(axis=1) == labels
        examples = np.bincount(labels)
        there = examples > 0
        return float((np.bincount(labels, right)[there] / examples[there]).mean())
