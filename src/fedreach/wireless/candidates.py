"""Sets of clients under search: which are possible, the best one so far."""

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
# An item has a cost (maybe negative or +inf) and a size, a whole number; a *cover* is a set of sizes that sum to at
# least the demand. Here an item is a client, its size the number of its examples, its cost what the dual prices make of
# it.


@dataclass(frozen=True, eq=False)
class FractionalCover:
    """The cheapest cover when items may be taken in part; `value` is at most the cost of any cover."""

    value: float  # +inf where all items together are too small
    taken: Floats  # (n,) x, 0 to 1; at most one item lies between
    price: float  # nu: what one more of demand costs


def fractional_cover(costs: Floats, sizes: Ints, demand: int, forced: Bools | None = None) -> FractionalCover:
    """Return min c.x subject to d.x >= demand and 0 <= x <= 1: items in the order of c/d until there is enough.

    Negative costs are taken whatever the demand, and those that are `forced`; infinite ones never. The costs are c
    (n,), the sizes d (n,), not negative; the demand may be 0 or less.

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
    """Return sizes and demand in a larger unit, so that a table of the whole covers has at most `cells` cells.

    The unit is the largest that divides all sizes, so that nothing is lost; or, where the table would be too large, a
    multiple of it that gives a sixth of the cells. Sizes are rounded up, so that every cover stays one: from
    sum d >= D follows sum ceil(d/s) >= ceil(D/s), and the cheapest cover in the larger unit costs at most as much as
    the cheapest in truth. With `enough` they are rounded down, so that what is a cover in the larger unit is one in
    truth. None: the unit would be over a quarter of the mean size, so that little would be left of the truth.

    Example:
        >>> coarsen_sizes(np.array([20, 30, 50]), 60, 1000)  # ten is common to all, and nothing is lost
        (array([2, 3, 5]), 6)
        >>> coarsen_sizes(np.array([2001, 3103, 5007]), 6000, 600)
        (array([ 8, 13, 20]), 24)
        >>> coarsen_sizes(np.array([2001, 3103, 5007]), 6000, 600, enough=True)
        (array([ 7, 12, 19]), 24)
    """
    is_enough, sizes = sizes >= demand, np.minimum(sizes, demand)
    unit = int(np.gcd.reduce(sizes[~is_enough])) or max(1, demand)  # of the others each is enough alone, in any unit
    columns = -(-demand // unit) + 1
    if columns * (len(sizes) + 1) > cells:
        max_columns = max(2, cells // (6 * (len(sizes) + 1)))
        unit *= -(-columns // (max_columns - 1))
        if 4 * unit > sizes.mean():
            return None
    demand = -(-demand // unit)
    return np.where(is_enough, demand, sizes // unit if enough else -(-sizes // unit)), demand


def cover_table(costs: Floats, sizes: Ints, demand: int) -> Floats:
    """Return best[i, j, r], (n + 1, m, D + 1): the least cost, c (m, n), at which items i, i+1, ... of sizes d cover r.

    By dynamic programming from the last item to the first: best[i, j, r] is the smaller of best[i+1, j, r], without
    item i, and c_ji + best[i+1, j, max(r - d_i, 0)], with it. Nothing is added where r = 0, not even at a negative
    cost: all covers without an item to spare are looked at, and no others are wanted. Each size is at most the demand
    D.

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
    """Return (m, n), one cheapest cover under each costs of a table; items that change nothing are left out."""
    n, m = best.shape[0] - 1, best.shape[1]
    chosen, remaining, every = np.zeros((m, n), bool), np.full(m, best.shape[2] - 1), np.arange(m)
    for i in range(n):
        chosen[:, i] = best[i, every, remaining] < best[i + 1, every, remaining]
        remaining = np.maximum(remaining - np.where(chosen[:, i], sizes[i], 0), 0)
    return chosen


def covers_below(
    best: Floats, costs: Floats, sizes: Ints, limits: Floats, max_sets: int, after: Ints | None = None
) -> Bools | None:
    """Return (s, n): every cover that costs less than the limit under at least one of the costs; None: over `max_sets`.

    Sets are grown item by item. One that even its cheapest completion, known from the table, brings to the limit under
    all costs is dropped; so each that is carried along ends in a cover that counts, and no work is wasted. Nothing is
    added to a cover.

    Args:
        best: (n + 1, m, D + 1), the table of these costs.
        max_sets: How many sets may be carried along.
        after: (n,), for each item an earlier one without which it is not wanted, or -1.
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
        including[:, i] = True  # indexing with flags has made a copy
        chosen = np.concatenate([without, including])
        if len(chosen) > max_sets:
            return None
        paid, remaining = paid[keep], remaining[keep]
    return chosen


# -------------------- Clients that may and that must take part


class Candidates(NamedTuple):
    """Clients that may take part, of which some must, as the bounds need them; `rows` names the n clients."""

    needs: Needs
    sizes: Ints  # (n,) d, numbers of examples
    forced: Bools  # (n,) must take part
    rows: Ints  # (n,) their positions in the problem
    demand: int  # e2
    time_weight: float  # a1

    @classmethod
    def of(cls, problem: AllocationProblem, min_examples: int) -> Candidates:
        """Return all clients of a problem, free to take part or not."""
        forced, rows = np.zeros(len(problem), bool), np.arange(len(problem))
        return cls(Needs.of(problem), problem.num_examples, forced, rows, min_examples, problem.time_weight)

    @property
    def num_free(self) -> int:
        """Number of clients that may take part but need not."""
        return len(self.rows) - int(np.count_nonzero(self.forced))

    @property
    def short(self) -> int:
        """Missing examples of the clients that must take part; at least 0."""
        return max(0, self.demand - int(self.sizes[self.forced].sum()))

    def only(self, flags: Bools, forced: Bools) -> Candidates:
        """Return the flagged clients, and which of them must take part; flags (n,)."""
        if flags.all():
            return self._replace(forced=forced)
        return self._replace(
            needs=self.needs.only(flags), sizes=self.sizes[flags], forced=forced[flags], rows=self.rows[flags]
        )

    def band_needed(self, T: float) -> float:
        """Return the least band, in parts of all, that any cover needs by T: falls in T; +inf if none keeps T."""
        return self._least_band(T).value

    def keeping(self, T: float) -> Candidates | None:
        """Return them without those in no cover that keeps T, forcing those in every one; None: no cover keeps T.

        Taking in a client, or leaving it out, against the sign of its reduced share raises the band needed by that.
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
        """Return tau / (T - W / f^max) (n,), the share that each needs to keep T; +inf if none is enough."""
        late = self.needs.min_seconds >= T
        return np.where(late, inf, self.needs.tau / np.where(late, 1.0, T - self.needs.min_seconds))


# -------------------- The best set so far

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
    """Return sets of unequal size as rows of one array (m, n), and which entries count.

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
    """Return a cover near a set of items: what is missing is added in the order of c/d, what is not needed dropped.

    Items with infinite costs are added last; the most expensive are dropped first. The sizes d (n,) of all items sum to
    the demand or more; those of the cover do.
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
