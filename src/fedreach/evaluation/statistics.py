"""Statistics of a comparison: paired tests, corrections, power and numbers of seeds."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedreach._util.arrays import Floats
from fedreach._util.component import Options
from fedreach.evaluation.ranks import SignedRanks, signed_ranks

# -------------------- Mean and spread over seeds

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """Mean and spread of a number over seeds; undefined values are None, and `note` states the reason."""

    count: int  # number of seeds with a value
    mean: float | None
    sd: float | None  # standard deviation, with denominator n - 1
    low: float | None  # limits of the 95% t interval of the mean
    high: float | None
    note: str = ""

    @property
    def partly_missing(self) -> bool:
        """Whether some seeds have a value, while other seeds have none."""
        return self.mean is None and self.count > 0


def spread(values: ArrayLike) -> Spread:
    """Compute the mean, standard deviation and 95% t interval of one value per seed.

    The interval is mean +- q sd / sqrt(s), where q is the 0.975 quantile of Student's t with s - 1 degrees of freedom.
    If a value is nan, the mean is None, because a mean that omits this seed could be too good.

    Example:
        >>> spread([0.5, 1.0, 1.5])
        Spread(count=3, mean=1.0, sd=0.5, low=-0.24..., high=2.24..., note='')
        >>> spread([0.70]).note
        'one seed: no spread'
    """
    array = np.asarray(values, dtype=np.float64)
    count = int(np.isfinite(array).sum())
    if count == 0:
        return Spread(0, None, None, None, None, "not measured")
    if count < len(array):
        return Spread(count, None, None, None, None, f"{len(array) - count} of {len(array)} seeds have no number")
    mean = float(array.mean())
    if count == 1:
        return Spread(1, mean, None, None, None, "one seed: no spread")
    sd = float(array.std(ddof=1))
    reach = t_quantile(0.5 + CONFIDENCE / 2, count - 1) * sd / math.sqrt(count)
    return Spread(count, mean, sd, mean - reach, mean + reach)


def t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile t with P(T <= t) = `probability` of Student's t.

    This module uses `scipy.special`, which computes the numbers of `scipy.stats` in 1% of the time.

    Example:
        >>> round(t_quantile(0.975, 4), 6)
        2.776445
    """
    from scipy import special

    return float(special.stdtrit(freedom, probability))


def t_tail(t: float, freedom: int) -> float:
    """Return P(T > t) of Student's t, which is also accurate for small probabilities.

    Example:
        >>> round(t_tail(2.776445, 4), 6)
        0.025
    """
    from scipy import special

    return float(special.stdtr(freedom, -t))


# -------------------- Analysis plan

Correction = Literal["holm", "max_t"]
SeedTest = Literal["ranks", "t"]
MIN_PILOT = 10  # seeds; quantiles of t for a smaller pilot require far more seeds


@dataclass(frozen=True)
class AnalysisPlan(Options):
    """Planned comparisons and tests, fixed before a comparison runs; the fields are the keys of `[statistics]`.

    Args:
        contrasts: Planned comparisons: ``"baseline"`` (each method minus the baseline), ``"all"`` (all pairs), or a
            list of pairs (first, second). Default: "baseline".
        correction: Correction for multiple comparisons, ``"holm"`` or ``"max_t"``. Default: "holm".
        test: Test over seeds. ``"ranks"``: the typical difference, by signed ranks with at least 10 seeds and by t with
            fewer. ``"t"``: the mean difference, which assumes normal differences. Default: "ranks".
        margin_points: Equivalence margin in percentage points, above 0 and at most 100. Default: 2.
        last_rounds: Number of last evaluated rounds. The comparison uses the mean over these rounds. Default: 1.
        detect_points: Difference in percentage points that the comparison should detect. Stein's procedure then
            determines the number of seeds. Default: the number of seeds is fixed.
        max_seeds: Largest number of seeds with `detect_points`. Default: 200.
    """

    contrasts: str | Sequence[Sequence[str]] = "baseline"
    correction: Correction = "holm"
    test: SeedTest = "ranks"
    margin_points: Annotated[float, "(0, 100]"] = 2.0
    last_rounds: Annotated[int, "[1, inf)"] = 1
    detect_points: Annotated[float | None, "(0, 100]"] = None
    max_seeds: Annotated[int, "[1, inf)"] = 200

    @property
    def margin(self) -> float:
        """Equivalence margin as a fraction."""
        return self.margin_points / 100

    def pairs(self, methods: Sequence[str], baseline: str) -> list[tuple[str, str]]:
        """Return the planned comparisons as pairs (first, second), each of which means first minus second.

        Example:
            >>> AnalysisPlan(contrasts="all").pairs(["a", "b", "c"], "a")
            [('b', 'a'), ('c', 'a'), ('c', 'b')]
        """
        if self.contrasts == "baseline":
            return [(method, baseline) for method in methods if method != baseline]
        if self.contrasts == "all":
            return [(second, first) for first, second in combinations(methods, 2)]
        return [(str(first), str(second)) for first, second in self.contrasts]


