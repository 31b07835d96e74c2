"""Signed-rank test and interval of a typical difference over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from fedreach._util.arrays import Floats


@lru_cache(maxsize=256)
def null_distribution(count: int) -> Floats:
    """Return P(W <= w) for w = 0, ..., n (n + 1) / 2, where W is Wilcoxon's signed-rank sum of n = `count` seeds.

    Under the null hypothesis, each of the ranks 1, ..., n enters the sum with probability 1/2.

    Example:
        >>> null_distribution(2)
        array([0.25, 0.5 , 0.75, 1.  ])
    """
    chances = np.ones(1)
    for rank in range(1, count + 1):
        longer = np.zeros(len(chances) + rank)
        longer[: len(chances)] += chances / 2
        longer[rank:] += chances / 2
        chances = longer
    return np.minimum(np.cumsum(chances), 1.0)


@lru_cache(maxsize=16)
def _pairs(count: int) -> tuple[Sequence[int], Sequence[int]]:
    return np.triu_indices(count)  # type: ignore[return-value]


@dataclass(frozen=True, eq=False)
class SignedRanks:
    """Wilcoxon's signed-rank test of n differences, and the confidence interval that belongs to it.

    The test is about the pseudo-median, the typical difference: the mean of the differences of two random seeds is
    above it with probability 1/2. The n (n + 1) / 2 Walsh averages are the means of two differences, or of one with
    itself. Their median is the estimate of Hodges and Lehmann. W is the number of Walsh averages on one side of 0. The
    interval runs from the (k + 1)-th smallest to the (k + 1)-th largest Walsh average, where k is the largest number
    with 2 P(W <= k) < level. So it excludes 0 exactly if p is below the level. Differences of 0 and ties make p larger.

    Reference: Wilcoxon (1945), Biometrics Bulletin 1, 80-83; Hodges and Lehmann (1963), Ann. Math. Statist. 34,
    598-611.

    Example:
        >>> ranks = SignedRanks(np.array([0.01, 0.02, 0.03, 0.01, 0.04, -0.30]))
        >>> round(ranks.typical, 3), round(ranks.p(), 3)
        (0.015, 0.438)
    """

    values: Floats  # (n,) differences

    @cached_property
    def walsh(self) -> Floats:
        """Walsh averages in increasing order."""
        first, second = _pairs(len(self.values))
        return np.sort((self.values[first] + self.values[second]) / 2)

    @property
    def typical(self) -> float:
        """Estimate of Hodges and Lehmann."""
        return float(np.median(self.walsh))

    @property
    def tail(self) -> Floats:
        return null_distribution(len(self.values))

    def p(self) -> float:
        """Return the two-sided p-value."""
        return min(1.0, 2 * min(self.p_below(0.0), self.p_above(0.0)))

    def p_below(self, limit: float) -> float:
        """Return the one-sided p-value of the alternative that the typical difference is below `limit`."""
        return float(self.tail[len(self.walsh) - int(np.searchsorted(self.walsh, limit, side="left"))])

    def p_above(self, limit: float) -> float:
        """Return the one-sided p-value of the alternative that the typical difference is above `limit`."""
        return float(self.tail[int(np.searchsorted(self.walsh, limit, side="right"))])

    def limits(self, level: float) -> tuple[float, float, float]:
        """Return the interval that excludes 0 exactly if p < `level`, and the probability that it misses.

        If no number of ranks is unlikely enough, the interval is unbounded.
        """
        k = int(np.searchsorted(2 * self.tail, level, side="left")) - 1
        if k < 0:
            return -math.inf, math.inf, 0.0
        return float(self.walsh[k]), float(self.walsh[-1 - k]), float(2 * self.tail[k])

    def p_without_each(self) -> Floats:
        """Return the (n,) p-values without one of the seeds."""
        sums, count = np.add.outer(self.values, self.values), len(self.values)
        sides = []
        for side in (sums <= 0, sums >= 0):
            sides.append((side.sum() + np.trace(side)) // 2 - side.sum(axis=1))
        p_values: Floats = 2 * null_distribution(count - 1)[np.minimum(*sides)]
        return np.minimum(p_values, 1.0)

    @property
    def deviation(self) -> float:
        """Standard deviation of W under the null hypothesis."""
        n = len(self.values)
        return math.sqrt(n * (n + 1) * (2 * n + 1) / 24)

    @property
    def statistic(self) -> float:
        """Number of null standard deviations by which W is below its mean, at least 0."""
        below, above = np.searchsorted(self.walsh, 0.0, side="right"), np.searchsorted(self.walsh, 0.0, side="left")
        least = min(int(below), len(self.walsh) - int(above))
        return max(0.0, (len(self.walsh) / 2 - least) / self.deviation)

    def level_of(self, critical: float) -> float:
        """Return the level at which p is below the level exactly if `statistic` is above a critical value."""
        first_kept = max(0, math.ceil(len(self.walsh) / 2 - critical * self.deviation - 1e-9))
        return float(2 * self.tail[first_kept])


def signed_ranks(differences: Floats) -> Floats:
    """Return the (s, m) ranks of the sizes of residuals, with their signs, for (s, m) differences.

    A residual is the difference minus the typical difference of its column.
    """
    typical = [SignedRanks(column).typical for column in differences.T]
    residuals = differences - np.array(typical)
    ranks = np.argsort(np.argsort(np.abs(residuals), axis=0), axis=0) + 1.0
    signed: Floats = np.sign(residuals) * ranks
    return signed
