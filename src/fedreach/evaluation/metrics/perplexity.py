"""How many classes a model is as unsure between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.evaluation.metrics.loss import MeanLoss


@dataclass(frozen=True)
class Perplexity:
    """The exponential of the mean cross-entropy: 1 is certainty, c is no better than all c classes alike.

    Of each client it is the exponential of its own mean loss, and of a population the mean of these.

    When: the next token of a text is predicted, as language models are reported.

    Reference: Jelinek et al. (1977), Perplexity, a measure of the difficulty of speech recognition tasks, The Journal
    of the Acoustical Society of America 62, S63.

    Example:
        >>> Perplexity().of(np.array([1, 0]), np.zeros((2, 5))).__round__(4)
        5.0
    """

    name: ClassVar[str] = "perplexity"
    needs_classes: ClassVar[bool] = True
    lower_is_better: ClassVar[bool] = True

    def of(self, labels: Ints, scores: Floats) -> float:
        mean = MeanLoss().of(labels, scores)
        return float(np.exp(mean)) if mean < 700 else float("nan")  # beyond which float64 has no such number
