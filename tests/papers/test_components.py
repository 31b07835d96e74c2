"""Components of variance against a known truth; estimators with a planted fault are told from right ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from fedreach._util.arrays import Floats
from fedreach._util.errors import ConfigError
from papers.variance.components import Nested, Variance, mean_of, of_sample, round_noise

DRAWS = (6, 3, 2, 2)
TRUTHS = [(1.0, 1.0, 1.0, 1.0), (2.0, 0.0, 0.0, 1.0), (0.0, 2.0, 0.5, 1.0), (0.0, 0.0, 0.0, 1.0)]
"""Standard deviations of the four levels."""

Estimator = Callable[[Floats], list[float]]


def drawn(sds: tuple[float, ...], rng: np.random.Generator, draws: tuple[int, ...] = DRAWS) -> Floats:
    """Return one nested design whose levels have these standard deviations."""
    total = np.zeros(draws)
    for level, sd in enumerate(sds):
        total = total + sd * rng.standard_normal(draws[: level + 1] + (1,) * (len(draws) - level - 1))
    return total


def by_design(values: Floats) -> list[float]:
    made = Nested.of(values)
    return [made.component(level).value for level in range(values.ndim)]


def distance(estimator: Estimator, sds: tuple[float, ...], times: int = 400) -> float:
    """Return by how many standard errors the mean estimate is off the truth, at the worst level."""
    rng = np.random.default_rng(7)
    found = np.array([estimator(drawn(sds, rng)) for _ in range(times)])
    errors = found.std(axis=0, ddof=1) / math.sqrt(times)
    return float(np.abs((found.mean(axis=0) - np.square(sds)) / errors).max())


# ------------------------------------------------------------------------------------------------------ the truth


@pytest.mark.parametrize("sds", TRUTHS)
def test_components_are_unbiased_also_where_they_are_0(sds: tuple[float, ...]) -> None:
    assert distance(by_design, sds) < 4


FAULTS: dict[str, Estimator] = {
    "levels swapped": lambda y: by_design(y.transpose(1, 0, 2, 3)),
    "inner levels swapped": lambda y: by_design(y.transpose(0, 1, 3, 2)),
    "negative ones cut off": lambda y: [max(value, 0.0) for value in by_design(y)],
    "variances of means, with what is within them": lambda y: [
        float(y.mean(axis=(1, 2, 3)).var(ddof=1)),
        float(y.mean(axis=(2, 3)).var(axis=1, ddof=1).mean()),
        float(y.mean(axis=3).var(axis=2, ddof=1).mean()),
        float(y.var(axis=3, ddof=1).mean()),
    ],
    "divided by the number": lambda y: [value * (n - 1) / n for value, n in zip(by_design(y), y.shape, strict=True)],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen_in_one_of_the_truths(fault: str) -> None:
    assert any(distance(FAULTS[fault], sds) > 6 for sds in TRUTHS)


def test_a_difference_that_is_no_pair_has_more_variance_than_one_that_is() -> None:
    """What both methods share goes from a paired difference; of an unpaired one nothing goes: 1 + 1 at every level."""
    rng, paired, unpaired = np.random.default_rng(1), [], []
    for _ in range(200):
        shared, one, other = (drawn((1.0, 1.0, 1.0, 1.0), rng) for _ in range(3))
        mixed = shared.reshape(-1)[rng.permutation(shared.size)].reshape(shared.shape)
        paired.append(Nested.of((shared + 0.1 * other) - (shared + 0.1 * one)).of_one().value)
        unpaired.append(Nested.of((shared + 0.1 * other) - (mixed + 0.1 * one)).of_one().value)
    assert np.mean(paired) == pytest.approx(2 * 0.01 * 4, rel=0.1)
    assert np.mean(unpaired) > 20 * np.mean(paired)


@pytest.mark.parametrize("sds", TRUTHS[:3])
def test_intervals_cover_the_truth_as_often_as_they_say(sds: tuple[float, ...]) -> None:
    rng, times = np.random.default_rng(3), 500
    truths = [*np.square(sds), *(sum(np.square(sds[pinned:])) for pinned in range(4))]
    hits = np.zeros(8)
    for _ in range(times):
        made = Nested.of(drawn(sds, rng))
        found = [*map(made.component, range(4)), *map(made.of_one, range(4))]
        hits += [one.low <= truth <= one.high for one, truth in zip(found, truths, strict=True)]
    # 4 standard errors of a share of 0.95; where the truth is 0 the cut at 0 leaves one side only, 0.975.
    assert (abs(hits / times - 0.95) < 0.025 + 4 * math.sqrt(0.95 * 0.05 / times)).all(), hits / times
    exact = [hit for hit, truth in zip(hits, truths, strict=True) if truth]
    assert np.mean(exact) / times == pytest.approx(0.95, abs=0.015)


def test_a_component_is_sure_to_be_there_exactly_where_its_f_test_says_so() -> None:
    rng = np.random.default_rng(5)
    for _ in range(300):
        made = Nested.of(drawn((0.7, 0.7, 0.5, 1.0), rng))
        for level in range(3):
            ratio = made.mean_squares[level] / made.mean_squares[level + 1]
            p = stats.f.sf(ratio, made.freedom[level], made.freedom[level + 1])
            assert made.component(level).is_significant == (p < 0.025)


@pytest.mark.parametrize("freedom", [(2, 30), (5, 12), (12, 5), (40, 40)])
def test_both_limits_of_a_component_pass_0_where_an_f_test_turns(freedom: tuple[int, int]) -> None:
    """Ting et al. choose their factors such that a limit is 0 exactly where MS_1 / MS_2 is the quantile of F."""
    for probability, limit in ((0.975, "low"), (0.025, "high")):
        turn = stats.f.ppf(probability, *freedom)
        for nudge in (1 - 1e-6, 1 + 1e-6):
            made = Nested((3, 2), 0.0, np.array([turn * nudge, 1.0]), np.array(freedom))
            assert (getattr(made.component(0), limit) > 0) == (nudge > 1)


def test_the_innermost_interval_is_the_one_of_chi_squared() -> None:
    made = Nested.of(drawn((1.0, 1.0, 1.0, 1.0), np.random.default_rng(0)))
    inner, f = made.component(3), int(made.freedom[3])
    assert inner.low == pytest.approx(f * inner.value / stats.chi2.ppf(0.975, f))
    assert inner.high == pytest.approx(f * inner.value / stats.chi2.ppf(0.025, f))
    assert made.of_one(3) == inner


def test_what_is_twice_as_large_varies_four_times_as_much_at_the_same_degrees_of_freedom() -> None:
    y = drawn((1.0, 1.0, 1.0, 1.0), np.random.default_rng(11))
    for level in range(4):
        scaled, times = Nested.of(2 * y).component(level), Nested.of(y).component(level).times(4)
        assert (times.value, times.low, times.high) == pytest.approx((scaled.value, scaled.low, scaled.high))
        assert times.freedom == scaled.freedom


# -------------------------------------------------------------------------------------------------- what must hold


def test_by_hand() -> None:
    # Two groups of two: means 2 and 8, each number 1 off its mean. MS_1 = 2 (9 + 9) / 1 = 36, MS_2 = (4 x 1) / 2 = 2.
    made = Nested.of([[1.0, 3.0], [7.0, 9.0]])
    assert (made.mean, made.mean_squares.tolist(), made.freedom.tolist()) == (5.0, [36.0, 2.0], [1, 2])
    assert (made.component(0).value, made.component(1).value, made.of_one().value) == (17.0, 2.0, 19.0)
    # t_(0.975, 1) = 12.7062; the mean's variance is 36 / 4.
    assert made.of_mean() == pytest.approx((5 - 12.7062 * 3, 5 + 12.7062 * 3), rel=1e-5)
    # Satterthwaite: 19 = 1/2 36 + (1 - 1/2) 2, so 19^2 / (18^2 / 1 + 1^2 / 2).
    assert made.of_one().freedom == pytest.approx(361 / 324.5)


def test_mean_squares_are_those_of_a_one_way_analysis() -> None:
    y = drawn((1.0, 1.0), np.random.default_rng(2), (5, 4))
    made = Nested.of(y)
    assert made.mean_squares[0] / made.mean_squares[1] == pytest.approx(stats.f_oneway(*y).statistic)


def test_the_components_are_what_one_number_varies_by() -> None:
    made = Nested.of(drawn((1.0, 2.0, 0.5, 1.0), np.random.default_rng(4)))
    for pinned in range(4):
        parts = sum(made.component(level).value for level in range(pinned, 4))
        assert made.of_one(pinned).value == pytest.approx(parts)


def test_a_shift_changes_nothing_and_a_scale_its_square() -> None:
    y = drawn((1.0, 1.0, 1.0, 1.0), np.random.default_rng(6))
    one, shifted, scaled = Nested.of(y), Nested.of(y + 100), Nested.of(-3 * y)
    for level in range(4):
        a, b, c = (made.component(level) for made in (one, shifted, scaled))
        assert (b.value, b.low, b.high) == pytest.approx((a.value, a.low, a.high))
        assert (c.value, c.low, c.high) == pytest.approx((9 * a.value, 9 * a.low, 9 * a.high))


def test_a_spread_far_below_the_mean_is_no_rounding() -> None:
    y = drawn((1.0, 1.0, 1.0, 1.0), np.random.default_rng(13))
    one, small = Nested.of(y), Nested.of(0.7 + 1e-8 * y)
    assert small.mean_squares == pytest.approx(1e-16 * one.mean_squares, rel=1e-5)


def test_the_order_of_siblings_does_not_matter_but_that_of_cousins_does() -> None:
    rng = np.random.default_rng(8)
    y = drawn((1.0, 1.0, 1.0, 1.0), rng)
    siblings = y[rng.permutation(6)][:, :, :, ::-1]
    siblings = np.stack([partition[rng.permutation(3)] for partition in siblings])
    assert Nested.of(siblings).mean_squares == pytest.approx(Nested.of(y).mean_squares)
    cousins = y.copy()
    cousins[[0, 1], 0] = y[[1, 0], 0]
    assert abs(Nested.of(cousins).mean_squares[0] / Nested.of(y).mean_squares[0] - 1) > 1e-3


@pytest.mark.parametrize("shape", [(1, 2), (2, 1, 2), (2, 2, 2, 1), ()])
def test_what_is_drawn_once_cannot_be_told_apart(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="must be drawn at least twice"):
        Nested.of(np.zeros(shape))


def test_a_missing_number_and_a_design_all_pinned_are_refused() -> None:
    with pytest.raises(ConfigError, match="1 are missing"):
        Nested.of([[1.0, math.nan], [0.0, 1.0]])
    for pinned in (-1, 2):
        with pytest.raises(ConfigError, match=f"pinned must leave one of 2 levels; got {pinned}"):
            Nested.of([[1.0, 2.0], [0.0, 1.0]]).of_one(pinned)


def test_where_all_is_the_same_nothing_varies() -> None:
    made = Nested.of(np.full(DRAWS, 0.7))
    assert [made.component(level) for level in range(3)] == [Variance(0.0, 0.0, 0.0, f) for f in (5.0, 12.0, 18.0)]
    assert made.of_one().value == 0.0
    assert not made.of_one().is_significant
    assert made.of_one().freedom == 36.0  # of the innermost level, as Satterthwaite's are 0 / 0


# ------------------------------------------------------------------------------------- rounds, and clients


def test_noise_from_round_to_round_is_told_and_what_lasts_is_not() -> None:
    rng, found = np.random.default_rng(9), []
    for _ in range(300):
        level = 5 * rng.standard_normal((4, 3, 2, 1))  # a run's own, in all rounds
        rise = np.linspace(0, 1, 4) * 5 * rng.standard_normal((4, 3, 1, 1))  # a cell's own
        found.append(round_noise(level + rise + 0.5 * rng.standard_normal((4, 3, 2, 4))))
    values = np.array([one.value for one in found])
    assert values.mean() == pytest.approx(0.25, abs=4 * values.std() / math.sqrt(len(values)))
    assert np.mean([one.low <= 0.25 <= one.high for one in found]) == pytest.approx(0.95, abs=0.05)
    # 12 cells of one degree of freedom, 3 differences in a row: 2 x 9 / (3 x 3 - 1) each. Var v = 2 v^2 / f.
    assert found[0].freedom == pytest.approx(12 * 18 / 8)
    assert values.var() == pytest.approx(2 * 0.25**2 / found[0].freedom, rel=0.3)


def test_three_runs_a_cell_have_two_degrees_of_freedom_each() -> None:
    # Steps (1, -1), (-1, 1) and (0, 0), which have the mean 0: 1/2 * 4 / (2 * 2). Two steps count as 2 * 4 / 5 each.
    found = round_noise([[[0.0, 1.0, 0.0], [0.0, -1.0, 0.0], [3.0, 3.0, 3.0]]])
    assert (found.value, found.freedom) == pytest.approx((0.5, 2 * 8 / 5))


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 1)])
def test_one_run_or_one_round_has_no_noise_to_be_told(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="two runs a cell and two evaluated rounds"):
        round_noise(np.zeros(shape))


def test_the_variance_of_a_mean_of_n_is_that_of_one_by_n() -> None:
    rng = np.random.default_rng(10)
    samples = 2 * rng.standard_normal((4000, 8))
    assert np.mean([of_sample(row) for row in samples]) == pytest.approx(samples.mean(axis=1).var(), rel=0.1)
    assert of_sample([1.0, 3.0]) == 1.0  # two are enough: their variance is 2
    assert math.isnan(of_sample([0.5]))


def test_an_estimate_from_each_outer_draw_has_their_t_interval() -> None:
    # mean 2, sd 1, t_(0.975, 2) = 4.30265
    found = mean_of([1.0, 2.0, 3.0])
    assert (found.value, found.freedom) == (2.0, 2)
    assert found.low == 0.0
    assert found.high == pytest.approx(2 + 4.30265 / math.sqrt(3), rel=1e-5)
