"""The engine for models of dense layers: a client's whole training is one call of C.

The smaller a step, the more of its time goes into calling the dozen kernels that it consists of. Here nothing is
called: products, losses and moves of one client follow each other in the processor's cache, where its weights stay from
its first step to its last. `sequential` is the plain twin, and tests hold the two equal.
"""

from __future__ import annotations

import ctypes
import zlib
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedreach.arrays import Bools, Float32s, Floats, Ints
from fedreach.data.federated import FederatedData, Ranges
from fedreach.engines.base import SAMPLES, Engine, Samples, Terms
from fedreach.engines.batches import batch_plans
from fedreach.engines.chain import leaves_alone
from fedreach.engines.layers import Dense
from fedreach.engines.native.library import NoLibraryError, library
from fedreach.engines.recognition import NotAChainError, chain_of
from fedreach.errors import ConfigError, TrainingError
from fedreach.federation.protocols import is_affine
from fedreach.federation.solvers import LocalSGD, LocalSolver

MOST_LAYERS = 32
"""As `training.c` says."""
PRODUCTS = 40_000_000
"""Multiplications that are worth handing to another process, and"""
PRODUCTS_OF_A_CLIENT = 1_000_000
"""how many more a client costs, however little it trains."""
SHARE = 8
"""The next group has this part of what is left to do: large ones first, and small ones to end together."""


