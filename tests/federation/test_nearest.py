"""Who is nearest to whom, kept up to date: the same as if all were compared with all in every round."""

from dataclasses import replace

import numpy as np
import pytest

from fedreach._util.streams import generator
from fedreach.federation.selection import geometry
from fedreach.federation.selection.geometry import (
    DECIMALS,
    Nearest,
    first_by_similarity,
    lengths,
    nearest_among,
    nearest_of_all,
    nearest_similarity,
    update_nearest,
)
from fedreach.federation.selection.losses import Minimax
from fedreach.federation.selection.updates import MaxSimilarity
from fedreach.federation.types import ClientResults, ServerView

KINDS = ("no two alike", "few directions", "with zeros", "in a plane")


def table(kind, n, rng):
    rows = rng.standard_normal((n, 2 if kind == "in a plane" else 6))
    if kind == "few directions":  # copies and scaled copies tie
        rows = np.eye(6)[rng.integers(6, size=n)] * rng.integers(1, 4, size=(n, 1))
    if kind == "with zeros":
        rows[rng.random(n) < 0.3] = 0.0
    return rows.astype(np.float32)


def cosines(rows):
    """Return all cosines; of a row with itself and with zeros there is none."""
    length = lengths(rows)
    unit = rows.astype(np.float64) / np.where(length > 0, length, 1)[:, None]
    found = unit @ unit.T
    found[length == 0] = found[:, length == 0] = -np.inf
    np.fill_diagonal(found, -np.inf)
    return found


def check(found, rows):
    every, still = cosines(rows), lengths(rows) == 0
    most = np.where(still, 1.0, every.max(axis=1))
    np.testing.assert_allclose(found.cosine, most, rtol=0, atol=1e-14)
    here = ~still & np.isfinite(most)
    np.testing.assert_allclose(every[np.flatnonzero(here), found.whom[here]], most[here], rtol=0, atol=1e-14)
    # Each closest pair must tie exactly, or rounding would choose between the two.
    mutual = np.flatnonzero(here & (found.whom[found.whom] == np.arange(len(rows))))
    assert (found.cosine[mutual] == found.cosine[found.whom[mutual]]).all()


@pytest.mark.parametrize(("numbers", "most"), [(geometry.NUMBERS, geometry.MOST), (64, 8), (64, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_after_any_changes_it_is_what_comparing_all_with_all_gives(kind, numbers, most, monkeypatch):
    monkeypatch.setattr(geometry, "NUMBERS", numbers)  # 64: many small blocks
    monkeypatch.setattr(geometry, "MOST", most)
    rng = generator(0, kind)
    rows = table(kind, 40, rng)
    found = nearest_of_all(rows, lengths(rows))
    check(found, rows)
    for number in range(60):
        changed = np.sort(rng.choice(40, size=1 + number % 9, replace=False))
        rows = rows.copy()
        rows[changed] = table(kind, len(changed), rng)
        before = (found.cosine.tobytes(), found.whom.tobytes())
        new = update_nearest(rows, lengths(rows), found, changed)
        assert (found.cosine.tobytes(), found.whom.tobytes()) == before
        found = new
        check(found, rows)


@pytest.mark.parametrize("kind", KINDS)
def test_among_some_rows_it_is_what_comparing_these_gives(kind, monkeypatch):
    rng = generator(1, kind)
    rows = table(kind, 30, rng)
    found = nearest_of_all(rows, lengths(rows))
    for share, most in ((0.9, geometry.MOST), (0.9, 2), (0.5, 3), (0.1, 1)):
        monkeypatch.setattr(geometry, "MOST", most)
        some = rng.random(30) < share
        some[:2] = True
        here = nearest_among(rows, lengths(rows), found, some)
        np.testing.assert_allclose(here.cosine[some], nearest_similarity(rows[some]), rtol=0, atol=1e-14)
        mutual = np.flatnonzero(some & (here.whom >= 0) & (here.whom[here.whom] == np.arange(30)))
        assert (here.cosine[mutual] == here.cosine[here.whom[mutual]]).all()


def test_few_products_are_needed_where_few_rows_change(monkeypatch):
    rng = generator(2, "few")
    rows = table("no two alike", 400, rng)
    found, counted = nearest_of_all(rows, lengths(rows)), []
    plain = geometry.products
    monkeypatch.setattr(geometry, "products", lambda *a: counted.append(plain(*a).size) or plain(*a))
    rows[:4] = table("no two alike", 4, rng)
    check(update_nearest(rows, lengths(rows), found, np.arange(4)), rows)
    assert sum(counted) < 0.15 * 400**2


@pytest.mark.parametrize("sketch", [None, 5])
@pytest.mark.parametrize("policy", [Minimax, MaxSimilarity])
def test_the_choice_is_that_of_all_with_all_whoever_is_away(policy, sketch):
    rng, n, k = generator(3, "policy"), 30, 6
    part = policy(sketch=sketch)
    view = ServerView.of(np.arange(n) * 2 + 1, np.full(n, 10))
    state = part.init(view)
    for number in range(1, 25):
        here = replace(view, available=rng.random(n) < 0.8, round=number)
        probe = part.probe(state, here, k, rng)
        asked = view.ids[:0] if probe is None else probe.ids
        asked = asked[rng.random(len(asked)) < 0.9]  # some answers get lost
        told = ClientResults(
            asked, rng.standard_normal((len(asked), 8)).astype(np.float32), {}, round=number, probe=True
        )
        state = part.observe(state, told)
        chosen = part.select(state, here, k, rng).ids
        known = here.available & (state["heard"] > 0)
        first = first_by_similarity(
            state["rows"][known], min(k, int(known.sum())), most_similar=policy is MaxSimilarity
        )
        silent = view.ids[here.available & ~known][: max(0, k - len(first))]
        assert sorted(chosen) == sorted([*view.ids[known][first], *silent])
        told = ClientResults(
            np.sort(chosen), rng.standard_normal((len(chosen), 8)).astype(np.float32), {}, round=number
        )
        state = part.observe(state, told)
        kept = Nearest(state["nearest"], state["whom"])
        np.testing.assert_allclose(kept.cosine, nearest_similarity(state["rows"]), rtol=0, atol=10.0**-DECIMALS)


def test_a_state_without_it_still_chooses():
    """Checkpoints of earlier versions hold the table only."""
    part, view = Minimax(), ServerView.of(np.arange(5), np.full(5, 10))
    rows = table("no two alike", 5, generator(4, "old"))
    state = part.observe(part.init(view), ClientResults(view.ids, rows, {}, probe=True))
    old = {key: state[key] for key in ("ids", "rows", "heard")}
    assert part.select(old, view, 2, None).ids.tolist() == sorted(part.select(state, view, 2, None).ids.tolist())
    again = part.observe(old, ClientResults(view.ids[:1], rows[:1], {}))
    np.testing.assert_allclose(again["nearest"], state["nearest"], atol=1e-14)
