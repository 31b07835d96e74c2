"""PyTorch's optimisers at the server."""

import inspect

import numpy as np
import pytest
import torch

from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.federation.server import Average, TorchOptimizer

D, ROUNDS = 6, 5
REFUSED = {"Optimizer", "LBFGS", "SparseAdam", "Muon"}
ALL = [
    name
    for name, thing in vars(torch.optim).items()
    if inspect.isclass(thing) and issubclass(thing, torch.optim.Optimizer)
]


def updates():
    return generator(0, "updates").standard_normal((ROUNDS, D))


def run(step, state=None, params=None, given=None):
    params = np.linspace(-1, 1, D).astype(np.float32) if params is None else params
    state = {} if state is None else state
    for update in updates() if given is None else given:
        params, state = step.apply(params, state, update)
    return params, state


def test_gradient_descent_with_rate_1_is_the_average_bit_by_bit():
    ours, state = run(TorchOptimizer("SGD", lr=1.0))
    theirs, _ = run(Average())
    assert ours.tobytes() == theirs.tobytes()
    assert state == {}


def test_momentum_is_that_of_the_average():
    # torch: b <- m b + g, x <- x - rate b, with b = g at first; with g = -u that is `Average`'s velocity.
    ours, state = run(TorchOptimizer("SGD", lr=0.5, options={"momentum": 0.9}))
    theirs, other = run(Average(lr=0.5, momentum=0.9))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    np.testing.assert_allclose(state["momentum_buffer"], -other["velocity"], rtol=1e-12)


def test_two_steps_of_adam_by_hand():
    # Kingma and Ba (arXiv 1412.6980), Algorithm 1, with g = -u; u = 2, then -1; rate .1, betas (.5, .75), eps 1.
    # m = .5 g: -1, then .5 * -1 + .5 * 1 = 0. v = .25 g^2: 1, then .75 * 1 + .25 = 1.
    # Corrected: m / (1 - .5) = -2, v / (1 - .75) = 4, so x = .1 * 2 / (2 + 1); the second step has m = 0.
    step = TorchOptimizer("Adam", lr=0.1, options={"betas": [0.5, 0.75], "eps": 1.0})
    one = np.zeros(1, np.float32)
    x, state = run(step, params=one, given=[np.array([2.0])])
    np.testing.assert_allclose(x, [0.2 / 3], rtol=1e-6)
    x, state = step.apply(x, state, np.array([-1.0]))
    np.testing.assert_allclose(x, [0.2 / 3], rtol=1e-6)
    assert (state["exp_avg"].item(), state["exp_avg_sq"].item(), state["step"].item()) == (0.0, 1.0, 2.0)


@pytest.mark.parametrize("name", [name for name in ALL if name not in REFUSED])
def test_a_state_that_was_stored_goes_on_as_if_the_optimizer_had_stayed(name):
    # The optimizer that torch keeps alive over all steps is what ours, made anew in each round, must equal. Only the
    # parameters are rounded to float32 between rounds, as a model is.
    options = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    params, state = np.linspace(-1, 1, D).astype(np.float32), {}
    vector = torch.from_numpy(params).double().requires_grad_()
    alive = getattr(torch.optim, name)([vector], lr=0.01, **options)
    for update in updates():
        vector.grad = torch.from_numpy(-update)
        alive.step()
        with torch.no_grad():
            vector.copy_(vector.float().double())
        stored = {key: np.frombuffer(value.tobytes(), value.dtype).reshape(value.shape) for key, value in state.items()}
        params, state = TorchOptimizer(name, lr=0.01, options=options).apply(params, stored, update)
        assert params.tobytes() == vector.detach().float().numpy().tobytes()
    assert all(isinstance(value, np.ndarray) for value in state.values())


def test_nothing_that_is_handed_in_is_written_to():
    step = TorchOptimizer("Adam")
    params, state = run(step)
    update = np.ones(D)
    kept = {key: value.copy() for key, value in state.items()}
    for array in (params, update, *state.values()):
        array.setflags(write=False)
    step.apply(params, state, update)
    assert all((state[key] == value).all() for key, value in kept.items())


def test_the_number_of_threads_changes_no_bit_and_is_left_as_it_was():
    before, size = torch.get_num_threads(), 200_003  # torch cuts vectors of more than 32768 numbers among threads
    params, update = np.ones(size, np.float32), generator(0, "update").standard_normal(size)
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(run(TorchOptimizer("NAdam"), params=params, given=[update] * 2)[0].tobytes())
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert results[0] == results[1]


def test_an_unknown_optimizer_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"must be a class of torch\.optim; got 'AdamV'\. Did you mean 'Adam"):
        TorchOptimizer("AdamV")
    with pytest.raises(ConfigError, match="got 'Optimizer'"):
        TorchOptimizer("Optimizer")


def test_an_optimizer_that_needs_more_than_a_gradient_is_refused():
    with pytest.raises(ConfigError, match="LBFGS evaluates the loss several times per step"):
        TorchOptimizer("LBFGS")
    with pytest.raises(ConfigError, match="SparseAdam does not support dense gradients"):
        TorchOptimizer("SparseAdam")


@pytest.mark.parametrize(
    ("options", "said"),
    [({"betas": [1.0, 2.0]}, "Invalid beta"), ({"betta": 1}, "unexpected keyword"), ({"lr": 1.0}, "option `lr`")],
)
def test_options_that_torch_refuses_are_refused_before_the_run(options, said):
    with pytest.raises(ConfigError, match=said):
        TorchOptimizer("Adam", options=options)


@pytest.mark.parametrize("rate", [0.0, -1.0, np.inf, np.nan])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(ConfigError, match=rf"TorchOptimizer\.lr must be positive( and finite)?; got {rate}"):
        TorchOptimizer("Adam", lr=rate)
