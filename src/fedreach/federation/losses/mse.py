"""Squared error: the mean is what makes it smallest."""

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class MSE:
    """The squared distance of outputs and targets that are numbers, as a mean over an example's t targets.

    l(z, y) = (1/t) sum_j (z_j - y_j)^2, in the target's unit squared; its gradient by z_j is 2 (z_j - y_j) / t. The
    best constant is the mean of the targets. Take it where targets are numbers and no few of them are far off; else
    `Huber`. Targets are taken as they are: with numbers in the thousands, gradients are, too; divide such a target by a
    round number, or lower `local.rate`. Targets that are classes are refused: everything else reads a classifier's
    outputs as logarithms of odds, which a squared error does not make of them.

    When: numbers are predicted, and large errors are what hurts.

    Reference: Legendre, "Nouvelles méthodes pour la détermination des orbites des comètes", 1805, appendix.

    Example:
        >>> import torch
        >>> MSE().per_example(torch.tensor([[1.0], [5.0]]), torch.tensor([[2.0], [2.0]]))
        tensor([1., 9.])
    """

    squared_error: ClassVar[bool] = True
    needs_numbers: ClassVar[bool] = True
    minimum: ClassVar[float] = 0.0

    def per_example(self, outputs: Any, targets: Any) -> Any:
        return (outputs - targets).square().mean(-1)
