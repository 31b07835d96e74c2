"""Vertices of the hull of all updates, seen along principal axes or as they are, and those inside."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, nnls

from fedreach._util.errors import ComponentError, ConfigError
from fedreach._util.streams import generator
from fedreach.federation.round import plan_round
from fedreach.federation.selection import geometry
from fedreach.federation.selection.geometry import principal_points, spanning_points, vertices
from fedreach.federation.selection.updates import ConvexHull, HullDistance, Interior, hull_distances
from fedreach.federation.types import ClientResults, ServerView

from .small import alike, federation, make_view, observe_probe, start

# design/golden.json, "hull2d" and "minimax"
P = np.array([[0, 0], [4, 0], [4, 3], [0, 3], [2, 1], [1, 1], [2, 3]], np.float64)
P_DISTANCE = [1.4142135623730951, 2.1213203435596424, 1.6641005886756872, 1.6641005886756872, 0, 0, 0]
P_EXACT = {2: [1, 3], 3: [0, 1, 3], 4: [0, 1, 2, 3], 5: [0, 1, 2, 3, 4], 6: [0, 1, 2, 3, 4, 6]}
G = np.array([[1, 0, 0], [0.9, 0.1, 0], [0, 1, 0], [0.1, 0.9, 0.2], [-1, -1, 0.5], [0.8, 0.2, 0.1]])
G_DISTANCE = [0.1414213562373, 0, 0.2449489742783, 0.1829510163409, 2.1508748513716, 0.0540036723746]

seeds = st.integers(0, 999)
checks = settings(max_examples=25, deadline=None, derandomize=True)


def normal(seed, n, p):
    return generator(seed, "rows").standard_normal((n, p))


def rotation(seed, p):
    return np.linalg.qr(normal(seed, p, p))[0]


def in_hull_of_others(rows, i):
    """Ask a linear program for l >= 0 with sum 1 and sum_j l_j rows_j = rows_i."""
    others = np.delete(rows, i, axis=0)
    sides = np.vstack([others.T, np.ones(len(others))]), np.append(rows[i], 1.0)
    return linprog(np.zeros(len(others)), A_eq=sides[0], b_eq=sides[1]).status == 0


def chosen(policy, rows, k, ids=None, seed=0):
    ids = np.arange(len(rows)) if ids is None else ids
    view = ServerView.of(ids, np.full(len(rows), 10))
    state = policy.observe(policy.init(view), ClientResults(ids, np.asarray(rows, np.float32), {}))
    for array in state.values():
        array.setflags(write=False)
    return policy.select(state, view, k, generator(seed, "select"))


def chosen_ids(*arguments, **more):
    return sorted(chosen(*arguments, **more).ids.tolist())


# ------------------------------------------------------------------------------------------------ golden numbers


def test_the_golden_vertices():
    assert vertices(P).tolist() == vertices(principal_points(P, 2)).tolist() == [0, 1, 2, 3]
    assert vertices(principal_points(G, 2)).tolist() == [0, 2, 4]


@pytest.mark.parametrize("k", P_EXACT)
def test_the_golden_choices_of_exactly_k(k):
    assert chosen_ids(ConvexHull(), P, k) == P_EXACT[k]


def test_the_golden_distances_from_the_hull_of_the_others():
    np.testing.assert_allclose(hull_distances(P), P_DISTANCE, rtol=0, atol=1e-12)
    np.testing.assert_allclose(hull_distances(G), G_DISTANCE, rtol=0, atol=1e-12)
    assert chosen_ids(HullDistance(), G, 2) == [2, 4]


def test_the_distance_of_a_point_from_a_segment_and_a_triangle():
    """Beside the end of a segment, above its middle, and above the middle of a triangle."""
    assert hull_distances(np.array([[0.0, 0], [1, 0], [4, 4]]))[2] == pytest.approx(5, rel=1e-14)
    assert hull_distances(np.array([[0.0, 0], [1, 0], [0.25, 7]]))[2] == pytest.approx(7, rel=1e-14)
    triangle = np.vstack([np.eye(3), np.full(3, 2.0)])
    assert hull_distances(triangle)[3] == pytest.approx(5 / math.sqrt(3), rel=1e-14)  # (6 - 1) / |(1, 1, 1)|


# ------------------------------------------------------------------------------------------------ principal axes


@pytest.mark.parametrize(("n", "p"), [(30, 200), (30, 8)])
@pytest.mark.parametrize("normalize", [False, True])
def test_principal_points_are_the_projection_on_the_leading_singular_vectors(n, p, normalize):
    rows = normal(0, n, p) + 3
    table = rows / np.linalg.norm(rows, axis=1, keepdims=True) if normalize else rows
    u, s, _ = np.linalg.svd(table - table.mean(axis=0), full_matrices=False)
    points = principal_points(rows, 3, normalize=normalize)
    np.testing.assert_allclose(abs(points), abs(u[:, :3] * s[:3]), atol=1e-12)
    assert (points[abs(points).argmax(axis=0), range(3)] > 0).all()


@pytest.mark.parametrize("p", [10, 500])
def test_large_tables_have_the_same_axes(monkeypatch, p):
    rows = normal(0, 80, p) * np.linspace(1, 3, p)
    whole = principal_points(rows, 3)
    monkeypatch.setattr(geometry, "FULL_EIGEN", 5)
    np.testing.assert_allclose(principal_points(rows, 3), whole, atol=1e-9)
    for value in (0, 1):
        assert principal_points(np.full((80, p), value), 3).shape == (80, 0)


def test_axes_without_extent_are_left_out():
    line = np.outer(np.arange(10.0), normal(0, 1, 50)[0]).astype(np.float32)
    assert principal_points(line, 3).shape == (10, 1)
    assert principal_points(np.tile(normal(0, 1, 50).astype(np.float32), (10, 1)), 3).shape == (10, 0)
    assert principal_points(np.ones((1, 4)), 2).shape == (1, 0)


# ------------------------------------------------------------------------------------------------ vertices


@checks
@given(seeds, st.integers(4, 25), st.integers(1, 5))
def test_vertices_are_the_points_that_no_mixture_of_the_others_gives(seed, n, r):
    points = normal(seed, n, r)
    extreme = [i for i in range(n) if not in_hull_of_others(points, i)]
    assert vertices(points).tolist() == extreme


@checks
@given(seeds, st.integers(4, 25), st.integers(1, 5), st.floats(1e-3, 1e3))
def test_moving_turning_and_stretching_all_changes_no_vertex(seed, n, r, factor):
    points = normal(seed, n, r)
    moved = factor * points @ rotation(seed + 1, r) + normal(seed + 2, 1, r)
    assert vertices(moved).tolist() == vertices(points).tolist()
    np.testing.assert_allclose(hull_distances(moved), factor * hull_distances(points), atol=1e-6 * factor)


@checks
@given(seeds, st.integers(4, 20), st.integers(1, 5))
def test_a_mixture_of_clients_changes_nothing_and_is_no_vertex(seed, n, r):
    points = normal(seed, n, r)
    mixtures = generator(seed, "mixtures").dirichlet(np.ones(n), 3) @ points
    assert vertices(np.vstack([points, mixtures])).tolist() == vertices(points).tolist()
    assert (hull_distances(np.vstack([points, mixtures]))[n:] == 0).all()


@checks
@given(seeds, st.integers(2, 12), st.integers(1, 5))
def test_of_copies_the_first_is_a_vertex_at_most(seed, n, r):
    points = normal(seed, n, r)
    assert vertices(np.vstack([points, points])).tolist() == vertices(points).tolist()
    assert (hull_distances(np.vstack([points, points])) == 0).all()


def test_points_in_a_plane_are_looked_at_in_that_plane():
    """In five dimensions Qhull refuses them."""
    flat = P @ normal(0, 2, 5)
    assert vertices(flat).tolist() == [0, 1, 2, 3]
    assert vertices(np.outer([3.0, 1, 2, 5, 1], [1.0, 2])).tolist() == [1, 3]
    assert vertices(np.zeros((4, 3))).tolist() == [0]
    assert vertices(np.zeros((4, 0))).tolist() == [0]


# ------------------------------------------------------------------------------------------------ distances


@checks
@given(seeds, st.integers(3, 18), st.integers(1, 20))
def test_the_distance_is_positive_exactly_where_no_mixture_of_the_others_gives_the_row(seed, n, p):
    rows = normal(seed, n, p) + 10 * normal(seed + 1, 1, p)
    distances = hull_distances(rows)
    for i in range(n):
        assert (distances[i] == 0) == in_hull_of_others(rows, i)


@pytest.mark.parametrize(("n", "p"), [(12, 3), (12, 9), (12, 40), (60, 59), (60, 600)])
def test_the_distance_is_that_of_non_negative_least_squares(n, p):
    """With a heavy equation sum l = 1, which the answer breaks by about d^2 / weight^2; there l / sum l is no worse."""
    rows, weight = normal(0, n, p), 1e4
    distances = hull_distances(rows)
    for i in range(0, n, 4):
        to_others = np.delete(rows, i, axis=0) - rows[i]
        weights, _ = nnls(np.vstack([to_others.T, np.full(n - 1, weight)]), np.append(np.zeros(p), weight))
        mixture = weights @ to_others / weights.sum()
        assert distances[i] == pytest.approx(np.linalg.norm(mixture), rel=1e-7, abs=1e-6)
        if distances[i] > 0:  # the plane through the nearest mixture parts row and hull, so that no mixture is nearer
            assert (to_others @ mixture).min() == pytest.approx(distances[i] ** 2, rel=1e-6)


def test_a_hundred_clients_in_many_dimensions_are_all_vertices():
    """Which is why the paper's hull of whole updates chooses everybody."""
    rows = normal(0, 100, 2000).astype(np.float32)
    assert (hull_distances(rows) > 0).all()
    assert len(vertices(principal_points(rows, 2))) < 20


