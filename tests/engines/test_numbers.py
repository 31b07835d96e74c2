"""Targets that are numbers: engines train as a short loop in numpy does, agree, and refuse what is about classes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.data.assignment import Partition
from fedreach.data.datasets import ServerData, from_arrays
from fedreach.data.federated import federate
from fedreach.engines.batches import batch_plan
from fedreach.engines.choice import choose
from fedreach.engines.engine import TorchEngine
from fedreach.engines.manual import Manual
from fedreach.engines.models.networks import build
from fedreach.engines.native.trainer import Native
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.engines.vmap import Vmap
from fedreach.federation.adaptation import ADAPTATIONS
from fedreach.federation.aggregation import AGGREGATIONS
from fedreach.federation.federation import Federation, check_federation_targets
from fedreach.federation.labels import Exact
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.losses import LOSSES, MSE, CrossEntropy, FedLC, FunctionLoss, Huber, LabelSmoothing
from fedreach.federation.measurements import WLRC, Disagreement, LossRMS
from fedreach.federation.selection import SELECTIONS
from fedreach.federation.selection.random import Uniform
from fedreach.federation.server import SERVERS, Average, FedDF, FineTune, Safari, ServerOnly
from fedreach.federation.solvers import SOLVERS, FedAvg, FedProx
from fedreach.federation.steps import server_split
from fedreach.federation.types import LocalOutputs
from fedreach.federation.weighting import WEIGHTINGS, ByExamples, Equal
from fedreach.runs.simulation import simulate
from fedreach.wireless.radio import Radio

IDS = np.arange(4)
SIZES = (13, 2, 8, 6)
SGD = LocalSGD(batch_size=4, epochs=2)


def numbers(targets=1, sizes=SIZES):
    rng = generator(0, "numbers")
    n = sum(sizes)
    x = rng.standard_normal((n, 5)).astype(np.float32)
    y = (3 + x @ rng.standard_normal((5, targets)) + 0.1 * rng.standard_normal((n, targets))).astype(np.float32)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return federate(from_arrays(x, y, name="made up"), Partition.from_owner(owner, len(sizes), "natural"))


def engine(kind, loss=MSE(scale=False), targets=1, how=SGD, model="mlp", solver=FedAvg()):  # noqa: B008 (frozen)
    data = numbers(targets)
    module = build(model, (5,), targets, seed=1, options={"hidden": [4]} if model == "mlp" else {})
    return TorchEngine(kind, Task(module, data, solver, how, 3, loss))


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize(
    ("kind", "delta"),
    [(Sequential, None), (Manual, None), (Vmap, None), (Sequential, 0.5), (Vmap, 0.5)],
)
def test_training_is_that_of_a_short_loop(kind, targets, delta):
    made = engine(kind, MSE(scale=False) if delta is None else Huber(delta, scale=False), targets, model="linear")
    data, start = made.task.data, made.initial.astype(np.float64)
    found = made.train(made.initial, IDS, 1, 0.05)
    for row, client in enumerate(IDS.tolist()):
        w, b = start[: 5 * targets].reshape(targets, 5).copy(), start[5 * targets :].copy()
        mine, seen, total = data.train[client], 0, 0.0
        for batch in batch_plan(3, 1, client, len(mine), SGD):
            index = mine[batch[batch >= 0]]
            x, y = data.dataset.train_x[index].astype(np.float64), data.labels[index].astype(np.float64)
            e = x @ w.T + b - y
            pull = 2 * e if delta is None else e.clip(-delta, delta)
            each = e**2 if delta is None else np.where(abs(e) <= delta, e**2 / 2, delta * (abs(e) - delta / 2))
            total, seen = total + each.mean(axis=1).sum(), seen + len(index)
            w -= 0.05 * pull.T @ x / (len(index) * targets)
            b -= 0.05 * pull.sum(axis=0) / (len(index) * targets)
        assert np.allclose(found.update[row], np.concatenate([w.ravel(), b]) - start, atol=1e-6)
        assert found.loss[row] == pytest.approx(total / seen, rel=1e-6)


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize(
    "how",
    [SGD, replace(SGD, momentum=0.9), replace(SGD, weight_decay=0.01, clip_norm=0.5), replace(SGD, drop_last=True)],
    ids=["plain", "momentum", "clipped", "drop_last"],
)
@pytest.mark.parametrize("kind", [Manual, Vmap])
def test_engines_agree(kind, how, targets):
    solver = FedProx(0.1)
    plain, other = (engine(one, targets=targets, how=how, solver=solver) for one in (Sequential, kind))
    a, b = (made.train(made.initial, IDS, 1, 0.05) for made in (plain, other))
    assert np.allclose(a.update, b.update, atol=1e-6)
    assert np.allclose(a.loss, b.loss, rtol=1e-5)


def test_a_first_layer_without_weights_of_its_own():
    x = generator(0, "wide").standard_normal((12, 300)).astype(np.float32)
    data = federate(from_arrays(x, x[:, :2]), Partition.from_owner(np.arange(12) % 2, 2, "natural"))
    module = build("mlp", (300,), 2, seed=1, options={"hidden": [64]})
    task = Task(module, data, FedAvg(), LocalSGD(batch_size=2, epochs=1), 3, MSE())
    plain, chain = TorchEngine(Sequential, task), TorchEngine(Manual, task)
    assert chain.trainer._implicit(6)
    a, b = (made.train(made.initial, np.arange(2), 1, 0.05) for made in (plain, chain))
    assert np.allclose(a.update, b.update, atol=1e-6)
    assert np.allclose(a.loss, b.loss, rtol=1e-5)


@pytest.mark.parametrize("kind", [Sequential, Manual])
def test_evaluation_tells_absolute_and_squared_errors(kind):
    made = engine(kind, targets=2)
    index = np.arange(7)
    off, loss = made.predict(made.initial, "true", index)
    errors = made.logits(made.initial, "true", index) - made.task.data.labels[index]
    assert off.dtype == loss.dtype == np.float32
    assert np.allclose(off, abs(errors).mean(axis=1), rtol=1e-6)
    assert np.allclose(loss, (errors**2).mean(axis=1), rtol=1e-6)


@pytest.mark.parametrize("loss", [MSE(scale=False), Huber(0.3, scale=False)])
def test_a_probe_tells_the_loss_that_is_trained(loss):
    made = engine(Sequential, loss)
    index = made.task.data.train[2]
    outputs, targets = made.logits(made.initial, "train", index), made.task.data.labels[index]
    told = loss.per_example(torch.from_numpy(outputs), torch.from_numpy(targets)).mean()
    assert made.training_loss(made.initial, IDS)[2] == pytest.approx(float(told), rel=1e-6)


def test_auto_passes_over_engines_with_classes_alone_and_says_why():
    data = numbers()
    found = choose(Task(build("linear", (5,), 1, seed=1), data, FedAvg(), SGD, 3, MSE()))
    assert found.name in ("manual", "sequential")
    assert "supports cross-entropy only; got the loss MSE" in found.refused["native"]
    found = choose(Task(build("linear", (5,), 1, seed=1), data, FedAvg(), SGD, 3, Huber()))
    assert "cross-entropy or squared error only; got the loss Huber" in found.refused["manual"]


def test_a_model_returns_as_many_numbers_as_there_are_targets():
    with pytest.raises(ConfigError, match=r"must return 2 numbers per example"):
        TorchEngine(Sequential, Task(build("linear", (5,), 3, seed=1), numbers(2), FedAvg(), SGD, 3, MSE()))


@pytest.mark.parametrize(
    ("kind", "loss"),
    [(Sequential, CrossEntropy()), (Native, CrossEntropy()), (Manual, FedLC()), (Sequential, LabelSmoothing())],
)
def test_losses_of_classes_refuse_numbers(kind, loss):
    with pytest.raises(ConfigError, match=r"needs classes as targets; the targets of made up are numbers\. Use loss"):
        engine(kind, loss)


def squares(outputs, targets):
    return (outputs - targets).square().mean(-1)


def marked(outputs, targets):
    return squares(outputs, targets)


marked.needs_numbers = True


def test_ones_own_loss_takes_both_unless_it_says_otherwise(federated):
    plain, own = engine(Sequential), engine(Sequential, FunctionLoss(squares))
    a, b = (made.train(made.initial, IDS, 1, 0.05) for made in (plain, own))
    assert np.array_equal(a.update, b.update)
    classes = federated(SIZES, (5,))
    with pytest.raises(ConfigError, match="loss marked needs numbers as targets"):
        TorchEngine(Sequential, Task(build("linear", (5,), 3, seed=1), classes, FedAvg(), SGD, 3, FunctionLoss(marked)))
    for loss in (MSE(), Huber()):
        with pytest.raises(ConfigError, match=r"needs numbers as targets; .* are classes\. Use loss = 'cross_entropy'"):
            TorchEngine(Sequential, Task(build("linear", (5,), 3, seed=1), classes, FedAvg(), SGD, 3, loss))


def federation(**parts):
    usual = {"selection": Uniform(), "weighting": ByExamples(), "solver": FedAvg(), "local": SGD, "server": Average()}
    return Federation(
        **{**usual, "cohort_size": 2, "seed": 0, "loss": MSE(scale=False), "label_statistics": Exact(), **parts}
    )


def test_what_needs_classes_refuses_numbers_by_name():
    data = numbers().dataset
    check_federation_targets(federation(), data)
    for name in ("entropy_topk", "kl_filter", "hics"):
        with pytest.raises(ConfigError, match=r"selection .* needs classes as targets; .* Choose another"):
            check_federation_targets(federation(selection=SELECTIONS[name]()), data)
    for name in ("entropy", "disagreement"):
        with pytest.raises(ConfigError, match=r"weighting .* needs classes as targets"):
            check_federation_targets(federation(weighting=WEIGHTINGS[name]()), data)
    with pytest.raises(ConfigError, match=r"server FedDF needs classes as targets"):
        check_federation_targets(federation(server=FedDF()), data)
    for server in (ServerOnly(held_out=0.2, patience=2), FineTune(), Safari(client_probability=0.5)):
        check_federation_targets(federation(server=server), data)
    for name in set(ADAPTATIONS) - {"none"}:
        with pytest.raises(ConfigError, match=r"adaptation .* needs classes as targets; .* Choose another"):
            check_federation_targets(federation(adaptation=ADAPTATIONS[name]()), data)
    for name in ("power_of_choice", "oort", "divfl", "max_similarity", "clustered"):
        check_federation_targets(federation(selection=SELECTIONS[name]()), data)


TABLES = {
    "selection": SELECTIONS,
    "weighting": WEIGHTINGS,
    "solver": SOLVERS,
    "server": SERVERS,
    "aggregation": {name: rule for name, rule in AGGREGATIONS.items() if not name.startswith("dp_")},  # noise
    "loss": LOSSES,
}
OPTIONS = {
    "product": {"parts": (ByExamples(), Equal())},
    "mix": {"parts": (ByExamples(), Equal())},
    "clip": {"inner": ByExamples(), "max": 0.5},
    "safari": {"client_probability": 0.5},
}


OF_CLASSES = {"entropy_topk", "kl_filter", "rademacher", "hics", "csra", "entropy", "disagreement", "feddf"} | (
    set(LOSSES) - {"mse", "huber"}
)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, table in TABLES.items() for name in table])
def test_each_part_learns_numbers_or_refuses_them_by_name(kind, name):
    data = numbers()
    own = ServerData(data.dataset.train_x[:9], data.dataset.train_y[:9])
    part = TABLES[kind][name](**OPTIONS.get(name, {}))
    chosen = federation(**{"radio": Radio(), kind: part})
    if name in OF_CLASSES:
        with pytest.raises(ConfigError, match=f"{kind} {type(part).__name__} needs classes as targets"):
            simulate(data, "linear", chosen, rounds=3, engine="sequential")
        return
    simulation = simulate(replace(data, server=own), "linear", chosen, rounds=3, engine="sequential")
    first = state = simulation.start()
    for _ in range(3):
        state = simulation.step(state).state
    used = np.bincount(state.clusters).argmax()
    before, after = (
        simulation.engine.predict(models[min(used, len(models) - 1)], "train", np.arange(29))[1].mean()
        for models in (first.models, state.adapted(chosen))
    )
    assert after < before


@pytest.mark.parametrize("targets", [1, 2])
def test_a_server_alone_stops_by_squared_errors_on_what_it_holds_out(targets):
    data = numbers(targets)
    own = ServerData(data.dataset.train_x[:20], data.dataset.train_y[:20])
    server = ServerOnly(lr=0.05, batch_size=8, steps=3, held_out=0.3, patience=2)
    chosen = replace(federation(server=server), loss=MSE(scale=False))
    simulation = simulate(replace(data, server=own), "linear", chosen, rounds=30, engine="sequential")
    train, held_out = server_split(own.y, 0.3, chosen.seed)
    assert sorted([*train, *held_out]) == list(range(20))
    assert len(held_out) == 6
    state = simulation.start()

    def error(params):
        w, b = params[: 5 * targets].reshape(targets, 5), params[5 * targets :]
        return float(np.mean((own.x[held_out] @ w.T + b - own.y[held_out]) ** 2))

    lowest = [error(state.params)]
    for _ in range(30):
        state = simulation.step(state).state
        lowest.append(error(state.params))
        assert state.server[0]["loss"][0] == pytest.approx(lowest[-1], rel=1e-4)
    assert lowest == sorted(lowest, reverse=True)
    assert lowest[-1] < 0.1 * lowest[0]


def test_measurements_of_numbers():
    said = np.array([[1.0], [3.0]], np.float32)
    outputs = LocalOutputs(said, np.array([[1.0], [1.0]], np.float32), before=said)
    assert LossRMS().measure(outputs, generator(0, "x")) == pytest.approx(np.sqrt((0 + 16) / 2))
    assert Disagreement().needs_classes
    assert WLRC().needs_classes
    assert not WLRC("logits").needs_classes
