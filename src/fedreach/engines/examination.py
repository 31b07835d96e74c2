"""Comparison of an engine with torch on a few examples, before FedReach uses the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedreach._util.arrays import AnyArray, Float32s, Ints
from fedreach._util.streams import generator
from fedreach.data.assignment import Partition
from fedreach.data.federated import FederatedData
from fedreach.data.splits import ClientIndex, Population
from fedreach.engines.engine import TorchEngine
from fedreach.engines.models.draws import preserve_generators
from fedreach.engines.models.state import copy_module
from fedreach.engines.observation import REMEMBERS, hidden_behavior
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.engines.trainer import GroupTrainer, only_sequential
from fedreach.federation.types import LocalUpdates

# --- A model without dropout, because dropout masks differ between engines

DROPOUTS: set[Any] = {
    getattr(place, name)
    for place in (F, torch)
    for name in dir(place)
    if "dropout" in name and not name.startswith(("_", "native"))  # these also return masks
}
# Functions that also apply dropout, with the position of `dropout_p` in their arguments. `NoDropout` cannot intercept
# the functions that they call.
ATTENTION: dict[Any, int] = {F.scaled_dot_product_attention: 4, F.multi_head_attention_forward: 10}


class NoDropout(TorchFunctionMode):
    """Context manager that turns off dropout in functions such as `F.dropout`.

    Example:
        >>> with NoDropout():
        ...     F.dropout(torch.ones(3), 0.5)
        tensor([1., 1., 1.])
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if (place := ATTENTION.get(func)) is not None:
            if len(args) > place:
                args = (*args[:place], 0.0, *args[place + 1 :])
            else:
                kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)


def without_dropout(module: nn.Module) -> nn.Module:
    """Return a copy of a module without dropout in its layers; see `NoDropout` for functions in `forward`.

    Example:
        >>> module = without_dropout(nn.Sequential(nn.Dropout(0.5), nn.Flatten())).train()
        >>> module(torch.ones(1, 3))
        tensor([[1., 1., 1.]])
    """
    stripped = copy_module(module)
    for layer in stripped.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            layer.p = 0.0
        elif isinstance(layer, nn.MultiheadAttention | nn.RNNBase):
            layer.dropout = 0.0
    return stripped


# --- Comparison of an engine with `sequential`, which runs the model's code in torch
# An engine that follows a graph of the model, or runs the model under `torch.func`, may differ from the model's code.
# It may miss code under `torch.no_grad()`, a custom gradient or a branch. The comparison covers the updates, losses and
# running statistics of three clients of unequal size, and outputs and losses in evaluation. Dropout is off.
#
# **Rounding.** Engines sum float32 numbers in different orders. The error of a sum of a few thousand products is about
# 1e-6 of the largest number of its tensor. Batch normalization over a few values can magnify it to about 1e-4.
# `TOLERANCE` is larger than both, and far smaller than 1%, the size of a real fault. Some gradients are zero up to
# rounding, such as that of a bias before a BatchNorm layer. They are compared on the scale of the whole gradient
# (`FLOOR`). In a few batches, rounding moves a number over the kink of a ReLU and changes a gradient by more. So an
# engine that differs is tried again on other batches, and passes if it agrees on two of three.

SIZES = (13, 8, 5)  # numbers of examples of the clients
BATCH = 8
TOLERANCE = 1e-3  # relative to the largest number of a tensor
FLOOR = 1e-6  # relative to the largest number of the whole update
EPSILON = 2.0**-23  # machine epsilon of float32
NOISE = 0.02  # added to the initial parameters, because layers that start at zero hide their gradients
GENTLE, STEEP = 0.01, 1000.0  # largest step, relative to the largest parameter
NUM_BATCH_SIZES = 4
OUTPUT = "the output in evaluation"
SINGLE_STEP_CLIENTS = np.array([1, 2])  # clients that take one step


class TrialResult(NamedTuple):
    """Results of an engine in a trial with k clients and m examples."""

    updates: tuple[Float32s, Float32s]
    """(k - 1, d) updates after one very large step, in which the gradient dominates, and (k, d) updates after small
    steps.
    """
    answers: dict[str, AnyArray]  # by name: (k,) training losses, and (m, c) outputs and (m,) losses in evaluation
    right: AnyArray  # (m,) whether the predicted class is correct, or the error of the predicted number


class Trial(NamedTuple):
    """Initial model and learning rates of a trial."""

    round_: int  # round whose batches are used
    broadcast: Float32s  # (d,) start
    gentle: float  # small learning rate
    steep: float  # large learning rate
    trained: Float32s  # (d,) model to evaluate


