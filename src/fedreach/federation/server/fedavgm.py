"""FedAvgM: add the weighted mean update with momentum at the server."""

from dataclasses import dataclass

from fedreach.federation.server.average import Average


@dataclass(frozen=True)
class FedAvgM(Average):
    """Move the model along a running sum of the weighted mean updates u, in which old ones fade.

    v <- momentum * v + u;  x <- x + rate * v.  It is `Average` under the paper's name and with its momentum; momentum 0
    is FedAvg. A constant u moves the model by up to u / (1 - momentum) a round, ten times as far with 0.9.

    *When to use it:* where clients' labels differ much and cohorts are small, so that successive mean updates point
    elsewhere: what they have in common adds up. Lower `local.rate` or `rate` where the loss swings.

    When: updates jump from round to round, as small cohorts make them.

    Args:
        rate: Server rate, positive.
        momentum: beta, in [0, 1).

    Raises:
        ConfigError: If a value is outside its range.

    Reference: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification" (arXiv 1909.06335), section 4.3.

    Example:
        >>> import numpy as np
        >>> step, u = FedAvgM(momentum=0.5), np.array([1.0, 2.0])
        >>> x, state = step.apply(np.zeros(2, np.float32), {}, u)
        >>> step.apply(x, state, u)[0]  # u, then 1.5 u
        array([2.5, 5. ], dtype=float32)
    """

    momentum: float = 0.9
