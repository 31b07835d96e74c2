"""Analysis of variance of a balanced nested design, and two parts that are estimated within runs.

A design has L levels. Level 1 is drawn a_1 times; within each of its draws level 2 is drawn a_2 times, and so on, so
that the number of draw (i, j, ..., l) is mean + A_i + B_ij + ... + E_ij...l with independent terms. What is asked for
are the variances of these terms, the components.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import fdtri, gammaincinv, stdtrit

from fedreach._util.errors import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LEVEL = 0.95
_TAIL = (1 - LEVEL) / 2


@dataclass(frozen=True)
class Variance:
    """An estimated variance.

    `value` is unbiased, so that it may be negative where the truth is 0 or little; `low` and `high` are a 95%
    interval, cut off at 0. `freedom` are its degrees of freedom: below five or so the interval is wide in any case.
    """

    value: float
    low: float
    high: float
    freedom: float

    @property
    def cut(self) -> float:
        """The value, 0 where it is negative."""
        return max(self.value, 0.0)

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0

    def times(self, factor: float) -> Variance:
        """Return the variance of what is `factor` ** 0.5 times as large; 1 / n: of the mean of n independent ones.

        Example:
            >>> Variance(4.0, 2.0, 16.0, 5).times(1 / 4)
            Variance(value=1.0, low=0.5, high=4.0, freedom=5)
        """
        return type(self)(factor * self.value, factor * self.low, factor * self.high, self.freedom)


@dataclass(frozen=True, eq=False)
class Nested:
    """Mean squares of a balanced nested design of L levels, the outermost first.

    A level's mean square has the expectation E MS_m = sum over l >= m of w_l component_l with w_l = a_{l+1} ... a_L:
    its own component and those of all levels within it. So component m is (MS_m - MS_{m+1}) / w_m, which is unbiased.

    Intervals of differences are those of Ting, Burdick, Graybill, Jeyaratnam and Lu, of sums those of Graybill and
    Wang. The former keeps away from 0 exactly where the F test of the level says so at 2.5%.

    References:
        Searle, Casella, McCulloch (1992), Variance Components, section 3.
        Ting, Burdick, Graybill, Jeyaratnam, Lu (1990), Confidence intervals on linear combinations of variance
        components that are unrestricted in sign, J. Stat. Comput. Simul. 35, 135-143.
        Graybill, Wang (1980), Confidence intervals on nonnegative linear combinations of variances, J. Amer. Statist.
        Assoc. 75, 869-873.

    Example:
        >>> made = Nested.of([[1.0, 3.0], [7.0, 9.0]])              # means 2 and 8, each +- 1
        >>> made.mean_squares, made.freedom
        (array([36.,  2.]), array([1, 2]))
        >>> made.component(0).value, made.component(1).value        # (36 - 2) / 2, and 2
        (17.0, 2.0)
        >>> made.of_one().value == 17.0 + 2.0, made.of_one(pinned=1).value
        (True, 2.0)
    """

    draws: tuple[int, ...]  # (L,)
    mean: float
    mean_squares: Floats  # (L,)
    freedom: Ints  # (L,)

    @classmethod
    def of(cls, values: ArrayLike) -> Self:
        """Return the analysis of numbers (a_1, ..., a_L).

        Raises:
            ConfigError: If a level is drawn once only, or a number is missing.
        """
        y = np.asarray(values, np.float64)
        if y.ndim == 0 or min(y.shape) < 2:
            raise ConfigError(f"Every level of a nested design must be drawn at least twice; got {y.shape}.")
        if not np.isfinite(y).all():
            raise ConfigError(f"A nested design needs all its numbers; {int((~np.isfinite(y)).sum())} are missing.")
        means = [y]
        for _ in y.shape:
            means.insert(0, means[0].mean(axis=-1))
        squares, freedom = [], []
        for m, draws in enumerate(y.shape):
            apart = means[m + 1] - means[m][..., None]
            freedom.append(math.prod(y.shape[:m]) * (draws - 1))
            squares.append(math.prod(y.shape[m + 1 :]) * float((apart**2).sum()) / freedom[-1])
        rounding = (1e-12 * float(np.abs(y).max())) ** 2  # all that equal numbers leave
        mean_squares = [square if square > rounding else 0.0 for square in squares]
        return cls(y.shape, float(means[0]), np.array(mean_squares), np.array(freedom))

    def component(self, level: int) -> Variance:
        """Return the variance that one level adds; its degrees of freedom are those of the level."""
        factors = np.zeros(len(self.draws))
        factors[level] = 1 / self._within(level)
        if level + 1 < len(self.draws):
            factors[level + 1] = -factors[level]
        return self._combine(factors, float(self.freedom[level]))

    def of_one(self, pinned: int = 0) -> Variance:
        """Return the variance of one number whose levels are all drawn again, except the first `pinned` ones.

        It is the sum of the components from there on. Its degrees of freedom are Satterthwaite's.

        Raises:
            ConfigError: If nothing is left to be drawn.
        """
        if not 0 <= pinned < len(self.draws):
            raise ConfigError(f"pinned must leave one of {len(self.draws)} levels; got {pinned}.")
        factors = np.zeros(len(self.draws))
        for level in range(pinned, len(self.draws)):
            factors[level] += 1 / self._within(level)
            if level + 1 < len(self.draws):
                factors[level + 1] -= 1 / self._within(level)
        return self._combine(factors, self._satterthwaite(factors))

    def of_mean(self) -> tuple[float, float]:
        """Return the 95% t interval of the mean, by the first level's mean square and degrees of freedom."""
        reach = float(stdtrit(self.freedom[0], 1 - _TAIL)) * math.sqrt(self.mean_squares[0] / math.prod(self.draws))
        return self.mean - reach, self.mean + reach

    def _within(self, level: int) -> int:
        return math.prod(self.draws[level + 1 :])

    def _satterthwaite(self, factors: Floats) -> float:
        terms = factors * self.mean_squares
        below = float((terms**2 / self.freedom).sum())
        return float(terms.sum()) ** 2 / below if below > 0 else float(self.freedom[-1])

    def _combine(self, factors: Floats, freedom: float) -> Variance:
        """Return the sum of `factors` times mean squares, with its interval; at most one factor may be negative."""
        terms, value = factors * self.mean_squares, float(factors @ self.mean_squares)
        plus, minus = np.flatnonzero(factors > 0), np.flatnonzero(factors < 0)
        down = float(((_g(self.freedom[plus]) * terms[plus]) ** 2).sum())
        up = float(((_h(self.freedom[plus]) * terms[plus]) ** 2).sum())
        if len(minus):
            (added,), (subtracted,) = plus, minus
            f1, f2 = float(self.freedom[added]), float(self.freedom[subtracted])
            product = float(-terms[added] * terms[subtracted])
            top, bottom = (float(fdtri(f1, f2, p)) for p in (1 - _TAIL, _TAIL))
            g1, h1, g2, h2 = _g(f1), _h(f1), _g(f2), _h(f2)
            down += (h2 * terms[subtracted]) ** 2 + ((top - 1) ** 2 - (g1 * top) ** 2 - h2**2) / top * product
            up += (g2 * terms[subtracted]) ** 2 + ((1 - bottom) ** 2 - (h1 * bottom) ** 2 - g2**2) / bottom * product
        low, high = value - math.sqrt(max(down, 0.0)), value + math.sqrt(max(up, 0.0))
        return Variance(value, max(low, 0.0), max(high, 0.0), freedom)