def test_with_two_clients_the_distance_is_between_them_and_with_one_there_is_none():
    assert hull_distances(np.array([[0.0, 0], [3, 4]])).tolist() == pytest.approx([5, 5])
    assert hull_distances(np.array([[1.0, 2]])).tolist() == [np.inf]
    assert hull_distances(np.ones((3, 4))).tolist() == [0, 0, 0]


def test_after_the_vertices_those_farthest_from_the_chosen_come_next():
    """Inside a square with corners at 0 and 10: (5, 5) is 7.07 from the corners, then (5, 1) is 4 from that."""
    rows = np.array([[5, 1], [1, 1], [5, 5], [4.9, 5], [0, 0], [10, 0], [0, 10], [10, 10]])
    found = [chosen_ids(HullDistance(), rows, k) for k in (4, 5, 6)]
    assert found == [[4, 5, 6, 7], [2, 4, 5, 6, 7], [0, 2, 4, 5, 6, 7]]


def test_what_is_not_finite_is_refused():
    rows = P.copy()
    rows[3, 1] = np.nan
    for function in (hull_distances, lambda rows: principal_points(rows, 2)):
        with pytest.raises(ComponentError, match="row 3 has other values"):
            function(rows)


# ------------------------------------------------------------------------------------------------ the policies