# -------------------- Power of paired t-tests

POWER = 0.8  # probability of detecting a true difference
MAX_REPORTED_SEEDS = 1_000_000  # larger numbers of seeds are not reported
NODES = 1000


@cache
def detectable_shift(critical: float, freedom: int) -> float:
    """Return the noncentrality for which |t| exceeds `critical` with probability `POWER`.

    With a true difference delta and s seeds, t = (Z + sqrt(s) delta / sd) / U. Z is standard normal, and U is the
    square root of a chi-square variable divided by its degrees of freedom. For a given U, the probability follows from
    the normal distribution. FedReach averages this probability over `NODES` equally likely values of U.

    Example:
        >>> round(detectable_shift(2.0, 1000), 2)  # with many degrees of freedom, critical + 0.84
        2.84
    """
    from scipy import special

    u = np.sqrt(2 * special.gammaincinv(freedom / 2, (np.arange(NODES) + 0.5) / NODES) / freedom)

    def chance(shift: float) -> float:
        return float((special.ndtr(shift - critical * u) + special.ndtr(-shift - critical * u)).mean())

    low, high = 0.0, 10 * critical + 10
    for _ in range(60):  # bisection, because scipy.optimize takes long to import
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) < POWER else (low, middle)
    return high


def seeds_to_find(difference: float, sd: float, level: float, pilot_freedom: int | None = None) -> int | None:
    """Return the approximate number of seeds that detect a true difference with probability `POWER`.

    This is the smallest s with sqrt(s) |difference| / sd >= t_(1 - level / 2) + t_POWER. The test has s - 1 degrees of
    freedom, or as many as a pilot (see `seeds_by_stein`). The result is None above `MAX_REPORTED_SEEDS`.

    Example:
        >>> seeds_to_find(0.02, 0.04, 0.05)
        34
    """
    return _seeds(abs(difference), sd, level / 2, 1 - POWER, pilot_freedom)


def seeds_to_equate(
    difference: float, margin: float, sd: float, level: float, pilot_freedom: int | None = None
) -> int | None:
    """Return the approximate number of seeds that show equivalence of a true difference with probability `POWER`.

    The one-sided test at the nearer limit determines s: sqrt(s) (margin - |difference|) / sd >= t_(1 - level) +
    t_POWER. For differences near 0, either test can fail, so each test may fail with probability (1 - POWER) / 2.
    """
    loss = (1 - POWER) / (2 if abs(difference) < 0.1 * margin else 1)
    return _seeds(margin - abs(difference), sd, level, loss, pilot_freedom)


