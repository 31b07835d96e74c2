"""What a model's answers are scored by: accuracy and loss, and a user's own.

``[evaluation] metrics = ["accuracy", "loss", "my.py:BalancedAccuracy"]``. Columns are ``id_NAME``, ``unseen_NAME`` and
``test_NAME``: means over clients, and that of the test set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from fedreach.arrays import Floats, Ints
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
