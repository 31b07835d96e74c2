"""Rounds put together: what they cost and what they decide."""

from dataclasses import replace

import numpy as np
import pytest

from fedreach._util.errors import ComponentError, ConfigError
from fedreach.data.assignment import label_entropy
from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.networks import build
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.selection.losses import PowerOfChoice
from fedreach.federation.selection.random import Full, FunctionSelection
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg, FedProx
from fedreach.federation.weighting import ByEntropy, FunctionWeighting
from fedreach.runs.simulation import simulate
from fedreach.testing.problems import tiny_simulation

from .tiny import MODEL, REPORT, changed, run


@pytest.mark.parametrize(
    ("selection", "asked", "up_for_facts"), [(None, 0, 0), (PowerOfChoice(), 4, 0), (PowerOfChoice(3), 3, 0)]
)
def test_a_round_costs_its_models_reports_and_probes(selection, asked, up_for_facts):
    # Two of four participants train. Whoever was asked for a loss holds the model already.
    simulation = tiny_simulation() if selection is None else changed(tiny_simulation(), selection=selection)
    _, reports = run(simulation, 3)
    for report in reports:
        assert len(report.cohort) == 2
        assert report.bytes_down == max(2, asked) * MODEL
        assert report.bytes_up == 2 * REPORT + asked * 4
        assert report.probe_bytes == asked * (MODEL + 4)


def test_facts_cost_bytes_in_the_first_round_only():
    _, reports = run(changed(tiny_simulation(), weighting=ByEntropy()), 3)
    assert [r.bytes_up - 2 * REPORT for r in reports] == [4 * 4, 0, 0]  # one number of each of 4 participants

    def by_balance(reports):
        return reports.label_counts.min(axis=1) + 1.0

    by_balance.needs = ("label_counts",)
    _, reports = run(changed(tiny_simulation(), weighting=FunctionWeighting(by_balance)), 2)
    assert [r.bytes_up - 2 * REPORT for r in reports] == [4 * 4 * 2, 0]  # two classes each


def test_the_server_sees_no_fact_that_nobody_asked_for():
    seen = []

    def spy(view, k, rng):
        seen.append((view.label_counts, view.label_entropy))
        return view.ids[:k]

    run(changed(tiny_simulation(), selection=FunctionSelection(spy)), 1)
    assert seen == [(None, None)]


def test_power_of_choice_trains_the_clients_with_the_largest_training_loss():
    simulation = changed(tiny_simulation(), selection=PowerOfChoice())
    state = simulation.start()
    for _ in range(3):
        losses = simulation.engine.training_loss(state.params, np.arange(4))
        state, report, _ = simulation.step(state)
        assert sorted(report.cohort) == sorted(np.argsort(-losses)[:2])


def test_the_view_of_a_round_holds_the_losses_heard_so_far():
    heard = []

    def first_two(view, k, rng):
        heard.append(view.loss.copy())
        return view.ids[:k]

    state, _ = run(changed(tiny_simulation(), selection=FunctionSelection(first_two)), 2)
    assert np.isnan(heard[0]).all()
    assert np.isfinite(heard[1]).tolist() == [True, True, False, False]
    assert np.isfinite(state.loss).tolist() == [True, True, False, False]


