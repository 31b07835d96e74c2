"""Cheapest covers: the fractional one is a bound, the whole one is the best of all, and all below a limit are found."""

from itertools import product

import numpy as np
import pytest

from fedreach._util.streams import generator
from fedreach.wireless.candidates import cheapest_covers, coarsen_sizes, cover_table, covers_below, fractional_cover

DRAWS = range(60)


def drawn(draw, *, least_cost=0.0, items=7):
    """Return costs, sizes (some 0) and a demand that all together reach."""
    rng = generator(draw, "knapsack")
    sizes = rng.integers(0, 12, items)
    sizes[0] = 5
    return rng.uniform(least_cost, 1.0, items), sizes, int(rng.integers(1, sizes.sum() + 1))


def every_set(items):
    return np.array(list(product([False, True], repeat=items)))


def covers(sizes, demand):
    """Return every set that covers the demand, as flags."""
    sets = every_set(len(sizes))
    return sets[sets @ sizes >= demand]


def without_spare(sizes, demand):
    """Return every cover to which, item by item, nothing is added once there is enough."""
    sets = covers(sizes, demand)
    last = [np.flatnonzero(chosen)[-1] if chosen.any() else 0 for chosen in sets]
    return sets[[chosen[:i] @ sizes[:i] < demand for chosen, i in zip(sets, last, strict=True)]]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("draw", DRAWS)
def test_the_fractional_cover_covers_and_costs_at_most_as_much_as_any_whole_one(draw):
    costs, sizes, demand = drawn(draw, least_cost=-0.3)
    found = fractional_cover(costs, sizes, demand)
    assert found.taken @ sizes >= demand - 1e-9
    assert np.count_nonzero((found.taken > 0) & (found.taken < 1)) <= 1
    assert found.value == pytest.approx(found.taken @ costs)
    assert found.value <= (covers(sizes, demand) @ costs).min() + 1e-12


@pytest.mark.sampled(4)
@pytest.mark.parametrize("draw", DRAWS)
def test_its_price_proves_it_optimal(draw):
    """Weak duality: nu D + sum min(0, c - nu d) bounds every fractional cover, whatever nu; here it is attained."""
    costs, sizes, demand = drawn(draw, least_cost=-0.3)
    forced = generator(draw, "forced").random(len(costs)) < 0.3
    costs[(sizes > 0) & ~forced & (np.arange(len(costs)) == 3)] = np.inf
    found = fractional_cover(costs, sizes, demand, forced)
    if not np.isfinite(found.value):
        assert sizes[np.isfinite(costs)].sum() < demand
        return
    reduced = costs - found.price * sizes
    dual = found.price * demand + reduced[forced].sum() + np.minimum(reduced[~forced], 0.0).sum()
    assert found.value == pytest.approx(dual, abs=1e-12)
    assert (found.taken[forced] == 1).all()


def test_what_cannot_be_covered_costs_infinity():
    assert fractional_cover(np.ones(2), np.array([2, 3]), 6).value == np.inf
    assert fractional_cover(np.array([1.0, np.inf]), np.array([2, 3]), 4).value == np.inf
    assert fractional_cover(np.empty(0), np.empty(0, int), 1).value == np.inf


def test_no_demand_costs_nothing():
    assert fractional_cover(np.ones(2), np.array([2, 3]), 0).value == 0.0
    assert fractional_cover(np.ones(2), np.array([2, 3]), -4).taken.tolist() == [0, 0]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("draw", DRAWS)
def test_the_table_holds_the_cheapest_cover(draw):
    costs, sizes, demand = drawn(draw)
    sizes = np.minimum(sizes, demand)
    both = np.stack([costs, costs[::-1]])
    table = cover_table(both, sizes, demand)
    chosen = cheapest_covers(table, sizes)
    for j in range(2):
        best = (covers(sizes, demand) @ both[j]).min()
        assert table[0, j, demand] == pytest.approx(best)
        assert both[j] @ chosen[j] == pytest.approx(best)
        assert sizes @ chosen[j] >= demand


@pytest.mark.sampled(4)
@pytest.mark.parametrize("draw", DRAWS)
def test_with_negative_costs_the_table_bounds_the_covers_without_an_item_to_spare(draw):
    costs, sizes, demand = drawn(draw, least_cost=-0.5)
    sizes = np.minimum(sizes, demand)
    best = (without_spare(sizes, demand) @ costs).min()
    assert cover_table(costs[None], sizes, demand)[0, 0, demand] == pytest.approx(best)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("draw", DRAWS)
def test_every_cover_below_a_limit_is_found_and_no_other(draw):
    costs, sizes, demand = drawn(draw, least_cost=-0.1)
    sizes = np.minimum(sizes, demand)
    both = np.stack([costs, costs[::-1]])
    candidates = without_spare(sizes, demand)
    limits = np.quantile(candidates @ both.T, 0.3, axis=0) + 1e-9
    wanted = candidates[(candidates @ both.T < limits).any(axis=1)]
    table = cover_table(both, sizes, demand)
    found = covers_below(table, both, sizes, limits, len(wanted))
    assert {row.tobytes() for row in found} == {row.tobytes() for row in wanted}
    if len(wanted) > 1:
        assert covers_below(table, both, sizes, limits, len(wanted) - 1) is None


def test_of_equal_items_the_first_are_taken():
    costs, sizes = np.ones((1, 5)), np.ones(5, int)
    table = cover_table(costs, sizes, 2)
    assert len(covers_below(table, costs, sizes, np.array([2.5]), 100)) == 10  # 5 choose 2
    found = covers_below(table, costs, sizes, np.array([2.5]), 100, after=np.arange(-1, 4))
    assert found.tolist() == [[True, True, False, False, False]]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("draw", DRAWS)
def test_in_a_larger_unit_covers_stay_covers_or_are_covers_in_truth(draw):
    rng = generator(draw, "unit")
    sizes, demand = rng.integers(500, 5000, 6), int(rng.integers(1000, 9000))
    sets = every_set(6)
    true = sets @ sizes >= demand
    up, more = coarsen_sizes(sizes, demand, 2000)
    assert more * 7 <= 2000
    assert not (true & (sets @ up < more)).any()
    down, more = coarsen_sizes(sizes, demand, 2000, enough=True)
    assert not (~true & (sets @ down >= more)).any()


def test_a_unit_that_divides_all_sizes_loses_nothing():
    sizes, demand = np.array([30, 70, 110, 2000]), 155
    units, needed = coarsen_sizes(sizes, demand, 10**6)
    sets = every_set(4)
    assert needed == 16
    assert ((sets @ sizes >= demand) == (sets @ units >= needed)).all()


def test_no_table_is_made_of_units_that_say_nothing():
    assert coarsen_sizes(np.arange(50, 250), 10_000, 10_000) is None
