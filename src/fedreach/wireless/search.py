"""Search over sets of clients: bounds, relaxation, rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, isfinite, log, sqrt

import numpy as np

from fedreach._util.arrays import Bools, Floats, Ints
from fedreach.wireless.candidates import (
    Candidates,
    FractionalCover,
    Incumbent,
    cheapest_covers,
    coarsen_sizes,
    cover_table,
    covers_below,
    fractional_cover,
    repair_cover,
)
from fedreach.wireless.exact import ClientCost, Needs, cost_of_needs

# -------------------- Bounds for an interval of deadlines
# c_k is convex in T, so each of its tangents lies below it; one of them replaces the cost on the whole interval, at
# one price mu of the band. Then a set costs at least a1 T - mu + the sum of its lines, which is linear in T. The
# cheapest of all sets is a minimum of linear functions, thus concave, and a concave function is least at an end. So
# two knapsacks, one at each end, bound every set and every deadline between.


@dataclass(frozen=True, eq=False)
class Node:
    """A part of the search: deadlines from `low` to `high`, and clients that may and that must take part."""

    low: float
    high: float
    clients: Candidates
    bound: float  # no set of this part costs less
    band_price: float  # mu, where to begin

    @property
    def middle(self) -> float:
        """The geometric mean of the deadlines."""
        return sqrt(self.low * self.high)

    def halves(self) -> list[Node]:
        """Return the two parts left and right of the middle."""
        return [replace(self, high=self.middle), replace(self, low=self.middle)]

    def parts(self, before: Node) -> list[Node]:
        """Return the halves, or the node as it is where it has already lost half of the deadlines it had before."""
        return [self] if self.high - self.low < 0.5 * (before.high - before.low) else self.halves()


@dataclass(frozen=True, eq=False)
class Ends:
    """The lines of n clients at both ends of an interval, and the cheapest fractional covers there."""

    costs: Floats  # (2, n)
    base: Floats  # (2,) a1 T - mu
    values: Floats  # (2,) base + the cover: bounds at the ends
    reduced: Floats  # (2, n) c - nu d: what a client costs beyond what its examples are worth

    @classmethod
    def of(cls, clients: Candidates, low: float, high: float, T: float, mu: float, at_T: ClientCost) -> Ends:
        """Return the ends of an interval; `at_T` is c_k(T, mu) of the clients, and T lies between."""
        costs = lines(clients, low, high, T, mu, at_T)
        base = clients.time_weight * np.array([low, high]) - mu
        covers = [fractional_cover(line, clients.sizes, clients.demand, clients.forced) for line in costs]
        values = base + [cover.value for cover in covers]
        prices = np.array([cover.price if isfinite(cover.price) else 0.0 for cover in covers])
        return cls(costs, base, values, costs - prices[:, None] * clients.sizes)


def lines(clients: Candidates, low: float, high: float, T: float, mu: float, costs: ClientCost) -> Floats:
    """Return (2, n): the tangents of c_k at T, taken at both ends; +inf for clients that keep no deadline between.

    Without a tangent at T, or where it falls to less than half of c_k at the upper end, that at the upper end is
    taken: a client whose computing takes about T has a cost so steep that its tangent at T says nothing. T is a
    deadline from `low` to `high`, `mu` a price of the band, `costs` are c_k(T, mu).
    """
    ends = np.array([low, high])
    tangents = np.where(np.isfinite(costs.cost), costs.cost + costs.slope * (ends[:, None] - T), -inf)
    poor = np.flatnonzero(tangents[1] < 0.5 * costs.cost)  # c_k falls in T, so that only these can be below half
    if len(poor) and high > T:
        upper = cost_of_needs(clients.needs.only(poor), high, mu)
        steep = tangents[1, poor] < 0.5 * upper.cost
        tangent = upper.cost + upper.slope * (ends[:, None] - high)
        tangent[:, ~np.isfinite(upper.cost)] = inf
        tangents[:, poor] = np.where(steep, tangent, tangents[:, poor])
    tangents[:, tangents[1] == -inf] = inf
    return tangents


def narrow_node(node: Node, values: Floats, limit: float) -> Node | None:
    """Return what is left of a node where its bounds at the ends are below the limit; None: nothing.

    Between the ends the bound is concave, so above its chord; where the chord is above the limit, nothing is to be
    found.
    """
    bound = max(node.bound, float(values.min()))
    if bound >= limit:
        return None
    low, high, (at_low, at_high) = node.low, node.high, values
    if at_low >= limit and isfinite(at_low):
        low += (at_low - limit) / (at_low - at_high) * (high - low)
    elif at_high >= limit and isfinite(at_high):
        high -= (at_high - limit) / (at_high - at_low) * (high - low)
    return replace(node, low=low, high=high, bound=bound)


def fix_clients(clients: Candidates, ends: Ends, limit: float) -> Candidates | None:
    """Return the clients without those in no set below the limit, forcing those in every such set; None: no set.

    Taking in a client, or leaving it out, against the sign of its reduced cost r raises a bound by |r|. The sets that
    do so are again bounded at the two ends.
    """
    gone = (ends.values >= limit)[:, None]
    values = np.where(gone, 0.0, ends.values[:, None])
    reduced = np.where(gone, 0.0, ends.reduced)
    out = (gone | (values + np.maximum(reduced, 0.0) >= limit)).all(axis=0) & ~clients.forced
    needed = (gone | (values + np.maximum(-reduced, 0.0) >= limit)).all(axis=0) & ~clients.forced
    if (out & needed).any():
        return None
    return clients.only(~out, clients.forced | needed)


# -------------------- Bounds for one deadline: the dual of the band
# For a set S with enough examples and a deadline T the least cost is, by duality of the convex problem of shares,
#
#     a1 T + max_mu [-mu + sum_{k in S} c_k(T, mu)]  >=  a1 T + max_mu [-mu + min_{x covers} sum_k x_k c_k(T, mu)]
#
# with c_k of `kernel`: at any price mu of the band, the cheapest fractional cover costs at most as much as any set. So
# every mu gives a bound, the best mu the best one. The right side is concave in mu and has the slope
# sum x_k tau_k / u_k - 1, the band that the cover would use minus the available band.

MAX_PRICES = 16  # prices that are tried at most; any price gives a valid bound, and 3 to 6 are usual
FINE = 0.05  # the search for a price ends when no price can narrow the gap by more than this part


@dataclass(frozen=True, eq=False)
class Point:
    """A bound at one price of the band, its slope in that price, and the set that attains it."""

    bound: float  # a1 T - mu + the cost of the cover
    band_price: float  # mu
    slope: float  # sum_k x_k tau_k / u_k - 1
    cover: FractionalCover
    costs: ClientCost  # (n,) of the clients at T and mu


def relax(
    clients: Candidates, T: float, band_price: float | None = None, *, limit: float = inf, tolerance: float = 1e-6
) -> Point:
    """Return the best bound that fractional covers give on all sets by a deadline that some fractional cover keeps.

    Args:
        clients: Clients that may and that must take part.
        T: Deadline in seconds, with ``clients.band_needed(T) <= 1``; else the bound has no end.
        band_price: Where to begin; a1 T where left out.
        limit: A bound above it is as good as any, and of a gap to it a twentieth does not matter; +inf for no limit.
        tolerance: A relative change of the bound that does not matter.
    """
    needs, sizes, forced, _, demand, a1 = clients

    def at(mu: float) -> Point:
        costs = cost_of_needs(needs, T, mu)
        cover = fractional_cover(costs.cost, sizes, demand, forced)
        used = np.flatnonzero(cover.taken)
        band = float(cover.taken[used] @ (needs.tau[used] / costs.upload_seconds[used]))
        return Point(a1 * T - mu + cover.value, mu, band - 1.0, cover, costs)

    return ascend(at, band_price or a1 * T, limit, tolerance, MAX_PRICES)


def earliest_deadline(clients: Candidates, *, closeness: float = 1e-3) -> float:
    """Return Tlo: a deadline, at most this much too early, before which no set with enough examples can be ready.

    Even a fractional cover would need more than the whole band by then. By bisection, as the band needed falls in T.
    """
    high = float((clients.needs.min_seconds + clients.needs.tau).min())
    low = high * (1 - 1e-12)  # no client is ready by then, not even alone
    while clients.band_needed(high) > 1:
        low, high = high, 2 * high
    while high > low * (1 + closeness):
        middle = sqrt(low * high)
        if clients.band_needed(middle) > 1:
            low = middle
        else:
            high = middle
    return low


def least_energy(clients: Candidates) -> float:
    """Return what the energy of a set with enough examples costs at least, whatever the deadline.

    Without a deadline computing is free and sum A u at sum tau / u <= 1 is at least (sum sqrt(A tau))^2.
    """
    root = np.sqrt(clients.needs.A * clients.needs.tau)
    return fractional_cover(root, clients.sizes, clients.demand).value ** 2


def ascend(at: Callable[[float], Point], start: float, limit: float, tolerance: float, steps: int) -> Point:
    """Return the best of the points that a search for the maximum of a concave bound comes to.

    While all slopes have one sign the price grows with the square of the band used, right for clients that only send.
    Between two signs it goes in turn to where the band would be 1 if it were a power of the price, good where the set
    stays the same; and to where the two tangents cross, good where it changes. That crossing also says how much is
    left to be gained.
    """
    best = below = above = None
    mu = start
    for step in range(steps):
        point = at(mu)
        if best is None or point.bound > best.bound:
            best = point
        if point.slope == 0.0:
            break
        below, above = (point, above) if point.slope > 0 else (below, point)
        if below is None or above is None:
            if below is None and -point.slope * mu <= _negligible(best, limit, tolerance):
                break  # concave: down to the price 0 no more than this can be gained
            power = (1.0 + point.slope) ** 2
            mu *= min(max(power, 1.3), 100.0) if above is None else max(min(power, 0.77), 0.01)
            continue
        cross = _crossing(below, above)
        reachable = below.bound + below.slope * (cross - below.band_price)
        if reachable - best.bound <= _negligible(best, limit, tolerance):
            break
        mu = cross if step % 2 else _power_law(below, above)
        if not below.band_price < mu < above.band_price:
            mu = sqrt(below.band_price * above.band_price)
    assert best is not None
    return best


def _negligible(best: Point, limit: float, tolerance: float) -> float:
    gap = limit - best.bound if isfinite(limit) else 0.0
    return FINE * max(gap, tolerance * abs(best.bound))


def _crossing(below: Point, above: Point) -> float:
    gain = above.bound - below.bound + below.slope * below.band_price - above.slope * above.band_price
    return gain / (below.slope - above.slope)


def _power_law(below: Point, above: Point) -> float:
    high, low = log(1.0 + below.slope), log(1.0 + above.slope) if above.slope > -1 else -inf
    if low == -inf:
        return sqrt(below.band_price * above.band_price)
    part = high / (high - low)
    return below.band_price * float((above.band_price / below.band_price) ** part)


# -------------------- Bounds from whole covers

MAX_BAND_PRICES = 8  # prices of the band that are tried at most


@dataclass(frozen=True, eq=False)
class WholeCovers:
    """Covers by whole clients: those that must take part, and some of the others, in order of worth."""

    clients: Candidates
    free: Ints  # (f,) clients that may be left out
    sizes: Ints  # (f,) in the unit of the table
    short: int  # missing examples of the forced clients, in that unit

    @classmethod
    def of(cls, clients: Candidates, T: float, mu: float, cells: int) -> WholeCovers | None:
        """Return them, in the order of c/d at T and mu, if a table of at most `cells` cells can hold them."""
        free = np.flatnonzero(~clients.forced)
        worth = cost_of_needs(clients.needs, T, mu).cost / np.maximum(clients.sizes, 0.5)
        free = free[np.argsort(worth[free], kind="stable")]
        fitting = coarsen_sizes(clients.sizes[free], clients.short, cells)
        return None if fitting is None else cls(clients, free, *fitting)

    def table(self, costs: Floats) -> Floats:
        """Return the table of the free clients under m costs (m, n)."""
        return cover_table(costs[:, self.free], self.sizes, self.short)

    def values(self, costs: Floats, table: Floats) -> Floats:
        """Return (m,), what the cheapest covers cost."""
        return np.asarray(costs[:, self.clients.forced].sum(axis=1) + table[0, :, self.short])

    def with_forced(self, chosen: Bools) -> Bools:
        """Return sets of free clients (s, f) together with the forced ones, as flags (s, n)."""
        sets = np.tile(self.clients.forced, (len(chosen), 1))
        sets[:, self.free] = chosen
        return sets

    def band_needed(self, T: float) -> float:
        """Return the least band that a whole cover needs by T."""
        shares = self.clients.least_shares(T)[None]
        return float(self.values(shares, self.table(shares))[0])

    def ascend(self, T: float, start: float, best: Incumbent, limit: float, tolerance: float) -> Point:
        """Return the best bound at T over prices of the band, and offer the covers that are met on the way."""
        clients = self.clients

        def at(mu: float) -> Point:
            costs = cost_of_needs(clients.needs, T, mu)
            table = self.table(costs.cost[None])
            chosen = self.with_forced(cheapest_covers(table, self.sizes))[0]
            cover = repair_cover(chosen, costs.cost, clients.sizes, clients.demand)
            best.offer([clients.rows[cover]])
            band = float((clients.needs.tau[chosen] / costs.upload_seconds[chosen]).sum())
            value = float(self.values(costs.cost[None], table)[0])
            bound = clients.time_weight * T - mu + value
            return Point(bound, mu, band - 1.0, FractionalCover(value, chosen.astype(np.float64), 0.0), costs)

        return ascend(at, start, limit, tolerance, MAX_BAND_PRICES)

    def below(self, costs: Floats, table: Floats, limits: Floats, max_sets: int) -> list[Ints] | None:
        """Return, as rows of the problem, all covers below the limits under at least one of the costs; None: too many.

        Of equal clients the first are taken first: leaving out the others loses no cost that can be attained.
        """
        limits = limits - costs[:, self.clients.forced].sum(axis=1)
        sets = covers_below(table, costs[:, self.free], self.sizes, limits, max_sets, self._twins())
        return None if sets is None else [self.clients.rows[chosen] for chosen in self.with_forced(sets)]

    def _twins(self) -> Ints:
        """Return (f,): for each free client the place of an earlier one that is its equal in all, or -1."""
        needs, free = self.clients.needs, self.free
        table = np.stack([needs.tau, needs.A, needs.Q, needs.min_seconds, self.clients.sizes])[:, free].T
        last: dict[bytes, int] = {}
        twins = np.full(len(free), -1)
        for place, key in enumerate(row.tobytes() for row in table):
            twins[place] = last.get(key, -1)
            last[key] = place
        return twins


# -------------------- From prices to a set of clients

CORE = 24  # clients to either side of the one taken in part that are chosen again
CELLS = 1_000_000  # cells of the table of that choice
MAX_PRICING_ROUNDS = (
    6  # rounds of choosing by prices and pricing by choice; most end after 2 or 3, at a set that repeats
)


def round_core(costs: Floats, sizes: Ints, demand: int, *, core: int = CORE) -> Bools | None:
    """Return a cheap cover (n,) of whole items; None: no cover has finite cost.

    In the order of c/d all items before the `core` nearest the break are taken, and none after them; among those near
    it, the best are found by dynamic programming. Most optimal covers differ from the fractional one only there.
    """
    relaxed = fractional_cover(costs, sizes, demand)
    if not np.isfinite(relaxed.value):
        return None
    eligible = np.flatnonzero((costs < np.inf) & (sizes > 0))
    order = eligible[np.argsort(costs[eligible] / sizes[eligible], kind="stable")]
    middle = int(np.count_nonzero(relaxed.taken[order]))
    head, near = order[: max(0, middle - core)], order[max(0, middle - core) : middle + core]
    chosen = np.zeros(len(sizes), bool)
    chosen[head] = True
    short = demand - int(sizes[head].sum())
    fitting = coarsen_sizes(sizes[near], short, CELLS, enough=True) if short > 0 else None
    table = None if fitting is None else cover_table(costs[None, near], *fitting)
    if table is None or fitting is None or not np.isfinite(table[0, 0, -1]):
        chosen |= relaxed.taken > 0
    else:
        chosen[near] = cheapest_covers(table, fitting[0])[0]
    return repair_cover(chosen, costs, sizes, demand)


def offer_settled_sets(best: Incumbent, needs: Needs, T: float, band_price: float) -> None:
    """Offer what the prices T and mu lead to: the set they choose, the set that its own T and mu choose, and so on.

    Stops where a set repeats or does not improve on the one before.
    """
    local_best = Incumbent(best.problem, best.min_examples)  # of this start alone
    for _ in range(MAX_PRICING_ROUNDS):
        chosen = round_core(cost_of_needs(needs, T, band_price).cost, best.problem.num_examples, best.min_examples)
        if chosen is None or not local_best.offer([np.flatnonzero(chosen)]):
            break
        T, band_price = local_best.deadline, local_best.band_price
    if len(local_best.rows):
        best.offer([local_best.rows])
