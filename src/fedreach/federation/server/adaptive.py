"""What Adam and Yogi at the server share: a step scaled for each number by how large its updates were."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Float32s, Floats
from fedreach.errors import ConfigError
from fedreach.federation.values import State


@dataclass(frozen=True)
class Adaptive(ABC):
    """Inherit from it and write `second_moment`."""

    rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        rules = {
            "rate": (0 < self.rate < math.inf, "positive"),
            "beta1": (0 <= self.beta1 < 1, "in [0, 1)"),
            "beta2": (0 <= self.beta2 < 1, "in [0, 1)"),
            "tau": (0 < self.tau < math.inf, "positive"),
        }
        for name, (kept, rule) in rules.items():
            if not kept:
                raise ConfigError(f"{type(self).__name__}.{name} must be {rule}; got {getattr(self, name)}.")

    @abstractmethod
    def second_moment(self, v: Floats, square: Floats) -> Floats:
        """Return the new (d,) v, given the old one and the square of the update."""

    def apply(self, params: Float32s, state: State, mean_update: Floats) -> tuple[Float32s, State]:
        """Return the new (d,) parameters, and m and v, (d,) each."""
        m: Floats = self.beta1 * state.get("m", 0.0) + (1 - self.beta1) * mean_update
        v = self.second_moment(state.get("v", np.full(len(params), self.tau**2)), mean_update**2)
        return (params + self.rate * m / (np.sqrt(v) + self.tau)).astype(np.float32), {"m": m, "v": v}
