"""The proof: lines lie below costs, nothing better is ever dropped, and each of its steps is taken and right."""

from itertools import pairwise

import numpy as np
import pytest

from fedreach._util.streams import generator
from fedreach.wireless import solve
from fedreach.wireless.candidates import Candidates, Incumbent, pad_sets
from fedreach.wireless.exact import allocate, allocate_batch, cost_of_needs
from fedreach.wireless.search import Ends, Node, WholeCovers, earliest_deadline, fix_clients, lines, narrow_node
from fedreach.wireless.solve import BranchAndBound, prove

from .brute import minimal_covers
from .instances import KINDS, odd

TOLERANCE = 1e-6


class Small:
    """A problem of eight clients of which everything is known: all minimal covers, their costs and deadlines."""

    def __init__(self, kind, draw=0, clients=8):
        self.problem, self.demand = odd(kind, clients, generator(draw, kind))
        self.covers = [np.array(cover) for cover in minimal_covers(self.problem.num_examples, self.demand)]
        self.cost, self.T, self.mu = allocate_batch(self.problem, *pad_sets(self.covers))
        self.clients = Candidates.of(self.problem, self.demand)

    def incumbent(self, cost):
        """Return an incumbent that knows of no set but costs so much."""
        best = Incumbent(self.problem, self.demand)
        best.cost, best.rows = cost, np.arange(len(self.problem))
        return best

    def root(self, low=None, high=None):
        low = earliest_deadline(self.clients) if low is None else low
        return Node(low, 2 * self.T.max() if high is None else high, self.clients, -np.inf, float(np.median(self.mu)))

    def in_part(self, node):
        """Return which of the covers a part of the search holds."""
        rows, forced = set(node.clients.rows), set(node.clients.rows[node.clients.forced])
        clients = [forced <= set(cover) <= rows for cover in self.covers]
        return np.array(clients) & (node.low * (1 - 1e-12) <= self.T) & (node.high * (1 + 1e-12) >= self.T)


@pytest.fixture(params=KINDS)
def small(request):
    return Small(request.param)


def intervals(small):
    low = earliest_deadline(small.clients)
    ends = np.geomspace(low, 2 * small.T.max(), 6)
    return list(pairwise(ends))


def test_lines_lie_below_the_costs_on_all_of_the_interval(small):
    for low, high in intervals(small):
        for T in (np.sqrt(low * high), high):
            for mu in np.median(small.mu) * np.array([0.01, 1.0, 100.0]):
                ends = lines(small.clients, low, high, T, mu, cost_of_needs(small.clients.needs, T, mu))
                for part in np.linspace(0, 1, 9):
                    between = low + part * (high - low)
                    cost = cost_of_needs(small.clients.needs, between, mu).cost
                    can = np.isfinite(ends[0])
                    line = (1 - part) * ends[0, can] + part * ends[1, can]
                    assert (line <= cost[can] * (1 + 1e-9) + 1e-12).all()
                    assert np.isinf(cost[~can]).all()


def test_a_client_that_is_too_slow_for_the_middle_has_a_line_all_the_same():
    small = Small("plain", 3)
    slow = small.clients.needs.min_seconds.max()
    low, high, T = 0.5 * slow, 2.0 * slow, 0.9 * slow
    ends = lines(small.clients, low, high, T, 1.0, cost_of_needs(small.clients.needs, T, 1.0))
    assert np.isfinite(ends).all()
    early = lines(small.clients, low, 0.9 * slow, 0.7 * slow, 1.0, cost_of_needs(small.clients.needs, 0.7 * slow, 1.0))
    assert np.isinf(early[:, small.clients.needs.min_seconds.argmax()]).all()


def test_the_ends_of_an_interval_bound_all_sets_in_it_fractional_and_whole(small):
    for low, high in intervals(small):
        node = small.root(low, high)
        inside = small.in_part(node)
        T = node.middle
        for mu in np.median(small.mu) * np.array([0.1, 1.0, 10.0]):
            ends = Ends.of(small.clients, low, high, T, mu, cost_of_needs(small.clients.needs, T, mu))
            whole = WholeCovers.of(small.clients, high, mu, 10**6)
            values = ends.base + whole.values(ends.costs, whole.table(ends.costs))
            if inside.any():
                best = small.cost[inside].min() * (1 + 1e-9)
                assert ends.values.min() <= best
                assert values.min() <= best
                # A dearer bound is a better one; at negative costs the fractional cover takes more than it needs.
                assert values.min() >= ends.values.min() * (1 - 1e-9) - 1e-9


def test_what_a_chord_and_reduced_costs_leave_holds_every_set_below_the_limit(small):
    for low, high in intervals(small):
        node = small.root(low, high)
        inside, mu = small.in_part(node), float(np.median(small.mu))
        ends = Ends.of(small.clients, low, high, node.middle, mu, cost_of_needs(small.clients.needs, node.middle, mu))
        for limit in np.quantile(small.cost, [0.0, 0.3, 0.8]) * (1 + 1e-6):
            wanted = inside & (small.cost < limit)
            left, clients = narrow_node(node, ends.values, limit), fix_clients(small.clients, ends, limit)
            if wanted.any():
                assert small.in_part(left)[wanted].all()
                assert small.in_part(Node(low, high, clients, 0.0, mu))[wanted].all()


def test_the_chord_cuts_where_it_meets_the_limit():
    small = Small("plain")
    node = small.root(1.0, 3.0)
    assert narrow_node(node, np.array([4.0, 2.0]), 3.0).low == pytest.approx(2.0)
    assert narrow_node(node, np.array([2.0, 6.0]), 3.0).high == pytest.approx(1.5)
    assert narrow_node(node, np.array([2.0, 2.5]), 3.0).low == 1.0
    assert narrow_node(node, np.array([3.0, 4.0]), 3.0) is None
    assert narrow_node(node, np.array([np.inf, 2.0]), 3.0).low == 1.0


