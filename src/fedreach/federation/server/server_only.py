"""The server trains on its own data in every round."""

from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Float32s, Floats
from fedreach.errors import require
from fedreach.federation.values import State


@dataclass(frozen=True)
class ServerOnly:
    """Leave the clients alone: stochastic gradient descent on the server's data, one step a round.

    The control of `Safari`: what the server's data are worth by themselves. No model is sent.

    Args:
        rate: Step size, positive.
        batch_size: Examples of one step, at least 1; all of the server's where it holds fewer.

    Raises:
        ConfigError: If a value is outside its range.

    Reference: arXiv 2405.02745, section 4: Algorithm 1 with q = 0.

    Example:
        >>> ServerOnly().trains(np.random.Generator(np.random.Philox(0)))
        True
    """

    rate: float = 0.1
    batch_size: int = 64

    def __post_init__(self) -> None:
        require(self, rate="(0, inf)", batch_size="[1, inf)")

    def trains(self, rng: np.random.Generator) -> bool:
        return True

    def apply(self, params: Float32s, state: State, mean_update: Floats) -> tuple[Float32s, State]:
        return params, state
