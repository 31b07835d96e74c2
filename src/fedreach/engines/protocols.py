"""What is trained, and what a simulation asks of whoever trains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, Protocol

from torch import Tensor, nn

from fedreach.arrays import AnyArray, Float32s, Floats, Ints
from fedreach.data.federated import FederatedData
from fedreach.engines.statistics import refreshable_layers
from fedreach.errors import ConfigError
from fedreach.evaluation.predictor import Predictor
from fedreach.federation.augmentations import Augmentation
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.losses import CrossEntropy
from fedreach.federation.protocols import LocalSolver, Loss
from fedreach.federation.targets import refuse_targets_of
from fedreach.federation.traits import Traits, name_of
from fedreach.federation.values import LocalOutputs, LocalUpdates
from fedreach.models.flat import Layout

Terms = dict[str, Tensor]
"""What a solver with memory prepared for the clients of a cohort: (k, p) vectors, or (k, 1) numbers."""

NO_TERMS: Mapping[str, Float32s] = MappingProxyType({})
MEMORY = "memory of the loss"
"""Key of `terms` for the (k, d) vectors that clients keep for a loss, which `correct` is not handed."""
Precision = Literal["highest", "high", "medium"]


@dataclass(frozen=True, eq=False)
class Task:
    """What is trained, on what, and how.

    Args:
        module: The model; its present numbers are the initial parameters. Engines copy it.
        data: The federation; of a loss that takes numbers as they are, without their scale.
        solver: Correction of the local gradient.
        local: Local SGD.
        seed: Seed of the batch order.
        loss: What is made small.
        augmentation: Of the inputs of clients' training batches; None: they stay.
    """

    module: nn.Module
    data: FederatedData
    solver: LocalSolver
    local: LocalSGD
    seed: int
    loss: Loss = field(default_factory=CrossEntropy)
    augmentation: Augmentation | None = None

    def __post_init__(self) -> None:
        d = self.data.dataset if self.data else None  # quadratics have none
        if d is not None and d.target_scale is not None and not Traits.of(self.loss).scales_targets:
            as_they_are = replace(self.data, dataset=replace(d, target_scale=None))
            object.__setattr__(self, "data", as_they_are)

    @classmethod
    def of(cls, module: nn.Module, data: FederatedData, federation: Federation) -> Task:
        """Return what a federation has its clients train.

        Raises:
            ConfigError: If the serving rule refreshes BatchNorm layers, and the model has none or its inputs are words;
                it needs features, and the model has no linear layer; or a part needs classes and targets are numbers,
                or the other way round.
        """
        refuse_targets_of(federation, data.dataset)
        rule, has_layers = federation.serving, bool(refreshable_layers(module))
        if Traits.of(rule).needs_batchnorm and (data.dataset.kind in ("tokens", "several") or not has_layers):
            raise ConfigError(
                f"serving {name_of(rule)} refreshes BatchNorm2d and BatchNorm3d layers that have running statistics, "
                f"of a model whose inputs are numbers; got {type(module).__name__} for {data.dataset.kind}"
                f"{'' if has_layers else ', which has no such layer'}. Take serving 'label_shift', or another model."
            )
        if Traits.of(rule).needs_features and not any(isinstance(part, nn.Linear) for part in module.modules()):
            raise ConfigError(
                f"serving {name_of(rule)} goes by what a model's last linear layer is given; got "
                f"{type(module).__name__}, which has no linear layer. Take serving 'label_shift', or another model."
            )
        parts = federation.solver, federation.local, federation.seed, federation.loss, federation.augmentation
        return cls(module, data, *parts)


class Trainer(Protocol):
    """Trains cohorts, and does what else a round asks for."""

    def train(
        self, broadcast: Float32s, ids: Ints, round_: int, rate: float, terms: Mapping[str, Float32s] = NO_TERMS
    ) -> LocalUpdates:
        """Train each client of `ids` from the `broadcast` (d,) vector with step size `rate`.

        `terms` is what the solver's `prepare` returned for these clients, or what they keep for the loss, see `MEMORY`.
        """

    def outputs(self, broadcast: Float32s, update: Float32s, ids: Ints, *, before: bool) -> list[LocalOutputs]:
        """Return what the local models `broadcast + update` (k, d) say about their clients' training data.

        Args:
            broadcast: (d,) the model they started from.
            update: (k, d) what local training added.
            ids: (k,) the clients.
            before: Whether to add what the broadcast model says.
        """

    def server_step(self, params: Float32s, index: Ints, round_: int, rate: float, step: int = 0) -> Float32s:
        """Return the (d,) move of one gradient step on these examples of the server's data; `step` counts in a round.

        Raises:
            TrainingError: If the model fails on them.
        """

    def distill_step(self, params: Float32s, index: Ints, teacher: Float32s, rate: float) -> Float32s:
        """Return the (d,) move of one step towards a teacher on these inputs of the server's data.

        Down the gradient of the mean KL(softmax(teacher) || softmax(logits)), the model in evaluation mode; `teacher`
        is (b, c) logits.
        """

    def training_loss(self, params: Float32s, ids: Ints, parts: Sequence[Ints] | None = None) -> Floats:
        """Return each client's mean loss at the given parameters, as a probe asks for it.

        Over its training part, or over the samples that `parts` gives for each client.
        """

    def weighted_sum(self, weights: Floats, update: Float32s) -> Floats:
        """Return `fedreach.federation.aggregation.mean.weighted_sum`, to the same bits."""


class Engine(Trainer, Predictor, Protocol):
    """What a simulation asks for: `TorchEngine`, `DistributedEngine`, or one's own."""

    name: str  # of who trains, as in `engine.name`
    task: Task
    solver: LocalSolver  # of the task, as is `local`: a simulation sees that they are its federation's
    local: LocalSGD
    layout: Layout  # how the model is one flat vector of d numbers, of which the first
    num_trainable: int  # p are trained
    initial: Float32s  # (d,) parameters before the first round

    @property
    def note(self) -> str:
        """What people are told of the model as a run begins: lines, mostly none."""

    @property
    def constants(self) -> Mapping[str, AnyArray]:
        """What else the model holds and every client starts with, by name, see `fedreach.models.state`."""

    def start_from(self, constants: Mapping[str, AnyArray]) -> None:
        """Take the constants of the run in place of those that the model's constructor made."""