def test_a_client_is_known_by_its_id_and_not_by_its_place_among_the_participants(federated):
    data = federated((6, 10, 4, 13, 8), num_classes=3, participants=[1, 2, 4])
    heard = []

    def last_two(view, k, rng):
        return view.ids[-2:]

    def listen(reports):
        heard.append(reports)
        return np.ones(2)

    last_two.needs = listen.needs = ("label_counts", "label_entropy")
    parts = (FunctionSelection(last_two), FunctionWeighting(listen), FedAvg(), LocalSGD(batch_size=100), Average())
    simulation = simulate(data, "linear", Federation(*parts, cohort_size=2, seed=0), rounds=1)
    before = simulation.engine.training_loss(simulation.engine.initial, np.array([2, 4]))
    state, report, update = simulation.step(simulation.start())
    models = simulation.engine.initial + update
    assert report.cohort == (2, 4)
    metrics = heard[0].metrics
    assert metrics["num_examples"].tolist() == data.train.sizes[[2, 4]].tolist() == [3, 7]
    assert heard[0].label_counts.tolist() == data.label_counts()[[2, 4]].tolist()
    assert metrics["label_entropy"].tolist() == label_entropy(data.label_counts()[[2, 4]]).tolist()
    np.testing.assert_allclose(state.loss, [np.nan, *before], rtol=1e-5)  # one full-batch step
    alone = simulation.engine.train(simulation.engine.initial, np.array([4]), 1, 0.1).update[0]
    np.testing.assert_allclose(models[1], simulation.engine.initial + alone, rtol=0, atol=1e-6)


def test_an_answer_to_a_probe_is_kept_with_the_client_that_gave_it():
    simulation = changed(tiny_simulation(), selection=PowerOfChoice(2), cohort_size=1)
    start = simulation.start()
    losses = simulation.engine.training_loss(start.params, np.arange(4))
    asked = set()
    for number in range(10):  # ten first rounds, with other draws
        state, report, _ = simulation.step(replace(start, round=number))
        heard = np.flatnonzero(np.isfinite(state.loss))
        assert len(heard) == 2
        assert report.cohort == (heard[losses[heard].argmax()],)
        (other,) = set(heard) - set(report.cohort)
        assert state.loss[other] == pytest.approx(losses[other], rel=1e-6)
        asked |= {int(other)}
    assert len(asked) > 1


def test_choosing_a_client_that_never_trains_is_an_error():
    simulation = changed(tiny_simulation(), selection=FunctionSelection(lambda view, k, rng: [0, 4]))
    assert 4 in simulation.data.population.unseen
    with pytest.raises(ComponentError, match="client 4 is not one of the 4 participants"):
        simulation.step(simulation.start())


def test_the_new_model_is_the_weighted_mean_of_the_local_models():
    simulation = changed(tiny_simulation(), selection=Full())
    state, report, update = simulation.step(simulation.start())
    models = simulation.engine.initial + update
    sizes = simulation.data.train.sizes[:4]
    np.testing.assert_allclose(report.weights, sizes / sizes.sum(), rtol=1e-12)
    np.testing.assert_allclose(state.params, report.weights @ models.astype(float), rtol=0, atol=1e-7)


def test_with_one_participant_the_aggregate_is_its_model():
    simulation = changed(tiny_simulation(), cohort_size=1)
    state, _, update = simulation.step(simulation.start())
    models = simulation.engine.initial + update
    np.testing.assert_array_max_ulp(state.params, models[0], maxulp=1)


def test_the_rate_of_a_round_follows_the_schedule():
    local = LocalSGD(lr=0.4, schedule="exponential", decay=0.5)  # 0.4, 0.2, and in round 3 0.1
    base = tiny_simulation()
    engine = TorchEngine(Sequential, Task(build("linear", (2,), 2, seed=0), base.data, FedAvg(), local, 0))
    simulation = replace(base, engine=engine, federation=replace(base.federation, local=local))
    state = replace(simulation.start(), round=2)
    _, report, update = simulation.step(state)
    models = state.params + update
    expected = engine.train(state.params, np.array(report.cohort), 3, 0.1).update
    np.testing.assert_array_equal(models - state.params, (state.params + expected) - state.params)


@pytest.mark.parametrize("part", [{"solver": FedProx(mu=1.0)}, {"local": LocalSGD(lr=9.0)}])
def test_an_engine_that_trains_otherwise_than_the_federation_says_is_refused(part):
    with pytest.raises(ConfigError, match=rf"The engine must have the same {next(iter(part))} as the federation"):
        changed(tiny_simulation(), **part)
