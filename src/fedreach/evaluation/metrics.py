"""Metrics: how predictions are scored."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from fedreach._util.arrays import AnyArray, Bools, Float32s, Floats, Ints
from fedreach._util.errors import ComponentError, require
from fedreach.data.several import is_labeled, position_counts
from fedreach.evaluation.scores import worst_decile
from fedreach.federation.adaptation.base import log_softmax
from fedreach.federation.base import Component, OfFunction
from fedreach.federation.convergence import LOSSES, distances, total_disagreement
from fedreach.federation.federation import HasTargets, check_targets

# -------------------- Base class


class Metric(Component):
    """One number for a model's predictions on examples of one client, of a population or of the test set."""

    component_type = "metric"

    lower_is_better: bool = False  # the worst clients are then those with the largest values

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """End of its columns: lowercase letters, digits and ``_``."""
            return ""
    else:
        name = ""  # no property, so that it may be an option of a dataclass

    @abstractmethod
    def of(self, labels: AnyArray, scores: Floats) -> float:
        """Return the number, or nan where it is not defined, as for a client with one class.

        Clients with nan are left out of means.

        Args:
            labels: (m,) true classes, m at least 1, or (m, t) numbers. Read-only.
            scores: (m, c) finite outputs of the model, the largest for the predicted class. Read-only. Their
                `log_softmax` are log-probabilities. Where labels are numbers, (m, t) predicted numbers.
        """


# -------------------- Accuracy


@dataclass(frozen=True)
class Accuracy(Metric):
    """The share of examples whose class has the largest output; ties go to the lower class.

    When: classes are about as frequent as they matter. It is always reported.

    Example:
        >>> import numpy as np
        >>> Accuracy().of(np.array([0, 1, 1]), np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]])).__round__(3)
        0.667
    """

    name = "accuracy"
    needs_classes = True

    def of(self, labels: Ints, scores: Floats) -> float:
        return float((scores.argmax(axis=1) == labels).mean())


# -------------------- Balanced accuracy


@dataclass(frozen=True)
class BalancedAccuracy(Metric):
    """The mean over classes of the share of their examples that is right; ties go to the lower class.

    (1 / |C|) sum over k in C of right_k / m_k, where C are the classes among the labels, m_k the examples of class k
    and right_k those of them that are predicted as k. Like scikit-learn's `balanced_accuracy_score`, it leaves out
    classes that are only predicted. It is always defined, and with one class among the labels it is the accuracy.

    When: every class matters equally, however rare.

    Reference: Brodersen et al., "The Balanced Accuracy and Its Posterior Distribution", ICPR 2010.

    Example:
        >>> scores = np.array([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0], [1.0, 0.0]])  # says class 0 of all
        >>> BalancedAccuracy().of(np.array([0, 0, 0, 1]), scores)
        0.5
    """

    name = "balanced_accuracy"
    needs_classes = True

    def of(self, labels: Ints, scores: Floats) -> float:
        right = scores.argmax(axis=1) == labels
        examples = np.bincount(labels)
        present = examples > 0
        return float((np.bincount(labels, right)[present] / examples[present]).mean())


# -------------------- Macro F1


@dataclass(frozen=True)
class MacroF1(Metric):
    """The mean over classes of F1, the harmonic mean of precision and recall; ties go to the lower class.

    (1 / |C|) sum over k in C of 2 right_k / (m_k + said_k), where m_k examples are of class k, said_k are predicted as
    k, and right_k are both; C are the classes among labels or predictions. As in scikit-learn's
    ``f1_score(average="macro")``, a class that is only predicted, or never predicted, counts as 0. A class that is
    neither among labels nor predictions does not count. The metric is always defined.

    When: as `balanced_accuracy`, where false alarms matter as well.

    Reference: Opitz and Burst, "Macro F1 and Macro F1", arXiv 1911.03347, the mean of F1 scores.

    Example:
        >>> scores = np.array([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0], [1.0, 0.0]])  # says class 0 of all
        >>> MacroF1().of(np.array([0, 0, 0, 1]), scores).__round__(4)  # F1 is 6 / 7 and 0
        0.4286
    """

    name = "macro_f1"
    needs_classes = True

    def of(self, labels: Ints, scores: Floats) -> float:
        predicted, classes = scores.argmax(axis=1), scores.shape[1]
        right = np.bincount(labels[predicted == labels], minlength=classes)
        either = np.bincount(labels, minlength=classes) + np.bincount(predicted, minlength=classes)
        present = either > 0
        return float((2 * right[present] / either[present]).mean())


