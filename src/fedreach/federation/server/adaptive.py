"""Adam and Yogi at the server: a step scaled for each number by how large its updates were."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Float32s, Floats
from fedreach.errors import require
from fedreach.federation.values import State


@dataclass(frozen=True)
class Adaptive(ABC):
    """Inherit from it and write `second_moment`."""

    rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        require(self, rate="(0, inf)", beta1="[0, 1)", beta2="[0, 1)", tau="(0, inf)")

    @abstractmethod
    def second_moment(self, v: Floats, square: Floats) -> Floats:
        """Return the new (d,) v, given the old one and the square of the update."""

    def apply(self, params: Float32s, state: State, mean_update: Floats) -> tuple[Float32s, State]:
        """Return the new (d,) parameters, and m and v, (d,) each."""
        m: Floats = self.beta1 * state.get("m", 0.0) + (1 - self.beta1) * mean_update
        v = self.second_moment(state.get("v", np.full(len(params), self.tau**2)), mean_update**2)
        return (params + self.rate * m / (np.sqrt(v) + self.tau)).astype(np.float32), {"m": m, "v": v}


@dataclass(frozen=True)
class FedAdam(Adaptive):
    """Move along the mean of past updates, each number by its own step size.

    With the weighted mean update u, for each of the d numbers, from m = 0 and v = tau^2::

        m <- beta1 * m + (1 - beta1) * u
        v <- beta2 * v + (1 - beta2) * u^2
        x <- x + rate * m / (sqrt(v) + tau)

    Steps are then about as long as `rate`, whatever the length of the updates. As in the paper there is no correction
    of m and v for their start; torch's Adam, which has one, is ``torch_optim``.

    When: numbers of the model move by very different amounts: embeddings, text.

    Args:
        rate: Server rate, positive. The paper tunes it for each data set; the other defaults are the paper's.
        beta1: How much of m is kept, in [0, 1).
        beta2: How much of v is kept, in [0, 1).
        tau: Positive; updates much smaller than tau hardly move a number. The larger, the less adaptive.

    Raises:
        ConfigError: If a value is outside its range.

    Reference: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021, arXiv 2003.00295), Algorithm 2, with
    v_{-1} = tau^2 where it asks for no less.

    Example:
        >>> import numpy as np
        >>> step = FedAdam(rate=0.5, beta1=0.0, beta2=0.0, tau=1e-9)     # forgets all but the sign
        >>> step.apply(np.zeros(3, np.float32), {}, np.array([7.0, -0.1, 0.0]))[0]
        array([ 0.5, -0.5,  0. ], dtype=float32)
    """

    def second_moment(self, v: Floats, square: Floats) -> Floats:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class FedYogi(Adaptive):
    """Like `FedAdam`, but steps grow again only slowly after updates became small.

    v moves towards u^2 by (1 - beta2) u^2, whatever the distance::

        v <- v - (1 - beta2) * u^2 * sign(v - u^2)

    so that small updates cannot make a large v small at once, as they do in Adam. The other options are those of
    `FedAdam`.

    When: as `adam`, where steps that grow too fast make training unstable.

    Args:
        beta2: v changes by at most (1 - beta2) u^2; in [0, 1).

    Raises:
        ConfigError: If a value is outside its range.

    Reference: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021, arXiv 2003.00295), Algorithm 2, with
    v_{-1} = tau^2.

    Example:
        >>> step, u = FedYogi(beta2=0.9, tau=1.0), np.array([0.5, 2.0])
        >>> step.apply(np.zeros(2, np.float32), {}, u)[1]["v"]     # 1 - 0.1 * 0.25 and 1 + 0.1 * 4
        array([0.975, 1.4  ])
    """

    def second_moment(self, v: Floats, square: Floats) -> Floats:
        return v - (1 - self.beta2) * square * np.sign(v - square)
