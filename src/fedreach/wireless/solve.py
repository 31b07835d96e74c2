"""The best set of clients, with a certificate."""

import heapq
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count, pairwise

import numpy as np

from fedreach._util.arrays import Floats, Ints
from fedreach._util.errors import ConfigError, check
from fedreach.wireless.candidates import Candidates, Incumbent, fractional_cover
from fedreach.wireless.exact import ClientCost, allocate, cost_of_needs
from fedreach.wireless.problem import AllocationProblem, Solution, Status, check_coverable, is_whole
from fedreach.wireless.search import (
    Ends,
    Node,
    WholeCovers,
    earliest_deadline,
    fix_clients,
    least_energy,
    narrow_node,
    offer_settled_sets,
    relax,
    round_core,
)

# -------------------- Best-first search over intervals of the deadline
# Each part of the search, a `Node`, holds deadlines from `low` to `high`, clients that may and clients that must take
# part. Its bound comes from fractional covers, and where that is not enough from whole ones. A part whose
# bound is at the limit, the best cost minus the tolerance, is closed. The others lose the clients that cannot matter,
# and are cut in two. The least bound of the open parts is valid at any moment, so that the proof can stop at any
# moment.

FEW = 80  # free clients so few that all their covers may be tried, however wide the interval
QUICK_COVERS = 200  # covers that are tried so
COVERS = 3_000  # sets that are enumerated to close a node; with 0, none are
CELLS = 6_000_000  # of the table of whole covers; with 0, fractional bounds and branching on clients do all


@dataclass(frozen=True)
class Proof:
    """A lower bound on all sets, the number of examined parts, and whether the search is complete."""

    lower_bound: float
    nodes: int
    complete: bool


def prove(seeds: Iterable[Node], best: Incumbent, *, tolerance: float, go_on: Callable[[int], bool]) -> Proof:
    """Search the seeds for sets that cost less than the best by more than the tolerance, and offer what is found.

    Args:
        seeds: Parts that together hold every set that may be better.
        best: The best set so far.
        tolerance: Relative, positive.
        go_on: Called before each part with the number of examined parts; False ends the search.
    """
    search, order = BranchAndBound(best, tolerance), count()
    open_ = [(seed.bound, next(order), seed) for seed in seeds]
    heapq.heapify(open_)
    nodes = 0
    while open_ and open_[0][0] < search.limit and go_on(nodes):
        node = heapq.heappop(open_)[2]
        nodes += 1
        for child in search.examine(node):
            heapq.heappush(open_, (child.bound, next(order), child))
    # Whatever was closed costs at least the limit of its time, and the limit never rises.
    lowest = min([search.limit, *(bound for bound, _, _ in open_)])
    return Proof(lowest, nodes, lowest >= search.limit)


