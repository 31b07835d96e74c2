"""Baselines without federated learning, and detection of label leakage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from fedreach._util.arrays import AnyArray, Bools, Float32s, Floats, Ints
from fedreach.data.datasets import Dataset
from fedreach.data.federated import FederatedData
from fedreach.data.several import is_labeled
from fedreach.engines.protocols import Predictor, Split
from fedreach.evaluation.evaluator import Evaluator
from fedreach.evaluation.metrics import AUROC, Metric, pairs_in_order
from fedreach.federation.adaptation.base import log_softmax
from fedreach.federation.adaptation.few_labels import fit_head
from fedreach.federation.types import Outputs

# -------------------- Baselines
# Baselines are fitted on the participants' training examples. `fedreach.evaluation.evaluator.Evaluator` scores them as
# it scores models: on participants' held-out examples, unseen clients and the test set.
#
# - **majority**, for classes: log-probabilities log((n_k + 1) / (n + c)), where n_k of n training labels are of class
#   k, and c is the number of classes.
# - **mean**, for numeric targets: the mean target. A federation can compute majority and mean from sums.
# - **pooled**: a linear model on the examples of all participants, which a federation cannot compute cheaply. For
#   classes, it is logistic regression: the (d + 1, c) head B of `fedreach.federation.adaptation.few_labels.fit_head`,
#   regularized toward the majority baseline with strength 1 / n, scikit-learn's default C = 1. For numeric targets, it
#   is ridge regression: (X'X + I) B = X'Y with centered inputs and targets, scikit-learn's default alpha = 1.
#
# Inputs are those of the model. Features that are not scaled are standardized with the participants' training examples.

LARGEST = 2e7
"""Largest product rows x inputs x outputs of a pooled model; fitting this model takes about four seconds."""
MAX_INPUTS = 2000
BLOCK = 4096  # examples that are converted to inputs at once
NO_PARAMETERS = np.zeros(1, np.float32)


@dataclass(frozen=True, eq=False)
class Baseline(Predictor):
    """Fixed linear predictor: `bias` + inputs * `weights`.

    The prediction for an example has the same bits, whichever examples are predicted with it.
    """

    data: FederatedData
    bias: Floats  # (c,) logits, or (t,) numbers
    weights: Floats | None = None  # (d, c); None: all predictions are equal
    scale: tuple[Floats, Floats] | None = None  # (d,) mean and standard deviation of unscaled features

    def outputs(self, split: Split, index: Ints) -> Floats:
        """Return (m, c) logits, or (m, t) predicted numbers."""
        d = self.data.dataset
        if self.weights is None:
            return np.broadcast_to(self.bias, (len(index), *d.positions, len(self.bias)))
        outputs = np.empty((len(index), len(self.bias)))
        for begin in range(0, len(index), BLOCK):
            rows = slice(begin, begin + BLOCK)
            x = inputs_of(d, (d.test_x if split == "test" else d.train_x)[index[rows]], self.scale)
            outputs[rows] = self.bias + np.einsum("md,dc->mc", x, self.weights)  # matmul depends on the other rows
        return outputs

    def predict(self, params: Float32s, split: Split, index: Ints) -> tuple[Bools | Float32s, Float32s]:
        d, outputs = self.data.dataset, self.outputs(split, index)
        truth = {"train": self.data.labels, "test": d.test_y}.get(split, d.train_y)[index]
        if d.positions:
            return self._shares(truth)
        if d.num_classes:
            loss = -log_softmax(outputs)[np.arange(len(index)), truth]
            return outputs.argmax(axis=1) == truth, loss.astype(np.float32)
        off = outputs - truth
        on_scale = off if d.target_scale is None else off / d.target_scale.sd  # the loss is on the scale of training
        return np.abs(off).mean(axis=1).astype(np.float32), np.square(on_scale).mean(axis=1).astype(np.float32)

    def _shares(self, truth: AnyArray) -> tuple[Float32s, Float32s]:
        """Return accuracy and mean loss of each example over its positions with a label."""
        labeled, axes = is_labeled(truth), tuple(range(1, truth.ndim))
        log_p = log_softmax(self.bias[None])[0]
        right = (truth == self.bias.argmax()).sum(axis=axes) / labeled.sum(axis=axes)
        loss = np.where(labeled, -log_p[np.where(labeled, truth, 0)], 0.0).sum(axis=axes) / labeled.sum(axis=axes)
        return right.astype(np.float32), loss.astype(np.float32)

    def logits(self, params: Float32s, split: Split, index: Ints) -> Float32s:
        return self.outputs(split, index).astype(np.float32)

    def answers(self, params: Float32s, split: Split, index: Ints, *, inputs: bool) -> Outputs:
        raise NotImplementedError("Baselines do not support adaptation.")


@dataclass(frozen=True, eq=False)
class BaselineScores:
    """Evaluation columns and client records of a baseline."""

    columns: Mapping[str, float]  # columns of `Evaluator`
    clients: Mapping[str, Mapping[str, Sequence[Any]]]  # population -> "ids" and main scores of its clients


def score_baselines(
    data: FederatedData, examples_per_client: int | None = None, metrics: Sequence[Metric] = ()
) -> tuple[dict[str, BaselineScores], str]:
    """Score the baselines; return the scores by name, and the reason why `pooled` is missing, or "".

    Args:
        data: Federated data. Baselines are fitted only on the participants' training examples.
        examples_per_client: Largest number of evaluation examples per client, see `Evaluator`.
        metrics: Additional metrics. Baselines use only `AUROC`.

    Example:
        >>> from fedreach.testing.problems import tiny_data
        >>> found, left_out = score_baselines(tiny_data())
        >>> {name: round(scored.columns["unseen_accuracy"], 3) for name, scored in found.items()}, left_out
        ({'majority': 0.55, 'pooled': 0.95}, '')
    """
    classes, why = data.dataset.num_classes, why_not_pooled(data)
    builders: dict[str, Callable[[FederatedData], Baseline]] = (
        {"majority": majority} if classes else {"mean": mean_target}
    )
    if not why:
        builders["pooled"] = pooled_logistic if classes else pooled_ridge
    auroc_metrics = [metric for metric in metrics if isinstance(metric, AUROC)]
    return {
        name: _score(Evaluator(make(data), data, examples_per_client, auroc_metrics)) for name, make in builders.items()
    }, why


def _score(evaluator: Evaluator) -> BaselineScores:
    columns, lines = evaluator.evaluate(NO_PARAMETERS, 0)
    name = evaluator.by.name
    return BaselineScores(columns, {line["population"]: {"ids": line["ids"], name: line[name]} for line in lines})


def majority(data: FederatedData) -> Baseline:
    """Return the baseline that predicts the participants' label distribution, with one example added per class."""
    labels = data.labels[training_rows(data)]
    if data.dataset.positions:
        labels = labels[is_labeled(labels)]
    counts = np.bincount(labels, minlength=data.dataset.num_classes) + 1.0
    return Baseline(data, np.log(counts / counts.sum()))


