"""Engine `native`, which trains clients in C."""

import ctypes
import math
import zlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedreach._util.arrays import AnyArray, Bools, Float32s, Floats, Ints
from fedreach._util.errors import ConfigError, TrainingError
from fedreach.data.splits import ClientIndex
from fedreach.engines.batches import examples_per_round
from fedreach.engines.manual import is_identity
from fedreach.engines.native.library import (
    Batches,
    LayerRow,
    NoLibraryError,
    Progress,
    UpdateRule,
    draws_as_numpy_does,
    library,
    place_of,
    sample_arrays,
    words_of,
)
from fedreach.engines.protocols import Split, Task, Terms
from fedreach.engines.recognition import Layer, NotAChainError, chain_of
from fedreach.engines.trainer import Group, GroupTrainer
from fedreach.federation.base import LocalSolver, Loss
from fedreach.federation.local_sgd import LocalSGD, UnevenSteps

# --- The layers of a model for C, one row per layer

KINDS = ("Linear", "Conv2d", "MaxPool2d", "AvgPool2d", "GroupNorm", "Dropout", "Addition", "Embedding", "LSTM")
"""Kinds of layers, in the order of `layers.h`."""
MAX_LAYERS = 64  # as in `layers.h`
LARGEST_WINDOW = 256  # as in `pooling.h`


def layer_table(layers: Sequence[Layer]) -> Ints:
    """Return one row per layer; a 2 x 2 max pooling is part of the row of the convolution before it.

    Raises:
        NotAChainError: If the C code does not support a layer, or the order of the layers.
    """
    rows: list[Any] = []
    channels = 1  # number of channels that are interleaved in the inputs of the next linear layer
    image: tuple[int, ...] = ()  # shape of the last outputs before dropout and flattening
    sources = {layer.source for layer in layers if layer.kind == "Addition"}
    stand = [0]  # stand[n]: number of rows after the first n layers, without dropout
    for before, layer in zip(["", *(layer.kind for layer in layers)], layers, strict=False):
        if layer.kind == "Dropout":
            _drop(layer, rows, image)
            continue
        if layer.kind == "Flatten":
            channels = layer.shape[0] if rows else 1
            stand.append(len(rows))
            continue
        if layer.kind != "Linear" and rows and KINDS[rows[-1].kind] == "Linear":
            raise NotAChainError("it converts flat outputs to images")
        # A shortcut from the convolution needs its outputs before pooling.
        if layer.pools_pairs and before == "Conv2d" and len(stand) - 1 not in sources:
            rows[-1].outputs, rows[-1].pooled = math.prod(layer.outputs), True
            rows[-1].relu |= layer.relu
        else:
            rows.append(_row(layer))
            if layer.kind == "Linear":
                rows[-1].channels, channels = channels, 1
            rows[-1].source = stand[layer.source]
        image = layer.outputs
        stand.append(len(rows))
    if not rows or KINDS[rows[-1].kind] != "Linear":
        raise NotAChainError("its last layer is not linear")
    if len(rows) > MAX_LAYERS:
        raise NotAChainError(f"it has more than {MAX_LAYERS} layers")
    return np.array([np.frombuffer(row, np.int64) for row in rows])


def _row(layer: Layer) -> Any:
    if layer.kind == "MaxPool2d" and math.prod(layer.kernel) > LARGEST_WINDOW:
        raise NotAChainError(f"a max pooling has a window of more than {LARGEST_WINDOW} positions")
    weight, bias = (-1 if part is None else part.start for part in (layer.weight, layer.bias))
    row = LayerRow(
        KINDS.index(layer.kind), layer.shape[-1], layer.outputs[-1], weight, bias, layer.relu, False, 1, 1, 1
    )
    row.down, row.right = layer.stride
    row.above, row.left = layer.padding
    row.groups, row.before, row.amount = layer.groups, layer.before, layer.amount
    row.source_down, row.source_right = layer.every
    if len(layer.shape) == 3:
        row.inputs, row.outputs = math.prod(layer.shape), math.prod(layer.outputs)
        row.channels, row.height, row.width = layer.shape
        row.filters, (row.rows, row.columns) = layer.outputs[0], layer.kernel
    elif layer.kind == "Embedding":
        row.channels = _size(layer.weight) // layer.outputs[1]
    elif layer.kind == "LSTM":
        row.width = layer.shape[0]
    return row


