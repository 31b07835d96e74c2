"""What a set of clients costs at least by a deadline T: the dual of the band, with clients taken in part.

For a set S with enough examples and a deadline T the least cost is, by duality of the convex problem of shares,

    a1 T + max_mu [-mu + sum_{k in S} c_k(T, mu)]  >=  a1 T + max_mu [-mu + min_{x covers} sum_k x_k c_k(T, mu)]

with c_k of `kernel`: at any price mu of the band, the cheapest fractional cover is no dearer than any set. So every mu
gives a bound, the best mu the best one. The right side is concave in mu and has the slope sum x_k tau_k / u_k - 1, the
band that the cover would use less the band there is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite, log, sqrt

import numpy as np

from fedreach.wireless.allocation.kernel import ClientCost, priced
from fedreach.wireless.allocation.search.candidates import Candidates
from fedreach.wireless.allocation.search.knapsack import FractionalCover, fractional_cover

STEPS = 16  # prices that are tried at most; any price gives a valid bound, and 3 to 6 are usual
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
        clients: Who may and who must take part.
        T: Deadline in seconds, with ``clients.band_needed(T) <= 1``; else the bound has no end.
        band_price: Where to begin; a1 T where left out.
        limit: A bound above it is as good as any, and of a gap to it a twentieth does not matter; +inf for no limit.
        tolerance: A relative change of the bound that does not matter.
    """
    needs, sizes, forced, _, demand, a1 = clients

    def at(mu: float) -> Point:
        costs = priced(needs, T, mu)
        cover = fractional_cover(costs.cost, sizes, demand, forced)
        some = np.flatnonzero(cover.taken)
        band = float(cover.taken[some] @ (needs.tau[some] / costs.upload_seconds[some]))
        return Point(a1 * T - mu + cover.value, mu, band - 1.0, cover, costs)

    return ascend(at, band_price or a1 * T, limit, tolerance, STEPS)


def earliest_deadline(clients: Candidates, *, closeness: float = 1e-3) -> float:
    """Return Tlo: a deadline, at most this much too early, before which no set with enough examples can be ready.

    Even a fractional cover would need more than the whole band by then. By bisection, as the band needed falls in T.
    """
    high = float((clients.needs.min_seconds + clients.needs.tau).min())
    low = high * (1 - 1e-12)  # nobody is ready by then, not even alone
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

    While all slopes have one sign the price goes by the square of the band used, right for clients that only send.
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