def mean_target(data: FederatedData) -> Baseline:
    """Return the baseline that predicts the mean of the participants' training targets."""
    return Baseline(data, data.labels[training_rows(data)].mean(axis=0, dtype=np.float64))


def pooled_logistic(data: FederatedData) -> Baseline:
    """Fit a logistic regression on the training examples of all participants."""
    rows, shares = training_rows(data), majority(data).bias
    x, scale = _fitted_inputs(data, rows)
    head = fit_head(x, np.tile(shares, (len(rows), 1)), data.labels[rows], 1 / len(rows))
    return Baseline(data, shares + head[-1], head[:-1], scale)


def pooled_ridge(data: FederatedData) -> Baseline:
    """Fit a ridge regression on the training examples of all participants."""
    rows = training_rows(data)
    x, scale = _fitted_inputs(data, rows)
    y = data.labels[rows].astype(np.float64)
    middle, mean = x.mean(axis=0), y.mean(axis=0)
    x = x - middle
    weights = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ (y - mean))
    return Baseline(data, mean - middle @ weights, weights, scale)


def training_rows(data: FederatedData) -> Ints:
    """Return the indices of the participants' training examples, client by client."""
    return np.concatenate([data.train[int(client)] for client in data.population.participants])


def why_not_pooled(data: FederatedData) -> str:
    """Return the reason why the baseline `pooled` is missing, or ""."""
    d = data.dataset
    if d.positions:
        return "each position has a label"
    if d.kind in ("tokens", "several"):
        return f"the inputs are {'tokens' if d.kind == 'tokens' else 'several inputs'}"
    rows, inputs = int(data.train.sizes[data.population.participants].sum()), int(np.prod(d.train_x.shape[1:]))
    if rows * inputs * d.outputs > LARGEST or inputs > MAX_INPUTS:
        return f"{rows:,} training rows x {inputs:,} inputs x {d.outputs} outputs would take more than a few seconds"
    return ""


