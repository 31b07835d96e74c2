"""Squared error near the target, absolute error far from it."""

from dataclasses import dataclass
from typing import Any, ClassVar

from fedreach.errors import require


@dataclass(frozen=True)
class Huber:
    """Half the squared error up to delta, and linear beyond, as a mean over an example's t targets.

    l(z, y) = (1/t) sum_j h(z_j - y_j), with h(e) = e^2 / 2 where |e| <= delta and delta (|e| - delta / 2) beyond. No
    example pulls by more than delta: take it where few targets are far off, such as costs of single patients. With
    delta above all errors it is half of `MSE`. Targets must be numbers.

    When: numbers are predicted, and some targets are outliers.

    Args:
        delta: Up to which an error is squared, in deviations of the participants' targets; positive.
        scale: As of `MSE`; if false, delta is in the target's unit.

    Raises:
        ConfigError: If delta is out of its range.

    Reference: Huber, "Robust estimation of a location parameter", Annals of Mathematical Statistics 35, 1964.

    Example:
        >>> import torch
        >>> Huber(delta=1.0).per_example(torch.tensor([[1.5], [5.0]]), torch.tensor([[2.0], [2.0]]))
        tensor([0.1250, 2.5000])
    """

    needs_numbers: ClassVar[bool] = True
    minimum: ClassVar[float] = 0.0
    delta: float = 1.0
    scale: bool = True

    @property
    def scales_targets(self) -> bool:
        """Whether targets and outputs are handed over on the participants' scale."""
        return self.scale

    def __post_init__(self) -> None:
        require(self, delta="(0, inf)")

    def per_example(self, outputs: Any, targets: Any) -> Any:
        from torch.nn import functional as F

        return F.huber_loss(outputs, targets, reduction="none", delta=self.delta).mean(-1)
