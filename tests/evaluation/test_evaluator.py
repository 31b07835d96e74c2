"""Evaluation columns against hand computations, on a linear model that can be recomputed in numpy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedreach._util.streams import generator
from fedreach.data.assignment import Partition
from fedreach.data.datasets import from_arrays
from fedreach.data.federated import FederatedData
from fedreach.data.splits import ClientIndex, Population
from fedreach.engines import engine, trainer
from fedreach.engines.engine import TorchEngine, means
from fedreach.engines.models.networks import build
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.engines.vmap import Vmap
from fedreach.evaluation.evaluator import (
    Evaluator,
    Group,
    Scores,
    difference_interval,
    mean_interval,
    mean_of,
    summarize_round,
)
from fedreach.evaluation.scores import ACCURACY, MAE, worst_decile
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg

SIZES = [12, 1, 9, 20, 5, 8]  # client 1 has a single sample, which is not held out
PARTICIPANTS, UNSEEN = np.array([0, 1, 3, 4]), np.array([2, 5])


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_data(unseen=UNSEEN, tests=15, noise=False):
    rng, n = generator(0, "evaluation"), sum(SIZES)
    x, y = rng.standard_normal((n + tests, 3)).astype(np.float32), rng.integers(4, size=n + tests)
    dataset = from_arrays(x[:n], y[:n], *((x[n:], y[n:]) if tests else ()), num_classes=4)
    partition = Partition.from_owner(rng.permutation(np.repeat(np.arange(6), SIZES)), 6, kind="natural")
    held = np.array([size // 3 for size in SIZES])
    parts = [np.split(partition[k], [held[k]]) for k in range(6)]
    held_out, train = (
        ClientIndex(np.concatenate([p[i] for p in parts]), np.cumsum([0, *(len(p[i]) for p in parts)])) for i in (0, 1)
    )
    labels = dataset.train_y.copy()
    if noise:
        labels[train.order] = (labels[train.order] + 1) % 4
    population = Population(np.setdiff1d(np.arange(6), unseen), unseen)
    return FederatedData(dataset, labels, partition, population, train, held_out, {"kind": "all"} if noise else None)


def make(data, kind=Sequential):
    return Evaluator(TorchEngine(kind, Task(build("linear", (3,), 4, seed=0), data, FedAvg(), LocalSGD(), 0)), data)


def params_of(seed=0):
    return generator(seed, "params").standard_normal(16).astype(np.float32)


def by_hand(params, x, y):
    """Return the rightness and loss of each sample."""
    logits = x @ params[:12].reshape(4, 3).T.astype(float) + params[12:]
    return logits.argmax(axis=1) == y, np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]


def per_client(data, parts, labels=None):
    """Return accuracy, loss and size of each client by hand, where a client has its samples from `parts`."""
    x, y = data.dataset.train_x, data.dataset.train_y if labels is None else labels
    scores = []
    for part in parts:
        right, loss = by_hand(params_of(), x[part], y[part])
        scores.append((right.mean(), loss.mean(), len(part)))
    return np.array(scores).T


@pytest.mark.parametrize("kind", [Sequential, Vmap])
def test_columns_are_means_over_clients_of_their_own_means(kind):
    data = make_data()
    columns, records = make(data, kind).evaluate(params_of(), 7)
    held = [0, 3, 4]  # client 1 has nothing to be tested on
    accuracy, loss, size = per_client(data, [data.held_out[k] for k in held])
    assert columns["participant_accuracy"] == pytest.approx(accuracy.mean(), abs=1e-8)
    assert columns["participant_loss"] == pytest.approx(loss.mean(), rel=1e-5)
    assert columns["participant_accuracy_pooled"] == pytest.approx(accuracy @ size / size.sum(), abs=1e-8)
    assert columns["participant_accuracy_worst_decile"] == pytest.approx(accuracy.min(), abs=1e-8)
    for share in (10, 50, 90):
        assert columns[f"participant_accuracy_p{share}"] == pytest.approx(np.percentile(accuracy, share), abs=1e-8)
    assert records[0]["round"] == 7
    assert (records[0]["population"], records[0]["ids"], records[0]["examples"]) == ("participants", held, [4, 6, 1])
    np.testing.assert_allclose(records[0]["accuracy"], accuracy, atol=1e-6)
    np.testing.assert_allclose(records[0]["loss"], loss, atol=1e-5)

    # Unseen clients are tested on all that they hold.
    accuracy, loss, size = per_client(data, [data.partition[k] for k in UNSEEN])
    assert columns["unseen_accuracy"] == pytest.approx(accuracy.mean(), abs=1e-8)
    assert columns["unseen_loss"] == pytest.approx(loss.mean(), rel=1e-5)
    assert (records[1]["population"], records[1]["ids"], records[1]["examples"]) == ("unseen", [2, 5], [9, 8])

    train = per_client(data, [data.train[k] for k in PARTICIPANTS])[0]
    assert columns["train_accuracy"] == pytest.approx(train.mean(), abs=1e-8)
    right, loss = by_hand(params_of(), data.dataset.test_x, data.dataset.test_y)
    assert columns["test_accuracy"] == pytest.approx(right.mean(), abs=1e-8)
    assert columns["test_loss"] == pytest.approx(loss.mean(), rel=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_gaps_are_the_differences_of_the_columns_beside_them(seed):
    columns, _ = make(make_data()).evaluate(params_of(seed), 1)
    assert columns["participation_gap"] == pytest.approx(
        columns["participant_accuracy"] - columns["unseen_accuracy"], abs=2e-9
    )
    assert columns["out_of_sample_gap"] == pytest.approx(
        columns["train_accuracy"] - columns["participant_accuracy"], abs=2e-9
    )
    for name in ("participant_accuracy", "unseen_accuracy", "participation_gap"):
        assert columns[f"{name}_low"] <= columns[name] <= columns[f"{name}_high"]


class Asked:
    """An engine that notes of which examples it was asked."""

    def __init__(self, engine):
        self.engine, self.splits = engine, []

    def predict(self, params, split, index):
        self.splits.append(split)
        return self.engine.predict(params, split, index)


def test_training_examples_are_scored_only_where_that_is_asked_for_and_no_other_number_changes():
    data = make_data()
    asked = Asked(make(data).engine)
    columns, records = Evaluator(asked, data, training=False).evaluate(params_of(), 1)
    assert "train" not in asked.splits
    all_columns, all_records = make(data).evaluate(params_of(), 1)
    left_out = {"train_accuracy", "out_of_sample_gap"}
    assert columns == {name: value for name, value in all_columns.items() if name not in left_out}
    assert left_out <= all_columns.keys()
    assert records == all_records


def test_training_examples_are_scored_where_there_is_nothing_else():
    data = make_data(unseen=np.empty(0, np.int64), tests=0)
    everything = replace(data, train=ClientIndex(data.partition.order, data.partition.offsets))
    nothing = replace(everything, held_out=ClientIndex(np.empty(0, np.int64), np.zeros(7, np.int64)))
    columns, _ = Evaluator(make(nothing).engine, nothing, training=False).evaluate(params_of(), 1)
    assert [*columns] == ["train_accuracy"]


def test_participants_and_unseen_clients_that_are_the_same_have_no_gap():
    # Client 5 is made a copy of client 0, who alone takes part: its held-out data, twice, stand against themselves.
    data = make_data()
    partition = Partition.from_owner([0, 0, 0, 1, 1, 1], 2, kind="natural")
    x, y = np.tile(data.dataset.train_x[:3], (2, 1)), np.tile(data.dataset.train_y[:3], 2)
    dataset = replace(data.dataset, train_x=x, train_y=y)
    held_out = ClientIndex(np.arange(6), np.array([0, 3, 6]))
    train = ClientIndex(np.array([0]), np.array([0, 1, 1]))  # one training sample, of client 0
    same = FederatedData(dataset, y, partition, Population(np.array([0]), np.array([1])), train, held_out, None)
    columns, _ = make(same).evaluate(params_of(), 1)
    assert columns["participation_gap"] == 0
    assert columns["participation_gap_low"] == -columns["participation_gap_high"] < 0  # one client each tells little


def test_label_noise_is_trained_on_but_never_tested_on():
    clean, noisy = make_data(), make_data(noise=True)
    columns = {name: make(data).evaluate(params_of(), 1) for name, data in (("clean", clean), ("noisy", noisy))}
    free = {k for k in columns["clean"][0] if k not in ("train_accuracy", "out_of_sample_gap")}
    assert {k: columns["clean"][0][k] for k in free} == {k: columns["noisy"][0][k] for k in free}
    assert columns["clean"][1] == columns["noisy"][1]
    expected = per_client(noisy, [noisy.train[k] for k in PARTICIPANTS], noisy.labels)[0].mean()
    assert columns["noisy"][0]["train_accuracy"] == pytest.approx(expected, abs=1e-8)
    assert columns["noisy"][0]["train_accuracy"] != columns["clean"][0]["train_accuracy"]


def test_without_unseen_clients_or_test_set_there_are_no_such_columns():
    columns, records = make(make_data(unseen=np.empty(0, np.int64), tests=0)).evaluate(params_of(), 1)
    assert not [name for name in columns if name.startswith(("unseen", "test", "participation_gap"))]
    assert [record["population"] for record in records] == ["participants"]
    assert {"participant_accuracy", "out_of_sample_gap", "train_accuracy"} <= columns.keys()


def test_without_held_out_samples_there_are_no_columns_of_participants():
    data = make_data()
    everything = replace(data, train=ClientIndex(data.partition.order, data.partition.offsets))
    nothing = replace(everything, held_out=ClientIndex(np.empty(0, np.int64), np.zeros(7, np.int64)))
    columns, records = make(nothing).evaluate(params_of(), 1)
    assert not [name for name in columns if name.startswith(("id_", "participation_gap", "out_of_sample"))]
    assert [record["population"] for record in records] == ["unseen"]
    assert make(nothing).evaluate_local(np.zeros((2, 16), np.float32), np.array([0, 3]), 1) == ({}, [])


def test_local_accuracy_is_that_of_each_clients_own_model_on_its_own_held_out_data():
    data, cohort = make_data(), np.array([0, 1, 4])
    models = np.stack([params_of(seed) for seed in (10, 11, 12)])
    columns, (record,) = make(data).evaluate_local(models, cohort, 3)
    expected, losses = [], []
    for row, client in ((0, 0), (2, 4)):  # client 1 has nothing held out
        part = data.held_out[client]
        right, loss = by_hand(models[row], data.dataset.train_x[part], data.dataset.train_y[part])
        expected.append(right.mean())
        losses.append(loss.mean())
    assert columns == {"local_accuracy": pytest.approx(np.mean(expected), abs=1e-8)}
    assert (record["round"], record["population"], record["ids"]) == (3, "local", [0, 4])
    np.testing.assert_allclose(record["accuracy"], expected, atol=1e-6)
    np.testing.assert_allclose(record["loss"], losses, atol=1e-5)


def test_evaluating_twice_gives_the_same_numbers_whatever_happened_between():
    evaluator = make(make_data())
    one = evaluator.evaluate(params_of(), 4)
    evaluator.evaluate(params_of(1), 5)
    evaluator.engine.train(params_of(2), PARTICIPANTS, 1, 0.1)
    assert evaluator.evaluate(params_of(), 4) == one
    other, _ = evaluator.evaluate(params_of(), 5)
    assert other == one[0]  # nothing is drawn: columns do not depend on the round


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0], 3.0),
        (np.arange(10.0), 0.0),
        (np.arange(11.0), 0.5),
        (np.arange(20.0)[::-1], 0.5),
        (np.arange(30.0), 1.0),
    ],
)
def test_the_worst_decile_is_the_mean_of_the_lowest_tenth_rounded_up(values, expected):
    assert worst_decile(np.asarray(values)) == expected


def test_a_group_leaves_out_clients_without_samples_and_joins_ranges_client_by_client():
    a = ClientIndex(np.array([9, 8, 7, 6]), np.array([0, 2, 2, 4]))
    b = ClientIndex(np.array([1, 2]), np.array([0, 0, 0, 2]))
    group = Group.of(np.array([0, 1, 2]), a, b)
    assert (group.ids.tolist(), group.sizes.tolist()) == ([0, 2], [2, 4])
    assert group.index.tolist() == [9, 8, 7, 6, 1, 2]
    scores = group.scores(np.array([1, 0, 1, 1, 1, 0], np.bool_), np.arange(6, dtype=np.float32))
    assert scores.score.tolist() == [0.5, 0.75]
    assert scores.loss.tolist() == [0.5, 3.5]
    assert scores.pooled == pytest.approx(4 / 6)


def test_a_limit_of_examples_per_client_takes_the_first_ones_of_each():
    data = make_data()
    few, all_ = Evaluator(None, data, examples_per_client=2), Evaluator(None, data)
    for name in ("participants", "training", "unseen"):
        limited, whole = getattr(few, name), getattr(all_, name)
        assert limited.sizes.tolist() == np.minimum(whole.sizes, 2).tolist()
        starts = np.cumsum(whole.sizes) - whole.sizes
        firsts = [whole.index[i : i + min(2, m)] for i, m in zip(starts, whole.sizes, strict=True)]
        assert limited.index.tolist() == np.concatenate(firsts).tolist()


def test_the_limit_holds_for_local_models_too():
    data = make_data()
    evaluator = make(data)
    limited = Evaluator(evaluator.engine, data, examples_per_client=2)
    columns, (record,) = limited.evaluate_local(params_of()[None], np.array([3]), 1)
    first = data.held_out[3][:2]
    right, _ = by_hand(params_of(), data.dataset.train_x[first], data.dataset.train_y[first])
    assert (record["examples"], columns["local_accuracy"]) == ([2], right.mean())


@pytest.mark.parametrize(("by", "top"), [(ACCURACY, 1.0), (MAE, np.inf)])
def test_intervals_are_those_of_both_means_and_of_their_difference(by, top):
    rng, n = generator(1, "scores"), 30
    first, second = (Scores(np.arange(n), np.full(n, 9), rng.random(n), rng.random(n), by) for _ in range(2))
    columns, _ = summarize_round(7, first, second, first)
    bounds = {
        f"participant_{by.name}": mean_interval(first.score, top),
        f"unseen_{by.name}": mean_interval(second.score, top),
    }
    pair = (first, second) if by is ACCURACY else (second, first)  # a gap is positive where unseen clients are worse
    bounds["participation_gap"] = difference_interval(*(one.score for one in pair), top)
    for name, (low, high) in bounds.items():
        assert (columns[f"{name}_low"], columns[f"{name}_high"]) == pytest.approx((low, high), abs=1e-9)
        assert low < columns[name] < high


def test_an_error_of_a_single_client_has_no_interval_as_nothing_bounds_those_of_others():
    one, more = (Scores(np.arange(n), np.full(n, 9), np.arange(1.0, n + 1), np.ones(n), MAE) for n in (1, 3))
    columns, _ = summarize_round(7, more, one, more)
    with_one = {name for name in columns if name.endswith("_low")}
    assert with_one == {"participant_mae_low"}  # and none of the gap
    assert np.isfinite([*columns.values()]).all()  # infinite ones would read as a model that diverged


def test_lines_about_clients_have_six_digits_and_columns_nine():
    columns, lines = make(make_data()).evaluate(params_of(), 1)
    for line in lines:
        assert line["loss"] == [round(loss, 6) for loss in line["loss"]]
        assert line["accuracy"] == [round(share, 6) for share in line["accuracy"]]
    assert columns == {name: round(value, 9) for name, value in columns.items()}
    assert any(value != round(value, 8) for value in columns.values())  # of one by itself the ninth may be 0


def test_each_participant_is_scored_by_its_clusters_model_and_strangers_by_all_in_proportion():
    data = make_data()
    evaluator = make(data)
    clusters = np.array([0, 1, 1, 1])  # of participants 0, 1, 3, 4: model 1 counts three quarters elsewhere
    models = np.stack([params_of(0), params_of(1)])
    columns, lines = evaluator.evaluate(models, 3, clusters)
    alone = [evaluator.evaluate(model, 3) for model in models]
    accuracy = [dict(zip(found[0]["ids"], found[0]["accuracy"], strict=True)) for _, found in alone]
    own = {0: accuracy[0][0], 3: accuracy[1][3], 4: accuracy[1][4]}  # client 1 has nothing held out
    assert dict(zip(lines[0]["ids"], lines[0]["accuracy"], strict=True)) == own
    assert columns["participant_accuracy"] == pytest.approx(np.mean(list(own.values())), abs=1e-6)
    for name in ("unseen_accuracy", "unseen_loss", "test_accuracy", "test_loss"):
        expected = 0.25 * alone[0][0][name] + 0.75 * alone[1][0][name]
        assert columns[name] == pytest.approx(expected, abs=1e-6)
        assert abs(alone[0][0][name] - alone[1][0][name]) > 1e-3


def test_equal_models_in_several_clusters_score_as_one():
    evaluator = make(make_data())
    one, _ = evaluator.evaluate(params_of(), 3)
    two, _ = evaluator.evaluate(np.stack([params_of(), params_of()]), 3, np.array([0, 1, 0, 1]))
    assert one == pytest.approx(two)


@pytest.mark.parametrize("batch", [1, 3, 7])
def test_the_size_of_the_batches_changes_no_score(batch, monkeypatch):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 4))
    made = TorchEngine(Sequential, Task(module, make_data(), FedAvg(), LocalSGD(), 0))
    whole = Evaluator(made, make_data()).evaluate(made.initial, 1)
    monkeypatch.setattr(trainer, "EVALUATION_BATCH", batch)
    monkeypatch.setattr(engine, "EVALUATION_PART", 2 * batch)
    columns, lines = Evaluator(made, make_data()).evaluate(made.initial, 1)
    assert columns == pytest.approx(whole[0], abs=1e-6)
    for line, other in zip(lines, whole[1], strict=True):
        assert line["accuracy"] == other["accuracy"]
        assert line["loss"] == pytest.approx(other["loss"], abs=2e-6)


class Noisy(nn.Linear):
    """Draws random numbers in evaluation, too."""

    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.5, training=True))


def test_the_size_of_the_batches_changes_no_draw_of_an_example(monkeypatch):
    torch.manual_seed(0)
    made, index = TorchEngine(Sequential, Task(Noisy(3, 4), make_data(), FedAvg(), LocalSGD(), 0)), np.arange(40)
    whole = made.logits(made.initial, "true", index)
    assert made.trainer.behavior.draws_in_evaluation
    monkeypatch.setattr(trainer, "EVALUATION_BATCH", 3)
    np.testing.assert_allclose(made.logits(made.initial, "true", index), whole, rtol=0, atol=1e-6)


def test_a_model_that_mixes_examples_sees_those_of_one_client_in_even_batches(monkeypatch):
    monkeypatch.setattr(trainer, "EVALUATION_BATCH", 4)
    monkeypatch.setattr(engine, "EVALUATION_PART", 8)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 4))
    data = make_data()
    made = TorchEngine(Sequential, Task(module, data, FedAvg(), LocalSGD(), 0))
    parts = [data.partition[client] for client in (0, 2, 3)]  # of 12, 9 and 20 examples
    x = [torch.from_numpy(data.dataset.train_x[part]) for part in parts]
    expected = [module.eval()(b) for c in x for b in torch.tensor_split(c, -(-len(c) // 4))]
    found = made.logits(made.initial, "true", np.concatenate(parts))
    np.testing.assert_allclose(found, torch.cat(expected).detach().numpy(), rtol=0, atol=1e-5)


def test_means_of_losses_are_summed_in_double_precision():
    loss = generator(0, "losses").random(1000).astype(np.float32)
    mean = pytest.approx(math.fsum(loss.tolist()) / 1000, rel=1e-14)
    group = Group(np.array([4]), np.arange(1000), np.array([1000]))
    assert group.scores(loss, loss).loss.item() == mean
    assert means(loss, np.array([1000])).item() == mean
    assert mean_of(loss, None) == mean
