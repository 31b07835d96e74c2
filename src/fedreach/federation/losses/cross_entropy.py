"""Cross-entropy: what a prediction costs in nats."""

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class CrossEntropy:
    """Minus the log-probability that the model gives to the right class.

    l(z, y) = log sum_c exp(z_c) - z_y, in nats, for the outputs z of the model and the class y.

    When: classes are predicted; the default.

    Example:
        >>> import torch
        >>> CrossEntropy().per_example(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([1, 0]))
        tensor([0.6931, 0.1269])
    """

    cross_entropy: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True
    minimum: ClassVar[float] = 0.0

    def per_example(self, outputs: Any, targets: Any) -> Any:
        from torch.nn import functional as F

        return F.cross_entropy(outputs, targets, reduction="none")
