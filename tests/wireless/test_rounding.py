"""From prices to sets, and from sets to neighbours: always enough examples, never a worse set."""

from dataclasses import replace

import numpy as np
import pytest

from fedreach._util.streams import generator
from fedreach.wireless.candidates import Incumbent, curvatures, improve, promising_sets, repair_cover
from fedreach.wireless.exact import Needs, allocate, cost_of_needs
from fedreach.wireless.search import offer_settled_sets, round_core

from .instances import KINDS, gigahertz, megahertz, odd
from .test_knapsack import covers, drawn


@pytest.mark.parametrize("draw", range(40))
def test_near_the_break_the_best_whole_cover_is_found(draw):
    costs, sizes, demand = drawn(draw)
    chosen = round_core(costs, sizes, demand)  # all seven items are near
    assert costs @ chosen == pytest.approx((covers(sizes, demand) @ costs).min())


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


@pytest.mark.parametrize("cell", [gigahertz, megahertz])
def test_moves_end_where_no_drop_and_no_swap_is_better(cell):
    problem, demand = cell(10, 6)
    best = Incumbent(problem, demand)
    best.offer([np.arange(10)])
    improve(best, Needs.of(problem))
    inside, outside = best.rows, np.setdiff1d(np.arange(10), best.rows)
    for k in inside:
        rest = inside[inside != k]
        for rows in (rest, *(np.append(rest, other) for other in outside)):
            if problem.num_examples[rows].sum() >= demand:
                assert allocate(problem.only(rows)).cost >= best.cost * (1 - 1e-12)


def test_the_most_promising_move_is_among_the_best():
    """The estimate ranks: of 200 or so moves, the first ten hold the truly best one."""
    problem, demand = gigahertz(40, 1)
    best = Incumbent(problem, demand)
    needs = Needs.of(problem)
    best.offer([np.flatnonzero(round_core(cost_of_needs(needs, 5.0, 5.0).cost, problem.num_examples, demand))])
    ranked = promising_sets(best, needs, 10_000)
    truth = np.array([allocate(problem.only(np.sort(rows))).cost for rows in ranked])
    assert len(ranked) > 50
    assert truth.argmin() < 10


def test_moves_are_ranked_where_nothing_depends_on_the_deadline():
    """Clients that only send, with time to spare: the second derivatives have no inverse."""
    problem, demand = gigahertz(12, 1)
    problem = replace(problem, cycles=np.zeros(12))
    best = Incumbent(problem, demand)
    best.offer([np.arange(12)])
    best.deadline = 1e3
    ranked = promising_sets(best, Needs.of(problem), 5)
    assert len(ranked) == 5
    assert all(len(rows) == 11 for rows in ranked)  # without a client the cost is least


def test_second_derivatives_are_those_of_the_costs():
    problem, _ = gigahertz(6, 2)
    problem = replace(problem, max_hertz=problem.max_hertz * np.array([1, 1, 1, 1, 1, 0.05]))  # one is clipped
    needs, rows, T, mu, step = Needs.of(problem), np.arange(6), 3.0, 2.0, 1e-5

    def slopes(T, mu):
        costs = cost_of_needs(needs, T, mu)
        return np.array([costs.slope.sum(), (needs.tau / costs.upload_seconds).sum()])

    by_T = (slopes(T + step, mu) - slopes(T - step, mu)) / (2 * step)
    by_mu = (slopes(T, mu + step) - slopes(T, mu - step)) / (2 * step)
    assert curvatures(problem, needs, rows, T, mu) == pytest.approx(np.array([by_T, by_mu]), rel=1e-5)
