"""The best set of clients found so far."""

from collections.abc import Iterable
from math import inf

import numpy as np

from fedreach.arrays import Bools, Floats, Ints
from fedreach.wireless.allocation.exact import allocate_batch
from fedreach.wireless.allocation.problem import AllocationProblem

CELLS = 200_000  # clients that are allocated at once, over all sets; it bounds the memory


class Incumbent:
    """The best set with enough examples so far, and its exact cost; sets that were tried are not tried again.

    Costs are those of `exact.allocate_batch`, so each is attained, and the least is an upper bound on the optimum. Sets
    with fewer than `min_examples` are passed over.
    """

    def __init__(self, problem: AllocationProblem, min_examples: int) -> None:
        self.problem, self.min_examples = problem, min_examples
        self.cost = inf
        self.rows: Ints = np.empty(0, np.int64)  # (k,) increasing
        self.deadline = self.band_price = inf  # T and mu of the best set
        self._tried: set[bytes] = set()

    def offer(self, sets: Iterable[Ints]) -> bool:
        """Take the best of some sets, given as rows, if it is better; return whether it was."""
        new = [rows for rows in (np.sort(rows) for rows in sets) if self._is_new(rows)]
        before = self.cost
        while new:
            some = max(1, CELLS // max(len(rows) for rows in new))
            self._allocate(new[:some])
            new = new[some:]
        return self.cost < before

    def _is_new(self, rows: Ints) -> bool:
        key = rows.tobytes()
        if key in self._tried or int(self.problem.num_examples[rows].sum()) < self.min_examples:
            return False
        self._tried.add(key)
        return True

    def _allocate(self, sets: list[Ints]) -> None:
        cost, deadline, band_price = allocate_batch(self.problem, *padded(sets))
        best = int(np.argmin(cost))
        if cost[best] < self.cost:
            self.cost, self.rows = float(cost[best]), sets[best]
            self.deadline, self.band_price = float(deadline[best]), float(band_price[best])


def padded(sets: list[Ints]) -> tuple[Ints, Bools]:
    """Return sets of unequal size as rows of one array (m, n), and which entries count.

    Example:
        >>> rows, counted = padded([np.array([4, 7]), np.array([5])])
        >>> rows.tolist(), counted.tolist()
        ([[4, 7], [5, 0]], [[True, True], [True, False]])
    """
    lengths = np.array([len(rows) for rows in sets])
    counted = np.arange(lengths.max()) < lengths[:, None]
    table = np.zeros(counted.shape, np.int64)
    table[counted] = np.concatenate(sets)
    return table, counted


def repaired(chosen: Bools, costs: Floats, sizes: Ints, demand: int) -> Bools:
    """Return a cover near a set of items: what is missing is added in the order of c/d, what is not needed dropped.

    Items with infinite costs are added last; the dearest are dropped first. The sizes d (n,) of all items sum to the
    demand or more; those of the cover do.
    """
    chosen = chosen.copy()
    short = demand - int(sizes[chosen].sum())
    if short > 0:
        spare = np.flatnonzero(~chosen & (sizes > 0))
        spare = spare[np.argsort(costs[spare] / sizes[spare], kind="stable")]
        enough = int(np.searchsorted(np.cumsum(sizes[spare]), short)) + 1
        chosen[spare[:enough]] = True
    over = int(sizes[chosen].sum()) - demand
    some = np.flatnonzero(chosen & (sizes <= over))
    for item in some[np.argsort(-costs[some], kind="stable")]:
        if sizes[item] <= over:
            chosen[item] = False
            over -= int(sizes[item])
    return chosen