def _seeds(room: float, sd: float, tail: float, loss: float, freedom: int | None) -> int | None:
    """Return the smallest s with sqrt(s) room / sd >= t_(1 - tail) + t_(1 - loss); None if it is too large."""

    def seeds_at(freedom: int) -> float:
        return (sd / room * (t_quantile(1 - tail, freedom) + t_quantile(1 - loss, freedom))) ** 2

    if room <= 0 or seeds_at(MAX_REPORTED_SEEDS) > MAX_REPORTED_SEEDS:
        return None
    if freedom is not None:
        return max(freedom + 1, math.ceil(seeds_at(freedom)))
    seeds = max(2, math.floor(seeds_at(MAX_REPORTED_SEEDS)))  # a lower bound, as t has wider tails for fewer seeds
    while seeds < seeds_at(seeds - 1):
        seeds += max(1, seeds // 500)
    return seeds


# -------------------- Corrections for multiple comparisons

LEVEL = 0.05  # family-wise error rate
DRAWS = 9_999  # draws for max-t; LEVEL * (DRAWS + 1) must be a whole number
CHUNK = 4_000_000  # normal numbers that are drawn at once


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by the step-down method of Holm (1979).

    For m p-values in increasing order, p'_(i) = min(1, max over j <= i of (m - j + 1) p_(j)). The family-wise error
    rate is at most the level, whatever the dependence between the tests.

    References:
        Holm (1979), A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6, 65-70.

    Example:
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    corrected, highest, m = [0.0] * len(p_values), 0.0, len(p_values)
    for rank, place in enumerate(np.argsort(p_values, kind="stable").tolist()):
        highest = max(highest, min(1.0, (m - rank) * p_values[place]))
        corrected[place] = highest
    return corrected


def holm_levels(p_values: Sequence[float]) -> list[float]:
    """Return the level at which Holm's method tests each p-value.

    A confidence interval at this level excludes 0 exactly if the adjusted p-value is below `LEVEL`. The i-th smallest
    p-value has the level LEVEL / (m - i + 1), as long as all smaller p-values are below their levels. The first p-value
    that is not below its level and all larger p-values have the same level. Equal p-values have equal levels. All
    levels are at most `LEVEL`, so each interval covers its difference in at least 95% of comparisons.

    Example:
        >>> [round(level, 4) for level in holm_levels([0.01, 0.04, 0.03])]
        [0.0167, 0.025, 0.025]
    """
    levels, m = [0.0] * len(p_values), len(p_values)
    level, before, stopped = LEVEL / max(m, 1), -1.0, False
    for rank, place in enumerate(np.argsort(p_values, kind="stable").tolist()):
        p = p_values[place]
        if not stopped and p > before:
            level, before = LEVEL / (m - rank), p
            stopped = p >= level
        levels[place] = level
    return levels


class MaxT(NamedTuple):
    """Distribution of the largest of m correlated |t| under the null hypothesis."""

    largest: Floats  # (DRAWS,) draws, increasing
    comparisons: int  # m
    freedom: int  # degrees of freedom

    @property
    def drawn_critical(self) -> float:
        """Critical value at `LEVEL` according to the draws."""
        return float(self.largest[-(round(LEVEL * (len(self.largest) + 1)) - 1)])

    @property
    def critical(self) -> float:
        """Critical |t| at `LEVEL`, which is the smaller of the critical values of max-t and Bonferroni."""
        return min(self.drawn_critical, t_quantile(1 - LEVEL / 2 / self.comparisons, self.freedom))

    def corrected_p(self, t: float, p: float) -> float:
        """Return the adjusted p-value of a t value: the probability that the largest |t| is at least this value."""
        reached = len(self.largest) - int(np.searchsorted(self.largest, abs(t), side="left"))
        # Draws are too coarse for small probabilities, for which Bonferroni's bound is valid.
        return min((1 + reached) / (1 + len(self.largest)), self.comparisons * p)


def max_t(differences: Floats, freedom: int) -> MaxT:
    """Return the distribution of max |t| for comparisons whose differences are correlated like the given differences.

    Comparisons with the same baseline, or of all pairs, use the same runs. So their differences are correlated. R is
    the correlation of the m differences over seeds. Then T_j = Z_j / sqrt(W_jj / v) with independent Z ~ N(0, R) and W
    ~ Wishart(v, R). As in paired tests, each t value has its own standard deviation. The multivariate t distribution
    has a common standard deviation, and would be too narrow.

    FedReach shrinks R toward 0 by 1/s for s seeds. With five seeds, intervals with the unshrunk estimate have 93.5%
    coverage instead of 95% (`benchmarks/coverage.py`). The distribution is approximated by `DRAWS` draws, whose
    seed is fixed.

    Args:
        differences: (s, m) differences, one row per seed and one column per comparison.
        freedom: Degrees of freedom v of the standard deviations.

    References:
        Westfall and Young (1993), Resampling-based multiple testing; Hothorn, Bretz and Westfall (2008), Simultaneous
        inference in general parametric models, Biometrical Journal 50, 346-363.
    """
    centred = differences - differences.mean(axis=0)
    norms = np.sqrt((centred**2).sum(axis=0))
    directions, little = centred / np.where(norms > 0, norms, 1.0), 1 / len(differences)
    # These rows have R = rows' rows. The SVD reduces them to the rank of R, so that fewer numbers are drawn.
    rows = np.vstack([math.sqrt(1 - little) * directions, math.sqrt(little) * np.eye(differences.shape[1])])
    _, sizes, axes = np.linalg.svd(rows, full_matrices=False)
    factor = (sizes[:, None] * axes)[sizes > 1e-9 * sizes.max(initial=1.0)]
    return MaxT(_largest(factor.tobytes(), factor.shape, freedom), differences.shape[1], freedom)


def max_ranks(differences: Floats) -> MaxT:
    """Return the distribution of the largest `SignedRanks.statistic` for comparisons with correlated differences.

    FedReach flips the signs of all residuals of a seed together, in `DRAWS` random ways (Westfall and Young, 1993).

    Args:
        differences: (s, m) differences, one row per seed and one column per comparison.
    """
    signed = signed_ranks(differences)
    return MaxT(_largest_ranks(signed.tobytes(), signed.shape), signed.shape[1], len(signed) - 1)


@lru_cache(maxsize=32)
def _largest_ranks(signed: bytes, shape: tuple[int, int]) -> Floats:
    """Draw and sort the largest statistic; `signed` (s, m) are ranks with the signs of their residuals."""
    ranks = np.frombuffer(signed, np.float64).reshape(shape)
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(20_07)))
    flips = rng.integers(0, 2, (DRAWS, shape[0])) - 0.5
    return np.sort(np.abs(flips @ ranks).max(axis=1) / np.sqrt((np.arange(1, shape[0] + 1) ** 2).sum() / 4))


