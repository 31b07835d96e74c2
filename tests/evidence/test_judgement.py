from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedreach.evidence.corrections import LEVEL
from fedreach.evidence.judgement import judge
from fedreach.evidence.plan import AnalysisPlan
from fedreach.evidence.power import seeds_to_equate, seeds_to_find, shift_found
from fedreach.evidence.spread import spread, t_quantile


def by_seed(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


def test_the_paired_test_agrees_with_scipy() -> None:
    first, second = np.array([0.71, 0.74, 0.69, 0.77, 0.70]), np.array([0.70, 0.71, 0.70, 0.72, 0.66])
    (ours,), theirs = judge([by_seed(*(first - second))]), stats.ttest_rel(first, second)
    interval = theirs.confidence_interval(0.95)
    assert ours.p == ours.p_corrected == pytest.approx(theirs.pvalue, rel=1e-9)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), rel=1e-9)


def test_a_small_p_does_not_become_none() -> None:
    (found,) = judge([by_seed(*(0.5 + 1e-4 * np.sin(np.arange(40))))])
    assert 0 < found.p < 1e-100


def test_the_equivalence_p_is_that_of_two_one_sided_tests() -> None:
    values = np.array([0.004, -0.006, 0.009, 0.001, 0.003, -0.002])
    (found,) = judge([by_seed(*values)], margin=0.02)
    below = stats.ttest_1samp(values, 0.02, alternative="less").pvalue
    above = stats.ttest_1samp(values, -0.02, alternative="greater").pvalue
    assert found.p_equivalent == pytest.approx(max(below, above), rel=1e-9)
    assert found.verdict == "equivalent"


@pytest.mark.parametrize("correction", ["holm", "max_t"])
def test_the_interval_excludes_zero_exactly_where_the_corrected_p_is_below_the_level(correction: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        table = rng.normal(rng.uniform(-1, 1, 5), 1.0, (8, 5))
        for each in judge([by_seed(*column) for column in table.T], correction=correction):
            assert each.significant == (each.low > 0 or each.high < 0)
            assert each.p <= each.p_corrected


def test_swapping_the_methods_mirrors_everything() -> None:
    (one,), (other,) = (
        judge([by_seed(0.03, 0.01, 0.05)], margin=0.02),
        judge([by_seed(-0.03, -0.01, -0.05)], margin=0.02),
    )
    assert (other.mean, other.low, other.high, other.p) == pytest.approx((-one.mean, -one.high, -one.low, one.p))
    assert (one.detectable, one.seeds_needed) == (other.detectable, other.seeds_needed)
    clear = [0.05, 0.06, 0.055, 0.052]
    assert [judge([by_seed(*(s * np.array(clear)))])[0].verdict for s in (1, -1)] == ["better", "worse"]
    assert judge([by_seed(*clear)], lower_is_better=True)[0].verdict == "worse"


def test_one_seed_has_a_difference_but_no_test() -> None:
    (result,) = judge([by_seed(0.02)])
    assert (result.mean, result.low, result.p, result.verdict) == (0.02, None, None, "")
    assert "one seed" in result.note


@pytest.mark.parametrize("value", [0.0, 0.02, 0.1 + 0.2])
def test_equal_differences_are_not_called_significant(value: float) -> None:
    (result,) = judge([by_seed(value, value, value * (1 + 1e-16), value)])
    assert (result.mean, result.p, result.low, result.verdict) == (pytest.approx(value), None, None, "")
    assert "equal" in result.note


def test_what_cannot_be_tested_does_not_count_in_the_correction() -> None:
    good = by_seed(0.03, 0.01, 0.05)
    alone, among = judge([good])[0], judge([{}, good, by_seed(0.1), by_seed(0.1, np.nan)])[1]
    assert alone == among


def test_a_seed_without_a_number_leaves_no_mean_and_says_so() -> None:
    result = spread([0.7, np.nan, 0.8])
    assert (result.count, result.mean, result.sd) == (2, None, None)
    assert result.note == "1 of 3 seeds have no number"
    assert judge([by_seed(0.1, np.inf)])[0].p is None
    assert spread([]).note == "not measured"


def test_the_spread_of_two_seeds_is_known_in_closed_form() -> None:
    # sd of (a, b) is |a - b| / sqrt 2; the 0.975 quantile of one degree of freedom is tan(0.475 pi), and
    # divided by sqrt 2 the interval reaches tan(0.475 pi) |a - b| / 2 either way.
    result = spread([0.6, 0.8])
    assert result.sd == pytest.approx(0.2 / np.sqrt(2))
    assert result.high == pytest.approx(0.7 + np.tan(0.475 * np.pi) * 0.1)


def test_a_pilots_spread_is_the_spread_of_the_test_whatever_the_other_seeds_are() -> None:
    values = by_seed(0.01, 0.03, 0.02, 0.06, 0.9, -0.8)
    (found,) = judge([values], pilot=range(4))
    sd = np.std([0.01, 0.03, 0.02, 0.06], ddof=1)
    assert found.mean == pytest.approx(np.mean(list(values.values())))
    assert found.high - found.mean == pytest.approx(t_quantile(0.975, 3) * sd / math.sqrt(6))
    assert found.p == pytest.approx(2 * stats.t.sf(found.mean * math.sqrt(6) / sd, 3))


@pytest.mark.parametrize(("critical", "freedom"), [(2.776, 4), (3.5, 19), (4.303, 2)])
def test_the_shift_that_is_found_is_that_of_the_noncentral_t(critical: float, freedom: int) -> None:
    shift = shift_found(critical, freedom)
    assert stats.nct.sf(critical, freedom, shift) + stats.nct.cdf(-critical, freedom, shift) == pytest.approx(
        0.8, abs=2e-3
    )


def test_the_number_of_seeds_is_the_first_that_finds_the_difference() -> None:
    for difference, sd in ((0.02, 0.04), (0.01, 0.05), (0.05, 0.03)):
        seeds = seeds_to_find(difference, sd, LEVEL)
        assert seeds is not None

        def power(s: int, difference: float = difference, sd: float = sd) -> float:
            critical, shift = t_quantile(1 - LEVEL / 2, s - 1), math.sqrt(s) * difference / sd
            return float(stats.nct.sf(critical, s - 1, shift))

        assert power(seeds) >= 0.78
        assert power(seeds - 2) < 0.801
    assert seeds_to_find(0.0, 0.04, LEVEL) is None


def test_no_number_of_seeds_shows_an_equivalence_that_is_none() -> None:
    assert seeds_to_equate(0.03, 0.02, 0.04, LEVEL) is None
    assert seeds_to_equate(0.0, 0.02, 0.04, LEVEL) > seeds_to_equate(0.0, 0.02, 0.02, LEVEL)  # type: ignore[operator]


def test_the_contrasts_of_a_plan() -> None:
    assert AnalysisPlan().pairs(["a", "b", "c"], "b") == [("a", "b"), ("c", "b")]
    assert AnalysisPlan(contrasts=[["c", "a"]]).pairs(["a", "b", "c"], "b") == [("c", "a")]
