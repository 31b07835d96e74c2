"""What a model's answers are scored by: accuracy and loss, and a user's own.

``[evaluation] metrics = ["accuracy", "loss", "my.py:BalancedAccuracy"]``. Columns are ``id_NAME``, ``unseen_NAME`` and
``test_NAME``: means over clients, and that of the test set.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.errors import PartError
from fedreach.registry import NameTable


@runtime_checkable
class Metric(Protocol):
    """One number for the answers of a model to some examples, of one client or of the test set."""

    @property
    def name(self) -> str:
        """End of its columns: letters, digits and ``_``."""

    def of(self, labels: Ints, scores: Floats) -> float:
        """Return the number; nan where it is not defined, as for a client with one class. Such clients are left out.

        Args:
            labels: (m,) true classes, m at least 1; not written to.
            scores: (m, c) the model's outputs, the largest for the class that it predicts; not written to.
        """


@dataclass(frozen=True)
class Accuracy:
    """The share of examples whose class has the largest output, ties going to the lower class.

    Example:
        >>> Accuracy().of(np.array([0, 1, 1]), np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]])).__round__(3)
        0.667
    """

    @property
    def name(self) -> str:
        return "accuracy"

    def of(self, labels: Ints, scores: Floats) -> float:
        return float((scores.argmax(axis=1) == labels).mean())


@dataclass(frozen=True)
class MeanLoss:
    """The mean cross-entropy, log sum_c exp(z_c) - z_y, in nats.

    Example:
        >>> MeanLoss().of(np.array([1]), np.array([[0.0, 0.0]])).__round__(4)
        0.6931
    """

    @property
    def name(self) -> str:
        return "loss"

    def of(self, labels: Ints, scores: Floats) -> float:
        shifted = scores - scores.max(axis=1, keepdims=True)
        right = shifted[np.arange(len(labels)), labels]
        return float((np.log(np.exp(shifted).sum(axis=1)) - right).mean())


METRICS = NameTable("fedreach.evaluation", accuracy="metrics:Accuracy", loss="metrics:MeanLoss")


def check_names(metrics: Sequence[Metric]) -> None:
    """Refuse names that cannot end a column, or that would end another's.

    Raises:
        PartError: Naming the metric.
    """
    seen: set[str] = set()
    for metric in metrics:
        name = metric.name
        if not (isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name)):
            raise PartError(f"The name of a metric must be small letters, digits and _; got {name!r}. Rename it.")
        if name in seen or name == "loss" or name.split("_")[0] == "accuracy":
            raise PartError(f"The name of a metric must be its own; there are columns of {name!r} already. Rename it.")
        seen.add(name)


def value_of(metric: Metric, labels: Ints, scores: Floats) -> float:
    """Return what a metric says, or refuse what is no number.

    Raises:
        PartError: If it is no number, or infinite.
    """
    value: object = metric.of(labels, scores)
    if not isinstance(value, int | float | np.number) or np.isinf(float(value)):
        raise PartError(f"{type(metric).__name__}.of must return a number that is not infinite, or nan; got {value!r}.")
    return float(value)
