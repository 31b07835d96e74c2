"""What evaluation asks of an engine; nothing here knows one."""

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
from fedreach.federation.base import LocalSolver, Loss
from fedreach.federation.federation import Federation, refuse_targets_of
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.losses import CrossEntropy
from fedreach.federation.traits import Traits, name_of
from fedreach.federation.types import LocalOutputs, LocalUpdates, Outputs

Split = Literal["train", "true", "test", "server"]
"""Which examples: those of the clients with the labels that they train on, or without label noise; the test set; the
server's own. The first two are the same examples, and the same index means the same one."""


class Predictor(Protocol):
    """Runs a model over examples of a federation."""

    def predict(self, params: Float32s, split: Split, index: Ints) -> tuple[Bools | Float32s, Float32s]:
        """Return (m,) whether the (d,) model is right on each of the m examples of `index`, and its loss in nats.

        Of labels at positions: the share of an example's labeled positions at which it is right, and their mean loss.
        Of targets that are numbers: the mean absolute error of each example, in their units, and the mean squared one
        on the scale that they are trained on, see `fedreach.data.preparation.TargetScale`.
        """

    def logits(self, params: Float32s, split: Split, index: Ints) -> Float32s:
        """Return the (m, c) logits, (m, positions..., c) of labels at positions, or (m, t) numbers in their units."""

    def answers(self, params: Float32s, split: Split, index: Ints, *, inputs: bool) -> Outputs:
        """Return what the model says of one client's examples, for serving; with `inputs`, these and features, too.

        The client's examples go through the model by themselves, as on its own machine: to the same bits there.
        """


# -------------------- What is trained, and what a simulation asks of whoever trains it

Terms = dict[str, Tensor]
"""What a solver with memory prepared for the clients of a cohort: (k, p) vectors, or (k, 1) numbers."""

NO_TERMS: Mapping[str, Float32s] = MappingProxyType({})
LOSS_MEMORY = "memory of the loss"
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
        """Return `fedreach.federation.aggregation.weighted_sum`, to the same bits."""


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
        """What else the model holds and every client starts with, by name, see `fedreach.engines.models.state`."""

    def start_from(self, constants: Mapping[str, AnyArray]) -> None:
        """Take the constants of the run in place of those that the model's constructor made."""
