"""What all engines share: the data on the device, and running a given model over samples."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import MappingProxyType
from typing import Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreach.arrays import Bools, Float32s, Floats, Ints
from fedreach.data.federated import FederatedData
from fedreach.engines.batches import batch_plan
from fedreach.engines.workers import Workers, most_workers
from fedreach.errors import ConfigError
from fedreach.federation.round import BLOCK, weighted_sum
from fedreach.federation.solvers import LocalSGD, LocalSolver
from fedreach.federation.values import LocalOutputs
from fedreach.models.flat import Layout, bind, flatten
from fedreach.streams import torch_seed

EVALUATION_BATCH = 256
EVALUATION_PART = 8 * EVALUATION_BATCH
"""Examples that one worker is asked about at a time."""
SAMPLES = ("train_samples", "true_samples", "test_samples", "server_samples")
Terms = dict[str, Tensor]
"""What a solver with memory prepared for the clients of a cohort: (k, p) vectors, or (k, 1) numbers."""


class Trained(NamedTuple):
    """What local training returns, rows in the order of the ids that were asked for."""

    update: Float32s  # (k, d) local - broadcast
    loss: Floats  # (k,) mean training loss over all examples of all local steps
    steps: Ints  # (k,) local steps that each client ran
    trainable: int | None = None  # p: the first p of the d numbers are trained, the rest are buffers; None: all d
    finite: Bools | None = None  # (k,) whether all numbers of an update are finite; None: nobody looked


class Samples:
    """Examples and labels on a device, in their compact type, made into model inputs batch by batch."""

    def __init__(
        self, x: Float32s, y: Ints, kind: str, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
    ) -> None:
        with warnings.catch_warnings():
            # Arrays of a memory map are read-only and torch says so; nothing here writes to them.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
            self.x = torch.from_numpy(np.ascontiguousarray(x)).to(device)
            self.y = torch.from_numpy(np.ascontiguousarray(y, dtype=np.int64)).to(device)
        self.kind = kind
        scale = 255.0 if self.x.dtype == torch.uint8 else 1.0
        shape = (-1, *([1] * (self.x.dim() - 2)))
        # (x / scale - mean) / std as one multiplication and one addition.
        self.factor = self.offset = None
        if kind != "tokens" and (mean or scale != 1.0):
            mean_, std_ = (torch.tensor(v or d, device=device).view(shape) for v, d in ((mean, (0.0,)), (std, (1.0,))))
            self.factor, self.offset = 1.0 / (scale * std_), -mean_ / std_

    def __len__(self) -> int:
        return len(self.y)

    def relabelled(self, y: Ints) -> Self:
        """Return the same examples with other labels; the examples are not copied."""
        other = copy.copy(self)
        other.y = torch.from_numpy(np.array(y, dtype=np.int64)).to(self.y.device)
        return other

    def batch_into(self, index: Tensor, x: Tensor) -> None:
        """Write the inputs for a (m,) index into `x` (m, *sample)."""
        if self.factor is None or self.offset is None:
            torch.index_select(self.x, 0, index, out=x)
        else:
            x.copy_(self.x.index_select(0, index))
            torch.addcmul(self.offset, x, self.factor, out=x)

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs (..., *sample) and labels (...) for an index of any shape (...)."""
        flat = index.reshape(-1)
        x = self.x.index_select(0, flat)
        if self.kind == "tokens":
            x = x.long()
        elif self.factor is not None and self.offset is not None:
            x = torch.addcmul(self.offset, x.float(), self.factor)
        return x.view(*index.shape, *self.x.shape[1:]), self.y.index_select(0, flat).view(index.shape)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generator for a while and put it back as it was."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


Precision = Literal["highest", "high", "medium"]


