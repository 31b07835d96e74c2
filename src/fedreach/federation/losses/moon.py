"""MOON: learn features that are like the global model's, and unlike those of the client's last model."""

from dataclasses import dataclass
from typing import Any

from fedreach.arrays import Float32s
from fedreach.errors import require
from fedreach.federation.losses.around import Around


@dataclass(frozen=True)
class MOON(Around):
    """The loss, and mu times a contrast of the batch's features with those of two frozen models.

    l + mu mean_i -log(e^(s(z, z_glob) / tau) / (e^(s(z, z_glob) / tau) + e^(s(z, z_prev) / tau))), s the cosine of two
    vectors of features of example i: by the local model, the global one as it was sent, and the client's own after the
    last round in which its report counted. Each client keeps that one; before, the term is 0.

    When: images whose features drift; every step costs two more forward passes, and a client keeps a model.

    Args:
        mu: Weight of the contrast, not negative. With 0 this is the loss alone, bit for bit.
        temperature: tau, positive.
        layer: Whose output the features are; None: what goes into the last linear layer.

    Raises:
        ConfigError: If an option is out of its range.

    Reference: Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021, eq. 3 and 4. Their models have a
    projection head of two layers before the last, which here is the model's own affair.

    Example:
        >>> MOON(mu=5.0)
        MOON(inner=CrossEntropy(), mu=5.0, temperature=0.5, layer=None)
    """

    mu: float = 1.0
    temperature: float = 0.5
    layer: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, mu="[0, inf)", temperature="(0, inf)")

    def objective(self, step: Any) -> Any:
        from torch.nn import functional as F

        if self.mu == 0 or not step.memory.any():
            return step.loss
        models = step.global_model, step.frozen(step.memory)
        z, to, away = (one.features(self.layer) for one in (step, *models))
        closer = F.cosine_similarity(z, to) - F.cosine_similarity(z, away)
        return step.loss + self.mu * F.softplus(-closer / self.temperature).mean()

    def keep(self, memory: Float32s, local: Float32s) -> Float32s:
        return local
