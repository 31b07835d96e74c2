"""Base class of trainers: model and data on a device, predictions and server steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreach._util.arrays import AnyArray, Bools, Float32s, Floats, Ints, weighted_sum
from fedreach._util.errors import ComponentError, ConfigError, TrainingError
from fedreach._util.streams import torch_seed
from fedreach.data.several import IGNORED
from fedreach.engines.batches import BatchNormStatistics, Samples, batch_plans, refreshable_layers
from fedreach.engines.models.draws import evaluate_examples, seed_of, seeded_generators
from fedreach.engines.models.flat import Layout, bind, flatten, narrow_types
from fedreach.engines.models.state import ModuleSnapshot, NarrowParameters, constant_arrays, copy_module, set_constants
from fedreach.engines.observation import Behavior, batches_of, behavior_of
from fedreach.engines.protocols import Split, Task, Terms
from fedreach.engines.several import add_hooks, layout_of
from fedreach.federation.base import LocalSolver, Loss, name_of
from fedreach.federation.federation import check_targets
from fedreach.federation.local_sgd import Adam, LocalSGD, TorchSteps
from fedreach.federation.types import LocalOutputs, Outputs

# --- Check that a solver corrects each number independently
# Engines call `correct` with different arrays: a vector, a stack of clients or some layers. A correction that depends
# on other numbers, such as a norm of the gradient, would train a different model in each engine.

MAX_TRIED_NUMBERS = 4096  # largest number of parameters in a trial
SCALES = (1e-4, 1.0, 1e4)  # of the changed numbers; some corrections depend on others only beyond a threshold


def reject_mixing(solver: LocalSolver, p: int) -> None:
    """Raise ConfigError if a solver's correction of one number depends on other numbers.

    The check changes every second number of all arguments. The corrections of the other numbers must not change. If
    the solver fails in this check, the first round reports the error.

    Args:
        solver: Local solver.
        p: Number of trained parameters.

    Raises:
        ConfigError: If the correction of an unchanged number changes.

    Example:
        >>> from fedreach.federation.base import LocalSolver
        >>> class ByNorm(LocalSolver):
        ...     def correct(self, gradient, params, broadcast):
        ...         return gradient / gradient.norm()
        >>> reject_mixing(ByNorm(), p=4)
        Traceback (most recent call last):
        fedreach.ConfigError: ByNorm.correct must correct each number independently; ...
    """
    if p < 2:
        return
    for size in dict.fromkeys((min(p, MAX_TRIED_NUMBERS), p)):
        try:
            mixes = _mixes(solver, size)
        except Exception:  # a solver with one option per parameter accepts size p only
            continue
        if mixes:
            raise ConfigError(
                f"{name_of(solver)}.correct must correct each number independently; got corrections that depend on "
                "other numbers, such as a norm. Use a loss with a method `objective` instead."
            )
        return


def _mixes(solver: Any, size: int) -> bool:
    first = _correction(solver, size, None)
    changed = (_correction(solver, size, scale) for scale in SCALES)
    return any(
        not torch.allclose(first[::2], correction[::2], rtol=1e-5, atol=0, equal_nan=True) for correction in changed
    )


def _correction(solver: Any, size: int, scale: float | None) -> Tensor:
    """Return the correction of a random vector; with a scale, every second number of all arguments is replaced."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((4, size), np.float32)
    if scale is not None:
        vectors[:, 1::2] = np.float32(scale) * rng.standard_normal((4, size // 2), np.float32)
    gradient, params, broadcast, memory = vectors
    terms: dict[str, Tensor] = {}
    if solver.is_stateful:
        prepared = solver.prepare(memory[None], {}, np.ones(1))
        terms = {name: torch.from_numpy(np.array(rows[0])) for name, rows in prepared.items()}
    with seeded_generators(0):  # a solver may draw random numbers
        corrected: Tensor = solver.correct(*map(torch.from_numpy, (gradient, params, broadcast)), **terms)
    return corrected


# --- Trainer of a group of clients in one process
# Each engine implements `groups` and `train_group`, and can replace other methods by faster ones.
# `fedreach.engines.engine` distributes groups over processes.

EVALUATION_BATCH = 256
LOSSES = {"cross_entropy": "cross-entropy", "squared_error": "squared error"}
"""Attributes that identify losses, with the names of the losses in messages."""
Group = tuple[Floats | list[float], Ints | list[int], Bools | None]
"""Mean training losses and numbers of steps of a group's clients. If checked, also whether their updates are finite."""


class GroupTrainer(ABC):
    """Base class of trainers, which train groups of clients with single-threaded kernels.

    Args:
        task: Model, data and local training.
        device: Device for tensors.

    Raises:
        ConfigError: If the trainer does not support this task, or the model does not accept the data.
    """

    name: ClassVar[str]
    written_out: ClassVar[tuple[str, ...]] = ()
    """Attributes of the losses whose gradients the trainer implements, such as ``"cross_entropy"``. Empty: any loss."""
    any_optimizer: ClassVar[bool] = True
    """Whether the trainer supports every optimizer. Otherwise, it supports gradient steps with or without momentum."""
    follows_torch: ClassVar[bool] = False
    """Whether the trainer supports augmentations, optimizers of `torch.optim`, and losses with a method `objective`."""

    @classmethod
    def refusal(cls, solver: LocalSolver, loss: Loss, local: LocalSGD) -> str | None:
        """Return the reason why this trainer cannot train any model with these components, or None if it can."""
        if loss.has_objective and not cls.follows_torch:
            return f"does not support the loss {name_of(loss)}, which has a method `objective`; 'sequential' does"
        if not cls.follows_torch and isinstance(local.optimizer, TorchSteps):
            return f"does not support torch.optim.{local.optimizer.optimizer}; 'sequential' does"
        if not cls.any_optimizer and local.optimizer is not None:
            return f"supports plain gradient steps only; got local.optimizer {type(local.optimizer).__name__}"
        if not cls.written_out or any(getattr(loss, attribute) for attribute in cls.written_out):
            return None
        loss_names = " or ".join(LOSSES[trait] for trait in cls.written_out)
        return f"supports {loss_names} only; got the loss {name_of(loss)}"

    def __init__(self, task: Task, device: torch.device) -> None:
        if (why := self.refusal(task.solver, task.loss, task.local)) is not None:
            raise ConfigError(f"engine.name = {self.name!r} {why}. Use 'auto'.")
        if task.augmentation is not None and not self.follows_torch:
            raise ConfigError(
                f"engine.name = {self.name!r} does not support augmentations; got {name_of(task.augmentation)}. Use "
                "'auto' or 'sequential'."
            )
        check_targets("loss", task.loss, task.data.dataset)
        if not self.follows_torch and (why := only_sequential(task)):
            raise ConfigError(f"engine.name = {self.name!r}: {why}. Use 'auto'.")
        self.device = device
        self.module = copy_module(task.module).to(device)
        d, server = task.data.dataset, task.data.server
        add_hooks(self.module, layout_of(d.train_x), d.positions, d.num_classes)
        self.layout = Layout.of(self.module)
        self.data, self.solver, self.local, self.seed = task.data, task.solver, task.local, task.seed
        self.loss = task.loss
        reject_mixing(task.solver, self.layout.num_trainable)
        self.scale = d.target_scale  # numeric targets are scaled inside of trainers, and have their units outside
        train = Samples(d.train_x, self.scale_targets(task.data.labels), d.kind, d.mean, d.std, device)
        self.samples: dict[Split, Samples] = {
            "train": train,
            "true": train.with_labels(self.scale_targets(d.train_y)),
            "test": Samples(d.test_x, self.scale_targets(d.test_y), d.kind, d.mean, d.std, device),
        }
        if server is not None:
            self.samples["server"] = Samples(server.x, self.scale_targets(server.y), d.kind, d.mean, d.std, device)
        self.shifts: Tensor | None = None  # (N, c), added to each client's outputs in training
        self.server_shift: Tensor | None = None  # (c,), added to the outputs in the server's steps
        if self.loss.shifts_outputs:
            self.shifts = self._shifts_for(self.loss, self.data.label_counts())
            if server is not None:
                counts = np.bincount(server.y, minlength=d.num_classes)
                (self.server_shift,) = self._shifts_for(self.loss, counts[None])
        self.initial: Float32s = flatten(self.module).cpu().numpy()
        self.constants = constant_arrays(self.module)
        self.beginning = ModuleSnapshot(self.module)
        self.behavior: Behavior = behavior_of(self.module, train, (*d.positions, d.outputs), self.losses)
        self.draws = self.behavior.draws or self.behavior.draws_in_evaluation
        self.pristine = copy_module(self.module) if self.behavior.remembers else None
        self.owner = self.data.partition.owner() if self.behavior.mixes else None

    def start_from(self, constants: Mapping[str, AnyArray]) -> None:
        """Set the constants of the model to the constants of the run (see `fedreach.engines.models.state`)."""
        self.renew()
        for module in filter(None, (self.module, self.pristine)):
            set_constants(module, constants)
        self.constants, self.beginning = dict(constants), ModuleSnapshot(self.module)

    def renew(self) -> None:
        """Restore the constants and attributes from the start of the run.

        So results do not depend on earlier computations. If the model has other hidden state, FedReach replaces it with
        a new copy.
        """
        if self.pristine is None:
            self.beginning.restore()
        else:
            self.module = copy_module(self.pristine)

    def place(self, vector: Tensor, gradient: Tensor | None = None) -> None:
        """Bind the module to a (d,) vector, and restore the constants and attributes from the start of the run."""
        self.renew()
        bind(self.module, vector, gradient, layout=self.layout)

    def scale_targets(self, targets: AnyArray) -> AnyArray:
        """Convert targets to the scale of training."""
        return targets if self.scale is None else self.scale.scaled(targets)

    def losses(self, outputs: Tensor, targets: Tensor, shift: Tensor | None) -> Any:
        """Return the loss of each example, or of each labeled position with labels per position.

        Args:
            outputs: (m, c) or (m, positions..., c) outputs.
            targets: (m,) or (m, positions...) targets.
            shift: (m, c) or (c,) numbers added to the outputs. None: no shift.

        Raises:
            ComponentError: If the loss does not return one number per example.
        """
        if self.data.dataset.positions:
            labeled = targets != IGNORED
            outputs, targets = outputs[labeled], targets[labeled]
        losses = self.loss.per_example(outputs if shift is None else outputs + shift, targets)
        examples = outputs.shape[:-1]  # or labeled positions
        if losses.shape != examples:
            raise ComponentError(
                f"{name_of(self.loss)} must return one loss per example, of shape {tuple(examples)}; got "
                f"{tuple(losses.shape)}. Do not average over the batch."
            )
        return losses

    def shifts_of(self, ids: Ints) -> Tensor | None:
        """Return the (k, c) shifts that the loss adds to the outputs of the given clients."""
        return None if self.shifts is None else self.shifts[torch.from_numpy(ids).to(self.device)]

    def _shifts_for(self, loss: Loss, counts: Ints) -> Tensor:
        """Return the (n, c) shifts that the loss adds to outputs, given (n, c) label counts."""
        shift = np.asarray(loss.shift(counts), np.float64)
        if shift.shape != counts.shape or not np.isfinite(shift).all():
            raise ComponentError(
                f"{name_of(loss)}.shift must return finite numbers of its argument's shape {counts.shape}; got "
                f"{shift.shape}{'' if np.isfinite(shift).all() else ' with infinite or NaN values'}."
            )
        return torch.from_numpy(shift.astype(np.float32)).to(self.device)

    @abstractmethod
    def groups(self, ids: Ints, concurrency: int) -> list[Ints]:
        """Return the groups of clients that are trained together, as positions in `ids`, the largest groups first.

        Args:
            ids: (k,) clients of the cohort.
            concurrency: Number of groups that are trained in parallel on all machines. If groups depend on it, a
                client's result must not depend on its group.
        """

    @abstractmethod
    def train_group(
        self, start: Tensor, ids: Ints, round_: int, lr: float, update: Tensor, group: Ints, terms: Terms
    ) -> Group:
        """Train the clients ``ids[group]``, and write their updates into the rows `group` of `update`.

        Args:
            start: (d,) global model.
            ids: (k,) clients of the cohort.
            round_: Round number.
            lr: Learning rate.
            update: (k, d) updates, on the CPU.
            group: Positions in `ids` of the clients to train.
            terms: (k, ...) terms of the solver, on the CPU.
        """

    def add_up(self, weights: Floats, update: Float32s) -> Floats:
        return weighted_sum(weights, update)

    def predict_part(
        self, part: slice, params: Float32s, split: Split, index: Ints, right: Bools | Float32s, loss: Float32s
    ) -> None:
        """Write whether each prediction is correct (or its error), and its loss, for a part of the examples."""
        begin = part.start
        for logits, y in self._answers(self._tensor(params), split, index[part]):
            rows = slice(begin, begin := begin + len(y))
            if self.data.dataset.positions:
                shares = shares_of_positions(logits, y)
                right[rows], loss[rows] = (tensor.cpu().numpy() for tensor in shares)
                continue
            if y.is_floating_point():
                off = (logits - y).abs()
                in_units = off if self.scale is None else off * torch.tensor(self.scale.sd, device=self.device)
                right[rows] = in_units.mean(-1).cpu().numpy()
                loss[rows] = off.square().mean(-1).cpu().numpy()
                continue
            right[rows] = (logits.argmax(-1) == y).cpu().numpy()
            loss[rows] = F.cross_entropy(logits, y, reduction="none").cpu().numpy()

    def logits_part(self, part: slice, params: Float32s, split: Split, index: Ints, out: Float32s) -> None:
        """Write the logits, or the predicted numbers in the units of the targets, for a part of the examples."""
        logits = self._logits(self._tensor(params), split, index[part])
        out[part] = logits if self.scale is None else self.scale.in_units(logits)

    def answers(self, params: Float32s, split: Split, index: Ints, *, inputs: bool) -> Outputs:
        """Return the outputs for one client's examples (see `fedreach.engines.protocols.Predictor.answers`)."""
        self.renew()
        x, _ = self.samples[split].batch(torch.from_numpy(index).to(self.device))
        return answers(self.module, self.layout, self._tensor(params), x, inputs=inputs, even=self.behavior.mixes)

    def outputs_of(self, row: int, broadcast: Float32s, update: Float32s, ids: Ints, before: bool) -> LocalOutputs:
        """Return the outputs of a client's local model on the client's training data."""
        index, start = self.data.train[int(ids[row])], self._tensor(broadcast)
        after = self._logits(start + self._tensor(update[row]), "train", index)
        return LocalOutputs(
            after, self.scale_targets(self.data.labels[index]), self._logits(start, "train", index) if before else None
        )

    def server_step(self, params: Float32s, index: Ints, round_: int, lr: float, step: int = 0) -> Float32s:
        seed = torch_seed(self.seed, "server-dropout", round_, step) if self.draws else 0

        def loss(x: Tensor, y: Tensor) -> Any:
            return self.losses(self.module(x), y, self.server_shift).mean()

        self.renew()
        self.module.train()
        try:
            with seeded_generators(seed, self.device) if self.draws else nullcontext():
                return self._gradient_move(params, index, lr, loss)
        except Exception as error:
            of_one = " Choose a server batch_size that leaves no batch with one example." if len(index) == 1 else ""
            raise TrainingError(
                f"The server's step on {len(index)} of its examples failed in round {round_}: {error}{of_one}"
            ) from error

    def distill_step(self, params: Float32s, index: Ints, teacher: Float32s, lr: float) -> Float32s:
        target = self._tensor(teacher).softmax(-1)  # KL and cross-entropy have the same gradient for a fixed target
        self.module.eval()

        def loss(x: Tensor, _: Tensor) -> Any:
            with seeded_generators(seed_of(x), self.device) if self.draws else nullcontext():
                return F.cross_entropy(self.module(x), target)

        return self._gradient_move(params, index, lr, loss)

    def _gradient_move(
        self, params: Float32s, index: Ints, lr: float, loss: Callable[[Tensor, Tensor], Any]
    ) -> Float32s:
        """Return the (d,) change of one gradient step on the server's examples; the caller sets the module's mode."""
        vector, p = self._tensor(params), self.layout.num_trainable
        gradient = torch.zeros(p, device=self.device)
        self.place(vector, gradient)
        narrow = NarrowParameters(self.module, self.layout, vector, gradient)
        start = vector.clone()  # after narrow parameters were rounded, so that the change contains only the step
        loss(*self.samples["server"].batch(torch.from_numpy(index).to(self.device))).backward()
        narrow.take_gradients()
        vector[:p].sub_(gradient, alpha=lr)
        return (vector - start).cpu().numpy()

    def _tensor(self, vector: Float32s) -> Tensor:
        return torch.from_numpy(np.array(vector, dtype=np.float32)).to(self.device)

    def _logits(self, vector: Tensor, split: Split, index: Ints) -> Float32s:
        parts = [logits for logits, _ in self._answers(vector, split, index)]
        return torch.cat(parts).cpu().numpy()

    def _answers(self, vector: Tensor, split: Split, index: Ints) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the logits and the labels of each batch."""
        self.place(vector)
        self.module.eval()
        for piece in self.alone(split, index):
            for part in batches_of(
                torch.from_numpy(index[piece]).to(self.device), EVALUATION_BATCH, self.behavior.mixes
            ):
                x, y = self.samples[split].batch(part)
                with torch.no_grad():  # inside of the loop, because the caller's code runs between two batches
                    logits = self._batch_logits(x)
                yield logits.float(), y

    def _batch_logits(self, x: Tensor) -> Tensor:
        """Return the logits of a batch.

        Raises:
            TrainingError: If the model mixes examples and rejects a client with a single example.
        """
        try:
            logits: Tensor = torch.cat(evaluate_examples(self.module, x)) if self.draws else self.module(x)
        except ValueError as error:
            if not self.behavior.mixes or len(x) > 1:
                raise
            raise TrainingError(
                f"Clients must have at least 2 examples if the model uses batch statistics in evaluation; got a client "
                f"with 1 example: {error}. Set track_running_stats=True in the model, or exclude such clients."
            ) from error
        return logits

    def alone(self, split: Split, index: Ints) -> list[slice]:
        """Return slices of `index` whose examples can share batches.

        If the model mixes examples, the result is one slice per client. Otherwise, or if the data belong to no client,
        the result is one slice.
        """
        if self.owner is None or split not in ("train", "true") or not len(index):
            return [slice(0, len(index))]
        ends = [*(np.flatnonzero(np.diff(self.owner[index])) + 1).tolist(), len(index)]
        return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def apply_step(
    local: LocalSGD, g: Tensor, weights: Tensor, moments: Any, step: int, lr: float, used: Any = None
) -> None:
    """Perform one local step after the solver's correction and clipping; change `weights` in place.

    Args:
        local: Optimizer, weight decay and momentum.
        g: Corrected gradient, with the shape of `weights`.
        weights: (p,) or (k, p) weights.
        moments: Moments of the optimizer, which are changed in place. Adam has two moments, momentum has one, and other
            optimizers have none.
        step: Number of the step in the round, from 1.
        lr: Learning rate.
        used: Mask of the numbers that have a gradient. Other numbers do not change. None: all numbers have a gradient.
    """
    if isinstance(local.optimizer, Adam):
        g, new_moments = local.optimizer.direction(g, weights, moments, step, local.weight_decay)
        for moment, new in zip(moments, new_moments, strict=True):
            moment.copy_(new)
    elif local.weight_decay:
        g = g + local.weight_decay * weights
    if used is not None:
        g = g * used
    if local.momentum:
        g = moments[0].mul_(local.momentum).add_(g)
    weights.sub_(g, alpha=lr)


class ClientStack:
    """Group of clients that are trained together, in descending order of their numbers of steps.

    So the first rows are the clients that still train in a step.

    Attributes:
        index: (k, steps, b) examples of each batch, padded with -1.
        counts: (k, steps) sizes of the batches; 0 after a client's last step.
        rows: (k,) positions of the clients in the cohort.
        vectors: (k, d) memory for the models. On a CPU, adjacent rows use the memory of their updates.
    """

    def __init__(self, trainer: GroupTrainer, ids: Ints, group: Ints, round_: int, update: Tensor) -> None:
        parts = [trainer.data.train[int(client)] for client in ids[group]]
        plans = batch_plans(trainer.seed, round_, ids[group], parts, trainer.local)
        self._order = np.argsort(-(plans >= 0).any(axis=2).sum(axis=1), kind="stable")
        self.index, self.rows = plans[self._order], group[self._order]
        self.counts = (self.index >= 0).sum(axis=2)
        self._update, k = update, len(group)
        self._in_place = trainer.device.type == "cpu" and bool((np.diff(self.rows) == 1).all())
        if self._in_place:
            self.vectors = update[self.rows[0] : self.rows[-1] + 1]
        else:
            self.vectors = torch.empty(k, trainer.layout.size, device=trainer.device)

    def finish(self, total: Floats) -> Group:
        """Store the updates from `vectors`; return mean losses and numbers of steps from the (k,) sums of losses."""
        if not self._in_place:
            self._update[torch.from_numpy(self.rows)] = self.vectors.cpu()
        loss, steps = np.empty(len(self.rows)), np.empty(len(self.rows), np.int64)
        loss[self._order] = total / self.counts.sum(axis=1)
        steps[self._order] = (self.counts > 0).sum(axis=1)
        return loss, steps, None


def only_sequential(task: Task) -> str | None:
    """Return the reason why only `sequential` supports this model or data, or None if other engines may."""
    if types := narrow_types(task.module):
        return f"only 'sequential' supports {types} parameters"
    if task.data.dataset.positions:
        return "only 'sequential' supports labels at every position"
    return "only 'sequential' supports several inputs" if task.data.dataset.kind == "several" else None


def shares_of_positions(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the accuracy and mean loss of each example over its labeled positions.

    Args:
        logits: (m, positions..., c) logits.
        labels: (m, positions...) labels; masked positions are `IGNORED`.
    """
    size = len(labels)
    labeled = (labels != IGNORED).reshape(size, -1)
    right = (logits.argmax(-1) == labels).reshape(size, -1) & labeled
    loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="none")
    counts = labeled.sum(1)
    return right.sum(1).double() / counts, loss.reshape(size, -1).double().sum(1) / counts


def answers(
    module: nn.Module, layout: Layout, vector: Tensor, x: Tensor, *, inputs: bool, even: bool = False
) -> Outputs:
    """Return the outputs of a model in evaluation mode.

    Features are the inputs of the last linear layer. A model without linear layers has no features.

    Args:
        module: Model, which is bound to `vector`.
        layout: Layout of the module.
        vector: (d,) numbers of the model.
        x: (m, ...) inputs.
        inputs: Return features too. If the inputs are numbers, also return the inputs, running statistics, and a
            function that computes outputs for changed inputs.
        even: Use batches of similar size, for a model that mixes the examples of a batch (see
            `fedreach.engines.observation`).
    """
    bind(module, vector, layout=layout)
    module.eval()
    logits, features = logits_and_features(module, x, features=inputs, even=even)
    if not inputs:
        return Outputs(logits)

    def again(changed: Float32s) -> Outputs:
        return answers(module, layout, vector, torch.from_numpy(changed).to(x.device), inputs=True, even=even)

    if not x.is_floating_point():
        return Outputs(logits, features)
    statistics = BatchNormStatistics(module, layout, vector, partial(answers, module, layout, inputs=True, even=even))
    return Outputs(
        logits,
        features,
        x.cpu().numpy(),
        again,
        statistics if refreshable_layers(module) else None,
    )


def logits_and_features(
    module: nn.Module, x: Tensor, *, features: bool = True, even: bool = False
) -> tuple[Floats, Floats | None]:
    """Return (m, c) logits, and (m, h) features if the module has features (see `answers`).

    Args:
        module: Model in evaluation mode.
        x: (m, ...) inputs.
        features: Return features too.
        even: Use batches of similar size.
    """
    linear = [part for part in module.modules() if isinstance(part, nn.Linear)] if features else []
    layer_inputs: list[Tensor] = []

    def outputs_and_features(part: Tensor) -> tuple[Tensor, list[Tensor]]:
        layer_inputs.clear()
        return module(part), list(layer_inputs)

    hook = (
        linear[-1].register_forward_pre_hook(lambda _, args: layer_inputs.append(args[0])) if linear else nullcontext()
    )
    with hook, torch.no_grad():
        results = [
            result
            for part in batches_of(x, EVALUATION_BATCH, even)
            for result in evaluate_examples(outputs_and_features, part)
        ]
    logits = torch.cat([outputs for outputs, _ in results]).float().cpu().numpy()
    inner = [layer_input for _, features_of in results for layer_input in features_of]
    feature_array = torch.cat(inner).float().cpu().numpy().astype(np.float64) if inner else None
    if feature_array is not None and (feature_array.ndim != 2 or len(feature_array) != len(x)):
        feature_array = None  # the model calls the layer several times, or for each position of a sequence
    return logits.astype(np.float64), feature_array


def cause_of(error: Exception) -> str:
    """Return the message of an error in a step, with advice if BatchNorm received a batch of one example."""
    message = str(error)
    if "more than 1 value per channel" not in message:  # the message of torch
        return message
    return (
        f"{message.rstrip('.')}. BatchNorm cannot normalize a batch of one example. Raise local.batch_size, or set "
        "local.drop_last = true to skip incomplete batches. For clients with one training example, use GroupNorm"
    )