@contextmanager
def _kernels(precision: Precision = "highest") -> Iterator[None]:
    """Let torch use one thread a kernel for a while, as on several it rounds otherwise, and products this precise."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    chosen = precision != "highest"  # torch's default, which a user may have changed for all
    before = torch.get_float32_matmul_precision() if chosen else ""
    if chosen:
        torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if chosen:
            torch.set_float32_matmul_precision(before)


class Engine(ABC):
    """Trains cohorts and evaluates models on one federation.

    A cohort is cut into groups of clients that are trained together. On a CPU, `threads` groups are trained at a
    time, each by a process with single-threaded kernels, see `fedreach.engines.workers`: small steps do not keep
    several cores busy. Either groups do not depend on the number of threads, or what a client gives does not depend on
    its group: so no result does, bit for bit.

    Args:
        module: The model; its present numbers are the initial parameters. It is copied.
        data: The federation.
        solver: Correction of the local gradient.
        local: Local SGD.
        seed: Seed of the batch order.
        device: Where tensors live, such as ``"cpu"`` or ``"cuda"``.
        threads: Groups at a time; one on a GPU.
        precision: Of products of float32 matrices: ``"highest"`` is float32; ``"high"`` and ``"medium"`` let a
            processor that is faster at it use TF32 or bfloat16 inside, see `torch.set_float32_matmul_precision`.
    """

    name: str

    def __init__(
        self,
        module: nn.Module,
        data: FederatedData,
        solver: LocalSolver,
        local: LocalSGD,
        seed: int,
        device: str = "cpu",
        threads: int = 1,
        precision: Precision = "highest",
    ) -> None:
        self.device = checked_device(device)
        self.module = copy.deepcopy(module).to(self.device)
        self.layout = Layout.of(self.module)
        self.data, self.solver, self.local, self.seed, self.precision = data, solver, local, seed, precision
        d = data.dataset
        self.train_samples = Samples(d.train_x, data.labels, d.kind, d.mean, d.std, self.device)
        self.true_samples = self.train_samples.relabelled(d.train_y)  # without label noise, for evaluation
        self.test_samples = Samples(d.test_x, d.test_y, d.kind, d.mean, d.std, self.device)
        given = data.server
        self.server_samples = None if given is None else Samples(given.x, given.y, d.kind, d.mean, d.std, self.device)
        self.initial: Float32s = flatten(self.module).cpu().numpy()
        self.draws = _draws(self.module, self.train_samples, d.num_classes)
        allowed = most_workers() if self.device.type == "cpu" else 1
        self.threads = threads if allowed is None else min(threads, allowed)
        self.workers = Workers(self, self.threads)
        self.at_a_time = self.threads  # groups that are trained at the same time, on all machines

    @property
    def num_trainable(self) -> int:
        """How many numbers of the flat vector are trained, p."""
        return self.layout.num_trainable

    @abstractmethod
    def groups(self, ids: Ints) -> list[Ints]:
        """Return the positions in `ids` of the clients that are trained together, those with most to do first."""

    @abstractmethod
    def train_group(
        self, start: Tensor, ids: Ints, round_: int, rate: float, update: Tensor, group: Ints, terms: Terms
    ) -> tuple[Floats | list[float], Ints | list[int]]:
        """Train the clients ``ids[group]`` from the (d,) `start`; return their mean training losses and steps.

        Their updates are written into the rows `group` of the (k, d) `update`, which lies on the CPU, as `terms` do.
        """

    def train(
        self,
        broadcast: Float32s,
        ids: Ints,
        round_: int,
        rate: float,
        terms: Mapping[str, Float32s] = MappingProxyType({}),
    ) -> Trained:
        """Train each client of `ids` from the `broadcast` (d,) vector with step size `rate`.

        `terms` is what the solver's `prepare` returned for these clients.
        """
        workers, groups = self.workers, self.groups(ids)
        update = workers.array((len(ids), self.layout.size), np.float32)
        loss, steps, finite = np.empty(len(ids)), np.empty(len(ids), np.int64), np.empty(len(ids), np.bool_)
        rows = {name: workers.copy(np.asarray(values, np.float32)) for name, values in terms.items()}
        start = workers.copy(np.asarray(broadcast, np.float32))
        with _kernels(self.precision):
            trained = workers.map("train_part", groups, start, ids, round_, rate, update, rows)
        for group, found in zip(groups, trained, strict=True):
            loss[group], steps[group], finite[group] = found
        return Trained(update, loss, steps, self.layout.num_trainable, finite)

    def train_part(
        self,
        group: Ints,
        start: Float32s,
        ids: Ints,
        round_: int,
        rate: float,
        update: Float32s,
        terms: Mapping[str, Float32s],
    ) -> tuple[Floats | list[float], Ints | list[int], Bools]:
        """Train a group of the cohort; return losses, steps, and whose updates are finite. See `train_group`."""
        tensors = {name: torch.from_numpy(rows) for name, rows in terms.items()}
        beginning = torch.from_numpy(start).to(self.device)
        losses, steps = self.train_group(beginning, ids, round_, rate, torch.from_numpy(update), group, tensors)
        return losses, steps, self.finite(update, group)  # while they are in the cache

    def finite(self, update: Float32s, group: Ints) -> Bools:
        """Return whether all numbers of these rows are finite."""
        return finite_rows(update[group])

    def add_up(self, weights: Floats, update: Float32s) -> Floats:
        """Return `fedreach.federation.round.weighted_sum`."""
        return weighted_sum(weights, update)

    def weighted_sum(self, weights: Floats, update: Float32s) -> Floats:
        """Return `fedreach.federation.round.weighted_sum`, of which each process takes some columns."""
        d = update.shape[1]
        if self.threads == 1 or d <= BLOCK or not self.workers.shares(update):
            return self.add_up(weights, update)
        total = self.workers.array((d,), np.float64)
        count = -(-d // (BLOCK * self.threads)) * self.threads  # as many for each process
        ends = [d * number // count for number in range(count + 1)]
        self.workers.map("weighted_part", list(map(slice, ends, ends[1:])), weights, update, total)
        return total

    def weighted_part(self, part: slice, weights: Floats, update: Float32s, total: Floats) -> None:
        """Write some columns of the weighted sum."""
        total[part] = self.add_up(weights, update[:, part])

    def server_step(self, params: Float32s, index: Ints, round_: int, rate: float) -> Float32s:
        """Return the (d,) move of one gradient step on these examples of the server's data."""
        samples = self.server_samples
        assert samples is not None  # the simulation asks for it
        start = self.tensor(params)
        vector, gradient = start.clone(), torch.zeros(self.num_trainable, device=self.device)
        seed = torch_seed(self.seed, "server-dropout", round_) if self.draws else 0
        with _kernels(self.precision), seeded(seed, self.device) if self.draws else nullcontext():
            bind(self.module, vector, gradient, layout=self.layout)
            self.module.train()
            x, y = samples.batch(torch.from_numpy(index).to(self.device))
            F.cross_entropy(self.module(x), y).backward()  # type: ignore[no-untyped-call]
        vector[: self.num_trainable].sub_(gradient, alpha=rate)
        return (vector - start).cpu().numpy()

    def outputs(self, broadcast: Float32s, update: Float32s, ids: Ints, *, before: bool) -> list[LocalOutputs]:
        """Return what the local models `broadcast + update` (k, d) say about their clients' training data.

        Args:
            broadcast: (d,) the model they started from.
            update: (k, d) what local training added.
            ids: (k,) the clients.
            before: Whether to add what the broadcast model says.
        """
        start = self.workers.copy(broadcast)
        moved = update if self.workers.shares(update) else self.workers.copy(update)
        with _kernels(self.precision):
            return self.workers.map("outputs_of", range(len(ids)), start, moved, ids, before)

    def outputs_of(self, row: int, broadcast: Float32s, update: Float32s, ids: Ints, before: bool) -> LocalOutputs:
        """Return what one local model says."""
        samples = self.data.train[int(ids[row])]
        index, start = torch.from_numpy(samples).to(self.device), self.tensor(broadcast)

        def logits(vector: Tensor) -> Float32s:
            bind(self.module, vector, layout=self.layout)
            self.module.eval()
            parts = [out for out, _ in _logits(self.module, self.train_samples, index)]
            return torch.cat(parts).cpu().numpy()

        after = logits(start + self.tensor(update[row]))
        return LocalOutputs(after, self.data.labels[samples], logits(start) if before else None)

    def tensor(self, vector: Float32s) -> Tensor:
        """Return a copy of a vector on the device."""
        return torch.from_numpy(np.array(vector, dtype=np.float32)).to(self.device)

    def plans(self, ids: Ints, round_: int) -> list[Ints]:
        """Return each client's (steps, batch) table of sample indices, -1 where a batch is not full."""
        plans = []
        for client in map(int, ids):
            samples = self.data.train[client]
            positions = batch_plan(self.seed, round_, client, len(samples), self.local)
            plans.append(np.where(positions >= 0, samples[positions], -1))
        return plans

    def predict(self, params: Float32s, samples: Samples, index: Ints) -> tuple[Bools, Float32s]:
        """Return, for each sample of `index`, whether the model is right and its loss in nats."""
        workers, m = self.workers, len(index)
        right, loss = workers.array((m,), np.bool_), workers.array((m,), np.float32)
        parts = [slice(begin, begin + EVALUATION_PART) for begin in range(0, m, EVALUATION_PART)]
        given = next((name for name in SAMPLES if getattr(self, name) is samples), samples)
        with _kernels(self.precision):
            arguments = workers.copy(np.asarray(params, np.float32)), given, workers.copy(np.asarray(index, np.int64))
            workers.map("predict_part", parts, *arguments, right, loss)
        return right, loss

    def predict_part(
        self, part: slice, params: Float32s, samples: str | Samples, index: Ints, right: Bools, loss: Float32s
    ) -> None:
        """Write what the model says about a part of the samples; of its own, the name."""
        samples = getattr(self, samples) if isinstance(samples, str) else samples
        bind(self.module, self.tensor(params), layout=self.layout)
        self.module.eval()
        begin = part.start
        for logits, y in _logits(self.module, samples, torch.from_numpy(index[part]).to(self.device)):
            rows = slice(begin, begin := begin + len(y))
            right[rows] = (logits.argmax(-1) == y).cpu().numpy()
            loss[rows] = F.cross_entropy(logits, y, reduction="none").cpu().numpy()

    def training_loss(self, params: Float32s, ids: Ints, parts: Sequence[Ints] | None = None) -> Floats:
        """Return each client's mean loss at the given parameters, as a probe asks for it.

        Over its training part, or over the samples that `parts` gives for each client.
        """
        parts = [self.data.train[int(client)] for client in ids] if parts is None else parts
        _, loss = self.predict(params, self.train_samples, np.concatenate(parts))
        starts = np.cumsum([0, *map(len, parts[:-1])])
        return np.add.reduceat(loss.astype(np.float64), starts) / [len(part) for part in parts]