@lru_cache(maxsize=32)
def _largest(factor: bytes, shape: tuple[int, int], freedom: int) -> Floats:
    """Draw and sort max |t|; `factor` (r, m) has R = factor' factor."""
    matrix = np.frombuffer(factor, np.float64).reshape(shape)
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(20_07)))
    step = max(1, CHUNK // ((freedom + 1) * shape[0]))
    parts = []
    for start in range(0, DRAWS, step):
        count = min(step, DRAWS - start)
        normal = rng.standard_normal((count, freedom + 1, shape[0])) @ matrix
        squares = (normal[:, 1:] ** 2).mean(axis=1)
        parts.append(np.abs(normal[:, 0] / np.sqrt(squares)).max(axis=1))
    return np.sort(np.concatenate(parts))


# -------------------- Number of seeds from a pilot


def seeds_by_stein(sd: float, freedom: int, difference: float, critical: float) -> int:
    """Return the number of seeds from Stein's two-stage procedure (Stein, 1945).

    This is the smallest s with sqrt(s) difference / sd >= critical + t_POWER. Here sd is the standard deviation of a
    pilot with v + 1 seeds, and v = `freedom`. A comparison with s seeds detects a true difference with probability
    `POWER` for any true standard deviation. The mean of all s seeds is independent of sd. So T = sqrt(s) (mean - delta)
    / sd has exactly Student's t distribution with v degrees of freedom.

    References:
        Stein (1945), A two-sample test for a linear hypothesis whose power is independent of the variance, Ann. Math.
        Statist. 16, 243-258.

    Example:
        >>> seeds_by_stein(0.04, 19, 0.02, 2.093)
        35
    """
    return max(freedom + 1, math.ceil((sd * (critical + t_quantile(POWER, freedom)) / difference) ** 2))


def plan_seeds(
    pilot: Sequence[Mapping[int, float]],
    difference: float,
    *,
    correction: Correction = "holm",
    test: SeedTest = "ranks",
) -> list[int | None]:
    """Return, for each comparison, the number of seeds that detects `difference` at the corrected level.

    Args:
        pilot: Differences of each comparison, by seed of the pilot.
        difference: Difference to detect, in the unit of the pilot's differences.
        correction: ``"holm"`` or ``"max_t"``. ``"holm"`` uses the level of Holm's first step, which is the Bonferroni
            level. Default: "holm".
        test: ``"ranks"`` or ``"t"``. With ``"ranks"``, the number of seeds is pi / 3 times as large, because signed
            ranks need so many more seeds if the differences are normal. Default: "ranks".

    Returns:
        Number of seeds of each comparison, including the pilot, or None if all differences are equal or a difference is
        missing.

    Example:
        >>> plan_seeds([{0: 0.00, 1: 0.04, 2: 0.02, 3: 0.06, 4: 0.03}], 0.02)
        [19]
    """
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in pilot))) if pilot else []
    if len(seeds) < 2:
        return [None] * len(pilot)
    table = np.array([[by_seed[seed] for by_seed in pilot] for seed in seeds])
    finite = np.isfinite(table).all(axis=0)
    sds = np.where(finite, table.std(axis=0, ddof=1), 0.0)
    tested = finite & (sds > 1e-12)
    if not tested.any():
        return [None] * len(pilot)
    freedom = len(seeds) - 1
    if correction == "max_t":
        critical = max_t(table[:, tested], freedom).critical
    else:
        critical = t_quantile(1 - LEVEL / 2 / int(tested.sum()), freedom)
    factor = math.sqrt(math.pi / 3) if test == "ranks" else 1.0
    needed = [seeds_by_stein(factor * sd, freedom, difference, critical) for sd in sds.tolist()]
    return [count if varies else None for count, varies in zip(needed, tested, strict=True)]