class Examination:
    """Comparison of engines with `sequential` on a few examples of a task.

    Args:
        task: Model, data and local training.
        device: Device for tensors.

    Raises:
        ConfigError: If the model does not accept the data.
    """

    def __init__(self, task: Task, device: str = "cpu") -> None:
        self.device, self.task = device, trial_of(task)
        self.sizes = batch_sizes(task)
        self.trials: dict[int, tuple[Trial, TrialResult]] = {}  # round -> trial and results of `sequential`
        self.plain = TorchEngine(Sequential, self.task, device)

    @cached_property
    def only_plain(self) -> str | None:
        """Reason why only `sequential` can train the model, or None if other engines can."""
        if (why := only_sequential(self.task)) is not None:
            return why
        trainer, m = self.plain.trainer, sum(SIZES)
        sizes = [BATCH, *self.sizes]
        parts = torch.split(torch.arange(sum(sizes), device=trainer.device) % m, sizes)
        batches = [trainer.samples["train"].batch(part) for part in parts]
        try:
            with self._as_examined():
                why = hidden_behavior(copy_module(trainer.module), batches, trainer.losses)
            if why is None and trainer.behavior.remembers:
                why = REMEMBERS
            if why is None:
                self._trial(1)
        except Exception as error:  # the user's code can raise any error
            why = f"the model fails on a few examples ({type(error).__name__}: {str(error).splitlines()[0]:.100})"
        return why

    def difference(self, kind: type[GroupTrainer]) -> str | None:
        """Return the difference between an engine and torch in words, or None if they agree.

        Raises:
            ConfigError: If the engine cannot train the model.
            TrainingError: If the engine fails in training.
        """
        with self._as_examined():
            engine = TorchEngine(kind, self.task, self.device)
            differences = [self._difference(engine, 1)]
            if differences[0] is not None:
                differences += [self._difference(engine, round_) for round_ in (2, 3)]
        wrong = [difference for difference in differences if difference is not None]
        return wrong[0] if len(wrong) > 1 else None

    def _difference(self, engine: TorchEngine, round_: int) -> str | None:
        trial, expected = self._trial(round_)
        computed = self._compute(engine, trial)
        for updates, theirs in zip(computed.updates, expected.updates, strict=True):
            if (why := self._update_difference(updates, theirs, trial.broadcast)) is not None:
                return why
        for what, numbers in expected.answers.items():
            if (share := _share_off(computed.answers[what], numbers, 0.0)) is not None:
                return f"{what} differs by {share}"
        right, right_of_torch = computed.right.astype(np.float64), expected.right.astype(np.float64)
        outputs = expected.answers[OUTPUT]
        if computed.right.dtype == np.bool_ and outputs.shape[1] > 1:  # exclude near ties, which rounding decides
            low, high = np.partition(outputs, -2, axis=1)[:, -2:].T
            clear = ~(high - low <= 2 * TOLERANCE * _largest(outputs))
            right, right_of_torch = right[clear], right_of_torch[clear]
        return None if _share_off(right, right_of_torch, 0.0) is None else "the predictions in evaluation differ"

    def _trial(self, round_: int) -> tuple[Trial, TrialResult]:
        """Return the trial with the batches of a round, and the results of `sequential`."""
        if round_ not in self.trials:
            start, p = self.plain.initial.copy(), self.plain.num_trainable
            start[:p] += NOISE * generator(0, "examination", round_).standard_normal(p, np.float32)
            with self._as_examined():
                one_step = _train_without_memory(self.plain, start, SINGLE_STEP_CLIENTS, round_, 1.0).update
                moved = np.abs(one_step[:, :p]).max()
                unit = float(np.abs(start[:p]).max() / moved) if 0 < moved < np.inf else 1.0
                rates = GENTLE * unit, STEEP * unit
                model = start + one_step[0]
                model[:p] = start[:p] + rates[0] * one_step[0, :p]
                trial = Trial(round_, start, *rates, model)
                self.trials[round_] = trial, self._compute(self.plain, trial)
        return self.trials[round_]

    @contextmanager
    def _as_examined(self) -> Iterator[None]:
        """Preserve the states of random generators, turn dropout off, and use float32 on a GPU inside the block."""
        cudnn = torch.backends.cudnn
        allowed = cudnn.allow_tf32
        cudnn.allow_tf32 = False
        # `without_dropout` has already turned off the dropout layers.
        functions: Any = NoDropout() if self.plain.trainer.draws else nullcontext()
        try:
            with preserve_generators(self.plain.trainer.device), functions:
                yield
        finally:
            cudnn.allow_tf32 = allowed

    def _compute(self, engine: TorchEngine, trial: Trial) -> TrialResult:
        index, start = np.arange(sum(SIZES)), trial.broadcast
        gentle = _train_without_memory(engine, start, np.arange(len(SIZES)), trial.round_, trial.gentle)
        steep = _train_without_memory(engine, start, SINGLE_STEP_CLIENTS, trial.round_, trial.steep).update.copy()
        right, evaluated = engine.predict(trial.trained, "train", index)
        outputs = engine.logits(trial.trained, "test", index)
        answers: dict[str, AnyArray] = {
            "the loss in training": gentle.loss,
            OUTPUT: outputs,
            "the loss in evaluation": evaluated.copy(),
        }
        return TrialResult((steep, gentle.update.copy()), answers, right.copy())

    def _update_difference(self, updates: Float32s, expected: Float32s, broadcast: Float32s) -> str | None:
        """Return the first tensor of the model whose update differs, in words; None if all agree."""
        layout, end = self.plain.layout, 0
        p = layout.num_trainable
        for name, shape in zip(layout.names, layout.shapes, strict=True):
            part, section = slice(end, end := end + shape.numel()), slice(None, p) if end <= p else slice(p, None)
            rounding = FLOOR * _largest(expected[:, section]) + 4 * EPSILON * _largest(broadcast[part])
            if (share := _share_off(updates[:, part], expected[:, part], rounding)) is not None:
                return f"the update of {name} differs by {share}"
        return None


