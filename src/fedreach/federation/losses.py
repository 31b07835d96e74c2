"""Losses and local objectives, the functions that clients minimize."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from fedreach._util.arrays import Float32s, Floats, Ints
from fedreach._util.errors import ConfigError
from fedreach.federation.base import Loss, OfFunction, name_of

# -------------------- A plain function as a loss


@dataclass(frozen=True)
class FunctionLoss(OfFunction, Loss):
    """Loss by ``function(outputs, targets) -> (b,) losses`` of torch tensors (b, c) and (b,).

    For numeric targets, both tensors are (b, t), and the function needs the attribute ``needs_numbers = True``. The
    function receives targets in their units, or on the participants' scale with ``scales_targets = True``, see `MSE`.

    Example:
        >>> import torch
        >>> margin = FunctionLoss(lambda outputs, targets: 1 - outputs.gather(1, targets[:, None])[:, 0])
        >>> margin.per_example(torch.tensor([[0.25, 0.5]]), torch.tensor([1]))
        tensor([0.5000])
    """

    def per_example(self, outputs: Any, targets: Any) -> Any:
        return self.function(outputs, targets)


# -------------------- Cross-entropy


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Cross-entropy: the negative log-probability of the true class.

    l(z, y) = log sum_c exp(z_c) - z_y, in nats, for model outputs z and class y.

    Use when: the targets are classes. This is the default.

    Example:
        >>> import torch
        >>> CrossEntropy().per_example(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([1, 0]))
        tensor([0.6931, 0.1269])
    """

    cross_entropy = True
    needs_classes = True

    def per_example(self, outputs: Any, targets: Any) -> Any:
        from torch.nn import functional as F

        return F.cross_entropy(outputs, targets, reduction="none")


# -------------------- Base of losses that extend another loss


