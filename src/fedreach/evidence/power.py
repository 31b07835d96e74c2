"""What a number of seeds can see, and how many would see a difference: power of paired t tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from scipy import optimize, stats

from fedreach.evidence.spread import t_quantile

POWER = 0.8  # chance with which a difference that is there is to be found
MOST = 1_000_000  # seeds; beyond it no number is told
NODES = 2000


@cache
def shift_found(critical: float, freedom: int) -> float:
    """Return the noncentrality at which |t| exceeds `critical` with probability `POWER`.

    With a true difference delta and s seeds, t = (Z + sqrt(s) delta / sd) / U, U the root of a chi-square number over
    its v degrees of freedom: given U the chance is the normal one, and its mean over `NODES` equally likely U is taken.

    Example:
        >>> round(shift_found(2.0, 1000), 2)  # for many degrees of freedom, critical + 0.84
        2.84
    """
    u = np.sqrt(stats.chi2.ppf((np.arange(NODES) + 0.5) / NODES, freedom) / freedom)

    def missing(shift: float) -> float:
        return POWER - float((stats.norm.sf(critical * u - shift) + stats.norm.cdf(-critical * u - shift)).mean())

    return float(optimize.brentq(missing, 0.0, 10 * critical + 10, xtol=1e-6))


def seeds_to_find(difference: float, sd: float, level: float, pilot_freedom: int | None = None) -> int | None:
    """Return how many seeds find a true difference with probability `POWER`; None where none below `MOST` do.

    The smallest s with sqrt(s) |difference| / sd at or above `shift_found` of a two-sided test at `level`; or, with the
    standard deviation of a pilot, at or above t_(1 - level / 2) + t_POWER with its degrees of freedom, see
    `fedreach.evidence.stein`.

    Example:
        >>> seeds_to_find(0.02, 0.04, 0.05)
        34
    """

    def shift(seeds: int) -> float:
        if pilot_freedom is not None:
            return t_quantile(1 - level / 2, pilot_freedom) + t_quantile(POWER, pilot_freedom)
        return shift_found(t_quantile(1 - level / 2, seeds - 1), seeds - 1)

    return _smallest(lambda s: math.sqrt(s) * abs(difference) >= sd * shift(s), _about(difference, sd, level / 2))


def seeds_to_equate(difference: float, margin: float, sd: float, level: float) -> int | None:
    """Return how many seeds show, with probability `POWER`, that a true difference lies within the margin.

    Of the two one-sided tests the nearer limit decides: sqrt(s) (margin - |difference|) / sd at or above the sum of the
    quantiles of level and power. Where the difference is near 0, either limit may fail, and each has half the loss.
    """
    room = margin - abs(difference)
    loss = (1 - POWER) / (2 if abs(difference) < 0.1 * margin else 1)

    def shown(s: int) -> bool:
        return math.sqrt(s) * room >= sd * (t_quantile(1 - level, s - 1) + t_quantile(1 - loss, s - 1))

    return _smallest(shown, _about(room, sd, level)) if room > 0 else None


def _about(difference: float, sd: float, tail: float) -> float:
    """Return the number by the normal distribution, which is a little too small."""
    if difference == 0:
        return math.inf
    return float((sd / difference * (stats.norm.isf(tail) + stats.norm.ppf(POWER))) ** 2)


def _smallest(enough: Callable[[int], bool], about: float) -> int | None:
    if about > MOST:
        return None
    seeds = max(2, math.floor(about))
    while seeds > 2 and enough(seeds - 1):
        seeds -= 1
    while not enough(seeds):
        seeds += max(1, seeds // 200)
    return seeds
