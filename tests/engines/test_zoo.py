"""Whatever module is handed over: it is trained as torch trains it, or refused in words before the first round."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedreach._util.errors import ConfigError
from fedreach.engines.choice import build_engine
from fedreach.engines.models.draws import generator_states
from fedreach.engines.models.networks import build
from fedreach.engines.protocols import Task
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg

from . import zoo_families  # noqa: F401 (adds its members to the zoo)
from .plain_torch import inputs, train
from .zoo import CLASSES, ZOO

SIZES = (13, 8, 7)  # of which one each is held out: in batches of 4, no client has a last one of a single example
IDS = np.arange(len(SIZES))
LOCAL = LocalSGD(batch_size=4, epochs=2)
ROUND, RATE, SEED = 3, 0.0625, 5  # bfloat16 has this rate, to whose type torch rounds it on a CPU
SAME = 1e-5

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's, of a layer under vmap


def made(name, **options):
    """Return a module of the zoo, always with the same numbers."""
    member = ZOO[name]
    return build(partial(member.make, **options), member.shape, CLASSES, seed=1)


def cases():
    for name, member in ZOO.items():
        marks = [pytest.mark.slow] if member.slow else []
        yield pytest.param(name, marks=marks)


def engine_of(name, data, engine="auto", **options):
    return build_engine(engine, Task(made(name, **options), data, FedAvg(), LOCAL, SEED))


def outputs_of(module, x):
    with torch.no_grad():
        return module.eval()(x)


def check_as_torch(engine, name, data, **options):
    """Compare an engine with torch, in training and in evaluation."""
    found = engine.train(engine.initial, IDS, ROUND, RATE)
    for client in IDS:
        module = made(name, **options)
        expected, loss = train(module, data, client, LOCAL, seed=SEED, round_=ROUND, lr=RATE)
        ours = engine.layout.views(torch.from_numpy(found.update[client]))
        assert ours.keys() <= expected.keys()
        for tensor, values in ours.items():
            np.testing.assert_allclose(values, expected[tensor], rtol=0, atol=SAME, err_msg=tensor)
        exact = outputs_of(module, inputs(data, data.train[client])).dtype == torch.float32
        assert found.loss[client] == pytest.approx(loss, rel=10 * SAME if exact else 2**-7)
        if ZOO[name].draws:
            continue  # each example has its own draws there
        index = data.train[client]
        received = made(name, **options)  # all that leaves a client are its numbers
        sent = {tensor: values for tensor, values in module.state_dict().items() if tensor in engine.layout.names}
        received.load_state_dict(sent, strict=False)
        outputs = outputs_of(received, inputs(data, index)).float()
        model = engine.initial + found.update[client]
        np.testing.assert_allclose(engine.logits(model, "train", index), outputs.numpy(), rtol=0, atol=10 * SAME)
        losses = F.cross_entropy(outputs, torch.from_numpy(data.labels[index]), reduction="none")
        np.testing.assert_allclose(engine.predict(model, "train", index)[1], losses.numpy(), rtol=0, atol=10 * SAME)


@pytest.mark.parametrize("name", list(cases()))
@pytest.mark.sampled(5)
def test_what_auto_takes_trains_as_torch_does(name, federated):
    member = ZOO[name]
    data = federated(SIZES, member.shape, member.kind, num_classes=CLASSES)
    options = {"p": 0.0} if member.drops else {}  # engines draw other masks, by design
    check_as_torch(engine_of(name, data, **options), name, data, **options)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["native", "manual", "sequential", "vmap"])
@pytest.mark.parametrize("name", ZOO)
def test_an_engine_that_is_named_trains_as_torch_does_or_gives_way_or_refuses(name, engine, federated):
    check_named_engine(name, engine, federated)


def built(name, data, engine, **options):
    """Return the engine, or how it is refused."""
    try:
        return engine_of(name, data, engine, **options)
    except ConfigError as error:
        return error


def check_named_engine(name, engine, federated):
    member = ZOO[name]
    data = federated(SIZES, member.shape, member.kind, num_classes=CLASSES)
    options = {"p": 0.0} if member.drops else {}  # engines draw other masks, by design
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made_engine = built(name, data, engine, **options)
    if isinstance(made_engine, ConfigError):
        assert f"engine.name = {engine!r}" in str(made_engine)
        return
    if made_engine.name != engine:
        assert made_engine.name == "sequential"
        assert any(f"engine sequential: {engine} computes different results" in str(each.message) for each in told)
    check_as_torch(made_engine, name, data, **options)


@pytest.mark.parametrize("name", [name for name, member in ZOO.items() if member.drops])
def test_the_plain_engine_draws_the_masks_that_torch_draws(name, federated):
    member = ZOO[name]
    data = federated(SIZES, member.shape, member.kind, num_classes=CLASSES)
    check_as_torch(engine_of(name, data, "sequential"), name, data)


@pytest.mark.parametrize("name", [name for name, member in ZOO.items() if member.drops])
def test_a_model_that_drops_numbers_is_not_refused_for_its_masks(name, federated):
    member = ZOO[name]
    data = federated(SIZES, member.shape, member.kind, num_classes=CLASSES)
    assert engine_of(name, data, "vmap").name == "vmap"


@pytest.mark.parametrize("name", [name for name, member in ZOO.items() if member.draws])
def test_what_draws_gives_the_same_numbers_whoever_else_is_evaluated(name, federated):
    member = ZOO[name]
    data = federated(SIZES, member.shape, member.kind, num_classes=CLASSES)
    engine = engine_of(name, data, "sequential")
    before = generator_states()
    every = np.arange(9)
    all_at_once = engine.logits(engine.initial, "train", every)
    engine.train(engine.initial, IDS, ROUND, RATE)
    assert engine.logits(engine.initial, "train", every).tobytes() == all_at_once.tobytes()
    one_by_one = engine.trainer.behavior.draws_in_evaluation
    rounding = 0 if one_by_one else 1e-6  # else kernels add up larger batches otherwise
    for found in (
        engine.logits(engine.initial, "train", every[3:5]),
        engine.answers(engine.initial, "train", every[3:5], inputs=True).logits,
    ):
        np.testing.assert_allclose(found, all_at_once[3:5], rtol=0, atol=rounding)
    one, other = (engine.train(engine.initial, ids, ROUND, RATE).update for ids in (IDS, IDS[1:]))
    assert one[1:].tobytes() == other.tobytes()
    assert generator_states() == before


@pytest.mark.parametrize("name", ["Probe", "Detached", "FrozenByTrain", "Temperature", "mlp"])
def test_weight_decay_leaves_what_has_no_gradient_as_it_is(name, federated, monkeypatch):
    data, decayed = federated(SIZES, (8,), num_classes=CLASSES), replace(LOCAL, weight_decay=0.3)
    engine = build_engine("auto", Task(made(name), data, FedAvg(), decayed, SEED))
    monkeypatch.setattr(torch.optim, "SGD", partial(torch.optim.SGD, weight_decay=0.3))
    check_as_torch(engine, name, data)


def test_the_zoo_is_large():
    assert len(ZOO) >= 60
