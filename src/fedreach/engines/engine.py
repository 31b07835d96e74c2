"""What all engines share: the data on the device, and running a given model over samples."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreach.arrays import Bools, Float32s, Floats, Ints
from fedreach.data.federated import FederatedData
from fedreach.engines.batches import batch_plan
from fedreach.engines.parallel.processes import Workers, most_workers
from fedreach.engines.protocols import SAMPLES, Precision, Terms
from fedreach.engines.samples import Samples, checked_device, seeded
from fedreach.errors import ConfigError
from fedreach.federation.aggregation.mean import BLOCK, finite_rows, weighted_sum
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.protocols import LocalSolver
from fedreach.federation.values import LocalOutputs, LocalUpdates
from fedreach.models.flat import Layout, bind, flatten
from fedreach.streams import torch_seed

EVALUATION_BATCH = 256
EVALUATION_PART = 8 * EVALUATION_BATCH
"""Examples that one worker is asked about at a time."""


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
    time, each by a process with single-threaded kernels, see `fedreach.engines.parallel.processes`: small steps do
    not keep several cores busy. Either groups do not depend on the number of threads, or what a client gives does not
    depend on its group: so no result does, bit for bit.

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
    ) -> LocalUpdates:
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
        return LocalUpdates(update, loss, steps, self.layout.num_trainable, finite)

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
        """Return `fedreach.federation.aggregation.mean.weighted_sum`."""
        return weighted_sum(weights, update)

    def weighted_sum(self, weights: Floats, update: Float32s) -> Floats:
        """Return `fedreach.federation.aggregation.mean.weighted_sum`, of which each process takes some columns."""
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