def inputs_of(d: Dataset, x: AnyArray, scale: tuple[Floats, Floats] | None = None) -> Floats:
    """Return the (m, d) model inputs of (m, ...) examples of a data set."""
    inputs = x.astype(np.float64)
    if d.kind == "image":
        mean, std = (np.reshape(of_channels, (-1, 1, 1)) for of_channels in (d.mean, d.std))
        inputs = (inputs / 255 - mean) / std
    inputs = inputs.reshape(len(x), -1)
    return inputs if scale is None else (inputs - scale[0]) / scale[1]


def _fitted_inputs(data: FederatedData, rows: Ints) -> tuple[Floats, tuple[Floats, Floats] | None]:
    """Return the inputs of training examples, and the scale of features that were not scaled."""
    d = data.dataset
    x = inputs_of(d, d.train_x[rows])
    if d.kind != "features" or d.preparation is not None:
        return x, None
    sd = x.std(axis=0)
    scale = x.mean(axis=0), np.where(sd > 0, sd, 1.0)
    return (x - scale[0]) / scale[1], scale


# -------------------- Label leakage: single columns that predict the label
# The search uses only the participants' training rows and labels.

MIN_AUROC = 0.995
MAX_WRONG_SHARE = 0.01
"""Largest share of the rows outside the majority class for which a leaking column predicts a wrong class."""
MIN_RANK_CORRELATION = 0.999
MIN_ROWS = 20
MIN_CLASS_ROWS = 5
MAX_TABLE_VALUES = 100


class Leak(NamedTuple):
    """Column that leaks the label."""

    column: str
    measure: str  # "AUROC", "accuracy" or "rank correlation"
    value: float  # value of the measure


def leaks(data: FederatedData) -> list[Leak]:
    """Return the columns of a table, or the features, that leak the label.

    - **AUROC**, for numbers, dates and Booleans: FedReach sorts the classes by their medians and computes the AUROC of
      each pair of neighboring classes. Missing values precede all numbers. A column leaks if the smallest AUROC is at
      least 0.995. Row numbers do not leak, because the measure uses only the order of the values.
    - **accuracy**, for categories, and for numbers with at most 100 values: the prediction for a row is the most
      frequent class of rows with the same value at *other participants*. With a single participant, FedReach uses the
      participant's other rows. A column leaks if its number of errors is at most 1% of the number of rows outside the
      majority class.
    - **rank correlation** with a numeric target: a column leaks if the absolute value of the correlation is at least
      0.999.

    The result is empty for images, for fewer than 20 rows, and for fewer than 5 rows of a second class.

    Example:
        >>> ages = {"hospital": ["a", "b"] * 20, "age": [30, 31, 32, 33] * 10, "ill": ["no", "no", "yes", "yes"] * 10}
        >>> table = {**ages, "code": [*"xxyy"] * 10, "weight": range(40)}
        >>> leaks(FederatedData.from_frame(table, client="hospital", label="ill", participants=["a", "b"]))
        [Leak(column='age', measure='AUROC', value=1.0), Leak(column='code', measure='accuracy', value=1.0)]
    """
    d, rows = data.dataset, training_rows(data)
    if d.positions or d.kind != "features" or d.train_x.ndim != 2 or len(rows) * d.train_x.shape[1] > LARGEST:
        return []
    labels = data.labels[rows]
    if len(rows) < MIN_ROWS:
        return []
    if not d.num_classes:
        numbers = [(name, x) for name, x, words in _columns(data, rows) if not words and labels.shape[1] == 1]
        candidates = [Leak(name, "rank correlation", _rank_correlation(x, labels[:, 0])) for name, x in numbers]
        return [leak for leak in candidates if abs(leak.value) >= MIN_RANK_CORRELATION]
    frequent_classes = np.flatnonzero(np.bincount(labels, minlength=d.num_classes) >= MIN_CLASS_ROWS)
    if len(frequent_classes) < 2 or np.isin(labels, frequent_classes).mean() < 1 - MAX_WRONG_SHARE:
        return []
    columns = _columns(data, rows)
    by_column = [_class_leak(data, name, values, labels, words=words) for name, values, words in columns]
    return [leak for leak in by_column if leak is not None]


