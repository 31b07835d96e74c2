"""SCAFFOLD and FedDyn: what clients remember, by golden numbers and by what theory says only they do."""

from dataclasses import replace

import numpy as np
import pytest

import fedreach as fr
from fedreach._util.errors import ConfigError
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.participation import Always, Bernoulli
from fedreach.federation.selection.labels import Clustered
from fedreach.federation.selection.random import Full, FunctionSelection, Uniform
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg, FedDyn, FedProx, Scaffold
from fedreach.federation.types import ClientResults, Cohort, Probe
from fedreach.federation.weighting import ByExamples, Equal

from ..quadratics import two_quadratics  # noqa: TID252 (tests are no package that has a name)

# Updates, models and memories are float32: half a unit in the last place of numbers below 8 is 2.4e-7 a round.
TOLERANCE = 2e-6


def run(simulation, rounds):
    state = simulation.start()
    for _ in range(rounds):
        state = simulation.step(state).state
    return state


def with_selection(simulation, selection, cohort_size=2):
    return replace(simulation, federation=replace(simulation.federation, selection=selection, cohort_size=cohort_size))


def test_with_momentum_scaffold_keeps_what_was_moved_by_as_many_plain_steps():
    """Three steps with momentum 1/2 move what 1 + 3/2 + 7/4 plain ones do; in round 1, c_i = (x - y) / that / rate."""
    simulation = two_quadratics(Scaffold(), Equal(), local=LocalSGD(lr=0.1, steps=3, momentum=0.5))
    done = simulation.step(simulation.start())
    kept = done.state.memory.read(np.arange(2))
    np.testing.assert_allclose(kept, -done.update / (4.25 * 0.1), rtol=1e-6)
    assert np.abs(kept).min() > 0.01


