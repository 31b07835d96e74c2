from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedreach.report.analysis.statistics import holm, paired, spread

probabilities = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8)


@pytest.mark.parametrize("count", [2, 5, 31])
def test_differences_whose_interval_ends_at_zero_have_a_p_of_five_per_cent(count: int) -> None:
    differences = np.random.default_rng(count).standard_normal(count)
    result = paired(differences)
    assert result.low is not None
    assert paired(differences - result.low).p == pytest.approx(0.05, rel=1e-9)


def test_one_degree_of_freedom_is_the_cauchy_distribution() -> None:
    # Of 0 and 2 the mean is 1 and sd / sqrt 2 is 1, so t = 1; P(|T| > 1) = 1 - (2 / pi) arctan 1 = 1/2.
    assert paired([0.0, 2.0]).p == pytest.approx(0.5, rel=1e-14)


def test_a_far_tail_is_as_accurate_as_the_middle() -> None:
    """P(|T| <= t) of an even freedom is a finite sum: Abramowitz and Stegun, eq. 26.7.4, here with 150 digits."""
    differences = 1 + 1e-4 * np.linspace(-1, 1, 21)
    t, freedom = float(stats.ttest_1samp(differences, 0).statistic), 20
    with localcontext(prec=150):
        square = Decimal(t) ** 2
        cosine_squared = freedom / (freedom + square)
        summand = total = Decimal(1)
        for j in range(1, freedom // 2):
            summand *= cosine_squared * (2 * j - 1) / (2 * j)
            total += summand
        expected = float(1 - (square / (freedom + square)).sqrt() * total)
    assert 1e-100 < expected < 1e-80
    assert paired(differences).p == pytest.approx(expected, rel=1e-9, abs=0)


def test_the_paired_test_agrees_with_scipy() -> None:
    first, second = np.array([0.71, 0.74, 0.69, 0.77, 0.70]), np.array([0.70, 0.71, 0.70, 0.72, 0.66])
    ours, theirs = paired(first - second), stats.ttest_rel(first, second)
    interval = theirs.confidence_interval(0.95)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), rel=1e-9)


def test_swapping_the_methods_mirrors_the_difference_and_keeps_p() -> None:
    one, other = paired([0.03, 0.01, 0.05]), paired([-0.03, -0.01, -0.05])
    assert (other.mean, other.low, other.high, other.p) == pytest.approx((-one.mean, -one.high, -one.low, one.p))


def test_one_seed_has_a_difference_but_no_test() -> None:
    result = paired([0.02])
    assert (result.mean, result.low, result.p) == (0.02, None, None)
    assert "one seed" in result.note


@pytest.mark.parametrize("value", [0.0, 0.02, 0.1 + 0.2])
def test_equal_differences_are_not_called_significant(value: float) -> None:
    result = paired([value, value, value * (1 + 1e-16), value])
    assert (result.mean, result.p, result.low) == (pytest.approx(value), None, None)
    assert "equal" in result.note


def test_a_seed_without_a_number_leaves_no_mean_and_says_so() -> None:
    result = spread([0.7, np.nan, 0.8])
    assert (result.count, result.mean, result.sd) == (2, None, None)
    assert result.note == "1 of 3 seeds have no number"
    assert paired([0.1, np.inf]).p is None
    assert spread([]).note == "not measured"


def test_the_spread_of_two_seeds_is_known_in_closed_form() -> None:
    # sd of (a, b) is |a - b| / sqrt 2; the 0.975 quantile of one degree of freedom is tan(0.475 pi), and
    # divided by sqrt 2 the interval reaches tan(0.475 pi) |a - b| / 2 either way.
    result = spread([0.6, 0.8])
    assert result.sd == pytest.approx(0.2 / np.sqrt(2))
    assert result.high == pytest.approx(0.7 + np.tan(0.475 * np.pi) * 0.1)


def test_holm_on_a_worked_example() -> None:
    # Sorted: 0.005, 0.01, 0.03, 0.04. Times 4, 3, 2, 1: 0.02, 0.03, 0.06, 0.04; the last may not fall below 0.06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_does_not_count_tests_that_were_not_made() -> None:
    assert holm([None, 0.02, None]) == [None, 0.02, None]


@given(probabilities)
def test_holm_lies_between_the_raw_and_bonferronis_p(values: list[float]) -> None:
    corrected = holm(values)
    for raw, p in zip(values, corrected, strict=True):
        assert p is not None
        assert raw <= p <= min(1.0, len(values) * raw) + 1e-12


@given(probabilities, st.randoms(use_true_random=False))
def test_permuting_the_methods_permutes_holms_p(values: list[float], random) -> None:
    order = list(range(len(values)))
    random.shuffle(order)
    assert holm([values[i] for i in order]) == [holm(values)[i] for i in order]
