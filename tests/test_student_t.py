"""Quantiles of Student's t are those of scipy, and infinite where there is none."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from fedreach._util.student_t import LARGE, t_quantile


@pytest.mark.parametrize("level", [0.5, 0.6, 0.8, 0.95, 0.975, 0.9875, 0.995, 0.999])
def test_quantiles_are_those_of_scipy(level: float) -> None:
    for freedom in [*range(1, LARGE + 3), 100, 1000, 10**6]:
        expected = stats.t.ppf(level, freedom)
        assert t_quantile(level, freedom) == pytest.approx(expected, rel=3e-8, abs=1e-12), freedom


def test_without_degrees_of_freedom_there_is_none() -> None:
    assert t_quantile(0.975, 0) == math.inf
