"""FedSAM: follow the gradient of the worst place nearby."""

from dataclasses import dataclass
from typing import Any

from fedreach.errors import require
from fedreach.federation.losses.around import Around


@dataclass(frozen=True)
class FedSAM(Around):
    """The loss at w + rho g / ||g||, g the gradient of the batch at w: clients look for flat minima (SAM).

    The step follows the gradient at that place, with the same batch; the place itself counts as a constant. Where g is
    0, it is the loss at w. Solvers, clipping and weight decay act on the gradient that is followed.

    When: the average of local models is worse than each, as sharp minima lie apart. A step costs two gradients.

    Args:
        rho: How far away, not negative. With 0 this is the loss alone, bit for bit.

    Raises:
        ConfigError: If rho is out of its range.

    Reference: Qu, Li, Duan, Liu, Tang and Lu, "Generalized Federated Learning via Sharpness Aware Minimization", ICML
    2022, Algorithm 1 (FedSAM); Foret, Kleiner, Mobahi and Neyshabur, "Sharpness-Aware Minimization for Efficiently
    Improving Generalization", ICLR 2021.

    Example:
        >>> FedSAM(rho=0.1)
        FedSAM(inner=CrossEntropy(), rho=0.1)
    """

    rho: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, rho="[0, inf)")

    def objective(self, step: Any) -> Any:
        if self.rho == 0:
            return step.loss
        gradient = step.gradient()
        norm = gradient.norm()
        return step.loss_at(self.rho * gradient / norm) if norm > 0 else step.loss
