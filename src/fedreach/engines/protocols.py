"""Interfaces of engines, independent of any implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, Protocol

from torch import Tensor, nn

from fedreach._util.arrays import AnyArray, Bools, Float32s, Floats, Ints
from fedreach._util.errors import ConfigError
from fedreach.data.federated import FederatedData
from fedreach.engines.batches import refreshable_layers
from fedreach.engines.models.flat import Layout
from fedreach.federation.augmentations import Augmentation
from fedreach.federation.base import LocalSolver, Loss, name_of
from fedreach.federation.federation import Federation, check_federation_targets
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.losses import CrossEntropy
from fedreach.federation.types import LocalOutputs, LocalUpdates, Outputs

Split = Literal["train", "true", "test", "server"]
"""Data to use: the clients' examples with training labels or true labels, the test set, or the server's examples.

``"train"`` and ``"true"`` are the same examples with the same indices; ``"true"`` is without label noise."""


class Predictor(Protocol):
    """Runs a model over examples of a federation."""

    def predict(self, params: Float32s, split: Split, index: Ints) -> tuple[Bools | Float32s, Float32s]:
        """Return (m,) whether the (d,) model is right on each of the m examples of `index`, and its loss in nats.

        With labels at positions, these are the share of an example's labeled positions that are right, and their mean
        loss. With numeric targets, they are each example's mean absolute error in the targets' units, and its mean
        squared error on the training scale (see `fedreach.data.preparation.TargetScale`).
        """

    def logits(self, params: Float32s, split: Split, index: Ints) -> Float32s:
        """Return the (m, c) logits, (m, positions..., c) with labels at positions, or (m, t) numbers in their units."""

    def answers(self, params: Float32s, split: Split, index: Ints, *, inputs: bool) -> Outputs:
        """Return the model's outputs for one client's examples, for adaptation; with `inputs` also inputs and features.

        The client's examples pass through the model by themselves, so that the bits equal those on its own machine.
        """


# -------------------- Tasks, trainers and engines

Terms = dict[str, Tensor]
"""Terms that a solver with memory prepared for the clients of a cohort: (k, p) vectors, or (k, 1) numbers."""

NO_TERMS: Mapping[str, Float32s] = MappingProxyType({})
LOSS_MEMORY = "memory of the loss"
"""Key of `terms` for the (k, d) vectors that clients keep for a loss; `correct` does not receive them."""
Precision = Literal["highest", "high", "medium"]


@dataclass(frozen=True, eq=False)
class Task:
    """A model, its data and its local training.

    Args:
        module: Model with the initial parameters. Engines copy it.
        data: Federation. If the loss takes unscaled numbers, the target scale is removed.
        solver: Correction of the local gradient.
        local: Local SGD.
        seed: Seed of the batch order.
        loss: Loss that is minimized.
        augmentation: Augmentation of the inputs of clients' training batches. None changes nothing.
    """

    module: nn.Module
    data: FederatedData
    solver: LocalSolver
    local: LocalSGD
    seed: int
    loss: Loss = field(default_factory=CrossEntropy)
    augmentation: Augmentation | None = None

    def __post_init__(self) -> None:
        d = self.data.dataset if self.data else None  # toy problems may have no data
        if d is not None and d.target_scale is not None and not self.loss.declares("scales_targets"):
            as_they_are = replace(self.data, dataset=replace(d, target_scale=None))
            object.__setattr__(self, "data", as_they_are)

    @classmethod
    def of(cls, module: nn.Module, data: FederatedData, federation: Federation) -> Task:
        """Return the task of a federation's clients.

        Raises:
            ConfigError: If the adaptation rule refreshes BatchNorm layers, and the model has none or its inputs are not
                numbers; if the rule needs features, and the model has no linear layer; or if a component needs classes
                and targets are numbers, or vice versa.
        """
        check_federation_targets(federation, data.dataset)
        rule, has_layers = federation.adaptation, bool(refreshable_layers(module))
        if rule.needs_batchnorm and (data.dataset.kind in ("tokens", "several") or not has_layers):
            raise ConfigError(
                f"adaptation {name_of(rule)} refreshes BatchNorm2d and BatchNorm3d layers that have running "
                f"statistics, of a model whose inputs are numbers; got {type(module).__name__} for {data.dataset.kind}"
                f"{'' if has_layers else ', which has no such layer'}. Take adaptation 'label_shift', or another model."
            )
        if rule.needs_features and not any(isinstance(part, nn.Linear) for part in module.modules()):
            raise ConfigError(
                f"adaptation {name_of(rule)} goes by what a model's last linear layer is given; got "
                f"{type(module).__name__}, which has no linear layer. Take adaptation 'label_shift', or another model."
            )
        parts = federation.solver, federation.local, federation.seed, federation.loss, federation.augmentation
        return cls(module, data, *parts)


class Trainer(Protocol):
    """Trains cohorts, and computes everything else that a round needs from models."""

    def train(
        self, broadcast: Float32s, ids: Ints, round_: int, lr: float, terms: Mapping[str, Float32s] = NO_TERMS
    ) -> LocalUpdates:
        """Train each client of `ids` from the `broadcast` (d,) vector with step size `lr`.

        `terms` are those that the solver's `prepare` returned for these clients, and their memory of the loss (see
        `LOSS_MEMORY`).
        """

    def outputs(self, broadcast: Float32s, update: Float32s, ids: Ints, *, before: bool) -> list[LocalOutputs]:
        """Return the outputs of the local models `broadcast + update` (k, d) on their clients' training data.

        Args:
            broadcast: (d,) model that the clients started from.
            update: (k, d) updates of local training.
            ids: (k,) clients.
            before: Also return the outputs of the broadcast model.
        """

    def server_step(self, params: Float32s, index: Ints, round_: int, lr: float, step: int = 0) -> Float32s:
        """Return the (d,) change of one gradient step on these examples of the server's data.

        `step` is the number of the step in the round.

        Raises:
            TrainingError: If the model fails on these examples.
        """

    def distill_step(self, params: Float32s, index: Ints, teacher: Float32s, lr: float) -> Float32s:
        """Return the (d,) change of one distillation step on these inputs of the server's data.

        The step descends the gradient of the mean KL(softmax(teacher) || softmax(logits)), with the model in evaluation
        mode. `teacher` is (b, c) logits.
        """

    def training_loss(self, params: Float32s, ids: Ints, parts: Sequence[Ints] | None = None) -> Floats:
        """Return each client's mean loss at the given parameters, for a probe.

        The mean is over the client's training data, or over the samples in `parts` for each client.
        """

    def weighted_sum(self, weights: Floats, update: Float32s) -> Floats:
        """Return the same bits as `fedreach.federation.aggregation.weighted_sum`."""


class Engine(Trainer, Predictor, Protocol):
    """The engine of a simulation: `TorchEngine`, `DistributedEngine`, or a custom one."""

    name: str  # as in `engine.name`
    task: Task
    solver: LocalSolver  # of the task, like `local`: a simulation checks that they are its federation's
    local: LocalSGD
    layout: Layout  # layout of the model in a flat vector of d numbers
    num_trainable: int  # p, the first numbers of the vector, which are trained
    initial: Float32s  # (d,) parameters before the first round

    @property
    def note(self) -> str:
        """Notes for the user on the model when a run starts: lines, mostly none."""

    @property
    def constants(self) -> Mapping[str, AnyArray]:
        """The model's constants by name, with which every client starts (see `fedreach.engines.models.state`)."""

    def start_from(self, constants: Mapping[str, AnyArray]) -> None:
        """Replace the constants of the model's constructor by those of the run."""
