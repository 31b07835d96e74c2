"""FedNTD: keep what the global model says about the classes that an example is not of."""

from dataclasses import dataclass
from typing import Any, ClassVar

from fedreach.errors import require
from fedreach.federation.losses.around import Around


@dataclass(frozen=True)
class FedNTD(Around):
    """The loss, and beta times the divergence from the global model over the classes that are not the true one.

    l + beta mean_i sum_(c != y) q_g(c) log(q_g(c) / q_l(c)), q the softmax of the outputs / tau without that of the
    true class y: q_l of the local model, q_g of the global one as it was sent. Clients keep nothing.

    When: clients have few classes each, and training forgets the others. Every step costs one more forward pass.

    Args:
        beta: Weight of the divergence, not negative. With 0 this is the loss alone, bit for bit.
        tau: Temperature, positive.

    Raises:
        ConfigError: If an option is out of its range.

    Reference: Lee, Jeong, Shin, Bae and Yun, "Preservation of the Global Knowledge by Not-True Distillation in
    Federated Learning", NeurIPS 2022, eq. 4 to 6.

    Example:
        >>> FedNTD(beta=0.5)
        FedNTD(inner=CrossEntropy(), beta=0.5, tau=1.0)
    """

    beta: float = 1.0
    tau: float = 1.0
    needs_classes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, beta="[0, inf)", tau="(0, inf)")

    def objective(self, step: Any) -> Any:
        from torch.nn import functional as F

        if self.beta == 0:
            return step.loss
        others = F.one_hot(step.y, step.outputs.shape[1]) == 0
        ours, theirs = (
            F.log_softmax(outputs[others].view(len(step.y), -1) / self.tau, dim=1)
            for outputs in (step.outputs, step.global_model.outputs)
        )
        return step.loss + self.beta * F.kl_div(ours, theirs, reduction="batchmean", log_target=True)
