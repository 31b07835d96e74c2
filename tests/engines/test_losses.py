"""Clients train by the loss of their federation: engines that have cross-entropy written out refuse others."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from fedreach.engines import Chain, Native, Sequential, Stacked, Task, TorchEngine, choose
from fedreach.errors import ConfigError, PartError, TrainingError
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.losses import CrossEntropy, FunctionLoss
from fedreach.federation.solvers import FedAvg
from fedreach.models import build
from fedreach.simulation.simulation import Simulation
from fedreach.testing.problems import tiny_simulation

IDS = np.arange(4)


def hinge(outputs, targets):
    """One vs rest: how far other classes come within 1 of the right one."""
    return (1 + outputs - outputs.gather(1, targets[:, None])).clamp(min=0).sum(1) - 1


@dataclass(frozen=True)
class Again(CrossEntropy):
    """Cross-entropy, but nobody says so of the new method."""

    def per_example(self, outputs, targets):
        return super().per_example(outputs, targets)


@pytest.fixture
def engine(federated):
    def made(kind, loss):
        module, data = build("mlp", (5,), 3, seed=1, options={"hidden": [4]}), federated((13, 2, 8, 6), (5,))
        return TorchEngine(kind, Task(module, data, FedAvg(), LocalSGD(batch_size=4), 3, loss))

    return made


@pytest.mark.parametrize("kind", [Sequential, Stacked])
def test_a_loss_that_is_cross_entropy_trains_to_the_same_bits(engine, kind):
    ours, theirs = (engine(kind, loss) for loss in (CrossEntropy(), Again()))
    a, b = (e.train(e.initial, IDS, 1, 0.1) for e in (ours, theirs))
    assert np.array_equal(a.update, b.update)
    assert np.array_equal(a.loss, b.loss)


@pytest.mark.parametrize("kind", [Chain, Native])
def test_engines_with_cross_entropy_written_out_refuse_another_loss(engine, kind):
    with pytest.raises(ConfigError, match=rf"engine.name = '{kind.name}' trains with cross-entropy only; got hinge"):
        engine(kind, FunctionLoss(hinge))
    with pytest.raises(ConfigError, match="got Again"):
        engine(kind, Again())


def test_two_engines_follow_another_loss_alike(engine):
    one, other = (engine(kind, FunctionLoss(hinge)) for kind in (Sequential, Stacked))
    a, b = (e.train(e.initial, IDS, 1, 0.1) for e in (one, other))
    assert np.allclose(a.update, b.update, atol=1e-6)
    assert np.allclose(a.loss, b.loss, atol=1e-6)
    plain = engine(Sequential, CrossEntropy()).train(one.initial, IDS, 1, 0.1)
    assert not np.allclose(a.update, plain.update, atol=1e-3)


def test_a_probe_tells_the_loss_that_is_trained(engine):
    made = engine(Sequential, FunctionLoss(hinge))
    told = made.training_loss(made.initial, IDS)
    index = made.task.data.train[2]
    outputs = torch.from_numpy(made.logits(made.initial, "train", index))
    assert told[2] == pytest.approx(
        float(hinge(outputs, torch.from_numpy(made.task.data.labels[index])).mean()), abs=1e-6
    )


def test_auto_takes_an_engine_that_follows_the_loss(engine):
    task = engine(Sequential, FunctionLoss(hinge)).task
    found = choose(task)
    assert found.name in ("sequential", "stacked")
    assert "cross-entropy only" in found.refused["native"]


def test_a_simulation_refuses_an_engine_with_another_loss():
    simulation = tiny_simulation()
    other = replace(simulation.federation, loss=FunctionLoss(hinge))
    with pytest.raises(ConfigError, match=r"federation.loss .* must be the same"):
        Simulation(other, simulation.data, simulation.engine, 3)


@pytest.mark.parametrize("kind", [Sequential, Stacked])
def test_the_mean_over_a_batch_is_refused(engine, kind):
    made = engine(kind, FunctionLoss(lambda outputs, targets: hinge(outputs, targets).mean()))
    with pytest.raises((PartError, TrainingError), match=r"must return one loss for each example, of shape \(\d+,\)"):
        made.train(made.initial, IDS, 1, 0.1)
