"""How far the bounds on a client's squared loss disagree."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedreach.errors import require
from fedreach.federation.values import LocalOutputs
from fedreach.theory.disagreement import LOSSES, distances, total_disagreement


@dataclass(frozen=True)
class Disagreement:
    """How much room a shift of the client's data leaves for the squared loss of its local model.

    eta = sum_i (u(d_i) - l(d_i)), where u and l are the most and the least that the mean squared loss can be within
    Hellinger distance d_i = step, 2 step, ... up to the radius: see `fedreach.theory.disagreement`. Small for a client
    whose examples the model fits all alike.

    The losses go from 0 to 1: ``"jsd"``, the Jensen-Shannon divergence to base 2, or ``"zero_one"``. For the latter the
    square changes nothing, and eta is the same for p % and for 100 - p % of errors; so it is taken after local
    training, as in the paper's Algorithm 1 and unlike its Fig. 1. Before it, a model that is always wrong would look as
    good as one that is always right.

    When: the weighting `disagreement` asks for it; or in a part of your own.

    Args:
        loss: ``"jsd"`` or ``"zero_one"``.
        radius: Largest distance, above 0 and at most 1. The paper does not say; 0.2 is ours.
        step: Between distances, above 0 and at most the radius.
        confidence: None takes mean and variance of the losses as they are. A number between 0 and 1, such as 0.01,
            allows for few examples: each bound is widened until it fails with at most this probability (on examples
            that the model was not trained on).

    Raises:
        ConfigError: If an option is outside its range.

    Reference: "Aggregation Weighting of Federated Learning via Generalization Bound Estimation" (arXiv 2311.05936),
    eq. 16 to 19.

    Example:
        >>> outputs = LocalOutputs(np.array([[4.0, 0.0], [4.0, 0.0]], np.float32), np.array([0, 1]))
        >>> rng = np.random.Generator(np.random.Philox(0))  # of which nothing is drawn
        >>> round(Disagreement().measure(outputs, rng), 4)
        3.5716
    """

    wants_before: ClassVar[bool] = False
    needs_classes: ClassVar[bool] = True

    loss: Literal["jsd", "zero_one"] = "jsd"
    radius: float = 0.2
    step: float = 0.02
    confidence: float | None = None

    def __post_init__(self) -> None:
        require(self, loss=tuple(LOSSES), radius="(0, 1]", step=f"(0, {self.radius}]: It is a part of the radius.")
        require(self, confidence="(0, 1): Such as 0.01, or leave it out.")

    @property
    def name(self) -> str:
        return "disagreement"

    @property
    def minimum(self) -> float:
        """Eta of a client whose examples the model fits perfectly; less is no eta."""
        perfect = total_disagreement(np.zeros(1), distances(self.radius, self.step))
        return perfect * (1 - 1e-9)  # rounding

    @property
    def maximum(self) -> float:
        """As many as there are distances: at each of them both bounds lie between 0 and 1."""
        return float(len(distances(self.radius, self.step)))

    def measure(self, outputs: LocalOutputs, rng: np.random.Generator) -> float:
        losses = LOSSES[self.loss](outputs.logits, outputs.labels)
        return total_disagreement(losses, distances(self.radius, self.step), confidence=self.confidence)