def _share_off(numbers: AnyArray, expected: AnyArray, rounding: float) -> str | None:
    """Return the error relative to the largest expected number, as text; None if rounding explains the error."""
    if not numbers.size:
        return None
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(numbers)):
        return "infinite or NaN values"
    difference = _largest(numbers[finite].astype(np.float64) - expected[finite])
    largest = _largest(expected[finite])
    if difference <= TOLERANCE * largest + rounding:
        return None
    return f"{difference / largest:.1%}" if difference < 100 * largest else f"{difference:.1e} from an expected 0"


def _largest(numbers: AnyArray) -> float:
    return float(np.abs(numbers).max(initial=0.0))


def _train_without_memory(engine: TorchEngine, start: Float32s, ids: Ints, round_: int, lr: float) -> LocalUpdates:
    """Return the updates of clients whose solver state is zero."""
    terms: Mapping[str, Float32s] = {}
    if engine.solver.is_stateful:
        nothing = np.zeros((len(ids), engine.num_trainable), np.float32)
        terms = engine.solver.prepare(nothing, {}, np.ones(len(ids)))
    return engine.train(start, ids, round_, lr, terms)


def trial_of(task: Task) -> Task:
    """Return the task with a few examples of its participants, plain gradient steps, and no dropout."""
    d, labels, train = task.data.dataset, task.data.labels, task.data.train
    owned, _ = train.of(task.data.population.participants)
    owned = owned if len(owned) else np.arange(len(labels))  # on a client that only evaluates
    chosen = owned[np.linspace(0, len(owned) - 1, sum(SIZES)).astype(np.int64)]  # repeats some if there are few
    x, y = np.asarray(d.train_x[chosen]), np.asarray(labels[chosen])
    every, ids = np.arange(len(chosen)), np.arange(len(SIZES))
    offsets = np.concatenate([[0], np.cumsum(SIZES)])
    data = FederatedData(
        replace(d, train_x=x, train_y=y, test_x=x, test_y=y, owners=None, owner_names=(), loaded=None),
        y,
        Partition(every, offsets, "examination"),
        Population(ids, ids[:0]),
        ClientIndex.of_sizes(every, np.array(SIZES)),
        ClientIndex.of_sizes(every[:0], 0 * ids),
        None,
    )
    steps = replace(task.local, epochs=1, steps=None, batch_size=BATCH, drop_last=False, optimizer=None)
    return replace(task, module=without_dropout(task.module), data=data, local=steps, seed=0)


def batch_sizes(task: Task) -> list[int]:
    """Return up to 4 of a task's batch sizes, at least 2 each, including the smallest and the largest."""
    examples, batch_size = task.data.train.sizes[task.data.population.participants], task.local.batch_size
    sizes = np.unique(np.concatenate([np.minimum(examples, batch_size), examples % batch_size, [2]]))
    sizes = sizes[sizes > 1]
    return list(map(int, np.unique(sizes[np.linspace(0, len(sizes) - 1, NUM_BATCH_SIZES).astype(np.int64)])))
