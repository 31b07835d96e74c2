"""Losses and local objectives: what a client minimizes."""

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
    """Use ``function(outputs, targets) -> (b,) losses``, of torch tensors (b, c) and (b,).

    Where targets are numbers, both are (b, t). A function for such says ``needs_numbers = True``, and is then tried
    and used with numbers only. It is handed them as they are, as in torch; with ``scales_targets = True`` on the
    participants' scale, see `MSE`.

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
    """Cross-entropy: minus the log-probability of the true class.

    l(z, y) = log sum_c exp(z_c) - z_y, in nats, for the outputs z of the model and the class y.

    When: classes are predicted; the default.

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
    """Base of losses that add a term to another loss by `objective`.

    Args:
        inner: The loss: cross-entropy unless another one is named.

    Raises:
        ConfigError: If it sees more than outputs itself, or shifts them.
    """

    inner: Loss = field(default=CrossEntropy(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner.has_objective or self.inner.shifts_outputs:
            what = "has an objective itself" if self.inner.has_objective else "shifts outputs"
            raise ConfigError(
                f"{type(self).__name__}.inner must be a loss of outputs and targets; {name_of(self.inner)} {what}. "
                "Use 'cross_entropy', 'label_smoothing', 'mse' or 'huber', or write both into a loss of your own."
            )

    def per_example(self, outputs: Any, targets: Any) -> Any:
        return self.inner.per_example(outputs, targets)


# -------------------- Label smoothing


@dataclass(frozen=True)
class LabelSmoothing(Loss):
    """Cross-entropy with label smoothing: (1 - share) on the class y, and share / C on every class.

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

    needs_classes = True
    share: Annotated[float, "[0, 1]"] = 0.1

    def per_example(self, outputs: Any, targets: Any) -> Any:
        from torch.nn import functional as F

        return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=self.share)


# -------------------- Logit adjustment


@dataclass(frozen=True)
class LogitAdjusted(CrossEntropy):
    """Logit-adjusted cross-entropy: in training each client adds its log label distribution to the outputs.

    l(z, y) = log sum_c exp(z_c + a_c) - (z_y + a_y) with a_c = strength log(C p_c) and
    p_c = (n_c + smoothing) / (n + C smoothing), in nats; n_c of the client's n training examples are of class c, of C.
    A class that is frequent only here is then no reason to predict it: z itself learns to say what an example looks
    like. Where all classes are as frequent, and with strength 0, it is cross-entropy.

    When: clients' class shares differ: the model learns looks rather than frequencies, and adaptation adds the
    frequencies back.

    Args:
        strength: The factor of the logarithm, tau in the paper.
        smoothing: Examples that are added to each class, so that none has share 0.

    Reference: Menon et al., "Long-tail learning via logit adjustment" (ICLR 2021), eq. (10), with the class shares of
    each client instead of all.

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
    """FedLC: cross-entropy with a margin for each class that grows as the client's examples of it get fewer.

    l(z, y) = log sum_c exp(z_c - m_c) - (z_y - m_y) with m_c = strength n_c^(-1/4), in nats; n_c of the client's
    training examples are of class c. Only training sees the margins. With strength 0 it is cross-entropy.

    When: as `logit_adjusted`, where rare classes should keep a wider margin.

    Args:
        strength: The factor of the margins, tau in the paper; not negative.
        absent: Examples that a class without any counts as, positive. The default makes its margin 100 strength: it is
            left out of the sum, and the client moves nothing that only this class depends on.

    Raises:
        ConfigError: If an option is out of its range.

    Reference: Zhang, Li, Li, Xu, Wu, Ding and Wu, "Federated Learning with Label Distribution Skew via Logits
    Calibration", ICML 2022, where a class without examples is not defined. FL-bench, github.com/KarhouTam/FL-bench, by
    which many compare, counts it as 1e-8 examples, too.

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
    """Base of losses of numbers, by default on the participants' scale."""

    needs_numbers = True
    scale: bool

    @property
    def scales_targets(self) -> bool:  # type: ignore[override]
        """Whether targets and outputs are handed over on the participants' scale."""
        return self.scale


@dataclass(frozen=True)
class MSE(OfNumbers):
    """Mean squared error over an example's t targets that are numbers.

    l(z, y) = (1/t) sum_j (z_j - y_j)^2; its gradient by z_j is 2 (z_j - y_j) / t. The
    best constant is the mean of the targets. Take it where targets are numbers and no few of them are far off; else
    `Huber`. Both sides are on the participants' scale, (y - mean) / sd, see `fedreach.data.preparation.TargetScale`: a
    loss of 1 is what their mean gets on their own training rows. Predictions and errors are in the targets' units all
    the same. Targets that are classes are rejected: everything else reads a classifier's outputs as logarithms of odds,
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

    squared_error = True
    scale: bool = True

    def per_example(self, outputs: Any, targets: Any) -> Any:
        return (outputs - targets).square().mean(-1)


# -------------------- Huber loss


@dataclass(frozen=True)
class Huber(OfNumbers):
    """Huber loss: half the squared error up to delta, linear beyond; the mean over an example's t targets.

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

    delta: Annotated[float, "(0, inf)"] = 1.0
    scale: bool = True

    def per_example(self, outputs: Any, targets: Any) -> Any:
        from torch.nn import functional as F

        return F.huber_loss(outputs, targets, reduction="none", delta=self.delta).mean(-1)


# -------------------- MOON


@dataclass(frozen=True)
class MOON(ExtendsLoss):
    """MOON: the loss plus mu times a contrast of the features with those of two frozen models.

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
    """FedDecorr: the loss plus beta times the mean square of the correlations between features.

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
    """FedNTD: the loss plus beta times the divergence from the global model over the other classes.

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
    """FedSAM: the loss at w + rho g / ||g||, g the gradient of the batch at w, which favors flat minima.

    The step follows the gradient at that place, with the same batch; the place itself counts as a constant. Where g is
    0, it is the loss at w. Solvers, clipping and weight decay act on the gradient that is followed.

    When: the average of local models is worse than each, as sharp minima lie apart. A step costs two gradients.

    Args:
        rho: How far away, not negative. With 0 this is the loss alone, bit for bit.

    Raises:
        ConfigError: If rho is out of its range.

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
