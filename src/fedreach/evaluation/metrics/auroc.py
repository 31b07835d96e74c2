"""How well a class is told from the others, whatever the threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.arrays import Bools, Floats, Ints
from fedreach.federation.serving.softmax import log_softmax


@dataclass(frozen=True)
class AUROC:
    """The area under the ROC curve of class 1, or with more than two classes the mean over classes against the rest.

    P(p > p') + P(p = p') / 2 for the probability p of the class on one of its examples and p' on another's. With two
    classes it is scikit-learn's ``roc_auc_score(y, p[:, 1])``. With more it is the mean, over the classes among the
    labels, of ``roc_auc_score(y == k, p[:, k])``: ``roc_auc_score(y, p, multi_class="ovr")`` where all are there, which
    refuses labels that lack a class. With one class among the labels it is not defined.

    When: examples are ranked and the threshold is chosen later.

    Reference: Fawcett, "An Introduction to ROC Analysis", Pattern Recognition Letters 27, 2006.

    Example:
        >>> scores = np.array([[2.0, 0.0], [0.0, 0.5], [0.0, 1.0], [0.0, 0.0]])
        >>> AUROC().of(np.array([0, 0, 1, 1]), scores)  # 3 of the 4 pairs are in order
        0.75
    """

    needs_classes: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "auroc"

    def of(self, labels: Ints, scores: Floats) -> float:
        there = np.unique(labels)
        if len(there) < 2:
            return float("nan")
        p = np.exp(log_softmax(scores))
        classes = [1] if p.shape[1] == 2 else there.tolist()
        return float(np.mean([pairs_in_order(labels == k, p[:, k]) for k in classes]))


def pairs_in_order(positive: Bools, p: Floats) -> float:
    """Return the share of pairs, a positive and a negative, that `p` has in this order; half of those that tie."""
    others, own = np.sort(p[~positive]), p[positive]
    below, not_above = (np.searchsorted(others, own, side) for side in ("left", "right"))
    return float((below + not_above).sum() / (2 * len(own) * len(others)))