# -------------------- Area under the ROC curve


@dataclass(frozen=True)
class AUROC(Metric):
    """The area under the ROC curve of class 1, or with more than two classes the mean over classes against the rest.

    P(p > p') + P(p = p') / 2 for the probability p of the class on one of its examples and p' on another's. With two
    classes it is scikit-learn's ``roc_auc_score(y, p[:, 1])``. With more it is the mean, over the classes among the
    labels, of ``roc_auc_score(y == k, p[:, k])``. Where all classes are among the labels, this equals
    ``roc_auc_score(y, p, multi_class="ovr")``. With one class among the labels it is not defined.

    When: examples are ranked and the threshold is chosen later.

    Reference: Fawcett, "An Introduction to ROC Analysis", Pattern Recognition Letters 27, 2006.

    Example:
        >>> scores = np.array([[2.0, 0.0], [0.0, 0.5], [0.0, 1.0], [0.0, 0.0]])
        >>> AUROC().of(np.array([0, 0, 1, 1]), scores)  # 3 of the 4 pairs are in order
        0.75
    """

    name = "auroc"
    needs_classes = True

    def of(self, labels: Ints, scores: Floats) -> float:
        present = np.unique(labels)
        if len(present) < 2:
            return float("nan")
        p = np.exp(log_softmax(scores))
        classes = [1] if p.shape[1] == 2 else present.tolist()
        return float(np.mean([pairs_in_order(labels == k, p[:, k]) for k in classes]))


def pairs_in_order(positive: Bools, p: Floats) -> float:
    """Return the share of (positive, negative) pairs that `p` ranks correctly; ties count half."""
    p_negative, p_positive = np.sort(p[~positive]), p[positive]
    below, not_above = (np.searchsorted(p_negative, p_positive, side) for side in ("left", "right"))
    return float((below + not_above).sum() / (2 * len(p_positive) * len(p_negative)))


# -------------------- Calibration error

BINS = 15
"""Number of confidence bins."""


@dataclass(frozen=True)
class Miscalibration(Metric):
    """The expected calibration error: sum_b m_b / m |accuracy_b - mean confidence_b| over 15 bins of confidence.

    The m_b examples of bin b have their largest probability, the confidence, between (b - 1) / 15 and b / 15. The error
    does not reach 0 for a client with few examples. The report on adaptation uses the same error.

    When: users rely on the predicted probability.

    Reference: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, eq. 3.

    Example:
        >>> Miscalibration().of(np.array([0, 1]), np.log([[0.75, 0.25], [0.75, 0.25]])).__round__(9)
        0.25
    """

    name = "calibration_error"
    needs_classes = True
    lower_is_better = True

    def of(self, labels: Ints, scores: Floats) -> float:
        return expected_calibration_error(log_softmax(scores), labels)


def expected_calibration_error(log_p: Floats, labels: Ints) -> float:
    """Return the expected calibration error of (m, c) log-probabilities (see `Miscalibration`)."""
    right = log_p.argmax(axis=1) == labels
    confidence = np.exp(log_p.max(axis=1))
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    return float(np.abs(np.bincount(bins, right - confidence, minlength=BINS)).sum() / len(labels))


# -------------------- Disagreement of the bounds on the squared loss


@dataclass(frozen=True)
class BoundDisagreement(Metric):
    """The total disagreement sum_i (u(d_i) - l(d_i)) of the bounds on the mean squared loss of the predictions.

    `fedreach.federation.measurements.Disagreement` measures it on a client's training data; this metric uses evaluation
    data. Lower is better. Its columns end in ``bound_disagreement_jsd`` or ``bound_disagreement_zero_one``.

    When: models are compared by how much a data shift could harm them, and to draw figure 3 of that paper.

    Args:
        loss: ``"jsd"`` (Jensen-Shannon divergence to base 2) or ``"zero_one"``.
        radius: Largest Hellinger distance, above 0 and at most 1.
        step: Step between the distances d_i = step, 2 step, ..., above 0 and at most the radius.

    Raises:
        ConfigError: If an option is outside its range.

    Reference: "Aggregation Weighting of Federated Learning via Generalization Bound Estimation" (arXiv 2311.05936),
    section 5.1.

    Example:
        >>> import numpy as np
        >>> metric = BoundDisagreement()
        >>> metric.name, round(metric.of(np.array([0, 1]), np.array([[4.0, 0.0], [4.0, 0.0]])), 4)
        ('bound_disagreement_jsd', 3.5716)
    """

    needs_classes = True
    lower_is_better = True

    loss: Literal["jsd", "zero_one"] = "jsd"
    radius: Annotated[float, "(0, 1]"] = 0.2
    step: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, step=f"(0, {self.radius}]: It is a part of the radius.")

    @property
    def name(self) -> str:
        return f"bound_disagreement_{self.loss}"

    def of(self, labels: Ints, scores: Floats) -> float:
        return total_disagreement(LOSSES[self.loss](scores, labels), distances(self.radius, self.step))


