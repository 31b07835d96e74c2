"""Rows are clustered by their directions only, and renaming the rows renames the clusters."""

import numpy as np
import pytest

from fedreach._util.streams import generator
from fedreach.federation.selection.geometry import principal_points
from fedreach.federation.selection.labels import bipartition, by_first_member, kmeans, ward

from .small import alike

# design/algorithms.md, section 1.6: labels 1, 1, 2, 2, 1
ROWS = np.array([[1, 0.1, 0], [0.9, 0, 0.1], [-1, 0.2, 0], [-0.8, -0.1, 0.1], [1.1, 0, 0]])


def planted(groups, each, dimensions=30, noise=0.3, seed=0):
    """Return rows around one random direction a group, of random length, and their groups."""
    rng = generator(seed, "rows")
    group = rng.permutation(np.repeat(np.arange(groups), each))
    rows = rng.normal(size=(groups, dimensions))[group] + noise * rng.normal(size=(groups * each, dimensions))
    return (rows * rng.uniform(0.1, 10, (len(rows), 1))).astype(np.float32), by_first_member(group)


def points_of(rows):
    return principal_points(rows, 10, normalize=True)


def test_the_two_sides_are_the_golden_ones():
    assert bipartition(ROWS).tolist() == [False, False, True, True, False]


def test_the_smaller_side_is_the_one_that_leaves_and_of_equal_ones_that_without_the_first_row():
    assert bipartition(-ROWS[[2, 3, 0, 1, 4]]).tolist() == [True, True, False, False, False]
    assert bipartition(ROWS[[2, 0, 1, 3]]).tolist() == [False, True, True, False]


def test_sides_follow_the_rows_and_not_their_lengths():
    rows, _ = planted(4, 5)
    rng = generator(1, "order")
    for _ in range(5):
        order = rng.permutation(len(rows))
        # 20 rows: equal sides could not be told apart here, so that it is checked that there are none.
        assert bipartition(rows).sum() != 10
        assert (bipartition(rows[order]) == bipartition(rows)[order]).all()
    lengths = rng.uniform(0.5, 2, (len(rows), 1))
    assert (bipartition(rows * lengths) == bipartition(rows)).all()


@pytest.mark.parametrize("rows", [np.eye(3), np.ones((4, 2)), np.zeros((3, 2)), np.eye(2)], ids=repr)
def test_two_sides_are_found_even_where_all_distances_are_equal(rows):
    assert 0 < bipartition(rows).sum() <= len(rows) / 2


def test_complete_linkage_looks_at_the_farthest_members():
    # 0 and 30 degrees merge first, then 62 and 96. Seen from its nearest member (single linkage), the second pair is 32
    # degrees from the first and 36 from 132, which would stay alone; seen from its farthest, 96 from the one, 70 from
    # the other.
    angles = np.deg2rad([0, 30, 62, 96, 132])
    rows = np.column_stack([np.cos(angles), np.sin(angles)])
    assert bipartition(rows).tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("groups", [2, 3, 5, 8])
def test_planted_groups_are_found_and_counted(groups):
    rows, group = planted(groups, 6)
    assert kmeans(points_of(rows)).tolist() == group.tolist()
    assert kmeans(points_of(rows), groups).tolist() == group.tolist()


@pytest.mark.parametrize("noise", [0.3, 1.5])
def test_renaming_the_rows_renames_the_clusters(noise):
    rows, _ = planted(4, 6, noise=noise)
    before = kmeans(points_of(rows))
    rng = generator(2, "order")
    for _ in range(5):
        order = rng.permutation(len(rows))
        after = kmeans(points_of(rows[order]))
        assert after.tolist() == by_first_member(before[order]).tolist()


def test_never_more_clusters_are_found_than_there_are_different_points():
    points = np.array([[0.0], [1.0], [0.0], [1.0], [1.0]])
    assert kmeans(points, 4).tolist() == kmeans(points).tolist() == [0, 1, 0, 1, 1]
    assert kmeans(np.zeros((4, 2))).tolist() == kmeans(np.ones((4, 0)), 3).tolist() == [0] * 4
    assert kmeans(np.array([[0.0], [1.0]])).tolist() == [0, 0]
    assert kmeans(np.array([[0.0], [1.0]]), 2).tolist() == [0, 1]
    assert kmeans(points, 1).tolist() == [0] * 5


def test_the_last_digits_of_a_silhouette_do_not_add_clusters():
    """Of points that are equally far from each other, all numbers of clusters have silhouette 0; the smallest wins."""
    for seed in range(4):
        simplex = np.linalg.qr(generator(seed, "rows").standard_normal((6, 6)))[0][:5]
        assert kmeans(simplex).max() == 1


def test_the_last_digits_of_a_coordinate_change_no_cluster():
    """Of a ring many thirds are equally good: which are found depends on the order of its points."""
    angles = np.arange(20) * np.pi / 10
    found = set()
    for seed in range(6):
        digits = 1e-13 * generator(seed, "digits").standard_normal(20)
        found.add(tuple(kmeans(np.column_stack([digits, np.cos(angles), np.sin(angles)]), 3).tolist()))
    assert len(found) == 1


def test_the_last_digits_of_a_distance_change_no_merge():
    distance = 1.0 - np.eye(6)
    digits = 1e-13 * generator(0, "digits").standard_normal((6, 6)) * distance
    assert ward(distance + digits + digits.T).tolist() == ward(distance).tolist()


def test_the_last_digits_of_a_cosine_change_no_side():
    lengths = generator(0, "lengths").uniform(0.5, 2, (20, 8, 1))
    for seed in range(20):
        rows = alike(seed)
        assert (bipartition(rows * lengths[seed]) == bipartition(rows)).all()
