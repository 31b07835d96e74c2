"""Weigh reports by the entropy of the client's labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.arrays import Floats
from fedreach.federation.round import Reports, State


@dataclass(frozen=True)
class ByEntropy:
    """Give more say to clients whose labels are varied.

    w_i is proportional to exp(H_i), where H_i = -sum_c p_ic ln p_ic is the entropy of client i's labels in nats.
    Two weights never differ by more than a factor c, the number of classes: one class counts 1, a uniform mix c.

    Reference: "Advocating for the Silent" (arXiv 2310.07171), eq. 9 and 20, whose softmax needs the natural
    logarithm and is taken over the clients that reported.

    Example:
        >>> softmax(np.array([0.0, 0.6931471806, 1.2798542258, 1.3862943611])).round(4)
        array([0.0944, 0.1887, 0.3394, 0.3775])
    """

    needs: ClassVar[tuple[str, ...]] = ("label_entropy",)

    def weights(self, state: State, reports: Reports) -> tuple[Floats, State]:
        """Return the (r,) weights."""
        return softmax(reports.metrics["label_entropy"]), state


def softmax(logits: Floats) -> Floats:
    """Return exp(x_i) / sum_j exp(x_j); shifting by the largest keeps exp() from overflowing."""
    raw = np.exp(logits - logits.max())
    result: Floats = raw / raw.sum()
    return result
