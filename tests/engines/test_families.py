"""Families of models that are too large for the zoo's table, and what narrow types and adapters promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedreach as fr
from fedreach._util.errors import ConfigError
from fedreach.data.datasets import ServerData
from fedreach.deploy.export import export
from fedreach.deploy.saved import load
from fedreach.engines.choice import build_engine
from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.flat import Layout
from fedreach.engines.models.state import ModuleSnapshot
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.federation.local_sgd import LocalSGD, TorchSteps
from fedreach.federation.solvers import FedAvg
from fedreach.runs.callbacks import Callback

from .plain_torch import train
from .test_zoo import IDS, LOCAL, RATE, ROUND, SEED, SIZES, made
from .zoo import CLASSES, ZOO
from .zoo_families import Narrow, NarrowBody, ResNet18, bert, lora_by_peft

CLIENT = 1


def two_clients():
    """Return a federation whose two participants have 30 examples of 8 features each."""
    rng = np.random.default_rng(0)
    clients = {name: (rng.random((30, 8)), np.arange(30) % CLASSES) for name in "abc"}
    return fr.FederatedData.from_clients(clients, participants=["a", "b"])


def rows_of(model, method=None, **options):
    return list(fr.run(two_clients(), method or fr.Method(), model=model, cohort_size=2, rounds=2, **options))


def parameters_of(module):
    return sum(parameter.numel() for parameter in module.parameters())


# ------------------------------------------------------------------------------------------------ large models


def test_resnet18_has_the_parameters_of_torchvision():
    with torch.device("meta"):
        module = ResNet18(3, 1000)
    assert parameters_of(module) == 11_689_512  # torchvision.models.ResNet18_Weights.IMAGENET1K_V1.meta["num_params"]


@pytest.mark.slow
def test_resnet18_trains_as_torch_trains_it(federated):
    # The gradient is off by 1e-4 in float32, and by steps of 1e-3 BatchNorm over few places makes that 1 in four steps.
    gentle, two_steps = 1e-5, replace(LOCAL, steps=2)
    data = federated(SIZES, (1, 32, 32), "image", num_classes=CLASSES)
    torch.manual_seed(1)
    module = ResNet18(1, CLASSES)
    engine = TorchEngine(Sequential, Task(module, data, FedAvg(), two_steps, SEED))
    assert engine.num_trainable == parameters_of(module) > 11_000_000
    trained = engine.train(engine.initial, IDS[[CLIENT]], ROUND, gentle)
    expected, loss = train(module, data, CLIENT, two_steps, seed=SEED, round_=ROUND, lr=gentle)
    for name, values in engine.layout.views(torch.from_numpy(trained.update[0])).items():
        largest = float(expected[name].abs().max())
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=2e-3 * largest + 2.5e-7, err_msg=name)
    assert trained.loss[0] == pytest.approx(loss, rel=1e-5)


@pytest.mark.slow
def test_the_dropout_of_hugging_face_draws_the_masks_that_torch_draws(federated):
    data = federated(SIZES, ZOO["bert"].shape, "tokens", num_classes=CLASSES)
    torch.manual_seed(1)
    module = bert(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3)
    engine = build_engine("auto", Task(module, data, FedAvg(), LOCAL, SEED))
    assert engine.trainer.draws
    trained = engine.train(engine.initial, IDS[[CLIENT]], ROUND, RATE)
    expected, loss = train(module, data, CLIENT, LOCAL, seed=SEED, round_=ROUND, lr=RATE)
    for name, values in engine.layout.views(torch.from_numpy(trained.update[0])).items():
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=1e-5, err_msg=name)
    assert trained.loss[0] == pytest.approx(loss, rel=1e-4)


# ------------------------------------------------------------------------------------------------ adapters


def adapter():
    return made("LoRA")


@pytest.mark.parametrize(
    ("model", "trained", "constant"),
    [
        (adapter, 2 * 8 + CLASSES * 2, 8 * CLASSES + CLASSES),  # the thin layers; the frozen one with its bias
        pytest.param(
            lora_by_peft,
            2 * 8 + 12 * 2 + 12 * CLASSES + CLASSES,  # of rank 2 around 8 x 12, and the head
            8 * 12 + 12 + 12 * CLASSES + CLASSES,  # the layer below, and the head that peft keeps as it was
            marks=pytest.mark.slow,
        ),
    ],
)
def test_of_adapters_only_what_is_trained_travels(model, trained, constant):
    first, second = rows_of(model)
    assert first["bytes_down"] == 2 * 4 * (trained + constant)  # of two clients; constants are sent once
    assert second["bytes_down"] == 2 * 4 * trained
    assert second["bytes_up"] == 2 * 4 * (trained + 2)  # with the number of examples and the loss


class Told(Callback):
    """Keeps the lines about the engine and the model."""

    def begin(self, run, data, engine, folder):
        self.lines = engine.splitlines()


def test_a_pretrained_module_that_is_drawn_again_is_reported_with_what_keeps_it(tmp_path):
    torch.manual_seed(3)
    module, told = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, CLASSES)), Told()
    rows_of(module, out=tmp_path / "drawn", trackers=[told])
    size = 9 * 12 + 13 * CLASSES
    line = f"model: {size} parameters are trained and initialized again for each seed; keep_weights = true keeps the "
    assert [each for each in told.lines if each.startswith("model:")] == [line + "module's weights"]
    kept = {"name": module, "keep_weights": True}
    rows_of(kept, out=tmp_path / "kept", trackers=[told], local={"lr": 1e-9})
    assert not [each for each in told.lines if each.startswith("model:")]
    for name, values in load(tmp_path / "kept").net.named_parameters():
        torch.testing.assert_close(values, module.get_parameter(name), rtol=0, atol=1e-6)


def test_a_pretrained_body_from_a_file_stays_and_only_the_head_travels(tmp_path):
    torch.manual_seed(3)
    body = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU())
    body(torch.randn(50, 8))  # for statistics of its own
    torch.save(body.state_dict(), tmp_path / "body.pt")

    def fine_tuned(num_classes):
        module = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU())
        module.load_state_dict(torch.load(tmp_path / "body.pt"))
        return nn.Sequential(module.requires_grad_(False), nn.Linear(12, num_classes))

    told = Told()
    first, second = rows_of(fine_tuned, out=tmp_path / "run", trackers=[told])
    assert f"model: {13 * CLASSES} parameters are trained; {9 * 12 + 2 * 12} are frozen" in told.lines
    net = load(tmp_path / "run").net
    for name, values in body.named_parameters():
        assert torch.equal(net[0].get_parameter(name), values)
    head, statistics = 12 * CLASSES + CLASSES, 2 * 12  # BatchNorm's are averaged as it trains on
    frozen = 4 * (8 * 12 + 12 + 2 * 12) + 8  # BatchNorm's counter is an int64
    assert first["bytes_down"] == 2 * (4 * (head + statistics) + frozen)
    assert second["bytes_down"] == 2 * 4 * (head + statistics)


# ------------------------------------------------------------------------------------------------ narrow types


@pytest.mark.parametrize("engine", ["vmap", "native", "manual"])
def test_only_the_plain_engine_trains_narrow_parameters(engine, federated):
    data = federated(SIZES, (8,), num_classes=CLASSES)
    with pytest.warns(
        UserWarning,
        match=f"engine sequential: {engine} computes different results .*: only 'sequential' supports bfloat16",
    ):
        built = build_engine(engine, Task(Narrow(), data, FedAvg(), LOCAL, SEED))
    assert built.trainer.__class__.__name__ == "Sequential"


class NarrowWords(nn.Module):
    """A model that `native` trains where its parameters are float32."""

    def __init__(self):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(CLASSES, 4), nn.LSTM(4, 6, batch_first=True)
        self.head = nn.Linear(6, CLASSES)
        self.bfloat16()

    def forward(self, tokens):
        return self.head(self.lstm(self.embed(tokens))[0][:, -1])


@pytest.mark.parametrize("engine", ["vmap", "native"])
def test_other_engines_refuse_narrow_parameters_by_themselves(engine, federated):
    data = federated(SIZES, (6,), "tokens", num_classes=CLASSES)
    with pytest.raises(ConfigError, match="only 'sequential' supports bfloat16 parameters"):
        build_engine(engine, Task(NarrowWords(), data, FedAvg(), LOCAL, SEED), examined=True)


def test_narrow_parameters_are_averaged_in_float32_and_rounded_once(federated):
    data = federated(SIZES, (8,), num_classes=CLASSES)
    module = made("bfloat16")
    engine = TorchEngine(Sequential, Task(module, data, FedAvg(), LOCAL, SEED))
    between = engine.initial * np.float32(1 + 2**-10)  # not a bfloat16 number, but for zeros
    rounded = torch.from_numpy(between).bfloat16().float().numpy()
    assert (between != rounded).any()
    index = np.arange(9)
    np.testing.assert_array_equal(engine.logits(between, "train", index), engine.logits(rounded, "train", index))
    one, other = (start + engine.train(start, IDS, ROUND, RATE).update for start in (between, rounded))
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)  # the same local models
    local = torch.from_numpy(one)
    assert torch.allclose(local, local.bfloat16().float(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("optimizer", ["SGD", "RMSprop"])
def test_an_optimizer_of_torch_trains_narrow_parameters(optimizer, federated):
    data, module = federated(SIZES, (8,), num_classes=CLASSES), made("bfloat16")
    local = LocalSGD(batch_size=8, epochs=1, optimizer=TorchSteps(optimizer))
    engine = TorchEngine(Sequential, Task(module, data, FedAvg(), local, SEED))
    update = engine.train(engine.initial, IDS[[CLIENT]], ROUND, RATE).update[0]
    samples = data.train[CLIENT]  # of at most 8: one step
    x, y = torch.from_numpy(data.dataset.train_x[samples]), torch.from_numpy(data.labels[samples])
    before = {name: parameter.detach().clone().float() for name, parameter in module.named_parameters()}
    steps = getattr(torch.optim, optimizer)(module.train().parameters(), lr=RATE)
    nn.functional.cross_entropy(module(x), y).backward()
    steps.step()
    views = engine.layout.views(torch.from_numpy(update))
    for name, parameter in module.named_parameters():
        moved = parameter.detach().float() - before[name]
        assert moved.any()
        near = (views[name] - moved).abs() <= 1e-6  # another order of the batch rounds a gradient otherwise
        assert near.float().mean() > 0.9, name


def test_small_steps_of_a_server_add_up_though_narrow_parameters_would_not_show_them(federated):
    data = federated(SIZES, (8,), num_classes=CLASSES)
    data = replace(data, server=ServerData(data.dataset.train_x[:6], data.dataset.train_y[:6]))
    module = made("bfloat16")
    engine = TorchEngine(Sequential, Task(module, data, FedAvg(), LOCAL, SEED))
    index, rate = np.arange(6), 1e-4
    model = engine.initial * np.float32(1 + 2**-10)  # between two bfloat16 numbers
    move = engine.server_step(model, index, ROUND, rate)
    x, y = torch.from_numpy(data.server.x), torch.from_numpy(data.server.y)
    nn.functional.cross_entropy(module.train()(x), y).backward()
    for name, values in engine.layout.views(torch.from_numpy(move)).items():
        gradient = module.get_parameter(name).grad.float()  # at the rounded numbers, which are the initial ones
        torch.testing.assert_close(values, -rate * gradient, rtol=2**-8, atol=3e-8)


@pytest.mark.parametrize("model", [Narrow, NarrowBody])
def test_a_model_of_narrow_parameters_is_saved_and_loaded(model, tmp_path):
    rows_of(model, out=tmp_path / "run")
    net = load(tmp_path / "run").net
    export(load(tmp_path / "run"), tmp_path / "exported", "safetensors")
    again = load(tmp_path / "exported", model=model).net.state_dict()
    for name, values in net.state_dict().items():
        assert again[name].dtype == values.dtype
        assert torch.equal(again[name], values), name
    assert net.body.state_dict()[next(iter(net.body.state_dict()))].dtype == torch.bfloat16


def test_a_module_of_bfloat16_that_does_not_cast_its_inputs_is_told_how(federated):
    data = federated(SIZES, (8,), num_classes=CLASSES)
    with pytest.raises(ConfigError, match=r"bfloat16\. Cast inputs in forward\(\), as with x\.to\(torch\.bfloat16\)"):
        build_engine("auto", Task(nn.Linear(8, CLASSES).bfloat16(), data, FedAvg(), LOCAL, SEED))


def test_a_loss_that_sees_more_is_rejected_with_narrow_parameters():
    with pytest.raises(ConfigError, match=r"trained parameters of a model for .* must be float32; got bfloat16"):
        rows_of(Narrow, method=fr.Method(loss="fedsam"))


def test_statistics_of_a_narrow_type_are_averaged_where_parameters_are_narrow():
    assert Layout.of(nn.BatchNorm1d(2).bfloat16()).buffers == ("running_mean", "running_var")
    layer = nn.Linear(2, 2)
    layer.register_buffer("mask", torch.ones(2, dtype=torch.bfloat16))
    assert Layout.of(layer).buffers == ()  # a constant of its own type


def test_a_weight_that_a_hook_computes_is_no_state_of_the_module():
    module = made("old_weight_norm").train()
    before = ModuleSnapshot(module)
    with torch.no_grad():
        module[0].weight_g.mul_(2)
    module(torch.ones(2, 8))
    assert before.changed_names() == []
