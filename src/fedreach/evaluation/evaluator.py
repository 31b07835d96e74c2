"""Evaluation of a global model on participants, unseen clients and the test set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fedreach._util.arrays import Bools, Float32s, Floats, Ints
from fedreach._util.student_t import t_quantile
from fedreach.data.federated import FederatedData
from fedreach.data.several import position_counts
from fedreach.data.splits import ClientIndex
from fedreach.engines.protocols import Predictor, Split
from fedreach.evaluation.metrics import (
    ClientOutputs,
    Metric,
    Values,
    additional_metrics,
    columns_of_metric,
    metrics_record,
    reject_metrics,
)
from fedreach.evaluation.scores import ACCURACY, MAE, MainScore

# -------------------- Scores of a group of clients


@dataclass(frozen=True, eq=False)
class Scores:
    """Main score and loss of a model for each of n clients with evaluation examples."""

    ids: Ints  # (n,) client ids
    examples: Ints  # (n,) number of evaluation examples
    score: Floats  # (n,) accuracy, or mean absolute error
    loss: Floats  # (n,) mean cross-entropy in nats, or mean squared error
    by: MainScore = ACCURACY  # which main score it is

    @property
    def pooled(self) -> float:
        """Score over all examples together."""
        return float(self.score @ self.examples / self.examples.sum())

    def record(self, round_: int, population: str) -> dict[str, Any]:
        """Return the scores as a record of ``clients.jsonl``."""
        return {
            "round": round_,
            "population": population,
            "ids": self.ids.tolist(),
            "examples": self.examples.tolist(),
            self.by.name: self.score.round(6).tolist(),
            "loss": self.loss.round(6).tolist(),
        }


@dataclass(frozen=True, eq=False)
class Group:
    """Group of n clients and their evaluation examples, in the order of the clients."""

    ids: Ints  # (n,) client ids
    index: Ints  # (m,) indices of the examples in the training set
    sizes: Ints  # (n,) number of examples of each client, at least 1
    counts: Ints | None = None  # (m,) number of positions with a label, as weights of examples; None: equal weights

    @classmethod
    def of(cls, ids: Ints, *ranges: ClientIndex, max_samples: int | None = None, counts: Ints | None = None) -> Group:
        """Build the group of all clients in `ids` that have examples in the given ranges.

        Args:
            ids: Client ids.
            *ranges: Index of the examples of all clients, one or more.
            max_samples: Largest number of examples per client. The group contains the first examples of a client, whose
                order is random.
            counts: Number of labeled positions of each example in the training set. Default: labels have no positions.

        Example:
            >>> group = Group.of(np.array([0, 1]), ClientIndex(np.array([4, 7]), np.array([0, 2, 2])))
            >>> group.ids, group.index
            (array([0]), array([4, 7]))
        """
        parts = [np.concatenate([r[int(client)] for r in ranges])[:max_samples] for client in ids]
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        index = np.concatenate(parts) if parts else np.empty(0, np.int64)
        return cls(ids[sizes > 0], index, sizes[sizes > 0], None if counts is None else counts[index])

    @property
    def parts(self) -> list[Ints]:
        """Evaluation examples of each client."""
        return np.split(self.index, np.cumsum(self.sizes)[:-1]) if len(self.ids) else []

    def scores(self, right: Bools | Float32s | Floats, loss: Float32s | Floats, by: MainScore = ACCURACY) -> Scores:
        """Compute the scores of the clients from the correctness (or error) `right` and the `loss` of each example."""
        return Scores(self.ids, self.sizes, self._means(right), self._means(loss), by)

    def _means(self, values: Bools | Float32s | Floats) -> Floats:
        """Return the (n,) mean of each client over (m,) values."""
        starts = np.cumsum(self.sizes) - self.sizes
        if self.counts is None:
            return np.add.reduceat(values.astype(np.float64), starts) / self.sizes
        total: Floats = np.add.reduceat(values * self.counts, starts)
        return total / np.add.reduceat(self.counts, starts)


# -------------------- 95% confidence intervals of a mean over clients
# With 3, 5 or 10 clients, a percentile bootstrap covers the mean in 74%, 83% and 89% of draws. Student's t covers 55%,
# 55% and 79%, if bad clients are rare and the others nearly equal: a draw without bad clients gives a short interval.
# These intervals allow for clients that are absent from a draw, cover at least 94%, and need no random numbers.
# `benchmarks/interval_coverage.py` compares eleven methods.

LEVEL = 0.95
EQUAL_SCORES = 1e-9
"""Largest range of scores that are equal up to rounding."""


def mean_interval(scores: Floats, top: float = 1.0) -> tuple[float, float]:
    """Return the 95% confidence interval of the mean score over clients, computed from n sampled clients.

    m is the mean, and s = sd / sqrt(n) is the standard error. q is the 0.975 quantile of Student's t with n - 1 degrees
    of freedom. By the delta method (Oehlert, 1992), the interval is logit(m) ± q s / (m (1 - m)) on the logit scale.
    For scores without an upper limit, the interval is log(m) ± q s / m on the log scale. So the interval never exceeds
    the range of the score.

    The interval contains at least m f to 1 - (1 - m) f, with f = 0.05^(1/n). A group with the share 1 - f of all
    clients is absent from 5% of samples, and its scores could all be 0 or 1. If all scores are 0 or 1, this is the
    one-sided interval of Clopper and Pearson (1934). For scores without an upper limit, the interval allows for absent
    clients with scores of 0, but not for absent clients with large errors, unless all scores are equal.

    Args:
        scores: (n,) scores of clients, from 0 to `top`, with n at least 1.
        top: Largest possible score: 1 for accuracy, infinity for an error. Default: 1.

    Reference: Oehlert (1992), A note on the delta method, The American Statistician 46, 27-29; Clopper and Pearson
    (1934), Biometrika 26, 404-413.

    Example:
        >>> mean_interval(np.array([0.7, 0.8, 0.9]))
        (0.294722519891, 0.949735307554)
        >>> mean_interval(np.ones(10))
        (0.741134449107, 1.0)
    """
    bounded, count = top < math.inf, len(scores)
    mean = min(max(float(scores.mean()), 0.0), top)
    share = (1 - LEVEL) ** (1 / count)
    if float(np.ptp(scores)) <= EQUAL_SCORES:
        return round(mean * share, 12), round(1 - (1 - mean) * share, 12) if bounded else math.inf
    error = float(scores.std(ddof=1)) / math.sqrt(count)
    complement = 1 - mean if bounded else 1.0
    factor = math.exp(t_quantile((1 + LEVEL) / 2, count - 1) * error / (mean * complement))
    if not bounded:
        return round(mean * min(1 / factor, share), 12), round(mean * factor, 12)
    low, high = mean / (mean + complement * factor), mean * factor / (mean * factor + complement)
    return round(min(low, mean * share), 12), round(max(high, 1 - complement * share), 12)


def difference_interval(first: Floats, second: Floats, top: float = 1.0) -> tuple[float, float]:
    """Return the 95% confidence interval of mean(first) - mean(second) for two independent groups (MOVER).

    For means m and m' with intervals [l, h] and [l', h'], the interval is m - m' - sqrt((m - l)² + (h' - m')²) to
    m - m' + sqrt((h - m)² + (m' - l')²) (Zou and Donner, 2008).

    Args:
        first: (n,) scores of the first group of clients, see `mean_interval`.
        second: (n',) scores of the second group of clients.
        top: Largest possible score, see `mean_interval`.

    Reference: Zou and Donner (2008), Statistics in Medicine 27, 1693-1702.

    Example:
        >>> difference_interval(np.array([0.7, 0.8, 0.9]), np.array([0.6, 0.7, 0.5]))
        (-0.364917396512, 0.607467681571)
    """
    return combine_intervals(
        float(first.mean()), mean_interval(first, top), float(second.mean()), mean_interval(second, top)
    )


def combine_intervals(
    mean: float, limits: tuple[float, float], other_mean: float, other_limits: tuple[float, float]
) -> tuple[float, float]:
    """Return the interval of the difference of two means, computed from their intervals; see `difference_interval`."""
    (low, high), (other_low, other_high) = limits, other_limits
    below, above = math.hypot(mean - low, other_high - other_mean), math.hypot(high - mean, other_mean - other_low)
    return round(mean - other_mean - below, 12), round(mean - other_mean + above, 12)


# -------------------- Evaluation of a global model


class Evaluator:
    """Evaluation of global models, which computes the columns of a round.

    Means give each client the same weight. ``..._pooled`` gives each example the same weight. The columns are:

    - ``participant_...``: held-out examples of participants. ``unseen_...``: all examples of unseen clients.
      ``test_...``: the test set.
    - ``participation_gap``: participant_accuracy - unseen_accuracy.
    - ``..._low`` and ``..._high``: 95% confidence interval over clients (see `mean_interval`). Infinite intervals are
      omitted, for example the interval of a single client's error.
    - ``..._p10``, ``..._p50`` and ``..._p90``: percentiles over clients. ``..._worst_decile``: mean over the worst 10%
      of clients.
    - ``train_accuracy``: training examples of participants, with label noise. All other columns use true labels.
      ``out_of_sample_gap``: train_accuracy - participant_accuracy. Both columns require `training`, or data that have
      only training examples.
    - ``cohort_accuracy``: the part of participant_accuracy of the round's cohort, whose updates the model contains; a
      mean over these clients. `fedreach.runs.recorder` adds this column. It is the in-distribution accuracy of
      "Advocating for the Silent" (arXiv 2310.07171), section 5.
    - ``local_accuracy``: local models of the cohort before aggregation, each evaluated on its client's held-out
      examples. This column requires ``evaluation.local``.

    For numeric targets, ``mae`` replaces ``accuracy``. It is the mean absolute error in the unit of the targets. The
    loss is the mean squared error on the scale of training. So a model that predicts the participants' mean has a loss
    of about 1. Gaps have the opposite sign, so a positive gap still means that unseen clients have worse scores. The
    worst 10% of clients are the clients with the largest errors.

    With one model per cluster, FedReach evaluates each participant with the model of its cluster. Unseen clients and
    the test set have no cluster. Their scores are means over the models, weighted by the share of participants in each
    cluster.

    With labels per position, the accuracy and loss of a client are means over its labeled positions. Metrics use these
    positions as examples. ``..._pooled`` weights clients by their number of examples.

    Additional `metrics` have the columns ``participant_NAME``, ``unseen_NAME`` and ``test_NAME``. These columns are
    means over the clients for which the metric is defined. ``..._NAME_undefined`` is the number of clients for which it
    is undefined. ``..._NAME_worst_decile`` is the mean over the worst 10% of clients. ``..._NAME_pooled`` is the metric
    of all examples of the population together. If model outputs are not finite, the metric is undefined.

    Args:
        engine: Engine that runs the models.
        data: Federated data.
        examples_per_client: Largest number of evaluation examples per client, the same in all rounds. Default: all.
        metrics: Additional metrics.
        training: Evaluate training examples too. Default: True.
    """

    def __init__(
        self,
        engine: Predictor,
        data: FederatedData,
        examples_per_client: int | None = None,
        metrics: Sequence[Metric] = (),
        training: bool = True,
    ) -> None:
        self.engine, self.data, self.max_samples = engine, data, examples_per_client
        self.by = ACCURACY if data.dataset.num_classes else MAE
        self.metrics = additional_metrics(metrics)
        reject_metrics(metrics, data.dataset)
        population = data.population
        self.participant_ids = population.participants
        self.counts = position_counts(data.dataset.train_y) if data.dataset.positions else None
        grouped = partial(Group.of, max_samples=examples_per_client, counts=self.counts)
        self.participants = grouped(population.participants, data.held_out)
        self.training = grouped(population.participants, data.train)
        self.unseen = grouped(population.unseen, data.train, data.held_out)
        self.test_index = np.arange(len(data.dataset.test_y))
        if not training and (len(self.participants.ids) or len(self.unseen.ids) or len(self.test_index)):
            self.training = Group.of(population.participants[:0])

    def evaluate(
        self, models: Float32s, round_: int, clusters: Ints | None = None
    ) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Return the columns after `round_` rounds, and the records of clients.

        Args:
            models: (d,) global model, or (m, d) models, one per cluster.
            round_: Number of completed rounds.
            clusters: (n,) cluster of each participant, required with several models.
        """
        adapted = ClientModels.of(models, clusters, self.participant_ids)
        engine, test = self.engine, None
        participants = self._scores(adapted, "true", self.participants)
        unseen = self._scores(adapted, "true", self.unseen)
        training = self._scores(adapted, "train", self.training)
        if len(self.test_index):
            right, loss = adapted.predict(engine, "test", self.test_index, None)
            counts = position_counts(self.data.dataset.test_y) if self.data.dataset.positions else None
            test = mean_of(right, counts), mean_of(loss, counts)
        columns, records = summarize_round(round_, participants, unseen, training, test)
        metric_columns, single = self._further(adapted)
        return columns | metric_columns, [
            record | metrics_record(single.get(record["population"], {})) for record in records
        ]

    def evaluate_local(
        self, models: Float32s, cohort: Ints, round_: int
    ) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Return `local_accuracy` and the records of clients, for the (r, d) local models of the cohort."""
        group = Group.of(cohort, self.data.held_out, max_samples=self.max_samples, counts=self.counts)
        if not len(group.ids):
            return {}, []
        rows = np.searchsorted(cohort, group.ids)
        answers = [self.engine.predict(models[row], "true", part) for row, part in zip(rows, group.parts, strict=True)]
        right, loss = (np.concatenate(column) for column in zip(*answers, strict=True))
        joined = group.scores(right, loss, self.by)
        return {f"local_{self.by.name}": round(float(joined.score.mean()), 9)}, [joined.record(round_, "local")]

    def _further(self, adapted: ClientModels) -> tuple[dict[str, float], dict[str, Values]]:
        """Return the columns of the additional metrics, and their values for each client, by population."""
        columns: dict[str, float] = {}
        single: dict[str, Values] = {}
        d = self.data.dataset
        tests = Group(np.zeros(1, np.int64), self.test_index, np.array([len(self.test_index)]))
        places: tuple[tuple[str, str, Split, Group, Ints], ...] = (
            ("participant", "participants", "true", self.participants, d.train_y),
            ("unseen", "unseen", "true", self.unseen, d.train_y),
            ("test", "test", "test", tests, d.test_y),
        )
        for name, population, split, group, labels in places:
            if not self.metrics or not len(group.index):
                continue
            owner = None if name == "test" else np.repeat(group.ids, group.sizes)
            model_outputs = adapted.logits(self.engine, split, group.index, owner)
            answers = ClientOutputs.of(labels[group.index], model_outputs, group.sizes)
            single[population] = {metric.name: answers.of_clients(metric) for metric in self.metrics}
            for metric in self.metrics:
                pooled = None if name == "test" else answers.pooled(metric)
                columns |= columns_of_metric(f"{name}_{metric.name}", metric, single[population][metric.name], pooled)
        return columns, single

    def _scores(self, adapted: ClientModels, split: Split, group: Group) -> Scores:
        owner = np.repeat(group.ids, group.sizes)
        if not len(owner):
            return Scores(group.ids, group.sizes, np.empty(0), np.empty(0), self.by)
        return group.scores(*adapted.predict(self.engine, split, group.index, owner), self.by)


def mean_of(values: Bools | Float32s | Floats, counts: Ints | None) -> float:
    """Return the mean of (m,) values, weighted by `counts` if given."""
    if counts is None:
        return float(values.mean(dtype=np.float64))
    return float(values @ counts / counts.sum())


@dataclass(frozen=True, eq=False)
class ClientModels:
    """Models of the clients: one model for all clients, or one model per cluster."""

    models: Float32s  # (m, d) models
    clusters: Ints  # (n,) cluster of each participant
    participants: Ints  # (n,) ids of the participants

    @classmethod
    def of(cls, models: Float32s, clusters: Ints | None, participants: Ints) -> ClientModels:
        model_of = np.zeros(len(participants), np.int64) if clusters is None else clusters
        return cls(np.atleast_2d(models), model_of, participants)

    @property
    def shares(self) -> Floats:
        """(m,) share of the participants that use each model."""
        return np.bincount(self.clusters, minlength=len(self.models)) / len(self.clusters)

    def logits(self, engine: Predictor, split: Split, index: Ints, owner: Ints | None) -> list[tuple[float, Float32s]]:
        """Return the (share, logits) of each model that predicts the given examples (see `predict`)."""
        if len(self.models) == 1:
            return [(1.0, engine.logits(self.models[0], split, index))]
        model_logits = [engine.logits(model, split, index) for model in self.models]
        if owner is not None and np.isin(owner, self.participants).all():
            model_of = self.clusters[np.searchsorted(self.participants, owner)]
            return [(1.0, np.stack(model_logits)[model_of, np.arange(len(index))])]
        return list(zip(self.shares.tolist(), model_logits, strict=True))

    def predict(
        self, engine: Predictor, split: Split, index: Ints, owner: Ints | None
    ) -> tuple[Bools | Float32s | Floats, Float32s | Floats]:
        """Return the correctness (or error) and the loss of each example.

        Args:
            engine: Engine that runs the models.
            split: Name of the data to which `index` refers.
            index: (m,) indices of the examples.
            owner: (m,) client of each example. None for the test set.
        """
        if len(self.models) == 1:
            return engine.predict(self.models[0], split, index)
        if owner is not None and np.isin(owner, self.participants).all():
            model_of = self.clusters[np.searchsorted(self.participants, owner)]
            right, loss = np.empty(len(index)), np.empty(len(index))
            for model in np.unique(model_of):
                rows = model_of == model
                right[rows], loss[rows] = engine.predict(self.models[model], split, index[rows])
            return right, loss
        mean_right, mean_loss = np.zeros(len(index)), np.zeros(len(index))
        for model, share in zip(self.models, self.shares, strict=True):
            one_right, one_loss = engine.predict(model, split, index)
            mean_right += share * one_right
            mean_loss += share * one_loss.astype(np.float64)
        return mean_right, mean_loss


def summarize_round(
    round_: int,
    participants: Scores,
    unseen: Scores,
    training: Scores,
    test: tuple[float, float] | None = None,
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Compute the columns of a round (see `Evaluator`) and the records of clients from the scores of clients.

    Args:
        round_: Number of completed rounds.
        participants: Scores of participants on held-out examples.
        unseen: Scores of unseen clients on all examples.
        training: Scores of participants on training examples.
        test: Main score and mean loss on the test set.
    """
    columns: dict[str, float] = {}
    records: list[dict[str, Any]] = []
    by = participants.by
    summaries: dict[str, tuple[float, tuple[float, float]]] = {}
    for name, population, scores in (("participant", "participants", participants), ("unseen", "unseen", unseen)):
        if len(scores.ids):
            summaries[name] = float(scores.score.mean()), mean_interval(scores.score, by.top)
            columns |= _columns(name, scores, *summaries[name])
            records.append(scores.record(round_, population))
    if {"participant", "unseen"} <= summaries.keys():
        columns["participation_gap"] = by.gap(columns[f"participant_{by.name}"], columns[f"unseen_{by.name}"])
        first, second = ("unseen", "participant") if by.lower_is_better else ("participant", "unseen")
        columns |= _limits("participation_gap", combine_intervals(*summaries[first], *summaries[second]))
    if len(training.ids):
        columns[f"train_{by.name}"] = float(training.score.mean())
        if f"participant_{by.name}" in columns:
            columns["out_of_sample_gap"] = by.gap(columns[f"train_{by.name}"], columns[f"participant_{by.name}"])
    if test is not None:
        columns |= {f"test_{by.name}": test[0], "test_loss": test[1]}
    return {name: round(value, 9) for name, value in columns.items()}, records


def _columns(population: str, scores: Scores, mean: float, limits: tuple[float, float]) -> dict[str, float]:
    values, name = scores.score, f"{population}_{scores.by.name}"
    p10, p50, p90 = np.percentile(values, [10, 50, 90])
    return {
        name: mean,
        **_limits(name, limits),
        f"{name}_p10": float(p10),
        f"{name}_p50": float(p50),
        f"{name}_p90": float(p90),
        f"{name}_worst_decile": scores.by.worst_decile(values),
        f"{name}_pooled": scores.pooled,
        f"{population}_loss": float(scores.loss.mean()),
    }


def _limits(name: str, limits: tuple[float, float]) -> dict[str, float]:
    """Return the columns of an interval; none if a limit is infinite, which readers would take for divergence."""
    return {} if np.isinf(limits).any() else {f"{name}_low": limits[0], f"{name}_high": limits[1]}