@pytest.mark.parametrize("policy", [ConvexHull(), ConvexHull(components=3, normalize=True), HullDistance()], ids=repr)
@pytest.mark.parametrize("p", [2, 6, 100])
def test_exactly_k_are_chosen_for_every_k(policy, p):
    rows = normal(1, 15, p)
    for table in (rows, np.vstack([rows[:7], rows[:8]]), np.zeros((15, p)), np.outer(np.arange(15), np.ones(p))):
        for k in range(1, 16):
            ids = chosen_ids(policy, table, k, ids=np.arange(15) * 2 + 1)
            assert len(set(ids)) == k
            assert all(i % 2 for i in ids)


@pytest.mark.parametrize("policy", [ConvexHull(), ConvexHull(components=4, normalize=True), HullDistance()], ids=repr)
@checks
@given(seed=seeds, p=st.sampled_from([2, 5, 40]))
@pytest.mark.sampled(2)
def test_renaming_the_clients_renames_the_choice(policy, seed, p):
    rows, order = normal(seed, 12, p), generator(seed, "order").permutation(12)
    for k in (1, 3, 6, 9, 11):
        after = chosen_ids(policy, rows[order], k)
        assert sorted(order[after].tolist()) == chosen_ids(policy, rows, k)


def test_normalised_updates_are_chosen_by_direction():
    directions = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])
    rows = np.vstack([directions, 0.9 * directions, [[0.5, 0.5]]]) * np.arange(1, 10)[:, None]
    assert chosen_ids(ConvexHull(normalize=True, exact=False), rows, 1) == [0, 1, 2, 3, 8]


