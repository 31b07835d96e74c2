"""From prices to sets, and from sets to neighbours: always enough examples, never a worse set."""

import numpy as np
import pytest

from fedreach._util.streams import generator
from fedreach.wireless.candidates import Incumbent, repair_cover
from fedreach.wireless.exact import Needs, allocate
from fedreach.wireless.search import offer_settled_sets, round_core

from .instances import KINDS, gigahertz, odd
from .test_knapsack import covers, drawn


@pytest.mark.sampled(4)
@pytest.mark.parametrize("draw", range(40))
def test_near_the_break_the_best_whole_cover_is_found(draw):
    costs, sizes, demand = drawn(draw)
    chosen = round_core(costs, sizes, demand)  # all seven items are near
    assert costs @ chosen == pytest.approx((covers(sizes, demand) @ costs).min())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("draw", range(40))
@pytest.mark.parametrize("scale", [1, 2**36])
def test_a_narrow_core_still_covers(draw, scale):
    rng = generator(draw, "core")
    costs, sizes = rng.uniform(0.1, 1.0, 60), rng.integers(0, 200, 60) * scale + rng.integers(0, scale, 60)
    demand = int(sizes.sum() * rng.uniform(0.1, 0.9))
    chosen = round_core(costs, sizes, demand, core=5)
    assert sizes[chosen].sum() >= demand
    assert sizes[chosen].sum() - sizes[chosen].min() < demand


def test_where_everyone_is_needed_everyone_is_taken():
    """Large sizes are rounded down in the table, where even all of them are not enough."""
    sizes = generator(0, "everyone").integers(2**30, 2**40, 30)
    assert round_core(np.ones(30), sizes, int(sizes.sum())).all()


def test_costs_without_end_are_not_rounded():
    assert round_core(np.array([1.0, np.inf]), np.array([2, 3]), 4) is None


@pytest.mark.sampled(4)
@pytest.mark.parametrize("draw", range(40))
def test_repair_ends_at_a_cover_that_needs_all_it_has(draw):
    costs, sizes, demand = drawn(draw)
    chosen = repair_cover(generator(draw, "start").random(len(sizes)) < 0.5, costs, sizes, demand)
    assert sizes[chosen].sum() >= demand
    assert all(sizes[chosen].sum() - size < demand for size in sizes[chosen])


def test_the_incumbent_takes_only_better_sets_with_enough_examples():
    problem, demand = gigahertz(8, 3)
    best = Incumbent(problem, demand)
    few, everyone = np.argsort(problem.num_examples)[:1], np.arange(8)
    assert not best.offer([few])
    assert best.offer([everyone[::-1]])
    assert best.rows.tolist() == list(range(8))
    assert best.cost == pytest.approx(allocate(problem).cost, rel=1e-12)
    assert not best.offer([everyone])
    without = [np.delete(everyone, k) for k in range(8)]
    assert best.offer(without)
    assert best.cost == pytest.approx(min(allocate(problem.only(rows)).cost for rows in without), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_settling_finds_a_set_wherever_it_begins(kind):
    problem, demand = odd(kind, 10, generator(2, kind))
    slowest = float((problem.cycles / problem.max_hertz).max())
    for T in slowest + np.array([0.1, 1.0, 10.0]):
        best = Incumbent(problem, demand)
        offer_settled_sets(best, Needs.of(problem), T, 1.0)
        assert problem.num_examples[best.rows].sum() >= demand
        assert best.cost == pytest.approx(allocate(problem.only(best.rows)).cost, rel=1e-9)
