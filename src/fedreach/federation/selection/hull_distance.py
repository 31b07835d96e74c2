"""Choose the clients whose updates are farthest from the convex hull of all others."""

from dataclasses import dataclass

import numpy as np

from fedreach.arrays import AnyArray, Bools, Float32s, Floats, Ints
from fedreach.federation.aggregation.mean import weighted_sum
from fedreach.federation.selection.shared.gradient_table import GradientTable
from fedreach.federation.selection.shared.hull import farthest_first
from fedreach.federation.selection.shared.similarity import gram, lengths
from fedreach.federation.values import Selection

TOLERANCE = 1e-14  # of the optimality conditions, points scaled to a ball of radius 1
NO_DISTANCE = 3e-7  # what is less is 0: the root of rounding in float64, and what float32 rows can say


@dataclass(frozen=True, kw_only=True)
class HullDistance(GradientTable):
    """Choose the k clients whose update is worst imitated by mixing the others'.

    The k largest e_i = min |g_i - sum_{j != i} l_j g_j| over l_j >= 0 with sum 1, g_i the latest update of client i.
    It is positive exactly for the vertices of the convex hull of all updates. Unlike `ConvexHull` this needs no
    projection on few axes, and unlike `Minimax`, which looks at one neighbour's direction, it looks at mixtures of
    all others. Ties go to the lower id. After too few vertices come, one by one, those farthest from all chosen.

    It takes n quadratic programs of n numbers, on the inner products of the updates.

    When: as `convex_hull`, without giving up directions: a ranking of everybody.

    Reference: the hull of "Advocating for the Silent" (arXiv 2310.07171), appendix C.2.2, made a ranking here.

    Example:
        >>> ids, rows = np.array([3, 5, 8, 9]), np.array([[0, 0], [2, 0], [1, 0], [1, 3]], np.float32)
        >>> HullDistance().choose(ids, rows, 1, None).ids
        array([9])
    """

    def choose(self, ids: Ints, rows: Float32s, k: int, rng: np.random.Generator) -> Selection:
        inner = _centred_gram(rows)
        squares = np.diag(inner).clip(0)
        score = (_hull_distances(inner) / (np.sqrt(squares.max()) or 1.0)).round(9)
        order = np.argsort(-score, kind="stable")
        extreme, rest = order[score[order] > 0], np.flatnonzero(score == 0)

        def distance(i: int) -> Floats:
            return np.asarray(np.sqrt((squares + squares[i] - 2 * inner[i]).clip(0)))

        chosen = extreme[:k].tolist()
        return Selection(ids[np.sort(farthest_first(distance, np.sqrt(squares), rest, chosen, k))])


def hull_distances(rows: AnyArray) -> Floats:
    """Return each row's (n,) distance from the convex hull of all other rows, infinity where there is no other.

    Example:
        >>> hull_distances(np.array([[0.0, 0], [4, 0], [4, 3], [0, 3], [2, 1], [1, 1], [2, 3]])).round(4)
        array([1.4142, 2.1213, 1.6641, 1.6641, 0.    , 0.    , 0.    ])
    """
    return _hull_distances(_centred_gram(rows))


def _centred_gram(rows: AnyArray) -> Floats:
    lengths(rows)  # refuses what is not finite
    return gram(rows, shift=weighted_sum(np.full(len(rows), 1 / len(rows)), rows))


def _hull_distances(inner: Floats) -> Floats:
    n, size = len(inner), np.sqrt(np.diag(inner).max())
    if n == 1 or size == 0:
        return np.full(n, np.inf if n == 1 else 0.0)
    inner = inner / size**2
    # Adding 1 lifts the one eigenvalue that is 0 for every centred table.
    values = np.linalg.eigvalsh(inner + 1.0)
    independent = bool(values[0] > 1e-10 * values[-1])
    distances = np.sqrt([_squared_distance(inner, i, independent) for i in range(n)])
    return np.where(distances > NO_DISTANCE, distances * size, 0.0)


def _squared_distance(inner: Floats, i: int, independent: bool) -> float:
    """Return min |sum_j l_j (g_j - g_i)|^2 over mixtures l of the others, by an active-set method.

    With P the inner products of the g_j - g_i, the mixture is x / sum x where x >= 0 minimises x'(P + 1)x / 2 - 1'x: at
    x = t l this is t^2 (l'Pl + 1) / 2 - t, and whatever l is, its least value over t grows with l'Pl. That is a
    non-negative least-squares problem without a constraint on the sum, solved as by Lawson and Hanson: `free` are the
    numbers that may be positive; one at a time joins them, and those that would turn negative leave.
    """
    n = len(inner)
    toward = inner[i]

    def gradient(free: Ints, x: Floats) -> Floats:
        total = x.sum()
        return np.asarray(1.0 - (inner[:, free] @ x - total * toward - toward[free] @ x + (inner[i, i] + 1) * total))

    def solved(free: Ints) -> Floats:
        matrix = inner[np.ix_(free, free)] - toward[free] - toward[free, None] + (inner[i, i] + 1)
        return np.linalg.solve(matrix, np.ones(len(free)))

    barred: Bools = np.arange(n) == i
    if independent:  # mostly all others have a share: begin with them all, and drop who would have a negative one
        free = np.flatnonzero(~barred)
        while (x := solved(free)).min() <= 0:
            free = free[x > 0]
    else:
        to_others = np.where(barred, np.inf, np.diag(inner) - 2 * toward)
        free = np.array([to_others.argmin()])
        x = solved(free)
    for _ in range(10 * n):
        slope = gradient(free, x)
        slope[barred] = slope[free] = -np.inf
        j = int(slope.argmax())
        if slope[j] <= TOLERANCE:
            break
        free, x = np.append(free, j), np.append(x, 0.0)
        while (wanted := solved(free)).min() <= 0:
            down = np.flatnonzero(wanted <= 0)
            steps = x[down] / (x[down] - wanted[down])
            x = x + steps.min() * (wanted - x)
            stays = x > 0
            stays[down[steps.argmin()]] = False
            if free[-1] == j and not stays[-1]:
                barred[j] = True  # joining and leaving at once is rounding; once is enough
            free, x = free[stays], x[stays]
        x = wanted
    share = x / x.sum()
    return float(max(0.0, share @ inner[np.ix_(free, free)] @ share - 2 * toward[free] @ share + inner[i, i]))
