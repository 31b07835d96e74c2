"""HiCS: what the bias of the output layer tells of a client's labels."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from fedreach._util.errors import ComponentError
from fedreach._util.streams import generator
from fedreach.engines.models.flat import Layout
from fedreach.engines.models.networks import build
from fedreach.federation.selection.labels import HiCS, estimated_entropy
from fedreach.federation.types import ServerView
from fedreach.testing.problems import tiny_simulation

from .small import make_reports


def test_the_entropy_is_that_of_the_softmax():
    shares = np.array([[0.5, 0.25, 0.25], [0.98, 0.01, 0.01]])
    expected = -(shares * np.log(shares)).sum(axis=1)
    np.testing.assert_allclose(estimated_entropy(0.3 * np.log(shares) + 7, 0.3), expected, rtol=1e-12)
    np.testing.assert_allclose(estimated_entropy(np.array([[0.0, 1e9]]), 1e-3), [0.0])  # nothing overflows


@pytest.mark.parametrize("name", ["linear", "mlp", "lenet", "resnet20"])
def test_built_in_models_end_in_the_bias_of_their_output_layer(name):
    assert Layout.of(build(name, (1, 28, 28), 7, seed=0)).output_bias == 7


def test_other_ends_of_a_model_have_no_output_bias():
    for last in (nn.Linear(3, 2, bias=False), nn.GroupNorm(1, 2)):
        assert Layout.of(nn.Sequential(nn.Linear(3, 3), last)).output_bias is None


def test_a_model_without_one_is_refused():
    policy, view = HiCS(), ServerView.of(np.arange(3), np.full(3, 10))
    with pytest.raises(ComponentError, match=r"HiCS requires a model whose last trained parameters are the bias"):
        policy.observe(policy.init(view), replace(make_reports([0, 1]), output_bias=None))


def test_what_it_keeps_is_the_bias_that_clients_sent():
    simulation = tiny_simulation()
    simulation = replace(simulation, federation=replace(simulation.federation, selection=HiCS()))
    state = simulation.start()
    done = simulation.step(state)
    rows = simulation.first_view.rows(np.array(done.result.cohort))
    np.testing.assert_array_equal(done.state.selection["bias"][rows], done.update[:, -2:])
    assert done.state.selection["heard"].sum() == len(rows)


def test_without_hearing_anybody_a_choice_is_uniform():
    policy, view, count = HiCS(), ServerView.of(np.arange(4), np.array([1, 1, 1, 997])), np.zeros(4)
    for seed in range(400):
        count[policy.select(policy.init(view), view, 2, generator(seed, "select")).ids] += 1
    assert abs(count / 400 - 0.5).max() < 5 * 0.5 / np.sqrt(400)
