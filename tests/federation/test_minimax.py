"""Who is least like anybody else, and who most."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.errors import ComponentError
from fedreach._util.streams import generator
from fedreach.federation.selection import geometry
from fedreach.federation.selection.geometry import first_by_similarity, gram, nearest_similarity
from fedreach.federation.selection.losses import Minimax
from fedreach.federation.selection.updates import MaxSimilarity
from fedreach.federation.types import ClientResults, ServerView

# design/golden.json, "minimax"; rows 2 and 3, and rows 0 and 1, are each other's nearest
G = np.array([[1, 0, 0], [0.9, 0.1, 0], [0, 1, 0], [0.1, 0.9, 0.2], [-1, -1, 0.5], [0.8, 0.2, 0.1]])
MOST = [0.9938837347, 0.9938837347, 0.9704949588, 0.9704949588, -0.6469966392, 0.9837851171]
ORDER = [4, 2, 3, 5, 0, 1]

tables = st.builds(
    lambda n, p, seed: generator(seed, "rows").standard_normal((n, p)),
    st.integers(3, 10),  # of two clients, neither is less like the other
    st.integers(2, 6),
    st.integers(0, 999),
)
checks = settings(max_examples=40, deadline=None, derandomize=True)


def first(rows, k, **more):
    return first_by_similarity(np.asarray(rows), k, **more).tolist()


def cosines(rows):
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit @ unit.T


def plain_order(rows, sign):
    """The specification as it reads: sort by the cosines with the others, largest first, then by position."""
    full = cosines(rows).round(12)
    keys = [(*(sign * np.sort(np.delete(row, i))[::-1]), i) for i, row in enumerate(full)]
    return sorted(range(len(rows)), key=keys.__getitem__)


def test_the_golden_similarities():
    np.testing.assert_allclose(nearest_similarity(G), MOST, rtol=0, atol=1e-10)


def test_the_golden_order_of_minimax():
    for k in range(1, 7):
        assert first(G, k) == sorted(ORDER[:k])
    assert first(G, 2) != sorted([4, 2, 5])  # what the printed algorithm returns for K = 2


def test_the_golden_choice_of_the_most_similar():
    assert first(G, 2, most_similar=True) == [0, 1]


def test_the_policies_choose_ids_by_the_rows_of_those_who_are_available():
    ids = np.array([3, 5, 8, 9, 12, 20])
    everybody = ServerView.of(ids, np.full(6, 10))
    without_12 = ServerView.of(ids, np.full(6, 10), available=ids != 12)
    for policy, view, wanted in [
        (Minimax(), everybody, [8, 12]),
        (Minimax(), without_12, [8, 9]),
        (MaxSimilarity(), everybody, [3, 5]),
    ]:
        state = policy.observe(policy.init(view), ClientResults(ids, G.astype(np.float32), {}))
        assert policy.select(state, view, 2, generator(0, "select")).ids.tolist() == wanted


def test_the_one_who_pulls_the_other_way_is_chosen_first():
    v = generator(0, "rows").standard_normal(50)
    rows = np.vstack([v + 0.1 * generator(1, "rows").standard_normal((5, 50)), -v])
    assert first(rows, 1) == [5]
    assert 5 not in first(rows, 5, most_similar=True)


@checks
@given(tables, st.booleans())
def test_the_choice_is_that_of_sorting_all_similarities(rows, most_similar):
    order = plain_order(rows, -1 if most_similar else 1)
    for k in range(1, len(rows) + 1):
        assert first(rows, k, most_similar=most_similar) == sorted(order[:k])


@checks
@given(tables, st.integers(1, 10))
def test_no_other_choice_of_k_has_smaller_similarities(rows, k):
    k, most = min(k, len(rows)), nearest_similarity(rows)
    least = min(most[list(some)].sum() for some in combinations(range(len(rows)), k))
    assert most[first(rows, k)].sum() == pytest.approx(least, abs=1e-10)


@checks
@given(tables, st.integers(0, 999))
def test_lengths_of_updates_do_not_matter(rows, seed):
    scale = 10 ** generator(seed, "scale").uniform(-3, 3, (len(rows), 1))
    for k in range(1, len(rows) + 1):
        assert first(rows * scale, k) == first(rows, k)


@checks
@given(tables, st.integers(0, 999))
def test_renaming_the_clients_renames_the_choice(rows, seed):
    order = generator(seed, "order").permutation(len(rows))
    for k in range(1, len(rows)):
        assert sorted(order[first(rows[order], k)].tolist()) == first(rows, k)


def test_two_that_are_nearest_to_each_other_have_exactly_equal_similarities():
    rows = generator(0, "rows").standard_normal((400, 7)).astype(np.float32)
    most, full = nearest_similarity(rows), cosines(rows.astype(np.float64)) - 2 * np.eye(400)
    nearest = full.argmax(axis=1)
    mutual = nearest[nearest] == np.arange(400)
    assert mutual.sum() > 100
    assert (most[mutual] == most[nearest[mutual]]).all()


def test_copies_tie_and_the_lower_id_is_taken():
    rows = np.array([[0, 1], [1, 0], [1, 0], [2, 0]])
    assert [first(rows, k) for k in (1, 2, 3)] == [[0], [0, 1], [0, 1, 2]]
    assert first(np.ones((5, 3)), 2) == first(np.ones((5, 3)), 2, most_similar=True) == [0, 1]


def test_who_stands_still_comes_last_and_is_nobodys_neighbour():
    rows = np.array([[0, 0], [1, 0], [0.9, 0.1], [0, 0], [-1, 0]])
    close, away = 0.9 / np.sqrt(0.82), -0.9 / np.sqrt(0.82)  # cosines of (0.9, 0.1) with (1, 0) and (-1, 0)
    np.testing.assert_allclose(nearest_similarity(rows), [1, close, close, 1, away], rtol=1e-15)
    assert [first(rows, k) for k in (1, 3, 4)] == [[4], [1, 2, 4], [0, 1, 2, 4]]
    assert first(np.array([[0, 0], [1, 0]]), 1) == [1]
    assert first(np.array([[0, 0], [1, 0], [1, 0], [-1, 0]]), 2) == [1, 3]  # even after copies of another


def test_one_client_is_chosen_whatever_it_sent():
    assert first(np.zeros((1, 4)), 1) == first(np.ones((1, 4)), 1) == [0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(bad):
    rows = G.copy()
    rows[3, 1] = bad
    with pytest.raises(ComponentError, match="row 3 has other values"):
        first(rows, 2)


@pytest.mark.parametrize("size", [3, 7, 100])
def test_blocks_change_nothing(monkeypatch, size):
    """Pairs of copies and rows of zeros among 40 rows of 50 numbers; the whole fits into one block as it is."""
    rows = generator(0, "rows").standard_normal((40, 50)).astype(np.float32)
    rows[20:30] = rows[:10]
    rows[35:38] = 0
    whole = gram(rows), nearest_similarity(rows), [first(rows, k) for k in range(1, 41)]
    for name, value in {"ROWS": size, "COLUMNS": size, "NUMBERS": 40 * size}.items():
        monkeypatch.setattr(geometry, name, value)
    np.testing.assert_allclose(gram(rows), whole[0], atol=1e-12)
    np.testing.assert_allclose(gram(rows), rows.astype(np.float64) @ rows.T.astype(np.float64), atol=1e-12)
    np.testing.assert_allclose(nearest_similarity(rows), whole[1], atol=1e-14)
    assert [first(rows, k) for k in range(1, 41)] == whole[2]


def test_inner_products_can_be_scaled_and_shifted():
    rows, scale, shift = G.astype(np.float32), np.arange(1.0, 7), np.array([1.0, -2, 3])
    moved = rows.astype(np.float64) * scale[:, None] - shift
    np.testing.assert_allclose(gram(rows, scale, shift), moved @ moved.T, rtol=1e-14)
