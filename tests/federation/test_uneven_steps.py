"""Local steps that differ between clients, and FedNova, which makes up for it."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from fedreach.data.assignment import Partition
from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.networks import build
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.federation.aggregation import MIFA
from fedreach.federation.local_sgd import LocalSGD, UnevenSteps
from fedreach.federation.secure_aggregation import SecureAggregation
from fedreach.federation.selection.random import Full
from fedreach.federation.types import ClientResults
from fedreach.federation.weighting import ByExamples, Clip, Equal, FedNova
from fedreach.runs.simulation import Simulation
from fedreach.testing.problems import tiny_simulation

from ..quadratics import two_quadratics  # noqa: TID252 (tests are no package that has a name)

IDS = np.arange(2000)


# ----------------------------------------------------------------------------------------------- what is drawn


def test_all_numbers_come_up_equally_often():
    steps = UnevenSteps(3, 6).of(IDS, seed=1, round_=1)
    counts = np.bincount(steps, minlength=7)[3:]
    assert counts.sum() == len(IDS)
    assert np.abs(counts - 500).max() < 5 * np.sqrt(2000 * 0.25 * 0.75)  # five standard errors


def test_a_clients_steps_do_not_depend_on_who_else_is_asked_for():
    drawn = UnevenSteps(1, 1000)
    together = drawn.of(IDS, seed=1, round_=2)
    assert [int(drawn.of(IDS[[i]], 1, 2)[0]) for i in (0, 7, 1999)] == together[[0, 7, 1999]].tolist()
    assert drawn.of(IDS[::-1], 1, 2).tolist() == together[::-1].tolist()
    assert drawn.of(IDS[:0], 1, 2).shape == (0,)


def test_they_are_drawn_once_a_client_or_in_each_round():
    each, once = UnevenSteps(1, 9), UnevenSteps(1, 9, drawn="client")
    assert (each.of(IDS, 1, 1) != each.of(IDS, 1, 2)).any()
    assert (once.of(IDS, 1, 1) == once.of(IDS, 1, 2)).all()
    assert (once.of(IDS, 1, 1) != once.of(IDS, 2, 1)).any()  # by the seed of the run


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min": 0, "max": 3}, "UnevenSteps.min must be in [1, 1e9]; got 0."),
        ({"min": 1, "max": 10**10}, "UnevenSteps.max must be in [1, 1e9]; got 10000000000."),
        ({"min": 4, "max": 3}, "UnevenSteps.min must be at most `max`, which is 3; got 4. Swap the two values."),
        ({"min": 1, "max": 2, "drawn": "rounds"}, "got 'rounds'. Did you mean 'round'?"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        UnevenSteps(**options)


def test_equal_ends_are_a_plain_number():
    sizes = np.array([3, 50])
    one, other = (LocalSGD(steps=steps) for steps in (UnevenSteps(4, 4), 4))
    assert one.steps_of(sizes, IDS[:2], 0, 1).tolist() == other.steps_of(sizes, IDS[:2], 0, 1).tolist() == [4, 4]
    assert one.expected_steps(sizes).tolist() == other.expected_steps(sizes).tolist()


# ------------------------------------------------------------------------------------------------------- FedNova


def uneven(weighting, local, sizes=(3, 12, 24)):
    """Three participants with so many examples, who all take part."""
    made = tiny_simulation()
    owner = np.repeat(np.arange(4), [*sizes, 60 - sum(sizes)])
    partition = Partition.from_owner(owner, num_clients=4, kind="natural")
    train = replace(made.data.train, order=partition.order, offsets=partition.offsets)
    population = replace(made.data.population, participants=np.arange(3))
    data = replace(made.data, partition=partition, train=train, population=population)
    federation = replace(made.federation, weighting=weighting, local=local, cohort_size=3, selection=Full())
    task = Task.of(build("linear", (2,), 2, seed=0), data, federation)
    return Simulation(federation, data, TorchEngine(Sequential, task), rounds=10)


LOCALS = {
    "epochs": LocalSGD(lr=0.5, epochs=2, batch_size=5),
    "drawn": LocalSGD(lr=0.5, steps=UnevenSteps(1, 9), batch_size=5),
    "drawn, momentum": LocalSGD(lr=0.2, steps=UnevenSteps(1, 9), batch_size=5, momentum=0.5),
}


INNER = {"examples": ByExamples(), "equal": Equal(), "clip": Clip(ByExamples(), max=0.4)}


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
def test_a_run_goes_as_the_plain_loop(local, inner):
    simulation = uneven(FedNova(inner), local)
    state = simulation.start()
    x, seen = state.params.astype(np.float64), set()
    for number in range(1, 6):
        state, result, update = simulation.step(state)
        steps = local.steps_of(np.array([3, 12, 24]), np.arange(3), 0, number)
        tau = [sum((1 - local.momentum**j) / (1 - local.momentum) for j in range(1, k + 1)) for k in steps]
        sizes = {"num_examples": np.array([3.0, 12.0, 24.0])}
        p = inner.weights({}, ClientResults(np.arange(3), update, sizes))[0]
        mean, length = np.zeros_like(x), 0.0
        for i in range(3):
            mean += p[i] * update[i].astype(np.float64) / tau[i]
            length += p[i] * tau[i]
        x += length * mean
        np.testing.assert_allclose(state.params, x, rtol=1e-6, atol=1e-6)
        assert ("steps" in result.metrics) == isinstance(local.steps, UnevenSteps)
        seen.add(tuple(steps))
    assert len(seen) == (1 if local.steps is None else 5)


def test_with_equal_steps_it_is_fedavg():
    for local in (LocalSGD(lr=0.5, steps=4, batch_size=5), LocalSGD(lr=0.5, steps=4, batch_size=5, momentum=0.9)):
        one, other = uneven(FedNova(), local), uneven(ByExamples(), local)
        a, b = one.start(), other.start()
        for _ in range(4):
            a, b = one.step(a).state, other.step(b).state
            np.testing.assert_allclose(a.params, b.params, rtol=1e-6, atol=1e-6)


def test_it_ends_nearer_to_the_minimum_than_fedavg_where_steps_are_uneven():
    """Client 0 takes one step and client 1 nine, or the other way round: FedAvg minimises another objective (eq. 4)."""
    curvature, optimum = np.array([np.diag([1.0, 2.0]), np.diag([3.0, 0.5])]), np.array([[1.0, -1.0], [-2.0, 4.0]])
    best = np.linalg.solve(curvature.sum(0), np.einsum("kij,kj->i", curvature, optimum))
    local = LocalSGD(lr=0.002, steps=UnevenSteps(1, 30, drawn="client"))
    steps = local.steps_of(np.ones(2, np.int64), np.arange(2), 0, 1)
    assert steps.max() > 2 * steps.min()  # or this test shows nothing

    def end(weighting):
        simulation = two_quadratics(weighting=weighting, local=local)
        state = simulation.start()
        for _ in range(600):
            state = simulation.step(state).state
        return np.abs(state.params - best).max()

    assert end(FedNova(Equal())) < 0.1 * end(Equal())


def test_what_it_cannot_go_with_is_refused_in_words():
    made = tiny_simulation().federation
    with pytest.raises(ConfigError, match="FedNova compares clients"):
        replace(made, weighting=FedNova(), label_statistics=SecureAggregation())
    with pytest.raises(ConfigError, match="FedNova and MIFA both correct for absent clients"):
        replace(made, weighting=FedNova(), aggregation=MIFA())
    with pytest.raises(ConfigError, match=r"FedNova\.inner must contain only weightings"):
        FedNova("equal")
