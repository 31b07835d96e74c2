"""Signed-rank test and interval of a typical difference over seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, Literal

import numpy as np

from fedreach._util.arrays import Floats
from fedreach._util.student_t import t_quantile


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
        without_rank, with_rank = np.pad(chances, (0, rank)), np.pad(chances, (rank, 0))
        chances = (without_rank + with_rank) / 2
    return np.minimum(np.cumsum(chances), 1.0)


@dataclass(frozen=True, eq=False)
class SignedRanks:
    """Wilcoxon's signed-rank test of n differences, and the confidence interval that belongs to it.

    The test is about the pseudo-median, the typical difference: the mean of the differences of two random seeds is
    above it with probability 1/2. The n (n + 1) / 2 Walsh averages are the means of two differences, or of one with
    itself. Their median is the estimate of Hodges and Lehmann. W is the number of Walsh averages on one side of 0. The
    interval runs from the (k + 1)-th smallest to the (k + 1)-th largest Walsh average, where k is the largest number
    with 2 P(W <= k) < level. So it excludes 0 exactly if p is below the level. Differences of 0 and ties make p larger.

    The test is exact for symmetric differences, so also if the results of both methods have the same distribution.
    `benchmarks/coverage.py` measures its errors for skewed differences.

    Reference: Wilcoxon (1945), Biometrics Bulletin 1, 80-83; Hodges and Lehmann (1963), Ann. Math. Statist. 34,
    598-611.

    Example:
        >>> ranks = SignedRanks(np.array([0.01, 0.02, 0.03, 0.01, 0.04, -0.30]))
        >>> round(ranks.typical, 3), round(ranks.p, 3)
        (0.015, 0.438)
    """

    values: Floats  # (n,) differences
    name: ClassVar[Literal["ranks"]] = "ranks"

    @cached_property
    def averages(self) -> Floats:
        """Walsh averages in increasing order."""
        first, second = np.triu_indices(len(self.values))
        return np.sort((self.values[first] + self.values[second]) / 2)

    @property
    def chances(self) -> Floats:
        return null_distribution(len(self.values))

    @property
    def freedom(self) -> int:
        return len(self.values) - 1

    @property
    def typical(self) -> float:
        """Estimate of Hodges and Lehmann."""
        return float(np.median(self.averages))

    @property
    def error(self) -> float:
        """Standard error with which a t interval would be as long as the interval at the level 0.05."""
        low, high = self.limits(0.05)
        missed = float(self.chances[self._ranks_outside(0.05)])
        reach = (high - low) / 2 / t_quantile(1 - missed, self.freedom)
        return reach if reach > 0 else float(self.values.std(ddof=1)) / math.sqrt(len(self.values))

    @property
    def p(self) -> float:
        """Two-sided p-value."""
        return min(1.0, float(2 * self.chances[min(self._count_sides(0.0))]))

    @property
    def statistic(self) -> float:
        """Number of null standard deviations by which W is below its mean."""
        return (len(self.averages) / 2 - min(self._count_sides(0.0))) / self._deviation

    def p_equivalent(self, margin: float) -> float:
        """Return the larger p-value of the two one-sided tests at the margins."""
        return float(self.chances[max(self._count_sides(-margin)[0], self._count_sides(margin)[1])])

    def limits(self, level: float) -> tuple[float, float]:
        """Return the interval that excludes 0 exactly if p < `level`, which must be reachable."""
        k = self._ranks_outside(level)
        return float(self.averages[k]), float(self.averages[-1 - k])

    def level_of(self, critical: float) -> float:
        """Return the level at which p is below the level exactly if `statistic` is above a critical value."""
        first_inside = math.ceil(len(self.averages) / 2 - critical * self._deviation - 1e-9)
        return float(2 * self.chances[max(0, first_inside)])

    def p_without_each(self) -> Floats:
        """Return the (n,) p-values without one of the seeds."""
        sums = np.add.outer(self.values, self.values)
        sides = [(side.sum() + np.trace(side)) // 2 - side.sum(axis=1) for side in (sums <= 0, sums >= 0)]
        return np.asarray(np.minimum(2 * null_distribution(self.freedom)[np.minimum(*sides)], 1.0))

    @property
    def _deviation(self) -> float:
        n = len(self.values)
        return math.sqrt(n * (n + 1) * (2 * n + 1) / 24)

    def _count_sides(self, limit: float) -> tuple[int, int]:
        """Return how many Walsh averages are at most, and at least, a limit."""
        above, below = (int(np.searchsorted(self.averages, limit, side=side)) for side in ("right", "left"))
        return above, len(self.averages) - below

    def _ranks_outside(self, level: float) -> int:
        return int(np.searchsorted(2 * self.chances, level, side="left")) - 1


def signed_ranks(differences: Floats) -> Floats:
    """Return the (s, m) ranks of the sizes of residuals, with their signs, for (s, m) differences.

    A residual is the difference minus the typical difference of its column.
    """
    residuals = differences - np.array([SignedRanks(column).typical for column in differences.T])
    ranks = np.argsort(np.argsort(np.abs(residuals), axis=0), axis=0) + 1.0
    return np.asarray(np.sign(residuals) * ranks)