def test_as_printed_all_vertices_are_chosen_whatever_the_cohort():
    assert not ConvexHull().ignores_cohort
    literal = ConvexHull(exact=False)
    assert literal.ignores_cohort
    for k in (1, 4, 6):
        assert chosen_ids(literal, P, k) == [0, 1, 2, 3]
    parts, view = federation(selection=literal, cohort_size=2), make_view(n=7)
    state = observe_probe(parts, start(parts, view), ClientResults(view.ids, P.astype(np.float32), {}))
    assert plan_round(parts, state, view).ids.tolist() == [0, 1, 2, 3]


def test_the_interior_is_drawn_from_those_that_are_no_vertices():
    seen = {tuple(chosen_ids(Interior(), P, 2, seed=seed)) for seed in range(60)}
    assert seen == {(4, 5), (4, 6), (5, 6)}


def test_too_few_inside_are_all_chosen_and_the_remark_says_so():
    found = chosen(Interior(), P, 5)
    assert (found.ids.tolist(), found.remark) == (
        [4, 5, 6],
        "3 of 7 clients inside the hull, fewer than the cohort of 5",
    )
    assert chosen(Interior(), P, 3).remark == ""


def test_where_nobody_is_inside_any_are_drawn_and_the_remark_says_so():
    corners = P[:4]
    drawn = {tuple(chosen_ids(Interior(), corners, 2, seed=seed)) for seed in range(60)}
    assert len(drawn) == 6
    assert chosen(Interior(), corners, 2).remark == "all 4 clients vertices, so any drawn"


@pytest.mark.parametrize("part", [ConvexHull, Interior])
@pytest.mark.parametrize("components", [0, 6])
def test_one_to_five_axes(part, components):
    with pytest.raises(ConfigError, match=rf"{part.__name__}\.components must be in \[1, 5\]; got {components}"):
        part(components=components)


def test_a_cut_layer_keeps_those_far_apart():
    """Of eight points on a circle, all as far from the mean: the first, its opposite, then the two between."""
    angle = np.arange(8) * np.pi / 4
    circle = np.column_stack([np.cos(angle), np.sin(angle)])
    assert spanning_points(circle, 2).tolist() == [0, 4]
    assert sorted(spanning_points(circle, 4).tolist()) == [0, 2, 4, 6]


def test_a_cut_layer_begins_with_the_vertex_farthest_from_the_mean():
    """Of a kite about (2, 0): its tip at 8, then the opposite corner, 12 from it, then one of the two at the sides."""
    kite = np.array([[0.0, 1], [0, -1], [10, 0], [-2, 0]])
    assert [sorted(spanning_points(kite, k).tolist()) for k in (1, 2, 3)] == [[2], [2, 3], [0, 2, 3]]
    assert chosen_ids(ConvexHull(), np.vstack([kite, [[1, 0]]]), 2) == [2, 3]


def test_rounding_does_not_decide_between_two_that_are_equally_far():
    """After clients 1 and 3 of the golden rectangle, clients 0 and 2 are both 3 away, however it lies."""
    for seed in range(20):
        moved = P @ rotation(seed, 2) + 100 * normal(seed, 1, 2)
        assert sorted(spanning_points(moved, 3).tolist()) == [0, 1, 3]


def test_the_last_digits_of_a_distance_decide_no_tie():
    tables = [alike(seed) for seed in range(8)]
    assert any(hull_distances(rows).argmax() for rows in tables)  # without rounding, another one would be farthest
    assert {chosen(HullDistance(), rows, 1).ids.item() for rows in tables} == {0}
