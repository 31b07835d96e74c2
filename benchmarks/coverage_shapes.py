"""Differences that are not normal: how often conclusions about them are false, with 3 to 60 seeds.

`benchmarks/coverage.py` runs these simulations and writes their tables into docs/records/coverage.md. The true typical
difference is the median of the distribution with fewer than ten seeds, where the t-test is used, and otherwise the
pseudo-median: the median of the mean of two independent differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

from fedreach._util.arrays import Floats
from fedreach.evaluation.ranks import null_distribution
from fedreach.evaluation.statistics import LEVEL, MIN_RANKED, PairedTest, SeedTest, detectable_shift, t_quantile
from tables import table

SEEDS = (3, 5, 10, 20, 60)
ONE_IN = 12
MOST_FALSE, LEAST_COVERED, MOST_POWER_LOST = 0.06, 0.94, 0.05
BATCH = 2_000
Compare = Callable[..., Sequence[PairedTest]]


class Shape(NamedTuple):
    """A distribution of differences."""

    draw: Callable[[np.random.Generator, int], Floats]  # n differences
    below: Callable[[float], float]  # probability of a difference below x
    mean_below: Callable[[float], float]  # probability that the mean of two differences is below x
    mean: float


def normal_mixture(draw: Callable[[np.random.Generator, int], Floats], drop: float, share: float) -> Shape:
    """Return the shape of normal differences of which a share is lower by `drop`."""

    def below(x: float) -> float:
        return (1 - share) * special.ndtr(x) + share * special.ndtr(x + drop)

    def mean_below(x: float) -> float:
        weights = (1 - share) ** 2, 2 * share * (1 - share), share**2
        return sum(w * special.ndtr((2 * x + k * drop) / math.sqrt(2)) for k, w in enumerate(weights))

    return Shape(draw, below, mean_below, -share * drop)


def collapsing(drop: float) -> Shape:
    """Return the shape of normal differences of which one in twelve is lower by `drop`."""
    return normal_mixture(lambda rng, n: rng.normal(size=n) - drop * (rng.random(n) < 1 / ONE_IN), drop, 1 / ONE_IN)


def symmetric(draw: Callable[[np.random.Generator, int], Floats]) -> Shape:
    return Shape(draw, special.ndtr, special.ndtr, 0.0)  # of which only the center, 0, is used


NODES = special.ndtri((np.arange(20_000) + 0.5) / 20_000)


def lognormal_mean_below(x: float) -> float:
    rest = 2 * x - np.exp(NODES)
    return float(np.where(rest > 0, special.ndtr(np.log(np.maximum(rest, 1e-300))), 0.0).mean())


SHAPES: dict[str, Shape] = {
    "normal": symmetric(lambda rng, n: rng.normal(size=n)),
    "t with 3 degrees of freedom": symmetric(lambda rng, n: rng.standard_t(3, n)),
    "normal, 10% with 5 times the sd": symmetric(
        lambda rng, n: rng.normal(size=n) * np.where(rng.random(n) < 0.1, 5.0, 1.0)
    ),
    "lognormal": Shape(
        lambda rng, n: np.exp(rng.normal(size=n)),
        lambda x: float(special.ndtr(np.log(max(x, 1e-300)))),
        lognormal_mean_below,
        math.exp(0.5),
    ),
    "one in 12 lower by 4 sd": collapsing(4.0),
    "one in 12 lower by 8 sd": collapsing(8.0),
    "one in 12 lower by 20 sd": collapsing(20.0),
}
"""Name -> distribution. "sd" is the standard deviation of runs without a collapse."""


@cache
def truth(name: str, seeds: int, test: SeedTest = "ranks") -> float:
    """Return the true value of what is tested."""
    shape = SHAPES[name]
    if test == "t":
        return shape.mean
    below = shape.mean_below if seeds >= MIN_RANKED else shape.below
    return float(optimize.brentq(lambda x: below(x) - 0.5, -30.0, 30.0))


def intervals(values: Floats, level: float, test: SeedTest = "ranks") -> tuple[Floats, Floats]:
    """Return the limits of (r, n) differences at a level: those of `run_paired_tests`, for many comparisons at once."""
    seeds = values.shape[1]
    if test == "t" or seeds < MIN_RANKED:
        reach = special.stdtrit(seeds - 1, 1 - level / 2) * values.std(axis=1, ddof=1) / math.sqrt(seeds)
        return values.mean(axis=1) - reach, values.mean(axis=1) + reach
    first, second = np.triu_indices(seeds)
    averages = np.sort((values[:, first] + values[:, second]) / 2, axis=1)
    k = int(np.searchsorted(2 * null_distribution(seeds), level)) - 1
    return averages[:, k], averages[:, -1 - k]


class Rates(NamedTuple):
    """Shares of comparisons."""

    missed: float  # the interval does not contain the true difference; so where this is 0, a difference is found
    equivalent: float  # equivalent, and the true difference is the margin; the larger share of its two signs


def rates(name: str, seeds: int, number: int, test: SeedTest = "ranks") -> Rates:
    """Return how often conclusions about one difference are false."""
    rng, true, counts = np.random.default_rng([number, seeds]), truth(name, seeds, test), np.zeros(3)
    for _ in range(0, number, BATCH):
        values = SHAPES[name].draw(rng, seeds * BATCH).reshape(BATCH, seeds) - true
        low, high = intervals(values, LEVEL, test)
        counts[0] += ((low > 0) | (high < 0)).mean()
        low, high = intervals(values, 2 * LEVEL, test)
        counts[1:] += (high < 0).mean(), (low > 0).mean()
    shares = counts / len(range(0, number, BATCH))
    return Rates(float(shares[0]), float(shares[1:].max()))


def power(seeds: int, number: int, compare: Compare, rng: np.random.Generator) -> tuple[float, float]:
    """Return how often a normal difference is found, by t and by default, if t finds it in about 80% of comparisons."""
    shift = detectable_shift(t_quantile(1 - LEVEL / 2, seeds - 1), seeds - 1) / math.sqrt(seeds)
    found = np.zeros(2)
    for _ in range(number):
        runs = np.zeros((seeds, 2))
        runs[:, 1] = rng.normal(shift, 1.0, seeds)
        found += [compare(runs, [(1, 0)], test=test)[0].significant for test in ("t", "ranks")]
    return float(found[0] / number), float(found[1] / number)


def unseen(seeds: int) -> float:
    """Return the probability that none of the runs collapsed."""
    return (1 - 1 / ONE_IN) ** seeds


def text(number: int, compare: Compare) -> str:
    """Return the tables of false conclusions: with the default test, and with the t-test about the mean."""
    head = ["differences", *(f"{seeds} seeds" for seeds in SEEDS)]

    def lines(test: SeedTest) -> list[list[str]]:
        each = {name: [rates(name, seeds, 5 * number, test) for seeds in SEEDS] for name in SHAPES}
        return [
            [name, *(f"{100 * r.missed:.1f} ({100 * r.equivalent:.1f})" for r in row)] for name, row in each.items()
        ]

    found = [power(seeds, number, compare, np.random.default_rng(2)) for seeds in SEEDS]
    powers = [[name, *(f"{100 * each[j]:.1f}" for each in found)] for j, name in enumerate(("t-test", "default"))]
    bound = [["no collapse in any run", *(f"{100 * unseen(seeds):.1f}" for seeds in SEEDS)]]
    return "\n\n".join(
        [
            f"Each cell has {5 * number} comparisons. It contains how often the interval misses the true difference, "
            "in %. If the true difference is 0, this is how often a difference is found. In parentheses is how often "
            "equivalence is found if the true difference is the margin.",
            "**Default test, typical difference**",
            table(head, lines("ranks"), 1),
            '**`test = "t"`, mean difference**',
            table(head, lines("t"), 1),
            "**Power for normal differences, and probability that no run collapses if one in 12 does, in %**",
            table(["", *head[1:]], [*powers, *bound], 1),
        ]
    )
