"""Measurements: numbers that clients compute on their own examples and report."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from fedreach._util.arrays import Floats
from fedreach._util.errors import require
from fedreach.federation.adaptation.base import log_softmax
from fedreach.federation.base import Measurement
from fedreach.federation.bounds import closed_form_score, monte_carlo_score, random_signs
from fedreach.federation.convergence import LOSSES, distances, total_disagreement
from fedreach.federation.types import LocalOutputs

# -------------------- Root mean square of losses


@dataclass(frozen=True)
class LossRMS(Measurement):
    """Root mean square loss sqrt((1/m) sum_i l_i^2) of the broadcast model, with cross-entropies l_i in nats.

    For numeric targets, l_i is the mean squared error of example i.

    Use when: the selection `oort` or a custom component requests it.

    Reference: Lai, Zhu, Madhyastha and Chowdhury, "Oort: Efficient Federated Learning via Guided Participant
    Selection", OSDI 2021, eq. (2). The paper uses the losses observed during training. FedReach uses the losses of the
    broadcast model.

    Example:
        >>> even = np.zeros((2, 4), np.float32)  # log 4 each
        >>> rng = np.random.Generator(np.random.Philox(0))
        >>> round(LossRMS().measure(LocalOutputs(even, np.array([0, 1]), before=even), rng), 4)
        1.3863
    """

    wants_before = True
    name = "loss_rms"

    def measure(self, outputs: LocalOutputs, rng: np.random.Generator) -> float:
        assert outputs.before is not None  # because of `wants_before`
        if outputs.labels.dtype.kind == "f":
            off = outputs.before.astype(np.float64) - outputs.labels
            return float(np.sqrt(np.mean(np.square(off).mean(axis=1) ** 2)))
        shares = log_softmax(outputs.before.astype(np.float64))
        return float(np.sqrt(np.mean(shares[np.arange(len(outputs.labels)), outputs.labels] ** 2)))


# -------------------- Disagreement of bounds

When = Literal["after", "before"]


@dataclass(frozen=True)
class Disagreement(Measurement):
    """Disagreement between bounds on the local model's squared loss under a shift of the client's data.

    eta = sum_i (u(d_i) - l(d_i)), where u and l are upper and lower bounds of the mean squared loss within Hellinger
    distance d_i = step, 2 step, ..., radius, see `convergence`. eta is small for a client whose examples all have
    similar losses.

    Losses are in [0, 1]: ``"jsd"``, the Jensen-Shannon divergence to base 2, or ``"zero_one"``. With ``"zero_one"``,
    eta is the same for error rates q and 1 - q. So by default clients measure it after local training, as in Algorithm
    1 of the paper. In its Fig. 1, clients estimate it before they train.

    Use when: the weighting `disagreement` or a custom component requests it.

    Args:
        loss: Loss in [0, 1], ``"jsd"`` or ``"zero_one"``.
        radius: Largest distance, above 0 and at most 1. The paper does not specify it; 0.2 is FedReach's default.
        step: Difference between consecutive distances, above 0 and at most `radius`.
        confidence: Probability with which each bound may fail because of few examples, between 0 and 1, such as 0.01.
            It widens the bounds. None: use the measured mean and variance of the losses.
        when: Model that is measured: ``"after"`` local training, or ``"before"``, the broadcast model.

    Raises:
        ConfigError: If an option is out of range.

    Reference: "Aggregation Weighting of Federated Learning via Generalization Bound Estimation" (arXiv 2311.05936), eq.
    16 to 19, Algorithm 1 and Fig. 1.

    Example:
        >>> outputs = LocalOutputs(np.array([[4.0, 0.0], [4.0, 0.0]], np.float32), np.array([0, 1]))
        >>> rng = np.random.Generator(np.random.Philox(0))  # of which nothing is drawn
        >>> round(Disagreement().measure(outputs, rng), 4)
        3.5716
    """

    name = "disagreement"
    needs_classes = True

    loss: Literal["jsd", "zero_one"] = "jsd"
    radius: Annotated[float, "(0, 1]"] = 0.2
    step: float = 0.02
    confidence: Annotated[float | None, "(0, 1): Such as 0.01, or leave it out."] = None
    when: When = "after"

    @property
    def wants_before(self) -> bool:  # type: ignore[override]
        return self.when == "before"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, step=f"(0, {self.radius}]: It is a part of the radius.")

    def measure(self, outputs: LocalOutputs, rng: np.random.Generator) -> float:
        logits = outputs.before if self.when == "before" else outputs.logits
        assert logits is not None  # because of `wants_before`
        losses = LOSSES[self.loss](logits, outputs.labels)
        return total_disagreement(losses, distances(self.radius, self.step), confidence=self.confidence)


# -------------------- Rademacher score

Outputs = Literal["softmax", "logits", "excess_loss"]
Estimator = Literal["monte_carlo", "closed_form"]


@dataclass(frozen=True)
class WLRC(Measurement):
    """Rademacher score: correlation of random signs with the outputs of the local model; lower is better.

    The m examples of a client are divided, in order, into batches of B examples. The last batch may be smaller. With
    the (B_b, C) outputs F_b of a batch and Q draws of random signs per batch,

        score = sum_b (B_b / m) (1/Q) sum_q |(1/(B_b C)) sum_ic sigma^q_ic F_b[i, c]|.

    The score does not contain a supremum over functions. So it is not a complexity but a norm of the outputs, about
    sqrt(2/pi) ||F_b|| / (B_b C). With softmax, a less certain model has a lower score. The score decreases with
    1 / sqrt(B), so all clients use the same B. A client with m < B examples has a single batch, which increases its
    score by a factor of up to sqrt(B/m). So choose B no larger than the data of small clients.

    Use when: the selection `rademacher` or a custom component requests it.

    Args:
        outputs: Outputs to correlate. ``"softmax"``: probabilities; ``"logits"``; ``"excess_loss"``: C = 1 and F_b[i]
            is the cross-entropy of the local model minus that of the broadcast model.
        draws: Number of sign draws Q, at least 1.
        estimator: ``"monte_carlo"``, as in the paper, with a relative standard error of about 0.76 / sqrt(Q) per batch;
            ``"closed_form"``: sqrt(2/pi) ||F_b|| / (B_b C), which is faster and free of noise.
        batch_size: Batch size B, at least 1, the same for all clients.

    Raises:
        ConfigError: If an option is out of range.

    Reference: "Client Selection with Rademacher Complexity for Federated Learning", Algorithm 1. As printed, the score
    of the last batch overwrites the scores of earlier batches. The paper does not define whether f is softmax or
    logits.

    Example:
        >>> logits = np.array([[1, -2], [0.5, 3], [2, 0], [1, 1], [4, -1]], np.float32)
        >>> score = WLRC("logits", estimator="closed_form", batch_size=2)
        >>> rng = np.random.Generator(np.random.Philox(0))
        >>> round(score.measure(LocalOutputs(logits, np.zeros(5, np.int64)), rng), 4)  # batches .7530, .4886, 1.6449
        0.8256
    """

    name = "wlrc"

    outputs: Outputs = "softmax"
    draws: Annotated[int, "[1, inf)"] = 64
    estimator: Estimator = "monte_carlo"
    batch_size: Annotated[int, "[1, inf)"] = 32

    @property
    def wants_before(self) -> bool:  # type: ignore[override]
        return self.outputs == "excess_loss"

    @property
    def needs_classes(self) -> bool:  # type: ignore[override]
        """Whether the targets must be classes; only ``"logits"`` also supports numeric targets."""
        return self.outputs != "logits"

    def measure(self, outputs: LocalOutputs, rng: np.random.Generator) -> float:
        values, total = self._values(outputs), 0.0
        for batch in np.split(values, range(self.batch_size, len(values), self.batch_size)):
            signs = None if self.estimator == "closed_form" else random_signs(self.draws, batch.size, rng)
            total += len(batch) * (closed_form_score(batch) if signs is None else monte_carlo_score(batch, signs))
        return total / len(values)

    def _values(self, outputs: LocalOutputs) -> Floats:
        """Return the (m, C) numbers to multiply by random signs."""
        if self.outputs == "logits":
            return outputs.logits.astype(np.float64)
        if self.outputs == "softmax":
            return np.exp(log_softmax(outputs.logits.astype(np.float64)))
        assert outputs.before is not None  # because of `wants_before`
        example = np.arange(len(outputs.labels))
        local, broadcast = (
            log_softmax(f.astype(np.float64))[example, outputs.labels] for f in (outputs.logits, outputs.before)
        )
        return (broadcast - local)[:, None]


# -------------------- Table of measurements

MEASUREMENTS: Mapping[str, Any] = {
    "wlrc": WLRC,
    "disagreement": Disagreement,
    "loss_rms": LossRMS,
}
