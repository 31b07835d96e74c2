"""Two clients that disagree, with answers known to ten digits (design/algorithms.md, section 1.4)."""

from dataclasses import replace

import numpy as np
import pytest

from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.selection.random import FunctionSelection
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg, FedProx
from fedreach.federation.weighting import Equal

from ..quadratics import two_quadratics  # noqa: TID252 (tests are no package that has a name)

# Parameters and updates are float32: half a unit in the last place of numbers below 4 is 1.2e-7, and each round adds
# two such roundings while local training contracts the earlier ones.
TOLERANCE = 1e-6


def after(simulation, rounds):
    state = simulation.start()
    for _ in range(rounds):
        state = simulation.step(state).state
    return state.params


@pytest.mark.parametrize(
    ("solver", "rounds", "expected"),
    [
        (FedAvg(), 1, (-0.6980000000, 0.6913906250)),
        (FedAvg(), 2, (-1.2245210000, 0.8389587778)),
        (FedAvg(), 200, (-1.6373773417, 1.3358809881)),  # the limit
        (FedProx(mu=0.5), 1, (-0.6336250000, 0.6822500000)),
        (FedProx(mu=0.5), 2, (-1.1657202344, 0.8249061875)),
    ],
)
def test_rounds_give_the_golden_parameters(solver, rounds, expected):
    np.testing.assert_allclose(after(two_quadratics(solver), rounds), expected, rtol=0, atol=TOLERANCE)


def test_a_single_local_step_reaches_the_minimum_of_the_weighted_objective():
    # With one full-batch step a round FedAvg is gradient descent on sum_k p_k f_k, p = (1/4, 3/4), whose minimum is
    # (p_0 A_0 + p_1 A_1)^-1 (p_0 A_0 b_0 + p_1 A_1 b_1) = ((.25 - 4.5) / 2.5, (-.5 + 1.5) / .875) = (-1.7, 8/7).
    simulation = two_quadratics(local=LocalSGD(lr=0.1, steps=1))
    np.testing.assert_allclose(after(simulation, 300), (-1.7, 8 / 7), rtol=0, atol=TOLERANCE)


def test_equal_weights_reach_the_minimum_of_the_plain_sum():
    # (A_0 + A_1)^-1 (A_0 b_0 + A_1 b_1) = ((1 - 6) / 4, (-2 + 2) / 2.5) = (-1.25, 0).
    simulation = two_quadratics(weighting=Equal(), local=LocalSGD(lr=0.1, steps=1))
    np.testing.assert_allclose(after(simulation, 300), (-1.25, 0.0), rtol=0, atol=TOLERANCE)


def test_fedprox_without_mu_is_fedavg_bit_for_bit():
    assert after(two_quadratics(FedProx(mu=0.0)), 5).tobytes() == after(two_quadratics(FedAvg()), 5).tobytes()


def test_local_training_with_fedprox_ends_at_the_proximal_point():
    # The minimum of f_k(w) + mu / 2 |w - x|^2 is (A_k + mu I)^-1 (A_k b_k + mu x), which tends to x as mu grows.
    moved = []
    for mu in (0.0, 1.0, 10.0, 1000.0):
        engine = two_quadratics(FedProx(mu=mu), local=LocalSGD(steps=400)).engine
        updates = engine.train(engine.initial, np.arange(2), round_=1, lr=0.5 / (1 + mu)).update
        for client in range(2):
            a, b = engine.curvature[client], engine.optimum[client]
            proximal = np.linalg.solve(a + mu * np.eye(2), a @ b + mu * engine.initial)
            np.testing.assert_allclose(engine.initial + updates[client], proximal, rtol=0, atol=TOLERANCE)
        moved.append(np.linalg.norm(updates))
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < 0.01


@pytest.mark.parametrize(
    "local", [LocalSGD(lr=0.1, steps=3), LocalSGD(lr=0.1, steps=4, momentum=0.9, weight_decay=0.1, clip_norm=2.0)]
)
@pytest.mark.parametrize("client", [0, 1])
def test_the_aggregate_of_one_participant_is_its_model(client, local):
    simulation = two_quadratics(local=local)
    only = FunctionSelection(lambda view, k, rng: [client])
    simulation = replace(simulation, federation=replace(simulation.federation, selection=only))
    done = simulation.step(simulation.start())
    assert done.result.weights == (1.0,)
    np.testing.assert_array_max_ulp(done.state.params, simulation.start().params + done.update[0], maxulp=1)


def test_one_step_with_clipping_and_decay_by_hand():
    # Client 0 at (1/2, 1/2): gradient A (w - b) = (-.5, 3), norm sqrt(9.25), clipped to norm 1; then the decay
    # .1 * (.5, .5) is added and the step of rate 0.1 taken.
    engine = two_quadratics(local=LocalSGD(steps=1, clip_norm=1.0, weight_decay=0.1)).engine
    trained = engine.train(engine.initial, np.array([0]), round_=1, lr=0.1)
    expected = -0.1 * (np.array([-0.5, 3.0]) / np.sqrt(9.25) + 0.05)
    np.testing.assert_allclose(trained.update[0], expected, rtol=1e-6)
    # The reported loss is that before the step: 1/2 (1 * .25 + 2 * 2.25).
    np.testing.assert_allclose(trained.loss, [2.375])
    np.testing.assert_allclose(engine.training_loss(engine.initial, np.array([0])), [2.375])


def test_a_server_lr_scales_the_first_move():
    full, half = after(two_quadratics(), 1), after(two_quadratics(server=Average(lr=0.5)), 1)
    np.testing.assert_allclose(half - 0.5, (full - 0.5) / 2, rtol=0, atol=TOLERANCE)
