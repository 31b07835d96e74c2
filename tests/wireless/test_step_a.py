"""The best shares of the band at fixed frequencies."""

from itertools import chain, combinations

import numpy as np
import pytest

from fedreach._util.streams import generator
from fedreach.wireless import exact
from fedreach.wireless.baselines import best_shares
from fedreach.wireless.problem import Allocation, AllocationProblem

from .brute import drawn, scaled

# design/golden.json, "csra6"
CSRA6 = AllocationProblem(
    upload_seconds=[0.06, 0.08, 0.055, 0.12, 0.07, 0.065],
    power_watts=[0.2, 0.5, 1.0, 0.1, 2.0, 0.3],
    cycles=[2e8, 1.5e8, 3e8, 1e8, 2.5e8, 1.8e8],
    max_hertz=[3e9, 2e9, 5e9, 4e9, 2.5e9, 3.5e9],
    num_examples=[700, 650, 900, 400, 800, 750],
)


def price(problem, share, hertz):
    return Allocation.of(problem, np.arange(len(problem)), share, hertz).cost


def cases():
    for seed in range(20):
        rng = generator(seed, "cases")
        problem = drawn(int(rng.integers(1, 9)), rng, slow=seed % 2 == 0, energy_weight=float(10 ** rng.uniform(-3, 2)))
        yield problem, problem.max_hertz * rng.uniform(0.05, 1.0, len(problem))
    yield drawn(5, generator(0, "cases"), energy_weight=0.0), np.full(5, 1e9)
    yield scaled(drawn(5, generator(0, "cases")), cycles=0.0), np.full(5, 1e9)


def test_the_best_sets_of_step_a_are_those_of_the_notes():
    # design/algorithms.md 5.5: the optimum over all selections and the next three
    subsets = chain.from_iterable(combinations(range(6), n) for n in range(1, 7))
    costs = {}
    for chosen in subsets:
        some = CSRA6.only(list(chosen))
        if some.num_examples.sum() >= 2000:
            hertz = some.max_hertz / 4
            costs[chosen] = price(some, best_shares(some, hertz), hertz)
    best = sorted(costs, key=costs.get)
    assert best[0] == (0, 1, 5)
    expected = [0.9673298619, 1.2594130299, 1.2680111785, 1.2781953324]
    np.testing.assert_allclose([costs[chosen] for chosen in best[:4]], expected, rtol=1e-9)
    some = CSRA6.only([0, 1, 5])
    share = best_shares(some, some.max_hertz / 4)
    np.testing.assert_allclose(share, [0.2918063345918909, 0.46435362983110745, 0.24384003557700148], atol=1e-8)


def test_moving_a_little_band_between_any_two_clients_does_not_pay():
    for problem, hertz in cases():
        share = best_shares(problem, hertz)
        least = price(problem, share, hertz)
        assert share.sum() == pytest.approx(1.0, rel=1e-12)
        for i, j in combinations(range(len(problem)), 2):
            for step in (1e-2, 1e-4, -1e-4, -1e-2):
                moved = share.copy()
                moved[[i, j]] += np.array([step, -step]) * share[[i, j]].min()
                assert price(problem, moved, hertz) >= least * (1 - 1e-11)


def test_random_shares_are_never_cheaper():
    for problem, hertz in cases():
        least = price(problem, best_shares(problem, hertz), hertz)
        numbers = generator(0, "shares")
        for _ in range(200):
            assert price(problem, numbers.dirichlet(np.ones(len(problem))), hertz) >= least * (1 - 1e-12)


def test_at_the_frequencies_of_the_joint_optimum_the_shares_are_its_shares():
    problem = drawn(6, generator(3, "cases"))
    joint = exact.allocate(problem)
    np.testing.assert_allclose(best_shares(problem, joint.hertz), joint.share, rtol=1e-5)


def test_where_joules_are_free_all_clients_are_ready_at_once():
    problem = drawn(5, generator(0, "cases"), energy_weight=0.0)
    hertz = problem.max_hertz / 3
    ready = problem.upload_seconds / best_shares(problem, hertz) + problem.cycles / hertz
    np.testing.assert_allclose(ready, ready[0], rtol=1e-12)


def test_where_seconds_are_nearly_free_shares_are_in_proportion_to_the_root_of_the_energy():
    problem = drawn(5, generator(1, "cases"), time_weight=1e-12)
    root = np.sqrt(problem.power_watts * problem.upload_seconds)
    np.testing.assert_allclose(best_shares(problem, problem.max_hertz), root / root.sum(), rtol=1e-9)