# -------------------- Mean loss


@dataclass(frozen=True)
class MeanLoss(Metric):
    """The mean cross-entropy, log sum_c exp(z_c) - z_y, in nats; `log_loss` is another name of `loss`.

    scikit-learn's `log_loss` is the same number, except that it raises probabilities below 2e-16 to that value.

    When: probabilities are used, not only decisions. It is always reported.

    Example:
        >>> MeanLoss().of(np.array([1]), np.array([[0.0, 0.0]])).__round__(4)
        0.6931
    """

    name = "loss"
    needs_classes = True
    lower_is_better = True

    def of(self, labels: Ints, scores: Floats) -> float:
        return float(-log_softmax(scores)[np.arange(len(labels)), labels].mean())


# -------------------- Perplexity


@dataclass(frozen=True)
class Perplexity(Metric):
    """The exponential of the mean cross-entropy: 1 is certainty, c equals a uniform guess among c classes.

    A client's perplexity is the exponential of its own mean loss; a population's is the mean over clients.

    When: the next token of a text is predicted, as is usual for language models.

    Reference: Jelinek et al. (1977), "Perplexity, a measure of the difficulty of speech recognition tasks", The Journal
    of the Acoustical Society of America 62, S63.

    Example:
        >>> Perplexity().of(np.array([1, 0]), np.zeros((2, 5))).__round__(4)
        5.0
    """

    name = "perplexity"
    needs_classes = True
    lower_is_better = True

    def of(self, labels: Ints, scores: Floats) -> float:
        mean = MeanLoss().of(labels, scores)
        return float(np.exp(mean)) if mean < 700 else float("nan")  # beyond 700, float64 overflows


# -------------------- Mean absolute error


@dataclass(frozen=True)
class MeanAbsoluteError(Metric):
    """The mean absolute error, (1 / (m t)) sum_ij |y_ij - z_ij|, in the target's unit.

    It is the main score (``mae``) where targets are numbers, as accuracy is for classes. Lower is better, so the worst
    clients are those with the largest values. scikit-learn's ``mean_absolute_error`` is the same number.

    When: numbers are predicted. It is then always reported.

    Example:
        >>> MeanAbsoluteError().of(np.array([[1.0], [2.0]]), np.array([[1.5], [4.0]]))
        1.25
    """

    name = "mae"
    needs_numbers = True
    lower_is_better = True

    def of(self, labels: Floats, scores: Floats) -> float:
        return float(np.abs(labels - scores).mean())


# -------------------- The interface of metrics, and functions as metrics

ENDINGS = ("worst_decile", "pooled", "undefined")
"""Endings of a metric's other columns, after its name and ``_``."""
RESERVED_NAMES = ("round", "population", "ids", "names", "examples", "loss", "mae")
"""Names that a metric must not have, as records of single clients have these keys; nor ``accuracy...``."""
LOWER_IS_BETTER = re.compile(r"(.*_)?(loss|error|deviance)")
"""Names of functions whose lower values are better, as in scikit-learn."""


