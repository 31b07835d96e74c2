"""Clusters of rows, by scipy and scikit-learn."""

import numpy as np

from fedreach.arrays import AnyArray, Bools, Floats, Ints
from fedreach.federation.selection.shared.similarity import gram, inverse, lengths

MOST = 8  # clusters tried where their number is not given
DECIMALS = 9  # of coordinates and silhouettes; the rest is rounding and must not decide


def bipartition(rows: AnyArray) -> Bools:
    """Return (n,) on which of two sides each of n >= 2 rows is, by complete linkage of the distances 1 - cosine.

    The rows are merged, nearest first, into ever larger groups until two are left; the distance of two groups is that
    of their farthest members. The larger side is False; of two equal ones, that of the first row.

    Example:
        >>> rows = np.array([[1, 0.1, 0], [0.9, 0, 0.1], [-1, 0.2, 0], [-0.8, -0.1, 0.1], [1.1, 0, 0]])
        >>> bipartition(rows)
        array([False, False,  True,  True, False])
    """
    from scipy.cluster.hierarchy import cut_tree, linkage
    from scipy.spatial.distance import squareform

    distance = np.maximum(1 - gram(rows, inverse(lengths(rows))), 0)  # 1 from a row of zeros
    np.fill_diagonal(distance, 0)
    labels = cut_tree(linkage(squareform(distance, checks=False), "complete"), n_clusters=[2])[:, 0]
    side: Bools = labels != labels[0]
    return ~side if 2 * side.sum() > len(side) else side


def ward(distance: Floats) -> Floats:
    """Return the (n - 1, 4) merges of n points by Ward's method on their (n, n) distances, as scipy's `linkage`.

    Distances need not be Euclidean: they are combined as if they were (Lance and Williams).

    Example:
        >>> ward(np.array([[0, 1, 4], [1, 0, 3], [4, 3, 0.0]]))[:, :2]
        array([[0., 1.], [2., 3.]])
    """
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    return np.asarray(linkage(squareform(distance.round(DECIMALS), checks=False), "ward"))


def angles(rows: AnyArray) -> Floats:
    """Return the (n, n) angles between rows, from 0 to pi; a row of zeros is at a right angle to all but its like.

    Example:
        >>> angles(np.array([[1.0, 0], [-2, 0], [0, 0], [0, 0]])) / np.pi
        array([[0. , 1. , 0.5, 0.5],
               [1. , 0. , 0.5, 0.5],
               [0.5, 0.5, 0. , 0. ],
               [0.5, 0.5, 0. , 0. ]])
    """
    length = lengths(rows)
    still = length == 0
    angle: Floats = np.arccos(np.clip(gram(rows, inverse(length)), -1, 1))
    angle[np.ix_(still, still)] = 0
    np.fill_diagonal(angle, 0)
    return angle


def kmeans(points: Floats, count: int | None = None) -> Ints:
    """Return each point's cluster 0, 1, ..., numbered by first member; at most as many as there are different points.

    k-means++ with 10 restarts of a fixed seed. Without a count the one from 2 to min(8, n - 1) whose mean silhouette is
    largest is taken, of equal ones the smaller; fewer than three points, or points that all coincide, are one cluster.
    Points are handed to k-means in the order of their coordinates, so that renaming them renames the clusters.

    Example:
        >>> kmeans(np.array([[5.0], [0.0], [5.1], [0.1], [9.0], [9.1]]))
        array([0, 1, 0, 1, 2, 2])
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    rounded = points.round(DECIMALS)
    order = np.lexsort(rounded.T[::-1]) if points.shape[1] else np.arange(len(points))
    ordered = points[order]
    different = len(np.unique(rounded, axis=0))
    counts = range(2, min(MOST, len(points) - 1, different) + 1) if count is None else [min(count, different)]
    best, labels = -np.inf, np.zeros(len(points), np.int64)
    for number in counts:
        if number < 2:
            continue
        found = KMeans(number, n_init=10, random_state=0).fit(ordered).labels_
        silhouette = round(silhouette_score(ordered, found), DECIMALS) if len(counts) > 1 else 0.0
        if silhouette > best:
            best = silhouette
            labels[order] = found
    return by_first_member(labels)


def by_first_member(labels: Ints) -> Ints:
    """Return the clusters numbered 0, 1, ... in the order of their first members.

    Example:
        >>> by_first_member(np.array([7, 2, 7, 5]))
        array([0, 1, 0, 2])
    """
    _, first, where = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[where]
