"""The whole: the optimum of problems made to be hard, a proof at any size, and an answer at any time limit."""

import numpy as np
import pytest

from fedreach._util.errors import ConfigError, InfeasibleError
from fedreach._util.streams import generator
from fedreach.wireless.solve import solve

from .brute import brute
from .instances import KINDS, gigahertz, megahertz, odd


@pytest.fixture(autouse=True, scope="module")
def proof_even_of_few_clients():
    """Let no problem be so small that all its sets are tried: the proof is what is tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedreach.wireless.solve.FEW_COVERS", 0)
        yield


def check(problem, demand, solution, optimum):
    rows = problem.rows(solution.allocation.ids)
    assert problem.num_examples[rows].sum() >= demand
    assert solution.lower_bound <= optimum * (1 + 1e-12)
    assert solution.lower_bound <= solution.cost
    assert solution.cost >= optimum * (1 - 1e-12)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("draw", range(5))
@pytest.mark.parametrize("kind", KINDS)
def test_hard_problems_are_solved(kind, draw):
    rng = generator(draw, "hard")
    problem, demand = odd(kind, int(rng.integers(1, 10)), rng)
    costs, _ = brute(problem, demand)
    solution = solve(problem, demand)
    check(problem, demand, solution, costs[0])
    assert solution.status == "optimal"
    assert solution.cost == pytest.approx(costs[0], rel=1e-6)
    assert solution.gap <= 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_proof_the_bound_holds(kind):
    problem, demand = odd(kind, 8, generator(7, kind))
    costs, _ = brute(problem, demand)
    solution = solve(problem, demand, max_nodes=1)
    check(problem, demand, solution, costs[0])
    assert solution.status in ("optimal", "time_limit")
    assert solution.cost <= 1.05 * costs[0]


@pytest.mark.parametrize("clients", [20, 80, 1000])
@pytest.mark.parametrize("cell", [gigahertz, megahertz])
def test_cells_as_in_the_paper_are_solved_to_a_proven_gap(cell, clients):
    problem, demand = cell(clients, 1)
    solution = solve(problem, demand)
    assert solution.status == "optimal"
    assert solution.gap <= 1e-6
    assert solve(problem, demand, max_nodes=1).lower_bound <= solution.cost


@pytest.mark.parametrize("kind", ["identical", "two_types", "proportional", "no_joules", "wide"])
def test_forty_clients_that_are_hard_to_tell_apart_are_solved(kind):
    problem, demand = odd(kind, 40, generator(1, kind))
    assert solve(problem, demand).status == "optimal"


@pytest.mark.slow
@pytest.mark.parametrize("cell", [gigahertz, megahertz])
@pytest.mark.parametrize(("clients", "tolerance"), [(10_000, 1e-5), (100_000, 1e-3)])
def test_large_cells_are_solved(cell, clients, tolerance):
    problem, demand = cell(clients, 1)
    assert solve(problem, demand, tolerance=tolerance).gap <= tolerance


@pytest.mark.parametrize("limit", [{"time_limit_seconds": 1e-6}, {"max_nodes": 1}, {"max_nodes": 3}])
def test_a_proof_that_is_cut_short_leaves_a_set_and_a_valid_bound(limit):
    problem, demand = gigahertz(200, 1)
    optimum = solve(problem, demand)
    solution = solve(problem, demand, **limit)
    assert solution.status == "time_limit"
    assert solution.nodes <= limit.get("max_nodes", 0)
    assert 0 < solution.lower_bound <= optimum.cost
    check(problem, demand, solution, optimum.lower_bound)


def test_the_same_problem_has_the_same_answer():
    problem, demand = megahertz(60, 2)
    first, second = solve(problem, demand), solve(problem, demand)
    assert first.nodes == second.nodes
    assert first.lower_bound == second.lower_bound
    assert (first.allocation.ids == second.allocation.ids).all()
    assert (first.allocation.share == second.allocation.share).all()


def test_a_wider_tolerance_needs_no_more_work():
    problem, demand = gigahertz(80, 4)
    loose, tight = solve(problem, demand, tolerance=1e-2), solve(problem, demand, tolerance=1e-9)
    assert loose.nodes <= tight.nodes
    assert loose.gap <= 1e-2
    assert tight.gap <= 1e-9


def test_one_client_alone():
    problem, _ = gigahertz(1, 0)
    solution = solve(problem, 1)
    assert solution.allocation.share.tolist() == [1.0]
    assert solution.status == "optimal"


def test_clients_keep_their_ids():
    problem, _ = gigahertz(12, 0)
    rows = np.array([1, 3, 4, 7, 8, 9, 11])
    solution = solve(problem.only(rows), 200)
    assert set(solution.allocation.ids) <= set(rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_examples": 0}, "min_examples must be a whole number, at least 1; got 0"),
        ({"min_examples": 10.0}, "min_examples must be a whole number"),
        ({"min_examples": True}, "min_examples must be a whole number"),
        ({"tolerance": 0.0}, r"tolerance must be in \[1e-9, 1\)"),
        ({"tolerance": float("nan")}, r"tolerance must be in \[1e-9, 1\)"),
        ({"time_limit_seconds": 0}, "time_limit_seconds must be in"),
        ({"max_nodes": 0}, "max_nodes must be a whole number, at least 1, or None; got 0"),
    ],
)
def test_what_is_out_of_range_is_refused(arguments, message):
    problem, demand = gigahertz(4, 0)
    with pytest.raises(ConfigError, match=message):
        solve(problem, **({"min_examples": demand} | arguments))


def test_too_few_examples_are_named():
    problem, _ = gigahertz(4, 0)
    total = int(problem.num_examples.sum())
    with pytest.raises(
        InfeasibleError, match=f"at most {total}, the number of examples of all 4 clients; got {total + 1}"
    ):
        solve(problem, total + 1)
