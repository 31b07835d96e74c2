"""How far the trained model may be from the best one, by the local Rademacher complexity of the excess losses.

Reference: "Client Selection with Rademacher Complexity for Federated Learning", Theorem 1 and Lemma 1, after Wei et
al., "Non-IID Federated Learning with Sharper Risk Bound" (2022), and Bartlett, Bousquet and Mendelson, "Local
Rademacher Complexities", Ann. Statist. 33 (2005), from which the form of the bound and the conditions are checked.

Slips of the paper, put right here:

- Theorem 1 takes r* = WLRC(r*). A radius r is a squared loss and a complexity a loss, so it must be r* = B WLRC(r*),
  with the loss bound B; this is c = 1 / B in Lemma 1, which leaves c open.
- That phi(r) / sqrt(r) is bounded does not make it non-increasing, and the proof's E (f - f*)^2 <= r / L^2 turns the
  Lipschitz inequality round. A finite class is not sub-root at all: its complexity jumps where a function enters. Its
  star hull (all t f with 0 <= t <= 1) is: see `fedreach.theory.star_hull.StarHull`.
- The weights of Definitions 2 and 3 cancel: p_k / n_k = 1 / n, so every example counts the same.
- A cluster of lower score has a lower r* if its whole curve phi lies lower; a comparison of the two values at the
  two fixed points, as in the paper, compares r* with itself.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from fedreach.errors import ConfigError, check

LARGEST = 1e300


class ExcessRisk(NamedTuple):
    """The two summands of the bound, in the unit of the loss."""

    complexity: float  # 800 G / B r*
    confidence: float  # (16 G + 12) B ln(1 / delta) / n

    @property
    def total(self) -> float:
        """Their sum, the bound."""
        return self.complexity + self.confidence


def excess_risk(
    radius: float, examples: int, *, loss_bound: float = 1.0, delta: float = 0.05, slack: float = 2.0
) -> ExcessRisk:
    """Return the bound on the empirical minimiser's expected loss above the least one there is.

        800 G / B r*  +  (16 G + 12) B ln(1 / delta) / n,    with probability at least 1 - delta

    With these constants it says something (is below B) only for r* < B^2 / (800 G) and thousands of examples; its
    use is to compare. It grows with G, so that a G near 1 is best.

    Args:
        radius: r*, not negative, of `fixed_point` with slope 1 / B.
        examples: n, of all clients together, at least 1.
        loss_bound: B, positive.
        delta: Probability of failure, in (0, 1).
        slack: G, above 1.

    Reference: Theorem 1.

    Example:
        >>> bound = excess_risk(1e-5, 20_000)
        >>> round(bound.complexity, 4), round(bound.confidence, 4), round(bound.total, 4)
        (0.016, 0.0066, 0.0226)
    """
    check("excess_risk", "radius", radius, "[0, inf)")
    check("excess_risk", "examples", examples, "[1, inf)")
    check("excess_risk", "loss_bound", loss_bound, "(0, inf)")
    check("excess_risk", "delta", delta, "(0, 1)")
    check("excess_risk", "slack", slack, "(1, inf)")
    return ExcessRisk(
        complexity=800 * slack / loss_bound * radius,
        confidence=(16 * slack + 12) * loss_bound * math.log(1 / delta) / examples,
    )


def fixed_point(complexity: Callable[[float], float], slope: float = 1.0) -> float:
    """Return r* = inf {r > 0: phi(r) <= c r}, to the last bits of a double.

    For a sub-root phi (not negative, non-decreasing, phi(r) / sqrt(r) non-increasing) the radii with phi(r) <= c r
    are all those from r* on, so that bisection cannot miss it; r* is 0 only where phi is 0. phi is not checked
    between the points that are asked for: with another phi, this is some r with phi(r) = c r or a jump across it.

    Args:
        complexity: phi, from a radius (squared loss) to a complexity (loss).
        slope: c, positive; 1 / B for `excess_risk`.

    Raises:
        ConfigError: If phi is negative, not finite, or above c r however large r is.

    Reference: eq. 1 and Lemma 1.

    Example:
        >>> fixed_point(lambda r: 0.3 * r**0.5, slope=2.0)      # (0.3 / 2)^2
        0.0225...
    """
    check("fixed_point", "slope", slope, "(0, inf)")

    def within(radius: float) -> bool:
        value = complexity(radius)
        if not 0 <= value < math.inf:
            raise ConfigError(
                f"fixed_point: the complexity must be finite and not negative; got {value} at radius {radius}."
            )
        return value <= slope * radius

    high = 1.0
    while not within(high):
        if high >= LARGEST:
            raise ConfigError(
                "fixed_point: the complexity stays above slope * radius, so it grows faster than a square root. "
                "Give a sub-root function, such as that of a `StarHull`."
            )
        high *= 2
    low = high / 2
    while low > 0 and within(low):
        low, high = low / 2, low
    if low == 0:  # halved away: phi is 0, or below all that a double can tell from 0
        return 0.0
    while low < (middle := low + (high - low) / 2) < high:
        if within(middle):
            high = middle
        else:
            low = middle
    return high
