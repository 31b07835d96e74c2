"""What `auto` takes, and what it says about it."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from fedreach._util.errors import ConfigError
from fedreach.engines.choice import ENGINES, build_engine, choose
from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.networks import build
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg, Scaffold

SIZES = (60, 40, 40, 30, 20)
TRIED = set(ENGINES)


def no_chain():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.mark.slow
def test_auto_takes_the_fastest_whichever_that_is(federated):
    data = federated(SIZES, (4,), "features")
    for name in TRIED:
        module = no_chain() if name == "vmap" else build("mlp", (4,), 3, seed=0, options={"hidden": [5]})
        with pytest.MonkeyPatch.context() as patch:
            for other in TRIED - {name}:
                patch.setitem(ENGINES, other, _sluggish(ENGINES[other]))
            if name == "manual":  # only tried where there is no compiler
                patch.setitem(ENGINES, "native", Nowhere)
            chosen = choose(Task(module, data, FedAvg(), LocalSGD(), 0))
            assert chosen.name == name
            assert min(chosen.seconds.values()) == chosen.seconds[name] > 0
            assert f"engine {name}: {name}" in str(chosen)


class Nowhere(Sequential):
    """An engine that trains nothing here."""

    def __init__(self, task, device):
        raise ConfigError("no C compiler was found")


def _sluggish(kind):
    def train_group(self, *arguments):
        for _ in range(300):
            found = kind.train_group(self, *arguments)
        return found

    return type(kind.__name__, (kind,), {"train_group": train_group})


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("solver", [FedAvg(), Scaffold()])
def test_every_engine_that_can_train_the_model_is_tried(solver, federated):
    images = federated(SIZES, (1, 16, 16), "image")
    chosen = choose(Task(build("lenet", (1, 16, 16), 3, seed=0), images, solver, LocalSGD(), 0), cohort_size=2)
    assert set(chosen.seconds) == {"native", "sequential"}  # the others do the same with more around it
    assert not chosen.refused
    options = {"width": 2, "norm": "batch"}
    chosen = choose(Task(build("resnet20", (1, 16, 16), 3, seed=0, options=options), images, solver, LocalSGD(), 0))
    assert set(chosen.seconds) == {"sequential", "vmap"}
    for name in ("manual", "native"):
        assert "running_mean is not trained" in chosen.refused[name]
    assert "running_mean is not trained" in str(chosen)


def test_without_a_compiler_the_chain_is_tried_in_its_place(federated, monkeypatch):
    monkeypatch.setitem(ENGINES, "native", Nowhere)
    data, module = federated(SIZES, (4,), "features"), build("linear", (4,), 3, seed=0)
    chosen = choose(Task(module, data, FedAvg(), LocalSGD(), 0))
    assert set(chosen.seconds) == {"manual", "sequential"}
    assert "no C compiler was found" in str(chosen)


def test_what_auto_builds_trains_with_the_options_that_it_was_given(federated):
    data, module = federated(SIZES, (4,), "features"), build("linear", (4,), 3, seed=0)
    local = LocalSGD(epochs=3, batch_size=7)
    engine = build_engine("auto", Task(module, data, FedAvg(), local, 5), cohort_size=2)
    assert (engine.task.local, engine.task.seed) == (local, 5)
    plain = TorchEngine(Sequential, Task(module, data, FedAvg(), local, 5))
    one, other = (e.train(e.initial, np.arange(5), 1, 0.1).update for e in (engine, plain))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_a_stack_that_pays_for_many_clients_only_is_found(federated):
    """One client alone trains several times faster one after the other; fifty do not."""
    data = federated((40,) * 50, (4,), "features")
    assert choose(Task(no_chain(), data, FedAvg(), LocalSGD(), 0), cohort_size=50).name == "vmap"
    assert choose(Task(no_chain(), data, FedAvg(), LocalSGD(), 0), cohort_size=1).name == "sequential"


def test_a_model_that_no_engine_can_train_is_refused_with_the_reason(federated):
    data = federated(SIZES, (4,), "features")
    with pytest.raises(ConfigError, match="must accept two examples"):
        choose(Task(nn.Linear(5, 3), data, FedAvg(), LocalSGD(), 0))


def test_a_misspelt_engine_is_answered_with_the_nearest_name(federated):
    data, module = federated(SIZES, (4,), "features"), build("linear", (4,), 3, seed=0)
    with pytest.raises(ConfigError, match="manual"):
        build_engine("chains", Task(module, data, FedAvg(), replace(LocalSGD(), epochs=2), 0))