# -------------------- Paired tests of several comparisons, with one correction
# All comparisons of a table are one family. A paired test over seeds decides whether a difference exists. Two one-sided
# tests decide whether it is within the equivalence margin.
#
# Without an assumption, no test of the mean is valid: a collapse in one of 12 runs is missing from 3, 10 and 20 runs
# with probability 77%, 42% and 18%, and it may change the sign of the mean. A test that finds the difference of the
# other runs with power B finds a wrong sign with probability B (11/12)^s. So the tests are about the typical
# difference, which a rare collapse hardly changes. Student's t keeps its level for this difference with few seeds, and
# signed ranks with more seeds (`benchmarks/coverage.py`).

Conclusion = Literal["better", "worse", "equivalent", "inconclusive", ""]
MIN_RANKED = 10  # seeds; with fewer, signed ranks have too few different p-values
MIN_PATTERNS = 10  # sign patterns with p below the level of a comparison, for the same reason
OPPOSITE = "no conclusion, because the mean and the typical difference have opposite signs"


@dataclass(frozen=True)
class PairedTest:
    """Mean and typical difference over seeds and tests; undefined values are None, and `note` states the reason."""

    count: int  # number of pairs of runs with the same seed and clients
    mean: float | None
    low: float | None = None  # limits of the interval of `typical`, at the level of the corrected test
    high: float | None = None
    p: float | None = None  # two-sided p-value of the paired test, not adjusted
    p_corrected: float | None = None  # adjusted p-value; below 0.05 exactly if the interval excludes 0
    p_equivalent: float | None = None  # Holm-adjusted p-value of the two one-sided tests for equivalence
    mde: float | None = None  # smallest true difference that is detected with 80% power
    seeds_needed: int | None = None  # if inconclusive: approximate number of seeds for a conclusion
    seeds_needed_high: int | None = None  # the largest such number within 95% intervals; None: unlimited
    typical: float | None = None  # the difference that is tested: the pseudo-median with ranks, the mean with t
    conclusion: Conclusion = ""  # "" if not tested
    test: SeedTest | None = None
    deciding: tuple[int, ...] = ()  # seeds without one of which *better* or *worse* would be inconclusive
    note: str = ""

    @property
    def significant(self) -> bool:
        """Whether the adjusted p-value is below 0.05."""
        return self.p_corrected is not None and self.p_corrected < LEVEL

    @property
    def estimate(self) -> float | None:
        """Typical difference, or the mean if nothing was tested."""
        return self.mean if self.typical is None else self.typical

    @property
    def is_skewed(self) -> bool:
        """Whether a few seeds move the mean out of the interval of the typical difference."""
        return None not in (self.mean, self.low, self.high) and not self.low <= self.mean <= self.high  # type: ignore[operator]


