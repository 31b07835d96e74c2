"""Weigh reports by how little the bounds on the client's loss disagree."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fedreach.arrays import Floats
from fedreach.federation.measurements.disagreement import Disagreement
from fedreach.federation.weighting.base import OwnWeight


@dataclass(frozen=True)
class ByDisagreement(OwnWeight):
    """Give less say to clients whose loss could change much if their data shifted a little.

    w_i is proportional to 1 / eta_i, where eta_i > 0 is the disagreement of bounds that client i measures on its own
    training data after local training: see `Disagreement`.

    With the options as they are, a client that its model fits perfectly counts 3.3 and one that it does not fit 0.3.
    The fit is to the client's own examples: labels all of one class, or noise learnt by heart, count most, too.

    When: some clients' data may be noisy or narrow, and each may measure itself at the cost of extra passes.

    Args:
        loss: As of `Disagreement`, like `radius`, `step` and `confidence`.

    Raises:
        ConfigError: If an option is outside its range.

    Reference: "Aggregation Weighting of Federated Learning via Generalization Bound Estimation" (arXiv 2311.05936),
    eq. 20.

    Example:
        >>> import numpy as np
        >>> ByDisagreement().raw({"disagreement": np.array([0.5, 2.0])})
        array([2. , 0.5])
    """

    loss: Literal["jsd", "zero_one"] = "jsd"
    radius: float = 0.2
    step: float = 0.02
    confidence: float | None = None

    def __post_init__(self) -> None:
        _ = self.measures  # checks the options

    @property
    def measures(self) -> tuple[Disagreement]:
        return (Disagreement(self.loss, self.radius, self.step, self.confidence),)

    def raw(self, metrics: Mapping[str, Floats]) -> Floats:
        return 1 / metrics["disagreement"]
