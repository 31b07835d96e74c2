"""Clients that fail, cannot be reached or hold nothing."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

import fedreach as fr
from fedreach._util.errors import DataError, TrainingError
from fedreach.data.splits import ClientIndex, Population
from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.networks import build
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.participation import Always, Bernoulli
from fedreach.federation.selection.losses import PowerOfChoice
from fedreach.federation.selection.random import Full, FunctionSelection
from fedreach.federation.solvers import FedAvg
from fedreach.federation.weighting import OwnWeight
from fedreach.runs.simulation import Simulation
from fedreach.testing.problems import tiny_data, tiny_simulation

from ..quadratics import two_quadratics  # noqa: TID252 (tests are no package that has a name)
from .tiny import MODEL, REPORT, changed, run


def with_broken_client(client, drop):
    """Return the tiny federation with one client whose features overflow in training."""
    data = tiny_data()
    x = data.dataset.train_x.copy()
    x[data.train[client]] = 3e38
    data = replace(data, dataset=replace(data.dataset, train_x=x))
    federation = replace(tiny_simulation().federation, selection=Full(), local=LocalSGD(lr=0.5, steps=4))
    engine = TorchEngine(Sequential, Task(build("linear", (2,), 2, seed=0), data, FedAvg(), federation.local, 0))
    return Simulation(federation, data, engine, rounds=10, drop_failing=drop)


def test_a_client_whose_update_is_not_finite_ends_the_run_with_its_name_round_and_cause():
    simulation = with_broken_client(2, drop=False)
    with pytest.raises(TrainingError, match=r"Client 2 failed in round 1: its update is not finite .*clip_norm"):
        simulation.step(simulation.start())


def test_a_lost_client_can_be_left_out_and_the_round_says_so():
    state, (report, *_) = run(with_broken_client(2, drop=True), 2)
    assert report.cohort == (0, 1, 3)
    assert list(report.lost) == [2]
    assert "not finite" in report.lost[2]
    assert sum(report.weights) == pytest.approx(1)
    assert np.isfinite(state.params).all()
    assert np.isnan(state.loss).tolist() == [False, False, True, False]
    assert (report.bytes_down, report.bytes_up) == (4 * MODEL, 3 * REPORT)


def test_a_client_whose_loss_is_not_finite_is_lost_though_its_update_is():
    # At a distance of 1e200 the squared distance overflows, and a tiny rate makes an update of 0.1 all the same.
    base = two_quadratics(local=LocalSGD(lr=1e-201, steps=1))
    optimum = np.array([[1e200, 1e200], [-2.0, 4.0]])
    simulation = replace(base, engine=replace(base.engine, optimum=optimum), drop_failing=True)
    with np.errstate(over="ignore"):
        _, report, _ = simulation.step(simulation.start())
    assert (report.cohort, list(report.lost)) == ((1,), [0])
    assert np.isfinite(report.train_loss)


def test_a_round_that_loses_everybody_keeps_the_model():
    simulation = with_broken_client(2, drop=True)
    simulation = changed(simulation, selection=FunctionSelection(lambda view, k, rng: [2]))
    before = simulation.start()
    after, report, update = simulation.step(before)
    assert after.params.tobytes() == before.params.tobytes()
    assert (report.cohort, list(report.lost), report.train_loss, len(update)) == ((), [2], None, 0)


@dataclass(frozen=True)
class Nobody(fr.Participation):
    """Nobody can ever be reached."""

    def available(self, n, rng):
        return np.zeros(n, np.bool_)


@pytest.mark.parametrize("selection", [Full(), PowerOfChoice()])
def test_a_round_that_reaches_nobody_keeps_the_model_and_costs_nothing(selection):
    simulation = replace(changed(tiny_simulation(), selection=selection), participation=Nobody())
    before = simulation.start()
    after, report, _ = simulation.step(before)
    assert after.round == 1
    assert after.params.tobytes() == before.params.tobytes()
    assert (report.cohort, report.bytes_down, report.bytes_up, report.probe_bytes) == ((), 0, 0, 0)


def test_only_those_reached_train():
    simulation = replace(changed(tiny_simulation(), selection=Full()), participation=Bernoulli(0.3))
    sizes = [len(report.cohort) for report in run(simulation, 60)[1]]
    # Nobody at all comes in 0.7^4 = 24 % of the rounds, four in 0.8 %: both sides occur, the mean is 1.2 of 4.
    assert min(sizes) == 0
    assert abs(np.mean(sizes) - 1.2) < 4.5 * np.sqrt(4 * 0.3 * 0.7 / 60)


class AlwaysButOne(Always):
    """All but one who is drawn can be reached."""

    def available(self, n, rng):
        return np.arange(n) != rng.integers(n)


def test_a_participation_that_builds_on_always_is_asked_with_a_stream_of_each_round():
    simulation = replace(changed(tiny_simulation(), selection=Full()), participation=AlwaysButOne())
    absent = {({0, 1, 2, 3} - set(report.cohort)).pop() for report in run(simulation, 40)[1]}
    assert absent == {0, 1, 2, 3}  # one of them is not drawn in 40 rounds with probability 4 * 0.75^40 = 4e-5


def test_a_participant_without_training_examples_is_named():
    data = tiny_data()
    sizes = data.train.sizes.copy()
    order = np.delete(data.train.order, np.s_[data.train.offsets[1] : data.train.offsets[2]])
    sizes[1] = 0
    data = replace(data, train=ClientIndex(order, np.concatenate([[0], np.cumsum(sizes)])))
    with pytest.raises(DataError, match=r"at least one training example; client 1 has none"):
        replace(tiny_simulation(), data=data).start()
    others = replace(data, population=Population(np.array([0, 2, 3]), np.array([1, 4, 5])))
    assert replace(tiny_simulation(), data=others).start().round == 0


def test_a_lost_reply_costs_a_download_and_changes_nothing_else():
    simulation = changed(replace(tiny_simulation(), participation=Bernoulli(1.0, reply_prob=0.5)), selection=Full())
    state, seen = simulation.start(), set()
    for _ in range(12):
        done = simulation.step(state)
        lost = done.result.lost
        assert set(lost.values()) <= {"its reply did not arrive"}
        assert len(done.result.cohort) + len(lost) == 4
        assert done.result.bytes_down == 4 * MODEL
        assert done.result.bytes_up == (4 - len(lost)) * REPORT
        ids = list(lost)
        np.testing.assert_array_equal(done.state.loss[ids], state.loss[ids])
        seen.add(len(lost))
        state = done.state
    assert len(seen) > 2


@dataclass(frozen=True)
class Broken(fr.Measurement):
    """Measures the number of examples, but client 2's answer is no number."""

    name: str = "broken"
    wants_before: ClassVar[bool] = False

    def measure(self, outputs, rng):
        return float("nan") if outputs.labels.tolist() == LABELS_OF_2 else float(len(outputs.labels))


LABELS_OF_2 = tiny_data().labels[tiny_data().train[2]].tolist()


@dataclass(frozen=True)
class ByBroken(OwnWeight):
    measures = (Broken(),)

    def raw(self, metrics):
        return metrics["broken"]


def test_a_client_that_measures_no_number_is_named():
    simulation = changed(tiny_simulation(), selection=Full(), weighting=ByBroken())
    with pytest.raises(TrainingError, match="Client 2 failed in round 1: its 'broken' is not finite"):
        simulation.step(simulation.start())
    report = replace(simulation, drop_failing=True).step(simulation.start()).result
    assert report.cohort == (0, 1, 3)
    assert report.lost == {2: "its 'broken' is not finite"}
    sizes = tiny_data().train.sizes[[0, 1, 3]]
    assert report.metrics["broken"] == tuple(sizes)
    np.testing.assert_allclose(report.weights, sizes / sizes.sum())
