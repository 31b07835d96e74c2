"""Lower bounds and heuristics of the search over sets of clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, isfinite, log, sqrt

import numpy as np

from fedreach._util.arrays import Bools, Floats, Ints
from fedreach.wireless import candidates
from fedreach.wireless.candidates import Candidates, FractionalCover, Incumbent
from fedreach.wireless.exact import ClientCost, Needs, cost_of_needs

# -------------------- Bounds for an interval of deadlines
# c_k is convex in T, so a tangent is a lower bound on the whole interval, for a fixed bandwidth price mu. A set
# therefore costs at least a1 T - mu + a sum of linear functions of T. The minimum over all sets is concave in T, so its
# smallest value is at an end of the interval. Two knapsack problems, one at each end, give a bound for all sets and all
# deadlines of the interval.


@dataclass(frozen=True, eq=False)
class Node:
    """Node of the search: an interval of deadlines, and candidate clients."""

    low: float  # earliest deadline
    high: float  # latest deadline
    clients: Candidates
    bound: float  # lower bound on the cost of all sets of the node
    band_price: float  # mu, start of the search for the best price

    @property
    def middle(self) -> float:
        """Geometric mean of the deadlines."""
        return sqrt(self.low * self.high)

    def halves(self) -> list[Node]:
        """Split the node at the middle."""
        return [replace(self, high=self.middle), replace(self, low=self.middle)]

    def parts(self, before: Node) -> list[Node]:
        """Split the node, unless it has less than half of the deadlines of `before`."""
        return [self] if self.high - self.low < 0.5 * (before.high - before.low) else self.halves()


@dataclass(frozen=True, eq=False)
class Ends:
    """Tangents of n clients at both ends of an interval, and the cheapest fractional covers there."""

    costs: Floats  # (2, n) tangents
    base: Floats  # (2,) a1 T - mu
    values: Floats  # (2,) bounds: base + value of the cover
    reduced: Floats  # (2, n) reduced costs c - nu d

    @classmethod
    def of(cls, clients: Candidates, low: float, high: float, T: float, mu: float, at_T: ClientCost) -> Ends:
        """Return the ends of an interval that contains T; `at_T` are the clients' costs c_k(T, mu)."""
        costs = lines(clients, low, high, T, mu, at_T)
        base = clients.time_weight * np.array([low, high]) - mu
        covers = [candidates.fractional_cover(line, clients.sizes, clients.demand, clients.forced) for line in costs]
        values = base + [cover.value for cover in covers]
        prices = np.array([cover.price if isfinite(cover.price) else 0.0 for cover in covers])
        return cls(costs, base, values, costs - prices[:, None] * clients.sizes)


def lines(clients: Candidates, low: float, high: float, T: float, mu: float, costs: ClientCost) -> Floats:
    """Return (2, n) the values of the tangents of c_k at T, at both ends of an interval of deadlines.

    The values are infinite for clients that cannot meet any deadline of the interval. The tangent at the upper end is
    used if c_k has no tangent at T, or if this tangent is below half of c_k at the upper end. For clients whose
    computing takes about T seconds, tangents are too steep to be useful.
    """
    ends = np.array([low, high])
    tangents = np.where(np.isfinite(costs.cost), costs.cost + costs.slope * (ends[:, None] - T), -inf)
    poor = np.flatnonzero(tangents[1] < 0.5 * costs.cost)  # c_k decreases in T, so all candidates are among these
    if len(poor) and high > T:
        upper = cost_of_needs(clients.needs.only(poor), high, mu)
        steep = tangents[1, poor] < 0.5 * upper.cost
        tangent = upper.cost + upper.slope * (ends[:, None] - high)
        tangent[:, ~np.isfinite(upper.cost)] = inf
        tangents[:, poor] = np.where(steep, tangent, tangents[:, poor])
    tangents[:, tangents[1] == -inf] = inf
    return tangents


