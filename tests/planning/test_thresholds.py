"""The thresholds that are named can be met, and nothing nearer can."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedreach.wireless.planning import too_few_examples

# Divergences repeat, and some are infinite; the threshold may be one of them.
FAR = st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.7, math.inf])
TABLES = st.lists(st.tuples(FAR, st.integers(0, 50)), min_size=1, max_size=8)


@given(TABLES, st.sampled_from([0.0, 0.2, 0.3, math.inf]), st.integers(1, 200))
def test_the_nearest_thresholds_are_those_of_trying_all(
    table: list[tuple[float, int]], limit: float, needed: int
) -> None:
    divergence, examples = (np.array(column) for column in zip(*table, strict=True))
    message = too_few_examples(divergence, examples, limit, needed)

    def held(threshold: float) -> int:
        return sum(d for far, d in table if far <= threshold)

    finite = sorted({far for far, _ in table if far < math.inf})
    assert (message == "") == (held(limit) >= needed)
    if not message:
        return
    kept = sum(far <= limit for far, _ in table)
    assert message.startswith(f"{kept} of {len(table)} clients" if limit < math.inf else f"All {len(table)} clients")
    assert f"have {held(limit)} examples; min_examples is {needed}." in message
    nearest = next((far for far in finite if held(far) >= needed), None)
    if limit < math.inf:
        if nearest is None:
            assert f"with a finite divergence together have {held(finite[-1]) if finite else 0} examples." in message
        else:
            assert f"raise max_divergence to {nearest:.4f}." in message.lower()
        infinite = sum(far == math.inf for far, _ in table)
        assert (f"{infinite} clients lack a class" in message) == (infinite > 0)


@given(TABLES, st.integers(1, 200))
def test_what_the_message_proposes_is_enough(table: list[tuple[float, int]], needed: int) -> None:
    divergence, examples = (np.array(column) for column in zip(*table, strict=True))
    divergence = divergence * 1.00001  # so that the printed threshold has to be rounded
    message = too_few_examples(divergence, examples, 0.15, needed)
    lowered = re.search(r"[Ll]ower min_examples to (\d+)", message)
    assert lowered is None or not too_few_examples(divergence, examples, 0.15, int(lowered[1]))
    raised = re.search(r"[Rr]aise max_divergence to ([\d.]+)\.", message)
    assert raised is None or not too_few_examples(divergence, examples, float(raised[1]), needed)
    assert "  " not in message


def test_without_a_filter_only_the_examples_count() -> None:
    assert too_few_examples(np.array([0.1, np.inf]), np.array([30, 40]), math.inf, 71) == (
        "All 2 clients together have 70 examples; min_examples is 71. Lower min_examples to 70 or less."
    )
    nothing = too_few_examples(np.array([0.1]), np.array([0]), math.inf, 1)
    assert nothing == "All 1 clients together have 0 examples; min_examples is 1."


@pytest.mark.parametrize(("needed", "feasible"), [(90, True), (91, False)])
def test_a_client_at_the_threshold_is_kept(needed: int, feasible: bool) -> None:
    assert (too_few_examples(np.array([0.1, 0.2, 0.3]), np.array([50, 40, 5]), 0.2, needed) == "") is feasible
