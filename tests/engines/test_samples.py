"""Model inputs, predictions and training losses against the formulas."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.data.datasets import from_arrays
from fedreach.engines.batches import Samples
from fedreach.engines.choice import build_engine
from fedreach.engines.engine import TorchEngine
from fedreach.engines.manual import Manual
from fedreach.engines.models.networks import build
from fedreach.engines.native.trainer import Native
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.engines.vmap import Vmap
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg


def samples_of(d):
    return Samples(d.train_x, d.train_y, d.kind, d.mean, d.std, torch.device("cpu"))


def test_images_are_scaled_and_normalised_channel_by_channel():
    x = generator(0, "images").integers(256, size=(6, 3, 4, 5)).astype(np.uint8)
    x.setflags(write=False)
    d = from_arrays(x, np.arange(6) % 2, mean=[0.1, 0.2, 0.3], std=[0.5, 1.0, 2.0])
    inputs, labels = samples_of(d).batch(torch.tensor([4, 0]))
    mean, std = (np.array(v).reshape(3, 1, 1) for v in ([0.1, 0.2, 0.3], [0.5, 1.0, 2.0]))
    assert inputs.dtype == torch.float32
    np.testing.assert_allclose(inputs.numpy(), (x[[4, 0]] / 255 - mean) / std, rtol=0, atol=1e-6)
    assert labels.tolist() == [0, 0]


def test_normalised_images_have_mean_zero_and_deviation_one():
    x = generator(0, "images").integers(30, 200, size=(50, 3, 4, 4)).astype(np.uint8)
    inputs, _ = samples_of(from_arrays(x, np.zeros(50, int), num_classes=2)).batch(torch.arange(50))
    np.testing.assert_allclose(inputs.mean(dim=(0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(inputs.std(dim=(0, 2, 3), correction=0), 1, atol=1e-5)


def test_features_stay_as_they_are():
    x = generator(0, "features").standard_normal((6, 4)).astype(np.float32)
    inputs, _ = samples_of(from_arrays(x, np.zeros(6, int), num_classes=2)).batch(torch.tensor([5, 1]))
    np.testing.assert_array_equal(inputs.numpy(), x[[5, 1]])


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_tokens_stay_whole_numbers(dtype):
    x = generator(0, "tokens").integers(9, size=(6, 4)).astype(dtype)
    inputs, _ = samples_of(from_arrays(x, np.zeros(6, int), kind="tokens", num_classes=9)).batch(torch.tensor([5, 1]))
    assert inputs.dtype == torch.int64
    np.testing.assert_array_equal(inputs.numpy(), x[[5, 1]])


def test_an_index_of_any_shape_gives_a_batch_of_that_shape():
    x = generator(0, "images").integers(256, size=(6, 1, 4, 4)).astype(np.uint8)
    samples = samples_of(from_arrays(x, [0, 1, 2, 0, 1, 2]))
    index = torch.tensor([[1, 3, 0], [5, 5, 2]])
    inputs, labels = samples.batch(index)
    assert inputs.shape == (2, 3, 1, 4, 4)
    assert labels.tolist() == [[1, 0, 0], [2, 2, 2]]
    for i in range(2):
        assert torch.equal(inputs[i], samples.batch(index[i])[0])


def test_other_labels_leave_the_samples_and_their_labels_alone():
    samples = samples_of(from_arrays(np.zeros((3, 2), np.float32), [0, 1, 1]))
    other = samples.with_labels(np.array([1, 1, 0]))
    assert (samples.y.tolist(), other.y.tolist()) == ([0, 1, 1], [1, 1, 0])
    assert other.x.data_ptr() == samples.x.data_ptr()


@pytest.fixture
def linear_engine(federated):
    """An engine on features in the plane, and the loss of each training sample at the initial model by hand."""
    data = federated((9, 1, 600), shape=(2,))  # more samples than an evaluation batch holds
    engine = TorchEngine(Sequential, Task(build("linear", (2,), 3, seed=0), data, FedAvg(), LocalSGD(), seed=0))
    weight, bias = engine.initial[:6].reshape(3, 2).astype(float), engine.initial[6:].astype(float)
    logits = data.dataset.train_x @ weight.T + bias
    normaliser = np.log(np.exp(logits).sum(axis=1))
    return engine, data, logits, normaliser - logits[np.arange(len(logits)), data.labels]


def test_predictions_are_those_of_the_model_in_the_order_asked_for(linear_engine):
    engine, data, logits, loss = linear_engine
    index = generator(0, "index").permutation(len(logits))[:577]
    right, losses = engine.predict(engine.initial, "train", index)
    np.testing.assert_array_equal(right, (logits.argmax(axis=1) == data.labels)[index])
    np.testing.assert_allclose(losses, loss[index], rtol=1e-5, atol=1e-6)


def test_no_samples_give_no_predictions(linear_engine):
    engine = linear_engine[0]
    right, loss = engine.predict(engine.initial, "test", np.empty(0, np.int64))
    assert (right.shape, right.dtype, loss.shape) == ((0,), np.bool_, (0,))


def test_the_training_loss_is_each_clients_own_mean(linear_engine):
    engine, data, _, loss = linear_engine
    for ids in ([0, 1, 2], [2], [1, 2], [2, 0]):
        expected = [loss[data.train[client]].mean() for client in ids]
        np.testing.assert_allclose(engine.training_loss(engine.initial, np.array(ids)), expected, rtol=1e-5)


def test_the_reported_loss_of_one_full_batch_step_is_the_training_loss_before_it(linear_engine):
    _, data, _, _ = linear_engine
    for kind in (Sequential, Vmap):
        engine = TorchEngine(
            kind, Task(build("linear", (2,), 3, seed=0), data, FedAvg(), LocalSGD(batch_size=1000), seed=0)
        )
        ids = np.arange(3)
        expected = engine.training_loss(engine.initial, ids)
        np.testing.assert_allclose(engine.train(engine.initial, ids, 1, 0.1).loss, expected, rtol=1e-5)


def test_the_loss_of_a_model_that_knows_nothing_is_the_logarithm_of_the_classes(linear_engine):
    engine = linear_engine[0]
    loss = engine.training_loss(np.zeros_like(engine.initial), np.arange(3))
    np.testing.assert_allclose(loss, math.log(3), rtol=1e-6)


def test_an_unknown_engine_or_device_is_refused(federated):
    parts = (build("linear", (4,), 3, seed=0), federated((3, 3)), FedAvg(), LocalSGD(), 0)
    with pytest.raises(ConfigError, match=r"Unknown engine 'vmaps'\. Did you mean 'vmap'"):
        build_engine("vmaps", Task(*parts))
    with pytest.raises(ConfigError, match=r"engine\.device must be a device that torch can use.* got 'gpu'"):
        build_engine("auto", Task(*parts), device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"a device that torch can use.* got 'cuda'"):
            build_engine("auto", Task(*parts), device="cuda")


@pytest.mark.parametrize(("kind", "threads"), [(Sequential, 1), (Vmap, 2), (Manual, 1), (Native, 1), (Native, 2)])
@pytest.mark.parametrize("split", ["train", "true", "test"])
def test_logits_say_what_predictions_say(split, kind, threads, federated, monkeypatch):
    monkeypatch.setattr("fedreach.engines.engine.EVALUATION_PART", 70)
    data = federated((300, 20), (5,))
    data = replace(data, labels=(data.labels + 1) % 3)  # label noise, which `true` is free of
    engine = TorchEngine(kind, Task(build("mlp", (5,), 3, seed=0), data, FedAvg(), LocalSGD(), 0), threads=threads)
    labels = {"train": data.labels, "true": data.dataset.train_y, "test": data.dataset.test_y}[split]
    index = generator(0, "index").permutation(len(labels))
    params = 5 * engine.initial
    logits, (right, loss) = engine.logits(params, split, index), engine.predict(params, split, index)
    assert (logits.shape, logits.dtype) == ((len(index), 3), np.float32)
    np.testing.assert_array_equal(logits.argmax(axis=1) == labels[index], right)
    own = np.log(np.exp(logits.astype(float)).sum(axis=1)) - logits[np.arange(len(index)), labels[index]]
    np.testing.assert_allclose(own, loss, rtol=1e-5, atol=1e-6)
    assert engine.logits(params, split, index[:0]).shape == (0, 3)


def test_a_split_that_this_federation_has_not_is_refused(linear_engine):
    engine = linear_engine[0]
    for ask in (engine.predict, engine.logits):
        with pytest.raises(ConfigError, match=r"one of 'train', 'true', 'test' for this federation; got 'server'"):
            ask(engine.initial, "server", np.arange(2))
