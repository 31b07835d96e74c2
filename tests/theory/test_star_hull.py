"""The local Rademacher complexity of a star hull: golden numbers, and that it is sub-root."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.errors import ConfigError
from fedreach.federation.bounds import StarHull, fixed_point

checks = settings(max_examples=40, deadline=None, derandomize=True)
ROWS = np.array([[0.0, 0.0, 0.0], [0.2, -0.1, 0.3], [-0.4, 0.1, 0.2]])


@st.composite
def hulls(draw: st.DrawFn) -> StarHull:
    rng = np.random.Generator(np.random.Philox(draw(st.integers(0, 2**32))))
    q, n = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    return StarHull(rng.normal(0, 0.4, (q, n)))


def test_the_whole_class_has_the_golden_complexity() -> None:
    # design/algorithms.md, section 6.1: losses (0,0,0), (.2,-.1,.3), (-.4,.1,.2), n = 3
    assert StarHull(ROWS)(10.0) == pytest.approx(0.1083333333, abs=1e-10)


def test_a_single_function_has_half_its_mean_absolute_sum() -> None:
    """max(0, x) over a symmetric x is half of |x|, whose mean is .1 for row 2 (design/algorithms.md, section 6.1)."""
    signs = np.array([[a, b, c] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)])
    expected = np.abs(signs @ ROWS[1] / 3).mean() / 2
    assert StarHull(ROWS[1:2])(1.0) == pytest.approx(expected, rel=1e-12)
    assert 2 * expected == pytest.approx(0.1, abs=1e-12)


@checks
@given(hulls(), st.floats(1e-6, 2), st.floats(1, 50))
def test_a_star_hull_is_sub_root(hull: StarHull, r: float, factor: float) -> None:
    assert hull(0.0) == 0
    assert hull(r) <= hull(factor * r) * (1 + 1e-12)
    assert hull(factor * r) / math.sqrt(factor * r) <= hull(r) / math.sqrt(r) * (1 + 1e-12)


def test_a_finite_class_alone_is_not_sub_root() -> None:
    """Its complexity is 0 below the radius at which its function enters: the paper's Lemma 1 does not cover it."""
    square = float((ROWS[1] ** 2).mean())

    def finite(r: float) -> float:
        return 0.05 if r >= square else 0.0

    assert finite(0.99 * square) / math.sqrt(0.99 * square) < finite(square) / math.sqrt(square)
    assert StarHull(ROWS[1:2])(0.99 * square) > 0


@checks
@given(hulls(), st.integers(0, 99))
def test_order_and_repetition_of_functions_and_examples_change_nothing(hull: StarHull, seed: int) -> None:
    rng = np.random.Generator(np.random.Philox(seed))
    f = hull.excess
    shuffled = StarHull(f[rng.permutation(f.shape[0])][:, rng.permutation(f.shape[1])])
    doubled = StarHull(np.concatenate([f, f, 0.5 * f]))  # 0.5 f lies in the hull
    for r in (0.01, 0.3):
        assert shuffled(r) == pytest.approx(hull(r), rel=1e-9)
        assert doubled(r) == pytest.approx(hull(r), rel=1e-9)


def test_drawn_signs_come_near_all_signs() -> None:
    rng = np.random.Generator(np.random.Philox(0))
    f = rng.normal(0, 0.3, (4, 10))
    exact, drawn = StarHull(f), StarHull(f, 2 * rng.integers(0, 2, (20_000, 10)) - 1)
    assert drawn(0.05) == pytest.approx(exact(0.05), rel=0.03)
    assert fixed_point(drawn) == pytest.approx(fixed_point(exact), rel=0.05)


@pytest.mark.parametrize(
    ("excess", "signs", "said"),
    [
        (np.zeros(3), None, "functions x examples; got shape"),
        (np.full((1, 3), np.nan), None, "must be finite losses"),
        (np.zeros((1, 40)), None, "at most 12 examples; got 40. Pass `signs`"),
        (np.zeros((1, 3)), np.zeros((5, 3)), "signs must be -1 or 1"),
        (np.zeros((1, 3)), np.ones((5, 2)), "draws x 3 examples"),
    ],
)
def test_what_does_not_fit_is_refused(excess: Any, signs: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        StarHull(excess, signs)