@dataclass(frozen=True, eq=False)
class BranchAndBound:
    """The processing of nodes: returns the parts of a node that may hold a better set."""

    best: Incumbent
    tolerance: float

    @property
    def limit(self) -> float:
        """Cost below which a set counts as better."""
        return self.best.cost * (1 - 0.99 * self.tolerance)  # rounding must not bring the gap above the tolerance

    def examine(self, node: Node) -> list[Node]:
        """Bound a node by fractional covers, and by whole ones where that is not enough."""
        clients = node.clients.keeping(node.high)
        if clients is None:
            return []
        node, T = replace(node, clients=clients), node.middle
        if node.clients.band_needed(T) > 1:  # no set is ready before the middle
            node, T = replace(node, low=T), node.high
        point = relax(node.clients, T, node.band_price, limit=self.limit, tolerance=self.tolerance)
        node = replace(node, band_price=point.band_price)
        ends = self._ends(node, T, point.costs)
        reduced = self._reduce(node, ends.values, ends)
        if reduced is None:
            return []
        wide = self._is_wide(reduced, point.bound, ends.values)
        if not wide and self._offer_rounded(node.clients, point.costs.cost):
            return [reduced]
        if wide and reduced.clients.num_free > FEW:
            return reduced.parts(node)
        return self._whole(reduced, wide)

    def _whole(self, node: Node, wide: bool) -> list[Node]:
        """Bound a node by whole covers: it is so narrow that halving it would gain little, or few are free."""
        clients = node.clients
        if clients.short <= 0:
            self.best.offer([clients.rows[clients.forced]])  # any further client adds to the cost
            return []
        if not clients.num_free:
            return []
        covers = WholeCovers.of(clients, node.high, node.band_price, CELLS)
        if covers is None:
            return node.halves() if wide else self._branch(node)
        if covers.band_needed(node.high) > 1:
            return []
        T = node.middle
        if covers.band_needed(T) > 1:
            node, T = replace(node, low=T), node.high
        if clients.num_free <= FEW:
            ends = self._ends(node, T, cost_of_needs(clients.needs, T, node.band_price))
            if self._enumerate(covers, ends, covers.table(ends.costs), QUICK_COVERS):
                return []
        if wide:
            return node.halves()

        point = covers.ascend(T, node.band_price, self.best, self.limit, self.tolerance)
        node = replace(node, band_price=point.band_price)
        ends = self._ends(node, T, point.costs)
        table = covers.table(ends.costs)
        values = ends.base + covers.values(ends.costs, table)
        reduced = self._reduce(node, values, ends)
        if reduced is None:
            return []
        if self._is_wide(reduced, point.bound, values):
            return reduced.parts(node)
        return [] if self._enumerate(covers, ends, table, COVERS) else self._branch(reduced)

    def _ends(self, node: Node, T: float, costs: ClientCost) -> Ends:
        return Ends.of(node.clients, node.low, node.high, T, node.band_price, costs)

    def _reduce(self, node: Node, values: Floats, ends: Ends) -> Node | None:
        """Return the node with fewer deadlines and fewer clients that are free; None: nothing is left."""
        narrower = narrow_node(node, values, self.limit)
        clients = None if narrower is None else fix_clients(node.clients, ends, self.limit)
        return None if narrower is None or clients is None else replace(narrower, clients=clients)

    def _is_wide(self, node: Node, bound: float, values: Floats) -> bool:
        """Return whether the width of the interval is a good part of why the bound is not at the limit."""
        lost = bound - float(values.min())
        return lost > 0.25 * (self.limit - node.bound) and node.high - node.low > 1e-12 * node.high

    def _offer_rounded(self, clients: Candidates, costs: Floats) -> bool:
        """Offer the set that costs of the clients lead to; return whether it was better."""
        chosen = round_core(costs, clients.sizes, clients.demand)
        return chosen is not None and self.best.offer([clients.rows[chosen]])

    def _enumerate(self, whole_covers: WholeCovers, ends: Ends, table: Floats, max_sets: int) -> bool:
        """Offer every cover that may be better; return whether they were few enough."""
        covers = whole_covers.below(ends.costs, table, self.limit - ends.base, min(max_sets, COVERS))
        if covers is not None:
            self.best.offer(covers)
        return covers is not None

    def _branch(self, node: Node) -> list[Node]:
        """Return the node with and without one client, the one whose reduced cost is nearest 0."""
        clients = node.clients
        costs = cost_of_needs(clients.needs, node.high, node.band_price).cost
        cover = fractional_cover(costs, clients.sizes, clients.demand, clients.forced)
        distance = np.where(clients.forced, np.inf, np.abs(costs - cover.price * clients.sizes))
        chosen = np.arange(len(distance)) == np.argmin(distance)
        every = np.ones(len(distance), bool)
        return [
            replace(node, clients=clients.only(every, clients.forced | chosen)),
            replace(node, clients=clients.only(~chosen, clients.forced)),
        ]


# -------------------- The whole problem

FEW_COVERS = 200  # sets so few that all of them are allocated, which is faster than a proof, and is one