def _drop(layer: Layer, rows: list[Any], image: tuple[int, ...]) -> None:
    """Add dropout to the row of the linear or recurrent layer before it, or as a new row after an image layer."""
    last = KINDS[rows[-1].kind] if rows else "Embedding"
    if last == "Embedding" or (last in ("Linear", "Dropout", "LSTM") and rows[-1].amount):
        raise NotAChainError("a dropout does not follow a layer with weights")
    if layer.amount >= 1:
        raise NotAChainError("a dropout has probability 1")
    if last in ("Linear", "LSTM"):
        rows[-1].amount = layer.amount
    else:
        rows.append(_row(replace(layer, shape=image, outputs=image)))


def products_of(layers: Sequence[Layer]) -> int:
    """Return the number of multiplications per example in a forward pass."""
    return sum(
        _size(layer.weight) * (layer.shape[0] if layer.kind == "LSTM" else math.prod(layer.outputs[1:]))
        for layer in layers
        if layer.kind in ("Linear", "Conv2d", "LSTM")
    )


def _size(place: slice | None) -> int:
    return 0 if place is None else place.stop - place.start


# -------------------- The engine `native`: one call of C trains a client
# In a small step, calling a dozen kernels takes much of the time. The C code trains a client without such calls, and
# the client's weights stay in the processor's cache in all steps. `sequential` is the readable version, and tests
# compare the two.

PRODUCTS = 40_000_000  # smallest work in multiplications that is sent to another process
PRODUCTS_OF_A_CLIENT = 1_000_000  # fixed cost of a client, in multiplications
SECONDS = 0.25  # longest call of C, because Ctrl-C takes effect between two calls
LOOK = 1_000_000  # multiplications between two readings of the clock; a reading takes some hundred multiplications
SHARES = 2
"""Number of pieces into which a process's share of remaining work is divided. So the last groups are small."""
NUMBERS = 4_000_000  # number of gradient corrections passed to C at a time


