"""The order of who uploads an example for the least energy, and covering in an order."""

from dataclasses import replace

import numpy as np
import pytest

from fedreach._util.errors import ConfigError, InfeasibleError
from fedreach._util.streams import generator
from fedreach.wireless import exact
from fedreach.wireless.baselines import cover, energy_per_example, sqrt_sort
from fedreach.wireless.problem import AllocationProblem

from .brute import brute, drawn


def test_the_cheapest_come_first_until_there_are_enough():
    # sqrt(P tau) / d: 1/10, 2/10, 3/30, 1/5; so 0, 2, 1, 3 as ids decide between 0 and 2
    problem = AllocationProblem([1.0, 4.0, 1.0, 1.0], [1.0, 1.0, 9.0, 1.0], *np.ones((2, 4)), [10, 10, 30, 5])
    np.testing.assert_allclose(energy_per_example(problem), [0.1, 0.2, 0.1, 0.2], rtol=1e-15)
    assert sqrt_sort(problem, 10).tolist() == [0]
    assert sqrt_sort(problem, 11).tolist() == [0, 2]
    assert sqrt_sort(problem, 41).tolist() == [0, 1, 2]
    assert sqrt_sort(problem, 55).tolist() == [0, 1, 2, 3]
    renamed = replace(problem, ids=np.array([9, 1, 3, 4]))
    assert sqrt_sort(renamed, 10).tolist() == [2]


def test_renaming_the_clients_renames_the_set():
    problem, order = drawn(20, generator(1, "clients")), generator(2, "order").permutation(20)
    before = sqrt_sort(problem, 1000)
    after = sqrt_sort(replace(problem.only(order), ids=problem.ids), 1000)
    assert sorted(order[after]) == before.tolist()


def test_where_only_the_energy_to_upload_counts_its_cost_is_the_square_of_the_sum_of_roots():
    problem = replace(drawn(6, generator(3, "clients"), time_weight=1e-9), cycles=np.zeros(6))
    least = np.sqrt(problem.power_watts * problem.upload_seconds).sum() ** 2
    assert exact.allocate(problem).cost == pytest.approx(least, rel=1e-6)


def test_of_clients_with_equal_sizes_it_is_then_the_best_set():
    for seed in range(10):
        problem = drawn(8, generator(seed, "clients"), time_weight=1e-9)
        problem = replace(problem, cycles=np.zeros(8), num_examples=np.full(8, 10))
        assert tuple(sqrt_sort(problem, 35)) == brute(problem, 35)[1][0]


def test_a_client_without_examples_is_not_needed():
    problem = replace(drawn(3, generator(0, "clients")), num_examples=np.array([0, 5, 5]))
    assert energy_per_example(problem)[0] == np.inf
    assert sqrt_sort(problem, 10).tolist() == [1, 2]


def test_covering_keeps_whom_it_is_given_and_adds_no_more_than_it_needs():
    problem, order = AllocationProblem(*np.ones((4, 5)), [1, 2, 3, 4, 5]), np.array([4, 3, 2, 1, 0])
    assert cover(problem, 3, order, first=np.array([0, 1])).tolist() == [0, 1]
    assert cover(problem, 4, order, first=np.array([0, 1])).tolist() == [0, 1, 4]
    assert cover(problem, 9, order, first=np.array([0, 1])).tolist() == [0, 1, 3, 4]
    assert cover(problem, 15, order).tolist() == [0, 1, 2, 3, 4]


def test_what_nobody_holds_is_refused():
    problem = drawn(3, generator(0, "clients"))
    with pytest.raises(
        InfeasibleError, match=r"min_examples must be at most .*, the number of examples of all 3 clients; got 100000"
    ):
        sqrt_sort(problem, 100_000)
    for wrong in (0, -1, 2.5, True, "many"):
        with pytest.raises(ConfigError, match="min_examples must be a whole number, at least 1"):
            sqrt_sort(problem, wrong)