def round_noise(series: ArrayLike) -> Variance:
    """Return the variance of what differs from one evaluated round to the next, and is gone in the one after.

    Half the mean squared successive difference, of which the mean over runs that differ in their batches alone is taken
    off first, so that what these have in common, such as a rise, does not count:
    v = 1/2 mean over cells, runs and t of (x_{t+1} - x_t - mean over the cell's runs)^2 d / (d - 1).
    It is a part of the innermost component, if it is as large in all these rounds, and what a mean over rounds can
    lower: a mean over r of them has v / r of it. Noise that lasts for several rounds does not count. T differences in a
    row count as 2 T^2 / (3 T - 1) degrees of freedom.

    Args:
        series: (..., d, T + 1) numbers of d >= 2 runs a cell in T + 1 >= 2 evaluated rounds.

    References:
        von Neumann, Kent, Bellinson, Hart (1941), The mean square successive difference, Ann. Math. Statist. 12,
        153-162.

    Example:
        >>> round_noise([[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]).value       # they rise alike
        0.0
        >>> round_noise([[0.0, 1.0, 0.0], [0.0, -1.0, 0.0]]).value      # +-1 around nothing: 1/2 * 1 * 2 / (2 - 1)
        1.0
    """
    x = np.asarray(series, np.float64)
    steps = np.diff(x, axis=-1)
    if x.ndim < 2 or x.shape[-2] < 2 or not steps.size:
        raise ConfigError(f"round_noise needs two runs a cell and two evaluated rounds; got {x.shape}.")
    apart = steps - steps.mean(axis=-2, keepdims=True)
    runs, t = math.prod(x.shape[:-2]) * (x.shape[-2] - 1), steps.shape[-1]
    freedom = runs * 2 * t**2 / (3 * t - 1)
    value = 0.5 * float((apart**2).sum()) / (runs * t)
    return Variance(value, value * (1 - float(_g(freedom))), value * (1 + float(_h(freedom))), freedom)


def of_sample(scores: ArrayLike) -> float:
    """Return the variance of the mean of n scores, were another n drawn like them: their variance, by n.

    Example:
        >>> of_sample([0.5, 0.7, 0.9])      # 0.04 / 3
        0.01333...
    """
    x = np.asarray(scores, np.float64)
    return float(x.var(ddof=1)) / len(x) if len(x) > 1 else math.nan


def mean_of(estimates: Sequence[float] | Floats) -> Variance:
    """Return the mean of one variance estimated in each of a >= 2 outermost draws, with its t interval over these.

    Example:
        >>> mean_of([1.0, 2.0, 3.0])
        Variance(value=2.0, low=0.0, high=4.48..., freedom=2)
    """
    x = np.asarray(estimates, np.float64)
    freedom = len(x) - 1
    reach = float(stdtrit(freedom, 1 - _TAIL)) * float(x.std(ddof=1)) / math.sqrt(len(x))
    value = float(x.mean())
    return Variance(value, max(value - reach, 0.0), value + reach, freedom)


def _g(freedom: ArrayLike) -> Floats:
    """Return 1 - f / (the upper quantile of chi squared): how far a mean square's lower limit lies below it."""
    return np.asarray(1 - np.asarray(freedom) / _chi_squared(freedom, 1 - _TAIL))


def _h(freedom: ArrayLike) -> Floats:
    """Return f / (the lower quantile of chi squared) - 1: how far its upper limit lies above it."""
    return np.asarray(np.asarray(freedom) / _chi_squared(freedom, _TAIL) - 1)


def _chi_squared(freedom: ArrayLike, probability: float) -> Floats:
    return np.asarray(2 * gammaincinv(np.asarray(freedom, np.float64) / 2, probability), np.float64)