LIMITS = {
    "all": {},
    "no quick covers": {"FEW": 0},
    "no covers": {"FEW": 0, "COVERS": 0},
    "no tables": {"FEW": 0, "CELLS": 0},
    "small tables": {"FEW": 0, "CELLS": 400},
    "neither": {"FEW": 0, "CELLS": 0, "COVERS": 0},
}


def limit(monkeypatch, limits):
    """Have the search do no more work on a node than this."""
    for name, value in limits.items():
        monkeypatch.setattr(solve, name, value)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("limits", LIMITS)
def test_no_step_loses_a_set_below_the_limit(small, limits, monkeypatch):
    """Each part that comes of a node is looked at in turn, three deep; what is better stays or has been found."""
    limit(monkeypatch, LIMITS[limits])
    for cost in (1.5 * small.cost.max(), float(np.median(small.cost)), small.cost.min() * 1.01):
        search = BranchAndBound(small.incumbent(cost), TOLERANCE)
        nodes = [small.root()]
        for _ in range(3):
            children = []
            for node in nodes:
                before = small.in_part(node)
                parts = search.examine(node)
                kept = np.any([small.in_part(part) for part in parts], axis=0) if parts else np.zeros(len(before), bool)
                wanted = before & (small.cost < search.limit * (1 - 1e-9))
                assert kept[wanted].all()
                held = [part.bound <= small.cost[small.in_part(part)].min(initial=np.inf) for part in parts]
                assert all(held)
                children += parts
            nodes = children[:8]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_search_ends_at_the_optimum_with_any_effort(kind, limits, monkeypatch):
    limit(monkeypatch, LIMITS[limits])
    small = Small(kind, 1, clients=6)
    best = small.incumbent(3 * small.cost.max())
    proof = prove([small.root()], best, tolerance=1e-4, go_on=lambda nodes: nodes < 400)
    assert proof.lower_bound <= small.cost.min() * (1 + 1e-12)
    if proof.complete:  # some are slow without tables or enumeration; the bound holds all the same
        assert best.cost <= small.cost.min() * (1 + 1e-4)
        assert proof.lower_bound >= best.cost * (1 - 1e-4)
    assert proof.complete or limits != "all"


@pytest.mark.parametrize(
    ("step", "limits", "kind", "draw"),
    [
        ("_branch", {"CELLS": 0, "FEW": 0}, "plain", 0),
        ("_branch", {"COVERS": 0, "FEW": 0}, "dear_seconds", 1),
        ("_enumerate", {}, "plain", 0),
        ("_enumerate", {"FEW": 0}, "dear_seconds", 1),
        ("_offer_rounded", {"FEW": 0}, "plain", 0),
        ("_whole", {"FEW": 0}, "plain", 0),
    ],
)
def test_every_step_is_taken(step, limits, kind, draw, monkeypatch):
    """Guards the tests above: without it they could pass with a step that is never reached."""
    taken = []
    original = getattr(BranchAndBound, step)
    limit(monkeypatch, limits)
    monkeypatch.setattr(BranchAndBound, step, lambda self, *args: taken.append(step) or original(self, *args))
    small = Small(kind, draw, clients=6)
    best = small.incumbent(small.cost.max())
    proof = prove([small.root()], best, tolerance=1e-4, go_on=lambda nodes: nodes < 400)
    assert taken
    assert proof.lower_bound <= small.cost.min() * (1 + 1e-12)
    assert not proof.complete or best.cost <= small.cost.min() * (1 + 1e-4)


def test_tangents_fall_below_zero_far_from_where_they_touch():
    """So negative costs do occur, and the tests above have met them."""
    small = Small("plain")
    mu, T = float(small.mu[0]), float(small.T.min())
    slow = small.clients.needs.min_seconds.max() * 1.01
    T = max(T, slow)
    found = cost_of_needs(small.clients.needs, T, mu)
    ends = np.stack([found.cost, found.cost + found.slope * 9 * T])  # as `lines` would have it, were the rule not there
    assert (ends[1] < 0).any()
    kept = lines(small.clients, T, 10 * T, T, mu, found)
    assert (kept[1] >= 0.49 * cost_of_needs(small.clients.needs, 10 * T, mu).cost).all()


def test_a_part_in_which_nobody_is_free_is_closed():
    small = Small("plain")
    search = BranchAndBound(small.incumbent(10 * small.cost.max()), TOLERANCE)
    low, high = small.root().low, 100 * small.T.max()

    def part(kept):
        return Node(low, high, small.clients.only(kept, kept), 0.0, 1.0)

    alone = part(np.arange(8) < 1)  # one client is not enough, and nobody else is there
    assert search.examine(alone) == search._whole(alone, False) == []
    assert search.best.cost == 10 * small.cost.max()
    assert search._whole(part(np.ones(8, bool)), False) == []
    assert search.best.cost == pytest.approx(allocate(small.problem).cost, rel=1e-12)


def test_a_search_that_is_stopped_has_a_valid_bound():
    small = Small("plain", 2, clients=10)
    for most in (0, 1, 2, 5):
        best = small.incumbent(2 * small.cost.max())
        root = small.root()
        seeds = [
            Node(root.low, root.middle, root.clients, 0.0, 1.0),
            Node(root.middle, root.high, root.clients, 0.0, 1.0),
        ]
        proof = prove(seeds, best, tolerance=TOLERANCE, go_on=lambda nodes, most=most: nodes < most)
        assert proof.nodes <= most
        assert proof.lower_bound <= small.cost.min() * (1 + 1e-12)
        assert proof.complete or proof.lower_bound < best.cost * (1 - TOLERANCE / 2)
