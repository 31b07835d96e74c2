"""Candidate clients of the search, sets of clients that cover the demand, and the best set so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from fedreach._util.arrays import Bools, Floats, Ints
from fedreach.wireless.exact import Needs, allocate_batch
from fedreach.wireless.problem import AllocationProblem

# -------------------- Cheapest covers: fractional, exact, and all below a limit
# Each item has a cost, which can be negative or infinite, and a whole size. A *cover* is a set of items whose sizes sum
# to at least the demand. Items are clients, sizes are numbers of examples, and costs follow from the dual prices.


@dataclass(frozen=True, eq=False)
class FractionalCover:
    """Cheapest cover if fractions of items are allowed, which is a lower bound on the cost of every cover."""

    value: float  # cost; infinite if all items together are too small
    taken: Floats  # (n,) fraction x of each item, from 0 to 1; at most one is neither 0 nor 1
    price: float  # nu: cost of one more unit of demand


def fractional_cover(costs: Floats, sizes: Ints, demand: int, forced: Bools | None = None) -> FractionalCover:
    """Minimize c.x subject to d.x >= demand and 0 <= x <= 1, by adding items in the order of c / d.

    Items with negative costs and `forced` items are always included; items with infinite costs are never included.
    `costs` are c (n,), and `sizes` are d (n,) >= 0. The demand may be any number, including a negative number.

    Example:
        >>> fractional_cover(np.array([3.0, 1.0, 4.0]), np.array([2, 1, 2]), 4)
        FractionalCover(value=6.0, taken=array([1. , 1. , 0.5]), price=2.0)
    """
    first = costs < 0 if forced is None else (costs < 0) | forced
    parts = first.astype(np.float64)
    short = demand - int(sizes[first].sum())
    if short <= 0:
        return FractionalCover(float(costs[first].sum()), parts, 0.0)
    open_ = np.flatnonzero(~first & (costs < inf) & (sizes > 0))
    ratio = costs[open_] / sizes[open_]
    order = np.argsort(ratio, kind="stable")
    inside = open_[order]
    reached = np.cumsum(sizes[inside])
    last = int(np.searchsorted(reached, short))
    if last == len(inside):
        return FractionalCover(inf, parts, inf)
    parts[inside[:last]] = 1.0
    before = int(reached[last - 1]) if last else 0
    parts[inside[last]] = (short - before) / sizes[inside[last]]
    used = np.flatnonzero(parts)
    return FractionalCover(float(costs[used] @ parts[used]), parts, float(ratio[order[last]]))


def coarsen_sizes(sizes: Ints, demand: int, cells: int, *, enough: bool = False) -> tuple[Ints, int] | None:
    """Return sizes and demand in a larger unit, so that a table of covers has at most `cells` cells.

    The unit is the greatest common divisor of the sizes, which needs no rounding. If the table is still too large, the
    unit is a multiple for which the table has about a sixth of the cells. Sizes are then rounded up, so that every
    cover remains a cover, and the cheapest cover in the larger unit is a lower bound. With `enough`, sizes are rounded
    down, so that every cover in the larger unit is also a cover in the original unit. The result is None if the unit
    would exceed a quarter of the mean size.

    Example:
        >>> coarsen_sizes(np.array([20, 30, 50]), 60, 1000)  # divided by 10 without loss
        (array([2, 3, 5]), 6)
        >>> coarsen_sizes(np.array([2001, 3103, 5007]), 6000, 600)
        (array([ 8, 13, 20]), 24)
        >>> coarsen_sizes(np.array([2001, 3103, 5007]), 6000, 600, enough=True)
        (array([ 7, 12, 19]), 24)
    """
    is_enough, sizes = sizes >= demand, np.minimum(sizes, demand)
    unit = int(np.gcd.reduce(sizes[~is_enough])) or max(1, demand)  # other items cover the demand alone in any unit
    columns = -(-demand // unit) + 1
    if columns * (len(sizes) + 1) > cells:
        max_columns = max(2, cells // (6 * (len(sizes) + 1)))
        unit *= -(-columns // (max_columns - 1))
        if 4 * unit > sizes.mean():
            return None
    demand = -(-demand // unit)
    return np.where(is_enough, demand, sizes // unit if enough else -(-sizes // unit)), demand


def cover_table(costs: Floats, sizes: Ints, demand: int) -> Floats:
    """Return best[i, j, r], (n + 1, m, D + 1), the lowest cost at which the items i, i + 1, ... cover the size r.

    The costs are c (m, n). Dynamic programming proceeds from the last item to the first: best[i, j, r] is the minimum
    of best[i + 1, j, r] and c_ji + best[i + 1, j, max(r - d_i, 0)]. For r = 0, no item is added, not even with a
    negative cost. So only covers without superfluous items are considered. Sizes must be at most the demand D.

    Example:
        >>> cover_table(np.array([[3.0, 1.0, 4.0]]), np.array([2, 1, 2]), 4)[:, 0]
        array([[ 0.,  1.,  3.,  4.,  7.],
               [ 0.,  1.,  4.,  5., inf],
               [ 0.,  4.,  4., inf, inf],
               [ 0., inf, inf, inf, inf]])
    """
    m, n = costs.shape
    best = np.empty((n + 1, m, demand + 1))
    best[n] = inf
    best[n, :, 0] = 0.0
    for i in range(n - 1, -1, -1):
        cost, size, after, current = costs[:, i, None], int(sizes[i]), best[i + 1], best[i]
        np.add(after[:, : demand + 1 - size], cost, out=current[:, size:])
        current[:, :size] = after[:, :1] + cost
        np.minimum(current, after, out=current)
        current[:, 0] = 0.0
    return best


def cheapest_covers(best: Floats, sizes: Ints) -> Bools:
    """Return (m, n) a cheapest cover without superfluous items for each of the m costs of a table."""
    n, m = best.shape[0] - 1, best.shape[1]
    chosen, remaining, every = np.zeros((m, n), bool), np.full(m, best.shape[2] - 1), np.arange(m)
    for i in range(n):
        chosen[:, i] = best[i, every, remaining] < best[i + 1, every, remaining]
        remaining = np.maximum(remaining - np.where(chosen[:, i], sizes[i], 0), 0)
    return chosen


def covers_below(
    best: Floats, costs: Floats, sizes: Ints, limits: Floats, max_sets: int, after: Ints | None = None
) -> Bools | None:
    """Return (s, n) all covers that cost less than the limit for at least one of the m costs.

    Sets are extended item by item. A set is dropped if the table shows that its cheapest completion reaches the limit
    for all costs. So each remaining set leads to a result. A cover is not extended further.

    Args:
        best: (n + 1, m, D + 1) table of the costs.
        costs: (m, n) costs.
        sizes: (n,) sizes.
        limits: (m,) limits.
        max_sets: Largest number of sets; the result is None if there are more.
        after: (n,) earlier item that an item requires, or -1. Default: no requirements.
    """
    n, m = best.shape[0] - 1, best.shape[1]
    chosen, paid = np.zeros((1, n), bool), np.zeros((1, m))
    remaining, every = np.full(1, best.shape[2] - 1), np.arange(m)
    for i in range(n):
        short = remaining
        paid = np.concatenate([paid, paid + costs[:, i]])
        remaining = np.concatenate([remaining, np.maximum(remaining - sizes[i], 0)])
        keep = (paid + best[i + 1, every, remaining[:, None]] < limits).any(axis=1)
        keep[len(chosen) :] &= short > 0
        if after is not None and after[i] >= 0:
            keep[len(chosen) :] &= chosen[:, after[i]]
        without, including = chosen[keep[: len(chosen)]], chosen[keep[len(chosen) :]]
        including[:, i] = True  # indexing with a mask has made a copy
        chosen = np.concatenate([without, including])
        if len(chosen) > max_sets:
            return None
        paid, remaining = paid[keep], remaining[keep]
    return chosen


# -------------------- Candidate clients


class Candidates(NamedTuple):
    """Candidate clients of a node: every set contains the forced clients, and can contain free clients."""

    needs: Needs
    sizes: Ints  # (n,) d, number of examples
    forced: Bools  # (n,) mask of the forced clients
    rows: Ints  # (n,) positions in the problem
    demand: int  # e2, smallest number of examples
    time_weight: float  # a1

    @classmethod
    def of(cls, problem: AllocationProblem, min_examples: int) -> Candidates:
        """Return all clients of a problem as free candidates."""
        forced, rows = np.zeros(len(problem), bool), np.arange(len(problem))
        return cls(Needs.of(problem), problem.num_examples, forced, rows, min_examples, problem.time_weight)

    @property
    def num_free(self) -> int:
        """Number of free clients."""
        return len(self.rows) - int(np.count_nonzero(self.forced))

    @property
    def short(self) -> int:
        """Number of examples that the forced clients need in addition to their own, at least 0."""
        return max(0, self.demand - int(self.sizes[self.forced].sum()))

    def only(self, flags: Bools, forced: Bools) -> Candidates:
        """Return the candidates in a mask, with new forced clients."""
        if flags.all():
            return self._replace(forced=forced)
        return self._replace(
            needs=self.needs.only(flags), sizes=self.sizes[flags], forced=forced[flags], rows=self.rows[flags]
        )

    def band_needed(self, T: float) -> float:
        """Return the smallest bandwidth share of any cover with the deadline T; infinite if T is too early."""
        return self._least_band(T).value

    def keeping(self, T: float) -> Candidates | None:
        """Remove clients that no cover with the deadline T contains, and force clients that all covers contain.

        The result is None if no cover exists. If a client is added or removed against the sign of its reduced share,
        the bandwidth increases by this share.
        """
        band = self._least_band(T)
        if band.value > 1:
            return None
        reduced = self.least_shares(T) - band.price * self.sizes
        flags = self.forced | (band.value + reduced <= 1)
        return self.only(flags, self.forced | (band.value - reduced > 1))

    def _least_band(self, T: float) -> FractionalCover:
        if (self.forced & (self.needs.min_seconds >= T)).any():
            return FractionalCover(inf, np.zeros(len(self.rows)), 0.0)
        return fractional_cover(self.least_shares(T), self.sizes, self.demand, self.forced)

    def least_shares(self, T: float) -> Floats:
        """Return (n,) tau / the longest upload time, the smallest shares for deadline T; infinite if T is early."""
        late = self.needs.min_seconds >= T
        if self.needs.caps is not None:
            longest = self.needs.longest(np.where(late, 2 * self.needs.min_seconds + 1.0, T))
            return np.where(late, inf, self.needs.tau / longest)
        return np.where(late, inf, self.needs.tau / np.where(late, 1.0, T - self.needs.min_seconds))


# -------------------- The best set so far

CELLS = 200_000  # clients over all sets that are allocated at once, to limit memory


class Incumbent:
    """Best set with enough examples so far, and its exact cost. Each set is tried only once.

    The cost of `exact.allocate_batch` is feasible, so it is an upper bound on the optimum.
    """

    def __init__(self, problem: AllocationProblem, min_examples: int) -> None:
        self.problem, self.min_examples = problem, min_examples
        self.cost = inf
        self.rows: Ints = np.empty(0, np.int64)  # (k,) rows of the best set, increasing
        self.deadline = self.band_price = inf  # T and mu of the best set
        self._tried: set[bytes] = set()

    def offer(self, sets: Iterable[Ints]) -> bool:
        """Try sets of rows, keep the best set, and return whether a set is better than the best set before."""
        new = [rows for rows in (np.sort(rows) for rows in sets) if self._is_new(rows)]
        before = self.cost
        while new:
            batch_size = max(1, CELLS // max(len(rows) for rows in new))
            self._allocate(new[:batch_size])
            new = new[batch_size:]
        return self.cost < before

    def _is_new(self, rows: Ints) -> bool:
        key = rows.tobytes()
        if key in self._tried or int(self.problem.num_examples[rows].sum()) < self.min_examples:
            return False
        self._tried.add(key)
        return True

    def _allocate(self, sets: list[Ints]) -> None:
        cost, deadline, band_price = allocate_batch(self.problem, *pad_sets(sets))
        best = int(np.argmin(cost))
        if cost[best] < self.cost:
            self.cost, self.rows = float(cost[best]), sets[best]
            self.deadline, self.band_price = float(deadline[best]), float(band_price[best])


def pad_sets(sets: list[Ints]) -> tuple[Ints, Bools]:
    """Return sets of different sizes as one array (m, n), and the mask of its valid entries.

    Example:
        >>> rows, counted = pad_sets([np.array([4, 7]), np.array([5])])
        >>> rows.tolist(), counted.tolist()
        ([[4, 7], [5, 0]], [[True, True], [True, False]])
    """
    lengths = np.array([len(rows) for rows in sets])
    counted = np.arange(lengths.max()) < lengths[:, None]
    table = np.zeros(counted.shape, np.int64)
    table[counted] = np.concatenate(sets)
    return table, counted


def repair_cover(chosen: Bools, costs: Floats, sizes: Ints, demand: int) -> Bools:
    """Turn a set of items into a cover: add items in the order of c / d, then remove superfluous ones.

    Items with infinite costs are added last, and the most expensive items are removed first. All sizes d (n,) together
    must sum to at least the demand.
    """
    chosen = chosen.copy()
    short = demand - int(sizes[chosen].sum())
    if short > 0:
        spare = np.flatnonzero(~chosen & (sizes > 0))
        spare = spare[np.argsort(costs[spare] / sizes[spare], kind="stable")]
        enough = int(np.searchsorted(np.cumsum(sizes[spare]), short)) + 1
        chosen[spare[:enough]] = True
    over = int(sizes[chosen].sum()) - demand
    droppable = np.flatnonzero(chosen & (sizes <= over))
    for item in droppable[np.argsort(-costs[droppable], kind="stable")]:
        if sizes[item] <= over:
            chosen[item] = False
            over -= int(sizes[item])
    return chosen
