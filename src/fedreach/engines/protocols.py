"""Interfaces of engines, which are independent of any implementation."""

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
"""Names of the data for an evaluation: ``"train"``, ``"true"``, ``"test"`` or ``"server"``.

``"train"`` and ``"true"`` are the clients' examples, with labels without noise for ``"true"``. ``"test"`` is the test
set. ``"server"`` are the server's examples.
"""


class Predictor(Protocol):
    """Interface for the predictions of a model for examples of a federation."""

    def predict(self, params: Float32s, split: Split, index: Ints) -> tuple[Bools | Float32s, Float32s]:
        """Return (m,) values that state whether each prediction is correct, and (m,) losses in nats.

        With labels per position, the results are each example's accuracy and mean loss over its labeled positions. For
        numeric targets, the results are each example's mean absolute error in the targets' units, and its mean squared
        error on the training scale (see `fedreach.data.preparation.TargetScale`).

        Args:
            params: (d,) model.
            split: Name of the data to evaluate.
            index: (m,) examples of the split.
        """

    def logits(self, params: Float32s, split: Split, index: Ints) -> Float32s:
        """Return the logits of m examples.

        The shape of the logits is (m, c), or (m, positions..., c) with labels per position. For numeric targets, the
        result is the (m, t) predictions in the targets' units.
        """

    def answers(self, params: Float32s, split: Split, index: Ints, *, inputs: bool) -> Outputs:
        """Return the outputs for one client's examples for adaptation; with `inputs`, also return inputs and features.

        A batch contains only this client's examples, so that the results equal the results on the client's machine.
        """


# -------------------- Tasks, trainers and engines

Terms = dict[str, Tensor]
"""Terms that a stateful solver prepares for the clients of a cohort: (k, p) vectors or (k, 1) numbers, by name."""

NO_TERMS: Mapping[str, Float32s] = MappingProxyType({})
LOSS_MEMORY = "memory of the loss"
"""Key in `terms` of the (k, d) client states of a loss; `correct` does not receive them."""
Precision = Literal["highest", "high", "medium"]


@dataclass(frozen=True, eq=False)
class Task:
    """Model with its data and the options of local training.

    Args:
        module: Model with its initial parameters. Engines copy the model.
        data: Clients' data, without a target scale if the loss does not scale targets.
        solver: Local solver.
        local: Options of local SGD.
        seed: Seed of the batch order, at least 0.
        loss: Loss that clients minimize.
        augmentation: Augmentation of the clients' training batches. None: no augmentation.
    """

    module: nn.Module
    data: FederatedData
    solver: LocalSolver
    local: LocalSGD
    seed: int
    loss: Loss = field(default_factory=CrossEntropy)
    augmentation: Augmentation | None = None

    def __post_init__(self) -> None:
        d = self.data.dataset if self.data else None  # tests may pass no data
        if d is not None and d.target_scale is not None and not self.loss.declares("scales_targets"):
            as_they_are = replace(self.data, dataset=replace(d, target_scale=None))
            object.__setattr__(self, "data", as_they_are)

    @classmethod
    def of(cls, module: nn.Module, data: FederatedData, federation: Federation) -> Task:
        """Return the training task of a federation.

        Raises:
            ConfigError: If a component does not support the targets, or the adaptation rule does not support the model
                or its inputs.
        """
        check_federation_targets(federation, data.dataset)
        rule, has_layers = federation.adaptation, bool(refreshable_layers(module))
        if rule.needs_batchnorm and (data.dataset.kind in ("tokens", "several") or not has_layers):
            raise ConfigError(
                f"The model for adaptation {name_of(rule)} must have numeric inputs, and BatchNorm2d or BatchNorm3d "
                f"layers with running statistics; got {type(module).__name__} for {data.dataset.kind}"
                f"{'' if has_layers else ', which has no such layer'}. Use adaptation 'label_shift', or another model."
            )
        if rule.needs_features and not any(isinstance(part, nn.Linear) for part in module.modules()):
            raise ConfigError(
                f"The model for adaptation {name_of(rule)} must have a linear layer, whose inputs the rule reads; got "
                f"{type(module).__name__}, which has none. Use adaptation 'label_shift', or another model."
            )
        parts = federation.solver, federation.local, federation.seed, federation.loss, federation.augmentation
        return cls(module, data, *parts)


class Trainer(Protocol):
    """Interface for the training of cohorts, and for all other computations on models in a round."""

    def train(
        self, broadcast: Float32s, ids: Ints, round_: int, lr: float, terms: Mapping[str, Float32s] = NO_TERMS
    ) -> LocalUpdates:
        """Train the clients of a cohort.

        Args:
            broadcast: (d,) global model.
            ids: (k,) clients of the cohort.
            round_: Round number.
            lr: Learning rate.
            terms: Results of the solver's `prepare` for these clients, and the clients' states of the loss
                (`LOSS_MEMORY`).
        """

    def outputs(self, broadcast: Float32s, update: Float32s, ids: Ints, *, before: bool) -> list[LocalOutputs]:
        """Return the outputs of the local models ``broadcast + update`` on their clients' training data.

        Args:
            broadcast: (d,) global model.
            update: (k, d) updates.
            ids: (k,) clients.
            before: Return the outputs of the global model too.
        """

    def server_step(self, params: Float32s, index: Ints, round_: int, lr: float, step: int = 0) -> Float32s:
        """Return the (d,) change of one gradient step on the server's data.

        Args:
            params: (d,) model.
            index: (b,) examples of the server's data.
            round_: Round number.
            lr: Learning rate.
            step: Number of the step in the round, from 0.

        Raises:
            TrainingError: If the model fails on these examples.
        """

    def distill_step(self, params: Float32s, index: Ints, teacher: Float32s, lr: float) -> Float32s:
        """Return the (d,) change of one distillation step on the server's inputs.

        The step follows the gradient of the mean KL(softmax(teacher) || softmax(logits)), in evaluation mode.

        Args:
            params: (d,) model.
            index: (b,) examples of the server's data.
            teacher: (b, c) logits of the teacher.
            lr: Learning rate.
        """

    def training_loss(self, params: Float32s, ids: Ints, parts: Sequence[Ints] | None = None) -> Floats:
        """Return the (k,) mean losses of clients, for a probe.

        Args:
            params: (d,) model.
            ids: (k,) clients.
            parts: Examples of each client to use. None: all of the clients' training examples.
        """

    def weighted_sum(self, weights: Floats, update: Float32s) -> Floats:
        """Return a weighted sum with the same bits as `fedreach.federation.aggregation.weighted_sum`."""


class Engine(Trainer, Predictor, Protocol):
    """Interface of simulation engines: `TorchEngine`, `DistributedEngine` or a custom engine."""

    name: str  # value of `engine.name`
    task: Task
    solver: LocalSolver  # solver and local SGD of the task; a simulation compares them with its federation's
    local: LocalSGD
    layout: Layout  # layout of the model in a vector of d numbers
    num_trainable: int  # p: the first p numbers of the vector are trained
    initial: Float32s  # (d,) parameters before the first round

    @property
    def note(self) -> str:
        """Notes on the model, which FedReach prints at the start of a run. Usually empty."""

    @property
    def constants(self) -> Mapping[str, AnyArray]:
        """Constants of the model by name, from which every client starts (see `fedreach.engines.models.state`)."""

    def start_from(self, constants: Mapping[str, AnyArray]) -> None:
        """Set the constants of the model to the constants of the run."""
