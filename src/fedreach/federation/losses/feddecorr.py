"""FedDecorr: keep features from becoming copies of each other."""

from dataclasses import dataclass
from typing import Any

from fedreach.errors import require
from fedreach.federation.losses.around import Around


@dataclass(frozen=True)
class FedDecorr(Around):
    """The loss, and beta times the mean square of the correlations between features over the batch.

    l + beta ||K||_F^2 / d^2, K the (d, d) matrix of correlations of the d features over the b examples of the batch. As
    in the authors' code 1e-8 is added to each variance, so that a feature that does not vary correlates with none. A
    batch of one example has the loss alone.

    When: clients have few classes each, so that features collapse into few dimensions. It costs b d^2 products a step.

    Args:
        beta: Weight of the correlations, not negative. With 0 this is the loss alone, bit for bit.
        layer: Whose output the features are; None: what goes into the last linear layer.

    Raises:
        ConfigError: If beta is out of its range.

    Reference: Shi, Liang, Zhang, Tan and Bai, "Towards Understanding and Mitigating Dimensional Collapse in
    Heterogeneous Federated Learning", ICLR 2023, eq. 6. The authors' code leaves out the diagonal, a constant, and
    counts the rest (b - 1)^2 / b times.

    Example:
        >>> FedDecorr(beta=0.2)
        FedDecorr(inner=CrossEntropy(), beta=0.2, layer=None)
    """

    beta: float = 0.1
    layer: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, beta="[0, inf)")

    def objective(self, step: Any) -> Any:
        if self.beta == 0 or len(step.x) < 2:
            return step.loss
        z = step.features(self.layer)
        z = z - z.mean(0)
        z = z / (z.square().mean(0) + 1e-8).sqrt()
        correlations = z.T @ z / len(z)
        return step.loss + self.beta * correlations.square().mean()