@dataclass(frozen=True, eq=False)
class _TTest:
    """Paired t-test of the mean: t = sqrt(s) mean / sd with `freedom` degrees of freedom."""

    values: Floats
    sd: float
    freedom: int
    name: ClassVar[Literal["t"]] = "t"

    @property
    def typical(self) -> float:
        return float(self.values.mean())

    @property
    def error(self) -> float:
        return self.sd / math.sqrt(len(self.values))

    @property
    def statistic(self) -> float:
        return abs(self.typical) / self.error

    @property
    def p(self) -> float:
        return self.level_of(self.statistic)

    def level_of(self, critical: float) -> float:
        return 2 * t_tail(critical, self.freedom)

    def p_equivalent(self, margin: float) -> float:
        return t_tail((margin - abs(self.typical)) / self.error, self.freedom)

    def limits(self, level: float) -> tuple[float, float]:
        reach = t_quantile(1 - level / 2, self.freedom) * self.error
        return self.typical - reach, self.typical + reach

    def p_without_each(self) -> Floats:
        rests = [np.delete(self.values, place) for place in range(len(self.values))]
        if len(rests) < 3:
            return np.ones(len(rests))
        return np.array([_TTest(rest, max(float(rest.std(ddof=1)), 1e-300), len(rest) - 1).p for rest in rests])


_Test = _TTest | SignedRanks


