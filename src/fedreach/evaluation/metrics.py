"""Metrics of predictions, such as accuracy."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

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
    """Base class of metrics, which score the predictions for a client, a population, or the test set."""

    component_type = "metric"

    lower_is_better: bool = False  # the worst 10% of clients are those with the largest values if true

    name = ""
    """Last part of the metric's column names, which consists of lowercase letters, digits and ``_``."""

    @abstractmethod
    def of(self, labels: AnyArray, scores: Floats) -> float:
        """Return the value of the metric, or nan if the metric is undefined.

        For example, AUROC is undefined for a client with one class. Means exclude clients for which the metric is
        undefined.

        Args:
            labels: (m,) true classes, or (m, t) true numbers, with m at least 1. The array is read-only.
            scores: (m, c) model outputs, or (m, t) predicted numbers. The array is read-only. The `log_softmax` of the
                outputs are log-probabilities, and the predicted class has the largest output.
        """


# -------------------- Accuracy


@dataclass(frozen=True)
class Accuracy(Metric):
    """Accuracy: share of examples whose class has the largest output (ties: lower class).

    FedReach always reports the accuracy if targets are classes.

    Use when: all classes matter in proportion to their frequency.

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
    """Balanced accuracy (Brodersen et al., 2010): mean recall of the classes (ties: lower class).

    The balanced accuracy is (1 / |C|) sum over k in C of r_k / m_k. C are the classes among the labels, m_k is the
    number of examples of class k, and r_k of them are predicted correctly. If all labels are equal, the balanced
    accuracy equals the accuracy. The metric equals scikit-learn's `balanced_accuracy_score`.

    Use when: every class matters equally, even a rare class.

    Reference: Brodersen et al., "The Balanced Accuracy and Its Posterior Distribution", ICPR 2010.

    Example:
        >>> scores = np.array([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0], [1.0, 0.0]])  # predicts class 0 for all
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
    """Macro F1: mean over classes of F1, the harmonic mean of precision and recall (ties: lower class).

    Macro F1 is (1 / |C|) sum over k in C of 2 r_k / (m_k + p_k). C are the classes among labels or predictions. m_k
    examples are of class k, p_k examples are predicted as k, and r_k examples are both. A class without a correct
    prediction counts as 0. The metric equals scikit-learn's ``f1_score(average="macro")``.

    Use when: every class matters equally, and false positives matter as well.

    Reference: Opitz and Burst, "Macro F1 and Macro F1", arXiv 1911.03347, the mean of F1 scores.

    Example:
        >>> scores = np.array([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0], [1.0, 0.0]])  # predicts class 0 for all
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
    """Area under the ROC curve (AUROC) of class 1; with more than two classes, mean AUROC of one class vs. the rest.

    The AUROC is P(p > p') + P(p = p') / 2. Here p is the predicted probability of a class for an example of this class,
    and p' for an example of another class. For two classes, the metric equals scikit-learn's ``roc_auc_score(y, p[:,
    1])``. For more classes, it is the mean of ``roc_auc_score(y == k, p[:, k])`` over the classes k among the labels.
    If all labels are equal, the AUROC is undefined.

    Use when: the model ranks examples, and you choose the decision threshold later.

    Reference: Fawcett, "An Introduction to ROC Analysis", Pattern Recognition Letters 27, 2006.

    Example:
        >>> scores = np.array([[2.0, 0.0], [0.0, 0.5], [0.0, 1.0], [0.0, 0.0]])
        >>> AUROC().of(np.array([0, 0, 1, 1]), scores)  # 3 of 4 pairs are ranked correctly
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
    """Return the share of (positive, negative) pairs that `p` ranks correctly; ties count as one half."""
    p_negative, p_positive = np.sort(p[~positive]), p[positive]
    below, not_above = (np.searchsorted(p_negative, p_positive, side) for side in ("left", "right"))
    return float((below + not_above).sum() / (2 * len(p_positive) * len(p_negative)))


# -------------------- Calibration error

BINS = 15
"""Number of confidence bins of the calibration error."""