class Native(Engine):
    """Trains one client after the other, without torch."""

    name = "native"

    def __init__(
        self,
        module: nn.Module,
        data: FederatedData,
        solver: LocalSolver,
        local: LocalSGD,
        *others: Any,
        **options: Any,
    ) -> None:
        d = data.dataset
        try:
            layers = _dense_layers(module, d.train_x.shape[1:])
            self.library = library()
        except (NotAChainError, NoLibraryError) as error:
            raise ConfigError(
                "engine.name = 'native' needs a model of linear layers and ReLU, and a C compiler; for "
                f"{type(module).__name__}, {error}. Use 'auto'."
            ) from error
        if not is_affine(solver):
            raise ConfigError(
                "engine.name = 'native' needs a solver that says `affine = True`, see `LocalSolver`; "
                f"{type(solver).__name__} does not. Use 'auto'."
            )
        super().__init__(module, data, solver, local, *others, **options)
        own = {name: samples for name in SAMPLES if (samples := getattr(self, name)) is not None}
        for samples in own.values():
            if self.device.type != "cpu" or samples.x.dtype not in (torch.uint8, torch.float32):
                raise ConfigError(
                    "engine.name = 'native' needs examples of bytes or float32 in main memory; got "
                    f"{samples.x.dtype} on {self.device}. Use 'auto'."
                )
            low, high = samples.y.aminmax()
            if low < 0 or high >= d.num_classes:
                raise ConfigError(
                    f"Labels must be from 0 to {d.num_classes - 1}, as there are {d.num_classes} classes; got "
                    f"{int(low)} to {int(high)}."
                )
        self.uncorrected = leaves_alone(solver)
        self.table = _table(layers)
        self.samples = {name: _Samples.of(samples) for name, samples in own.items()}
        ranges = (data.train.order, data.train.offsets)
        self.ranges = Ranges(*(np.ascontiguousarray(numbers, np.int64) for numbers in ranges))
        self.memory = np.empty(0, np.float32)
        self.were_finite = np.empty(0, np.bool_)
        self.products = 3 * sum(layer.inputs * layer.outputs for layer in layers)  # of an example in a step

    def groups(self, ids: Ints) -> list[Ints]:
        """Return groups of clients that have enough to do, the largest clients first."""
        sizes, local = self.data.train.sizes[ids], self.local
        order = np.argsort(-sizes, kind="stable")
        examples = sizes * local.epochs if local.steps is None else np.minimum(sizes, local.batch_size) * local.steps
        done = np.cumsum((examples * self.products + PRODUCTS_OF_A_CLIENT)[order])
        ends = [0]
        while ends[-1] < len(ids):
            before = int(done[ends[-1] - 1]) if ends[-1] else 0
            work = max(PRODUCTS, (int(done[-1]) - before) // SHARE)
            ends.append(min(len(ids), int(np.searchsorted(done, before + work)) + 1))
        return [order[begin:end] for begin, end in pairwise(ends)]

    def train_group(
        self, start: Tensor, ids: Ints, round_: int, rate: float, update: Tensor, group: Ints, terms: Terms
    ) -> tuple[Floats, Ints]:
        """Train each client from the (d,) `start`."""
        clients, group = (np.ascontiguousarray(numbers, np.int64) for numbers in (ids[group], group))
        plans = self._plans(clients, round_)
        k, steps, batch = plans.shape
        pull, shift = (None, None) if self.uncorrected else self._correction(k, start, terms, group)
        local = self.local
        rule = _Rule(rate, local.momentum, local.weight_decay, local.clip_norm or 0.0, _at(pull), _at(shift))
        self.were_finite = np.empty(k, np.bool_)
        loss, examples, taken = np.empty(k), np.empty(k, np.int64), np.empty(k, np.int64)
        self.library.train(
            *self._layers(),
            ctypes.addressof(self.samples["train_samples"]),
            ctypes.addressof(rule),
            k,
            steps,
            batch,
            plans.ctypes.data,
            start.data_ptr(),
            self._memory_at(self.library.memory_numbers(*self._layers(), ctypes.addressof(rule), steps, batch)),
            update.shape[1],
            group.ctypes.data,
            update.data_ptr(),
            self.were_finite.ctypes.data,
            loss.ctypes.data,
            examples.ctypes.data,
            taken.ctypes.data,
        )
        return loss / examples, taken

    def finite(self, update: Float32s, group: Ints) -> Bools:
        """Return whether all numbers of these rows are finite."""
        return self.were_finite  # `train_group` has looked

    def add_up(self, weights: Floats, update: Float32s) -> Floats:
        """Return `fedreach.federation.round.weighted_sum`, to the same bits."""
        k, d = update.shape
        stride, step = update.strides
        if update.dtype != np.float32 or step != 4 or stride % 4:
            return super().add_up(weights, update)
        total, weights = np.empty(d), np.ascontiguousarray(weights, np.float64)
        if weights.shape != (k,):
            raise ValueError(f"There must be one weight for each of the {k} updates; got {weights.shape}.")
        self.library.add_up(k, d, weights.ctypes.data, update.ctypes.data, stride // 4, total.ctypes.data)
        return total

    def _plans(self, clients: Ints, round_: int) -> Ints:
        """Return what `batch_plans` returns."""
        local, train = self.local, self.ranges
        if not _draws_as_numpy_does():
            return batch_plans(self.seed, round_, clients, [train[int(client)] for client in clients], local)
        return batch_plans_in_c(self.seed, round_, clients, train, local)

    def predict_part(
        self, part: slice, params: Float32s, samples: str | Samples, index: Ints, right: Bools, loss: Float32s
    ) -> None:
        """Write what the model says about a part of the samples; of its own, the name."""
        if not isinstance(samples, str):  # made by somebody else, of whatever type
            super().predict_part(part, params, samples, index, right, loss)
            return
        some = index[part]
        self.library.predict(
            *self._layers(),
            ctypes.addressof(self.samples[samples]),
            len(some),
            some.ctypes.data,
            params.ctypes.data,
            self._memory_at(self.library.memory_for_predicting(*self._layers())),
            right[part].ctypes.data,
            loss[part].ctypes.data,
        )

    def _layers(self) -> tuple[int, int]:
        """Return how many layers there are, and where they are described."""
        return len(self.table), self.table.ctypes.data

    def _memory_at(self, size: int) -> int:
        """Return where working memory for so many numbers begins: with a line of the cache."""
        if len(self.memory) < size + 16:
            self.memory = np.empty(size + 16, np.float32)
        at: int = self.memory.ctypes.data
        return at + -at % 64

    def _correction(self, k: int, start: Tensor, terms: Terms, group: Ints) -> tuple[Float32s | None, Float32s | None]:
        """Return pull (k,) and shift (k, d) of a solver that adds pull (w - w0) + shift to a gradient g."""
        correct, none, rows = self.solver.correct, torch.zeros(1, 1), torch.from_numpy(group)
        terms = {name: vectors[rows] for name, vectors in terms.items()}
        first = {name: vectors[:, :1].double() for name, vectors in terms.items()}  # all numbers are pulled alike
        pull = correct(none, none + 1, none, **first) - correct(none, none, none, **first)
        shift = correct(torch.zeros(1, len(start)), start, start, **terms)
        return _numbers(pull, k), _numbers(shift, k)


def batch_plans_in_c(seed: int, round_: int, clients: Ints, train: Ranges, local: LocalSGD) -> Ints:
    """Return the plans (k, steps, batch) of clients, as `batch_plans` does, drawn in C."""
    sizes = train.offsets[clients + 1] - train.offsets[clients]
    if not sizes.all():
        raise TrainingError(f"Client {clients[sizes == 0][0]} has no examples to train on.")
    largest = int(sizes.max())
    batch = min(local.batch_size, largest)
    steps = local.steps or local.epochs * -(-largest // batch)
    words = np.array([*_words(int(seed)), zlib.crc32(b"batches"), round_, 0], np.uint32)
    spare, plans = np.empty(largest, np.int64), np.empty((len(clients), steps, batch), np.int64)
    library().draw_plans(
        len(words),
        words.ctypes.data,
        len(clients),
        clients.ctypes.data,
        train.order.ctypes.data,
        train.offsets.ctypes.data,
        local.batch_size,
        0 if local.steps else local.epochs,
        steps,
        batch,
        spare.ctypes.data,
        plans.ctypes.data,
    )
    return plans


@cache
def _words(seed: int) -> list[int]:
    """Return a seed in words of 32 bits, at least four."""
    words = [seed >> place & 0xFFFFFFFF for place in range(0, max(1, seed.bit_length()), 32)]
    return words + [0] * (4 - len(words))


@cache
def _draws_as_numpy_does() -> bool:
    """Return whether C draws the numbers that this release of NumPy draws: releases may change them."""
    sizes = np.array([1, 2, 5, 64, 300, 1000])
    train = Ranges(np.arange(sizes.sum()), np.concatenate([[0], np.cumsum(sizes)]))
    clients, local = np.arange(len(sizes)), LocalSGD(batch_size=7, epochs=2)
    parts = [train[client] for client in range(len(sizes))]
    return all(
        np.array_equal(batch_plans_in_c(seed, 3, clients, train, local), batch_plans(seed, 3, clients, parts, local))
        for seed in (0, 1, 2**40 + 5)
    )


class _Samples(ctypes.Structure):
    """Examples as C is told of them."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("wide", ctypes.c_int64),
        ("factor", ctypes.c_void_p),
        ("offset", ctypes.c_void_p),
        ("labels", ctypes.c_void_p),
    )
    kept: list[Tensor]

    @classmethod
    def of(cls, samples: Samples) -> _Samples:
        """Return these; tensors that it points to are kept."""
        factor, offset = (
            None if numbers is None else numbers.expand(1, *samples.x.shape[1:]).contiguous()
            for numbers in (samples.factor, samples.offset)
        )
        places = (None if tensor is None else tensor.data_ptr() for tensor in (factor, offset))
        made = cls(samples.x.data_ptr(), samples.x.dtype == torch.float32, *places, samples.y.data_ptr())
        made.kept = [tensor for tensor in (samples.x, factor, offset, samples.y) if tensor is not None]
        return made


class _Rule(ctypes.Structure):
    """How a gradient is followed."""

    _fields_ = (
        ("rate", ctypes.c_double),
        ("momentum", ctypes.c_double),
        ("decay", ctypes.c_double),
        ("clip", ctypes.c_double),
        ("pull", ctypes.c_void_p),
        ("shift", ctypes.c_void_p),
    )


def _table(layers: list[Dense]) -> Ints:
    """Return the layers as C is told of them."""
    rows = [
        (layer.inputs, layer.outputs, layer.weight.start, layer.bias.start if layer.bias else -1, layer.relu)
        for layer in layers
    ]
    return np.array(rows, np.int64)


def _dense_layers(module: nn.Module, sample: tuple[int, ...]) -> list[Dense]:
    layers = chain_of(module, sample)
    dense = [layer for layer in layers if isinstance(layer, Dense)]
    if len(dense) < len(layers) or not layers:
        raise NotAChainError("it has other layers")
    if len(layers) > MOST_LAYERS:
        raise NotAChainError(f"it has more than {MOST_LAYERS} layers")
    return dense


def _at(array: NDArray[Any] | None) -> int | None:
    return None if array is None else array.ctypes.data


def _numbers(tensor: Tensor, k: int) -> Float32s | None:
    """Return k rows of float32, None where all numbers are 0."""
    return np.ascontiguousarray(tensor.float().expand(k, -1).numpy()) if tensor.any() else None