def narrow_node(node: Node, values: Floats, limit: float) -> Node | None:
    """Remove deadlines whose bound is at least `limit`; return None if no deadline remains.

    Between the ends of the interval, the bound is concave, so it is above its chord.
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
    """Remove clients that no set below the limit contains, and force clients that all of these sets contain.

    The result is None if no set is below the limit. If a client is added or removed against the sign of its
    reduced cost r, a bound increases by |r|.
    """
    gone = (ends.values >= limit)[:, None]
    values = np.where(gone, 0.0, ends.values[:, None])
    reduced = np.where(gone, 0.0, ends.reduced)
    out = (gone | (values + np.maximum(reduced, 0.0) >= limit)).all(axis=0) & ~clients.forced
    needed = (gone | (values + np.maximum(-reduced, 0.0) >= limit)).all(axis=0) & ~clients.forced
    if (out & needed).any():
        return None
    return clients.only(~out, clients.forced | needed)


# -------------------- Bounds for one deadline, by Lagrangian duality
# For a set S with enough examples and a deadline T, the lowest cost is, by duality of the convex problem of shares,
#
#     a1 T + max_mu [-mu + sum_{k in S} c_k(T, mu)]  >=  a1 T + max_mu [-mu + min_{x covers} sum_k x_k c_k(T, mu)]
#
# with c_k of `exact`. So for every bandwidth price mu, the cheapest fractional cover gives a lower bound. The right
# side is concave in mu. Its slope is sum x_k tau_k / u_k - 1: the bandwidth of the cover minus the available bandwidth.

MAX_PRICES = 16  # largest number of prices; any price gives a valid bound, and 3 to 6 are usual
FINE = 0.05  # the search stops if no price can reduce the gap by more than this share


@dataclass(frozen=True, eq=False)
class Point:
    """Lower bound for one bandwidth price, the slope of the bound, and the cover with this cost."""

    bound: float  # a1 T - mu + cost of the cover
    band_price: float  # mu
    slope: float  # derivative of the bound: sum_k x_k tau_k / u_k - 1
    cover: FractionalCover
    costs: ClientCost  # (n,) costs of the clients for T and mu


def relax(
    clients: Candidates, T: float, band_price: float | None = None, *, limit: float = inf, tolerance: float = 1e-6
) -> Point:
    """Return the best bound from fractional covers for all sets with the deadline T.

    Args:
        clients: Candidate clients.
        T: Deadline in seconds, with ``clients.band_needed(T) <= 1``; otherwise the bound is infinite.
        band_price: First bandwidth price. Default: a1 T.
        limit: Cost above which a bound does not need improvement. Default: no limit.
        tolerance: Relative change of the bound below which the search stops. Default: 1e-6.
    """
    needs, sizes, forced, _, demand, a1 = clients

    def at(mu: float) -> Point:
        costs = cost_of_needs(needs, T, mu)
        cover = candidates.fractional_cover(costs.cost, sizes, demand, forced)
        used = np.flatnonzero(cover.taken)
        band = float(cover.taken[used] @ (needs.tau[used] / costs.upload_seconds[used]))
        return Point(a1 * T - mu + cover.value, mu, band - 1.0, cover, costs)

    return ascend(at, band_price or a1 * T, limit, tolerance, MAX_PRICES)


def earliest_deadline(clients: Candidates, *, closeness: float = 1e-3) -> float:
    """Return a lower bound on the deadline of all sets with enough examples, within a factor of 1 + `closeness`.

    Before the bound, even a fractional cover needs more than the full bandwidth. This bandwidth decreases with T, so
    the function uses bisection.
    """
    high = float((clients.needs.min_seconds + clients.needs.tau).min())
    low = high * (1 - 1e-12)  # no client is ready by then
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
    """Return a lower bound on the energy cost of all sets with enough examples, for any deadline.

    Without a deadline, computing costs nothing. Subject to sum tau / u <= 1, sum A u is at least (sum sqrt(A tau))^2.
    """
    root = np.sqrt(clients.needs.A * clients.needs.tau)
    return candidates.fractional_cover(root, clients.sizes, clients.demand).value ** 2


def ascend(at: Callable[[float], Point], start: float, limit: float, tolerance: float, steps: int) -> Point:
    """Maximize a concave bound over the bandwidth price; return the best point.

    While all slopes have the same sign, the price is multiplied by the square of the used bandwidth. This is exact for
    clients that only send. Then two rules alternate. The first rule assumes a power law and uses the price at which the
    used bandwidth is 1. It is suitable if the set does not change. The second rule uses the intersection of two
    tangents, which is suitable if the set changes. The intersection also limits the possible gain.
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
                break  # concave: at lower prices, no more than this can be gained
            power = (1.0 + point.slope) ** 2
            mu *= min(max(power, 1.3), 100.0) if above is None else max(min(power, 0.77), 0.01)
            continue
        gain = above.bound - below.bound + below.slope * below.band_price - above.slope * above.band_price
        cross = gain / (below.slope - above.slope)
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


