"""A limit to what one client may count."""

from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Floats
from fedreach.errors import ConfigError, require
from fedreach.federation.protocols import Weighting
from fedreach.federation.values import Reports, State
from fedreach.federation.weighting.nesting import checked_parts, weights_of


@dataclass(frozen=True)
class Clip:
    """Let no client count more than a largest weight; what is cut off goes to the others in proportion.

    v_i = min(cap, factor * w_i), with the factor for which they sum to 1, as in
    ``{ name = "clip", inner = "entropy", most = 0.3 }``. Weights below the cap keep their ratios. Where all that have a
    weight reach the cap, those of weight 0 share the rest equally.

    The cap is the lower of `most` and `times_equal` / r, but never below 1 / r: r weights below that would not sum to
    1. So all weigh the same in a round with fewer than 1 / `most` replies; that is no error, since nobody knows
    beforehand how many will reply.

    A weight depends on all clients' numbers, so there is no `raw`, and no secure sum.

    When: any weighting might let one client dominate.

    Args:
        inner: The weighting whose weights are cut.
        most: Largest weight, above 0 and at most 1; None sets no limit.
        times_equal: Largest weight as a multiple of the equal weight 1 / r, at least 1; None sets no limit.

    Raises:
        ConfigError: If `inner` is no weighting, there is no limit, or one is outside its range.

    Example:
        >>> from fedreach.federation.weighting import ByExamples
        >>> metrics = {"num_examples": np.array([60.0, 30.0, 10.0])}
        >>> reports = Reports(np.arange(3), np.zeros((3, 1), np.float32), metrics)
        >>> Clip(ByExamples(), most=0.4).weights({}, reports)[0]
        array([0.4, 0.4, 0.2])
    """

    inner: Weighting
    most: float | None = None
    times_equal: float | None = None

    def __post_init__(self) -> None:
        checked_parts("Clip.inner", (self.inner,))
        if self.most is None and self.times_equal is None:
            raise ConfigError("Clip must have a limit: `most`, such as 0.3, or `times_equal`, such as 2.")
        require(self, most="(0, 1]", times_equal="[1, inf]")

    def weights(self, state: State, reports: Reports) -> tuple[Floats, State]:
        (weights,), new = weights_of({"inner": self.inner}, state, reports)
        r = len(weights)
        limits = [1.0 if self.most is None else self.most, 1.0 if self.times_equal is None else self.times_equal / r]
        return capped(weights, max(min(limits), 1 / r)), new


def capped(weights: Floats, cap: float) -> Floats:
    """Return the weights v_i = min(cap, factor * w_i) that sum to 1, of r weights on the simplex; cap >= 1 / r.

    Example:
        >>> capped(np.array([0.8, 0.15, 0.05, 0.0]), 0.5), capped(np.array([1.0, 0.0, 0.0]), 0.5)
        (array([0.5 , 0.375, 0.125, 0. ]), array([0.5 , 0.25, 0.25]))
    """
    result, full = weights, np.zeros(len(weights), np.bool_)
    while (result > cap).any():  # each time round, somebody new reaches the cap
        full |= result > cap
        rest = np.where(full, 0, weights)
        rest = rest / rest.max() if rest.any() else (~full).astype(np.float64)
        left = max(1 - cap * full.sum(), 0)  # rounding
        result = np.where(full, cap, rest * (left / max(rest.sum(), 1)))
    return result
