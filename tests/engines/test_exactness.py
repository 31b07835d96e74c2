"""The seed decides a run, however it is carried out; and a run does train."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.networks import build
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.engines.vmap import Vmap
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.participation import Bernoulli
from fedreach.federation.selection.losses import PowerOfChoice
from fedreach.federation.selection.random import Full
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg, FedProx
from fedreach.federation.state import FederationState
from fedreach.federation.weighting import ByEntropy
from fedreach.runs.simulation import Simulation, simulate
from fedreach.testing.problems import tiny_data, tiny_simulation

from .tiny import changed, run


def whole(simulation):
    return changed(simulation, selection=PowerOfChoice(3), weighting=ByEntropy(), server=Average(0.5, 0.9))


def test_a_run_that_goes_on_from_a_stored_state_equals_one_that_never_stopped():
    simulation = replace(whole(tiny_simulation()), participation=Bernoulli(0.7))
    straight, reports = run(simulation, 8)
    half, _ = run(simulation, 4)
    # What a checkpoint keeps: numbers, not objects.
    parts = {p: {k: v.copy() for k, v in getattr(half, p).items()} for p in ("selection", "weighting")}
    server = tuple({k: v.copy() for k, v in state.items()} for state in half.server)
    arrays = half.models.copy(), half.clusters.copy(), half.loss.copy()
    restored = FederationState(half.round, *arrays, **parts, server=server, solver=half.solver)
    resumed, later = run(replace(whole(tiny_simulation()), participation=Bernoulli(0.7)), 4, restored)
    assert resumed.params.tobytes() == straight.params.tobytes()
    assert resumed.loss.tobytes() == straight.loss.tobytes()
    assert resumed.server[0]["velocity"].tobytes() == straight.server[0]["velocity"].tobytes()
    assert later == reports[4:]


def test_the_seed_decides_the_run():
    results = {seed: run(tiny_simulation(seed), 4)[0].params.tobytes() for seed in (0, 1)}
    assert results[0] != results[1]
    assert run(tiny_simulation(0), 4)[0].params.tobytes() == results[0]


def test_simulate_makes_model_and_engine_as_the_federation_says():
    base = tiny_simulation()
    federation = replace(base.federation, solver=FedProx(mu=0.5), local=LocalSGD(lr=0.3, batch_size=4))
    results = []
    for engine in ("sequential", "vmap"):
        made = simulate(base.data, "mlp", federation, rounds=3, model_options={"hidden": [4]}, engine=engine)
        assert (made.engine.name, made.rounds) == (engine, 3)
        results.append(run(made, 3)[0].params)
    np.testing.assert_allclose(results[0], results[1], rtol=0, atol=1e-5)  # float32 sums in another order
    other = simulate(base.data, "mlp", replace(federation, seed=1), rounds=3, model_options={"hidden": [4]})
    assert other.engine.initial.tobytes() != made.engine.initial.tobytes()


def test_clients_that_never_train_change_nothing():
    data = tiny_data()
    x, y = data.dataset.train_x.copy(), data.labels.copy()
    for client in data.population.unseen:
        for part in (data.train, data.held_out):
            x[part[client]] += 100.0
            y[part[client]] = 1 - y[part[client]]
    other = replace(data, dataset=replace(data.dataset, train_x=x, train_y=y), labels=y)
    base = whole(tiny_simulation())
    engine = TorchEngine(Sequential, Task(build("linear", (2,), 2, seed=0), other, FedAvg(), base.federation.local, 0))
    assert (
        run(replace(base, data=other, engine=engine), 5)[0].params.tobytes()
        == run(replace(base, engine=tiny_engine()), 5)[0].params.tobytes()
    )


def tiny_engine():
    return TorchEngine(
        Sequential, Task(build("linear", (2,), 2, seed=0), tiny_data(), FedAvg(), tiny_simulation().federation.local, 0)
    )


def test_training_improves_the_model():
    simulation = changed(tiny_simulation(), selection=Full())
    state, reports = run(simulation, 10)
    assert isinstance(simulation, Simulation)
    assert reports[-1].train_loss < reports[0].train_loss / 2
    losses = [simulation.engine.training_loss(p, np.arange(4)) for p in (simulation.start().params, state.params)]
    assert (losses[1] < losses[0]).all()


@pytest.mark.parametrize("kind", [Sequential, Vmap])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_engine_that_nobody_needs_gives_its_memory_back_at_once(kind, threads):
    simulation = tiny_simulation()
    engine = TorchEngine(
        kind, Task(simulation.engine.task.module, simulation.data, FedAvg(), LocalSGD(), 0), threads=threads
    )
    engine.train(engine.initial, np.arange(4), 1, 0.1)
    gone = weakref.ref(engine.trainer.samples["train"])
    gc.disable()  # no collector of cycles is to be needed
    try:
        del engine
        assert gone() is None
    finally:
        gc.enable()
