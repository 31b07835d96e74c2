from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedreach._util.errors import ConfigError
from fedreach.evaluation.statistics import (
    LEVEL,
    AnalysisPlan,
    detectable_shift,
    max_t,
    plan_seeds,
    run_paired_test,
    run_paired_tests,
    seeds_to_equate,
    seeds_to_find,
    spread,
    t_quantile,
)


def by_seed(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


def test_the_paired_test_agrees_with_scipy() -> None:
    first, second = np.array([0.71, 0.74, 0.69, 0.77, 0.70]), np.array([0.70, 0.71, 0.70, 0.72, 0.66])
    (ours,), theirs = run_paired_tests([by_seed(*(first - second))]), stats.ttest_rel(first, second)
    interval = theirs.confidence_interval(0.95)
    assert ours.p == ours.p_corrected == pytest.approx(theirs.pvalue, rel=1e-9)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert run_paired_test(first - second) == ours


def test_a_small_p_does_not_become_none() -> None:
    values = by_seed(*(0.5 + 1e-4 * np.sin(np.arange(40))))
    assert 0 < run_paired_tests([values], test="t")[0].p < 1e-100
    assert run_paired_tests([values])[0].p == pytest.approx(2 / 2**40)


def test_the_equivalence_p_is_that_of_two_one_sided_tests() -> None:
    values = np.array([0.004, -0.006, 0.009, 0.001, 0.003, -0.002])
    (found,) = run_paired_tests([by_seed(*values)], margin=0.02)
    below = stats.ttest_1samp(values, 0.02, alternative="less").pvalue
    above = stats.ttest_1samp(values, -0.02, alternative="greater").pvalue
    assert found.p_equivalent == pytest.approx(max(below, above), rel=1e-9)
    assert found.conclusion == "equivalent"


@pytest.mark.parametrize("seeds", [8, 14])  # by t, and by ranks
@pytest.mark.parametrize("correction", ["holm", "max_t"])
def test_the_interval_excludes_zero_exactly_where_the_corrected_p_is_below_the_level(
    correction: str, seeds: int
) -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        table = rng.normal(rng.uniform(-1, 1, 5), 1.0, (seeds, 5))
        for each in run_paired_tests([by_seed(*column) for column in table.T], correction=correction):
            assert each.significant == (each.low > 0 or each.high < 0)
            assert each.p <= each.p_corrected


def test_equivalences_of_several_comparisons_share_one_level() -> None:
    near, nearer = by_seed(0.004, -0.006, 0.019, 0.001, 0.013), by_seed(0.001, -0.002, 0.004, 0.003, 0.002)
    several, margin = (near, nearer), 0.0165
    raw = []
    for values in map(list, (each.values() for each in several)):
        t = (margin - abs(np.mean(values))) / stats.sem(values)
        raw.append(float(stats.t.sf(t, 4)))
    assert LEVEL / 2 < raw[0] < LEVEL  # alone, it would be equivalent
    found = run_paired_tests([*several, by_seed(0.2, -0.3, 0.1, 0.0, 0.1)], margin=margin)
    assert [each.p_equivalent for each in found[:2]] == pytest.approx([2 * raw[0], 3 * raw[1]], rel=1e-9)
    assert [each.conclusion for each in found[:2]] == ["inconclusive", "equivalent"]
    mean, sd = float(np.mean(list(near.values()))), float(np.std(list(near.values()), ddof=1))
    decided = seeds_to_find(mean, sd, LEVEL / 3), seeds_to_equate(mean, margin, sd, LEVEL / 3)
    assert found[0].seeds_needed == min(number for number in decided if number is not None)
    assert found[0].seeds_needed not in (seeds_to_equate(mean, margin, sd, LEVEL), seeds_to_find(mean, sd, LEVEL))


def test_swapping_the_methods_mirrors_everything() -> None:
    (one,), (other,) = (
        run_paired_tests([by_seed(0.03, 0.01, 0.05)], margin=0.02),
        run_paired_tests([by_seed(-0.03, -0.01, -0.05)], margin=0.02),
    )
    assert (other.mean, other.low, other.high, other.p) == pytest.approx((-one.mean, -one.high, -one.low, one.p))
    assert (one.mde, one.seeds_needed) == (other.mde, other.seeds_needed)
    clear = [0.05, 0.06, 0.055, 0.052]
    assert [run_paired_tests([by_seed(*(s * np.array(clear)))])[0].conclusion for s in (1, -1)] == ["better", "worse"]
    assert run_paired_tests([by_seed(*clear)], lower_is_better=True)[0].conclusion == "worse"


def test_one_seed_has_a_difference_but_no_test() -> None:
    (result,) = run_paired_tests([by_seed(0.02)])
    assert (result.count, result.mean, result.low, result.p, result.conclusion) == (1, 0.02, None, None, "")
    assert result.note == "one seed: no interval, no test"
    assert spread([0.02]).count == 1
    (result,) = run_paired_tests([by_seed(0.02, 0.03)], pilot=[5, 6])
    assert (result.count, result.p) == (2, None)
    assert "one seed" not in result.note


@pytest.mark.parametrize("value", [0.0, 0.02, 0.1 + 0.2, 1000 / 3])
def test_equal_differences_are_not_called_significant(value: float) -> None:
    (result,) = run_paired_tests([by_seed(value, value, np.nextafter(value, 2 * value), value)])
    assert (result.mean, result.p, result.low, result.conclusion) == (pytest.approx(value), None, None, "")
    assert "equal" in result.note


def test_what_cannot_be_tested_does_not_count_in_the_correction() -> None:
    good = by_seed(0.03, 0.01, 0.05)
    alone, among = run_paired_tests([good])[0], run_paired_tests([{}, good, by_seed(0.1), by_seed(0.1, np.nan)])[1]
    assert alone == among


def test_a_seed_without_a_number_leaves_no_mean_and_says_so() -> None:
    result = spread([0.7, np.nan, 0.8])
    assert (result.count, result.mean, result.sd) == (2, None, None)
    assert result.note == "1 of 3 seeds have no number"
    assert run_paired_tests([by_seed(0.1, np.inf)])[0].p is None
    assert spread([]).note == "not measured"


def test_the_spread_of_two_seeds_is_known_in_closed_form() -> None:
    # sd of (a, b) is |a - b| / sqrt 2; the 0.975 quantile of one degree of freedom is tan(0.475 pi), and
    # divided by sqrt 2 the interval reaches tan(0.475 pi) |a - b| / 2 either way.
    result = spread([0.6, 0.8])
    assert result.sd == pytest.approx(0.2 / np.sqrt(2))
    assert result.high == pytest.approx(0.7 + np.tan(0.475 * np.pi) * 0.1)


@pytest.mark.parametrize("later", [(0.9, -0.8), (0.03, 0.03)])
def test_after_a_pilot_the_larger_spread_is_that_of_the_t_test(later: tuple[float, float]) -> None:
    """The pilot's spread alone would cover 88 to 94% where differences have heavy tails."""
    values = by_seed(0.01, 0.03, 0.02, 0.06, *later)
    (found,) = run_paired_tests([values], pilot=range(4))
    sd = max(np.std([0.01, 0.03, 0.02, 0.06], ddof=1), np.std(list(values.values()), ddof=1))
    assert found.mean == pytest.approx(np.mean(list(values.values())))
    assert found.high - found.mean == pytest.approx(t_quantile(0.975, 3) * sd / math.sqrt(6))
    assert found.p == pytest.approx(2 * stats.t.sf(found.mean * math.sqrt(6) / sd, 3))


@pytest.mark.parametrize(("critical", "freedom"), [(2.776, 4), (3.5, 19), (4.303, 2)])
def test_the_shift_that_is_found_is_that_of_the_noncentral_t(critical: float, freedom: int) -> None:
    shift = detectable_shift(critical, freedom)
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


def test_no_number_of_seeds_is_below_those_of_the_pilot_that_were_run() -> None:
    assert seeds_to_find(1.0, 0.01, LEVEL, pilot_freedom=9) == 10
    assert seeds_to_find(1.0, 0.01, LEVEL) == 2  # the fewest that have a spread


@pytest.mark.parametrize("correction", ["holm", "max_t"])
def test_stein_takes_the_pilots_spread_and_freedom_and_the_level_of_what_can_be_tested(correction: str) -> None:
    first, second = np.array([0.00, 0.04, 0.02, 0.06, 0.03]), np.array([0.01, -0.02, 0.05, 0.02, -0.04])
    equal, missing = by_seed(*[0.02] * 5), by_seed(0.1, 0.2, np.nan, 0.1, 0.0)
    several = [by_seed(*first), equal, by_seed(*second), missing]
    critical = float(stats.t.isf(LEVEL / 2 / 2, 4))
    if correction == "max_t":
        critical = max_t(np.column_stack([first, second]), 4).critical
    reach = critical + stats.t.ppf(0.8, 4)
    for test, factor in (("t", 1.0), ("ranks", math.pi / 3)):
        wanted = [math.ceil(factor * (reach * np.std(values, ddof=1) / 0.02) ** 2) for values in (first, second)]
        found = plan_seeds(several, 0.02, correction=correction, test=test)  # type: ignore[arg-type]
        assert found == [wanted[0], None, wanted[1], None]
    assert plan_seeds(several, 10.0, correction=correction) == [5, None, 5, None]  # type: ignore[arg-type]


def test_max_t_has_the_fewest_degrees_of_freedom_of_its_comparisons() -> None:
    """They have 8 and 6 seeds, of which 4 are the same and give the correlation."""
    rng = np.random.default_rng(3)
    first, second = ({seed: float(rng.normal()) for seed in seeds} for seeds in (range(8), range(4, 10)))
    shared = np.array([[first[seed], second[seed]] for seed in range(4, 8)])
    for found, values in zip(run_paired_tests([first, second], correction="max_t"), (first, second), strict=True):
        bonferroni = t_quantile(1 - LEVEL / 4, len(values) - 1)  # of its own degrees of freedom
        reach = min(max_t(shared, 5).drawn_critical, bonferroni) * stats.sem(list(values.values()))
        assert (found.low, found.high) == pytest.approx((found.mean - reach, found.mean + reach))


def test_no_number_of_seeds_shows_an_equivalence_that_is_none() -> None:
    assert seeds_to_equate(0.03, 0.02, 0.04, LEVEL) is None
    assert seeds_to_equate(0.0, 0.02, 0.04, LEVEL) > seeds_to_equate(0.0, 0.02, 0.02, LEVEL)  # type: ignore[operator]


@pytest.mark.parametrize("difference", [0.0, 0.004])
def test_near_zero_either_limit_of_an_equivalence_may_fail(difference: float) -> None:
    seeds = seeds_to_equate(difference, 0.02, 0.04, LEVEL)
    assert seeds is not None

    def power(s: int) -> float:
        within = 0.02 - t_quantile(1 - LEVEL, s - 1) * 0.04 / math.sqrt(s)  # of |mean|, for both tests to reject
        error = 0.04 / math.sqrt(s)
        return float(stats.norm.cdf((within - difference) / error) - stats.norm.cdf((-within - difference) / error))

    assert power(seeds) >= 0.785
    assert power(seeds - 2) < 0.805


def test_what_is_detectable_is_found_at_the_level_of_all_comparisons() -> None:
    differences = [by_seed(0.01, 0.02, 0.06, -0.03), by_seed(0.03, -0.01, 0.02, 0.05)]
    critical = t_quantile(1 - LEVEL / 2 / 2, 3)
    for found, each in zip(run_paired_tests(differences), differences, strict=True):
        error = float(np.std(list(each.values()), ddof=1)) / 2
        assert found.mde == pytest.approx(error * detectable_shift(critical, 3))
    assert run_paired_tests(differences[:1])[0].mde < run_paired_tests(differences)[0].mde  # type: ignore[operator]
    # With the pilot's spread t has Student's distribution about the shift, which is then a sum of two quantiles.
    for found, each in zip(run_paired_tests(differences, pilot=[0, 1, 2]), differences, strict=True):
        values = list(each.values())
        error = max(float(np.std(some, ddof=1)) for some in (values[:3], values)) / 2
        assert found.mde == pytest.approx(error * (t_quantile(1 - LEVEL / 2 / 2, 2) + t_quantile(0.8, 2)))


def test_seeds_that_would_decide_are_those_of_the_nearer_conclusion() -> None:
    far, near = by_seed(0.01, 0.05, -0.02, 0.04), by_seed(0.01, -0.02, 0.02, -0.01)
    for differences, equated in ((far, False), (near, True)):
        (found,) = run_paired_tests([differences], margin=0.015)
        values = np.array(list(differences.values()))
        finds = seeds_to_find(values.mean(), values.std(ddof=1), LEVEL)
        equates = seeds_to_equate(values.mean(), 0.015, values.std(ddof=1), LEVEL)
        assert found.conclusion == "inconclusive"
        assert found.seeds_needed == (equates if equated else finds)
    assert (
        run_paired_tests([near])[0].seeds_needed is None
    )  # without a margin nothing shows that a difference of 0 is none


def test_a_pilots_degrees_of_freedom_are_those_of_the_seeds_that_would_decide() -> None:
    values = by_seed(0.01, 0.05, -0.02, 0.04, 0.03, -0.01)
    (found,) = run_paired_tests([values], pilot=range(4), margin=0.03)
    mean, sd = float(np.mean(list(values.values()))), float(np.std([0.01, 0.05, -0.02, 0.04], ddof=1))
    decided = seeds_to_find(mean, sd, LEVEL, 3), seeds_to_equate(mean, 0.03, sd, LEVEL, 3)
    assert found.conclusion == "inconclusive"
    assert found.seeds_needed == min(number for number in decided if number is not None)
    assert found.seeds_needed != min(seeds_to_find(mean, sd, LEVEL), seeds_to_equate(mean, 0.03, sd, LEVEL))  # type: ignore[type-var]


def test_with_a_pilot_max_t_goes_by_the_pilots_correlation_alone() -> None:
    rng = np.random.default_rng(12)
    pilot, later = rng.normal(size=(5, 3)) @ np.array([[1.0, 0.9, 0], [0, 1, 0.5], [0, 0, 1]]), rng.normal(size=(4, 3))
    later = pilot.mean(axis=0) + 0.1 * later  # so that the pilot has the larger standard deviations
    widths = []
    for rest in (later, np.roll(later, 1, axis=1) - np.roll(later, 1, axis=1).mean(axis=0) + later.mean(axis=0)):
        columns = np.vstack([pilot, rest]).T
        judged = run_paired_tests([by_seed(*column) for column in columns], correction="max_t", pilot=range(5))
        widths.append([found.high - found.mean for found in judged])  # type: ignore[operator]
    assert widths[0] == pytest.approx(widths[1])


def test_two_seeds_that_all_have_are_enough_for_max_t() -> None:
    differences = [by_seed(0.01, 0.02, 0.03), by_seed(0.02, 0.05), by_seed(0.01, -0.02)]
    shared = [found.p_corrected for found in run_paired_tests(differences, correction="max_t")]
    assert shared != [found.p_corrected for found in run_paired_tests(differences)]
    apart = [{0: 0.01, 1: 0.02}, {1: 0.03, 2: 0.05}]
    assert run_paired_tests(apart, correction="max_t") == run_paired_tests(apart)


SKEWED = (0.9, 1.3, 0.4, 1.1, 0.7, 1.6, 0.8, 1.2, 0.5, 1.0, 1.4, -9.0)


def test_signed_ranks_agree_with_scipy() -> None:
    rng = np.random.default_rng(4)
    for count in (10, 13, 25):
        values = rng.standard_t(2, count) + 0.5
        (found,) = run_paired_tests([by_seed(*values)], margin=0.4)
        assert (found.test, found.p) == ("ranks", pytest.approx(stats.wilcoxon(values, method="exact").pvalue))
        sides = [stats.wilcoxon(values - 0.4, alternative="less"), stats.wilcoxon(values + 0.4, alternative="greater")]
        assert found.p_equivalent == pytest.approx(max(side.pvalue for side in sides))


def test_the_interval_of_ranks_contains_the_differences_that_are_not_rejected() -> None:
    values = np.array(SKEWED)
    (found,) = run_paired_tests([by_seed(*values)])
    for limit, outwards in ((found.low, -1e-9), (found.high, 1e-9)):
        p_inside, p_outside = (stats.wilcoxon(values - limit + shift).pvalue for shift in (outwards, -outwards))
        assert p_outside < LEVEL <= p_inside
    assert found.typical == pytest.approx(np.median([(a + b) / 2 for a in values for b in values]), abs=0.03)


def test_ties_and_zeros_make_p_larger_but_never_smaller() -> None:
    values = np.repeat([0.0, 0.01, 0.02, -0.01], [4, 4, 4, 1])
    (found,) = run_paired_tests([by_seed(*values)])
    assert found.p >= max(run_paired_tests([by_seed(*(values + shift))])[0].p for shift in (1e-9, -1e-9)) - 1e-12
    assert found.significant == (found.low > 0)


def test_a_collapse_does_not_hide_the_typical_difference_and_is_reported() -> None:
    (by_ranks,), (by_t,) = run_paired_tests([by_seed(*SKEWED)]), run_paired_tests([by_seed(*SKEWED)], test="t")
    assert (by_ranks.conclusion, by_t.conclusion) == ("better", "inconclusive")
    assert by_ranks.is_skewed
    assert not by_t.is_skewed
    assert by_ranks.typical == pytest.approx(0.95, abs=0.1)


def test_no_method_is_better_whose_mean_and_typical_differences_have_opposite_signs() -> None:
    (found,) = run_paired_tests([by_seed(*SKEWED[:-1], -30.0)], margin=0.1)
    assert found.significant
    assert (found.conclusion, found.seeds_needed) == ("inconclusive", None)
    assert "opposite signs" in found.note


@pytest.mark.parametrize("test", ["ranks", "t"])
@pytest.mark.parametrize("correction", ["holm", "max_t"])
def test_the_seeds_that_decide_are_those_without_which_nothing_is_found(test: str, correction: str) -> None:
    rng = np.random.default_rng(6)
    some, number = False, 0
    for _ in range(60):
        values = by_seed(*rng.normal(0.7, 1.0, 12))
        (found,) = run_paired_tests([values], test=test, correction=correction)  # type: ignore[arg-type]
        if found.conclusion in ("better", "worse"):
            without = [{k: v for k, v in values.items() if k != seed} for seed in values]
            judged = [run_paired_tests([each], test=test)[0] for each in without]  # type: ignore[arg-type]
            decided = tuple(seed for seed, each in zip(values, judged, strict=True) if not each.significant)
            number += 1
            some = some or bool(decided)
            assert correction == "max_t" or found.deciding == decided
    assert some
    assert number > 10


def test_few_seeds_and_many_comparisons_are_tested_by_t() -> None:
    """Ten seeds have 1,024 sign patterns: too few for the level of 28 comparisons."""
    rng = np.random.default_rng(7)
    table = [by_seed(*rng.normal(1.0, 0.3, 10)) for _ in range(28)]
    assert {found.test for found in run_paired_tests(table)} == {"t"}
    assert {found.test for found in run_paired_tests(table[:5])} == {"ranks"}
    assert run_paired_tests([by_seed(*range(1, 10))])[0].test == "t"
    mixed = [table[0], by_seed(0.1, 0.2, 0.4)]
    assert [found.test for found in run_paired_tests(mixed)] == ["ranks", "t"]
    assert [found.test for found in run_paired_tests(mixed, correction="max_t")] == ["t", "t"]


def test_the_limit_of_the_seeds_needed_is_above_their_number_and_falls_with_more_seeds() -> None:
    rng = np.random.default_rng(9)
    limits = []
    for count in (5, 20, 40):
        values = rng.normal(size=count)
        (found,) = run_paired_tests([by_seed(*(0.3 + (values - values.mean()) / values.std(ddof=1)))], margin=0.5)
        assert count < found.seeds_needed <= found.seeds_needed_high
        limits.append(found.seeds_needed_high)
    assert limits == sorted(limits, reverse=True)
    assert run_paired_tests([by_seed(0.1, -0.2, 0.3)])[0].seeds_needed_high is None


def test_few_seeds_that_all_have_are_too_few_for_the_largest_rank_statistic() -> None:
    """Five seeds have 32 sign patterns, whose largest statistic is small: the critical value would be too low."""
    rng = np.random.default_rng(8)
    shared = rng.normal(size=40)
    for overlap, same in ((5, True), (18, False)):
        starts = (0, 20 - overlap)
        values = [{s: float(shared[s] + 0.01 * rng.normal()) for s in range(start, start + 20)} for start in starts]
        found, by_holm = (run_paired_tests(values, correction=each) for each in ("max_t", "holm"))  # type: ignore[arg-type]
        assert {one.test for one in found} == {"ranks"}
        assert ([one.low for one in found] == [one.low for one in by_holm]) is same


def test_the_contrasts_of_a_plan() -> None:
    assert AnalysisPlan().pairs(["a", "b", "c"], "b") == [("a", "b"), ("c", "b")]
    assert AnalysisPlan(contrasts=[["c", "a"]]).pairs(["a", "b", "c"], "b") == [("c", "a")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"correction": "bonferroni"},
        {"test": "sign"},
        {"margin_points": 0.0},
        {"margin_points": 101.0},
        {"last_rounds": 0},
        {"detect_points": 0.0},
        {"max_seeds": 0},
    ],
)
def test_a_plan_that_cannot_be_is_refused_by_its_option(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=rf"^AnalysisPlan\.{next(iter(wrong))} must "):
        AnalysisPlan(**wrong)  # type: ignore[arg-type]
    AnalysisPlan(correction="max_t", margin_points=100.0, last_rounds=1, detect_points=100.0, max_seeds=1)
