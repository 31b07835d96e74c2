"""Yogi at the server."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Floats
from fedreach.federation.server.adaptive import Adaptive


@dataclass(frozen=True)
class FedYogi(Adaptive):
    """Like `FedAdam`, but steps grow again only slowly after updates became small.

    v moves towards u^2 by (1 - beta2) u^2, whatever the distance::

        v <- v - (1 - beta2) * u^2 * sign(v - u^2)

    so that small updates cannot make a large v small at once, as they do in Adam.

    Args:
        rate: Server rate, positive.
        beta1: How much of m is kept, in [0, 1).
        beta2: v changes by at most (1 - beta2) u^2; in [0, 1).
        tau: Positive, see `FedAdam`.

    Raises:
        ConfigError: If a value is outside its range.

    Reference: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021, arXiv 2003.00295), Algorithm 2, with
    v_{-1} = tau^2.

    Example:
        >>> step, u = FedYogi(beta2=0.9, tau=1.0), np.array([0.5, 2.0])
        >>> step.apply(np.zeros(2, np.float32), {}, u)[1]["v"]     # 1 - 0.1 * 0.25 and 1 + 0.1 * 4
        array([0.975, 1.4  ])
    """

    def second_moment(self, v: Floats, square: Floats) -> Floats:
        """Return v - (1 - beta2) u^2 sign(v - u^2)."""
        moved: Floats = v - (1 - self.beta2) * square * np.sign(v - square)
        return moved
