"""Clients with a largest acceptable energy (table I of the CSRA paper), against general solvers and brute force."""

import shutil
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import minimize

from fedreach._util.errors import ConfigError, FedReachError, InfeasibleError
from fedreach._util.streams import generator
from fedreach.experiment.load import load
from fedreach.experiment.run import run
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import RoundRow
from fedreach.wireless import solve as solver
from fedreach.wireless.candidates import pad_sets
from fedreach.wireless.exact import Needs, allocate, allocate_batch, cost_of_needs
from fedreach.wireless.planning import Question, plan, read_clients
from fedreach.wireless.problem import Allocation
from fedreach.wireless.radio import Radio
from fedreach.wireless.solve import solve

from .brute import drawn


def rng(key=0):
    return generator(key, "caps")


def capped(K, seed, share, **options):
    """Return K clients with energy caps at a share of what each spends without caps, half of them above it."""
    problem = drawn(K, rng(seed), **options)
    free = allocate(problem)
    spent = free.upload_joules + free.compute_joules
    return replace(problem, max_joules=spent * np.where(np.arange(K) % 2 == 0, share, 3.0))


def by_slsqp(problem):
    """Return the least cost of all clients by a general solver, over T and the upload times; inf if it finds none."""
    P, W, tau, E = problem.power_watts, problem.cycles, problem.upload_seconds, problem.max_joules
    finite, eps = np.isfinite(E), problem.capacitance

    def joules(z):
        return P * z[1:] + eps * W**3 / np.maximum(z[0] - z[1:], 1e-9) ** 2

    constraints = [
        {"type": "ineq", "fun": lambda z: 1 - np.sum(tau / z[1:])},
        {"type": "ineq", "fun": lambda z: z[0] - z[1:] - W / problem.max_hertz},
        {"type": "ineq", "fun": lambda z: (1 - joules(z) / E)[finite]},
    ]
    best = np.inf
    for factor in (1.0, 2.0, 5.0, 20.0):
        u = len(problem) * tau * 1.01
        start = np.concatenate([[factor * (u + W / problem.max_hertz).max()], u])
        found = minimize(
            lambda z: problem.time_weight * z[0] + problem.energy_weight * np.sum(joules(z)),
            start, constraints=constraints, bounds=[(1e-6, None)] * len(start), method="SLSQP",
            options={"maxiter": 500, "ftol": 1e-14},
        )  # fmt: skip
        if min(np.min(c["fun"](found.x), initial=0.0) for c in constraints) > -1e-8:
            best = min(best, found.fun)
    return best


def is_within(allocation, problem):
    spent = allocation.upload_joules + allocation.compute_joules
    return (
        allocation.share.sum() <= 1 + 1e-12
        and np.all(allocation.hertz <= problem.max_hertz * (1 + 1e-12))
        and np.all(spent <= problem.max_joules * (1 + 1e-9))
    )


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("energy_weight", [0.0, 0.1, 1.0])
def test_the_allocation_is_that_of_a_general_solver(slow, energy_weight):
    binding = 0
    for seed in range(6):
        problem = capped(2 + seed % 3, seed, 0.8, slow=slow, energy_weight=energy_weight)
        try:
            found = allocate(problem)
        except InfeasibleError:
            assert np.sum(problem.power_watts * problem.upload_seconds / problem.max_joules) >= 1
            continue
        assert is_within(found, problem)
        assert found.cost == pytest.approx(by_slsqp(problem), rel=2e-6)
        free = allocate(replace(problem, max_joules=np.full(len(problem), np.inf)))
        assert found.cost >= free.cost * (1 - 1e-12)
        binding += found.cost > free.cost * (1 + 1e-6)
        batch = allocate_batch(problem, np.arange(len(problem))[None], np.ones((1, len(problem)), bool))
        assert batch[0][0] == pytest.approx(found.cost, rel=1e-9)
    assert binding or (slow and energy_weight)


def test_caps_that_do_not_bind_change_nothing():
    problem = drawn(5, rng())
    loose = replace(problem, max_joules=np.full(5, 1e6))
    assert allocate(loose).cost == pytest.approx(allocate(problem).cost, rel=1e-12)
    assert solve(loose, 300).allocation.ids.tolist() == solve(problem, 300).allocation.ids.tolist()


def test_no_random_allocation_within_the_caps_is_cheaper():
    problem = capped(3, 1, 0.9)
    least, draw = allocate(problem), rng(1)
    cheaper = tried = 0
    for _ in range(2_000):
        share = np.maximum(least.share * draw.uniform(0.7, 1.3, 3), 1e-9)
        hertz = least.hertz * draw.uniform(0.7, 1.3, 3)
        other = Allocation.of(problem, slice(None), share / max(1.0, share.sum()), np.minimum(hertz, problem.max_hertz))
        if is_within(other, problem):
            tried += 1
            cheaper += other.cost < least.cost * (1 - 1e-9)
    assert tried > 20
    assert cheaper == 0


def test_the_cost_of_a_client_has_its_slope_and_is_infinite_where_computing_alone_exceeds_the_cap():
    """Tangents with another slope would not be bounds, and the search could prune the best set."""
    problem = capped(6, 2, 0.7)
    needs, T, step, limited = Needs.of(problem), allocate(problem).seconds, 1e-6, 0
    for mu in (0.01, 0.1, 1.0, 10.0):
        lower, at, upper = (cost_of_needs(needs, T + d, mu) for d in (-step, 0.0, step))
        np.testing.assert_allclose((upper.cost - lower.cost) / (2 * step), at.slope, rtol=1e-4, atol=1e-6)
        spent = problem.power_watts * at.upload_seconds + needs.caps.work / (T - at.upload_seconds) ** 2
        assert np.all(spent <= problem.max_joules * (1 + 1e-9))
        limited += np.sum(spent > problem.max_joules * (1 - 1e-9))
    assert limited > 3
    early = np.sqrt(needs.caps.work / problem.max_joules)
    slower = early > 1.01 * problem.cycles / problem.max_hertz
    assert slower.any()
    assert np.isinf(cost_of_needs(needs, 0.999 * early, 1.0).cost[slower]).all()


