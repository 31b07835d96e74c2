"""Serve a client by its true class shares: a reference, for it needs labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedreach.arrays import Floats, Ints
from fedreach.errors import require
from fedreach.federation.serving.label_shift import LabelShift
from fedreach.federation.values import Outputs, State


@dataclass(frozen=True)
class TruePrior:
    """Predict with a client's true class shares pi: log p(y|x) = a z + b - log base + log pi + constant.

    a, b and base are those of `LabelShift`, which estimates pi where this is told it. An estimate can beat the truth by
    chance.

    When: as the reference: what knowing the class shares exactly would be worth.

    Args:
        calibration: ``"bias"`` fits a and b, ``"temperature"`` a only, ``"none"`` neither.

    Raises:
        ConfigError: If `calibration` is none of these.

    Example:
        >>> import numpy as np
        >>> source = {"a": np.array([1.0]), "b": np.zeros(2), "base": np.full(2, 0.5), "pseudo_counts": np.array([1.0])}
        >>> rule = TruePrior()
        >>> client = rule.with_prior(source, np.array([0.9, 0.1]))
        >>> np.exp(rule.predict(source, client, Outputs(np.zeros((1, 2))))).round(3).tolist()
        [[0.9, 0.1]]
    """

    reads_true_prior: ClassVar[bool] = True

    calibration: Literal["bias", "temperature", "none"] = "bias"

    def __post_init__(self) -> None:
        require(self, calibration=("bias", "temperature", "none"))

    @property
    def keeps_bias(self) -> bool:
        return self.calibration != "bias"

    @property
    def _rule(self) -> LabelShift:
        """The same rule, of which neither the evidence nor A plays a part."""
        return LabelShift(pseudo_counts=1.0, calibration=self.calibration, guard=False, strength=1.0)

    def query(self, state: State) -> State | None:
        return self._rule.query(state)

    def contribute(self, query: State, outputs: Outputs, labels: Ints, counts: Floats) -> State:
        return self._rule.contribute(query, outputs, labels, counts)

    def possible(self, query: State, sums: State, held_out: int, trained: int) -> bool:
        return self._rule.possible(query, sums, held_out, trained)

    def fold(self, state: State, sums: State) -> State:
        return self._rule.fold(state, sums)

    def start(self, state: State) -> State:
        return self._rule.start(state)

    def update(self, state: State, client: State, outputs: Outputs) -> State:
        """Return the client unchanged: nothing is learnt from inputs."""
        return client

    def predict(self, state: State, client: State, outputs: Outputs) -> Floats:
        return self._rule.predict(state, client, outputs)

    def with_prior(self, state: State, prior: Floats) -> State:
        return self._rule.with_prior(state, prior)
