"""Checks pass what the protocols allow: FedNova, whose memory corrects no gradient. Parts near it that err fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedreach.data.assignment import Partition
from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.networks import build
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.weighting import ByExamples, Equal
from fedreach.runs.simulation import Simulation
from fedreach.testing.problems import tiny_simulation
from fedreach.testing.verify import check_component, checks_of, kind_of

from . import fednova

EXAMPLES = [3, 12, 24]


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("solver", fednova.FedNova()),
        ("solver", fednova.FedNovaByNormalisedUpdates()),
        ("solver", fednova.Undone()),
        ("weighting", fednova.PerStep()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_correct_fednova_passes_all_checks(kind, part):
    assert kind_of(part) == kind
    results = check_component(kind, part)
    assert not results.failures, "\n".join(map(str, results.failures))
    assert results.checks == len(checks_of(kind))


@pytest.mark.parametrize(
    ("solver", "weighting"),
    [
        (fednova.FedNova(), Equal()),
        (fednova.FedNovaByNormalisedUpdates(), Equal()),
        (fednova.Undone(epochs=2, batch_size=5), fednova.PerStep(epochs=2, batch_size=5)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_it_moves_as_the_paper_says_where_clients_take_different_numbers_of_steps(solver, weighting):
    made = tiny_simulation()
    owner = np.repeat(np.arange(4), [*EXAMPLES, 60 - sum(EXAMPLES)])
    partition = Partition.from_owner(owner, num_clients=4, kind="natural")
    train = replace(made.data.train, order=partition.order, offsets=partition.offsets)
    population = replace(made.data.population, participants=np.arange(3))
    data = replace(made.data, partition=partition, train=train, population=population)
    local = LocalSGD(lr=0.5, epochs=2, batch_size=5)
    module = build("linear", (2,), 2, seed=0)

    def after_a_round(solver, weighting):
        federation = replace(made.federation, solver=solver, weighting=weighting, local=local, cohort_size=3)
        simulation = Simulation(federation, data, TorchEngine(Sequential, Task.of(module, data, federation)), rounds=10)
        return simulation, simulation.step(simulation.start()).state.params

    simulation, params = after_a_round(solver, weighting)
    start = simulation.start().params
    trained = simulation.engine.train(start, np.arange(3), round_=1, lr=0.5)
    tau = 2 * np.ceil(np.array(EXAMPLES) / 5)  # epochs times batches: 2, 6 and 10 steps
    assert trained.steps.tolist() == tau.tolist()
    p = np.array(EXAMPLES) / sum(EXAMPLES)
    expected = start + (p @ tau) * ((p / tau) @ trained.update.astype(np.float64))
    np.testing.assert_allclose(params, expected, rtol=0, atol=2e-6)
    plain = after_a_round(made.federation.solver, ByExamples())[1]
    assert np.abs(plain - expected).max() > 1e-3, "FedAvg moves elsewhere, or this test shows nothing"


def test_a_fednova_that_counts_for_others_or_divides_by_nothing_is_refused():
    class ByPlace(fednova.FedNova):
        """The steps of those who came first, whoever they are."""

        def remember(self, memory, state, update, steps, rate):
            return (memory + steps[:1, None]).astype(np.float32)

    class Empty(fednova.FedNova):
        """Divides by the steps of clients that took none."""

        def remember(self, memory, state, update, steps, rate):
            return memory

    for part, check in ((ByPlace(), "client memory is independent"), (Empty(), "resuming from a file")):
        assert check in {failure.check for failure in check_component("solver", part).failures}
