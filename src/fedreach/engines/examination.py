"""Examination of an engine before it is used: does it compute this model?"""

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
from fedreach.engines.observation import REMEMBERS, hidden_behaviour
from fedreach.engines.protocols import Task
from fedreach.engines.sequential import Sequential
from fedreach.engines.trainer import GroupTrainer, only_sequential
from fedreach.federation.types import LocalUpdates

# --- A model without dropout, to compare engines: dropout masks differ between engines by design

DROPOUTS: set[Any] = {
    getattr(place, name)
    for place in (F, torch)
    for name in dir(place)
    if "dropout" in name and not name.startswith(("_", "native"))  # these also return masks
}
# Functions that also apply dropout, and the position of `dropout_p` in their arguments. The mode below does not see the
# functions that they call.
ATTENTION: dict[Any, int] = {F.scaled_dot_product_attention: 4, F.multi_head_attention_forward: 10}


class NoDropout(TorchFunctionMode):
    """Makes functions such as `F.dropout` drop nothing inside a block.

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
    """Return a copy whose layers drop nothing. Use `NoDropout` for functions in `forward`.

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


# --- Compare an engine with the plain engine on a few batches before it is used
# An engine may follow a graph of the model, or run the model under `torch.func`. Then it may train something else than
# the model's code: a body under `torch.no_grad()`, a custom gradient, another branch. The comparison covers the updates
# of three clients of unequal size, whose last batches are not full, their losses, running statistics, and outputs and
# losses in evaluation. Dropout is off.
#
# **Rounding.** Engines sum float32 numbers in different orders. The error of a sum of a few thousand products is about
# 1e-6 of the largest number of its tensor, and about 1e-4 where batch normalization over a few values magnifies it.
# `TOLERANCE` is above both, and far below 1%, the size of a real fault. Gradients that are zero up to rounding, such as
# that of a bias before a BatchNorm layer, are compared on the scale of the whole gradient (`FLOOR`). In one batch of
# many, rounding may push a number over the kink of a ReLU and change a gradient by more. So an engine that differs is
# tried again on other batches, and passes if it is right on two of three.

SIZES = (13, 8, 5)  # examples of the clients
BATCH = 8
TOLERANCE = 1e-3  # of the largest number of a tensor
FLOOR = 1e-6  # of the largest number of the whole update
EPSILON = 2.0**-23  # of float32
NOISE = 0.02  # added to the initial parameters, as layers that start at zero hide their gradients
GENTLE, STEEP = 0.01, 1000.0  # largest step, relative to the largest parameter
NUM_BATCH_SIZES = 4  # number of batch sizes
OUTPUT = "the output in evaluation"
SINGLE_STEP_CLIENTS = np.array([1, 2])  # clients that take a single step


class TrialResult(NamedTuple):
    """Results of an engine in a trial with k clients and m examples."""

    updates: tuple[Float32s, Float32s]
    """(k - 1, d) updates by one step so large that it is the gradient, to rounding, and (k, d) updates by small
    steps."""
    answers: dict[str, AnyArray]  # in words: (k,) training losses, and (m, c) outputs and (m,) losses in evaluation
    right: AnyArray  # (m,) whether the class is right, or the error of the number


class Trial(NamedTuple):
    """Start and step sizes of a trial."""

    round_: int  # round of the batches
    broadcast: Float32s  # (d,) start
    gentle: float  # step sizes
    steep: float
    trained: Float32s  # (d,) model that is evaluated


