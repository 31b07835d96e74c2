"""Precision and recall of each class in one, each class counting the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.arrays import Floats, Ints


@dataclass(frozen=True)
class MacroF1:
    """The mean F1 over classes, F1 being the harmonic mean of precision and recall; ties go to the lower class.

    (1 / |C|) sum over k in C of 2 right_k / (m_k + said_k), where m_k examples are of class k, said_k are predicted as
    k, and right_k are both; C are the classes among labels or predictions. As scikit-learn's
    ``f1_score(average="macro")``: a class that is only predicted, or never, counts with 0, and one in neither does not
    count. It is always defined.

    When: as `balanced_accuracy`, where false alarms matter, too.

    Reference: Opitz and Burst, "Macro F1 and Macro F1", arXiv 1911.03347, the mean of F1 scores.

    Example:
        >>> scores = np.array([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0], [1.0, 0.0]])  # says class 0 of all
        >>> MacroF1().of(np.array([0, 0, 0, 1]), scores).__round__(4)  # F1 is 6 / 7 and 0
        0.4286
    """

    needs_classes: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "macro_f1"

    def of(self, labels: Ints, scores: Floats) -> float:
        said, classes = scores.argmax(axis=1), scores.shape[1]
        right = np.bincount(labels[said == labels], minlength=classes)
        either = np.bincount(labels, minlength=classes) + np.bincount(said, minlength=classes)
        there = either > 0
        return float((2 * right[there] / either[there]).mean())
