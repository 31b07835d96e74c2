"""Laws of the whole problem: every set of clients in turn, SCIP, and how the cost must move with each of the inputs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.errors import ConfigError, InfeasibleError
from fedreach.wireless.radio import bits_per_second, path_gain, watts
from fedreach.wireless.solve import solve

from .benchmarked import oracles
from .brute import G1, G2, brute, drawn, scaled

TOLERANCE = 1e-9
few = settings(max_examples=8, deadline=None)


@pytest.fixture(autouse=True, scope="module")
def proof_even_of_few_clients():
    """Let no problem be so small that all its sets are tried: the proof is what is tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedreach.wireless.solve.FEW_COVERS", 0)
        yield


def random_cells(count, seed):
    """Yield problems with demands: 3 to 12 clients, 10 to 80% of the examples, prices and bands over two decades."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        prices = dict(zip(("time_weight", "energy_weight"), 10 ** rng.uniform(-1, 1, 2), strict=True))
        problem = drawn(int(rng.integers(3, 13)), rng, slow=i % 2 == 0, **prices)
        problem = scaled(problem, upload_seconds=10 ** rng.uniform(-1, 1))
        yield problem, max(1, int(problem.num_examples.sum() * rng.uniform(0.1, 0.8)))


def agrees_with_brute(problem, min_examples):
    """Check the answer against all sets of clients, and that it is one."""
    costs, covers = brute(problem, min_examples)
    solution = solve(problem, min_examples, tolerance=TOLERANCE)
    best = solution.allocation
    assert solution.status == "optimal"
    assert solution.cost == pytest.approx(costs[0], rel=1e-9)
    assert solution.lower_bound <= costs[0] * (1 + 1e-12)
    assert solution.lower_bound >= costs[0] * (1 - 2e-9)
    if len(costs) > 1 and costs[1] > costs[0] * (1 + 1e-6):
        # Beside it, only clients without examples, who would cost something, could take part.
        assert tuple(problem.rows(best.ids)) == covers[0]
    mine = problem.rows(best.ids)
    assert problem.num_examples[mine].sum() >= min_examples
    assert best.share.sum() == pytest.approx(1.0, abs=1e-12)
    assert (best.share > 0).all()
    assert (best.hertz <= problem.max_hertz[mine]).all()
    assert (best.upload_seconds + best.compute_seconds <= best.seconds * (1 + 1e-12)).all()
    assert best.cost == pytest.approx(
        problem.time_weight * best.seconds + problem.energy_weight * best.joules, rel=1e-14
    )


def cost(problem, min_examples):
    """Return the cost of the best set."""
    return solve(problem, min_examples, tolerance=TOLERANCE).cost


@st.composite
def cells(draw):
    """Draw a problem of 2 to 8 clients and a demand that they can fulfil."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    prices = {name: 10.0 ** draw(st.integers(-1, 1)) for name in ("time_weight", "energy_weight")}
    problem = drawn(draw(st.integers(2, 8)), rng, slow=draw(st.booleans()), **prices)
    return problem, max(1, int(problem.num_examples.sum() * draw(st.floats(0.1, 1.0))))


factors = st.floats(1.01, 30.0)


def test_the_worked_examples():
    """Goldens G1, G3 and G2 of the design notes."""
    for problem, demand, expected, ids in (
        (G1, 300, 1.008962065383, [0, 4]),
        (G1, 650, 2.649697293704, [0, 1, 2, 3, 4]),
        (G2, 210, 26.992656771198, [1, 2, 4]),
    ):
        solution = solve(problem, demand)
        assert solution.cost == pytest.approx(expected, rel=1e-12)
        assert solution.allocation.ids.tolist() == ids
        assert solution.status == "optimal"
        assert solution.gap <= 1e-6


def test_every_set_in_turn_has_no_better_one():
    for problem, demand in random_cells(40, seed=1):
        agrees_with_brute(problem, demand)


@pytest.mark.slow
def test_every_set_in_turn_has_no_better_one_a_thousand_times():
    for problem, demand in random_cells(1000, seed=2):
        agrees_with_brute(problem, demand)


def test_the_bound_without_a_proof_is_one_too():
    for problem, demand in random_cells(40, seed=3):
        best = brute(problem, demand)[0][0]
        loose = solve(problem, demand, max_nodes=1)
        assert loose.lower_bound <= best * (1 + 1e-12) <= loose.cost * (1 + 2e-12)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