def solve(
    problem: AllocationProblem,
    min_examples: int,
    *,
    tolerance: float = 1e-6,
    time_limit_seconds: float = 30.0,
    max_nodes: int | None = None,
) -> Solution:
    """Return the cheapest set of clients that together hold enough examples, with its best allocation, and a bound.

    Args:
        problem: Of K clients.
        min_examples: e2, how many examples the set must hold at least.
        tolerance: The gap between cost and bound, relative to the cost, at which the proof ends; 1e-9 or more.
        time_limit_seconds: After which the proof stops where it is; the bound holds all the same. The search for a
            good set that comes before it is always finished: about 0.1 s for 1000 clients, 3 s for 100,000.
        max_nodes: Parts after which the proof stops likewise, on every machine at the same place; None: no limit.

    Raises:
        InfeasibleError: If all clients together hold too few examples.
        ConfigError: If an argument is outside its range.

    Reference: the problem is P1' of "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless
    Networks", eq. 37; the method is ours. The paper's is not exact, and gives no bound.

    Example:
        >>> tau, P = [0.10, 0.08, 0.12, 0.20, 0.06], [0.5, 1.0, 0.25, 0.1, 2.0]
        >>> W, f = [1e8, 2e8, 5e7, 1.5e8, 3e8], [2e9, 3e9, 2.5e9, 1e9, 4e9]
        >>> problem = AllocationProblem(*np.array([tau, P, W, f]), np.array([100, 150, 80, 120, 200]))
        >>> solution = solve(problem, 300)
        >>> solution.allocation.ids, round(solution.cost, 12), solution.status
        (array([0, 4]), 1.008962065383, 'optimal')
    """
    start = time.monotonic()
    check_coverable(problem, min_examples)
    check("solve", "tolerance", tolerance, "[1e-9, 1)")  # below, rounding begins
    check("solve", "time_limit_seconds", time_limit_seconds, "(0, inf]")
    if max_nodes is not None and not is_whole(max_nodes):
        raise ConfigError(f"max_nodes must be a whole number, at least 1, or None; got {max_nodes!r}.")
    best = Incumbent(problem, min_examples)
    if covers := minimal_covers(problem.num_examples, min_examples, FEW_COVERS):
        best.offer(covers)
        allocation = allocate(problem.only(best.rows))
        return Solution(allocation, allocation.cost, "optimal", nodes=0)
    clients = Candidates.of(problem, min_examples)
    earliest = earliest_deadline(clients)
    first = relax(clients, 2 * earliest, tolerance=tolerance)
    offer_settled_sets(best, clients.needs, 2 * earliest, first.band_price)
    nodes = _seeds(best, clients, earliest)

    def in_time(looked_at: int) -> bool:
        return (max_nodes is None or looked_at < max_nodes) and time.monotonic() - start < time_limit_seconds

    proof = prove(nodes, best, tolerance=tolerance, go_on=in_time)
    allocation = allocate(problem.only(best.rows))
    status: Status = "optimal" if proof.complete else "time_limit"
    return Solution(allocation, min(proof.lower_bound, allocation.cost), status, proof.nodes)


def _seeds(best: Incumbent, clients: Candidates, earliest: float) -> list[Node]:
    """Cut the deadlines of sets that may be better than the best one in two, at its deadline.

    No set is ready before `earliest`, and none that is ready after (best cost - least energy) / a1 is cheaper.
    """
    energy = least_energy(clients)
    latest = max((best.cost - energy) / clients.time_weight * (1 + 1e-9), best.deadline)
    return [
        Node(low, high, clients, clients.time_weight * low + energy, best.band_price)
        for low, high in pairwise((earliest, best.deadline, latest))
        if low < high
    ]


def minimal_covers(sizes: Ints, demand: int, max_sets: int) -> list[Ints] | None:
    """Return every set whose sizes sum to the demand and from which no client can be left out; None beyond `max_sets`.

    Each client adds to the cost, so that one of these sets is the best of all. Clients are taken
    in falling order of size: the one that completes a set is then its smallest, and without it, or any other client,
    the set falls short.

    Example:
        >>> [rows.tolist() for rows in minimal_covers(np.array([3, 1, 2]), 3, max_sets=10)]
        [[0], [1, 2]]
    """
    order = np.argsort(-sizes, kind="stable")
    falling = sizes[order].tolist()
    totals_from = np.cumsum(falling[::-1])[::-1].tolist()  # what an item and all after it hold
    covers: list[list[int]] = []
    items: list[int] = []
    missing, j = demand, 0
    while items or (j < len(falling) and totals_from[j] >= missing):
        if j == len(falling) or totals_from[j] < missing:  # these items cannot cover the demand: drop the last
            j = items.pop()
            missing += falling[j]
        elif falling[j] >= missing:
            covers.append([*items, j])
            if len(covers) > max_sets:
                return None
        else:
            items.append(j)
            missing -= falling[j]
        j += 1
    return [np.sort(order[items]) for items in covers]