# Goldens: design/algorithms.md, section 1.4; full-batch quadratics, rate 0.1, 3 steps, n = (1, 3).
@pytest.mark.parametrize(
    ("rounds", "x", "c", "c_i"),
    [
        (
            1,
            (-0.2535000000, 0.3835937500),
            (2.5116666667, 0.3880208333),
            [(-0.4516666667, 2.44), (5.475, -1.6639583333)],
        ),
        (
            2,
            (-0.7344226667, 0.2615697754),
            (1.6030755556, 0.4067465820),
            [(-1.4187838889, 2.6336819444), (4.6249350000, -1.8201887804)],
        ),
    ],
)
def test_scaffold_gives_the_golden_numbers(rounds, x, c, c_i):
    state = run(two_quadratics(Scaffold(), Equal()), rounds)
    np.testing.assert_allclose(state.params, x, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(state.solver[0]["c"], c, rtol=0, atol=5 * TOLERANCE)  # update / (3 * 0.1)
    np.testing.assert_allclose(state.memory.read(np.arange(2)), c_i, rtol=0, atol=5 * TOLERANCE)


@pytest.mark.parametrize(
    ("rounds", "mean", "cloud", "h_i"),
    [
        (
            1,
            (-0.2306666667, 0.4127326389),
            (-0.9613333333, 0.3254652778),
            [(0.122, -0.657), (-1.5833333333, 0.4824652778)],
        ),
        (
            2,
            (-1.0101359012, 0.3382232514),
            (-1.7896051358, 0.2637138638),
            [(0.5707973333, -1.0936707917), (-2.1297358025, 0.9446520166)],
        ),
    ],
)
def test_feddyn_gives_the_golden_numbers(rounds, mean, cloud, h_i):
    simulation = two_quadratics(FedDyn(alpha=0.5), Equal())
    state = run(simulation, rounds)
    np.testing.assert_allclose(state.params, cloud, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(state.adapted(simulation.federation)[0], mean, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(state.memory.read(np.arange(2)), h_i, rtol=0, atol=TOLERANCE)


def scaffold_by_examples(rounds, n=(1, 3), lr=0.1, steps=3):
    """Return x, c and the c_i of a plain loop over the two quadratics, as in `train_SCAFFOLD` of FedDyn's authors."""
    A, b = np.array([[1, 2], [3, 0.5]]), np.array([[1, -1], [-2, 4.0]])
    w = np.array(n) / np.mean(n)
    x, c, c_i = np.full(2, 0.5), np.zeros(2), np.zeros((2, 2))
    for _ in range(rounds):
        y, change = np.tile(x, (2, 1)), np.zeros(2)
        for i in range(2):
            for _ in range(steps):
                y[i] -= lr * (A[i] * (y[i] - b[i]) + c / w[i] - c_i[i])
            new = c_i[i] - c + (x - y[i]) / (steps * lr)
            change += w[i] * (new - c_i[i])
            c_i[i] = new
        x, c = y.mean(axis=0), c + change / 2
    return x, c, c_i


@pytest.mark.parametrize("rounds", [1, 3])
def test_scaffold_by_examples_equals_a_plain_loop(rounds):
    state = run(two_quadratics(Scaffold(by_examples=True), Equal()), rounds)
    x, c, c_i = scaffold_by_examples(rounds)
    np.testing.assert_allclose(state.params, x, rtol=0, atol=5 * TOLERANCE)
    np.testing.assert_allclose(state.solver[0]["c"], c, rtol=0, atol=20 * TOLERANCE)
    np.testing.assert_allclose(state.memory.read(np.arange(2)), c_i, rtol=0, atol=20 * TOLERANCE)


@pytest.mark.parametrize("weighting", [Equal(), ByExamples()], ids=repr)
def test_scaffold_by_examples_reaches_the_weighted_optimum(weighting):
    simulation = two_quadratics(Scaffold(by_examples=True), weighting)
    np.testing.assert_allclose(run(simulation, 600).params, (-1.7, 8 / 7), rtol=0, atol=1e-5)


def test_scaffold_by_examples_rejects_clusters():
    with pytest.raises(ConfigError, match=r"makes clusters of them\. Set by_examples = false"):
        with_selection(two_quadratics(Scaffold(by_examples=True)), Clustered())


def test_the_true_solvers_reach_the_optimum_where_fedavg_cannot():
    # argmin sum_k f_k = (-5/4, 0) and argmin sum_k p_k f_k = (-1.7, 8/7): see test_two_quadratics.
    assert np.abs(run(two_quadratics(FedAvg(), Equal()), 600).params - (-1.25, 0)).max() > 0.05
    np.testing.assert_allclose(run(two_quadratics(Scaffold(), Equal()), 600).params, (-1.25, 0), rtol=0, atol=1e-5)
    np.testing.assert_allclose(run(two_quadratics(FedDyn(0.5), Equal()), 600).params, (-1.7, 8 / 7), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize(
    "unreliable", [{"act_prob": 0.6}, {"act_prob": 1.0, "reply_prob": 0.6}, {"act_prob": 0.7, "reply_prob": 0.7}]
)
@pytest.mark.parametrize(("solver", "optimum"), [(Scaffold(), (-1.25, 0)), (FedDyn(0.5), (-1.7, 8 / 7))])
@pytest.mark.sampled(5)
def test_they_reach_it_also_when_clients_are_away_or_replies_get_lost(solver, optimum, unreliable, momentum):
    # Weights are equal over those who reply, so the SCAFFOLD average is unbiased whoever is there.
    local = LocalSGD(lr=0.05, steps=3, momentum=momentum)
    simulation = replace(two_quadratics(solver, Equal(), local=local), participation=Bernoulli(**unreliable))
    simulation = replace(simulation, rounds=3000)
    np.testing.assert_allclose(run(simulation, 3000).params, optimum, rtol=0, atol=1e-4)


def test_scaffolds_c_is_the_mean_of_the_clients_control_variates_whoever_replies():
    simulation = replace(two_quadratics(Scaffold(), Equal()), participation=Bernoulli(act_prob=0.7, reply_prob=0.7))
    state = simulation.start()
    seen = set()
    for _ in range(30):
        done = simulation.step(state)
        state = done.state
        seen.add((len(done.result.cohort), len(done.result.lost)))
        if state.solver[0]:
            mean = state.memory.read(np.arange(2)).mean(axis=0)
            np.testing.assert_allclose(state.solver[0]["c"], mean, rtol=0, atol=1e-5)
    assert {(1, 0), (2, 0), (1, 1)} <= seen  # partial cohorts and lost replies did occur


@pytest.mark.slow
@pytest.mark.parametrize("participation", [Always(), Bernoulli(act_prob=0.7, reply_prob=0.7)], ids=repr)
def test_scaffold_with_halves_reaches_the_optimum_but_for_their_rounding(participation):
    """c stays the mean of the c_i, and of the drift that FedAvg has, 2^-10 at most is left."""

    def end(solver):
        simulation = uneven(two_quadratics(solver, Equal(), local=LocalSGD(lr=0.05, steps=3)))
        return run(replace(simulation, participation=participation, rounds=3000), 3000)

    halves, exact, drifting = end(Scaffold(memory_dtype="float16")), end(Scaffold()), end(FedAvg())
    memory = halves.memory.read(np.arange(2))
    np.testing.assert_allclose(halves.solver[0]["c"], memory.mean(axis=0), rtol=0, atol=1e-6)
    drift, left = (np.abs(state.params - exact.params).max() for state in (drifting, halves))
    assert 0 < left < 2.0**-10 * drift


def uneven(simulation):
    """Return it with other optima, so that no float16 holds the gradients there."""
    return replace(simulation, engine=replace(simulation.engine, optimum=np.array([[1.01, -1.03], [-2.07, 4.05]])))


def test_the_change_that_the_server_adds_up_is_rounded_as_what_is_kept():
    state = run(uneven(two_quadratics(Scaffold(memory_dtype="float16"), Equal())), 3)
    mean = state.memory.read(np.arange(2)).mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(state.solver[0]["c"], mean, rtol=0, atol=1e-6)  # of float32; a float16 is off by 1e-3


def test_scaffold_with_halves_keeps_half_the_bytes(tmp_path):
    solver = Scaffold(memory_dtype="float16")
    simulation = replace(two_quadratics(solver, Equal()), memory_file=tmp_path / "rows")
    state = run(simulation, 1)
    assert (state.memory.places() >= 0).all()
    assert (tmp_path / "rows").stat().st_size == 2 * (2 + 1) * 2  # 2 clients, 2 numbers and an exponent


def test_a_type_of_memory_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match=r"Scaffold\.memory_dtype must be .* got 'float61'\. Did you mean 'float16'"):
        Scaffold(memory_dtype="float61")


def test_scaffold_with_one_client_is_gradient_descent():
    only = FunctionSelection(lambda view, k, rng: [1])
    one, plain = (with_selection(two_quadratics(solver), only, 1) for solver in (Scaffold(), FedAvg()))
    # The absent client's c_0 stays 0 and would halve c: let client 1 be all there is.
    one, plain = (alone(simulation) for simulation in (one, plain))
    for rounds in (1, 2, 5):
        np.testing.assert_allclose(run(one, rounds).params, run(plain, rounds).params, rtol=0, atol=TOLERANCE)


def test_feddyn_with_one_client_is_not_gradient_descent():
    # design/algorithms.md, section 1.4: client 0, one step a round, alpha 0.5: cloud (.6, -.1), (.725, -.73).
    simulation = alone(two_quadratics(FedDyn(0.5), local=LocalSGD(lr=0.1, steps=1)), client=0)
    np.testing.assert_allclose(run(simulation, 1).params, (0.6, -0.1), rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(run(simulation, 2).params, (0.725, -0.73), rtol=0, atol=TOLERANCE)


def alone(simulation, client=1):
    """Return the simulation in which this client is the only participant."""
    population = replace(simulation.data.population, participants=np.array([client]))
    return replace(with_selection(simulation, Full(), 1), data=replace(simulation.data, population=population))


def test_scaffold_with_identical_clients_is_fedavg():
    def twins(solver):
        simulation = two_quadratics(solver, Equal())
        engine = simulation.engine
        alike = replace(engine, curvature=engine.curvature[[0, 0]], optimum=engine.optimum[[0, 0]])
        return replace(simulation, engine=alike)

    for rounds in (1, 2, 6):
        a, b = run(twins(Scaffold()), rounds), run(twins(FedAvg()), rounds)
        np.testing.assert_allclose(a.params, b.params, rtol=0, atol=TOLERANCE)


def test_the_weighting_replaces_only_the_average_of_the_models():
    # Round 1 starts from memories of 0, so SCAFFOLD's models are FedAvg's and only the weights differ.
    for weighting in (ByExamples(), Equal()):
        a, b = (run(two_quadratics(solver, weighting), 1).params for solver in (Scaffold(), FedAvg()))
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE)
    # Its control variates do not depend on the weighting.
    c = [run(two_quadratics(Scaffold(), weighting), 1).solver[0]["c"] for weighting in (ByExamples(), Equal())]
    np.testing.assert_array_equal(c[0], c[1])


def test_memory_is_kept_by_client_and_not_by_place_in_the_cohort():
    order = iter([[1], [0, 1], [0], [1]])
    simulation = with_selection(two_quadratics(FedDyn(0.5)), FunctionSelection(lambda view, k, rng: next(order)))
    state, moved = simulation.start(), np.zeros((2, 2))
    for _ in range(4):
        done = simulation.step(state)
        state = done.state
        for client, update in zip(done.result.cohort, done.update, strict=True):
            moved[client] += update
    np.testing.assert_allclose(state.memory.read(np.arange(2)), moved, rtol=0, atol=TOLERANCE)


def test_with_one_step_c_i_is_the_gradient_at_the_broadcast_whatever_the_schedule():
    """c_i' = c_i - c + (x - y) / rate, y = x - rate (g + c - c_i), with the rate of this very round: c_i' = g."""
    local = LocalSGD(lr=0.4, steps=1, schedule="exponential", decay=0.5)
    simulation = replace(two_quadratics(Scaffold(), Equal(), local=local), rounds=5)
    state = simulation.start()
    for _ in range(5):
        away = state.params - simulation.engine.optimum
        state = simulation.step(state).state
        gradients = np.einsum("kij,kj->ki", simulation.engine.curvature, away)
        np.testing.assert_allclose(state.memory.read(np.arange(2)), gradients, rtol=0, atol=TOLERANCE)


class AsksAll(fr.Selection):
    """Has everybody train to be asked for its update, and then chooses the first."""

    reads_updates = True

    def probe(self, state, view, k, rng):
        return Probe(view.ids, "update")

    def select(self, state, view, k, rng):
        return Cohort(view.ids[:1])


@pytest.mark.parametrize("solver", [Scaffold(), FedDyn(0.5)])
def test_who_is_asked_for_an_update_and_not_chosen_remembers_nothing_of_it(solver):
    asked, chosen = (
        run(with_selection(two_quadratics(solver), selection, 1), 3)
        for selection in (AsksAll(), FunctionSelection(lambda view, k, rng: [0]))
    )
    one, other = (state.memory.read(np.arange(2)) for state in (asked, chosen))
    assert one.tobytes() == other.tobytes()
    assert one[0].any()
    assert not one[1].any()
    assert asked.params.tobytes() == chosen.params.tobytes()


def test_an_earlier_state_can_be_gone_back_to(tmp_path):
    """Rows are shared between states and written over only when no state refers to them any more."""
    for file in (None, tmp_path / "memory.rows"):
        simulation = replace(with_selection(two_quadratics(Scaffold()), Uniform(), 1), memory_file=file)
        early = run(simulation, 3)
        late = early
        for _ in range(20):
            late = simulation.step(late).state
        again = early
        for _ in range(20):
            again = simulation.step(again).state
        assert again.params.tobytes() == late.params.tobytes()
    assert file.stat().st_size <= 8 * 2 * 4  # at most 8 rows of 2 numbers: 2 clients, 4 states that are referred to


def test_a_server_lr_scales_scaffolds_step():
    full, half = (run(two_quadratics(Scaffold(), Equal(), Average(lr=r)), 1).params for r in (1.0, 0.5))
    np.testing.assert_allclose(half - 0.5, (full - 0.5) / 2, rtol=0, atol=TOLERANCE)


def test_bytes_count_the_control_variates():
    # 2 numbers a model, 2 clients. SCAFFOLD: model and c down, update and change of c_i up, with 2 scalars each.
    scaffold, feddyn, fedavg = (
        two_quadratics(s).step(two_quadratics(s).start()).result for s in (Scaffold(), FedDyn(), FedAvg())
    )
    assert (scaffold.bytes_down, scaffold.bytes_up) == (2 * 4 * 4, 2 * (4 + 2) * 4)
    assert (feddyn.bytes_down, feddyn.bytes_up) == (fedavg.bytes_down, fedavg.bytes_up) == (2 * 2 * 4, 2 * (2 + 2) * 4)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FedDyn(alpha=0.0), r"FedDyn\.alpha must be positive.*Without a pull it is FedAvg"),
        (lambda: FedDyn(alpha=np.inf), r"FedDyn\.alpha must be"),
        (lambda: FedProx(mu=-0.1), r"FedProx\.mu must be"),
        (lambda: Scaffold(memory_dtype="float64"), r"Scaffold\.memory_dtype must be 'float32' or 'float16'"),
    ],
)
def test_options_outside_their_range_are_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_memories_are_summed_and_compared_in_double_precision():
    rows = np.array([[2**24], [1], [1]], np.float32)  # in single precision, 2^24 + 1 is 2^24
    reports = ClientResults(np.arange(3), rows, {}, note=rows)
    for solver, name in ((Scaffold(), "c"), (FedDyn(0.5), "h")):
        assert solver.conclude({}, reports, np.zeros(1), 1)[1][name].tolist() == [2**24 + 2]
    third = np.array([1 / 3])
    drift = Scaffold().prepare(third.astype(np.float32)[None], {"c": third}, np.ones(1))["drift"]
    assert drift.item() == np.float32(third - third.astype(np.float32).astype(np.float64))
    assert drift.item() != 0