def test_a_proof_claims_no_more_than_was_proven(tolerance):
    """Sets below the cost, less the tolerance, were ruled out; of those between nothing is known, nor said."""
    for problem, demand in random_cells(12, seed=4):
        solution = solve(problem, demand, tolerance=tolerance)
        assert solution.status == "optimal"
        assert solution.gap == pytest.approx(0.99 * tolerance, rel=1e-3)
        loose = solve(problem, demand, tolerance=tolerance, max_nodes=1)
        assert loose.gap >= 0.99 * tolerance * (1 - 1e-3)


def agrees_with_scip(K, seed, slow):
    """SCIP lets constraints be violated a little, and so is lower by up to about 1e-7."""
    pytest.importorskip("pyscipopt", reason="PySCIPOpt is not installed")
    problem = drawn(K, np.random.default_rng(seed), slow=slow)
    demand = int(0.25 * problem.num_examples.sum())
    best = solve(problem, demand, tolerance=1e-9).cost
    assert oracles.scip(problem, demand, time_limit_seconds=300.0) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize(("K", "slow"), [(6, False), (10, True), (14, False)])
def test_scip_agrees(K, slow):
    agrees_with_scip(K, K, slow)


@pytest.mark.slow
@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("K", [20, 30, 40])
def test_scip_agrees_on_more_clients(K, slow):
    agrees_with_scip(K, K, slow)


