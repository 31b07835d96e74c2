"""Client selection based on updates."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedreach._util.arrays import AnyArray, Bools, Float32s, Floats, Ints, weighted_sum
from fedreach._util.errors import require
from fedreach.federation.selection import geometry
from fedreach.federation.selection.labels import angles, ward
from fedreach.federation.selection.random import Urns, fill_urns, groups_within
from fedreach.federation.types import Cohort, ServerView, State

# -------------------- Most similar updates


@dataclass(frozen=True, kw_only=True)
class MaxSimilarity(geometry.NearestTable):
    """Selection of the k clients with the most similar neighbor: the opposite of `Minimax`, for comparison.

    The policy selects the clients with the k largest m_i = max_{j != i} cos(g_i, g_j). Ties go to the client whose
    second largest cosine is larger, then the third, and so on, and finally to the lower id. For a client with a zero
    update, m_i = 1.

    Use when: you need the opposite of `minimax` for comparison.

    Reference: "Advocating for the Silent" (arXiv 2310.07171), section 5, baseline b).

    Example:
        >>> ids, rows = np.array([3, 5, 8, 9]), np.array([[1, 0], [0.9, 0.1], [0, 1], [-1, -1]], np.float32)
        >>> MaxSimilarity().choose(ids, rows, 2, None).ids
        array([3, 5])
    """

    most_similar = True


# -------------------- Convex hull


@dataclass(frozen=True, kw_only=True)
class Hull(geometry.GradientTable):
    """Base class of policies that use the convex hull of the updates along their principal axes."""

    components: int = 2
    normalize: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = f"[1, {geometry.MOST_COMPONENTS}]: In more dimensions nearly all are vertices."
        require(self, components=rule)


@dataclass(frozen=True, kw_only=True)
class ConvexHull(Hull):
    """Selection of the vertices of the convex hull of all updates, along a few principal axes.

    The paper selects all vertices of the hull of the full updates. But n points in p >= n - 1 dimensions are usually
    all vertices, so the paper's rule selects all clients. FedReach first projects updates on their principal axes, and
    selects exactly k clients. If there are too many vertices, it selects those that are farthest apart. If there are
    too few, it adds vertices of the hull of the remaining clients. `HullDistance` needs no projection.

    Use when: the cohort should span all clients in the few directions in which updates differ most.

    Args:
        components: Number of principal axes, 1 to 5.
        normalize: Divide updates by their length first, so that only their directions matter.
        exact: Select exactly k clients. False: select all vertices, as in the paper.

    Reference: "Advocating for the Silent" (arXiv 2310.07171), section 4.2.2 and appendix C.2.2; Barber, Dobkin and
    Huhdanpaa, "The Quickhull Algorithm for Convex Hulls", ACM TOMS 22(4), 1996.

    Example:
        >>> ids, corners = np.arange(5), np.array([[0, 0], [4, 0], [4, 3], [0, 3], [2, 1]], np.float32)
        >>> ConvexHull().choose(ids, corners, 2, None).ids
        array([0, 2])
        >>> ConvexHull(exact=False).choose(ids, corners, 2, None).ids
        array([0, 1, 2, 3])
    """

    exact: bool = True

    @property
    def ignores_cohort(self) -> bool:  # type: ignore[override]
        return not self.exact

    def choose(self, ids: Ints, rows: Float32s, k: int, rng: np.random.Generator) -> Cohort:
        points = geometry.principal_points(rows, self.components, normalize=self.normalize)
        return Cohort(ids[np.sort(geometry.spanning_points(points, k)) if self.exact else geometry.vertices(points)])


# -------------------- Distance to the hull of the others

TOLERANCE = 1e-14  # of the optimality conditions, points scaled to a ball of radius 1
NO_DISTANCE = 3e-7  # what is less is 0: the root of rounding in float64, and what float32 rows can say


@dataclass(frozen=True, kw_only=True)
class HullDistance(geometry.GradientTable):
    """Selection of the k clients whose updates are farthest from all mixtures of other updates.

    The policy selects the clients with the k largest e_i = min |g_i - sum_{j != i} l_j g_j| over l_j >= 0 with sum 1,
    where g_i is the latest update of client i. e_i is positive exactly for vertices of the convex hull of all updates.
    Unlike `ConvexHull`, the policy needs no projection on few axes. `Minimax` compares each update with one neighbor;
    this policy compares it with mixtures of all other updates. Ties go to the lower id. If there are too few vertices,
    the policy adds the clients farthest from all selected clients.

    The computation solves n quadratic programs with n variables each, on the inner products of the updates.

    Use when: the reasons for `convex_hull` apply, but all directions of the updates matter.

    Reference: A ranking based on the convex hull of "Advocating for the Silent" (arXiv 2310.07171), appendix C.2.2.

    Example:
        >>> ids, rows = np.array([3, 5, 8, 9]), np.array([[0, 0], [2, 0], [1, 0], [1, 3]], np.float32)
        >>> HullDistance().choose(ids, rows, 1, None).ids
        array([9])
    """

    def choose(self, ids: Ints, rows: Float32s, k: int, rng: np.random.Generator) -> Cohort:
        inner = _centred_gram(rows)
        squares = np.diag(inner).clip(0)
        score = (_hull_distances(inner) / (np.sqrt(squares.max()) or 1.0)).round(9)
        order = np.argsort(-score, kind="stable")
        extreme, inside = order[score[order] > 0], np.flatnonzero(score == 0)

        def distance(i: int) -> Floats:
            return np.asarray(np.sqrt((squares + squares[i] - 2 * inner[i]).clip(0)))

        chosen = extreme[:k].tolist()
        return Cohort(ids[np.sort(geometry.farthest_first(distance, np.sqrt(squares), inside, chosen, k))])


def hull_distances(rows: AnyArray) -> Floats:
    """Return (n,) each row's distance from the convex hull of all other rows; infinity for a single row.

    Example:
        >>> hull_distances(np.array([[0.0, 0], [4, 0], [4, 3], [0, 3], [2, 1], [1, 1], [2, 3]])).round(4)
        array([1.4142, 2.1213, 1.6641, 1.6641, 0.    , 0.    , 0.    ])
    """
    return _hull_distances(_centred_gram(rows))


def _centred_gram(rows: AnyArray) -> Floats:
    geometry.lengths(rows)  # rejects what is not finite
    return geometry.gram(rows, shift=weighted_sum(np.full(len(rows), 1 / len(rows)), rows))


def _hull_distances(inner: Floats) -> Floats:
    n, size = len(inner), np.sqrt(np.diag(inner).max())
    if n == 1 or size == 0:
        return np.full(n, np.inf if n == 1 else 0.0)
    inner = inner / size**2
    # Adding 1 lifts the one eigenvalue that is 0 for every centered table.
    values = np.linalg.eigvalsh(inner + 1.0)
    independent = bool(values[0] > 1e-10 * values[-1])
    distances = np.sqrt([_squared_distance(inner, i, independent) for i in range(n)])
    return np.where(distances > NO_DISTANCE, distances * size, 0.0)


def _squared_distance(inner: Floats, i: int, independent: bool) -> float:
    """Return min |sum_j l_j (g_j - g_i)|^2 over mixtures l of the others, by an active-set method.

    Let P be the inner products of the g_j - g_i. The mixture is x / sum x, where x >= 0 minimizes x'(P + 1)x / 2 - 1'x.
    For x = t l this is t^2 (l'Pl + 1) / 2 - t, and for any l its minimum over t increases with l'Pl. So the problem is
    a non-negative least-squares problem without a constraint on the sum, solved as by Lawson and Hanson. `free` are the
    numbers that may be positive. The algorithm adds one number at a time, and removes numbers that would become
    negative.
    """
    n = len(inner)
    toward = inner[i]

    def gradient(free: Ints, x: Floats) -> Floats:
        total = x.sum()
        return np.asarray(1.0 - (inner[:, free] @ x - total * toward - toward[free] @ x + (inner[i, i] + 1) * total))

    def solve(free: Ints) -> Floats:
        matrix = inner[np.ix_(free, free)] - toward[free] - toward[free, None] + (inner[i, i] + 1)
        return np.linalg.solve(matrix, np.ones(len(free)))

    barred: Bools = np.arange(n) == i
    if independent:  # mostly all others have a share: begin with them all, and drop those with a negative one
        free = np.flatnonzero(~barred)
        while (x := solve(free)).min() <= 0:
            free = free[x > 0]
    else:
        to_others = np.where(barred, np.inf, np.diag(inner) - 2 * toward)
        free = np.array([to_others.argmin()])
        x = solve(free)
    for _ in range(10 * n):
        slope = gradient(free, x)
        slope[barred] = slope[free] = -np.inf
        j = int(slope.argmax())
        if slope[j] <= TOLERANCE:
            break
        free, x = np.append(free, j), np.append(x, 0.0)
        while (solution := solve(free)).min() <= 0:
            down = np.flatnonzero(solution <= 0)
            steps = x[down] / (x[down] - solution[down])
            x = x + steps.min() * (solution - x)
            stays = x > 0
            stays[down[steps.argmin()]] = False
            if free[-1] == j and not stays[-1]:
                barred[j] = True  # joining and leaving at once is rounding; once is enough
            free, x = free[stays], x[stays]
        x = solution
    share = x / x.sum()
    return float(max(0.0, share @ inner[np.ix_(free, free)] @ share - 2 * toward[free] @ share + inner[i, i]))


# -------------------- Interior of the hull


@dataclass(frozen=True, kw_only=True)
class Interior(Hull):
    """Random selection inside the convex hull: the opposite of `ConvexHull`, for comparison.

    If fewer than k clients are inside, all of them are selected. If all clients are vertices, k clients are drawn from
    all clients. The remark of the round reports both cases.

    Use when: you need the opposite of `convex_hull` for comparison.

    Args:
        components: Option of the `ConvexHull` to compare with, as is `normalize`. With more axes, fewer clients are
            inside.

    Reference: "Advocating for the Silent" (arXiv 2310.07171), section 5, baseline c).

    Example:
        >>> ids, corners = np.arange(5), np.array([[0, 0], [4, 0], [4, 3], [0, 3], [2, 1]], np.float32)
        >>> chosen = Interior().choose(ids, corners, 2, None)
        >>> chosen.ids, chosen.remark
        (array([4]), '1 of 5 clients inside the hull, fewer than the cohort of 2')
    """

    def choose(self, ids: Ints, rows: Float32s, k: int, rng: np.random.Generator) -> Cohort:
        inside = np.delete(
            ids, geometry.vertices(geometry.principal_points(rows, self.components, normalize=self.normalize))
        )
        if len(inside) == 0:
            return Cohort(rng.choice(ids, size=k, replace=False), f"all {len(ids)} clients vertices, so any drawn")
        if len(inside) < k:
            return Cohort(inside, f"{len(inside)} of {len(ids)} clients inside the hull, fewer than the cohort of {k}")
        return Cohort(rng.choice(inside, size=k, replace=False))


# -------------------- DivFL

NUMBERS = 2**22  # that are made at a time on the way to the distances


@dataclass(frozen=True, kw_only=True)
class DivFL(geometry.GradientTable):
    """DivFL (Balakrishnan et al., 2022): k clients whose updates represent those of all clients.

    A greedy algorithm minimizes G(S) = sum_i min_{j in S} |g_i - g_j| over the available clients, where g_i is the
    latest update of client i. The first client has the smallest total distance to all other clients. Each further
    client reduces G most. The reduction of G is submodular, so the greedy set achieves at least 1 - 1/e of the largest
    reduction. Ties (12 decimals) go to the client with the smaller total distance to all other clients, then to the
    lower id.

    Distances are computed in float64, block by block. Memory is n^2 numbers for n clients.

    Use when: a small cohort should represent all clients, and all clients can send updates.

    Args:
        candidates: Number of clients to compare for each place, at least 1, drawn again for each place (stochastic
            greedy). None: all clients. A number near (n / k) log(1 / e) reduces the guarantee by a share e on average.

    Raises:
        ConfigError: If an option is out of range.

    Reference: Balakrishnan, Li, Zhou, Himayat, Smith and Bilmes, "Diverse Client Selection for Federated Learning via
    Submodular Maximization", ICLR 2022, eq. (5) and Algorithm 1. In the paper, clients that were not selected keep
    their old update, as in FedReach without `refresh`. The authors' code (github.com/melodi-lab/divfl) compares
    gradients at the broadcast model instead of updates. For the same rows it selects the same clients, except for ties.

    Example:
        >>> ids, rows = np.array([3, 5, 8, 9, 11]), np.array([[0], [1.5], [10], [11], [13]], np.float32)
        >>> DivFL().choose(ids, rows, 2, np.random.default_rng(0)).ids
        array([8, 5])
    """

    candidates: Annotated[int | None, "[1, inf)"] = None

    def choose(self, ids: Ints, rows: Float32s, k: int, rng: np.random.Generator) -> Cohort:
        apart = distances(rows)
        apart /= apart.max() or 1.0
        total = apart.sum(axis=0).round(12)
        nearest = np.ones(len(rows))  # to those chosen so far; at first to a point far from all
        candidates, chosen = np.arange(len(rows)), []
        for _ in range(k):
            is_sampled = self.candidates is not None and self.candidates < len(candidates)
            looked_at = np.sort(rng.choice(candidates, self.candidates, replace=False)) if is_sampled else candidates
            fall = np.maximum(nearest[:, None] - apart[:, looked_at], 0).sum(axis=0).round(12)
            best = int(looked_at[np.lexsort((total[looked_at], -fall))[0]])
            nearest = np.minimum(nearest, apart[best])
            candidates = candidates[candidates != best]
            chosen.append(best)
        return Cohort(ids[chosen])


def distances(rows: Float32s) -> Floats:
    """Return the (n, n) distances between (n, p) rows, block by block.

    Example:
        >>> distances(np.array([[0, 0], [3, 4]], np.float32))
        array([[0., 5.],
               [5., 0.]])
    """
    n = len(rows)
    squares, products = np.zeros(n), np.zeros((n, n))
    step = max(1, NUMBERS // max(1, n))
    for begin in range(0, rows.shape[1], step):
        block = np.asarray(rows[:, begin : begin + step], np.float64)
        squares += (block**2).sum(axis=1)
        products += block @ block.T
    apart = np.sqrt(np.maximum(squares[:, None] + squares - 2 * products, 0))
    np.fill_diagonal(apart, 0)
    return apart


# -------------------- Clustered sampling by similarity

Measure = Literal["angle", "l2", "l1"]


@dataclass(frozen=True)
class UrnsBySimilarity(geometry.KeepsUpdates, Urns):
    """Clustered sampling by similarity (Fraboni et al., 2021): one client from each of k urns.

    Urns contain the same balls as in `UrnsBySize`, but groups of similar clients fill them. Ward's method clusters the
    available clients by the distances between their latest updates. The policy uses the largest groups that fit into an
    urn. The k largest groups start one urn each, and the other groups fill the remaining space by size. A client with
    more balls than fit into an urn fills urns alone and shares the next one.

    For any groups, the expected mean update with the weighting `by_draws` is sum_i (m_i / M) u_i, and no weight has a
    larger variance than with `multinomial`. With suitable groups, every cohort contains clients from each group.

    The policy does not need a probe. A client without an update has a row of zeros, with angle pi/2 to all other rows.
    Distances need memory for a^2 numbers; ``"l1"`` needs a^2 passes over the updates.

    Use when: clients form groups with similar updates, for example because they have the same few classes, and every
    cohort should represent all groups without bias. The policy reads single updates, so secure aggregation does not
    support it. Use the weighting `by_draws`.

    Args:
        measure: Distance between two updates. ``"angle"``: arccos of the cosine; ``"l2"``: Euclidean; ``"l1"``: sum of
            absolute differences.
        sketch: Number of values stored per update, see `GradientTable`. None: all values. Sketches preserve ``"angle"``
            and ``"l2"``.

    Raises:
        ConfigError: If an option is out of range.

    Reference: Fraboni, Vidal, Kameni and Lorenzi, "Clustered Sampling: Low-Variance and Improved Representativity for
    Clients Selection in Federated Learning", ICML 2021, Algorithm 2. The authors' code
    (github.com/Accenture/Labs-Federated-Learning) differs in four points. It passes distances to Ward's method as if
    they were points, and squares ``"l2"``. It uses angle 0 for clients without an update, and fills urns with the
    smallest groups first. The policy `clustered` is a different method.

    Example:
        >>> from fedreach.federation.types import ClientResults
        >>> policy, view = UrnsBySimilarity(), ServerView.of(np.arange(4), np.full(4, 10))
        >>> update = np.array([[1, 0], [0, 1], [1, 0.1], [0.1, 1]], np.float32)
        >>> policy.urns(policy.observe(policy.init(view), ClientResults(view.ids, update, {})), view, 2)
        array([[20,  0, 20,  0],
               [ 0, 20,  0, 20]])
    """

    measure: Measure = "angle"
    sketch: Annotated[int | None, "[1, inf)"] = None

    def urns(self, state: State, view: ServerView, k: int) -> Ints:
        balls = k * view.num_examples[view.available].astype(np.int64)
        groups = [[0]]
        if len(balls) > 1:
            apart = pairwise_distances(np.asarray(geometry.rows_of(state)[view.available]), self.measure)
            groups = groups_within(ward(apart), balls, int(balls.sum()) // k)
        return fill_urns(balls, groups, k)


def pairwise_distances(rows: AnyArray, measure: Measure) -> Floats:
    """Return the (n, n) distances between (n, p) rows.

    Example:
        >>> pairwise_distances(np.array([[0.0, 0.0], [3.0, 4.0]]), "l1")
        array([[0., 7.],
               [7., 0.]])
    """
    if measure == "angle":
        return angles(rows)
    if measure == "l2":
        return distances(rows)
    wide = rows.astype(np.float64)
    return np.array([np.abs(wide - row).sum(axis=1) for row in wide])