@pytest.mark.parametrize("enumerated", [True, False])
def test_the_best_set_is_that_of_brute_force(enumerated, monkeypatch):
    """Clients that are in the best set without caps are out of it, where others are cheaper within theirs."""
    if not enumerated:
        monkeypatch.setattr(solver, "FEW_COVERS", 0)
    changed = infeasible = 0
    for seed in range(6):
        problem = drawn(8, rng(seed))
        free = solve(problem, 400)
        spent = problem.power_watts * problem.upload_seconds / 0.25
        problem = replace(problem, max_joules=spent * rng(seed).uniform(0.4, 2.0, 8))
        sets = [np.array(rows) for size in range(1, 9) for rows in combinations(range(8), size)]
        costs = allocate_batch(problem, *pad_sets([s for s in sets if problem.num_examples[s].sum() >= 400]))[0]
        if np.isinf(costs).all():
            infeasible += 1
            with pytest.raises(InfeasibleError, match="max_joules must allow a set of clients"):
                solve(problem, 400)
            continue
        solution = solve(problem, 400)
        assert solution.cost == pytest.approx(min(costs), rel=2e-6)
        assert solution.lower_bound <= min(costs) * (1 + 1e-12)
        assert is_within(solution.allocation, problem.only(problem.rows(solution.allocation.ids)))
        changed += solution.allocation.ids.tolist() != free.allocation.ids.tolist()
    assert changed >= 2
    assert infeasible < 3


def test_what_is_infeasible_or_no_energy_is_refused():
    problem = drawn(3, rng())
    with pytest.raises(InfeasibleError, match=r"they need 3 times the whole bandwidth\. Raise max_joules"):
        allocate(replace(problem, max_joules=problem.power_watts * problem.upload_seconds))
    with pytest.raises(ConfigError, match=r"max_joules must be positive and below 1e\+100; client 1 has 0"):
        replace(problem, max_joules=np.array([1.0, 0.0, 1.0]))
    assert len(replace(problem, max_joules=np.array([1.0, 2.0, 3.0])).only([2, 0]).max_joules) == 2


# -------------------- Radio cells and tables


def test_caps_are_drawn_from_their_range_and_change_no_other_draw():
    plain, capped_ = Radio().devices(50, 3), Radio(max_joules=(2.0, 9.0)).devices(50, 3)
    assert np.isinf(plain.max_joules).all()
    assert 2 <= capped_.max_joules.min() < 3 < 8 < capped_.max_joules.max() <= 9
    for name in ("distance_meters", "power_watts", "max_hertz", "cycles_per_bit"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(capped_, name))
    with pytest.raises(ConfigError, match=r"Radio\.max_joules must be a range \[low, high\]; got \(9\.0, 2\.0\)"):
        Radio(max_joules=(9.0, 2.0))


def rounds(home, *overrides):
    options = ["rounds=3", "radio={time_weight=100.0}", "method.cohort_size=3", *overrides]
    run(load(home / "tiny.toml", options).resolved(), seed=0, folder=home / "x", base=home)
    return [row for row in RunFolder(home / "x").records(RoundRow) if row.round]


def test_the_rounds_of_a_run_keep_every_client_within_its_cap(home):
    free = [row.joules for row in rounds(home)]
    shutil.rmtree(home / "x")
    cap = 0.5 * max(free) / 3
    capped_rounds = rounds(home, f"radio.max_joules=[{cap}, {cap}]")
    assert max(row.joules for row in capped_rounds) <= 3 * cap * (1 + 1e-6) < max(free)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["radio.max_joules=[1e-9, 1e-9]"], "max_joules must allow 3 clients to share the bandwidth"),
        (
            ["radio.max_joules=[1e-9, 1e-9]", "method.allocation=equal"],
            "EqualShares.allocate must keep each client",
        ),
        (["radio.max_joules=[1.0, 2.0]", "method.selection=power_of_choice"], "PowerOfChoice also asks clients before"),
        (["radio.max_joules=[1e-9, 1e-9]", "method.selection={name='csra', threshold=9.0}"], "max_joules must allow a"),
    ],
)
def test_what_exceeds_a_cap_ends_the_run_in_words(home, overrides, says):
    with pytest.raises(FedReachError, match=says):
        rounds(home, *overrides)


def test_a_table_of_clients_may_have_caps(tmp_path):
    header = "num_examples,upload_seconds,power_watts,cycles,max_hertz"
    rows = ["100,0.1,0.5,1e8,2e9", "100,0.1,0.5,1e8,2e9", "100,0.3,1,2e8,3e9"]
    question = Question(min_examples=100, time_weight=10.0)
    chosen = {}
    for caps in (None, (1e-3, 5.0, 5.0)):
        lines = [header, *rows] if caps is None else [f"{header},max_joules"]
        lines += [] if caps is None else [f"{row},{cap}" for row, cap in zip(rows, caps, strict=True)]
        (tmp_path / "clients.csv").write_text("\n".join(lines), encoding="utf-8")
        chosen[caps] = plan(read_clients(tmp_path / "clients.csv"), question).solution.allocation.ids.tolist()
    assert [*chosen.values()] == [[0], [1]]
