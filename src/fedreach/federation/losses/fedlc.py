"""Cross-entropy with a margin for classes which a client has few examples of."""

from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.errors import require
from fedreach.federation.losses.cross_entropy import CrossEntropy


@dataclass(frozen=True)
class FedLC(CrossEntropy):
    """Cross-entropy of outputs that each client lowers by a margin, the larger the fewer examples it has of a class.

    l(z, y) = log sum_c exp(z_c - m_c) - (z_y - m_y) with m_c = strength n_c^(-1/4), in nats; n_c of the client's
    training examples are of class c. Only training sees the margins. With strength 0 it is cross-entropy.

    When: as `logit_adjusted`, where rare classes shall keep a wider margin.

    Args:
        strength: The factor of the margins, tau in the paper; not negative.
        absent: Examples that a class without any counts as, positive. The default makes its margin 100 strength: it is
            left out of the sum, and the client moves nothing that only this class depends on.

    Raises:
        ConfigError: If an option is out of its range.

    Reference: Zhang, Li, Li, Xu, Wu, Ding and Wu, "Federated Learning with Label Distribution Skew via Logits
    Calibration", ICML 2022, where a class without examples is not defined. FL-bench, github.com/KarhouTam/FL-bench, by
    which many compare, counts it as 1e-8 examples, too.

    Example:
        >>> FedLC().shift(np.array([[16, 1, 0]])).tolist()
        [[-0.5, -1.0, -100.0]]
    """

    strength: float = 1.0
    absent: float = 1e-8

    def __post_init__(self) -> None:
        require(self, strength="[0, inf)", absent="(0, inf)")

    def shift(self, counts: Ints) -> Floats:
        held = np.where(counts > 0, counts, self.absent)
        return np.asarray(-self.strength * held**-0.25, np.float64)
