"""Bounds that hold for all deadlines of an interval: client by client, a line below the cost.

c_k is convex in T, so each of its tangents lies below it; one of them stands for the client on the whole interval, at
one price mu of the band. Then a set costs at least a1 T - mu + the sum of its lines, which is linear in T; the cheapest
of all sets is a minimum of linear functions, thus concave, and a concave function is least at an end. So two knapsacks,
one at each end, bound every set and every deadline between.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt

import numpy as np

from fedreach.arrays import Floats
from fedreach.wireless.allocation.kernel import ClientCost, priced
from fedreach.wireless.allocation.search.candidates import Candidates
from fedreach.wireless.allocation.search.knapsack import fractional_cover


@dataclass(frozen=True, eq=False)
class Node:
    """A part of the search: deadlines from `low` to `high`, and who may and who must take part."""

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
        base = clients.seconds_price * np.array([low, high]) - mu
        covers = [fractional_cover(line, clients.sizes, clients.demand, clients.forced) for line in costs]
        values = base + [cover.value for cover in covers]
        prices = np.array([cover.price if isfinite(cover.price) else 0.0 for cover in covers])
        return cls(costs, base, values, costs - prices[:, None] * clients.sizes)


def lines(clients: Candidates, low: float, high: float, T: float, mu: float, costs: ClientCost) -> Floats:
    """Return (2, n): the tangents of c_k at T, taken at both ends; +inf for clients that keep no deadline between.

    Where there is no tangent at T, or it falls to less than half of c_k at the upper end, that at the upper end is
    taken: a client whose computing takes about T has a cost so steep that its tangent at T says nothing. T is a
    deadline from `low` to `high`, `mu` a price of the band, `costs` are c_k(T, mu).
    """
    ends = np.array([low, high])
    found = np.where(np.isfinite(costs.cost), costs.cost + costs.slope * (ends[:, None] - T), -inf)
    poor = np.flatnonzero(found[1] < 0.5 * costs.cost)  # c_k falls in T, so that only these can be below half
    if len(poor) and high > T:
        upper = priced(clients.needs.only(poor), high, mu)
        steep = found[1, poor] < 0.5 * upper.cost
        tangent = upper.cost + upper.slope * (ends[:, None] - high)
        tangent[:, ~np.isfinite(upper.cost)] = inf
        found[:, poor] = np.where(steep, tangent, found[:, poor])
    found[:, found[1] == -inf] = inf
    return found


def narrowed(node: Node, values: Floats, limit: float) -> Node | None:
    """Return what is left of a node where its bounds at the ends are below the limit; None: nothing.

    Between the ends the bound is concave, so above its chord; where the chord is above the limit, nothing is to be
    found.
    """
    bound = max(node.bound, float(values.min()))
    if bound >= limit:
        return None
    low, high, (left, right) = node.low, node.high, values
    if left >= limit and isfinite(left):
        low += (left - limit) / (left - right) * (high - low)
    elif right >= limit and isfinite(right):
        high -= (right - limit) / (right - left) * (high - low)
    return replace(node, low=low, high=high, bound=bound)


def fixed(clients: Candidates, ends: Ends, limit: float) -> Candidates | None:
    """Return the clients without those whom no set below the limit has, forcing whom every such set has; None: no set.

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