class Examination:
    """Compares engines with the plain engine on a few examples of a task.

    Args:
        task: Model, data and local training.
        device: Device of tensors.

    Raises:
        ConfigError: If the model does not take the data.
    """

    def __init__(self, task: Task, device: str = "cpu") -> None:
        self.device, self.task = device, trial_of(task)
        self.sizes = batch_sizes(task)
        self.trials: dict[int, tuple[Trial, TrialResult]] = {}  # round -> trial and results of the plain engine
        self.plain = TorchEngine(Sequential, self.task, device)

    @cached_property
    def only_plain(self) -> str | None:
        """Why only the plain engine may train the model, in words. None if others may."""
        if (why := only_sequential(self.task)) is not None:
            return why
        trainer, m = self.plain.trainer, sum(SIZES)
        sizes = [BATCH, *self.sizes]
        parts = torch.split(torch.arange(sum(sizes), device=trainer.device) % m, sizes)
        batches = [trainer.samples["train"].batch(part) for part in parts]
        try:
            with self._as_examined():
                why = hidden_behaviour(copy_module(trainer.module), batches, trainer.losses)
            if why is None and trainer.behaviour.remembers:
                why = REMEMBERS
            if why is None:
                self._trial(1)
        except Exception as error:  # the user's code may raise anything
            why = f"the model fails on a few examples ({type(error).__name__}: {str(error).splitlines()[0]:.100})"
        return why

    def difference(self, kind: type[GroupTrainer]) -> str | None:
        """Return how an engine differs from torch, in words, or None if it agrees.

        Raises:
            ConfigError: If the engine cannot train the model.
            TrainingError: If the engine fails while it trains.
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
                return f"{what} is off by {share}"
        right, right_of_torch = computed.right.astype(np.float64), expected.right.astype(np.float64)
        outputs = expected.answers[OUTPUT]
        if computed.right.dtype == np.bool_ and outputs.shape[1] > 1:  # of two likely classes, rounding decides
            low, high = np.partition(outputs, -2, axis=1)[:, -2:].T
            clear = ~(high - low <= 2 * TOLERANCE * _largest(outputs))
            right, right_of_torch = right[clear], right_of_torch[clear]
        return None if _share_off(right, right_of_torch, 0.0) is None else "other answers are right in evaluation"

    def _trial(self, round_: int) -> tuple[Trial, TrialResult]:
        """Return the trial with the batches of a round, and the correct results."""
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
        """Preserve the state of random generators, turn dropout off, and let a GPU compute in float32."""
        cudnn = torch.backends.cudnn
        allowed = cudnn.allow_tf32
        cudnn.allow_tf32 = False
        # Dropout of the task's layers is off already.
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
        """Return the first tensor of the model whose update differs, in words, or None."""
        layout, end = self.plain.layout, 0
        p = layout.num_trainable
        for name, shape in zip(layout.names, layout.shapes, strict=True):
            part, section = slice(end, end := end + shape.numel()), slice(None, p) if end <= p else slice(p, None)
            rounding = FLOOR * _largest(expected[:, section]) + 4 * EPSILON * _largest(broadcast[part])
            if (share := _share_off(updates[:, part], expected[:, part], rounding)) is not None:
                return f"{name} moves otherwise in training, off by {share}"
        return None


def _share_off(numbers: AnyArray, expected: AnyArray, rounding: float) -> str | None:
    """Return the error of numbers relative to the largest expected number, or None if it is rounding."""
    if not numbers.size:
        return None
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(numbers)):
        return "numbers that are not finite"
    difference = _largest(numbers[finite].astype(np.float64) - expected[finite])
    largest = _largest(expected[finite])
    if difference <= TOLERANCE * largest + rounding:
        return None
    return (
        f"{difference / largest:.1%}"
        if difference < 100 * largest
        else f"{difference:.1e} where there should be nothing"
    )


def _largest(numbers: AnyArray) -> float:
    return float(np.abs(numbers).max(initial=0.0))


def _train_without_memory(engine: TorchEngine, start: Float32s, ids: Ints, round_: int, lr: float) -> LocalUpdates:
    """Return the updates of clients without memory."""
    terms: Mapping[str, Float32s] = {}
    if engine.solver.is_stateful:
        nothing = np.zeros((len(ids), engine.num_trainable), np.float32)
        terms = engine.solver.prepare(nothing, {}, np.ones(len(ids)))
    return engine.train(start, ids, round_, lr, terms)


def trial_of(task: Task) -> Task:
    """Return the task on a few examples of its participants, with plain steps and without dropout."""
    d, labels, train = task.data.dataset, task.data.labels, task.data.train
    owned, _ = train.of(task.data.population.participants)
    owned = owned if len(owned) else np.arange(len(labels))  # a client that only evaluates
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
    """Return some of the batch sizes of a task, at least 2, including the smallest and the largest."""
    examples, batch_size = task.data.train.sizes[task.data.population.participants], task.local.batch_size
    sizes = np.unique(np.concatenate([np.minimum(examples, batch_size), examples % batch_size, [2]]))
    sizes = sizes[sizes > 1]
    return list(map(int, np.unique(sizes[np.linspace(0, len(sizes) - 1, NUM_BATCH_SIZES).astype(np.int64)])))