@dataclass(frozen=True)
class ExtendsLoss(Loss):
    """Base class of losses whose `objective` adds a term to another loss.

    Args:
        inner: Loss to extend. Default: cross-entropy.

    Raises:
        ConfigError: If the inner loss also has an objective, or shifts outputs.
    """

    inner: Loss = field(default=CrossEntropy(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner.has_objective or self.inner.shifts_outputs:
            what = "already has an objective" if self.inner.has_objective else "shifts outputs"
            raise ConfigError(
                f"{type(self).__name__}.inner must be a loss of outputs and targets; {name_of(self.inner)} {what}. Use "
                "'cross_entropy', 'label_smoothing', 'mse' or 'huber', or write a custom loss that combines both."
            )

    def per_example(self, outputs: Any, targets: Any) -> Any:
        return self.inner.per_example(outputs, targets)


# -------------------- Label smoothing


@dataclass(frozen=True)
class LabelSmoothing(Loss):
    """Cross-entropy with label smoothing (Szegedy et al., 2016).

    The target distribution is (1 - share) on class y plus share / C on every class. So l(z, y) = log sum_c exp(z_c) -
    (1 - share) z_y - (share / C) sum_c z_c, in nats. With share 0, the loss is cross-entropy.

    Use when: labels are noisy, or predictions are overconfident.

    Args:
        share: Share of a label to distribute among all classes, in [0, 1].

    Raises:
        ConfigError: If `share` is out of range.

    Reference: Szegedy, Vanhoucke, Ioffe, Shlens and Wojna, "Rethinking the Inception Architecture for Computer Vision",
    CVPR 2016, section 7.

    Example:
        >>> import torch
        >>> LabelSmoothing(0.5).per_example(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor([0.6269])
    """

    needs_classes = True
    share: Annotated[float, "[0, 1]"] = 0.1

    def per_example(self, outputs: Any, targets: Any) -> Any:
        from torch.nn import functional as F

        return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=self.share)


# -------------------- Logit adjustment


@dataclass(frozen=True)
class LogitAdjusted(CrossEntropy):
    """Logit-adjusted cross-entropy (Menon et al., 2021) with the label distribution of each client.

    l(z, y) = log sum_c exp(z_c + a_c) - (z_y + a_y) in nats, with a_c = strength log(C p_c) and p_c = (n_c + smoothing)
    / (n + C smoothing), where n_c of the client's n training examples have class c. The model then learns to recognize
    classes, independent of their frequency at the client. With uniform classes or strength 0, the loss is
    cross-entropy.

    Use when: label distributions of clients differ, in particular with adaptation, which adds the class frequencies
    again.

    Args:
        strength: Factor of the logarithm; tau in the paper.
        smoothing: Number of pseudo-examples to add to each class, so that every p_c is positive.

    Reference: Menon et al., "Long-tail learning via logit adjustment" (ICLR 2021), eq. (10), with the label
    distribution of each client instead of all clients.

    Example:
        >>> LogitAdjusted(smoothing=1.0).shift(np.array([[6, 0], [2, 2]])).round(4).tolist()
        [[0.5596, -1.3863], [0.0, 0.0]]
    """

    strength: Annotated[float, "[0, inf)"] = 1.0
    smoothing: Annotated[float, "(0, inf)"] = 1.0

    def shift(self, counts: Ints) -> Floats:
        classes = counts.shape[1]
        smoothed = counts + self.smoothing
        shares = smoothed / smoothed.sum(axis=1, keepdims=True)
        return np.asarray(self.strength * np.log(classes * shares), np.float64)


# -------------------- FedLC


@dataclass(frozen=True)
class FedLC(CrossEntropy):
    """FedLC logit calibration (Zhang et al., 2022): cross-entropy with larger margins for rare classes of the client.

    l(z, y) = log sum_c exp(z_c - m_c) - (z_y - m_y) in nats, with m_c = strength n_c^(-1/4), where n_c of the client's
    training examples have class c. Margins apply in training only. With strength 0, the loss is cross-entropy.

    Use when: the reasons for `logit_adjusted` apply, and rare classes should have a larger margin.

    Args:
        strength: Factor of the margins, at least 0; tau in the paper.
        absent: Pseudo-count for classes without examples, positive. With the default, these classes have a margin of
            100 * strength, which practically removes them from the sum.

    Raises:
        ConfigError: If an option is out of range.

    Reference: Zhang, Li, Li, Xu, Wu, Ding and Wu, "Federated Learning with Label Distribution Skew via Logits
    Calibration", ICML 2022. The paper does not define margins of classes without examples. FL-bench
    (github.com/KarhouTam/FL-bench) also counts them as 1e-8 examples.

    Example:
        >>> FedLC().shift(np.array([[16, 1, 0]])).tolist()
        [[-0.5, -1.0, -100.0]]
    """

    strength: Annotated[float, "[0, inf)"] = 1.0
    absent: Annotated[float, "(0, inf)"] = 1e-8

    def shift(self, counts: Ints) -> Floats:
        present = np.where(counts > 0, counts, self.absent)
        return np.asarray(-self.strength * present**-0.25, np.float64)


# -------------------- Squared error


class OfNumbers(Loss):
    """Base class of losses for numeric targets, by default on the participants' scale."""

    needs_numbers = True
    scale: bool

    @property
    def scales_targets(self) -> bool:  # type: ignore[override]
        """Whether the loss receives targets and outputs on the participants' scale."""
        return self.scale


@dataclass(frozen=True)
class MSE(OfNumbers):
    """Mean squared error over the t numeric targets of an example.

    l(z, y) = (1/t) sum_j (z_j - y_j)^2, with gradient 2 (z_j - y_j) / t. Outputs and targets are on the participants'
    scale, (y - mean) / sd, see `fedreach.data.preparation.TargetScale`. On this scale, a prediction of the
    participants' mean has loss 1 on their training rows. Predictions and reported errors are in the units of the
    targets. FedReach rejects classes as targets, because metrics and adaptation interpret a classifier's outputs as
    log-odds.

    Use when: the targets are numbers with few outliers. With many outliers, use `huber`.

    Args:
        scale: Train on the participants' scale. False: train on the unscaled targets.

    Reference: Legendre, "Nouvelles méthodes pour la détermination des orbites des comètes", 1805, appendix.

    Example:
        >>> import torch
        >>> MSE().per_example(torch.tensor([[1.0], [5.0]]), torch.tensor([[2.0], [2.0]]))
        tensor([1., 9.])
    """

    squared_error = True
    scale: bool = True

    def per_example(self, outputs: Any, targets: Any) -> Any:
        return (outputs - targets).square().mean(-1)


# -------------------- Huber loss


@dataclass(frozen=True)
class Huber(OfNumbers):
    """Huber loss: half the squared error up to delta and linear above, averaged over the t targets of an example.

    l(z, y) = (1/t) sum_j h(z_j - y_j), with h(e) = e^2 / 2 if |e| <= delta, and delta (|e| - delta / 2) otherwise. The
    gradient of an example is bounded by delta. If delta exceeds all errors, the loss is half of `MSE`.

    Use when: the targets are numbers with outliers, such as costs of single patients.

    Args:
        delta: Largest error with a squared loss, positive, in standard deviations of the participants' targets.
        scale: Train on the participants' scale, as in `MSE`. False: delta is in the unit of the target.

    Raises:
        ConfigError: If `delta` is out of range.

    Reference: Huber, "Robust estimation of a location parameter", Annals of Mathematical Statistics 35, 1964.

    Example:
        >>> import torch
        >>> Huber(delta=1.0).per_example(torch.tensor([[1.5], [5.0]]), torch.tensor([[2.0], [2.0]]))
        tensor([0.1250, 2.5000])
    """

    delta: Annotated[float, "(0, inf)"] = 1.0
    scale: bool = True

    def per_example(self, outputs: Any, targets: Any) -> Any:
        from torch.nn import functional as F

        return F.huber_loss(outputs, targets, reduction="none", delta=self.delta).mean(-1)


# -------------------- MOON


@dataclass(frozen=True)
class MOON(ExtendsLoss):
    """MOON (Li et al., 2021): the loss plus mu times a contrastive term on the features of two frozen models.

    The term is mean_i -log(e^(s(z, z_glob) / tau) / (e^(s(z, z_glob) / tau) + e^(s(z, z_prev) / tau))), where s is the
    cosine similarity. z, z_glob and z_prev are the features of example i from the local model, the broadcast model and
    the client's previous model. The previous model is the client's model after the last round in which its reply was
    used. Each client stores this model. In a client's first round the term is 0.

    Use when: features of image models drift. Each step needs two more forward passes, and each client stores a model.

    Args:
        mu: Weight of the term, at least 0. With 0, the results equal those of `inner`, bit for bit.
        temperature: Temperature tau, positive.
        layer: Name of the layer whose outputs are the features. None: the inputs of the last linear layer.

    Raises:
        ConfigError: If an option is out of range.

    Reference: Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021, eq. 3 and 4. The paper's models have
    a projection head of two layers before the last layer. In FedReach, this depends on your model.

    Example:
        >>> MOON(mu=5.0)
        MOON(inner=CrossEntropy(), mu=5.0, temperature=0.5, layer=None)
    """

    mu: Annotated[float, "[0, inf)"] = 1.0
    temperature: Annotated[float, "(0, inf)"] = 0.5
    layer: str | None = None

    def objective(self, step: Any) -> Any:
        from torch.nn import functional as F

        if self.mu == 0 or not step.memory.any():
            return step.loss
        models = step.global_model, step.frozen(step.memory)
        z, to, away = (forward.features(self.layer) for forward in (step, *models))
        closer = F.cosine_similarity(z, to) - F.cosine_similarity(z, away)
        return step.loss + self.mu * F.softplus(-closer / self.temperature).mean()

    def keep(self, memory: Float32s, local: Float32s) -> Float32s:
        return local


# -------------------- FedDecorr


@dataclass(frozen=True)
class FedDecorr(ExtendsLoss):
    """FedDecorr (Shi et al., 2023): the loss plus beta times the mean squared correlation between features.

    The term is ||K||_F^2 / d^2, where K is the (d, d) correlation matrix of the d features over the b examples of the
    batch. As in the authors' code, 1e-8 is added to each variance, so a constant feature has correlation 0. For a batch
    of one example the term is omitted.

    Use when: clients have few classes each, so that features collapse into few dimensions. Each step needs b d^2 more
    multiplications.

    Args:
        beta: Weight of the term, at least 0. With 0, the results equal those of `inner`, bit for bit.
        layer: Name of the layer whose outputs are the features. None: the inputs of the last linear layer.

    Raises:
        ConfigError: If `beta` is out of range.

    Reference: Shi, Liang, Zhang, Tan and Bai, "Towards Understanding and Mitigating Dimensional Collapse in
    Heterogeneous Federated Learning", ICLR 2023, eq. 6. The authors' code omits the diagonal, which is constant, and
    multiplies the sum of the other entries by (b - 1)^2 / b.

    Example:
        >>> FedDecorr(beta=0.2)
        FedDecorr(inner=CrossEntropy(), beta=0.2, layer=None)
    """

    beta: Annotated[float, "[0, inf)"] = 0.1
    layer: str | None = None

    def objective(self, step: Any) -> Any:
        if self.beta == 0 or len(step.x) < 2:
            return step.loss
        z = step.features(self.layer)
        z = z - z.mean(0)
        z = z / (z.square().mean(0) + 1e-8).sqrt()
        correlations = z.T @ z / len(z)
        return step.loss + self.beta * correlations.square().mean()


# -------------------- FedNTD


@dataclass(frozen=True)
class FedNTD(ExtendsLoss):
    """FedNTD (Lee et al., 2022): the loss plus beta times a distillation term over all classes but the true class.

    The term is mean_i sum_(c != y) q_g(c) log(q_g(c) / q_l(c)). q_l and q_g are the softmax of outputs / tau without
    the true class y, for the local model and the broadcast model. Clients store no state between rounds.

    Use when: clients have few classes each, and local training forgets the other classes. Each step needs one more
    forward pass.

    Args:
        beta: Weight of the term, at least 0. With 0, the results equal those of `inner`, bit for bit.
        tau: Temperature, positive.

    Raises:
        ConfigError: If an option is out of range.

    Reference: Lee, Jeong, Shin, Bae and Yun, "Preservation of the Global Knowledge by Not-True Distillation in
    Federated Learning", NeurIPS 2022, eq. 4 to 6.

    Example:
        >>> FedNTD(beta=0.5)
        FedNTD(inner=CrossEntropy(), beta=0.5, tau=1.0)
    """

    beta: Annotated[float, "[0, inf)"] = 1.0
    tau: Annotated[float, "(0, inf)"] = 1.0
    needs_classes = True

    def objective(self, step: Any) -> Any:
        from torch.nn import functional as F

        if self.beta == 0:
            return step.loss
        other_classes = F.one_hot(step.y, step.outputs.shape[1]) == 0
        ours, theirs = (
            F.log_softmax(outputs[other_classes].view(len(step.y), -1) / self.tau, dim=1)
            for outputs in (step.outputs, step.global_model.outputs)
        )
        return step.loss + self.beta * F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


# -------------------- FedSAM


@dataclass(frozen=True)
class FedSAM(ExtendsLoss):
    """FedSAM (Qu et al., 2022): gradients at w + rho g / ||g||, where g is the gradient of the batch at w.

    Each step uses the gradient at the perturbed parameters on the same batch. The perturbation is not differentiated.
    If g is 0, the step uses the gradient at w. Solvers, clipping and weight decay apply to the resulting gradient.

    Use when: local models reach sharp minima, so that their average is worse than each local model. Each step computes
    two gradients.

    Args:
        rho: Length of the perturbation, at least 0. With 0, the results equal those of `inner`, bit for bit.

    Raises:
        ConfigError: If `rho` is out of range.

    Reference: Qu, Li, Duan, Liu, Tang and Lu, "Generalized Federated Learning via Sharpness Aware Minimization", ICML
    2022, Algorithm 1 (FedSAM); Foret, Kleiner, Mobahi and Neyshabur, "Sharpness-Aware Minimization for Efficiently
    Improving Generalization", ICLR 2021.

    Example:
        >>> FedSAM(rho=0.1)
        FedSAM(inner=CrossEntropy(), rho=0.1)
    """

    rho: Annotated[float, "[0, inf)"] = 0.05

    def objective(self, step: Any) -> Any:
        if self.rho == 0:
            return step.loss
        gradient = step.gradient()
        norm = gradient.norm()
        return step.loss_at(self.rho * gradient / norm) if norm > 0 else step.loss


# -------------------- Table of losses

LOSSES: Mapping[str, Any] = {
    "cross_entropy": CrossEntropy,
    "logit_adjusted": LogitAdjusted,
    "fedlc": FedLC,
    "label_smoothing": LabelSmoothing,
    "moon": MOON,
    "feddecorr": FedDecorr,
    "fedntd": FedNTD,
    "fedsam": FedSAM,
    "mse": MSE,
    "huber": Huber,
}
