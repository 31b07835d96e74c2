from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedreach.evaluation.statistics import LEVEL, holm, holm_levels, max_t

probabilities = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8)


def test_holm_on_a_worked_example() -> None:
    # Sorted: 0.005, 0.01, 0.03, 0.04. Times 4, 3, 2, 1: 0.02, 0.03, 0.06, 0.04; the last may not fall below 0.06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(probabilities)
def test_holm_lies_between_the_raw_and_bonferronis_p(values: list[float]) -> None:
    for raw, p in zip(values, holm(values), strict=True):
        assert raw <= p <= min(1.0, len(values) * raw) + 1e-12


@given(probabilities, st.randoms(use_true_random=False))
def test_permuting_the_comparisons_permutes_holms_p(values: list[float], random) -> None:
    order = list(range(len(values)))
    random.shuffle(order)
    assert holm([values[i] for i in order]) == [holm(values)[i] for i in order]


@given(probabilities)
def test_a_p_value_is_below_its_level_exactly_where_its_corrected_one_is_below_the_level(values: list[float]) -> None:
    for raw, p, level in zip(values, holm(values), holm_levels(values), strict=True):
        if abs(p - LEVEL) > 1e-12:
            assert (raw < level) == (p < LEVEL)
        assert LEVEL / len(values) <= level <= LEVEL


def test_equal_p_values_have_equal_levels_and_so_equal_intervals() -> None:
    assert holm_levels([0.001, 0.002, 0.001, 0.9]) == pytest.approx([LEVEL / 4, LEVEL / 2, LEVEL / 4, LEVEL])
    assert holm_levels([0.04, 0.04]) == pytest.approx([LEVEL / 2, LEVEL / 2])


def test_a_p_value_exactly_at_its_level_is_not_below_it() -> None:
    assert holm_levels([LEVEL / 2, 0.03]) == [LEVEL / 2, LEVEL / 2]


def test_one_comparison_has_students_quantile_but_for_the_draws() -> None:
    differences = np.random.default_rng(0).normal(size=(12, 1))
    assert max_t(differences, 11).critical == pytest.approx(stats.t.isf(LEVEL / 2, 11), rel=0.02)


def test_draws_of_one_comparison_have_students_quantile_with_few_degrees_of_freedom_too() -> None:
    differences = np.random.default_rng(0).normal(size=(5, 1))
    assert np.quantile(max_t(differences, 4).largest, 1 - LEVEL) == pytest.approx(stats.t.isf(LEVEL / 2, 4), rel=0.05)


def test_comparisons_that_always_agree_cost_little_and_unrelated_ones_as_much_as_sidak_says() -> None:
    rng = np.random.default_rng(1)
    one = rng.normal(size=(30, 1))
    agreeing = max_t(np.hstack([one, 2 * one, -one]), 29).critical  # a thirtieth of the correlation is not trusted
    assert stats.t.isf(LEVEL / 2, 29) <= agreeing < stats.t.isf(LEVEL / 2 / 2, 29)
    unrelated = np.linalg.qr(rng.normal(size=(31, 5)) - 0)[0]
    unrelated = np.linalg.qr(np.hstack([np.ones((31, 1)), unrelated]))[0][
        :, 1:
    ]  # columns of mean 0, without correlation
    sidak = 1 - (1 - LEVEL) ** (1 / 5)
    assert max_t(unrelated, 30).critical == pytest.approx(stats.t.isf(sidak / 2, 30), rel=0.02)


def test_all_pairs_of_three_methods_come_near_tukeys_studentized_range() -> None:
    rng = np.random.default_rng(2)
    runs = rng.normal(size=(2001, 3))
    pairs = np.column_stack([runs[:, 1] - runs[:, 0], runs[:, 2] - runs[:, 0], runs[:, 2] - runs[:, 1]])
    tukey = stats.studentized_range.isf(LEVEL, 3, 200) / np.sqrt(2)
    assert max_t(pairs, 200).critical == pytest.approx(tukey, rel=0.02)


def test_the_corrected_p_of_max_t_is_below_the_level_exactly_above_the_critical_t() -> None:
    runs = np.random.default_rng(3).normal(size=(10, 4))
    pairs = np.column_stack([runs[:, j] - runs[:, i] for i in range(4) for j in range(i + 1, 4)])
    largest = max_t(pairs, 9)
    for t in (largest.critical - 1e-6, largest.critical + 1e-6):
        p = float(2 * stats.t.sf(t, 9))
        assert (largest.corrected_p(t, p) < LEVEL) == (t > largest.critical)
    assert largest.corrected_p(30.0, float(2 * stats.t.sf(30.0, 9))) < 1e-8  # where no draw reaches


def test_max_t_forgives_more_than_bonferroni_and_never_less() -> None:
    base = np.random.default_rng(4).normal(size=(20, 1))
    methods = np.random.default_rng(5).normal(size=(20, 6))
    critical = max_t(methods - base, 19).critical
    assert stats.t.isf(LEVEL / 2, 19) < critical < stats.t.isf(LEVEL / 2 / 6, 19)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_units_of_the_differences_change_nothing(scale: float) -> None:
    differences = np.random.default_rng(6).normal(size=(9, 3)) @ np.array([[1.0, 1, 0], [0, 1, 1], [0, 0, 1]])
    scaled = max_t(differences * np.array([scale, 1.0, 1.0]), 8)
    np.testing.assert_allclose(scaled.largest, max_t(differences, 8).largest, rtol=1e-9)