def run_paired_tests(
    differences: Sequence[Mapping[int, float]],
    *,
    correction: Correction = "holm",
    margin: float | None = None,
    pilot: Collection[int] | None = None,
    lower_is_better: bool = False,
    test: SeedTest = "ranks",
) -> tuple[PairedTest, ...]:
    """Test several paired differences over seeds, with one correction for all tests.

    - The interval excludes 0 exactly if the adjusted p-value is below 0.05.
    - The conclusion is *better* or *worse* if the adjusted p-value is below 0.05. Otherwise, it is *equivalent* if the
      adjusted p-values of both one-sided tests are below 0.05. Otherwise, it is *inconclusive*, and the result contains
      the number of seeds that would be required if the observed difference were the true difference.
    - If the mean and the typical difference have opposite signs, no difference is called better or worse.
    - `mde` is the smallest true difference that is detected with 80% power at the corrected level.
    - If a pilot determined the number of seeds (Stein), a t-test uses the larger standard deviation of the pilot and of
      all seeds, with the degrees of freedom of the pilot.

    Args:
        differences: Differences by seed for each comparison: first method minus second method, with the same seed and
            clients.
        correction: ``"holm"`` or ``"max_t"``. Default: "holm".
        margin: Equivalence margin in the unit of the differences. Default: no equivalence tests.
        pilot: Seeds of the pilot. Default: no pilot.
        lower_is_better: Count a negative difference as better. Default: False.
        test: ``"ranks"``: signed ranks (see `SignedRanks`) with at least 10 seeds, or a few more for many comparisons,
            and the t-test with fewer. ``"t"``: the t-test. Default: "ranks".

    References:
        Holm (1979); Wilcoxon (1945); Schuirmann (1987), two one-sided tests, J. Pharmacokinet. Biopharm. 15, 657-680.

    Example:
        >>> found, unsure = run_paired_tests([{0: 0.05, 1: 0.06, 2: 0.07}, {0: -0.01, 1: 0.02, 2: 0.01}], margin=0.02)
        >>> found.conclusion, round(found.p_corrected, 3), unsure.conclusion, unsure.seeds_needed
        ('better', 0.018, 'inconclusive', 13)
    """
    tests = _tests(differences, pilot, correction, test)
    valid = {j: paired for j, paired in enumerate(tests) if not isinstance(paired, PairedTest)}
    p_values, share = [paired.p for paired in valid.values()], LEVEL / max(len(valid), 1)
    together = None
    if correction == "max_t" and valid:
        together = _together([differences[j] for j in valid], [*valid.values()], pilot)
    if together is None:
        corrected, levels = holm(p_values), holm_levels(p_values)
        planned = [share] * len(valid)
    else:
        corrected = [together.corrected_p(paired.statistic, paired.p) for paired in valid.values()]
        levels = planned = [max(paired.level_of(together.drawn_critical), share) for paired in valid.values()]
    equal = None if margin is None else holm([paired.p_equivalent(margin) for paired in valid.values()])
    judged: dict[int, PairedTest] = {}
    for i, (j, paired) in enumerate(valid.items()):
        mean, typical, (low, high) = float(paired.values.mean()), paired.typical, paired.limits(levels[i])
        conclusion: Conclusion = "inconclusive"
        deciding: tuple[int, ...] = ()
        num_seeds: tuple[int | None, int | None] = (None, None)
        opposite = mean * typical < 0 and corrected[i] < LEVEL
        if corrected[i] < LEVEL and not opposite:
            conclusion = "better" if (typical > 0) is not lower_is_better else "worse"
            seeds = np.array([*differences[j]])
            deciding = tuple(seeds[paired.p_without_each() >= levels[i]].tolist())
        elif equal is not None and equal[i] < LEVEL:
            conclusion = "equivalent"
        elif not opposite:
            num_seeds = _seeds_needed(paired, (low, high), margin, share, pilot is not None)
        critical = t_quantile(1 - planned[i] / 2, paired.freedom)
        is_pilot = pilot is not None and paired.name == "t"
        shift = critical + t_quantile(POWER, paired.freedom) if is_pilot else detectable_shift(critical, paired.freedom)
        judged[j] = PairedTest(
            len(paired.values),
            mean,
            low=low,
            high=high,
            p=paired.p,
            p_corrected=corrected[i],
            p_equivalent=None if equal is None else equal[i],
            mde=paired.error * shift,
            seeds_needed=num_seeds[0],
            seeds_needed_high=num_seeds[1],
            typical=typical,
            conclusion=conclusion,
            test=paired.name,
            deciding=deciding,
            note=OPPOSITE if opposite else "",
        )
    return tuple(paired if isinstance(paired, PairedTest) else judged[j] for j, paired in enumerate(tests))


def run_paired_test(differences: ArrayLike) -> PairedTest:
    """Test a single difference; the values are in the order of the seeds.

    Example:
        >>> found = run_paired_test([0.01, 0.02, 0.03])
        >>> round(found.mean, 3), round(found.low, 4), round(found.p, 3)
        (0.02, -0.0048, 0.074)
    """
    return run_paired_tests([dict(enumerate(np.asarray(differences, np.float64).tolist()))])[0]


