"""Adam and Yogi at the server: Reddi et al. (arXiv 2003.00295), Algorithm 2, worked out by hand and its checks."""

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.federation.server import FedAdam, FedYogi

BOTH = pytest.mark.parametrize("kind", [FedAdam, FedYogi])


def run(step, updates, params=None):
    """Return parameters and state after one update after the other."""
    params, state = np.zeros(len(updates[0]), np.float32) if params is None else params, {}
    for update in updates:
        params, state = step.apply(params, state, update)
    return params, state


def test_two_steps_of_adam_by_hand():
    # beta1 = .5, beta2 = .75, tau = 1, lr = 2, u = 2, then 4; v starts at tau^2 = 1.
    # m = 1, v = .75 + .25 * 4 = 1.75; m = .5 + 2 = 2.5, v = .75 * 1.75 + .25 * 16 = 5.3125.
    x, state = run(FedAdam(2.0, 0.5, 0.75, 1.0), [np.array([2.0]), np.array([4.0])])
    assert (state["m"], state["v"]) == (2.5, 5.3125)
    expected = 2 * 1 / (np.sqrt(1.75) + 1) + 2 * 2.5 / (np.sqrt(5.3125) + 1)
    np.testing.assert_allclose(x, [expected], rtol=1e-6)


def test_three_steps_of_yogi_by_hand():
    # v starts at 1; u = 2: v = 1 + .25 * 4 = 2; u = 1: v = 2 - .25 * 1 = 1.75; u^2 = v: v stays.
    u = [np.array([2.0]), np.array([1.0]), np.array([np.sqrt(1.75)])]
    step = FedYogi(2.0, 0.5, 0.75, 1.0)
    assert [run(step, u[:t])[1]["v"].item() for t in (1, 2)] == [2.0, 1.75]
    x, state = run(step, u[:2])
    # m = 1, then .5 + .5 = 1.
    np.testing.assert_allclose(x, [2 / (np.sqrt(2) + 1) + 2 / (np.sqrt(1.75) + 1)], rtol=1e-6)
    assert step.second_moment(state["v"], np.array([1.75])).tolist() == [1.75]


@BOTH
def test_without_memory_and_tau_the_step_is_the_sign_of_the_update(kind):
    updates = [np.array([3.0, -1e-3, 0.0, 40.0]), np.array([-2.0, -1e-3, 5.0, 1e-2])]
    x, _ = run(kind(lr=0.25, beta1=0.0, beta2=0.0, tau=1e-9), updates[:1])
    np.testing.assert_allclose(x, 0.25 * np.sign(updates[0]), rtol=1e-5)
    if kind is FedAdam:  # Yogi's v remembers even with beta2 = 0, as it moves by u^2 instead of to u^2
        x, _ = run(kind(lr=0.25, beta1=0.0, beta2=0.0, tau=1e-9), updates)
        np.testing.assert_allclose(x, 0.25 * (np.sign(updates[0]) + np.sign(updates[1])), atol=1e-5)


def test_under_a_constant_update_adam_approaches_a_step_of_its_rate():
    # m_t = (1 - beta1^t) u and v_t = u^2 + beta2^t (tau^2 - u^2), so that m / (sqrt(v) + tau) -> u / (|u| + tau).
    u, step = np.array([0.5, -2.0]), FedAdam(lr=0.1, beta1=0.8, beta2=0.9, tau=0.01)
    for t in (1, 3, 200):
        _, state = run(step, [u] * t)
        np.testing.assert_allclose(state["m"], (1 - 0.8**t) * u, rtol=1e-12)
        np.testing.assert_allclose(state["v"], u**2 + 0.9**t * (0.01**2 - u**2), rtol=1e-10)
    before, after = run(step, [u] * 199)[0], run(step, [u] * 200)[0]
    np.testing.assert_allclose(after - before, 0.1 * u / (abs(u) + 0.01), rtol=1e-4)


def test_yogi_never_moves_v_faster_than_its_rule_and_adam_does():
    rng = generator(0, "updates")
    v, beta2 = rng.uniform(0, 4, 1000), 0.9
    square = rng.uniform(0, 4, 1000)
    moved = FedYogi(beta2=beta2).second_moment(v, square)
    assert (abs(moved - v) <= (1 - beta2) * square + 1e-15).all()
    assert (np.sign(moved - v) == np.sign(square - v)).all()
    assert (abs(FedAdam(beta2=beta2).second_moment(v, square) - v) > (1 - beta2) * square + 1e-15).any()


def test_the_second_moment_of_yogi_stays_positive():
    rng = generator(0, "updates")
    _, state = run(FedYogi(beta2=0.0, tau=1e-3), list(rng.standard_normal((300, 50))))
    assert (state["v"] >= 0).all()


@BOTH
def test_what_is_much_smaller_than_tau_moves_in_proportion(kind):
    # A tiny update leaves v at tau^2 in Yogi, at beta2 tau^2 in Adam; the step is rate (1 - beta1) u / (sqrt(v) + tau).
    u, root = np.array([1e-9, -3e-9]), {FedAdam: 0.05, FedYogi: 0.1}[kind]
    x, _ = run(kind(lr=1.0, beta1=0.5, beta2=0.25, tau=0.1), [u])
    np.testing.assert_allclose(x, 0.5 * u / (root + 0.1), rtol=1e-6)


@BOTH
def test_permuting_the_numbers_of_a_model_permutes_the_result(kind):
    updates = generator(0, "updates").standard_normal((4, 7))
    order = generator(0, "order").permutation(7)
    np.testing.assert_array_equal(run(kind(), list(updates[:, order]))[0], run(kind(), list(updates))[0][order])


@BOTH
def test_nothing_that_is_handed_in_is_written_to(kind):
    params, update = np.ones(3, np.float32), np.ones(3)
    state = {"m": np.ones(3), "v": np.ones(3)}
    for array in (params, update, *state.values()):
        array.setflags(write=False)
    new, later = kind().apply(params, state, update)
    assert new.dtype == np.float32
    assert set(later) == {"m", "v"}
    assert state["m"].tolist() == [1.0] * 3


@BOTH
@pytest.mark.parametrize(
    ("option", "value"),
    [("lr", 0.0), ("lr", np.inf), ("beta1", 1.0), ("beta1", -0.1), ("beta2", 1.0), ("tau", 0.0), ("tau", np.nan)],
)
def test_an_option_outside_its_range_is_refused_by_name(kind, option, value):
    with pytest.raises(ConfigError, match=rf"{kind.__name__}\.{option} must be .*got {value}"):
        kind(**{option: value})
