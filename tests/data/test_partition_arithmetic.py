"""Sharing out whole numbers exactly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach.data.assignment import filled_evenly, raised_sizes, rounded_sizes

thorough = settings(deadline=None, derandomize=True)
vessels = st.lists(st.integers(0, 12), min_size=1, max_size=12)


def test_the_lognormal_sizes_of_feddyn_are_rounded_fairly():
    # algorithms.md 1.1: RandomState(0).lognormal(log 6000, 0.9, 10) for n = 60000 gives these floors, 5 samples short;
    # the reference hands all 5 to client 0 (10632), we hand them to the 5 largest fractional parts.
    raw = np.random.RandomState(0).lognormal(np.log(6000), 0.9, 10)
    floors = np.array([10627, 3114, 5241, 16323, 11664, 901, 5108, 1895, 1979, 3143])
    sizes = rounded_sizes(raw, 60_000)
    assert sizes.sum() == 60_000
    assert sorted(sizes - floors) == [0] * 5 + [1] * 5
    fractions = raw / raw.sum() * 60_000 - floors
    assert fractions[sizes > floors].min() > fractions[sizes == floors].max()


@thorough
@given(raw=st.lists(st.sampled_from([0.0, 1e-300, 1e-9, 0.1, 1.0, 3.0, 1e9]), min_size=1), total=st.integers(0, 10**6))
def test_rounded_sizes_add_up_and_stay_within_one_of_their_share(raw, total):
    weights = np.array([*raw, 1.0])
    sizes = rounded_sizes(weights, total)
    assert sizes.sum() == total
    assert (abs(sizes - weights / weights.sum() * total) <= 1 + 1e-6).all()
    assert sizes.min() >= 0


@thorough
@given(capacities=vessels, data=st.data())
def test_pouring_one_unit_at_a_time_gives_the_same(capacities, data):
    total = data.draw(st.integers(0, sum(capacities)))
    plain = [0] * len(capacities)
    for _ in range(total):  # the lowest vessel that is not full; among equals the largest, then the first
        open_ = [k for k, capacity in enumerate(capacities) if plain[k] < capacity]
        plain[min(open_, key=lambda k: (plain[k], -capacities[k], k))] += 1
    assert filled_evenly(np.array(capacities), total).tolist() == plain


@thorough
@given(sizes=vessels, data=st.data())
def test_raising_moves_no_more_than_it_must_and_takes_from_the_largest(sizes, data):
    before = np.array(sizes)
    least = data.draw(st.integers(0, int(before.sum()) // before.size))
    after = raised_sizes(before, least)
    assert after.sum() == before.sum()
    assert after.min() >= least
    assert np.maximum(after - before, 0).sum() == np.maximum(least - before, 0).sum()
    donors = after < before
    # One common level: a donor ends at least as high as anyone who gave nothing, give or take one sample.
    if donors.any():
        assert after[donors].min() >= after.max() - 1


@pytest.mark.parametrize("least", [0, 1])
def test_sizes_that_suffice_are_left_alone(least):
    assert raised_sizes(np.array([5, 1, 9]), least).tolist() == [5, 1, 9]