@dataclass(frozen=True)
class Miscalibration(Metric):
    """Expected calibration error (Guo et al., 2017): sum_b m_b / m |accuracy_b - mean confidence_b| over 15 bins.

    The confidence is the largest predicted probability. The m_b examples of bin b have a confidence between (b - 1) /
    15 and b / 15. With few examples, the error exceeds 0 even for a calibrated model.

    Use when: users rely on the predicted probabilities.

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
    """Return the expected calibration error (see `Miscalibration`) of (m, c) log-probabilities."""
    right = log_p.argmax(axis=1) == labels
    confidence = np.exp(log_p.max(axis=1))
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    return float(np.abs(np.bincount(bins, right - confidence, minlength=BINS)).sum() / len(labels))


# -------------------- Disagreement of the bounds on the loss


@dataclass(frozen=True)
class BoundDisagreement(Metric):
    """Total disagreement sum_i (u(d_i) - l(d_i)) between upper and lower bounds on the loss (arXiv 2311.05936).

    This metric uses evaluation data. In contrast, `fedreach.federation.measurements.Disagreement` uses a client's
    training data. Lower values are better. Column names end in ``bound_disagreement_jsd`` or
    ``bound_disagreement_zero_one``.

    Use when: you compare how much a data shift could harm each model.

    Args:
        loss: Loss that is bounded: ``"jsd"`` (Jensen-Shannon divergence in bits) or ``"zero_one"``. Default: "jsd".
        radius: Largest Hellinger distance, above 0 and at most 1. Default: 0.2.
        step: Step between the distances d_i = step, 2 step, .... The step is above 0 and at most `radius`. Default:
            0.02.

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
        require(self, step=f"(0, {self.radius}]: The upper limit is the radius.")

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"bound_disagreement_{self.loss}"

    def of(self, labels: Ints, scores: Floats) -> float:
        return total_disagreement(LOSSES[self.loss](scores, labels), distances(self.radius, self.step))


# -------------------- Mean loss


@dataclass(frozen=True)
class MeanLoss(Metric):
    """Mean cross-entropy loss in nats: mean of log sum_c exp(z_c) - z_y, also available as `log_loss`.

    FedReach always reports the mean loss if targets are classes. The metric equals scikit-learn's `log_loss`, except
    that scikit-learn replaces probabilities below 2e-16 with 2e-16.

    Use when: probabilities matter, not only the predicted class.

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
    """Perplexity: exponential of the mean cross-entropy, from 1 (certain and correct) to c for a uniform guess.

    A client's perplexity is the exponential of its mean loss. A population's perplexity is the mean over its clients.

    Use when: a language model predicts the next token.

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
        return float(np.exp(mean)) if mean < 700 else float("nan")  # above about 709, float64 overflows


# -------------------- Mean absolute error


@dataclass(frozen=True)
class MeanAbsoluteError(Metric):
    """Mean absolute error, (1 / (m t)) sum_ij |y_ij - z_ij|, in the unit of the targets.

    FedReach always reports the mean absolute error if targets are numbers. Lower values are better, so the worst
    clients have the largest errors. The metric equals scikit-learn's ``mean_absolute_error``.

    Use when: the model predicts numbers.

    Example:
        >>> MeanAbsoluteError().of(np.array([[1.0], [2.0]]), np.array([[1.5], [4.0]]))
        1.25
    """

    name = "mae"
    needs_numbers = True
    lower_is_better = True

    def of(self, labels: Floats, scores: Floats) -> float:
        return float(np.abs(labels - scores).mean())


# -------------------- Functions as metrics, and checks of metrics

ENDINGS = ("worst_decile", "pooled", "undefined")
"""Endings of a metric's additional columns, which follow its name and ``_``."""
RESERVED_NAMES = ("round", "population", "ids", "names", "examples", "loss", "mae")
"""Names that metrics must not have, because client records use them as keys. ``accuracy_...`` is reserved too."""
LOWER_IS_BETTER = re.compile(r"(.*_)?(loss|error|deviance)")
"""Names of functions for which lower values are better, as in scikit-learn."""


@dataclass(frozen=True)
class FunctionMetric(OfFunction, Metric):
    """Metric that calls a function ``function(y_true, scores) -> number``.

    For classes, `y_true` is (m,), and `scores` are (m, c) **probabilities** in float64, whose rows have the sum 1. In
    contrast, a class with the method `of` receives the model outputs. For numeric targets, both arguments are (m, t).

    Column names end in the function's attribute ``name`` or, without this attribute, in the function's name. Lower
    values are better if the function has the attribute ``lower_is_better = True``. Without this attribute, lower values
    are better if the name ends in ``loss``, ``error`` or ``deviance``.

    Example:
        >>> def brier_loss(y_true, scores):
        ...     return ((scores - np.eye(scores.shape[1])[y_true]) ** 2).sum(axis=1).mean().item()
        >>> metric = FunctionMetric(brier_loss)
        >>> metric.name, metric.lower_is_better, metric.of(np.array([1]), np.array([[0.0, 0.0]]))
        ('brier_loss', True, 0.5)
    """

    @property
    def name(self) -> str:  # type: ignore[override]
        """Last part of the metric's column names."""
        return str(getattr(self.function, "name", None) or getattr(self.function, "__name__", ""))

    @property
    def lower_is_better(self) -> bool:  # type: ignore[override]
        return bool(getattr(self.function, "lower_is_better", LOWER_IS_BETTER.fullmatch(self.name)))

    def of(self, labels: AnyArray, scores: Floats) -> float:
        value: float = self.function(labels, scores if labels.dtype.kind == "f" else np.exp(log_softmax(scores)))
        return value


def reject_metrics(metrics: Sequence[Metric], data: HasTargets) -> None:
    """Reject metrics that do not support the targets of the data.

    This check always accepts accuracy and loss, which are the defaults.

    Raises:
        ConfigError: If a metric requires classes and the targets are numbers, or vice versa.
    """
    for metric in metrics:
        if type(metric) not in (Accuracy, MeanLoss):
            check_targets("metric", metric, data)


