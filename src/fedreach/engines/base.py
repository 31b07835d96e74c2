"""What all engines share: the data on the device, and running a given model over samples."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from queue import SimpleQueue
from types import MappingProxyType
from typing import NamedTuple, Self, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreach.arrays import Bools, Float32s, Floats, Ints
from fedreach.data.federated import FederatedData
from fedreach.engines.batches import batch_plan
from fedreach.errors import ConfigError
from fedreach.federation.solvers import LocalSGD, LocalSolver
from fedreach.federation.values import LocalOutputs
from fedreach.models.flat import Layout, bind, flatten
from fedreach.streams import torch_seed

EVALUATION_BATCH = 256
T = TypeVar("T")
Terms = dict[str, Tensor]
"""What a solver with memory prepared for the clients of a cohort: (k, p) vectors, or (k, 1) numbers."""


class Trained(NamedTuple):
    """What local training returns, rows in the order of the ids that were asked for."""

    update: Float32s  # (k, d) local - broadcast
    loss: Floats  # (k,) mean training loss over all examples of all local steps
    steps: Ints  # (k,) local steps that each client ran
    trainable: int | None = None  # p: the first p of the d numbers are trained, the rest are buffers; None: all d


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


@contextmanager
def _single_threaded_kernels() -> Iterator[None]:
    """Let torch use one thread a kernel for a while: on several it rounds otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Engine(ABC):
    """Trains cohorts and evaluates models on one federation.

    A cohort is cut into groups of clients that are trained together. On a CPU, `threads` groups are trained at a
    time, each with single-threaded kernels: small steps do not keep several cores busy, and what threads wait for each
    other is lost. As the groups do not depend on the number of threads, neither does any result, bit for bit.

    Args:
        module: The model; its present numbers are the initial parameters. It is copied.
        data: The federation.
        solver: Correction of the local gradient.
        local: Local SGD.
        seed: Seed of the batch order.
        device: Where tensors live, such as ``"cpu"`` or ``"cuda"``.
        threads: Groups at a time; one on a GPU, and for models that draw random numbers in training, since all
            threads share torch's generator.
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
    ) -> None:
        self.device = checked_device(device)
        self.module = copy.deepcopy(module).to(self.device)
        self.layout = Layout.of(self.module)
        self.data, self.solver, self.local, self.seed = data, solver, local, seed
        d = data.dataset
        self.train_samples = Samples(d.train_x, data.labels, d.kind, d.mean, d.std, self.device)
        self.true_samples = self.train_samples.relabelled(d.train_y)  # without label noise, for evaluation
        self.test_samples = Samples(d.test_x, d.test_y, d.kind, d.mean, d.std, self.device)
        given = data.server
        self.server_samples = None if given is None else Samples(given.x, given.y, d.kind, d.mean, d.std, self.device)
        self.initial: Float32s = flatten(self.module).cpu().numpy()
        self.draws = _draws(self.module, self.train_samples, d.num_classes)
        self.threads = 1 if self.draws or self.device.type != "cpu" else threads
        twins = [cast(Self, copy.copy(self)) for _ in range(self.threads)]
        # Only now: twins that referred to the queue they are in would keep the data in memory after the engine is gone.
        self._idle: SimpleQueue[Self] = SimpleQueue()
        for twin in twins:
            twin.module = copy.deepcopy(self.module)
            self._idle.put(twin)
        self._pool = ThreadPoolExecutor(self.threads, initializer=torch.set_num_threads, initargs=(1,))

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
        start = self.tensor(broadcast)
        update = torch.empty(len(ids), self.layout.size)
        loss, steps = np.empty(len(ids)), np.empty(len(ids), np.int64)
        tensors = {name: torch.from_numpy(np.array(rows, np.float32)) for name, rows in terms.items()}

        def train_group(engine: Self, group: Ints) -> None:
            loss[group], steps[group] = engine.train_group(start, ids, round_, rate, update, group, tensors)

        self._side_by_side(train_group, self.groups(ids))
        return Trained(update.numpy(), loss, steps, self.layout.num_trainable)

    def server_step(self, params: Float32s, index: Ints, round_: int, rate: float) -> Float32s:
        """Return the (d,) move of one gradient step on these examples of the server's data."""
        samples = self.server_samples
        assert samples is not None  # the simulation asks for it
        start = self.tensor(params)
        vector, gradient = start.clone(), torch.zeros(self.num_trainable, device=self.device)
        seed = torch_seed(self.seed, "server-dropout", round_) if self.draws else 0
        with _single_threaded_kernels(), seeded(seed, self.device) if self.draws else nullcontext():
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
        start = self.tensor(broadcast)

        def outputs_of(engine: Self, rows: Ints) -> LocalOutputs:
            row = int(rows[0])
            samples = self.data.train[int(ids[row])]
            index = torch.from_numpy(samples).to(self.device)

            def logits(vector: Tensor) -> Float32s:
                bind(engine.module, vector, layout=self.layout)
                engine.module.eval()
                parts = [out for out, _ in _logits(engine.module, self.train_samples, index)]
                return torch.cat(parts).cpu().numpy()

            after = logits(start + self.tensor(update[row]))
            labels = self.data.labels[samples]
            return LocalOutputs(after, labels, logits(start) if before else None)

        return self._side_by_side(outputs_of, list(np.arange(len(ids))[:, None]))

    def _side_by_side(self, work: Callable[[Self, Ints], T], parts: Sequence[Ints]) -> list[T]:
        """Do the work for each part, on a free engine of those that share the data."""

        def on_a_free_engine(part: Ints) -> T:
            engine = self._idle.get()
            try:
                return work(engine, part)
            finally:
                self._idle.put(engine)

        with _single_threaded_kernels():
            if self.threads == 1:
                return [on_a_free_engine(part) for part in parts]
            return list(self._pool.map(on_a_free_engine, parts))

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
        vector = self.tensor(params)

        def predict_part(engine: Self, part: Ints) -> tuple[Tensor, Tensor]:
            bind(engine.module, vector, layout=self.layout)
            engine.module.eval()
            return _predict(engine.module, samples, torch.from_numpy(part).to(self.device))

        # Batches are the same for every number of threads.
        batches = -(-len(index) // EVALUATION_BATCH)
        cuts = [EVALUATION_BATCH * (batches * i // self.threads) for i in range(1, self.threads)]
        parts = self._side_by_side(predict_part, np.split(index, cuts))
        right, loss = (torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))
        return right, loss

    def training_loss(self, params: Float32s, ids: Ints, parts: Sequence[Ints] | None = None) -> Floats:
        """Return each client's mean loss at the given parameters, as a probe asks for it.

        Over its training part, or over the samples that `parts` gives for each client.
        """
        parts = [self.data.train[int(client)] for client in ids] if parts is None else parts
        _, loss = self.predict(params, self.train_samples, np.concatenate(parts))
        starts = np.cumsum([0, *map(len, parts[:-1])])
        return np.add.reduceat(loss.astype(np.float64), starts) / [len(part) for part in parts]


@torch.no_grad()
def _predict(module: nn.Module, samples: Samples, index: Tensor) -> tuple[Tensor, Tensor]:
    right = torch.empty(len(index), dtype=torch.bool, device=index.device)
    loss = torch.empty(len(index), device=index.device)
    begin = 0
    for logits, y in _logits(module, samples, index):
        rows = slice(begin, begin := begin + len(y))
        right[rows] = logits.argmax(-1) == y
        loss[rows] = F.cross_entropy(logits, y, reduction="none")
    return right, loss


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
