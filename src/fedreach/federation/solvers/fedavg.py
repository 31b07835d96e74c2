"""FedAvg: plain local SGD."""

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class FedAvg:
    """Follow the client's own gradient.

    When: always, as the baseline; no memory at clients and the fewest bytes.

    Reference: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    AISTATS 2017, Algorithm 1.

    Example:
        >>> FedAvg().correct(2.0, params=1.0, broadcast=0.0)
        2.0
    """

    affine: ClassVar[bool] = True

    def correct(self, gradient: Any, params: Any, broadcast: Any) -> Any:
        return gradient
