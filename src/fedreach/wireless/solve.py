"""Selection of the cheapest set of clients, with a proven lower bound."""

import heapq
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count, pairwise

import numpy as np

from fedreach._util.arrays import Floats, Ints
from fedreach._util.errors import ConfigError, InfeasibleError, check
from fedreach.wireless import search
from fedreach.wireless.candidates import Candidates, Incumbent, fractional_cover
from fedreach.wireless.exact import ClientCost, allocate, cost_of_needs
from fedreach.wireless.problem import AllocationProblem, Solution, Status, check_coverable, is_whole
from fedreach.wireless.search import Ends, Node, WholeCovers

# -------------------- Best-first search over intervals of the deadline
# Each `Node` has an interval of deadlines and candidate clients. Its bound comes from fractional covers, and if these
# are not sufficient, from whole ones. A node is closed if its bound reaches the limit, the best cost minus the
# tolerance. Otherwise, clients that cannot matter are removed, and the node is split. The smallest bound of the open
# nodes is always a valid lower bound, so the search can stop at any time.

FEW = 80  # number of free clients up to which all covers may be enumerated for any interval
QUICK_COVERS = 200  # number of covers for this enumeration
COVERS = 3_000  # number of covers that are enumerated to close a node; 0: none
CELLS = 6_000_000  # cells of the table of whole covers; 0: only fractional bounds and branching on clients


@dataclass(frozen=True)
class Proof:
    """Lower bound for all sets, number of examined nodes, and whether the search is complete."""

    lower_bound: float
    nodes: int
    complete: bool


def prove(seeds: Iterable[Node], best: Incumbent, *, tolerance: float, go_on: Callable[[int], bool]) -> Proof:
    """Search nodes for sets whose cost is below the lowest cost so far by more than the tolerance.

    Args:
        seeds: First nodes, which together contain every set that may be better than `best`.
        best: Best set so far, which the function updates.
        tolerance: Relative tolerance, above 0.
        go_on: Function that is called before each node with the number of examined nodes; False ends the search.
    """
    branching, order = BranchAndBound(best, tolerance), count()
    open_ = [(seed.bound, next(order), seed) for seed in seeds]
    heapq.heapify(open_)
    nodes = 0
    while open_ and open_[0][0] < branching.limit and go_on(nodes):
        node = heapq.heappop(open_)[2]
        nodes += 1
        for child in branching.examine(node):
            heapq.heappush(open_, (child.bound, next(order), child))
    # A closed node costs at least the limit at that time, and the limit never increases.
    lowest = min([branching.limit, *(bound for bound, _, _ in open_)])
    return Proof(lowest, nodes, lowest >= branching.limit)


@dataclass(frozen=True, eq=False)
class BranchAndBound:
    """Branch and bound: examines a node and returns the child nodes that may contain a better set."""

    best: Incumbent
    tolerance: float

    @property
    def limit(self) -> float:
        """Cost below which a set is better than the best set so far."""
        return self.best.cost * (1 - 0.99 * self.tolerance)  # 0.99: rounding must not bring the gap above the tolerance

    def examine(self, node: Node) -> list[Node]:
        """Bound a node by fractional covers, and if these are not sufficient, by covers of whole clients."""
        clients = node.clients.keeping(node.high)
        if clients is None:
            return []
        node, T = replace(node, clients=clients), node.middle
        if node.clients.band_needed(T) > 1:  # no set meets a deadline before the middle
            node, T = replace(node, low=T), node.high
        point = search.relax(node.clients, T, node.band_price, limit=self.limit, tolerance=self.tolerance)
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
        """Bound a node by covers of whole clients, if a split would gain little or the node has few free clients."""
        clients = node.clients
        if clients.short <= 0:
            self.best.offer([clients.rows[clients.forced]])  # each additional client increases the cost
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
        """Return the node with fewer deadlines and fewer free clients; None if it can be closed."""
        narrower = search.narrow_node(node, values, self.limit)
        clients = None if narrower is None else search.fix_clients(node.clients, ends, self.limit)
        return None if narrower is None or clients is None else replace(narrower, clients=clients)

    def _is_wide(self, node: Node, bound: float, values: Floats) -> bool:
        """Return whether the width of the interval explains much of the difference between bound and limit."""
        lost = bound - float(values.min())
        return lost > 0.25 * (self.limit - node.bound) and node.high - node.low > 1e-12 * node.high

    def _offer_rounded(self, clients: Candidates, costs: Floats) -> bool:
        """Offer the rounded set for these costs; return whether it is better than the best set."""
        chosen = search.round_core(costs, clients.sizes, clients.demand)
        return chosen is not None and self.best.offer([clients.rows[chosen]])

    def _enumerate(self, whole_covers: WholeCovers, ends: Ends, table: Floats, max_sets: int) -> bool:
        """Offer every cover that may be better than the best set; return False if there are too many."""
        covers = whole_covers.below(ends.costs, table, self.limit - ends.base, min(max_sets, COVERS))
        if covers is not None:
            self.best.offer(covers)
        return covers is not None

    def _branch(self, node: Node) -> list[Node]:
        """Split the node by the client whose reduced cost is closest to 0, into sets with and without this client."""
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