@dataclass(frozen=True)
class FunctionMetric(OfFunction, Metric):
    """A metric from ``function(y_true, scores) -> number``, of (m,) true classes and (m, c) **probabilities**.

    Probabilities are float64 and each row sums to 1, as functions of scikit-learn expect. A class with `of` receives
    the model's outputs instead. Where targets are numbers, both arguments are (m, t). Columns end in the function's
    name, or in its attribute ``name``.

    Lower is better where the function sets ``lower_is_better = True``. Without this attribute, lower is better where
    the name is or ends in ``loss``, ``error`` or ``deviance``, as in scikit-learn.

    Example:
        >>> def brier_loss(y_true, scores):
        ...     return ((scores - np.eye(scores.shape[1])[y_true]) ** 2).sum(axis=1).mean().item()
        >>> metric = FunctionMetric(brier_loss)
        >>> metric.name, metric.lower_is_better, metric.of(np.array([1]), np.array([[0.0, 0.0]]))
        ('brier_loss', True, 0.5)
    """

    @property
    def name(self) -> str:
        """End of its columns."""
        return str(getattr(self.function, "name", None) or getattr(self.function, "__name__", ""))

    @property
    def lower_is_better(self) -> bool:  # type: ignore[override]
        return bool(getattr(self.function, "lower_is_better", LOWER_IS_BETTER.fullmatch(self.name)))

    def of(self, labels: AnyArray, scores: Floats) -> float:
        value: float = self.function(labels, scores if labels.dtype.kind == "f" else np.exp(log_softmax(scores)))
        return value


def reject_metrics(metrics: Sequence[Metric], data: HasTargets) -> None:
    """Reject metrics that do not take the targets of the data.

    Accuracy and loss always pass: they are the defaults, and mean the main score and the loss.

    Raises:
        ConfigError: If a metric needs classes and targets are numbers, or vice versa.
    """
    for metric in metrics:
        if type(metric) not in (Accuracy, MeanLoss):
            check_targets("metric", metric, data)


def additional_metrics(metrics: Sequence[Metric]) -> list[Metric]:
    """Return the metrics other than accuracy, mean absolute error and loss, which are always reported.

    Raises:
        ComponentError: If a name cannot end a column, or is used twice.
    """
    extra_metrics = [metric for metric in metrics if type(metric) not in (Accuracy, MeanAbsoluteError, MeanLoss)]
    used_names: set[str] = set()
    for metric in extra_metrics:
        name = metric.name
        if not (isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name)):
            nameless = isinstance(metric, FunctionMetric) and name in ("<lambda>", "")
            how = "Give the function a name, by `def`" if nameless else "Rename it"
            raise ComponentError(f"The name of a metric must be small letters, digits and _; got {name!r}. {how}.")
        is_taken = name in used_names or name in RESERVED_NAMES or name.split("_")[0] == "accuracy"
        if is_taken or name.endswith(tuple(f"_{ending}" for ending in ENDINGS)):
            raise ComponentError(
                f"The name of a metric must be its own, and not end as other columns do, in {' or '.join(ENDINGS)}; "
                f"got {name!r}. Rename it."
            )
        used_names.add(name)
    return extra_metrics


def value_of(metric: Metric, labels: AnyArray, scores: Floats) -> float:
    """Return the value of a metric.

    Raises:
        ComponentError: If the value is not a number, or is infinite.
    """
    value: object = metric.of(labels, scores)
    if not isinstance(value, int | float | np.number) or np.isinf(float(value)):
        source = metric.name if isinstance(metric, FunctionMetric) else f"{type(metric).__name__}.of"
        raise ComponentError(f"{source} must return a number that is not infinite, or nan; got {value!r}.")
    return float(value)


# -------------------- Coefficient of determination


@dataclass(frozen=True)
class R2(Metric):
    """The coefficient of determination, 1 - sum_i (y_i - z_i)^2 / sum_i (y_i - mean y)^2, a mean over t targets.

    1 is perfect. Predicting the mean of the targets gets 0, and a worse model gets a negative value, without bound. It
    is nan where all targets are equal, as for a client with one example; such clients are left out. It compares with
    the client's own mean, so it does not reward predicting differences between clients. ``unseen_r2_pooled`` does.
    Otherwise it equals scikit-learn's ``r2_score``, which returns 0 or 1 for nan.

    When: numbers are predicted, and errors matter relative to the variance of targets. It is noisy for few examples.

    Reference: Wright, "Correlation and causation", Journal of Agricultural Research 20, 1921.

    Example:
        >>> R2().of(np.array([[1.0], [3.0]]), np.array([[1.5], [2.5]]))
        0.75
    """

    name = "r2"
    needs_numbers = True

    def of(self, labels: Floats, scores: Floats) -> float:
        spread = np.square(labels - labels.mean(axis=0)).sum(axis=0)
        if not (labels != labels[0]).any(axis=0).all():
            return float("nan")
        return float((1 - np.square(labels - scores).sum(axis=0) / spread).mean())


