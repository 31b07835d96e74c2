"""Local search: drop a client, or swap one for another, where an estimate says that it pays.

At the saddle point (T, mu) of a set the cost is L(T, mu) = a1 T - mu + sum c_k(T, mu), with slope 0. A move changes L
by Delta = sum +-c_k, with the slope g = (dDelta/dT, dDelta/dmu); the new saddle value is, to second order,
L + Delta - 1/2 g' H^-1 g with H the second derivatives of L, two by two. So all moves are scored at once, and the best
few are evaluated exactly.
"""

import numpy as np

from fedreach.arrays import Bools, Floats, Ints
from fedreach.wireless.allocation.kernel import Needs, priced, sending
from fedreach.wireless.allocation.problem import AllocationProblem
from fedreach.wireless.allocation.search.incumbent import Incumbent

NEIGHBOURS = 300  # clients inside and outside that moves are made of: those that the prices hold nearest the border
TRIED = 40, 8  # moves that are evaluated exactly, in sets of up to 300 clients and in larger ones
ROUNDS = 30


def improve(best: Incumbent, needs: Needs, *, worthwhile: float = 0.0) -> None:
    """Move from the best set to better ones until no move tried gains more than this part of the cost."""
    for _ in range(ROUNDS):
        before, tried = best.cost, TRIED[len(best.rows) > 300]
        best.offer(promising(best, needs, tried))
        if best.cost >= before * (1 - worthwhile):
            break


def promising(best: Incumbent, needs: Needs, count: int) -> list[Ints]:
    """Return the sets that the `count` most promising moves from the best set lead to."""
    problem, inside = best.problem, np.zeros(len(best.problem), bool)
    inside[best.rows] = True
    costs = priced(needs, best.deadline, best.band_price)
    slopes = np.stack([costs.slope, needs.tau / costs.upload_seconds])  # in T and in mu
    spare = int(problem.num_examples[best.rows].sum()) - best.min_examples
    leaving, joining = _neighbours(problem, inside, costs.cost)
    curvature = curvatures(problem, needs, best.rows, best.deadline, best.band_price)

    drops = leaving[problem.num_examples[leaving] <= spare]
    gain = [_change(-costs.cost[drops], -slopes[:, drops], curvature)]
    fits = problem.num_examples[leaving][:, None] - problem.num_examples[joining] <= spare
    out, into = (side[index] for side, index in zip((leaving, joining), np.nonzero(fits), strict=True))
    gain.append(_change(costs.cost[into] - costs.cost[out], slopes[:, into] - slopes[:, out], curvature))

    change = np.concatenate(gain)
    order = np.argsort(change, kind="stable")[:count]
    sets = []
    for move in order:
        rows = best.rows[best.rows != (drops[move] if move < len(drops) else out[move - len(drops)])]
        sets.append(rows if move < len(drops) else np.append(rows, into[move - len(drops)]))
    return [rows for rows in sets if len(rows)]


def _neighbours(problem: AllocationProblem, inside: Bools, cost: Floats) -> tuple[Ints, Ints]:
    """Return the clients of the set that are the dearest for what they bring, and the cheapest others."""
    ratio = cost / np.maximum(problem.num_examples, 0.5)
    rows, others = np.flatnonzero(inside), np.flatnonzero(~inside & np.isfinite(cost))
    leaving = rows[np.argsort(-ratio[rows], kind="stable")[:NEIGHBOURS]]
    return leaving, others[np.argsort(ratio[others], kind="stable")[:NEIGHBOURS]]


def curvatures(problem: AllocationProblem, needs: Needs, rows: Ints, T: float, mu: float) -> Floats:
    """Return H (2, 2), the second derivatives of L in T and mu for the clients at these rows.

    From dc/dT = A - mu tau / u^2, dc/dmu = tau / u and the slopes of u: with x = T - u, h = sqrt(A + Q / x^3) and
    h' = 3 Q / (2 x^4 h), du/dT = u h' / (h + u h') and du/dmu = sqrt(tau / mu) / (2 (h + u h')); where u is clipped
    1 and 0.
    """
    mine = needs.only(rows)
    u, x, h, clipped = sending(mine, T, np.sqrt(mu))
    bend = 1.5 * u * mine.Q / (x**4 * h)
    u_T = np.where(clipped, 1.0, bend / (h + bend))
    u_mu = np.where(clipped, 0.0, np.sqrt(mine.tau / mu) / (2 * (h + bend)))
    per_u = mine.tau / (u * u)
    TT, Tm, mm = (2 * mu * per_u / u * u_T).sum(), -(per_u * u_T).sum(), -(per_u * u_mu).sum()
    return np.array([[TT, Tm], [Tm, mm]])


def _change(delta: Floats, slope: Floats, curvature: Floats) -> Floats:
    """Return Delta - 1/2 g' H^-1 g, (moves,); where H has no inverse, Delta alone."""
    (TT, Tm), (_, mm) = curvature
    determinant = TT * mm - Tm * Tm
    if not determinant < 0:
        return delta
    g_T, g_m = slope
    second: Floats = (mm * g_T * g_T - 2 * Tm * g_T * g_m + TT * g_m * g_m) / (2 * determinant)
    return delta - second
