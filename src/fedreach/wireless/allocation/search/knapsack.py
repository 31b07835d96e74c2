"""Cheapest sets of items that together are large enough: fractional, exact, and all below a limit.

An item has a cost (maybe negative or +inf) and a size, a whole number; a *cover* is a set of sizes that sum to at least
the demand. Here an item is a client, its size the number of its examples, its cost what the dual prices make of it.
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from fedreach.arrays import Bools, Floats, Ints


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
    taken = first.astype(np.float64)
    short = demand - int(sizes[first].sum())
    if short <= 0:
        return FractionalCover(float(costs[first].sum()), taken, 0.0)
    open_ = np.flatnonzero(~first & (costs < inf) & (sizes > 0))
    ratio = costs[open_] / sizes[open_]
    order = np.argsort(ratio, kind="stable")
    inside = open_[order]
    reached = np.cumsum(sizes[inside])
    last = int(np.searchsorted(reached, short))
    if last == len(inside):
        return FractionalCover(inf, taken, inf)
    taken[inside[:last]] = 1.0
    before = int(reached[last - 1]) if last else 0
    taken[inside[last]] = (short - before) / sizes[inside[last]]
    some = np.flatnonzero(taken)
    return FractionalCover(float(costs[some] @ taken[some]), taken, float(ratio[order[last]]))


def coarser(sizes: Ints, demand: int, cells: int, *, enough: bool = False) -> tuple[Ints, int] | None:
    """Return sizes and demand in a larger unit, so that a table of the whole covers has at most `cells` cells.

    The unit is the largest that divides all sizes, so that nothing is lost; or, where the table would be too large, a
    multiple of it that gives a sixth of the cells. Sizes are rounded up, so that every cover stays one: from
    sum d >= D follows sum ceil(d/s) >= ceil(D/s), and the cheapest cover in the larger unit costs at most as much as
    the cheapest in truth. With `enough` they are rounded down, so that what is a cover in the larger unit is one in
    truth. None: the unit would be over a quarter of the mean size, so that little would be left of the truth.

    Example:
        >>> coarser(np.array([20, 30, 50]), 60, 1000)  # ten is common to all, and nothing is lost
        (array([2, 3, 5]), 6)
        >>> coarser(np.array([2001, 3103, 5007]), 6000, 600)
        (array([ 8, 13, 20]), 24)
        >>> coarser(np.array([2001, 3103, 5007]), 6000, 600, enough=True)
        (array([ 7, 12, 19]), 24)
    """
    whole, sizes = sizes >= demand, np.minimum(sizes, demand)
    unit = int(np.gcd.reduce(sizes[~whole])) or max(1, demand)  # of the others each is enough alone, in any unit
    columns = -(-demand // unit) + 1
    if columns * (len(sizes) + 1) > cells:
        max_columns = max(2, cells // (6 * (len(sizes) + 1)))
        unit *= -(-columns // (max_columns - 1))
        if 4 * unit > sizes.mean():
            return None
    demand = -(-demand // unit)
    return np.where(whole, demand, sizes // unit if enough else -(-sizes // unit)), demand


def cover_table(costs: Floats, sizes: Ints, demand: int) -> Floats:
    """Return best[i, j, r], (n + 1, m, D + 1): the least cost, c (m, n), at which items i, i+1, ... of sizes d cover r.

    By dynamic programming from the last item to the first: best[i, j, r] is the less of best[i+1, j, r], without item
    i, and c_ji + best[i+1, j, max(r - d_i, 0)], with it. Nothing is added where r = 0, not even at a negative cost: all
    covers without an item to spare are looked at, and no others are wanted. Each size is at most the demand D.

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
        cost, size, after, here = costs[:, i, None], int(sizes[i]), best[i + 1], best[i]
        np.add(after[:, : demand + 1 - size], cost, out=here[:, size:])
        here[:, :size] = after[:, :1] + cost
        np.minimum(here, after, out=here)
        here[:, 0] = 0.0
    return best


def cheapest_covers(best: Floats, sizes: Ints) -> Bools:
    """Return (m, n), one cheapest cover under each costs of a table; items that change nothing are left out."""
    n, m = best.shape[0] - 1, best.shape[1]
    chosen, left, every = np.zeros((m, n), bool), np.full(m, best.shape[2] - 1), np.arange(m)
    for i in range(n):
        chosen[:, i] = best[i, every, left] < best[i + 1, every, left]
        left = np.maximum(left - np.where(chosen[:, i], sizes[i], 0), 0)
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
    left, every = np.full(1, best.shape[2] - 1), np.arange(m)
    for i in range(n):
        short = left
        paid = np.concatenate([paid, paid + costs[:, i]])
        left = np.concatenate([left, np.maximum(left - sizes[i], 0)])
        keep = (paid + best[i + 1, every, left[:, None]] < limits).any(axis=1)
        keep[len(chosen) :] &= short > 0
        if after is not None and after[i] >= 0:
            keep[len(chosen) :] &= chosen[:, after[i]]
        without, including = chosen[keep[: len(chosen)]], chosen[keep[len(chosen) :]]
        including[:, i] = True  # indexing with flags has made a copy
        chosen = np.concatenate([without, including])
        if len(chosen) > max_sets:
            return None
        paid, left = paid[keep], left[keep]
    return chosen