class Native(GroupTrainer):
    """Engine that trains one client after another in C, without torch.

    Use when: a model of dense, convolution, LSTM, GroupNorm and dropout layers trains on a CPU. `auto` usually selects
    this engine.
    """

    name = "native"
    written_out = ("cross_entropy",)
    any_optimizer = False

    @classmethod
    def refusal(cls, solver: LocalSolver, loss: Loss, local: LocalSGD) -> str | None:
        if not solver.affine:
            return f"requires a solver with `affine = True` (see `LocalSolver`); got {type(solver).__name__}"
        return super().refusal(solver, loss, local)

    def __init__(self, task: Task, device: torch.device) -> None:
        d = task.data.dataset
        try:
            layers = chain_of(task.module, d.train_x.shape[1:])
            self.table = layer_table(layers)
            self.library = library()
            if not draws_as_numpy_does():
                raise NoLibraryError("its batches differ from those of the installed release of NumPy")
        except (NotAChainError, NoLibraryError) as error:
            raise ConfigError(
                "engine.name = 'native' requires a C compiler, and a model of linear layers, convolutions, pooling and "
                "ReLU, or of an embedding and LSTM layers; "
                f"got {type(task.module).__name__}: {error}. Use 'auto'."
            ) from error
        super().__init__(task, device)
        first = LayerRow.from_buffer(self.table[0])
        vocabulary = first.channels if KINDS[first.kind] == "Embedding" else None
        for samples in self.samples.values():
            supported_types = (torch.uint8, torch.int64 if samples.kind == "tokens" else torch.float32)
            if device.type != "cpu" or samples.x.dtype not in supported_types:
                raise ConfigError(
                    "engine.name = 'native' requires examples of type uint8 or float32 on the CPU; got "
                    f"{samples.x.dtype} on {device}. Use 'auto'."
                )
            largest = int(samples.x.max()) if vocabulary is not None and len(samples) else 0
            if vocabulary is not None and largest >= vocabulary:
                raise ConfigError(f"Tokens must be less than {vocabulary}, the model's vocabulary size; got {largest}.")
            low, high = samples.y.aminmax() if len(samples) else (0, 0)
            if low < 0 or high >= d.num_classes:
                raise ConfigError(
                    f"Labels must be from 0 to {d.num_classes - 1} for {d.num_classes} classes; got labels from "
                    f"{int(low)} to {int(high)}."
                )
        self.uncorrected = is_identity(task.solver)
        self.given = {split: sample_arrays(samples) for split, samples in self.samples.items()}
        ranges = (self.data.train.order, self.data.train.offsets)
        self.ranges = ClientIndex(*(np.ascontiguousarray(numbers, np.int64) for numbers in ranges))
        self.memory = np.empty(0, np.float32)
        self.room = np.empty(0, np.int64)
        self.products = 3 * products_of(layers)  # multiplications per example in a step
        self.first_outputs = first.outputs  # a layer is implicit for fewer examples than outputs
        sizes = np.diff(self.ranges.offsets)
        self.work = examples_per_round(sizes, self.local) * self.products + PRODUCTS_OF_A_CLIENT  # multiplications
        # Number of steps of each client, unless it differs between rounds.
        uneven = isinstance(self.local.steps, UnevenSteps)
        self.steps = None if uneven else self.local.steps_of(sizes, np.arange(len(sizes)), self.seed, 1)

    def groups(self, ids: Ints, concurrency: int) -> list[Ints]:
        """Return groups of clients, each with enough work, the largest clients first.

        Unlike in other engines, groups depend on `concurrency`. A client's result does not depend on its group.
        """
        order = np.argsort(-self.ranges.sizes_of(ids), kind="stable")
        done = np.cumsum(self.work[ids[order]])
        clients = len(ids) if self.uncorrected else max(1, NUMBERS // self.layout.size)
        ends = [0]
        while ends[-1] < len(ids):
            before = int(done[ends[-1] - 1]) if ends[-1] else 0
            work = (int(done[-1]) - before) // (SHARES * concurrency) if concurrency > 1 else int(done[-1])
            end = int(np.searchsorted(done, before + max(PRODUCTS, work))) + 1
            ends.append(min(len(ids), end, ends[-1] + clients))
        return [order[begin:end] for begin, end in pairwise(ends)]

    def train_group(
        self, start: Tensor, ids: Ints, round_: int, lr: float, update: Tensor, group: Ints, terms: Terms
    ) -> Group:
        clients, group = (np.ascontiguousarray(numbers, np.int64) for numbers in (ids[group], group))
        sizes = self.ranges.sizes_of(clients)
        if not sizes.all():
            raise TrainingError(f"Client {clients[sizes == 0][0]} must have training examples; got none.")
        k, local = len(clients), self.local
        pull, shift = (None, None) if self.uncorrected else self._correction(k, start, terms, group)
        shifts = self.shifts_of(clients)
        added = None if shifts is None else shifts.numpy()  # to the logits
        clip = local.clip_norm or 0.0
        rule = UpdateRule(
            lr, local.momentum, local.weight_decay, clip, place_of(pull), place_of(shift), place_of(added)
        )
        order, offsets, words = self.ranges.order, self.ranges.offsets, words_of(self.seed, round_)
        largest = int(sizes.max())
        batch = min(local.batch_size, largest)
        client_steps = local.steps_of(sizes, clients, self.seed, round_) if self.steps is None else self.steps[clients]
        client_steps = np.ascontiguousarray(client_steps, np.int64)
        batches = Batches(
            batch,
            place_of(client_steps),
            local.drop_last,
            place_of(order),
            place_of(offsets),
            len(words),
            place_of(words),
            zlib.crc32(b"dropout") if self.draws else -1,
        )
        planned, an_epoch = batch * int(client_steps.max()), batch * -(-largest // batch)
        room = largest + min(planned, max(an_epoch, self.first_outputs))
        if len(self.room) < room:
            self.room = np.empty(room, np.int64)
        loss, steps_taken, finite = np.empty(k), np.empty(k, np.int64), np.empty(k, np.bool_)
        memory = self._memory_at(self.library.memory_numbers(*self._layers(), ctypes.addressof(rule), batch, planned))
        progress, done = Progress(), 0
        while not done:
            done = self.library.train(
                *self._layers(),
                ctypes.addressof(self.given["train"]),
                ctypes.addressof(rule),
                ctypes.addressof(batches),
                planned,
                k,
                clients.ctypes.data,
                start.data_ptr(),
                memory,
                self.room.ctypes.data,
                update.shape[1],
                group.ctypes.data,
                update.data_ptr(),
                finite.ctypes.data,
                loss.ctypes.data,
                steps_taken.ctypes.data,
                ctypes.addressof(progress),
                max(1, LOOK // (batch * self.products)),
                SECONDS,
            )
        return loss, steps_taken, finite

    def add_up(self, weights: Floats, update: Float32s) -> Floats:
        k, d = update.shape
        stride, step = update.strides
        if update.dtype != np.float32 or step != 4 or stride % 4:
            return super().add_up(weights, update)
        total, weights = np.empty(d), np.ascontiguousarray(weights, np.float64)
        if weights.shape != (k,):
            raise ValueError(f"weights must have shape ({k},), one per update; got {weights.shape}.")
        self.library.add_up(k, d, weights.ctypes.data, update.ctypes.data, stride // 4, total.ctypes.data)
        return total

    def predict_part(
        self, part: slice, params: Float32s, split: Split, index: Ints, right: Bools | Float32s, loss: Float32s
    ) -> None:
        self._predict(params, split, index[part], right[part], loss[part])

    def _logits(self, vector: Tensor, split: Split, index: Ints) -> Float32s:
        m, index = len(index), np.ascontiguousarray(index, np.int64)
        logits = np.empty((m, self.data.dataset.outputs), np.float32)
        self._predict(vector.contiguous().numpy(), split, index, np.empty(m, np.bool_), np.empty(m, np.float32), logits)
        return logits

    def _predict(
        self, params: Float32s, split: Split, index: Ints, right: AnyArray, loss: Float32s, logits: Any = None
    ) -> None:
        """Write the results for these examples, in short calls of C between which Ctrl-C takes effect."""
        memory = self._memory_at(self.library.memory_for_predicting(*self._layers()))
        begin = 0
        while begin < len(index):
            part = slice(begin, None)
            begin += self.library.predict(
                *self._layers(),
                ctypes.addressof(self.given[split]),
                len(index[part]),
                index[part].ctypes.data,
                params.ctypes.data,
                memory,
                right[part].ctypes.data,
                loss[part].ctypes.data,
                place_of(None if logits is None else logits[part]),
                SECONDS,
            )

    def _layers(self) -> tuple[int, int]:
        """Return the number of layers and the address of their table."""
        return len(self.table), self.table.ctypes.data

    def _memory_at(self, size: int) -> int:
        """Return the address of memory for `size` numbers, aligned to a cache line."""
        if len(self.memory) < size + 16:
            self.memory = np.empty(size + 16, np.float32)
        at: int = self.memory.ctypes.data
        return at + -at % 64

    def _correction(self, k: int, start: Tensor, terms: Terms, group: Ints) -> tuple[Float32s | None, Float32s | None]:
        """Return the (k,) pull and (k, d) shift of an affine solver, which returns g + pull (w - w0) + shift.

        None means zeros. For a solver with terms, zeros are not replaced by None, because a client's training must not
        depend on the other clients in its group.
        """
        correct, none, rows = self.solver.correct, torch.zeros(1, 1), torch.from_numpy(group)
        terms = {name: vectors[rows] for name, vectors in terms.items()}
        first = {
            name: vectors[:, :1].double() for name, vectors in terms.items()
        }  # the pull is the same for all numbers
        pull = correct(none, none + 1, none, **first) - correct(none, none, none, **first)
        shift = correct(torch.zeros(1, len(start)), start, start, **terms)

        def rows_of(numbers: Tensor) -> Float32s | None:
            needed = bool(terms) or bool(numbers.any())
            return np.ascontiguousarray(numbers.float().expand(k, -1).numpy()) if needed else None

        return rows_of(pull), rows_of(shift)