def _power_law(below: Point, above: Point) -> float:
    high, low = log(1.0 + below.slope), log(1.0 + above.slope) if above.slope > -1 else -inf
    if low == -inf:
        return sqrt(below.band_price * above.band_price)
    part = high / (high - low)
    return below.band_price * float((above.band_price / below.band_price) ** part)


# -------------------- Bounds from covers by whole clients

MAX_BAND_PRICES = 8  # largest number of bandwidth prices


@dataclass(frozen=True, eq=False)
class WholeCovers:
    """Covers that consist of whole clients, by dynamic programming over the free clients."""

    clients: Candidates
    free: Ints  # (f,) free clients in the order of c / d
    sizes: Ints  # (f,) sizes in the unit of the table
    short: int  # missing examples of the forced clients, in that unit

    @classmethod
    def of(cls, clients: Candidates, T: float, mu: float, cells: int) -> WholeCovers | None:
        """Return covers in the order of c / d for T and mu; None if the table would have more than `cells` cells."""
        free = np.flatnonzero(~clients.forced)
        worth = cost_of_needs(clients.needs, T, mu).cost / np.maximum(clients.sizes, 0.5)
        free = free[np.argsort(worth[free], kind="stable")]
        fitting = candidates.coarsen_sizes(clients.sizes[free], clients.short, cells)
        return None if fitting is None else cls(clients, free, *fitting)

    def table(self, costs: Floats) -> Floats:
        """Return the table of the free clients for (m, n) costs."""
        return candidates.cover_table(costs[:, self.free], self.sizes, self.short)

    def values(self, costs: Floats, table: Floats) -> Floats:
        """Return (m,) the costs of the cheapest covers."""
        return np.asarray(costs[:, self.clients.forced].sum(axis=1) + table[0, :, self.short])

    def with_forced(self, chosen: Bools) -> Bools:
        """Add the forced clients to (s, f) sets of free clients; return (s, n) masks."""
        sets = np.tile(self.clients.forced, (len(chosen), 1))
        sets[:, self.free] = chosen
        return sets

    def band_needed(self, T: float) -> float:
        """Return the smallest bandwidth of a whole cover with the deadline T."""
        shares = self.clients.least_shares(T)[None]
        return float(self.values(shares, self.table(shares))[0])

    def ascend(self, T: float, start: float, best: Incumbent, limit: float, tolerance: float) -> Point:
        """Return the best bound at T over all bandwidth prices, and offer each cover on the way to the incumbent."""
        clients = self.clients

        def at(mu: float) -> Point:
            costs = cost_of_needs(clients.needs, T, mu)
            table = self.table(costs.cost[None])
            chosen = self.with_forced(candidates.cheapest_covers(table, self.sizes))[0]
            cover = candidates.repair_cover(chosen, costs.cost, clients.sizes, clients.demand)
            best.offer([clients.rows[cover]])
            band = float((clients.needs.tau[chosen] / costs.upload_seconds[chosen]).sum())
            value = float(self.values(costs.cost[None], table)[0])
            bound = clients.time_weight * T - mu + value
            return Point(bound, mu, band - 1.0, FractionalCover(value, chosen.astype(np.float64), 0.0), costs)

        return ascend(at, start, limit, tolerance, MAX_BAND_PRICES)

    def below(self, costs: Floats, table: Floats, limits: Floats, max_sets: int) -> list[Ints] | None:
        """Return the rows of all covers below the limits for at least one of the costs; None if there are too many.

        Of identical clients, only the first clients are used, which does not change the lowest cost.
        """
        limits = limits - costs[:, self.clients.forced].sum(axis=1)
        sets = candidates.covers_below(table, costs[:, self.free], self.sizes, limits, max_sets, self._twins())
        return None if sets is None else [self.clients.rows[chosen] for chosen in self.with_forced(sets)]

    def _twins(self) -> Ints:
        """Return (f,) the position of the previous identical free client, or -1."""
        needs, free = self.clients.needs, self.free
        columns = [needs.tau, needs.A, needs.Q, needs.min_seconds, self.clients.sizes, *(needs.caps or ())]
        table = np.stack(columns)[:, free].T
        last: dict[bytes, int] = {}
        twins = np.full(len(free), -1)
        for place, key in enumerate(row.tobytes() for row in table):
            twins[place] = last.get(key, -1)
            last[key] = place
        return twins


