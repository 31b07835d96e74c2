"""How well random signs fit what a client's local model says about its data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedreach.arrays import Floats
from fedreach.errors import PartError, require
from fedreach.federation.values import LocalOutputs
from fedreach.theory.rademacher import closed_form_score, monte_carlo_score, random_signs

Outputs = Literal["softmax", "logits", "excess_loss"]
Estimator = Literal["monte_carlo", "closed_form"]


@dataclass(frozen=True)
class WLRC:
    """Score a client by how well random signs correlate with its local model's outputs; lower is better.

    The client's m examples are cut, in their order, into batches of B; the last may be shorter. With F_b the (B_b, C)
    outputs of a batch and Q draws of random signs for each,

        score = sum_b (B_b / m) (1/Q) sum_q |(1/(B_b C)) sum_ic sigma^q_ic F_b[i, c]|.

    No supremum over functions is taken, so that this is a norm of the outputs, about sqrt(2/pi) ||F_b|| / (B_b C),
    rather than a complexity: with softmax, a model scores the lower the less certain it is. As it falls with
    1 / sqrt(B), all clients use the same B. A client with m < B examples has one batch of m, which raises its score
    by up to sqrt(B/m): prefer a B that even small clients fill.

    When: the selection `rademacher` asks for it; or in a part of your own.

    Args:
        outputs: ``"softmax"``, free of the scale of the logits; ``"logits"``; or ``"excess_loss"``: C = 1 and F_b[i] is
            the cross-entropy under the local model minus that under the broadcast model, which stands in for the best
            one.
        draws: Q, at least 1.
        estimator: ``"monte_carlo"`` as in the paper, with a standard error of about 0.76 / sqrt(Q) of the score in each
            batch; ``"closed_form"`` puts sqrt(2/pi) ||F_b|| / (B_b C) in its place, without noise and faster.
        batch_size: B, at least 1, common to all clients.

    Raises:
        ConfigError: If an option is out of its range.

    Reference: "Client Selection with Rademacher Complexity for Federated Learning", Algorithm 1, where the score of
    the last batch would overwrite the others. It does not say whether f is softmax or logits.

    Example:
        >>> logits = np.array([[1, -2], [0.5, 3], [2, 0], [1, 1], [4, -1]], np.float32)
        >>> score = WLRC("logits", estimator="closed_form", batch_size=2)
        >>> rng = np.random.Generator(np.random.Philox(0))
        >>> round(score.measure(LocalOutputs(logits, np.zeros(5, np.int64)), rng), 4)  # batches .7530, .4886, 1.6449
        0.8256
    """

    outputs: Outputs = "softmax"
    draws: int = 64
    estimator: Estimator = "monte_carlo"
    batch_size: int = 32

    def __post_init__(self) -> None:
        require(self, outputs=get_args(Outputs), estimator=get_args(Estimator), draws="[1, inf)", batch_size="[1, inf)")

    @property
    def name(self) -> str:
        return "wlrc"

    @property
    def wants_before(self) -> bool:
        return self.outputs == "excess_loss"

    @property
    def needs_classes(self) -> bool:
        """Unless it is of the outputs as they are, which may be numbers."""
        return self.outputs != "logits"

    @property
    def minimum(self) -> float:
        """Scores are means of absolute values."""
        return 0.0

    @property
    def maximum(self) -> float | None:
        """Of softmax, whose rows sum to 1, a score is at most 1/C, and there is a class."""
        return 1.0 if self.outputs == "softmax" else None

    def measure(self, outputs: LocalOutputs, rng: np.random.Generator) -> float:
        values, score = self._values(outputs), self._score(rng)
        batches = np.split(values, range(self.batch_size, len(values), self.batch_size))
        return sum(len(batch) * score(batch) for batch in batches) / len(values)

    def _values(self, outputs: LocalOutputs) -> Floats:
        """Return the (m, C) numbers that signs are put to."""
        if self.outputs == "logits":
            return outputs.logits.astype(np.float64)
        if self.outputs == "softmax":
            return np.exp(_log_softmax(outputs.logits))
        if outputs.before is None:
            raise PartError("WLRC with outputs='excess_loss' must be handed the broadcast model's outputs; got none.")
        example = np.arange(len(outputs.labels))
        local, broadcast = (_log_softmax(f)[example, outputs.labels] for f in (outputs.logits, outputs.before))
        return (broadcast - local)[:, None]

    def _score(self, rng: np.random.Generator) -> Callable[[Floats], float]:
        if self.estimator == "closed_form":
            return closed_form_score
        return lambda batch: monte_carlo_score(batch, random_signs(self.draws, batch.size, rng))


def _log_softmax(logits: np.ndarray) -> Floats:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
