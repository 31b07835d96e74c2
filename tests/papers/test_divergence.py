"""The distance of a federated model from one that is trained on the pooled examples."""

from dataclasses import replace

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from fedreach.federation.local_sgd import LocalSGD, UnevenSteps
from fedreach.federation.selection.labels import Clustered
from fedreach.federation.selection.random import Full
from fedreach.runs.simulation import Simulation
from fedreach.testing.problems import tiny_simulation
from papers.divergence import weight_divergence


def changed(federation=(), **local) -> Simulation:
    """Return four clients of 8 examples, two in a round, with other options."""
    toy = tiny_simulation()
    local = replace(toy.federation.local, **local)
    federation = replace(toy.federation, local=local, **dict(federation))
    engine = type(toy.engine)(toy.engine.trainer.__class__, replace(toy.engine.task, local=local))
    return replace(toy, federation=federation, engine=engine, rounds=3)


def pooled_descent(simulation: Simulation, steps: int) -> list[np.ndarray]:
    """Return the models of each round of a plain loop of gradient descent on the examples of all participants."""
    data, lr = simulation.data, simulation.federation.local.lr
    rows = data.train.of(data.population.participants)[0]
    x, y = data.dataset.train_x[rows].astype(np.float64), np.eye(2)[data.labels[rows]]
    model = simulation.engine.initial.astype(np.float64)
    weight, bias, models = model[:4].reshape(2, 2), model[4:], []
    for _ in range(simulation.rounds):
        for _ in range(steps):
            logits = x @ weight.T + bias
            error = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True) - y
            weight, bias = weight - lr * error.T @ x / len(x), bias - lr * error.mean(axis=0)
        models.append(np.concatenate([weight.ravel(), bias]))
    return models


@pytest.mark.parametrize("steps", [1, 4])
def test_it_is_the_distance_from_gradient_descent_on_all_examples(steps):
    simulation = changed(steps=steps, batch_size=16)  # of the pooled 32, two clients' batches are all
    state, expected = simulation.start(), []
    for v in pooled_descent(simulation, steps):
        state = simulation.step(state).state
        expected.append(np.linalg.norm(state.params - v) / np.linalg.norm(v))
    np.testing.assert_allclose(list(weight_divergence(simulation)), expected, rtol=1e-4)
    assert min(expected) > 0.01


def test_one_full_step_of_all_clients_is_a_step_on_their_pooled_examples():
    everyone = {"selection": Full(), "cohort_size": 4}
    assert max(weight_divergence(changed(everyone, steps=1))) < 1e-6
    assert min(weight_divergence(changed(everyone, steps=5))) > 1e-4


@pytest.mark.parametrize(
    ("simulation", "message"),
    [
        (LocalSGD(), "needs a Simulation, .* got LocalSGD. Simulate the federation: on Flower"),
        (
            lambda: changed(steps=UnevenSteps(1, 3)),
            r"same number of local steps at all clients; got .* Set local.steps",
        ),
        (lambda: changed({"selection": Clustered()}), "needs one model that only clients train, .* got Clustered"),
    ],
)
def test_what_has_no_twin_is_refused(simulation, message):
    with pytest.raises(ConfigError, match=message):
        next(weight_divergence(simulation() if callable(simulation) else simulation))
