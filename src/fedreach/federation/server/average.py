"""Add the weighted mean update, with a server rate and momentum."""

from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Float32s, Floats
from fedreach.errors import require
from fedreach.federation.values import State


@dataclass(frozen=True)
class Average:
    """Move the model along the weighted mean update u.

    v <- momentum * v + u;  x <- x + rate * v.  With rate 1 and momentum 0 the new model is the weighted mean of
    the local models, as in FedAvg; with momentum it is `FedAvgM`.

    When: always, as the baseline.

    Args:
        rate: Server rate, positive.
        momentum: In [0, 1).

    Reference: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification" (arXiv 1909.06335), section 4.3.

    Example:
        >>> Average(rate=0.5).apply(np.zeros(2, np.float32), {}, np.array([1.0, 2.0]))[0]
        array([0.5, 1. ], dtype=float32)
    """

    rate: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        require(self, rate="(0, inf)", momentum="[0, 1)")

    def apply(self, params: Float32s, state: State, mean_update: Floats) -> tuple[Float32s, State]:
        """Return the new (d,) parameters and the velocity."""
        velocity = mean_update
        if self.momentum > 0:
            velocity = mean_update + self.momentum * state.get("velocity", 0.0)
            state = {"velocity": velocity}
        return (params + self.rate * velocity).astype(np.float32), state
