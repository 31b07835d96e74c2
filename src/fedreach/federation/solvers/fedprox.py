"""FedProx: stay near the broadcast model."""

from dataclasses import dataclass
from typing import Any, ClassVar

from fedreach.errors import require


@dataclass(frozen=True)
class FedProx:
    """Pull each local step towards the broadcast parameters.

    The local objective is F_i(w) + mu / 2 ||w - w0||^2, so the gradient becomes g + mu (w - w0).

    When: clients drift far in many local steps, and memory at clients is not to be had.

    Args:
        mu: Strength of the pull, not negative. With mu = 0 this is FedAvg, bit for bit.

    Reference: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, eq. 2.

    Example:
        >>> FedProx(mu=0.5).correct(2.0, params=1.0, broadcast=0.0)
        2.5
    """

    mu: float = 0.01
    affine: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self, mu="[0, inf)")

    def correct(self, gradient: Any, params: Any, broadcast: Any) -> Any:
        if self.mu == 0:
            return gradient
        return gradient + self.mu * (params - broadcast)
