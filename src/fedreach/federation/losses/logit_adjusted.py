"""Cross-entropy that asks more of classes which a client has few examples of."""

from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.errors import require
from fedreach.federation.losses.cross_entropy import CrossEntropy


@dataclass(frozen=True)
class LogitAdjusted(CrossEntropy):
    """Cross-entropy of outputs to which each client adds its own log class shares while it trains.

    l(z, y) = log sum_c exp(z_c + a_c) - (z_y + a_y) with a_c = strength log(C p_c) and
    p_c = (n_c + smoothing) / (n + C smoothing), in nats; n_c of the client's n training examples are of class c, of C.
    A class that is frequent only here is then no reason to predict it: z itself learns to say what an example looks
    like. Where all classes are as frequent, and with strength 0, it is cross-entropy.

    When: clients' class shares differ: the model learns looks rather than frequencies, and serving adds the frequencies
    back.

    Args:
        strength: The factor of the logarithm, tau in the paper.
        smoothing: Examples that are added to each class, so that none has share 0.

    Reference: Menon et al., "Long-tail learning via logit adjustment" (ICLR 2021), eq. (10), with the class shares of
    each client instead of all.

    Example:
        >>> LogitAdjusted(smoothing=1.0).shift(np.array([[6, 0], [2, 2]])).round(4).tolist()
        [[0.5596, -1.3863], [0.0, 0.0]]
    """

    strength: float = 1.0
    smoothing: float = 1.0

    def __post_init__(self) -> None:
        require(self, strength="[0, inf)", smoothing="(0, inf)")

    def shift(self, counts: Ints) -> Floats:
        classes = counts.shape[1]
        smoothed = counts + self.smoothing
        shares = smoothed / smoothed.sum(axis=1, keepdims=True)
        return np.asarray(self.strength * np.log(classes * shares), np.float64)