def _tests(
    differences: Sequence[Mapping[int, float]], pilot: Collection[int] | None, correction: Correction, test: SeedTest
) -> list[_Test | PairedTest]:
    """Return the test of each comparison, or a result with the reason why it is undefined."""
    tests: list[_Test | PairedTest] = [_t_test(by_seed, pilot) for by_seed in differences]
    counts = [len(paired.values) for paired in tests if not isinstance(paired, PairedTest)]

    def is_ranked(count: int) -> bool:
        return test == "ranks" and count >= MIN_RANKED and 2**count * LEVEL / len(counts) >= MIN_PATTERNS

    if correction == "max_t" and not all(map(is_ranked, counts)):
        return tests  # the largest of t values and ranks has no meaning
    return [
        paired if isinstance(paired, PairedTest) or not is_ranked(len(paired.values)) else SignedRanks(paired.values)
        for paired in tests
    ]


def _t_test(differences: Mapping[int, float], pilot: Collection[int] | None) -> _Test | PairedTest:
    values = np.array(list(differences.values()), np.float64)
    over = spread(values)
    of_pilot = over if pilot is None else spread([differences[seed] for seed in pilot if seed in differences])
    if over.mean is None or over.sd is None or of_pilot.sd is None:
        note = "one seed: no interval, no test" if over.count == 1 else over.note or "no pilot"
        return PairedTest(over.count, over.mean, note=note)
    # The standard deviation of equal differences is a rounding error, so t would be meaningless.
    sd = max(over.sd, of_pilot.sd)
    if sd <= 1e-12 * max(1.0, float(np.abs(values).max())):
        return PairedTest(over.count, over.mean, note="no test, because all differences are equal")
    return _TTest(values, sd, of_pilot.count - 1)


def _seeds_needed(
    test: _Test, limits: tuple[float, float], margin: float | None, level: float, of_pilot: bool
) -> tuple[int | None, int | None]:
    """Return the number of seeds for a conclusion, and an upper limit of this number.

    The number is for the observed difference and standard deviation. The limit is the largest number for differences
    within `limits`, with the upper limit of the 95% interval of the standard deviation of normal differences.
    """
    from scipy import special

    count, freedom = len(test.values), test.freedom if of_pilot else None
    sd = test.error * math.sqrt(count)

    def num_needed(difference: float, sd: float) -> int | None:
        numbers = [seeds_to_find(difference, sd, level, freedom)] if difference else []
        if margin is not None:
            numbers.append(seeds_to_equate(difference, margin, sd, level, freedom))
        # A p-value just above the level would give fewer seeds than there are, but at least one more is needed.
        finite = [max(number, count + 1) for number in numbers if number is not None]
        return min(finite, default=None)

    # At this difference, both conclusions need about the same number of seeds, which is larger than at any other.
    find, equate, power = (t_quantile(1 - tail, MAX_REPORTED_SEEDS) for tail in (level / 2, level, 1 - POWER))
    hardest = 0.0 if margin is None else margin * (find + power) / (find + equate + 2 * power)
    largest = sd * math.sqrt(test.freedom / float(special.chdtri(test.freedom, 1 - LEVEL / 2)))
    return num_needed(test.typical, sd), num_needed(min(hardest, max(map(abs, limits))), largest)


def _together(
    differences: Sequence[Mapping[int, float]], tests: Sequence[_Test], pilot: Collection[int] | None
) -> MaxT | None:
    """Return the distribution of the largest statistic, from the seeds that all comparisons share; None if too few."""
    is_ranked = tests[0].name == "ranks"
    shared = set.intersection(*map(set, differences))
    if pilot is not None and not is_ranked:
        shared &= set(pilot)
    if len(shared) < (MIN_RANKED if is_ranked else 2):
        return None
    table: Floats = np.array([[by_seed[seed] for by_seed in differences] for seed in sorted(shared)])
    return max_ranks(table) if is_ranked else max_t(table, min(paired.freedom for paired in tests))