@pytest.mark.parametrize(
    "change",
    [
        {"cycles": 0.0},
        {"cycles": np.array([0, 1, 0, 1, 1])},
        {"energy_weight": 0.0},
        {"energy_weight": 0.0, "cycles": 0.0},
        {"time_weight": 1e-4},
        {"time_weight": 1e4},
        {"max_hertz": 1e-3},
        {"max_hertz": 1e6},
        {"num_examples": np.array([1, 0, 1, 0, 1])},
        {"upload_seconds": 1e-6, "max_hertz": 1e6, "capacitance": 1e-18},
        {"upload_seconds": 1e6, "max_hertz": 1e-6, "capacitance": 1e18},
    ],
    ids=",".join,
)
def test_the_edges_are_no_exceptions(change):
    edge = scaled(G1, **change)
    total = int(edge.num_examples.sum())
    for demand in (1, total // 3, total - 1, total):
        agrees_with_brute(edge, demand)


def test_one_client_takes_part_alone():
    agrees_with_brute(G1.only([2]), 80)
    with pytest.raises(InfeasibleError, match="81"):
        solve(G1.only([2]), 81)


@pytest.mark.parametrize("count", [2, 7, 12])
def test_of_clients_alike_as_many_as_needed_take_part(count):
    alike = replace(G1.only([1] * count), ids=np.arange(count))
    for needed in range(1, count + 1):
        solution = solve(alike, 150 * needed - 3)
        assert len(solution.allocation.ids) == needed
        assert solution.cost == pytest.approx(brute(alike, 150 * needed - 3)[0][0], rel=1e-12)


def test_a_client_without_examples_never_takes_part():
    problem = replace(G1, num_examples=np.array([100, 0, 80, 0, 200]))
    assert not {1, 3} & set(solve(problem, 380).allocation.ids.tolist())


@pytest.mark.parametrize("demand", [0, -3, 2.5, "many", True])
def test_a_demand_that_is_no_number_of_examples_is_refused(demand):
    with pytest.raises(ConfigError, match="min_examples"):
        solve(G1, demand)


@few
@given(cells(), st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(cell, random):
    problem, demand = cell
    order = np.array(random.sample(range(len(problem)), len(problem)))
    here = solve(problem, demand, tolerance=TOLERANCE)
    there = solve(replace(problem.only(order), ids=np.arange(len(problem))), demand, tolerance=TOLERANCE)
    assert there.cost == pytest.approx(here.cost, rel=1e-12)
    assert sorted(order[there.allocation.ids]) == here.allocation.ids.tolist()


@few
@given(cells(), st.floats(1e-3, 1e3))
def test_dearer_seconds_and_joules_cost_more_alike(cell, factor):
    problem, demand = cell
    dearer = scaled(problem, time_weight=factor, energy_weight=factor)
    assert cost(dearer, demand) == pytest.approx(factor * cost(problem, demand), rel=1e-9)


@few
@given(cells(), st.floats(1e-3, 1e3))
def test_a_slower_world_costs_more_alike(cell, factor):
    """Upload times l tau, frequencies f / l, joules a cycle l: then T and E are l times as large."""
    problem, demand = cell
    slower = scaled(problem, upload_seconds=factor, max_hertz=1 / factor, capacitance=factor**3)
    assert cost(slower, demand) == pytest.approx(factor * cost(problem, demand), rel=1e-9)


@few
@given(cells(), factors)
@pytest.mark.parametrize("field", ["capacitance", "cycles", "upload_seconds"])
def test_more_work_is_never_cheaper(field, cell, factor):
    """C, the bits of a report, is in proportion to the upload time."""
    problem, demand = cell
    assert cost(scaled(problem, **{field: factor}), demand) >= cost(problem, demand) * (1 - 1e-9)


@few
@given(cells(), factors, st.integers(0, 7))
@pytest.mark.parametrize("field", ["cycles", "upload_seconds"])
def test_more_work_for_one_client_is_never_cheaper(field, cell, factor, which):
    problem, demand = cell
    one = np.where(np.arange(len(problem)) == which % len(problem), factor, 1.0)
    assert cost(scaled(problem, **{field: one}), demand) >= cost(problem, demand) * (1 - 1e-9)


@few
@given(cells(), factors)
def test_faster_processors_never_cost_more(cell, factor):
    problem, demand = cell
    assert cost(scaled(problem, max_hertz=factor), demand) <= cost(problem, demand) * (1 + 1e-9)


@few
@given(cells(), st.floats(0.0, 1.0))
def test_more_examples_are_never_cheaper(cell, part):
    problem, demand = cell
    more = demand + int(part * (problem.num_examples.sum() - demand))
    assert cost(problem, more) >= cost(problem, demand) * (1 - 1e-9)


@few
@given(cells())
def test_a_client_more_to_choose_from_never_costs_more(cell):
    """So more clients admitted, a larger bound on their divergence, never cost more."""
    problem, demand = cell
    fewer = problem.only(np.arange(len(problem) - 1))
    demand = min(demand, int(fewer.num_examples.sum()))
    assert cost(problem, demand) <= cost(fewer, demand) * (1 + 1e-9)


@few
@given(cells(), factors)
def test_dearer_seconds_buy_a_shorter_round_with_more_joules_and_dearer_joules_the_reverse(cell, factor):
    """Both optima are at least as good as the other's at their own prices; add the two inequalities."""
    problem, demand = cell
    here = solve(problem, demand, tolerance=TOLERANCE).allocation
    hasty = solve(scaled(problem, time_weight=factor), demand, tolerance=TOLERANCE).allocation
    frugal = solve(scaled(problem, energy_weight=factor), demand, tolerance=TOLERANCE).allocation
    assert hasty.seconds <= here.seconds * (1 + 1e-6)
    assert here.seconds <= frugal.seconds * (1 + 1e-6)
    assert frugal.joules <= here.joules * (1 + 1e-6)
    assert here.joules <= hasty.joules * (1 + 1e-6)


def over_the_air(seed, *, band=2e6, fading=1.0, power=1.0, energy_weight=1.0):
    """Return 10 clients whose upload times follow from a channel, and half of their examples as the demand."""
    rng = np.random.default_rng(seed)
    problem = drawn(10, rng, energy_weight=energy_weight)
    gain = path_gain(rng.uniform(200.0, 250.0, 10), 2.4e9, 2.7) * rng.exponential(1.0, 10) * fading
    P = watts(rng.uniform(20.0, 33.0, 10)) * power
    tau = 32 * 62_006 / bits_per_second(band, watts(-174.0), gain, P)
    return replace(problem, upload_seconds=tau, power_watts=P), int(problem.num_examples.sum()) // 2


@few
@given(st.integers(0, 2**32 - 1), factors)
@pytest.mark.parametrize("better", ["band", "fading"])
def test_a_better_channel_never_costs_more(better, seed, factor):
    start = {"band": 2e6, "fading": 1.0}[better]
    assert cost(*over_the_air(seed, **{better: start * factor})) <= cost(*over_the_air(seed)) * (1 + 1e-9)


@few
@given(st.integers(0, 2**32 - 1), factors)
def test_more_power_never_costs_more_where_joules_are_free(seed, factor):
    stronger, demand = over_the_air(seed, power=factor, energy_weight=0.0)
    assert cost(stronger, demand) <= cost(*over_the_air(seed, energy_weight=0.0)) * (1 + 1e-9)


def test_more_power_may_cost_more_where_joules_have_a_price_and_so_may_less():
    costs = [cost(*over_the_air(0, power=power)) for power in (0.001, 0.1, 3.0)]
    assert costs[1] < costs[0]
    assert costs[1] < costs[2]
