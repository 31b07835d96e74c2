"""Adam and AdamW at the clients: steps scaled for each number by how large its gradients were."""

from dataclasses import dataclass
from typing import Any, ClassVar

from fedreach.errors import require


@dataclass(frozen=True)
class Adam:
    """Let a client follow the running mean of its gradients, each number by the size of its own.

    With g the corrected and clipped gradient plus weight_decay * w, in the steps t = 1, 2, ... of a round, from m = v =
    0::

        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g^2
        w <- w - rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)

    m and v begin anew in every round, as momentum does: nothing of them is sent or kept. A step moves each number by
    about `rate`, whatever the gradient; so choose a rate of a hundredth of what suits plain steps, such as 0.001.

    *When to use it:* for models that plain steps train badly, such as those with embeddings or attention. With few
    steps a round, m and v hardly settle; take plain steps then, and Adam at the server (`server = "adam"`).

    Args:
        beta1: How much of m is kept, in [0, 1).
        beta2: How much of v is kept, in [0, 1).
        epsilon: Positive.

    Raises:
        ConfigError: If a value is outside its range.

    Reference: Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, Algorithm 1.

    Example:
        >>> import numpy as np
        >>> g, w = np.array([3.0, -0.5]), np.zeros(2)
        >>> direction, moments = Adam().direction(g, w, (0.0, 0.0), step=1, weight_decay=0.0)
        >>> direction.round(6)  # in the first step, of length 1 each
        array([ 1., -1.])
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    decoupled: ClassVar[bool] = False  # whether weights decay beside the step and not by the gradient

    def __post_init__(self) -> None:
        require(self, beta1="[0, 1)", beta2="[0, 1)", epsilon="(0, inf)")

    def direction(
        self, gradient: Any, weights: Any, moments: Any, step: int, weight_decay: float
    ) -> tuple[Any, tuple[Any, Any]]:
        """Return what the weights move against, times the rate, and the new m and v; arrays or tensors of one shape.

        Args:
            gradient: Corrected and clipped.
            weights: Before the step.
            moments: m and v.
            step: t, from 1 on.
            weight_decay: Not negative.
        """
        decay = weight_decay * weights if weight_decay else 0.0
        g = gradient if self.decoupled else gradient + decay
        m = self.beta1 * moments[0] + (1 - self.beta1) * g
        v = self.beta2 * moments[1] + (1 - self.beta2) * g * g
        scale = (v / (1 - self.beta2**step)) ** 0.5 + self.epsilon
        followed = m / (1 - self.beta1**step) / scale
        return (followed + decay if self.decoupled else followed), (m, v)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weights decay by themselves: w <- w - rate * (Adam's step of the plain gradient + weight_decay * w).

    With weight_decay 0 it is `Adam`. There, decay is part of the gradient and so is scaled away where gradients are
    large; here all weights decay alike.

    *When to use it:* wherever you would use `Adam` with weight decay.

    Reference: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, Algorithm 2; as in torch, the
    decay is multiplied by the rate.

    Example:
        >>> import numpy as np
        >>> AdamW().direction(np.array([3.0]), np.array([10.0]), (0.0, 0.0), step=1, weight_decay=0.1)[0].round(6)
        array([2.])
    """

    decoupled: ClassVar[bool] = True
