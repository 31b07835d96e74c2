"""Nothing: the model predicts as it is."""

from __future__ import annotations

from dataclasses import dataclass

from fedreach.arrays import Floats, Ints
from fedreach.federation.serving.softmax import log_softmax
from fedreach.federation.values import NO_STATE, Outputs, State


@dataclass(frozen=True)
class Plain:
    """The model predicts as it is: log softmax of its logits. No exchange, no state.

    When: always, as the rung that the others are measured against.

    Example:
        >>> import numpy as np
        >>> np.exp(Plain().predict({}, {}, Outputs(np.array([[0.0, 0.0]])))).tolist()
        [[0.5, 0.5]]
    """

    def query(self, state: State) -> State | None:
        return None

    def contribute(self, query: State, outputs: Outputs, labels: Ints, counts: Floats) -> State:
        return NO_STATE

    def fold(self, state: State, sums: State) -> State:
        return state

    def start(self, state: State) -> State:
        return NO_STATE

    def update(self, state: State, client: State, outputs: Outputs) -> State:
        return client

    def predict(self, state: State, client: State, outputs: Outputs) -> Floats:
        return log_softmax(outputs.logits)
