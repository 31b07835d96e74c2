"""How far the bounds on a model's squared loss disagree, on examples that it was not trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedreach.arrays import Floats, Ints
from fedreach.errors import require
from fedreach.theory.disagreement import LOSSES, distances, total_disagreement


@dataclass(frozen=True)
class BoundDisagreement:
    """The total disagreement sum_i (u(d_i) - l(d_i)) of the bounds on the mean squared loss, of the answers.

    What `fedreach.federation.measurements.Disagreement` measures on a client's training data, here on what a model is
    evaluated on. Less is better. Its columns end in ``bound_disagreement_jsd`` or ``bound_disagreement_zero_one``.

    When: models are compared by how much a shift of the data could do to them; and to draw that paper's figure 3.

    Args:
        loss: ``"jsd"``, the Jensen-Shannon divergence to base 2, or ``"zero_one"``.
        radius: Largest Hellinger distance, above 0 and at most 1.
        step: Between distances d_i = step, 2 step, ..., above 0 and at most the radius.

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

    needs_classes: ClassVar[bool] = True
    lower_is_better: ClassVar[bool] = True

    loss: Literal["jsd", "zero_one"] = "jsd"
    radius: float = 0.2
    step: float = 0.02

    def __post_init__(self) -> None:
        require(self, loss=tuple(LOSSES), radius="(0, 1]", step=f"(0, {self.radius}]: It is a part of the radius.")

    @property
    def name(self) -> str:
        return f"bound_disagreement_{self.loss}"

    def of(self, labels: Ints, scores: Floats) -> float:
        return total_disagreement(LOSSES[self.loss](scores, labels), distances(self.radius, self.step))