# -------------------- Heuristics: sets of clients from prices

CORE = 24  # number of clients on each side of the fractional one that are selected exactly
CELLS = 1_000_000  # cells of the table for this selection
MAX_PRICING_ROUNDS = 6  # rounds of selection and pricing; most searches end after 2 or 3


def round_core(costs: Floats, sizes: Ints, demand: int, *, core: int = CORE) -> Bools | None:
    """Return (n,) a cheap cover of whole items; None if all covers have an infinite cost.

    Items are sorted by c / d. The `core` consists of the items around the fractional item. All items before the core
    are selected, and dynamic programming selects the best items in the core. Most optimal covers differ from the
    fractional cover only in the core.
    """
    relaxed = candidates.fractional_cover(costs, sizes, demand)
    if not np.isfinite(relaxed.value):
        return None
    eligible = np.flatnonzero((costs < np.inf) & (sizes > 0))
    order = eligible[np.argsort(costs[eligible] / sizes[eligible], kind="stable")]
    middle = int(np.count_nonzero(relaxed.taken[order]))
    head, near = order[: max(0, middle - core)], order[max(0, middle - core) : middle + core]
    chosen = np.zeros(len(sizes), bool)
    chosen[head] = True
    short = demand - int(sizes[head].sum())
    fitting = candidates.coarsen_sizes(sizes[near], short, CELLS, enough=True) if short > 0 else None
    table = None if fitting is None else candidates.cover_table(costs[None, near], *fitting)
    if table is None or fitting is None or not np.isfinite(table[0, 0, -1]):
        chosen |= relaxed.taken > 0
    else:
        chosen[near] = candidates.cheapest_covers(table, fitting[0])[0]
    return candidates.repair_cover(chosen, costs, sizes, demand)


def offer_settled_sets(best: Incumbent, needs: Needs, T: float, band_price: float) -> None:
    """Offer the set that the prices T and mu select, then the set that the T and mu of this set select, and so on.

    The function stops if a set repeats, or if it is not better than the previous set.
    """
    local_best = Incumbent(best.problem, best.min_examples)  # best set of this sequence
    for _ in range(MAX_PRICING_ROUNDS):
        chosen = round_core(cost_of_needs(needs, T, band_price).cost, best.problem.num_examples, best.min_examples)
        if chosen is None or not local_best.offer([np.flatnonzero(chosen)]):
            break
        T, band_price = local_best.deadline, local_best.band_price
    if len(local_best.rows):
        best.offer([local_best.rows])
