"""Adam at the server."""

from __future__ import annotations

from dataclasses import dataclass

from fedreach.arrays import Floats
from fedreach.federation.server.adaptive import Adaptive


@dataclass(frozen=True)
class FedAdam(Adaptive):
    """Move along the mean of past updates, each number by its own step size.

    With the weighted mean update u, for each of the d numbers, from m = 0 and v = tau^2::

        m <- beta1 * m + (1 - beta1) * u
        v <- beta2 * v + (1 - beta2) * u^2
        x <- x + rate * m / (sqrt(v) + tau)

    Steps are then about as long as `rate`, whatever the length of the updates. As in the paper there is no correction
    of m and v for their start; torch's Adam, which has one, is ``torch_optim``.

    Args:
        rate: Server rate, positive. The paper tunes it for each data set; the other defaults are the paper's.
        beta1: How much of m is kept, in [0, 1).
        beta2: How much of v is kept, in [0, 1).
        tau: Positive; updates much smaller than tau hardly move a number. The larger, the less adaptive.

    Raises:
        ConfigError: If a value is outside its range.

    Reference: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021, arXiv 2003.00295), Algorithm 2, with
    v_{-1} = tau^2 where it asks for no less.

    Example:
        >>> import numpy as np
        >>> step = FedAdam(rate=0.5, beta1=0.0, beta2=0.0, tau=1e-9)     # forgets all but the sign
        >>> step.apply(np.zeros(3, np.float32), {}, np.array([7.0, -0.1, 0.0]))[0]
        array([ 0.5, -0.5,  0. ], dtype=float32)
    """

    def second_moment(self, v: Floats, square: Floats) -> Floats:
        """Return beta2 v + (1 - beta2) u^2."""
        return self.beta2 * v + (1 - self.beta2) * square
