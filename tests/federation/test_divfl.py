"""DivFL: distances block by block, and what its bound promises."""

from itertools import combinations

import numpy as np

from fedreach._util.streams import generator
from fedreach.federation.selection import updates
from fedreach.federation.selection.updates import DivFL

from .small import alike


def test_distances_block_by_block_are_those_at_once(monkeypatch):
    rows = generator(0, "rows").normal(size=(7, 50)).astype(np.float32)
    plain = np.linalg.norm(rows[:, None].astype(np.float64) - rows, axis=2)
    np.testing.assert_allclose(updates.distances(rows), plain, rtol=1e-9, atol=1e-9)
    monkeypatch.setattr(updates, "NUMBERS", 7 * 8)  # seven blocks, the last of two numbers
    np.testing.assert_allclose(updates.distances(rows), plain, rtol=1e-9, atol=1e-9)


def test_it_comes_as_near_to_the_best_choice_as_its_bound_says():
    """G falls from its bound by at least 1 - 1/e of the most that any k clients reach; here all of them are tried."""
    for seed in range(5):
        rows = generator(seed, "rows").normal(size=(9, 3)).astype(np.float32)
        apart = updates.distances(rows)
        most = 9 * apart.max()
        for k in (2, 3, 4):
            chosen = DivFL().choose(np.arange(9), rows, k, generator(seed, "select")).ids
            fall = most - apart[chosen].min(axis=0).sum()
            best = max(most - apart[list(few)].min(axis=0).sum() for few in combinations(range(9), k))
            assert (1 - np.exp(-1)) * best <= fall <= best + 1e-9


def test_the_last_digits_of_a_distance_decide_no_tie():
    tables = [alike(seed) for seed in range(8)]
    assert any(updates.distances(rows).sum(axis=0).argmin() for rows in tables)  # without rounding, another one's total
    assert {DivFL().choose(np.arange(8), rows, 1, generator(0, "select")).ids.item() for rows in tables} == {0}
