"""What a metric must have, what it may be called, and a plain function as one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from fedreach.arrays import AnyArray, Floats
from fedreach.errors import PartError
from fedreach.evaluation.metrics.absolute_error import MeanAbsoluteError
from fedreach.evaluation.metrics.accuracy import Accuracy
from fedreach.evaluation.metrics.loss import MeanLoss
from fedreach.federation.serving.softmax import log_softmax
from fedreach.federation.targets import HasTargets, refuse_targets
from fedreach.federation.traits import Traits

ENDINGS = ("worst_decile", "pooled", "undefined")
"""Of further columns of a metric: after its name and ``_``."""
TAKEN = ("round", "population", "ids", "names", "examples", "loss", "mae")
"""What a metric may not be called: the keys that a line about single clients has without it. Nor ``accuracy...``."""
LOWER_IS_BETTER = re.compile(r"(.*_)?(loss|error|deviance)")
"""Names of functions of which less is better, as scikit-learn names its own."""


@runtime_checkable
class Metric(Protocol):
    """One number for the answers of a model to some examples: of one client, of a population or of the test set.

    A class of which less is better says ``lower_is_better = True``: the worst clients are then those with most. One
    that takes only classes, or only numbers, says ``needs_classes = True`` or ``needs_numbers = True``.
    """

    @property
    def name(self) -> str:
        """End of its columns: letters, digits and ``_``."""

    def of(self, labels: AnyArray, scores: Floats) -> float:
        """Return the number; nan where it is not defined, as for a client with one class. Such clients are left out.

        Args:
            labels: (m,) true classes, m at least 1, or (m, t) numbers; not written to.
            scores: (m, c) the model's outputs, the largest for the class that it predicts, finite; not written to.
                Their `log_softmax` are log-probabilities. Where labels are numbers, (m, t) predicted ones.
        """


@dataclass(frozen=True)
class FunctionMetric:
    """Use ``function(y_true, scores) -> number``, of (m,) true classes and (m, c) **probabilities**.

    Probabilities are float64 and each row sums to 1, as functions of scikit-learn want them; a class with `of` is
    handed the model's outputs. Where targets are numbers, both are (m, t), as they are. Columns end in the function's
    name, or in its attribute ``name``.

    Less is better where the function says ``lower_is_better = True`` or, if it says nothing, where its name is or ends
    in ``loss``, ``error`` or ``deviance``, as scikit-learn names its own.

    Example:
        >>> def brier_loss(y_true, scores):
        ...     return ((scores - np.eye(scores.shape[1])[y_true]) ** 2).sum(axis=1).mean().item()
        >>> metric = FunctionMetric(brier_loss)
        >>> metric.name, metric.lower_is_better, metric.of(np.array([1]), np.array([[0.0, 0.0]]))
        ('brier_loss', True, 0.5)
    """

    function: Callable[[AnyArray, Floats], float]

    @property
    def name(self) -> str:
        """End of its columns."""
        return str(getattr(self.function, "name", None) or getattr(self.function, "__name__", ""))

    @property
    def lower_is_better(self) -> bool:
        by_name = LOWER_IS_BETTER.fullmatch(self.name) is not None
        said: bool = getattr(self.function, "lower_is_better", by_name)
        return said

    def of(self, labels: AnyArray, scores: Floats) -> float:
        return self.function(labels, scores if labels.dtype.kind == "f" else np.exp(log_softmax(scores)))


def refuse_metrics(metrics: Sequence[Metric], data: HasTargets) -> None:
    """Refuse metrics that do not take what data have as targets.

    Accuracy and loss pass: they are what is asked for by default, and stand for the main score and the loss.

    Raises:
        ConfigError: If one needs classes and targets are numbers, or the other way round.
    """
    for metric in metrics:
        if type(metric) not in (Accuracy, MeanLoss):
            refuse_targets("metric", metric, data)


def further_metrics(metrics: Sequence[Metric]) -> list[Metric]:
    """Return those beside accuracy or the mean absolute error, and loss, which are there anyway.

    Raises:
        PartError: If a name cannot end a column, or ends another's; or a trait is misspelt.
    """
    further = [metric for metric in metrics if type(metric) not in (Accuracy, MeanAbsoluteError, MeanLoss)]
    seen: set[str] = set()
    for metric in further:
        name = metric.name
        if not (isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name)):
            nameless = isinstance(metric, FunctionMetric) and name in ("<lambda>", "")
            how = "Give the function a name, by `def`" if nameless else "Rename it"
            raise PartError(f"The name of a metric must be small letters, digits and _; got {name!r}. {how}.")
        if name in seen or name in TAKEN or name.split("_")[0] == "accuracy":
            raise PartError(f"The name of a metric must be its own; there are columns of {name!r} already. Rename it.")
        if name.endswith(tuple(f"_{ending}" for ending in ENDINGS)):
            raise PartError(
                f"The name of a metric must not end as columns of others do, in {' or '.join(ENDINGS)}; got {name!r}. "
                "Rename it."
            )
        seen.add(name)
        Traits.of(metric)
    return further


def value_of(metric: Metric, labels: AnyArray, scores: Floats) -> float:
    """Return what a metric says, or refuse what is no number.

    Raises:
        PartError: If it is no number, or infinite.
    """
    value: object = metric.of(labels, scores)
    if not isinstance(value, int | float | np.number) or np.isinf(float(value)):
        said = metric.name if isinstance(metric, FunctionMetric) else f"{type(metric).__name__}.of"
        raise PartError(f"{said} must return a number that is not infinite, or nan; got {value!r}.")
    return float(value)
