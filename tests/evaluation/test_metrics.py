"""Metrics of one's own stand beside accuracy and loss, for participants, unseen clients and the test set."""

from dataclasses import dataclass

import numpy as np
import pytest

from fedreach.engines import Sequential, Task, TorchEngine
from fedreach.errors import PartError
from fedreach.evaluation import Evaluator
from fedreach.evaluation.metrics import Accuracy, MeanLoss
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg
from fedreach.models import build

from .test_evaluator import PARTICIPANTS, UNSEEN, make_data, params_of


@dataclass(frozen=True)
class AsIfOnesOwn:
    """A metric that is there already, under another name."""

    metric: object

    @property
    def name(self):
        return f"own_{self.metric.name}"

    def of(self, labels, scores):
        return self.metric.of(labels, scores)


@dataclass(frozen=True)
class RecallOfZero:
    name = "recall_0"

    def of(self, labels, scores):
        zeros = labels == 0
        return float((scores.argmax(axis=1)[zeros] == 0).mean()) if zeros.any() else float("nan")


def evaluated(metrics, models=1):
    data = make_data()
    module = build("linear", (3,), 4, seed=1)
    made = TorchEngine(Sequential, Task(module, data, FedAvg(), LocalSGD(), 3))
    stack = np.stack([params_of(seed) for seed in range(models)])
    clusters = np.arange(len(PARTICIPANTS)) % models
    return data, made, Evaluator(made, data, 0, metrics=metrics).evaluate(stack, 1, clusters)[0]


@pytest.mark.parametrize("models", [1, 2])
def test_what_is_there_already_comes_out_the_same_by_its_logits(models):
    _, _, columns = evaluated([AsIfOnesOwn(Accuracy()), AsIfOnesOwn(MeanLoss())], models)
    for where in ("id", "unseen", "test"):
        for metric in ("accuracy", "loss"):
            assert columns[f"{where}_own_{metric}"] == pytest.approx(columns[f"{where}_{metric}"], abs=1e-6)


def test_accuracy_and_loss_are_not_computed_twice():
    _, _, columns = evaluated([Accuracy(), MeanLoss()])
    assert columns == evaluated([])[2]


def test_clients_for_which_it_is_not_defined_are_left_out_and_counted():
    data, made, columns = evaluated([RecallOfZero()])
    for where, clients in (("id", PARTICIPANTS), ("unseen", UNSEEN)):
        values = []
        for client in map(int, clients):
            parts = [data.held_out[client]] + ([data.train[client]] if where == "unseen" else [])
            index = np.concatenate(parts)
            if len(index):
                labels = data.dataset.train_y[index]
                values.append(RecallOfZero().of(labels, made.logits(params_of(), "true", index)))
        defined = [value for value in values if not np.isnan(value)]
        assert columns.get(f"{where}_recall_0_undefined", 0) == len(values) - len(defined)
        assert columns[f"{where}_recall_0"] == pytest.approx(np.mean(defined), abs=1e-9)


@dataclass(frozen=True)
class Says:
    """A metric of this name and value."""

    name: str = "mine"
    value: object = 1.0

    def of(self, labels, scores):
        return self.value


@pytest.mark.parametrize("name", ["a b", "", "Ä", 3, "accuracy", "accuracy_low", "loss"])
def test_a_name_that_cannot_end_a_column_or_ends_another_is_refused(name):
    with pytest.raises(PartError, match=r"The name of a metric must be .* Rename it"):
        evaluated([Says(name)])


def test_a_name_stands_once():
    with pytest.raises(PartError, match="there are columns of 'mine' already"):
        evaluated([Says(), Says(value=2.0)])


@pytest.mark.parametrize("value", ["high", None, float("inf"), [1.0]])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(PartError, match=r"Says.of must return a number that is not infinite, or nan; got "):
        evaluated([Says(value=value)])
