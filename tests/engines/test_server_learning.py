"""Servers that learn from their own data: after the clients, or alone and stopping early."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedreach._util.errors import ComponentError, ConfigError, TrainingError
from fedreach._util.streams import torch_seed
from fedreach.data.datasets import ServerData
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.participation import Bernoulli
from fedreach.federation.secure_aggregation import SecureAggregation
from fedreach.federation.selection.labels import Clustered
from fedreach.federation.selection.random import Uniform
from fedreach.federation.server import Average, FedAdam, FedDF, FineTune, ServerOnly, batches
from fedreach.federation.solvers import FedAvg, Scaffold
from fedreach.federation.steps import AskServer, next_request, run_round, server_batches, server_split
from fedreach.federation.weighting import ByExamples, Equal
from fedreach.runs.simulation import simulate
from fedreach.testing.problems import tiny_data

from .tiny import run

EXAMPLES, SEED, ROUNDS = 10, 0, 4
EVERY = np.arange(EXAMPLES)
FEDAVG = FedAvg()


def made(server, model="linear", engine="sequential", solver=FEDAVG, labels=None, **options):
    data = tiny_data()
    y = data.dataset.train_y[:EXAMPLES] if labels is None else labels
    data = replace(data, server=ServerData(data.dataset.train_x[:EXAMPLES] + 1, y))
    parts = {"selection": Uniform(), "weighting": ByExamples(), "cohort_size": 2, **options}
    federation = Federation(solver=solver, local=LocalSGD(lr=0.5), server=server, seed=SEED, **parts)
    return simulate(data, model, federation, rounds=ROUNDS, engine=engine)


def on_the_way(simulation, state):
    """Return the aggregated model of the next round, before the server goes on, and the request that it is handed."""
    steps = run_round(simulation.federation, state, simulation.view(state), rounds=simulation.rounds)
    request = next_request(steps, simulation.updates(next_request(steps)))
    assert isinstance(request, AskServer)
    return request.state.params, request


def outputs(params, x):
    """Return the logits of the linear model with two classes on the plane."""
    params = torch.as_tensor(params)
    return F.linear(torch.from_numpy(x), params[:4].view(2, 2), params[4:])


def moved(params, rate, loss):
    w = torch.tensor(params, requires_grad=True)
    loss(w).backward()
    return (w - rate * w.grad).detach().numpy()


def bits(simulation, rounds=ROUNDS, state=None):
    return run(simulation, rounds, state)[0].models.tobytes()


# --------------------------------------------------------------------------------------------------------- fine-tuning


@pytest.mark.parametrize("inner", [Average(), Average(0.5, 0.9), FedAdam()])
@pytest.mark.parametrize("kind", [FineTune, FedDF])
def test_no_steps_are_the_inner_step_bit_for_bit(kind, inner):
    one, other = (run(made(server), ROUNDS) for server in (kind(inner, steps=0), inner))
    assert one[0].models.tobytes() == other[0].models.tobytes()
    assert one[1] == other[1]


@pytest.mark.parametrize("engine", ["sequential", "vmap", "manual", "native"])
def test_fine_tuning_is_sgd_from_the_aggregated_model(engine):
    simulation = made(FineTune(lr=0.3, batch_size=4, steps=3), engine=engine)
    state, (x, y) = simulation.start(), (simulation.data.server.x, simulation.data.server.y)
    for number in range(1, ROUNDS + 1):
        params, _ = on_the_way(simulation, state)
        for batch in batches(server_batches(SEED, number), EVERY, 4, steps=3):
            params = moved(params, 0.3, lambda w, at=batch: F.cross_entropy(outputs(w, x[at]), torch.from_numpy(y[at])))
        state, result, _ = simulation.step(state)
        np.testing.assert_allclose(state.params, params, rtol=0, atol=1e-6)
        assert len(result.cohort) == 2
        assert not result.by_server


def test_at_the_end_it_is_fedavg_until_the_last_round():
    plain, tuned = made(Average()), made(FineTune(when="end", epochs=2, batch_size=4))
    assert bits(plain, ROUNDS - 1) == bits(tuned, ROUNDS - 1)
    assert bits(plain) != bits(tuned)
    before, _ = on_the_way(tuned, run(tuned, ROUNDS - 1)[0])
    assert before.tobytes() == bits(plain)


def test_it_costs_no_bytes_and_changes_no_choice():
    plain, tuned = (run(made(server), ROUNDS)[1] for server in (Average(), FineTune()))
    for one, other in zip(plain, tuned, strict=True):
        assert (one.cohort, one.bytes_down, one.bytes_up) == (other.cohort, other.bytes_down, other.bytes_up)


def test_it_goes_on_where_no_reply_counts():
    lost = replace(made(FineTune(when="end")), participation=Bernoulli(act_prob=1.0, reply_prob=1e-9))
    state, reports = run(lost, ROUNDS)
    assert all(report.lost and not report.cohort for report in reports)
    assert state.params.tobytes() != lost.start().params.tobytes()
    taught = replace(made(FedDF()), participation=Bernoulli(act_prob=1.0, reply_prob=1e-9))
    assert bits(taught) == taught.start().params.tobytes()  # by nobody


def test_each_step_draws_dropout_of_its_own():
    def net(sample_shape, num_classes):
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(2, num_classes))

    simulation = made(FineTune(lr=0.3, steps=2), net)
    state = simulation.start()
    params, _ = on_the_way(simulation, state)
    x, y = (torch.from_numpy(array) for array in (simulation.data.server.x, simulation.data.server.y))
    for step in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(SEED, "server-dropout", 1, step))
            seen = F.dropout(x, 0.5).numpy()
        params = moved(params, 0.3, lambda w, seen=seen: F.cross_entropy(outputs(w, seen), y))
    np.testing.assert_allclose(simulation.step(state).state.params, params, rtol=0, atol=1e-6)


def test_a_batch_of_one_that_batchnorm_cannot_take_is_told_by_name():
    def net(sample_shape, num_classes):
        return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, num_classes))

    rule = r"The server's step on 1 of its examples failed in round 1: .*Choose a server batch_size that"
    with pytest.raises(TrainingError, match=rule):
        run(made(FineTune(batch_size=3, epochs=1), net), 1)  # 10 = 3 + 3 + 3 + 1


def test_clients_with_a_memory_begin_from_the_tuned_model():
    simulation = made(FineTune(steps=2), solver=Scaffold())
    state, _ = run(simulation, 2)
    _, request = on_the_way(simulation, state)
    assert request.sent.models.tobytes() == state.models.tobytes()


# ---------------------------------------------------------------------------------------------------------- distilling


@pytest.mark.parametrize("engine", ["sequential", "native"])
def test_feddf_is_a_short_loop(engine):
    simulation = made(FedDF(lr=0.3, batch_size=4, steps=3), engine=engine)
    state, x = simulation.start(), simulation.data.server.x
    for number in range(1, ROUNDS + 1):
        params, request = on_the_way(simulation, state)
        local = state.params + request.reports.update
        for batch in batches(server_batches(SEED, number), EVERY, 4, steps=3):
            teacher = sum(outputs(one, x[batch]) for one in local) / 2

            def divergence(w, at=batch, teacher=teacher):
                return F.kl_div(outputs(w, x[at]).log_softmax(1), teacher.softmax(1), reduction="batchmean")

            params = moved(params, 0.3, divergence)
        state = simulation.step(state).state
        np.testing.assert_allclose(state.params, params, rtol=0, atol=1e-6)


def test_feddf_does_not_look_at_labels():
    other = 1 - made(FedDF()).data.server.y
    assert bits(made(FedDF())) == bits(made(FedDF(), labels=other))
    assert bits(made(FineTune())) != bits(made(FineTune(), labels=other))  # which does


def test_equal_clients_teach_the_student_nothing_whatever_layers_it_has():
    def net(sample_shape, num_classes):
        return nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, num_classes))

    simulation = made(FedDF(lr=0.1, steps=5), net, cohort_size=1)  # one client: its model is the aggregated one
    before, _ = on_the_way(simulation, simulation.start())
    after = simulation.step(simulation.start()).state.params
    assert np.abs(before - simulation.start().params).max() > 1e-2
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-6)


def test_the_ensemble_of_linear_models_is_their_mean_which_learns_nothing_from_it():
    simulation = made(FedDF(lr=0.1, steps=5), weighting=Equal())
    before, _ = on_the_way(simulation, simulation.start())
    np.testing.assert_allclose(simulation.step(simulation.start()).state.params, before, rtol=0, atol=1e-6)


@dataclass(frozen=True)
class Apart(Clustered):
    """Two clusters from round 2 on: the first half of the participants, and the others."""

    def clusters(self, state):
        both = super().clusters(state)
        return np.arange(len(both)) * 2 // len(both)


def test_a_clusters_model_is_taught_by_its_own_clients():
    simulation = made(FedDF(lr=0.3, steps=1), selection=Apart(), cohort_size=4)
    state = simulation.step(simulation.start()).state
    assert len(state.models) == 2
    x = simulation.data.server.x
    steps = run_round(simulation.federation, state, simulation.view(state), rounds=ROUNDS)
    request = next_request(steps, simulation.updates(next_request(steps)))
    done = simulation.step(state).state
    for model in (0, 1):
        rows = np.flatnonzero(state.clusters == model)
        teacher = sum(outputs(state.models[model] + request.reports.update[row], x) for row in rows) / len(rows)
        student = moved(
            request.state.models[model],
            0.3,
            lambda w, teacher=teacher: F.cross_entropy(outputs(w, x), teacher.softmax(1)),
        )
        np.testing.assert_allclose(done.models[model], student, rtol=0, atol=1e-6)


def test_under_secure_aggregation_fine_tuning_works_and_feddf_is_refused():
    run(made(FineTune(), label_statistics=SecureAggregation()), 2)
    with pytest.raises(ConfigError, match="shows the server only sums, but FedDF reads labels"):
        made(FedDF(), label_statistics=SecureAggregation())


@dataclass(frozen=True)
class Secret(FedDF):
    reads_updates: ClassVar[bool] = False


def test_who_does_not_say_that_it_reads_updates_gets_none():
    assert Secret().tunes_server
    for options in ({}, {"label_statistics": SecureAggregation()}):
        with pytest.raises(ComponentError, match=r"Secret\.learn reads .* Set `reads_updates = True`"):
            run(made(Secret(), **options), 1)


# ----------------------------------------------------------------------------------------------------- the server alone

STOPPING = ServerOnly(lr=2.0, batch_size=3, steps=2, held_out=0.3, patience=2)


def test_the_server_alone_stops_by_what_it_holds_out():
    simulation = made(STOPPING)
    x, y = simulation.data.server.x, torch.from_numpy(simulation.data.server.y)
    train, held_out = server_split(simulation.data.server.y, 0.3, SEED)

    def loss(w, at):
        return F.cross_entropy(outputs(w, x[at]), y[at])

    state = simulation.start()
    best = at = state.params
    lowest, waited = loss(best, held_out).item(), 0
    for number in range(1, 30):
        if waited < 2:
            for batch in batches(server_batches(SEED, number), train, 3, steps=2):
                at = moved(at, 2.0, lambda w, batch=batch: loss(w, batch))
            found, waited = loss(at, held_out).item(), waited + 1
            if found < lowest:
                best, lowest, waited = at, found, 0
        state, result, _ = simulation.step(state)
        np.testing.assert_allclose(state.params, best, rtol=0, atol=1e-5)
        assert (result.bytes_down, result.bytes_up, result.by_server) == (0, 0, True)
    assert waited == 2
    assert number > 5
    assert np.abs(best - simulation.start().params).max() > 0.1


def test_an_equal_loss_is_not_a_lower_one():
    simulation = made(replace(STOPPING, lr=1e-30))  # moves nothing
    state = simulation.start()
    for waited in (1, 2, 2):
        state = simulation.step(state).state
        assert state.server[0]["waited"] == [waited]


def test_neither_the_test_set_nor_clients_data_decide_when_it_stops():
    simulation = made(STOPPING)
    dataset = simulation.data.dataset
    other = replace(dataset, test_y=1 - dataset.test_y, train_y=1 - dataset.train_y)
    data = replace(simulation.data, dataset=other, labels=other.train_y)
    changed = simulate(data, "linear", simulation.federation, rounds=ROUNDS, engine="sequential")
    assert bits(simulation, 20) == bits(changed, 20)


def test_stopping_needs_both_options_and_two_examples():
    for options in ({"held_out": 0.2}, {"patience": 3}):
        with pytest.raises(ConfigError, match=r"ServerOnly\.held_out and patience must be set together"):
            ServerOnly(**options)
    simulation = made(STOPPING)
    one = replace(simulation.data, server=ServerData(simulation.data.server.x[:1], simulation.data.server.y[:1]))
    with pytest.raises(ConfigError, match="must have at least 2 examples; got 1"):
        run(simulate(one, "linear", simulation.federation, rounds=ROUNDS, engine="sequential"), 1)


# ------------------------------------------------------------------------------------------------------- all of them


@pytest.mark.parametrize("server", [STOPPING, FineTune(batch_size=4, epochs=1), FedDF(batch_size=4, steps=2)], ids=repr)
def test_a_run_that_is_gone_on_with_has_the_same_bits(server):
    simulation = made(server)
    assert bits(simulation) == bits(made(server))
    half = run(simulation, 2)[0]
    assert bits(made(server), 2, half) == bits(simulation)  # its state is all that a run needs to go on
