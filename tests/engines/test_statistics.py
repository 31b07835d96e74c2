"""BatchNorm layers refreshed by inputs: torch's own training mode says what comes out."""

import numpy as np
import pytest
import torch
from torch import nn

from fedreach._util.errors import ConfigError
from fedreach.engines.batches import BATCH
from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.flat import Layout, flatten
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.engines.trainer import answers
from fedreach.engines.vmap import Vmap
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.adaptation.methods import BatchNormRefresh
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.selection.random import Full
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg
from fedreach.federation.weighting import ByExamples


class Crossed(nn.Module):
    """Two layers of BatchNorm, of which the one that stands first comes last, and one that is not used."""

    def __init__(self):
        super().__init__()
        self.last, self.first, self.unused = nn.BatchNorm2d(4), nn.BatchNorm2d(2), nn.BatchNorm2d(3)
        self.enter, self.leave = nn.Conv2d(1, 2, 3), nn.Linear(4 * 16, 3)
        self.middle = nn.Conv2d(2, 4, 1)

    def forward(self, x):
        x = self.first(self.enter(x)).relu()
        return self.leave(self.last(self.middle(x)).relu().flatten(1))


def straight():
    return nn.Sequential(
        nn.BatchNorm2d(1), nn.Conv2d(1, 5, 3, 2), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3)
    )


def outputs(module, inputs):
    """Return what the module says of (m, 1, 6, 6) inputs."""
    return answers(module, Layout.of(module), flatten(module), torch.from_numpy(inputs), inputs=True)


def drawn(m, shape=(1, 6, 6), seed=0):
    return (3 + 2 * np.random.default_rng(seed).standard_normal((m, *shape))).astype(np.float32)


def made(kind):
    torch.manual_seed(0)
    return kind()


@pytest.mark.parametrize("m", [7, BATCH + 40])  # with one pass a batch, and with several
@pytest.mark.parametrize("kind", [straight, Crossed])
def test_own_statistics_alone_are_those_of_training_mode_on_all_inputs_at_once(kind, m):
    module, x = made(kind), drawn(m)
    layers = outputs(module, x).statistics
    found = layers.outputs(layers.refreshed(x, 0.0), x).logits
    with torch.no_grad():
        expected = made(kind).train()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


def test_running_statistics_count_for_as_many_inputs_as_the_strength_says():
    module, x = nn.Sequential(nn.BatchNorm2d(2), nn.Flatten()), drawn(6, (2, 3, 1))
    mean, variance, layers = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3)), outputs(module, x).statistics
    for strength, w in ((0.0, 1.0), (2.0, 0.75), (6.0, 0.5)):
        statistics = layers.refreshed(x, strength)
        expected = np.concatenate([w * mean, w * variance + (1 - w)])  # the layer begins with means 0, variances 1
        np.testing.assert_allclose(statistics, expected, rtol=1e-5)


def test_no_input_refreshes_nothing_and_a_single_one_gives_finite_numbers():
    module, x = made(straight), drawn(1)
    layers = outputs(module, x).statistics
    usual = [0.0] + [1.0] + [0.0] * 5 + [1.0] * 5  # as layers begin: means 0, variances 1
    assert layers.refreshed(x[:0], 0.0).tolist() == usual
    assert np.isfinite(layers.outputs(layers.refreshed(x, 0.0), x).logits).all()


def test_layers_with_one_value_an_input_keep_their_statistics():
    torch.manual_seed(0)
    x = drawn(9)
    module = nn.Sequential(*made(straight), nn.BatchNorm1d(3))
    layers = outputs(module, x).statistics
    statistics = layers.refreshed(x, 0.0)
    assert len(statistics) == 2 * (1 + 5)
    logits = layers.outputs(statistics, x).logits
    assert abs(logits.mean(axis=0)).max() > 0.05  # else they would be 0


def test_the_shared_model_stays_as_it_is():
    module, x = made(Crossed), drawn(9)
    layout, vector = Layout.of(module), flatten(module)
    kept, given = vector.clone(), x.copy()
    own = answers(module, layout, vector, torch.from_numpy(x), inputs=True)
    changed = own.statistics.outputs(own.statistics.refreshed(x, 1.0), x)
    assert vector.equal(kept)
    assert x.tobytes() == given.tobytes()
    assert not np.allclose(changed.logits, own.logits)
    assert own.again(x).logits.tobytes() == own.logits.tobytes()
    assert changed.statistics is not None  # the refreshed model can be refreshed, too


def test_a_large_mean_takes_no_digits_of_the_variance():
    x = drawn(50, (2, 3, 1)) + np.float32(1000.0)
    statistics = outputs(nn.Sequential(nn.BatchNorm2d(2), nn.Flatten()), x).statistics.refreshed(x, 0.0)
    np.testing.assert_allclose(statistics[2:], x.astype(np.float64).var(axis=(0, 2, 3)), rtol=1e-5)


def federation(adaptation):
    return Federation(
        Full(), ByExamples(), FedAvg(), LocalSGD(), Average(), cohort_size=2, seed=0, adaptation=adaptation
    )


@pytest.mark.parametrize("kind", [Sequential, Vmap])
def test_engines_say_what_a_refreshed_model_says_of_a_clients_examples(kind, federated):
    module, data = made(straight), federated((8, 6), (1, 6, 6), "image")
    engine = TorchEngine(kind, Task.of(module, data, federation(BatchNormRefresh())))
    assert engine.answers(engine.initial, "train", np.arange(5), inputs=False).statistics is None
    found = engine.answers(engine.initial, "train", np.arange(5), inputs=True)
    refreshed = found.statistics.outputs(found.statistics.refreshed(found.inputs, 0.0), found.inputs)
    with torch.no_grad():
        expected = module.train()(torch.from_numpy(found.inputs)).numpy()
    np.testing.assert_allclose(refreshed.logits, expected, rtol=0, atol=1e-5)
    assert found.at(slice(2)).statistics is found.statistics


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(36, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(36, 3), nn.BatchNorm1d(3)),
        nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), nn.Flatten(), nn.Linear(36, 3)),
    ],
)
def test_a_model_without_running_statistics_is_refused_before_it_is_trained(module, federated):
    data = federated((8, 6), (1, 6, 6), "image")
    with pytest.raises(ConfigError, match=r"BatchNormRefresh must have .* has no such layer\. Use adaptation 'l"):
        Task.of(module, data, federation(BatchNormRefresh()))
    Task.of(module, data, federation(LabelShift(guard=False)))


def test_a_model_of_words_is_refused_before_it_is_trained(federated):
    module = nn.Sequential(
        nn.Embedding(3, 4), nn.Unflatten(0, (-1, 1)), nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(20, 3)
    )
    with pytest.raises(ConfigError, match=r"must have numeric inputs, .*; got Sequential for tokens\. Use"):
        Task.of(module, federated((8, 6), (5,), "tokens"), federation(BatchNormRefresh()))
