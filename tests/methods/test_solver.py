"""Checks of the built-in solvers, on two quadratics whose answers are known to ten digits."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from fedreach.federation.base import Weighting
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.participation import Bernoulli
from fedreach.federation.solvers import FedAvg
from fedreach.federation.state import FederationState
from fedreach.federation.weighting import ByExamples, Equal
from fedreach.testing.base import Subject, define_check, fail, must_be_close, shown

from ..quadratics import two_quadratics  # noqa: TID252 (tests are no package that has a name)
from .running import each_method, must_pass

TOLERANCE = 2e-6  # half a unit in the last place of float32 numbers below 8 is 2.4e-7, a round
QUADRATICS = "two quadratics, rate 0.1, 3 steps, n = (1, 3), from (0.5, 0.5)"


@define_check()
def golden_fedavg(subject: Subject) -> None:
    """FedAvg's two rounds on the two quadratics end at the known points.

    Reference: specification, section 1.4
    """
    _must_reach(subject.make(), ByExamples(), {1: (-0.698, 0.691390625), 2: (-1.224521, 0.8389587778)})


@define_check()
def golden_fedprox(subject: Subject) -> None:
    """FedProx with mu = 0.5 ends at the known points: its gradient is g + mu (w - w0).

    Reference: specification, section 1.4
    """
    points = {1: (-0.633625, 0.68225), 2: (-1.1657202344, 0.8249061875)}
    _must_reach(subject.make(mu=0.5), ByExamples(), points)


@define_check()
def fedprox_without_mu(subject: Subject) -> None:
    """FedProx with mu = 0 is FedAvg, bit for bit.

    Reference: specification, section 7
    """
    a, b = (_run(solver, ByExamples(), 5).params for solver in (subject.make(mu=0.0), FedAvg()))
    if a.tobytes() != b.tobytes():
        fail(f"after 5 rounds it is at {shown(a)}, FedAvg at {shown(b)}", QUADRATICS)


@define_check()
def fedprox_stays_near(subject: Subject) -> None:
    """The larger mu, the nearer local training ends to the broadcast model: at (A + mu I)^-1 (A b + mu x)."""
    for mu in (1.0, 10.0, 1000.0):
        engine: Any = two_quadratics(subject.make(mu=mu), local=LocalSGD(steps=400)).engine
        update = engine.train(engine.initial, np.arange(2), round_=1, lr=0.5 / (1 + mu)).update
        for client in range(2):
            a, b = engine.curvature[client], engine.optimum[client]
            end = np.linalg.solve(a + mu * np.eye(2), a @ b + mu * engine.initial)
            case = f"client {client} of two quadratics, mu = {mu:g}, 400 local steps"
            must_be_close("the local model", engine.initial + update[client], end, case, TOLERANCE)


@define_check()
def golden_scaffold(subject: Subject) -> None:
    """SCAFFOLD's model follows w - rate (g + c - c_i): after two rounds it is at the known points.

    Reference: specification, section 1.4
    """
    points = {1: (-0.2535, 0.38359375), 2: (-0.7344226667, 0.2615697754)}
    _must_reach(subject.make(), Equal(), points)


@define_check()
def clients_keep_their_control_variates(subject: Subject) -> None:
    """Each SCAFFOLD client keeps c_i' = c_i - c + (x - y) / (K rate), starting from 0.

    Reference: specification, section 1.4
    """
    kept = {
        1: [(-0.4516666667, 2.44), (5.475, -1.6639583333)],
        2: [(-1.4187838889, 2.6336819444), (4.624935, -1.8201887804)],
    }
    _must_keep(subject.make(), "the clients' control variates c_i", kept)


@define_check()
def the_rate_of_the_round_divides(subject: Subject) -> None:
    """After one local step SCAFFOLD's c_i is the gradient at the broadcast model, also where the rate falls by rounds.

    With another rate than the round's it still ends at the right model, and is too long or too short on the way there.

    Reference: specification, section 1.4
    """
    local = LocalSGD(lr=0.1, steps=1, schedule="exponential", decay=0.5)
    simulation = two_quadratics(subject.make(), Equal(), local=local)
    state, engine = simulation.start(), cast(Any, simulation.engine)
    for number in range(1, 5):
        gradients = np.einsum("kij,kj->ki", engine.curvature, state.params - engine.optimum)
        state = simulation.step(state).state
        assert state.memory is not None  # as SCAFFOLD has one
        case = f"two quadratics, one step, rate 0.1 halved after each round, round {number}"
        must_be_close("the c_i", state.memory.read(np.arange(2)), gradients, case, 5 * TOLERANCE)


@define_check()
def c_is_the_mean_of_all_c_i(subject: Subject) -> None:
    """SCAFFOLD's c is the mean of c_i over all participants, also where not all of them reply.

    c <- c + (|S| / N) mean over S of (c_i' - c_i): without |S| / N, clients that are away are left out of the mean.

    Reference: specification, section 1.4
    """
    simulation = _unreliable(subject.make())
    state = simulation.start()
    for number in range(1, 31):
        state = simulation.step(state).state
        if state.solver[0]:
            mean = state.memory.read(np.arange(2)).mean(axis=0)
            case = f"two quadratics, 30 % away, 30 % of the replies lost, round {number}"
            must_be_close("c", state.solver[0]["c"], mean, case, 1e-5, "the mean of the c_i")


@define_check()
def scaffold_finds_the_optimum(subject: Subject) -> None:
    """Under equal weights SCAFFOLD ends at the minimum of sum_k f_k, (-5/4, 0), which FedAvg misses.

    Reference: specification, section 1.4
    """
    _must_end(subject.make(), (-1.25, 0.0))


@define_check()
def scaffold_with_identical_clients(subject: Subject) -> None:
    """SCAFFOLD with identical clients and full batches is FedAvg, whoever is away.

    Reference: specification, section 7
    """
    ends = []
    for solver in (subject.make(), FedAvg()):
        simulation = two_quadratics(solver, Equal())
        engine: Any = simulation.engine
        alike = replace(engine, curvature=engine.curvature[[0, 0]], optimum=engine.optimum[[0, 0]])
        ends.append(_after(replace(simulation, engine=alike), 6).params)
    must_be_close("the model after 6 rounds", ends[0], ends[1], "two identical quadratics", TOLERANCE, "that of FedAvg")


@define_check()
def golden_feddyn(subject: Subject) -> None:
    """FedDyn with alpha = 0.5 broadcasts the mean of the local models plus h, the mean of all h_i.

    Reference: specification, section 1.4
    """
    points = {1: (-0.9613333333, 0.3254652778), 2: (-1.7896051358, 0.2637138638)}
    _must_reach(subject.make(alpha=0.5), Equal(), points)


@define_check()
def feddyn_serves_the_mean(subject: Subject) -> None:
    """What FedDyn hands out is the mean of the local models, without h.

    Reference: specification, section 1.4
    """
    for rounds, point in {1: (-0.2306666667, 0.4127326389), 2: (-1.0101359012, 0.3382232514)}.items():
        solver = subject.make(alpha=0.5)
        state = _run(solver, Equal(), rounds)
        adapted = solver.adapted(state.params, state.solver[0])
        must_be_close(f"the model adapted after round {rounds}", adapted, point, QUADRATICS, TOLERANCE)


@define_check()
def feddyn_clients_keep_how_far_they_were_moved(subject: Subject) -> None:
    """Each FedDyn client keeps h_i + update_i, starting from 0.

    Reference: specification, section 1.4
    """
    kept = {
        1: [(0.122, -0.657), (-1.5833333333, 0.4824652778)],
        2: [(0.5707973333, -1.0936707917), (-2.1297358025, 0.9446520166)],
    }
    _must_keep(subject.make(alpha=0.5), "the clients' memories h_i", kept)


@define_check()
def h_is_the_mean_over_all_participants(subject: Subject) -> None:
    """FedDyn's h is the mean of h_i over all participants, not over those that replied.

    Reference: specification, section 1.4
    """
    simulation = _unreliable(subject.make(alpha=0.5))
    state = simulation.start()
    for number in range(1, 31):
        state = simulation.step(state).state
        if state.solver[0]:
            h = state.params - simulation.federation.solver.adapted(state.params, state.solver[0])
            mean = state.memory.read(np.arange(2)).mean(axis=0)
            case = f"two quadratics, 30 % away, 30 % of the replies lost, round {number}"
            must_be_close("h = broadcast - adapted", h, mean, case, 1e-5, "the mean of the h_i")


@define_check()
def feddyn_finds_the_optimum(subject: Subject) -> None:
    """FedDyn ends at the minimum of sum_k p_k f_k, (-1.7, 8/7), also where clients are away or replies get lost.

    Reference: specification, section 1.4
    """
    _must_end(subject.make(alpha=0.5), (-1.7, 8 / 7))


@define_check()
def feddyn_with_one_client(subject: Subject) -> None:
    """FedDyn with one client is not SGD, as the server adds h: by one step a round it goes to (.6, -.1), (.725, -.73).

    Reference: specification, section 1.4
    """
    simulation = two_quadratics(subject.make(alpha=0.5), local=LocalSGD(lr=0.1, steps=1))
    population = replace(simulation.data.population, participants=np.array([0]))
    simulation = replace(simulation, data=replace(simulation.data, population=population))
    for rounds, point in {1: (0.6, -0.1), 2: (0.725, -0.73)}.items():
        params = _after(simulation, rounds).params
        must_be_close(f"the model after round {rounds}", params, point, "client 0 alone, alpha 0.5", TOLERANCE)


METHOD_CHECKS = {
    "fedavg": (golden_fedavg,),
    "fedprox": (golden_fedprox, fedprox_without_mu, fedprox_stays_near),
    "scaffold": (
        golden_scaffold,
        clients_keep_their_control_variates,
        the_rate_of_the_round_divides,
        c_is_the_mean_of_all_c_i,
        scaffold_finds_the_optimum,
        scaffold_with_identical_clients,
    ),
    "feddyn": (
        golden_feddyn,
        feddyn_serves_the_mean,
        feddyn_clients_keep_how_far_they_were_moved,
        h_is_the_mean_over_all_participants,
        feddyn_finds_the_optimum,
        feddyn_with_one_client,
    ),
}


def _run(solver: Any, weighting: Weighting, rounds: int) -> FederationState:
    return _after(two_quadratics(solver, weighting), rounds)


def _after(simulation: Any, rounds: int) -> FederationState:
    state: FederationState = simulation.start()
    for _ in range(rounds):
        state = simulation.step(state).state
    return state


def _unreliable(solver: Any) -> Any:
    return replace(two_quadratics(solver, Equal()), participation=Bernoulli(act_prob=0.7, reply_prob=0.7))


def _must_reach(solver: Any, weighting: Weighting, points: Mapping[int, tuple[float, float]]) -> None:
    for rounds, point in points.items():
        params = _run(solver, weighting, rounds).params
        must_be_close(f"the model after round {rounds}", params, point, QUADRATICS, TOLERANCE)


def _must_keep(solver: Any, what: str, kept: Mapping[int, list[tuple[float, float]]]) -> None:
    for rounds, rows in kept.items():
        memory = _run(solver, Equal(), rounds).memory
        assert memory is not None  # as every solver with memory has one
        found = memory.read(np.arange(2))
        must_be_close(f"{what} after round {rounds}", found, rows, QUADRATICS, 5 * TOLERANCE)  # update / (3 * 0.1)


def _must_end(solver: Any, optimum: tuple[float, float]) -> None:
    for probability in (1.0, 0.7):
        simulation = _unreliable(solver)
        simulation = replace(simulation, participation=Bernoulli(probability, probability))
        params = _after(simulation, 500 if probability == 1 else 1200).params
        away = "both clients in every round" if probability == 1 else "30 % away, 30 % of the replies lost"
        must_be_close("the model", params, optimum, f"two quadratics, {away}, to the end", 1e-3)


@each_method("solver", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
