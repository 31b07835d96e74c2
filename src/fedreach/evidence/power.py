"""What a number of seeds can see, and how many would see a difference: power of paired t tests."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from fedreach.evidence.spread import t_quantile

POWER = 0.8  # chance with which a difference that is there is to be found
MOST = 1_000_000  # seeds; beyond it no number is told
NODES = 1000


@cache
def shift_found(critical: float, freedom: int) -> float:
    """Return the noncentrality at which |t| exceeds `critical` with probability `POWER`.

    With a true difference delta and s seeds, t = (Z + sqrt(s) delta / sd) / U, U the root of a chi-square number over
    its v degrees of freedom: given U the chance is the normal one, and its mean over `NODES` equally likely U is taken.

    Example:
        >>> round(shift_found(2.0, 1000), 2)  # for many degrees of freedom, critical + 0.84
        2.84
    """
    from scipy import special

    u = np.sqrt(2 * special.gammaincinv(freedom / 2, (np.arange(NODES) + 0.5) / NODES) / freedom)

    def chance(shift: float) -> float:
        return float((special.ndtr(shift - critical * u) + special.ndtr(-shift - critical * u)).mean())

    low, high = 0.0, 10 * critical + 10
    for _ in range(60):  # halved, as scipy.optimize takes longer to load than a report's numbers to compute
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) < POWER else (low, middle)
    return high


def seeds_to_find(difference: float, sd: float, level: float, pilot_freedom: int | None = None) -> int | None:
    """Return about how many seeds find a true difference with probability `POWER`; None where none below `MOST` do.

    The smallest s with sqrt(s) |difference| / sd >= t_(1 - level / 2) + t_POWER, with s - 1 degrees of freedom or those
    of a pilot, see `fedreach.evidence.stein`.

    Example:
        >>> seeds_to_find(0.02, 0.04, 0.05)
        34
    """
    return _seeds(abs(difference), sd, level / 2, 1 - POWER, pilot_freedom)


def seeds_to_equate(
    difference: float, margin: float, sd: float, level: float, pilot_freedom: int | None = None
) -> int | None:
    """Return about how many seeds show, with probability `POWER`, that a true difference lies within the margin.

    Of the two one-sided tests the nearer limit decides: sqrt(s) (margin - |difference|) / sd at or above
    t_(1 - level) + t_POWER. Where the difference is near 0, either limit may fail, and each has half the loss.
    """
    loss = (1 - POWER) / (2 if abs(difference) < 0.1 * margin else 1)
    return _seeds(margin - abs(difference), sd, level, loss, pilot_freedom)


def _seeds(room: float, sd: float, tail: float, loss: float, freedom: int | None) -> int | None:
    """Return the smallest s with sqrt(s) room / sd >= t_(1 - tail) + t_(1 - loss)."""

    def needed(freedom: int) -> float:
        return (sd / room * (t_quantile(1 - tail, freedom) + t_quantile(1 - loss, freedom))) ** 2

    if room <= 0 or needed(MOST) > MOST:
        return None
    if freedom is not None:
        return max(freedom + 1, math.ceil(needed(freedom)))
    seeds = max(2, math.floor(needed(MOST)))  # too few, as t has the widest tails for few
    while seeds < needed(seeds - 1):
        seeds += max(1, seeds // 500)
    return seeds