def additional_metrics(metrics: Sequence[Metric]) -> list[Metric]:
    """Return the metrics except accuracy, mean absolute error and loss, which FedReach always reports.

    Raises:
        ComponentError: If a name is invalid, reserved or used twice.
    """
    extra_metrics = [metric for metric in metrics if type(metric) not in (Accuracy, MeanAbsoluteError, MeanLoss)]
    used_names: set[str] = set()
    for metric in extra_metrics:
        name = metric.name
        if not (isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name)):
            nameless = isinstance(metric, FunctionMetric) and name in ("<lambda>", "")
            how = "Define the function with `def` to name it" if nameless else "Rename it"
            raise ComponentError(
                "The name of a metric must start with a letter and contain only lowercase letters, digits and _; got "
                f"{name!r}. {how}."
            )
        is_taken = name in used_names or name in RESERVED_NAMES or name.split("_")[0] == "accuracy"
        if is_taken or name.endswith(tuple(f"_{ending}" for ending in ENDINGS)):
            raise ComponentError(
                f"The name of a metric must be unique, and must not end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}; "
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
        raise ComponentError(f"{source} must return a finite number or nan; got {value!r}.")
    return float(value)


# -------------------- Coefficient of determination


@dataclass(frozen=True)
class R2(Metric):
    """Coefficient of determination R²: mean over t targets of 1 - sum_i (y_i - z_i)^2 / sum_i (y_i - mean y)^2.

    A perfect prediction has the value 1, and a prediction of the targets' mean has the value 0. Negative values are
    possible. R² is undefined if all values of a target are equal, for example for a client with one example. Otherwise,
    R² equals scikit-learn's ``r2_score``.

    The baseline is the client's own mean, so R² does not measure differences between clients. ``unseen_r2_pooled``
    measures these differences.

    Use when: errors matter relative to the variance of the targets, and each client has many examples.

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
# For example ``[evaluation] metrics = ["accuracy", "loss", "auroc", "my.py:recall"]``.

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


# -------------------- Metrics of clients, of populations and of all examples together

Values = Mapping[str, Floats]
"""(n,) values of the clients by name of the metric, nan where the metric is undefined."""


@dataclass(frozen=True, eq=False)
class ClientOutputs:
    """Examples of n clients, in the order of the clients, and the model outputs for these examples."""

    truth: AnyArray  # (m,) classes, or (m, t) numbers, of all clients
    # (share, outputs) of each model; outputs are (m, c) or (m, t). The metric is the mean weighted by the shares.
    model_outputs: Sequence[tuple[float, Float32s]]
    sizes: Ints  # (n,) number of examples of each client

    @classmethod
    def of(cls, truth: AnyArray, model_outputs: Sequence[tuple[float, Float32s]], sizes: Ints) -> ClientOutputs:
        """Build the outputs; with labels per position, each labeled position becomes one example.

        Args:
            truth: (m,) classes, (m, t) numbers, or (m, positions...) classes.
            model_outputs: (share, outputs) of each model. With labels per position, the last axis is the class.
            sizes: (n,) number of examples of each client.
        """
        if truth.ndim == 1 or truth.dtype.kind == "f":
            return cls(truth, model_outputs, sizes)
        labeled, starts = is_labeled(truth), np.cumsum(sizes) - sizes
        counts = np.add.reduceat(position_counts(truth), starts)
        return cls(truth[labeled], [(share, outputs[labeled]) for share, outputs in model_outputs], counts)

    def of_clients(self, metric: Metric) -> Floats:
        """Return the (n,) values of the metric for the clients."""
        ends = np.cumsum(self.sizes).tolist()
        return np.array([self._of(metric, slice(begin, end)) for begin, end in zip([0, *ends], ends, strict=False)])

    def pooled(self, metric: Metric) -> float:
        """Return the metric of all examples together."""
        return self._of(metric, slice(None))

    def _of(self, metric: Metric, part: slice) -> float:
        if not all(np.isfinite(logits[part]).all() for _, logits in self.model_outputs):
            return np.nan
        truth = self.truth[part]
        return sum(
            share * value_of(metric, truth.copy(), logits[part].astype(np.float64))
            for share, logits in self.model_outputs
        )


def columns_of_metric(name: str, metric: Metric, values: Floats, pooled: float | None) -> dict[str, float]:
    """Return the columns of a metric (see `fedreach.evaluation.evaluator.Evaluator`).

    Args:
        name: Name of the population and the metric, such as ``unseen_auroc``.
        metric: Metric whose columns are returned.
        values: (n,) values of the clients, nan where the metric is undefined.
        pooled: Value for all examples together. None: the population is a single client, so columns for pooled examples
            and the worst 10% are omitted.
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
    """Return the metrics of a record of ``clients.jsonl``, with null for undefined values.

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
