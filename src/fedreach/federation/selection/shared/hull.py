"""The convex hull of a table's rows: which are its vertices, seen in few dimensions, and k that span it well."""

from collections.abc import Callable, Sequence

import numpy as np

from fedreach.arrays import AnyArray, Floats, Ints
from fedreach.federation.aggregation.mean import weighted_sum
from fedreach.federation.selection.shared.similarity import gram, inverse, lengths

MOST_COMPONENTS = 5  # in 7 dimensions Qhull calls 13 % of points that are none vertices; up to 5, none in 300
FULL_EIGEN = 2000  # largest matrix of which all eigenvectors are computed to use a few
NO_EXTENT = 3e-7  # of rows along an axis, relative to their lengths: what float32 can tell apart
FLAT = 1e-9  # extent, relative to the largest, below which points have none in a direction


def principal_points(rows: AnyArray, components: int, *, normalize: bool = False) -> Floats:
    """Return (n, r) coordinates of the rows along their r principal axes, r <= `components`.

    With X the rows less their mean, X X' = U L U' and Y = U L^(1/2) for the largest eigenvalues in L. Of X X' (n, n)
    and X' X (p, p) the smaller is computed. Axes along which the rows differ by less than rounding in float32 are left
    out, so that copies of one row give r = 0. Each axis points where its largest coordinate is positive. With
    `normalize`, rows are first divided by their length; zeros stay zeros.

    Example:
        >>> principal_points(np.array([[1.0, 1.0], [3.0, 3.0], [8.0, 8.0]]), 2).round(3)
        array([[-4.243],
               [-1.414],
               [ 5.657]])
    """
    length = lengths(rows)
    scale = inverse(length) if normalize else np.ones(len(rows))
    mean = weighted_sum(scale / len(rows), rows)
    if rows.shape[1] < len(rows):
        centred = rows * scale[:, None] - mean
        values, axes = _leading(centred.T @ centred, components)
        points = centred @ axes
    else:
        values, vectors = _leading(gram(rows, scale, mean), components)
        points = vectors * np.sqrt(values.clip(0))
    counts = values > NO_EXTENT**2 * ((scale * length) ** 2).sum()
    points = points[:, counts]
    largest = points[np.abs(points).argmax(axis=0), np.arange(points.shape[1])]
    return points * np.where(largest < 0, -1.0, 1.0)


def _leading(matrix: Floats, count: int) -> tuple[Floats, Floats]:
    """Return the largest eigenvalues of a symmetric matrix and their eigenvectors, largest first."""
    count = min(count, len(matrix))
    if len(matrix) > FULL_EIGEN and matrix.any():
        from scipy.sparse.linalg import eigsh

        # A start that renaming the clients renames; not ones, which centring takes to 0.
        values, vectors = eigsh(matrix, count, which="LA", v0=matrix[matrix.diagonal().argmax()])
    else:
        values, vectors = np.linalg.eigh(matrix)
    order = np.argsort(-values)[:count]
    return values[order], vectors[:, order]


def vertices(points: Floats) -> Ints:
    """Return the positions of the (n, r) points that are vertices of their convex hull, increasing.

    Of copies the first is a vertex at most. Points that lie in a subspace are looked at there; what Qhull still finds
    degenerate it is given slightly moved (option QJ).

    Example:
        >>> vertices(np.array([[0.0, 0], [4, 0], [4, 3], [0, 3], [2, 1], [1, 1], [2, 3]]))
        array([0, 1, 2, 3])
    """
    from scipy.spatial import ConvexHull, KDTree, QhullError

    centred = points - points.mean(axis=0)
    _, extents, axes = np.linalg.svd(centred, full_matrices=False)
    if extents.max(initial=0.0) == 0:
        return np.array([0])
    flat = centred @ axes[extents > FLAT * extents[0]].T
    n, r = flat.shape
    if r == 1:
        found = np.array([flat.argmin(), flat.argmax()])
    elif n <= r + 1:
        found = np.arange(n)
    else:
        try:
            found = ConvexHull(flat).vertices
        except QhullError:
            found = ConvexHull(flat, qhull_options="QJ").vertices
    same = KDTree(flat).query_ball_point(flat[found], FLAT * extents[0])
    return np.unique([min(copies) for copies in same])


def spanning(points: Floats, k: int) -> Ints:
    """Return the positions of exactly k of the (n, r) points, outermost first.

    The vertices of the hull, then those of the hull of the rest, and so on, in layers; the last layer is cut by
    `farthest_first`, which in the first begins with the point farthest from the mean.

    Example:
        >>> points = np.array([[0.0, 0], [4, 0], [4, 3], [0, 3], [2, 1], [1, 1], [2, 3]])
        >>> [sorted(spanning(points, k).tolist()) for k in (2, 5, 6)]
        [[1, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 6]]
    """
    out = np.linalg.norm(points - points.mean(axis=0), axis=1)

    def distance(i: int) -> Floats:
        return np.asarray(np.linalg.norm(points - points[i], axis=1))

    chosen: list[int] = []
    rest = np.arange(len(points))
    while len(chosen) < k:
        layer = rest[vertices(points[rest])]
        if len(layer) > k - len(chosen):
            return farthest_first(distance, out, layer, chosen, k)
        chosen += layer.tolist()
        rest = np.setdiff1d(rest, layer)
    return np.array(chosen)


def farthest_first(
    distance: Callable[[int], Floats], out: Floats, candidates: Ints, chosen: Sequence[int], k: int
) -> Ints:
    """Return the chosen and, until they are k, always the candidate that is farthest from all of them.

    Distances are compared after rounding to 1e-9 of the largest; ties go to the candidate that stands first.

    Args:
        distance: Gives the (n,) distances to point i.
        out: (n,) distances to the mean; the largest is chosen where nobody is yet.
        candidates: At least k less those chosen.
    """
    size = float(out.max()) or 1.0
    result = list(chosen)
    nearest = np.min([distance(i) for i in chosen], axis=0) if chosen else out
    while len(result) < k:
        i = int(candidates[(nearest[candidates] / size).round(9).argmax()])
        candidates = candidates[candidates != i]
        nearest = np.minimum(nearest, distance(i)) if result else distance(i)
        result.append(i)
    return np.array(result)