def finite_rows(update: Float32s) -> Bools:
    """Return (k,) whether all numbers of each row are finite.

    Example:
        >>> finite_rows(np.array([[1.0, 2.0], [np.nan, 0.0], [3e38, 3e38], [np.inf, -np.inf]], np.float32))
        array([ True, False,  True, False])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        # What is not finite stays so in a sum, which reads the rows once; a sum may overflow, though.
        finite: Bools = np.isfinite(update.sum(axis=1))
    for row in np.flatnonzero(~finite):
        finite[row] = np.isfinite(update[row]).all()
    return finite


def _logits(module: nn.Module, samples: Samples, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the model's answers and the labels, batch by batch."""
    for part in torch.split(index, EVALUATION_BATCH):
        x, y = samples.batch(part)
        with torch.no_grad():  # not around the loop: between two batches the caller goes on
            logits = module(x)
        yield logits, y


def _draws(module: nn.Module, samples: Samples, num_classes: int) -> bool:
    """Return whether the model draws random numbers in training, as dropout does, after a trial on two examples.

    Raises:
        ConfigError: If the model does not accept such examples or does not return one number per class.
    """
    trial = copy.deepcopy(module).train()
    x, _ = samples.batch(torch.tensor([0, min(1, len(samples) - 1)], device=samples.y.device))
    name = type(module).__name__
    with torch.no_grad(), torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
        before = _random_state(x.device)
        try:
            logits = trial(x)
        except Exception as error:
            raise ConfigError(
                f"The model {name} does not take this data, two examples of shape {tuple(x.shape[1:])} and type "
                f"{x.dtype}: {error}"
            ) from error
        drew = not torch.equal(before, _random_state(x.device))
    if not isinstance(logits, Tensor) or logits.shape != (2, num_classes):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ConfigError(
            f"The model {name} must return {num_classes} numbers an example, (2, {num_classes}); got {got}."
        )
    return drew


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def checked_device(device: str) -> torch.device:
    """Return the torch device, or say why it cannot be used."""
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"engine.device must be a torch device such as 'cpu' or 'cuda:0'; got {device!r}.") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"engine.device is {device!r}, but this torch sees no CUDA device. Use 'cpu'.")
    return chosen
