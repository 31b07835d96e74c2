"""Few sets are all tried: none is missed, none superfluous, and the proof agrees with them."""

import numpy as np
import pytest

from fedreach._util.streams import generator
from fedreach.wireless.solve import minimal_covers, solve

from .brute import brute
from .brute import minimal_covers as every_set_in_turn
from .instances import KINDS, odd


@pytest.mark.sampled(4)
@pytest.mark.parametrize("draw", range(40))
def test_every_minimal_cover_is_found_once(draw):
    rng = generator(draw, "covers")
    sizes = rng.integers(0, (3, 10, 1000)[draw % 3], int(rng.integers(1, 10)))
    sizes[0] += 1
    demand = int(rng.integers(1, sizes.sum() + 1))
    found = [tuple(rows.tolist()) for rows in minimal_covers(sizes, demand, max_sets=10**6)]
    assert sorted(found) == sorted(every_set_in_turn(sizes, demand))
    assert minimal_covers(sizes, demand, max_sets=len(found) - 1) is None
    assert len(minimal_covers(sizes, demand, max_sets=len(found))) == len(found)


def test_a_million_clients_are_too_many_at_once():
    assert minimal_covers(np.full(10**6, 100), 10**7, max_sets=200) is None


@pytest.mark.parametrize("kind", KINDS)
def test_trying_all_and_proving_agree(kind, monkeypatch):
    problem, demand = odd(kind, 7, generator(3, kind))
    tried = solve(problem, demand)
    assert (tried.status, tried.nodes, tried.gap) == ("optimal", 0, 0)
    assert tried.cost == pytest.approx(brute(problem, demand)[0][0], rel=1e-12)
    monkeypatch.setattr("fedreach.wireless.solve.FEW_COVERS", 0)
    proven = solve(problem, demand)
    assert proven.nodes > 0 or proven.cost == pytest.approx(tried.cost, rel=1e-12)
    assert proven.cost == pytest.approx(tried.cost, rel=1e-6)
