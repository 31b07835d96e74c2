"""Engine that trains groups of clients in parallel processes on one machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import DTypeLike

from fedreach._util.arrays import BLOCK, AnyArray, Bools, Float32s, Floats, Ints, finite_rows
from fedreach._util.errors import ConfigError
from fedreach.data.several import IGNORED, position_counts
from fedreach.engines.batches import checked_device
from fedreach.engines.models.draws import seed_of, seeded_generators
from fedreach.engines.models.state import numbers_note
from fedreach.engines.processes import Workers, max_processes
from fedreach.engines.protocols import NO_TERMS, Engine, Precision, Split, Task
from fedreach.engines.trainer import EVALUATION_BATCH, Group, GroupTrainer
from fedreach.federation.types import LocalOutputs, LocalUpdates, Outputs

EVALUATION_PART = 8 * EVALUATION_BATCH
"""Number of examples that a process evaluates at once."""
MAX_THREADS = 1024  # each thread is a process, so a larger number is probably a mistake


class TorchEngine(Engine):
    """Engine that trains cohorts and evaluates models of one federation.

    The engine divides a cohort into groups of clients. On a CPU, `threads` processes train one group each (see
    `fedreach.engines.processes`). The kernels of these processes use one thread, because a small step cannot use
    several cores. The number of threads does not change any result.

    Args:
        trainer: Class that trains a group: a value of `fedreach.engines.choice.ENGINES`, or a custom class.
        task: Model, data and local training.
        device: Device for tensors, such as ``"cpu"`` or ``"cuda"``.
        threads: Number of groups that are trained in parallel, from 1 to 1024. On a GPU, the number is always 1.
        precision: Precision of float32 matrix products. ``"highest"`` is float32. ``"high"`` and ``"medium"`` allow
            TF32 or bfloat16 on processors that are faster with it (see `torch.set_float32_matmul_precision`).

    Raises:
        ConfigError: If the trainer does not support this task, or the model does not accept the data.
    """

    def __init__(
        self,
        trainer: Callable[[Task, torch.device], GroupTrainer],
        task: Task,
        device: str = "cpu",
        threads: int = 1,
        precision: Precision = "highest",
    ) -> None:
        if threads > MAX_THREADS:
            raise ConfigError(f"engine.threads must be at most {MAX_THREADS}; got {threads}. Lower it.")
        self.task, self.precision = task, precision
        self.solver, self.local = task.solver, task.local
        self.trainer = group_trainer = trainer(task, checked_device(device))
        self.name, self.layout, self.initial = group_trainer.name, group_trainer.layout, group_trainer.initial
        self.num_trainable = group_trainer.layout.num_trainable
        allowed = max_processes() if group_trainer.device.type == "cpu" else 1
        self.threads = threads if allowed is None else min(threads, allowed)
        self.workers = Workers(group_trainer, self.threads)

    def train(
        self, broadcast: Float32s, ids: Ints, round_: int, lr: float, terms: Mapping[str, Float32s] = NO_TERMS
    ) -> LocalUpdates:
        return self.train_groups(broadcast, ids, self.groups(ids), round_, lr, terms)

    @property
    def note(self) -> str:
        return "\n".join(filter(None, [numbers_note(self.task.module), self.trainer.behavior.note]))

    @property
    def constants(self) -> Mapping[str, AnyArray]:
        return self.trainer.constants

    def start_from(self, constants: Mapping[str, AnyArray]) -> None:
        self.trainer.start_from(constants)
        self.workers.end()  # the other processes have a copy of the old trainer

    def groups(self, ids: Ints, ranks: int = 1) -> list[Ints]:
        """Return the groups of a cohort, as positions in `ids`, for training by `ranks` engines like this one."""
        return self.trainer.groups(ids, self.threads * ranks)

    def train_groups(
        self,
        broadcast: Float32s,
        ids: Ints,
        groups: Sequence[Ints],
        round_: int,
        lr: float,
        terms: Mapping[str, Float32s],
    ) -> LocalUpdates:
        """Train the clients of the given groups, which contain each position in `ids` once."""
        workers = self.workers
        update = workers.array((len(ids), self.layout.size), np.float32)
        loss, steps, finite = np.empty(len(ids)), np.empty(len(ids), np.int64), np.empty(len(ids), np.bool_)
        rows = {name: workers.copy(np.asarray(values, np.float32)) for name, values in terms.items()}
        start = workers.copy(np.asarray(broadcast, np.float32))
        with _kernels(self.precision):
            trained = workers.map(_train_part, groups, start, ids, round_, lr, update, rows)
        for group, outcome in zip(groups, trained, strict=True):
            loss[group], steps[group], finite[group] = outcome
        return LocalUpdates(update, loss, steps, self.num_trainable, finite)

    def weighted_sum(self, weights: Floats, update: Float32s) -> Floats:
        d = update.shape[1]
        if self.threads == 1 or d <= BLOCK or not self.workers.shares(update):
            return self.trainer.add_up(weights, update)
        total = self.workers.array((d,), np.float64)  # each process sums some columns
        count = -(-d // (BLOCK * self.threads)) * self.threads  # the same number for each process
        ends = [d * number // count for number in range(count + 1)]
        self.workers.map(_add_up_part, list(map(slice, ends, ends[1:])), weights, update, total)
        return total

    def server_step(self, params: Float32s, index: Ints, round_: int, lr: float, step: int = 0) -> Float32s:
        with _kernels(self.precision):
            return self.trainer.server_step(params, index, round_, lr, step)

    def distill_step(self, params: Float32s, index: Ints, teacher: Float32s, lr: float) -> Float32s:
        with _kernels(self.precision):
            return self.trainer.distill_step(params, index, teacher, lr)

    def outputs(self, broadcast: Float32s, update: Float32s, ids: Ints, *, before: bool) -> list[LocalOutputs]:
        start = self.workers.copy(broadcast)
        moved = update if self.workers.shares(update) else self.workers.copy(update)
        with _kernels(self.precision):
            return self.workers.map(GroupTrainer.outputs_of, range(len(ids)), start, moved, ids, before)

    def predict(self, params: Float32s, split: Split, index: Ints) -> tuple[Bools | Float32s, Float32s]:
        d = self.task.data.dataset
        kind = np.bool_ if d.example_classes else np.float64 if d.positions else np.float32
        losses = np.float64 if d.positions else np.float32
        right, loss = self._new_array((len(index),), kind), self._new_array((len(index),), losses)
        self._evaluate(type(self.trainer).predict_part, params, split, index, right, loss)
        return right, loss

    def logits(self, params: Float32s, split: Split, index: Ints) -> Float32s:
        in_units = self.trainer.scale is not None  # in float64, as in the predictions of a saved model
        d = self.task.data.dataset
        shape = len(index), *d.positions, d.outputs
        out = self._new_array(shape, np.float64 if in_units else np.float32)
        self._evaluate(GroupTrainer.logits_part, params, split, index, out)
        return out

    def answers(self, params: Float32s, split: Split, index: Ints, *, inputs: bool) -> Outputs:
        with _kernels(self.precision):
            return self.trainer.answers(params, split, index, inputs=inputs)

    def _new_array(self, shape: tuple[int, ...], dtype: DTypeLike) -> AnyArray:
        """Return an array for the results of an evaluation, in shared memory if several processes evaluate."""
        alone = shape[0] <= EVALUATION_PART and not self.trainer.behavior.mixes
        return np.empty(shape, dtype) if alone else self.workers.array(shape, dtype)

    def _evaluate(
        self, work: Callable[..., None], params: Float32s, split: Split, index: Ints, *results: AnyArray
    ) -> None:
        """Evaluate the examples of `index` in all processes, which write into `results`."""
        if split not in self.trainer.samples:
            splits = ", ".join(map(repr, self.trainer.samples))
            raise ConfigError(f"split must be one of {splits} for this federation; got {split!r}.")
        parts = [slice(begin, begin + EVALUATION_PART) for begin in range(0, len(index), EVALUATION_PART)]
        if self.trainer.behavior.mixes:
            parts = self.trainer.alone(split, index)
        vector, rows = np.array(params, np.float32), np.array(index, np.int64)
        if len(parts) > 1:
            vector, rows = self.workers.copy(vector), self.workers.copy(rows)
        with _kernels(self.precision):
            self.workers.map(work, parts, vector, split, rows, *results)

    def training_loss(self, params: Float32s, ids: Ints, parts: Sequence[Ints] | None = None) -> Floats:
        trainer = self.trainer
        index, sizes = trainer.data.train.of(ids)
        if parts is not None:
            index, sizes = np.concatenate(parts), np.array([len(part) for part in parts])
        counts = position_counts(trainer.data.labels[index]) if trainer.data.dataset.positions else None
        shifts, loss = trainer.shifts_of(ids), trainer.loss
        if (loss.cross_entropy or loss.squared_error) and shifts is None:  # `predict` computes the same loss
            return means(self.predict(params, "train", index)[1], sizes, counts)
        logits, targets = self.logits(params, "train", index), trainer.data.labels[index]
        if trainer.scale is not None:
            logits, targets = trainer.scale_targets(logits), trainer.scale_targets(targets)
        if shifts is not None:
            shifts = shifts.cpu().repeat_interleave(torch.from_numpy(sizes), 0)
        if counts is not None:  # one loss per labeled position
            logits, targets = logits[targets != IGNORED], targets[targets != IGNORED]
            sizes = np.add.reduceat(counts, np.cumsum(sizes) - sizes)
        outputs, answers = torch.from_numpy(logits), torch.from_numpy(targets)
        losses, ends = [], np.cumsum(sizes).tolist() if trainer.draws else [len(outputs)]
        for begin, end in pairwise([0, *ends]):  # client by client if the loss draws random numbers
            rows = slice(begin, end)
            with seeded_generators(seed_of(outputs[rows])) if trainer.draws else nullcontext():
                row_shifts = None if shifts is None else shifts[rows]
                losses.append(trainer.losses(outputs[rows], answers[rows], row_shifts).numpy())
        return means(np.concatenate(losses), sizes)


def means(loss: Float32s | Floats, sizes: Ints, counts: Ints | None = None) -> Floats:
    """Return the (k,) mean losses of k consecutive parts.

    Args:
        loss: (m,) losses.
        sizes: (k,) number of losses in each part.
        counts: (m,) weights of the losses, such as numbers of labeled positions. None: equal weights.

    Example:
        >>> means(np.array([1.0, 3.0, 5.0], np.float32), np.array([2, 1]))
        array([2., 5.])
    """
    if counts is not None:
        starts = np.cumsum(sizes) - sizes
        weighted: Floats = np.add.reduceat(loss * counts, starts) / np.add.reduceat(counts, starts)
        return weighted
    return np.add.reduceat(loss.astype(np.float64), np.cumsum(sizes) - sizes) / sizes


def _train_part(
    trainer: GroupTrainer,
    group: Ints,
    start: Float32s,
    ids: Ints,
    round_: int,
    lr: float,
    update: Float32s,
    terms: Mapping[str, Float32s],
) -> Group:
    tensors = {name: torch.from_numpy(rows) for name, rows in terms.items()}
    beginning = torch.from_numpy(start).to(trainer.device)
    arguments = beginning, ids, round_, lr, torch.from_numpy(update), group, tensors
    losses, steps, finite = trainer.train_group(*arguments)
    return losses, steps, finite_rows(update[group]) if finite is None else finite  # while they are in the cache


def _add_up_part(trainer: GroupTrainer, part: slice, weights: Floats, update: Float32s, total: Floats) -> None:
    total[part] = trainer.add_up(weights, update[:, part])


@contextmanager
def _kernels(precision: Precision = "highest") -> Iterator[None]:
    """Use one thread per kernel and this precision inside the block; torch rounds differently on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    if precision != "highest":  # "highest" is torch's default; a global setting of the user stays
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if precision != "highest":
            torch.set_float32_matmul_precision(before)
