"""Squared error: the mean is what makes it smallest."""

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class MSE:
    """The squared distance of outputs and targets that are numbers, as a mean over an example's t targets.

    l(z, y) = (1/t) sum_j (z_j - y_j)^2; its gradient by z_j is 2 (z_j - y_j) / t. The
    best constant is the mean of the targets. Take it where targets are numbers and no few of them are far off; else
    `Huber`. Both sides are on the participants' scale, (y - mean) / sd, see `fedreach.data.target_scale.TargetScale`: a
    loss of 1 is what their mean gets on their own training rows. Predictions and errors are in the targets' units all
    the same. Targets that are classes are refused: everything else reads a classifier's outputs as logarithms of odds,
    which a squared error does not make of them.

    When: numbers are predicted, and large errors are what hurts.

    Args:
        scale: Train on the participants' scale; if false, on the numbers as they are, as torch would.

    Reference: Legendre, "Nouvelles méthodes pour la détermination des orbites des comètes", 1805, appendix.

    Example:
        >>> import torch
        >>> MSE().per_example(torch.tensor([[1.0], [5.0]]), torch.tensor([[2.0], [2.0]]))
        tensor([1., 9.])
    """

    squared_error: ClassVar[bool] = True
    needs_numbers: ClassVar[bool] = True
    minimum: ClassVar[float] = 0.0
    scale: bool = True

    @property
    def scales_targets(self) -> bool:
        """Whether targets and outputs are handed over on the participants' scale."""
        return self.scale

    def per_example(self, outputs: Any, targets: Any) -> Any:
        return (outputs - targets).square().mean(-1)