# -------------------- Metrics by name
# ``[evaluation] metrics = ["accuracy", "loss", "auroc", "my.py:recall"]``. Columns end in the metric's name, see
# `fedreach.evaluation.evaluator.Evaluator`.

METRICS: Mapping[str, Any] = {
    "accuracy": Accuracy,
    "loss": MeanLoss,
    "log_loss": MeanLoss,
    "balanced_accuracy": BalancedAccuracy,
    "macro_f1": MacroF1,
    "auroc": AUROC,
    "bound_disagreement": BoundDisagreement,
    "calibration_error": Miscalibration,
    "perplexity": Perplexity,
    "mae": MeanAbsoluteError,
    "r2": R2,
}


# --- Metrics of single clients, of populations and of pooled samples

Values = Mapping[str, Floats]
"""Name of a metric -> (n,) value of each client, nan where it is undefined."""


@dataclass(frozen=True, eq=False)
class ClientOutputs:
    """The samples of n clients, client by client, and the outputs of models on them."""

    truth: AnyArray  # (samples,) classes, or (samples, t) numbers
    # (share, outputs) of each model; outputs are (samples, c) or (samples, t), and models count by their share.
    said: Sequence[tuple[float, Float32s]]
    sizes: Ints  # (n,) samples of each client

    @classmethod
    def of(cls, truth: AnyArray, model_outputs: Sequence[tuple[float, Float32s]], sizes: Ints) -> ClientOutputs:
        """Return samples as metrics see them. Labels at positions become one sample per labeled position.

        Args:
            truth: (samples,) classes, (samples, t) numbers, or (samples, positions...) classes.
            model_outputs: (share, outputs) of each model. With labels at positions, outputs end in a class axis.
            sizes: (n,) samples of each client.
        """
        if truth.ndim == 1 or truth.dtype.kind == "f":
            return cls(truth, model_outputs, sizes)
        labeled, starts = is_labeled(truth), np.cumsum(sizes) - sizes
        counts = np.add.reduceat(position_counts(truth), starts)
        return cls(truth[labeled], [(share, outputs[labeled]) for share, outputs in model_outputs], counts)

    def of_clients(self, metric: Metric) -> Floats:
        """Return the metric of each client."""
        ends = np.cumsum(self.sizes).tolist()
        return np.array([self._of(metric, slice(begin, end)) for begin, end in zip([0, *ends], ends, strict=False)])

    def pooled(self, metric: Metric) -> float:
        """Return the metric of all samples together."""
        return self._of(metric, slice(None))

    def _of(self, metric: Metric, part: slice) -> float:
        if not all(np.isfinite(logits[part]).all() for _, logits in self.said):
            return np.nan
        truth = self.truth[part]
        return sum(
            share * value_of(metric, truth.copy(), logits[part].astype(np.float64)) for share, logits in self.said
        )


def columns_of_metric(name: str, metric: Metric, values: Floats, pooled: float | None) -> dict[str, float]:
    """Return the columns of a metric (see `fedreach.evaluation.evaluator.Evaluator`).

    Args:
        name: Name of the population and the metric.
        metric: The metric.
        values: (n,) value of each client, nan where it is undefined.
        pooled: Value of all samples together. None for a population of one client, which has no worst decile either.
    """
    defined, columns = values[~np.isnan(values)], dict[str, float]()
    if len(defined):
        columns[name] = float(defined.mean())
    if len(defined) and pooled is not None:
        columns[f"{name}_worst_decile"] = worst_decile(defined, lower_is_better=metric.lower_is_better)
    if pooled is not None and not np.isnan(pooled):
        columns[f"{name}_pooled"] = pooled
    if len(defined) < len(values):
        columns[f"{name}_undefined"] = len(values) - len(defined)
    return {key: round(value, 9) for key, value in columns.items()}


def metrics_record(values: Values) -> dict[str, Any]:
    """Return the metrics of a record of ``clients.jsonl``, null where undefined; nothing without metrics.

    Example:
        >>> metrics_record({"auroc": np.array([0.75, np.nan])})
        {'metrics': {'auroc': [0.75, None]}}
        >>> metrics_record({})
        {}
    """
    rounded = {
        name: [None if np.isnan(value) else round(value, 6) for value in of_clients.tolist()]
        for name, of_clients in values.items()
    }
    return {"metrics": rounded} if rounded else {}
