"""The proof that no set is better: best-first search over intervals of the deadline.

Each part of the search, a `Node`, holds deadlines from `low` to `high`, clients that may and clients that must take
part. Its bound comes from `certificate_interval`, and where that is not enough from `certificate_whole`. A part whose
bound is at the limit, the best cost less the tolerance, is closed. The others lose the clients that cannot matter, and
are cut in two. The least bound of the open parts is valid at any moment, so that the proof can stop at any moment.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from fedreach.arrays import Floats
from fedreach.wireless.allocation.kernel import ClientCost, priced
from fedreach.wireless.allocation.search.candidates import Candidates
from fedreach.wireless.allocation.search.incumbent import Incumbent
from fedreach.wireless.allocation.search.interval_bounds import Ends, Node, fixed, narrowed
from fedreach.wireless.allocation.search.knapsack import fractional_cover
from fedreach.wireless.allocation.search.relaxation import Point, relax
from fedreach.wireless.allocation.search.rounding import round_core
from fedreach.wireless.allocation.search.whole_bounds import WholeCovers

FEW = 80  # free clients so few that all their covers may be tried, however wide the interval
QUICK = 200  # covers that are tried so


@dataclass(frozen=True)
class Effort:
    """How much work a node may take."""

    cells: int = 6_000_000  # of the table of whole covers; with 0, fractional bounds and branching on clients do all
    covers: int = 3_000  # sets that are enumerated to close a node; with 0, none are
    whole: bool = True  # without whole covers, a node that fractional covers cannot close stays open


@dataclass(frozen=True)
class Proof:
    """A lower bound on all sets, the parts looked at, and whether the search came to its end."""

    lower_bound: float
    nodes: int
    complete: bool


def prove(
    seeds: Iterable[Node],
    best: Incumbent,
    *,
    tolerance: float,
    go_on: Callable[[int], bool],
    effort: Effort | None = None,
) -> Proof:
    """Search the seeds for sets that cost less than the best by more than the tolerance, and offer what is found.

    Args:
        seeds: Parts that together hold every set that may be better.
        best: The best set so far.
        tolerance: Relative, positive.
        go_on: Asked with the number of parts looked at before each; False ends the search.
        effort: How much work a node may take.
    """
    search, order = Search(best, tolerance, effort or Effort()), count()
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
class Search:
    """What is done to a node: all that is left of it, in parts, is returned; nothing if no set in it is better."""

    best: Incumbent
    tolerance: float
    effort: Effort

    @property
    def limit(self) -> float:
        """What a set must cost less than to be looked for."""
        return self.best.cost * (1 - 0.99 * self.tolerance)  # rounding must not bring the gap above the tolerance

    def examine(self, node: Node) -> list[Node]:
        """Bound a node by fractional covers, and by whole ones where that is not enough."""
        clients = node.clients.keeping(node.high)
        if clients is None:
            return []
        node, T = replace(node, clients=clients), node.middle
        if node.clients.band_needed(T) > 1:  # no set is ready before the middle
            node, T = replace(node, low=T), node.high
        point = self._relax(node, T)
        node = replace(node, band_price=point.band_price)
        ends = self._ends(node, T, point.costs)
        left = self._reduced(node, ends.values, ends)
        if left is None:
            return []
        wide = self._is_wide(left, point.bound, ends.values)
        if not wide and self._rounded(node.clients, point.costs.cost):
            return [left]
        if not self.effort.whole or (wide and left.clients.num_free > FEW):
            return left.parts(node)
        return self._whole(left, wide)

    def _whole(self, node: Node, wide: bool) -> list[Node]:
        """Bound a node by whole covers: it is so narrow that halving it would gain little, or few are free."""
        clients = node.clients
        if clients.short <= 0:
            self.best.offer([clients.rows[clients.forced]])  # whoever else takes part adds to the cost
            return []
        if not clients.num_free:
            return []
        whole = WholeCovers.of(clients, node.high, node.band_price, self.effort.cells)
        if whole is None:
            return node.halves() if wide else self._branch(node)
        if whole.band_needed(node.high) > 1:
            return []
        T = node.middle
        if whole.band_needed(T) > 1:
            node, T = replace(node, low=T), node.high
        if clients.num_free <= FEW:
            ends = self._ends(node, T, priced(clients.needs, T, node.band_price))
            if self._enumerated(whole, ends, whole.table(ends.costs), QUICK):
                return []
        if wide:
            return node.halves()

        point = whole.ascend(T, node.band_price, self.best, self.limit, self.tolerance)
        node = replace(node, band_price=point.band_price)
        ends = self._ends(node, T, point.costs)
        table = whole.table(ends.costs)
        values = ends.base + whole.values(ends.costs, table)
        left = self._reduced(node, values, ends)
        if left is None:
            return []
        if self._is_wide(left, point.bound, values):
            return left.parts(node)
        return [] if self._enumerated(whole, ends, table, self.effort.covers) else self._branch(left)

    def _relax(self, node: Node, T: float) -> Point:
        return relax(node.clients, T, node.band_price, limit=self.limit, tolerance=self.tolerance)

    def _ends(self, node: Node, T: float, costs: ClientCost) -> Ends:
        return Ends.of(node.clients, node.low, node.high, T, node.band_price, costs)

    def _reduced(self, node: Node, values: Floats, ends: Ends) -> Node | None:
        """Return the node with fewer deadlines and fewer clients that are free; None: nothing is left."""
        left = narrowed(node, values, self.limit)
        clients = None if left is None else fixed(node.clients, ends, self.limit)
        return None if left is None or clients is None else replace(left, clients=clients)

    def _is_wide(self, left: Node, bound: float, values: Floats) -> bool:
        """Return whether the width of the interval is a good part of why the bound is not at the limit."""
        lost = bound - float(values.min())
        return lost > 0.25 * (self.limit - left.bound) and left.high - left.low > 1e-12 * left.high

    def _rounded(self, clients: Candidates, costs: Floats) -> bool:
        """Offer the set that costs of the clients lead to; return whether it was better."""
        chosen = round_core(costs, clients.sizes, clients.demand)
        return chosen is not None and self.best.offer([clients.rows[chosen]])

    def _enumerated(self, whole: WholeCovers, ends: Ends, table: Floats, max_sets: int) -> bool:
        """Offer every cover that may be better; return whether they were few enough for that."""
        covers = whole.below(ends.costs, table, self.limit - ends.base, min(max_sets, self.effort.covers))
        if covers is not None:
            self.best.offer(covers)
        return covers is not None

    def _branch(self, node: Node) -> list[Node]:
        """Return the node with and without one client, the one whose reduced cost is nearest 0."""
        clients = node.clients
        costs = priced(clients.needs, node.high, node.band_price).cost
        cover = fractional_cover(costs, clients.sizes, clients.demand, clients.forced)
        distance = np.where(clients.forced, np.inf, np.abs(costs - cover.price * clients.sizes))
        chosen = np.arange(len(distance)) == np.argmin(distance)
        every = np.ones(len(distance), bool)
        return [
            replace(node, clients=clients.only(every, clients.forced | chosen)),
            replace(node, clients=clients.only(~chosen, clients.forced)),
        ]
