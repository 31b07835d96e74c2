"""Weigh reports by the entropy of the client's labels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.arrays import Floats
from fedreach.errors import require
from fedreach.federation.values import Reports, State
from fedreach.federation.weighting.base import OwnWeight


@dataclass(frozen=True)
class ByEntropy(OwnWeight):
    """Give more say to clients whose labels are varied.

    w_i is proportional to exp(H_i / T), where H_i = -sum_c p_ic ln p_ic is the entropy of client i's labels in nats.
    With T = 1 two weights never differ by more than a factor c, the number of classes: one class counts 1, a uniform
    mix c. In general the factor is at most c^(1/T).

    When: label counts may be known and clients hold few classes each: those with varied labels generalise better.

    Args:
        temperature: T in nats, at least 0.02, so that exp(H / T) is a number for up to a million classes. The paper
            has 1; large T weighs all equally, small T the clients of largest entropy only.

    Raises:
        ConfigError: If `temperature` is outside its range.

    Reference: "Advocating for the Silent" (arXiv 2310.07171), eq. 9 and 20, whose softmax needs the natural
    logarithm and is taken over the clients that reported. The temperature is ours; T -> 0 is what its eq. 8 asks for.

    Example:
        >>> entropy = np.array([0.0, 0.6931471806, 1.2798542258, 1.3862943611])
        >>> softmax(entropy).round(4), softmax(entropy / 0.5).round(4)
        (array([0.0944, 0.1887, 0.3394, 0.3775]), array([0.0295, 0.1179, 0.3811, 0.4715]))
    """

    needs: ClassVar[tuple[str, ...]] = ("label_entropy",)

    temperature: float = 1.0

    def __post_init__(self) -> None:
        require(self, temperature="[0.02, inf)")

    def raw(self, metrics: Mapping[str, Floats]) -> Floats:
        """Return exp(H_i / T), from 1 to c^(1/T)."""
        return np.exp(metrics["label_entropy"] / self.temperature)

    def weights(self, state: State, reports: Reports) -> tuple[Floats, State]:
        """Return the (r,) weights, the same as from `raw`, by a way that nothing can overflow on."""
        return softmax(reports.metrics["label_entropy"] / self.temperature), state


def softmax(logits: Floats) -> Floats:
    """Return exp(x_i) / sum_j exp(x_j); shifting by the largest keeps exp() from overflowing."""
    raw = np.exp(logits - logits.max())
    return np.asarray(raw / raw.sum())
