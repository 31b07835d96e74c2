"""Clients that take different numbers of steps train alike on all engines, alone or together, in one call or many."""

from __future__ import annotations

import numpy as np
import pytest

from fedreach.engines.engine import TorchEngine
from fedreach.engines.manual import Manual
from fedreach.engines.models.networks import build
from fedreach.engines.native import trainer
from fedreach.engines.native.trainer import Native
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.engines.vmap import Vmap
from fedreach.federation.local_sgd import LocalSGD, UnevenSteps
from fedreach.federation.solvers import FedAvg, FedProx

SIZES = (13, 2, 8, 6, 30, 5)
IDS = np.arange(len(SIZES))
HOW = {
    "plain": (LocalSGD(lr=0.1, batch_size=4, steps=UnevenSteps(1, 7)), FedAvg()),
    "corrected": (LocalSGD(lr=0.1, batch_size=4, steps=UnevenSteps(1, 7), momentum=0.5, clip_norm=1.0), FedProx(0.1)),
}


def engine(kind, model, data, how, threads=1):
    local, solver = HOW[how]
    module = build(model, data.dataset.train_x.shape[1:], 3, seed=1)
    return TorchEngine(kind, Task(module, data, solver, local, seed=3), threads=threads)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("kind", [Vmap, Manual, Native])
@pytest.mark.sampled(3)
def test_engines_follow_the_readable_one(kind, model, how, federated):
    data = federated(SIZES, (5,), "features")
    plain, other = (engine(each, model, data, how) for each in (Sequential, kind))
    for round_ in (1, 2):
        one, two = (each.train(each.initial, IDS, round_, 0.1) for each in (plain, other))
        wanted = HOW[how][0].steps_of(np.array(SIZES), IDS, 3, round_)
        assert one.steps.tolist() == two.steps.tolist() == wanted.tolist()
        assert len(set(wanted.tolist())) > 2
        np.testing.assert_allclose(two.update, one.update, rtol=0, atol=1e-6)
        np.testing.assert_allclose(two.loss, one.loss, rtol=1e-5)


@pytest.mark.parametrize("shape", [(5,), (600,)], ids=["narrow", "wide"])  # the wide first layer may stay unformed
def test_in_c_neither_company_nor_pauses_change_a_bit(shape, federated, monkeypatch):
    data = federated(SIZES, shape, "features")
    made = engine(Native, "mlp", data, "plain")
    together = made.train(made.initial, IDS, 1, 0.1)
    for i in IDS:
        alone = made.train(made.initial, IDS[[i]], 1, 0.1)
        assert alone.update[0].tobytes() == together.update[i].tobytes()
        assert alone.steps[0] == together.steps[i]
    monkeypatch.setattr(trainer, "SECONDS", 0.0)
    monkeypatch.setattr(trainer, "LOOK", 1)
    paused = made.train(made.initial, IDS, 1, 0.1)
    assert paused.update.tobytes() == together.update.tobytes()
    assert paused.loss.tobytes() == together.loss.tobytes()
    monkeypatch.setattr(trainer, "draws_as_numpy_does", lambda: False)
    assert made.train(made.initial, IDS, 1, 0.1).update.tobytes() == together.update.tobytes()


@pytest.mark.parametrize("kind", [Sequential, Native])
def test_several_processes_give_the_same_bits(kind, federated):
    data = federated(SIZES, (5,), "features")
    one, three = (engine(kind, "mlp", data, "plain", threads) for threads in (1, 3))
    a, b = (each.train(each.initial, IDS, 1, 0.1) for each in (one, three))
    assert a.update.tobytes() == b.update.tobytes()
    assert a.steps.tolist() == b.steps.tolist()