def _columns(data: FederatedData, rows: Ints) -> Iterator[tuple[str, Floats, bool]]:
    """Yield name, (n,) values, and whether they are categories, of each column; missing values are -inf."""
    d = data.dataset
    if d.preparation is None:
        for j in range(d.train_x.shape[1]):
            yield f"input {j}", d.train_x[rows, j].astype(np.float64), False
        return
    end = 0
    for column in d.preparation.used:
        begin, end = end, end + len(column.feature_names)
        inputs, words = d.train_x[rows, begin:end], column.kind == "category"
        present = inputs[:, -1] == 0 if column.missing else np.ones(len(rows), bool)
        values = inputs[:, : len(column.categories)].argmax(axis=1) if words else inputs[:, 0]
        yield column.name, np.where(present, values, -np.inf), words


def _class_leak(data: FederatedData, name: str, values: Floats, labels: Ints, *, words: bool) -> Leak | None:
    if not words and (auroc := _lowest_neighbor_auroc(values, labels)) >= MIN_AUROC:
        return Leak(name, "AUROC", round(auroc, 6))
    _, codes = np.unique(values, return_inverse=True)
    if codes.max() >= MAX_TABLE_VALUES:
        return None
    right, wrong_at_best = _count_right_lookups(data, codes, labels), len(labels) - np.bincount(labels).max()
    wrong = len(labels) - right
    return Leak(name, "accuracy", round(right / len(labels), 6)) if wrong <= MAX_WRONG_SHARE * wrong_at_best else None


def _lowest_neighbor_auroc(values: Floats, labels: Ints) -> float:
    """Return the smallest AUROC of two classes with neighboring medians."""
    of_class = [values[labels == k] for k in np.unique(labels)]
    of_class = [class_values for class_values in of_class if len(class_values) >= MIN_CLASS_ROWS]
    of_class.sort(key=lambda class_values: float(np.sort(class_values)[len(class_values) // 2]))
    pairs = ((np.arange(len(a) + len(b)) >= len(a), np.concatenate([a, b])) for a, b in pairwise(of_class))
    return min(pairs_in_order(is_second, joined) for is_second, joined in pairs)


def _count_right_lookups(data: FederatedData, codes: Ints, labels: Ints) -> int:
    """Count the rows whose class is the most frequent one at other participants with the same value."""
    participants = data.population.participants
    owners = np.repeat(np.arange(len(participants)), data.train.sizes[participants])
    if len(participants) == 1:
        owners = np.arange(len(labels))
    classes = np.eye(data.dataset.num_classes, dtype=np.int64)[labels]
    _, owner_codes = np.unique(owners * (codes.max() + 1) + codes, return_inverse=True)
    other_counts = _group_sums(classes, codes) - _group_sums(classes, owner_codes)
    return int(((other_counts.argmax(axis=1) == labels) & (other_counts.max(axis=1) > 0)).sum())


def _group_sums(rows: Ints, groups: Ints) -> Ints:
    """Return for each row the sum over all rows of its group."""
    sums = np.zeros((groups.max() + 1, rows.shape[1]), np.int64)
    np.add.at(sums, groups, rows)
    return sums[groups]


def _rank_correlation(values: Floats, target: Floats) -> float:
    """Return Spearman's rank correlation over rows with a value; 0 if 10% or more of the values are missing."""
    has_value = np.isfinite(values)
    ranks = [_ranks(column[has_value]) for column in (values, target)]
    if has_value.mean() <= 0.9 or any(np.ptp(column) == 0 for column in ranks):
        return 0.0
    x, y = (column - column.mean() for column in ranks)
    return round(float(x @ y / np.sqrt((x @ x) * (y @ y))), 6)


def _ranks(values: Floats) -> Floats:
    """Return the rank of each value; equal values have their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place])
