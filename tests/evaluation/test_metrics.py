"""Further metrics stand beside accuracy and loss, for participants, unseen clients and the test set."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import fedreach as fr
from fedreach._util.errors import ComponentError
from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.networks import build
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.evaluation.evaluator import Evaluator
from fedreach.evaluation.metrics import METRICS, Accuracy, FunctionMetric, MeanLoss
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg

from .test_evaluator import PARTICIPANTS, UNSEEN, make_data, params_of


@dataclass(frozen=True)
class AsIfOnesOwn(fr.Metric):
    """A metric that is there already, under another name."""

    metric: object

    @property
    def name(self):
        return f"own_{self.metric.name}"

    def of(self, labels, scores):
        return self.metric.of(labels, scores)


@dataclass(frozen=True)
class RecallOfZero(fr.Metric):
    name = "recall_0"

    def of(self, labels, scores):
        zeros = labels == 0
        return float((scores.argmax(axis=1)[zeros] == 0).mean()) if zeros.any() else float("nan")


@dataclass(frozen=True)
class MissedOfZero(RecallOfZero):
    name = "missed_0"
    lower_is_better: ClassVar[bool] = True

    def of(self, labels, scores):
        return 1 - super().of(labels, scores)


def engine_of(data):
    module = build("linear", (3,), 4, seed=1)
    return TorchEngine(Sequential, Task(module, data, FedAvg(), LocalSGD(), 3))


def evaluated(metrics, models=1):
    """Return the data, and columns and lines about single clients."""
    data = make_data()
    stack = np.stack([params_of(seed) for seed in range(models)])
    clusters = np.arange(len(PARTICIPANTS)) % models
    return data, *Evaluator(engine_of(data), data, metrics=metrics).evaluate(stack, 1, clusters)


def samples_of_clients(data):
    """Yield each population's name and the samples of each of its clients that has any."""
    for where, clients in (("participant", PARTICIPANTS), ("unseen", UNSEEN)):
        parts = []
        for client in map(int, clients):
            mine = [data.held_out[client]] + ([data.train[client]] if where == "unseen" else [])
            parts.append(np.concatenate(mine))
        yield where, [part for part in parts if len(part)]


@pytest.mark.parametrize("models", [1, 2])
def test_what_is_there_already_comes_out_the_same_by_its_logits(models):
    _, columns, lines = evaluated([AsIfOnesOwn(Accuracy()), AsIfOnesOwn(MeanLoss())], models)
    for where in ("participant", "unseen", "test"):
        for metric in ("accuracy", "loss"):
            assert columns[f"{where}_own_{metric}"] == pytest.approx(columns[f"{where}_{metric}"], abs=1e-6)
    for where in ("participant", "unseen"):
        for column in ("accuracy_worst_decile", "accuracy_pooled"):
            assert columns[f"{where}_own_{column}"] == pytest.approx(columns[f"{where}_{column}"], abs=1e-6)
    for line in lines:
        for metric in ("accuracy", "loss"):
            assert line["metrics"][f"own_{metric}"] == pytest.approx(line[metric], abs=2e-6)


def test_accuracy_and_loss_are_not_computed_twice():
    _, columns, lines = evaluated([Accuracy(), MeanLoss(), METRICS["log_loss"]()])
    assert (columns, lines) == evaluated([])[1:]
    assert not any("metrics" in line for line in lines)


def test_clients_for_which_it_is_not_defined_are_left_out_and_counted():
    data, columns, lines = evaluated([RecallOfZero(), MissedOfZero()])
    outputs = engine_of(data)
    for line, (where, parts) in zip(lines, samples_of_clients(data), strict=True):
        labels = [data.dataset.train_y[part] for part in parts]
        logits = [outputs.logits(params_of(), "true", part) for part in parts]
        values = np.array(list(map(RecallOfZero().of, labels, logits)))
        defined = values[~np.isnan(values)]
        said = [np.nan if value is None else value for value in line["metrics"]["recall_0"]]
        assert said == pytest.approx(values, abs=1e-6, nan_ok=True)
        assert columns.get(f"{where}_recall_0_undefined", 0) == len(values) - len(defined)
        assert columns[f"{where}_recall_0"] == pytest.approx(defined.mean(), abs=1e-9)
        whole = RecallOfZero().of(np.concatenate(labels), np.concatenate(logits))
        assert columns[f"{where}_recall_0_pooled"] == pytest.approx(whole, abs=1e-9)
        # The worst tenth of a few clients is one: who recalls least, or misses most.
        assert columns[f"{where}_recall_0_worst_decile"] == pytest.approx(defined.min(), abs=1e-9)
        assert columns[f"{where}_missed_0_worst_decile"] == pytest.approx(1 - defined.min(), abs=1e-9)
    assert sum("recall_0_undefined" in name for name in columns) > 0
    assert {name for name in columns if name.startswith("test_recall_0")} == {"test_recall_0"}


def test_what_is_defined_for_no_client_may_be_for_all_samples_together():
    def count(y_true, scores):  # unseen clients have 9 and 8 samples, participants fewer
        return float(len(y_true)) if len(y_true) > 9 else float("nan")

    data, columns, lines = evaluated([FunctionMetric(count)])
    for where, parts in samples_of_clients(data):
        assert columns[f"{where}_count_pooled"] == sum(map(len, parts))
        assert columns[f"{where}_count_undefined"] == len(parts)
        assert not {f"{where}_count", f"{where}_count_worst_decile"} & columns.keys()
    assert [set(line["metrics"]["count"]) for line in lines] == [{None}, {None}]


