"""Clients train by the loss of their federation: engines that have cross-entropy written out refuse others."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from fedreach._util.errors import ComponentError, ConfigError, TrainingError
from fedreach.data.datasets import ServerData
from fedreach.engines import manual
from fedreach.engines.choice import ENGINES, choose
from fedreach.engines.engine import TorchEngine
from fedreach.engines.manual import Manual
from fedreach.engines.models.networks import build
from fedreach.engines.native.trainer import Native
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.engines.vmap import Vmap
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.losses import CrossEntropy, FunctionLoss, LogitAdjusted
from fedreach.federation.solvers import FedAvg
from fedreach.runs.simulation import Simulation
from fedreach.testing.problems import tiny_simulation

IDS = np.arange(4)
SGD = LocalSGD(batch_size=4)


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
    def made(kind, loss, how=SGD):
        module, data = build("mlp", (5,), 3, seed=1, options={"hidden": [4]}), federated((13, 2, 8, 6), (5,))
        return TorchEngine(kind, Task(module, data, FedAvg(), how, 3, loss))

    return made


@pytest.mark.parametrize("kind", [Sequential, Vmap])
def test_a_loss_that_is_cross_entropy_trains_to_the_same_bits(engine, kind):
    ours, theirs = (engine(kind, loss) for loss in (CrossEntropy(), Again()))
    a, b = (e.train(e.initial, IDS, 1, 0.1) for e in (ours, theirs))
    assert np.array_equal(a.update, b.update)
    assert np.array_equal(a.loss, b.loss)


@pytest.mark.parametrize("kind", [Manual, Native])
def test_engines_with_cross_entropy_written_out_refuse_another_loss(engine, kind):
    with pytest.raises(
        ConfigError,
        match=rf"engine.name = '{kind.name}' supports cross-entropy.* only; got the loss hinge",
    ):
        engine(kind, FunctionLoss(hinge))
    with pytest.raises(ConfigError, match="got the loss Again"):
        engine(kind, Again())


def test_two_engines_follow_another_loss_alike(engine):
    one, other = (engine(kind, FunctionLoss(hinge)) for kind in (Sequential, Vmap))
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
    assert found.name in ("sequential", "vmap")
    assert "cross-entropy only" in found.refused["native"]


def test_a_simulation_refuses_an_engine_with_another_loss():
    simulation = tiny_simulation()
    other = replace(simulation.federation, loss=FunctionLoss(hinge))
    with pytest.raises(ConfigError, match="The engine must have the same loss as the federation"):
        Simulation(other, simulation.data, simulation.engine, 3)


@pytest.mark.parametrize("kind", [Sequential, Vmap])
def test_the_mean_over_a_batch_is_refused(engine, kind):
    made = engine(kind, FunctionLoss(lambda outputs, targets: hinge(outputs, targets).mean()))
    with pytest.raises((ComponentError, TrainingError), match=r"must return one loss per example, of shape \(\d+,\)"):
        made.train(made.initial, IDS, 1, 0.1)


@dataclass(frozen=True)
class Shifted(CrossEntropy):
    """Cross-entropy of outputs to which a client adds what this says."""

    said: object = None

    def shift(self, counts):
        return self.said(counts)


@pytest.mark.parametrize("how", [LocalSGD(batch_size=4, epochs=2), LocalSGD(batch_size=5, momentum=0.5, clip_norm=1.0)])
@pytest.mark.parametrize("loss", [LogitAdjusted(), Shifted(lambda counts: 0.5 * counts - 1)])
@pytest.mark.parametrize("kind", [Vmap, Manual, Native])
def test_all_engines_shift_outputs_by_what_each_client_has(engine, kind, loss, how):
    one, other, plain = (engine(*pair, how) for pair in ((Sequential, loss), (kind, loss), (kind, CrossEntropy())))
    a, b, without = (e.train(e.initial, IDS, 1, 0.1) for e in (one, other, plain))
    np.testing.assert_allclose(b.update, a.update, atol=2e-6)
    np.testing.assert_allclose(b.loss, a.loss, rtol=1e-5)
    assert (abs(b.update - without.update).max(axis=1)[[0, 2, 3]] > 1e-3).all()  # client 1 has one example
    turned = other.train(other.initial, IDS[::-1], 1, 0.1)
    np.testing.assert_allclose(turned.update[::-1], b.update, atol=1e-6)  # each its own, wherever it stands


def test_a_first_layer_without_weights_of_its_own_is_shifted_as_well(engine, monkeypatch):
    monkeypatch.setattr(manual, "LARGE", 1)
    how = LocalSGD(batch_size=2, steps=2)
    one, other = (engine(kind, LogitAdjusted(), how) for kind in (Sequential, Manual))
    assert other.trainer._implicit(4)
    a, b = (e.train(e.initial, IDS, 1, 0.1) for e in (one, other))
    np.testing.assert_allclose(b.update, a.update, atol=2e-6)


@pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
def test_strength_0_is_cross_entropy_to_the_last_bit(engine, kind):
    one, other = (engine(kind, loss) for loss in (CrossEntropy(), LogitAdjusted(strength=0.0)))
    a, b = (e.train(e.initial, IDS, 1, 0.1) for e in (one, other))
    assert np.array_equal(a.update, b.update)
    assert np.array_equal(a.loss, b.loss)


def test_one_step_follows_softmax_of_the_shifted_outputs(engine):
    made = engine(Sequential, LogitAdjusted(), LocalSGD(batch_size=99))
    data, c = made.task.data, 3
    index = data.train[0]
    y = data.labels[index]
    n = np.bincount(y, minlength=c)
    z = made.logits(made.initial, "train", index).astype(float) + np.log(c * (n + 1) / (n.sum() + c))
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    bias = (p - np.eye(c)[y]).mean(axis=0)  # the gradient of the last bias
    moved = made.train(made.initial, IDS[:1], 1, 0.1).update[0, -c:]
    np.testing.assert_allclose(moved, -0.1 * bias, atol=1e-6)


def test_a_probe_tells_the_loss_of_shifted_outputs_and_evaluation_does_not(engine):
    shifted, plain = (engine(Native, loss) for loss in (LogitAdjusted(), CrossEntropy()))
    told = shifted.training_loss(shifted.initial, IDS)
    for client in IDS:
        index = shifted.task.data.train[int(client)]
        outputs = torch.from_numpy(shifted.logits(shifted.initial, "train", index)) + shifted.trainer.shifts[client]
        expected = CrossEntropy().per_example(outputs, torch.from_numpy(shifted.task.data.labels[index])).mean()
        assert told[client] == pytest.approx(float(expected), abs=1e-6)
    assert abs(told - plain.training_loss(plain.initial, IDS)).max() > 1e-3
    some = np.arange(9)
    for a, b in zip(*(e.predict(e.initial, "train", some) for e in (shifted, plain)), strict=True):
        assert np.array_equal(a, b)


def test_the_server_shifts_by_its_own_labels(federated):
    data = federated((13, 2, 8, 6), (5,))
    data = replace(data, server=ServerData(data.dataset.train_x[:7], np.array([0, 0, 0, 0, 1, 1, 2])))
    module, index = build("mlp", (5,), 3, seed=1, options={"hidden": [4]}), np.arange(7)
    engines = [
        TorchEngine(Sequential, Task(module, data, FedAvg(), LocalSGD(), 3, loss))
        for loss in (CrossEntropy(), LogitAdjusted())
    ]
    np.testing.assert_allclose(engines[1].trainer.server_shift, np.log(np.array([1.5, 0.9, 0.6])), rtol=1e-6)
    one, other = (e.server_step(e.initial, index, 1, 0.1) for e in engines)
    assert abs(one - other).max() > 1e-4


@pytest.mark.parametrize("said", [lambda counts: counts[:, :2], lambda counts: counts * np.nan, lambda counts: 1.0])
def test_a_shift_that_is_not_one_number_a_class_is_refused(engine, said):
    with pytest.raises(ComponentError, match=r"must return finite numbers of its argument's shape \(4, 3\)"):
        engine(Sequential, Shifted(said))
