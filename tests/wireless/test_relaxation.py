"""Bounds by the band's price: below every set that keeps the deadline, and the best there is."""

import numpy as np
import pytest

from fedreach._util.streams import generator
from fedreach.wireless.candidates import Candidates, pad_sets
from fedreach.wireless.exact import allocate, allocate_batch, cost_of_needs
from fedreach.wireless.search import Point, ascend, earliest_deadline, least_energy, relax

from .brute import minimal_covers, shortest_deadline
from .instances import KINDS, odd


@pytest.fixture(params=KINDS)
def small(request):
    """Return a problem of seven clients, its demand, all its minimal covers, their costs and deadlines."""
    problem, demand = odd(request.param, 7, generator(1, request.param))
    covers = [np.array(cover) for cover in minimal_covers(problem.num_examples, demand)]
    cost, T, _ = allocate_batch(problem, *pad_sets(covers))
    return problem, demand, covers, cost, T


def test_no_set_costs_less_than_the_bound_at_its_deadline(small):
    problem, demand, _, cost, T = small
    clients = Candidates.of(problem, demand)
    for mine, deadline in zip(cost, T, strict=True):
        assert clients.band_needed(deadline) <= 1 + 1e-12
        if clients.band_needed(deadline) <= 1:
            assert relax(clients, deadline).bound <= mine * (1 + 1e-12)


def test_no_price_of_the_band_gives_a_better_bound(small):
    problem, demand, _, _, T = small
    clients = Candidates.of(problem, demand)
    deadline = 1.1 * np.median(T)
    best = relax(clients, deadline, tolerance=1e-9)
    for mu in best.band_price * np.geomspace(0.01, 100, 201):
        costs = cost_of_needs(clients.needs, deadline, mu).cost
        order = np.argsort(costs / np.maximum(problem.num_examples, 1e-9))
        left, value = demand, 0.0
        for k in order:  # by hand: the best first, the last in part
            part = min(1.0, max(left, 0) / max(problem.num_examples[k], 1e-9))
            value, left = value + (costs[k] * part if part else 0.0), left - problem.num_examples[k]
        assert problem.time_weight * deadline - mu + value <= best.bound + 1e-8 * abs(best.bound)


def test_no_set_is_ready_before_the_earliest_deadline_nor_cheaper_than_the_least_energy(small):
    problem, demand, covers, _, _ = small
    clients = Candidates.of(problem, demand)
    earliest, energy = earliest_deadline(clients), least_energy(clients)
    for cover in covers:
        assert earliest <= shortest_deadline(problem.only(cover)) * (1 + 1e-12)
        assert energy <= problem.energy_weight * allocate(problem.only(cover)).joules * (1 + 1e-12)
    alone = (clients.needs.min_seconds + clients.needs.tau).min()
    assert clients.band_needed(earliest) > 1 or earliest == pytest.approx(alone, rel=1e-9)
    assert clients.band_needed(earliest * 1.002) <= 1


def test_whom_a_deadline_leaves_out_or_forces_is_in_no_or_every_set_that_keeps_it(small):
    problem, demand, covers, _, _ = small
    shortest = np.array([shortest_deadline(problem.only(cover)) for cover in covers])
    clients = Candidates.of(problem, demand)
    for deadline in np.quantile(shortest, [0.0, 0.1, 0.5]) * (1 + 1e-9):
        kept = clients.keeping(deadline)
        for cover, ready in zip(covers, shortest, strict=True):
            if ready <= deadline:
                assert set(cover) <= set(kept.rows)
                assert set(kept.rows[kept.forced]) <= set(cover)
    assert clients.keeping(0.9 * clients.needs.min_seconds.min()) is None


def test_a_deadline_leaves_out_who_is_too_slow_for_it():
    problem, _ = odd("plain", 7, generator(3, "slow"))
    clients = Candidates.of(problem, 100)
    deadline = np.sort(clients.needs.min_seconds + clients.needs.tau)[3]
    kept = clients.keeping(deadline)
    assert (kept.needs.min_seconds < deadline).all()
    assert len(kept.rows) < 7


@pytest.mark.parametrize("start", [1e-6, 0.3, 1.0, 2.0, 1e6])
@pytest.mark.parametrize(
    ("top", "value", "slope"),
    [
        (1.0, lambda mu: min(2 * mu, 3 - mu), lambda mu: 2.0 if mu < 1 else -1.0),  # a kink
        (4.0, lambda mu: 4 * np.sqrt(mu) - mu, lambda mu: 2 / np.sqrt(mu) - 1),  # clients that only send
        (2.0, lambda mu: 3 * np.log1p(mu) - mu, lambda mu: 3 / (1 + mu) - 1),
    ],
)
def test_the_search_for_a_price_climbs_to_the_top(start, top, value, slope):
    def at(mu):
        return Point(value(mu), mu, slope(mu), None, None)

    assert ascend(at, start, np.inf, 1e-9, 60).bound == pytest.approx(value(top), rel=1e-6)


def test_a_bound_above_the_limit_is_sought_no_further():
    problem, demand = odd("plain", 7, generator(5, "plain"))
    clients = Candidates.of(problem, demand)
    T = 2 * earliest_deadline(clients)
    exact = relax(clients, T, tolerance=1e-12).bound
    assert exact * 0.8 < relax(clients, T, limit=2 * exact).bound <= exact * (1 + 1e-12)