def test_several_models_are_averaged_for_who_has_none_of_them():
    def first(y_true, scores):
        return float(scores[0, 0])

    models, data = np.stack([params_of(0), params_of(1)]), make_data()
    clusters = np.array([0, 1, 1, 1])
    made = engine_of(data)
    columns, _ = Evaluator(made, data, metrics=[FunctionMetric(first)]).evaluate(models, 1, clusters)
    unseen = [np.concatenate([data.train[int(c)], data.held_out[int(c)]])[0] for c in UNSEEN]
    odds = [np.exp(made.logits(model, "true", np.array(unseen)).astype(float)) for model in models]
    p = [(each / each.sum(axis=1, keepdims=True))[:, 0] for each in odds]
    assert columns["unseen_first"] == pytest.approx((0.25 * p[0] + 0.75 * p[1]).mean(), abs=1e-6)
    assert columns["unseen_first_pooled"] == pytest.approx(0.25 * p[0][0] + 0.75 * p[1][0], abs=1e-6)


def test_no_metric_is_asked_about_outputs_that_are_not_finite():
    def careful(y_true, scores):
        assert np.isfinite(scores).all()
        return 1.0

    data = make_data()
    broken = np.full_like(params_of(), np.nan)
    columns, lines = Evaluator(engine_of(data), data, metrics=[FunctionMetric(careful)]).evaluate(broken, 1)
    assert columns["unseen_careful_undefined"] == len(UNSEEN)
    assert columns["test_careful_undefined"] == 1
    assert lines[1]["metrics"] == {"careful": [None, None]}


# ---------------------------------------------------------------------------------------------------------- functions


def test_a_function_is_handed_probabilities_and_may_spoil_what_it_is_handed():
    seen = []

    def spoils(y_true, scores):
        seen.append((y_true.copy(), scores.copy()))
        y_true[:], scores[:] = 0, 0
        return 0.5

    spoilt = FunctionMetric(spoils)
    _, columns, _ = evaluated([spoilt, AsIfOnesOwn(Accuracy())])
    assert columns["unseen_own_accuracy"] == pytest.approx(columns["unseen_accuracy"], abs=1e-9)
    for labels, p in seen:
        assert (labels.dtype.kind, p.dtype, p.shape) == ("i", np.float64, (len(labels), 4))
        np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-12)
        assert (p >= 0).all()


def test_a_function_says_by_its_name_or_itself_whether_less_is_better():
    def brier_loss(y_true, scores):
        return 0.0

    def recall(y_true, scores):
        return 0.0

    def d2_loss_score(y_true, scores):
        return 0.0

    assert [FunctionMetric(f).lower_is_better for f in (brier_loss, recall, d2_loss_score)] == [True, False, False]
    brier_loss.lower_is_better, recall.lower_is_better = False, True
    assert [FunctionMetric(f).lower_is_better for f in (brier_loss, recall)] == [False, True]
    assert FunctionMetric(recall) == FunctionMetric(recall) != FunctionMetric(brier_loss)


@pytest.mark.parametrize(
    ("attribute", "value", "said"),
    [
        ("lower_is_beter", True, "mine has no attribute `lower_is_beter`. Did you mean `lower_is_better`"),
        ("lower_is_better", "yes", r"mine\.lower_is_better must be True or False; got 'yes'"),
        ("name", "Mine", "contain only lowercase letters, digits and _; got 'Mine'. Rename it"),
    ],
)
def test_what_a_function_says_of_itself_is_checked(attribute, value, said):
    def mine(y_true, scores):
        return 0.0

    setattr(mine, attribute, value)
    with pytest.raises(ComponentError, match=said):
        evaluated([FunctionMetric(mine)])


def test_a_function_without_a_name_is_told_to_have_one():
    with pytest.raises(ComponentError, match=r"got '<lambda>'. Define the function with `def`"):
        evaluated([FunctionMetric(lambda y_true, scores: 0.0)])


# --------------------------------------------------------------------------------------------------- names and values


@dataclass(frozen=True)
class Says(fr.Metric):
    """A metric of this name and value."""

    name: str = "mine"
    value: object = 1.0

    def of(self, labels, scores):
        return self.value


NOT_ONES_OWN = ["accuracy", "accuracy_low", "loss", "round", "examples"]
ENDS_OF_OTHERS = ["mine_worst_decile", "mine_pooled", "mine_undefined"]


@pytest.mark.parametrize("name", ["a b", "", "Ä", 3, *NOT_ONES_OWN, *ENDS_OF_OTHERS])
def test_a_name_that_cannot_end_a_column_or_ends_another_is_refused(name):
    with pytest.raises(ComponentError, match=r"The name of a metric must .* Rename it"):
        evaluated([Says(name)])


def test_a_name_stands_once():
    with pytest.raises(ComponentError, match="must be unique, and must not end in"):
        evaluated([Says(), Says(value=2.0)])


@pytest.mark.parametrize("value", ["high", None, float("inf"), [1.0]])
def test_what_is_no_number_is_refused(value):
    def mine(y_true, scores):
        return value

    for metric, said in ((Says(value=value), "Says.of"), (FunctionMetric(mine), "mine")):
        with pytest.raises(ComponentError, match=rf"{said} must return a finite number or nan; got "):
            evaluated([metric])
