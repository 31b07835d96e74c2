"""The fixed point of a local Rademacher complexity and the bound it enters: known solutions, and checks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.errors import ConfigError
from fedreach.federation.bounds import StarHull, excess_risk, fixed_point

checks = settings(max_examples=40, deadline=None, derandomize=True)


@st.composite
def hulls(draw: st.DrawFn) -> StarHull:
    rng = np.random.Generator(np.random.Philox(draw(st.integers(0, 2**32))))
    q, n = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    return StarHull(rng.normal(0, 0.4, (q, n)))


# ----------------------------------------------------------------------------------------------- the fixed point


@checks
@given(st.floats(1e-12, 1e12), st.floats(1e-3, 1e3))
def test_a_square_root_meets_its_line_where_it_must(a: float, c: float) -> None:
    """a sqrt(r) = c r at r = (a / c)^2."""
    assert fixed_point(lambda r: a * math.sqrt(r), c) == pytest.approx((a / c) ** 2, rel=1e-12)


@checks
@given(st.floats(1e-6, 1e6), st.floats(0, 1e6))
def test_a_root_with_an_offset_solves_its_quadratic(a: float, b: float) -> None:
    """sqrt(a r + b) = r at r = (a + sqrt(a^2 + 4 b)) / 2."""
    expected = (a + math.sqrt(a * a + 4 * b)) / 2
    assert fixed_point(lambda r: math.sqrt(a * r + b)) == pytest.approx(expected, rel=1e-12)


@checks
@given(hulls(), st.floats(0.1, 10))
def test_the_equation_holds_at_the_fixed_point_and_nowhere_below(hull: StarHull, slope: float) -> None:
    r = fixed_point(hull, slope)
    if r > 0:
        assert hull(r) == pytest.approx(slope * r, rel=1e-9)
        for below in (0.99, 0.5, 1e-3):
            assert hull(below * r) > slope * below * r
        for above in (1.01, 2.0, 1e3):
            assert hull(above * r) < slope * above * r
    else:
        assert hull(1.0) == 0


def test_no_complexity_means_radius_zero() -> None:
    assert fixed_point(lambda r: 0.0) == 0
    assert fixed_point(StarHull(np.zeros((2, 4)))) == 0


@checks
@given(hulls(), st.floats(1, 5), st.floats(0.1, 10))
def test_more_complexity_or_a_flatter_line_means_a_larger_radius(hull: StarHull, factor: float, slope: float) -> None:
    """What the paper's comparison of clusters comes down to: phi_1 <= phi_2 everywhere gives r_1* <= r_2*."""
    assert fixed_point(lambda r: factor * hull(r), slope) >= fixed_point(hull, slope)
    assert fixed_point(hull, slope / factor) >= fixed_point(hull, slope)


def test_what_grows_faster_than_a_root_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"stays above slope \* radius.*StarHull"):
        fixed_point(lambda r: 2 * r)
    with pytest.raises(ConfigError, match="finite and not negative; got -1"):
        fixed_point(lambda r: -1.0)
    with pytest.raises(ConfigError, match="finite and not negative; got nan"):
        fixed_point(lambda r: math.nan)


# ----------------------------------------------------------------------------------------------- the bound


def test_both_summands_are_the_printed_ones() -> None:
    bound = excess_risk(1e-4, 5000, loss_bound=2.0, delta=0.1, slack=3.0)
    assert bound.complexity == pytest.approx(800 * 3 / 2 * 1e-4, rel=1e-12)
    assert bound.confidence == pytest.approx((16 * 3 + 12) * 2 * math.log(10) / 5000, rel=1e-12)
    assert bound.total == bound.complexity + bound.confidence


@checks
@given(hulls(), st.floats(0.1, 20))
def test_another_unit_of_the_loss_scales_the_bound(hull: StarHull, t: float) -> None:
    """Losses x t: B x t, r* x t^2. With the printed fixed point, without B, this would not hold."""
    other = StarHull(t * hull.excess)
    B = 2.0
    r, scaled = fixed_point(hull, 1 / B), fixed_point(other, 1 / (t * B))
    assert scaled == pytest.approx(t**2 * r, rel=1e-9)
    one, two = excess_risk(r, 1000, loss_bound=B), excess_risk(scaled, 1000, loss_bound=t * B)
    assert two.total == pytest.approx(t * one.total, rel=1e-9)


def test_the_bound_grows_with_radius_certainty_and_slack_and_falls_with_examples() -> None:
    base: dict[str, Any] = {"radius": 1e-4, "examples": 1000, "delta": 0.05, "slack": 2.0}
    total = excess_risk(**base).total
    for change in ({"radius": 2e-4}, {"delta": 0.01}, {"slack": 3.0}):
        assert excess_risk(**base | change).total > total
    assert excess_risk(**base | {"examples": 2000}).total < total
    assert excess_risk(0.0, 10**12).total < 1e-9


def test_what_is_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"slack must be in \(1, inf\); got 1"):
        excess_risk(0.1, 100, slack=1)
    with pytest.raises(ConfigError, match=r"delta must be in \(0, 1\)"):
        excess_risk(0.1, 100, delta=0)
    with pytest.raises(ConfigError, match="slope must be in"):
        fixed_point(lambda r: 0.0, 0)
