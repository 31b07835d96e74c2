"""The thresholds that are named can be met, and nothing nearer can."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedreach.wireless.candidates import nearest_thresholds

# Divergences repeat, and some are infinite; the threshold may be one of them.
FAR = st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.7, math.inf])
TABLES = st.lists(st.tuples(FAR, st.integers(0, 50)), min_size=1, max_size=8)


@given(TABLES, st.sampled_from([0.0, 0.2, 0.3, math.inf]), st.integers(1, 200))
def test_the_nearest_thresholds_are_those_of_trying_all(
    table: list[tuple[float, int]], limit: float, needed: int
) -> None:
    divergence, examples = (np.array(column) for column in zip(*table, strict=True))
    found = nearest_thresholds(divergence, examples, limit, needed)

    def held(threshold: float) -> int:
        return sum(d for far, d in table if far <= threshold)

    finite = sorted({far for far, _ in table if far < math.inf})
    assert found.kept == sum(far <= limit for far, _ in table)
    assert found.covered == held(limit)
    assert found.most_examples == (held(finite[-1]) if finite else 0)
    assert found.smallest_divergence == next((far for far in finite if held(far) >= needed), None)
    assert found.infinite == sum(far == math.inf for far, _ in table)
    assert found.feasible == (held(limit) >= needed)


@given(TABLES, st.integers(1, 200))
def test_what_the_message_proposes_is_enough(table: list[tuple[float, int]], needed: int) -> None:
    divergence, examples = (np.array(column) for column in zip(*table, strict=True))
    divergence = divergence * 1.00001  # so that the printed threshold has to be rounded
    found = nearest_thresholds(divergence, examples, 0.15, needed)
    if found.feasible:
        return
    said = found.message()
    lowered = re.search(r"[Ll]ower min_examples to (\d+)", said)
    assert (lowered is not None) == (found.covered > 0)
    if lowered:
        assert nearest_thresholds(divergence, examples, 0.15, int(lowered[1])).feasible
    raised = re.search(r"[Rr]aise max_divergence to ([\d.]+)\.", said)
    assert (raised is not None) == (found.smallest_divergence is not None)
    if raised:
        assert nearest_thresholds(divergence, examples, float(raised[1]), needed).feasible
    assert ("smoothing" in said) == (found.infinite > 0)
    assert "  " not in said


def test_without_a_filter_only_the_examples_count() -> None:
    found = nearest_thresholds(np.array([0.1, np.inf]), np.array([30, 40]), math.inf, 71)
    assert found.kept == 2
    assert not found.feasible
    assert found.message() == (
        "All 2 clients together hold 70 examples; min_examples = 71 are needed. Lower min_examples to 70 or less."
    )
    nothing = nearest_thresholds(np.array([0.1]), np.array([0]), math.inf, 1)
    assert nothing.message() == "All 1 clients together hold 0 examples; min_examples = 1 are needed."


@pytest.mark.parametrize(("needed", "feasible"), [(90, True), (91, False)])
def test_a_client_at_the_threshold_is_kept(needed: int, feasible: bool) -> None:
    assert nearest_thresholds(np.array([0.1, 0.2, 0.3]), np.array([50, 40, 5]), 0.2, needed).feasible is feasible