FEW_COVERS = 200  # number of minimal covers up to which all of them are allocated, which is faster than a search


def solve(
    problem: AllocationProblem,
    min_examples: int,
    *,
    tolerance: float = 1e-6,
    time_limit_seconds: float = 30.0,
    max_nodes: int | None = None,
) -> Solution:
    """Return the cheapest set of clients with enough examples, its optimal allocation, and a lower bound.

    Args:
        problem: Allocation problem of K clients.
        min_examples: Smallest number of examples e2 of the set, at least 1.
        tolerance: Gap between cost and bound, relative to the cost, at which the search ends; at least 1e-9. Default:
            1e-6.
        time_limit_seconds: Time limit in seconds for the proof. It does not include the first search for a good set,
            which takes about 0.1 s for 1000 clients, and 3 s for 100,000. Default: 30.
        max_nodes: Largest number of nodes of the search. Unlike the time limit, it does not depend on the machine.
            Default: no limit.

    Raises:
        InfeasibleError: If all clients together have too few examples, or no set of clients with enough examples is
            within their energy caps.
        ConfigError: If an argument is outside its range.

    Reference: Problem P1' of "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks",
    eq. 37. The method was developed for FedReach. The paper's method is not exact, and does not return a bound.

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
    check("solve", "tolerance", tolerance, "[1e-9, 1)")  # smaller ones are lost in rounding
    check("solve", "time_limit_seconds", time_limit_seconds, "(0, inf]")
    if max_nodes is not None and not is_whole(max_nodes):
        raise ConfigError(f"max_nodes must be a whole number, at least 1, or None; got {max_nodes!r}.")
    best = Incumbent(problem, min_examples)
    if covers := minimal_covers(problem.num_examples, min_examples, FEW_COVERS):
        best.offer(covers)
        _check_caps(best)
        allocation = allocate(problem.only(best.rows))
        return Solution(allocation, allocation.cost, "optimal", nodes=0)
    clients = Candidates.of(problem, min_examples)
    if clients.needs.caps is not None:  # the set that needs the least bandwidth for its energy caps
        smallest = search.round_core(clients.needs.least_band(), clients.sizes, min_examples)
        best.offer([] if smallest is None else [np.flatnonzero(smallest)])
        _check_caps(best)
    earliest = search.earliest_deadline(clients)
    first = search.relax(clients, 2 * earliest, tolerance=tolerance)
    search.offer_settled_sets(best, clients.needs, 2 * earliest, first.band_price)
    nodes = _seeds(best, clients, earliest)

    def in_time(looked_at: int) -> bool:
        return (max_nodes is None or looked_at < max_nodes) and time.monotonic() - start < time_limit_seconds

    proof = prove(nodes, best, tolerance=tolerance, go_on=in_time)
    allocation = allocate(problem.only(best.rows))
    status: Status = "optimal" if proof.complete else "time_limit"
    return Solution(allocation, min(proof.lower_bound, allocation.cost), status, proof.nodes)


def _check_caps(best: Incumbent) -> None:
    if not len(best.rows):
        raise InfeasibleError(
            f"max_joules must allow a set of clients with min_examples = {best.min_examples}; FedReach found no set "
            "whose clients share the bandwidth within their energy caps. Raise max_joules, or lower min_examples."
        )


def _seeds(best: Incumbent, clients: Candidates, earliest: float) -> list[Node]:
    """Return the first nodes, the deadlines of sets that may be better, split at the deadline of the best set.

    No set is ready before `earliest`. Sets that are ready after (best cost - lowest energy cost) / a1 are not cheaper.
    """
    energy = search.least_energy(clients)
    latest = max((best.cost - energy) / clients.time_weight * (1 + 1e-9), best.deadline)
    return [
        Node(low, high, clients, clients.time_weight * low + energy, best.band_price)
        for low, high in pairwise((earliest, best.deadline, latest))
        if low < high
    ]


def minimal_covers(sizes: Ints, demand: int, max_sets: int) -> list[Ints] | None:
    """Return all sets that cover the demand, but not without any one of their clients; None if more than `max_sets`.

    Each client increases the cost, so the best set is one of these sets. Clients are added in decreasing order of size,
    so the last client of a set is its smallest client. If any client is removed, the set no longer covers the demand.

    Example:
        >>> [rows.tolist() for rows in minimal_covers(np.array([3, 1, 2]), 3, max_sets=10)]
        [[0], [1, 2]]
    """
    order = np.argsort(-sizes, kind="stable")
    falling = sizes[order].tolist()
    totals_from = np.cumsum(falling[::-1])[::-1].tolist()  # sum of the sizes from each item on
    covers: list[list[int]] = []
    items: list[int] = []
    missing, j = demand, 0
    while items or (j < len(falling) and totals_from[j] >= missing):
        if j == len(falling) or totals_from[j] < missing:  # the other items are too small: remove the last one
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
