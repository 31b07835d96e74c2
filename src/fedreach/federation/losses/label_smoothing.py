"""Cross-entropy to labels of which a share is spread over all classes."""

from dataclasses import dataclass
from typing import Any, ClassVar

from fedreach.errors import require


@dataclass(frozen=True)
class LabelSmoothing:
    """Cross-entropy where each label is (1 - share) the class y, and share / C every class.

    l(z, y) = log sum_c exp(z_c) - (1 - share) z_y - (share / C) sum_c z_c, in nats. A model that is never wholly
    certain drifts less from the others on few examples. With share 0 it is cross-entropy.

    When: labels are noisy, or outputs too sure.

    Args:
        share: Of a label that is spread, in [0, 1].

    Raises:
        ConfigError: If the share is out of its range.

    Reference: Szegedy, Vanhoucke, Ioffe, Shlens and Wojna, "Rethinking the Inception Architecture for Computer Vision",
    CVPR 2016, section 7.

    Example:
        >>> import torch
        >>> LabelSmoothing(0.5).per_example(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor([0.6269])
    """

    needs_classes: ClassVar[bool] = True
    share: float = 0.1

    def __post_init__(self) -> None:
        require(self, share="[0, 1]")

    def per_example(self, outputs: Any, targets: Any) -> Any:
        from torch.nn import functional as F

        return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=self.share)
