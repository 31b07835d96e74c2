"""Batches of examples for training, and BatchNorm statistics for adaptation."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedreach._util.arrays import AnyArray, Float32s, Floats, Ints
from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.engines.models.draws import seed_of, seeded_generators
from fedreach.engines.models.flat import Layout, bind
from fedreach.engines.several import as_bytes
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.types import Outputs

# -------------------- Batch plans, which are the same for all engines and methods


def batch_plan(seed: int, round_: int, client: int, num_examples: int, local: LocalSGD) -> Ints:
    """Return a client's batches in a round as a (steps, batch) table of positions in its examples, padded with -1.

    Each epoch is a new permutation, divided into batches. ``local.drop_last`` drops a last batch that is not full. With
    ``local.steps``, the table has this number of steps, taken from as many epochs as necessary.

    Args:
        seed: Seed of the run.
        round_: Round number.
        client: Client id.
        num_examples: Number of examples of the client.
        local: Options of local SGD.

    Example:
        >>> plan = batch_plan(0, 1, 7, 5, LocalSGD(batch_size=2, epochs=2))
        >>> plan.shape, sorted(plan[:3].ravel().tolist())
        ((6, 2), [-1, 0, 1, 2, 3, 4])
    """
    batch = min(local.batch_size, num_examples)
    num_kept = num_examples - num_examples % batch if local.drop_last else num_examples
    steps_per_epoch = -(-num_kept // batch)
    (steps,) = local.steps_of(np.array([num_examples]), np.array([client]), seed, round_).tolist()
    epochs = -(-steps // steps_per_epoch)
    rng = generator(seed, "batches", round_, client)
    positions = np.broadcast_to(np.arange(num_examples), (epochs, num_examples))
    table = np.full((epochs, steps_per_epoch * batch), -1, np.int64)
    table[:, :num_kept] = rng.permuted(positions, axis=1)[:, :num_kept]
    return table.reshape(-1, batch)[:steps]


def batch_plans(seed: int, round_: int, clients: Ints, parts: Sequence[Ints], local: LocalSGD) -> Ints:
    """Return the batches of k clients in a round as (k, steps, batch) indices of their examples, padded with -1.

    Row i equals ``parts[i][batch_plan(..., clients[i], len(parts[i]), local)]``. `batch_plan` is the readable version
    of this function.

    Args:
        seed: Seed of the run.
        round_: Round number.
        clients: (k,) client ids.
        parts: Examples of each client.
        local: Options of local SGD.

    Example:
        >>> batch_plans(0, 1, np.array([7]), [np.array([30, 31, 32])], LocalSGD(batch_size=2)).shape
        (1, 2, 2)
    """
    sizes = np.array([len(part) for part in parts])
    batches = np.minimum(local.batch_size, sizes).tolist()
    examples_per_epoch, per_epoch = local.examples_per_epoch(sizes).tolist(), local.steps_per_epoch(sizes).tolist()
    steps = local.steps_of(sizes, clients, seed, round_).tolist()
    epochs = [-(-number // count) for number, count in zip(steps, per_epoch, strict=True)]
    shape = len(parts), max(steps), max(batches)
    table = np.full(shape, -1, np.int64)
    for row, part, num_examples, batch, count, number, all_steps, client in zip(
        table, parts, examples_per_epoch, batches, per_epoch, epochs, steps, clients, strict=True
    ):
        rng = generator(seed, "batches", round_, int(client))
        if number == 1 and count * batch == num_examples and all_steps == count and batch == table.shape[2]:
            row[:count] = rng.permutation(part)[:num_examples].reshape(count, batch)
            continue
        client_table = np.full((number, count * batch), -1, np.int64)
        for epoch in client_table:
            epoch[:num_examples] = rng.permutation(part)[:num_examples]
        row[:all_steps, :batch] = client_table.reshape(-1, batch)[:all_steps]
    return table


def examples_per_round(sizes: Ints, local: LocalSGD) -> Floats:
    """Return the (n,) numbers of examples that clients are expected to process in a round.

    Args:
        sizes: (n,) numbers of examples of the clients.
        local: Options of local SGD.

    Example:
        >>> examples_per_round(np.array([10, 100]), LocalSGD(batch_size=20, epochs=2))
        array([ 20., 200.])
        >>> examples_per_round(np.array([10, 110]), LocalSGD(batch_size=20, drop_last=True))
        array([ 10., 100.])
        >>> examples_per_round(np.array([10, 100]), LocalSGD(batch_size=20, steps=3))
        array([30., 60.])
    """
    if local.steps is None:
        return local.epochs * local.examples_per_epoch(sizes).astype(np.float64)
    return local.expected_steps(sizes) * np.minimum(local.batch_size, sizes)


# -------------------- Examples on a device


class Samples:
    """Examples and labels on a device, stored in compact types; `batch` converts examples to model inputs.

    Args:
        x: (m, ...) examples.
        y: (m, ...) targets.
        kind: Kind of the examples, such as ``"tokens"``.
        mean: (C,) mean of each channel. Empty: mean 0.
        std: (C,) standard deviation of each channel. Empty: standard deviation 1.
        device: Device for the tensors.
    """

    def __init__(
        self, x: Float32s, y: AnyArray, kind: str, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
    ) -> None:
        with warnings.catch_warnings():
            # Arrays of a memory map are read-only, so torch warns. The engines do not write to them.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
            self.x = torch.from_numpy(np.ascontiguousarray(as_bytes(x))).to(device)
            self.y = torch.from_numpy(np.ascontiguousarray(y, dtype=_target_dtype(y))).to(device)
        self.kind = kind
        scale = 255.0 if self.x.dtype == torch.uint8 and kind != "several" else 1.0
        self.factor = self.offset = None
        if kind != "tokens" and (mean or scale != 1.0):
            self.factor, self.offset = scaling(scale, mean, std, self.x.dim() - 1, device)

    def __len__(self) -> int:
        return len(self.y)

    def with_labels(self, y: AnyArray) -> Self:
        """Return the same examples with other labels, without copying the examples."""
        samples = copy.copy(self)
        samples.y = torch.from_numpy(np.array(y, dtype=_target_dtype(y))).to(self.y.device)
        return samples

    def batch_into(self, index: Tensor, x: Tensor) -> None:
        """Write the inputs of the (m,) examples `index` into `x` (m, ...)."""
        if self.factor is None or self.offset is None:
            torch.index_select(self.x, 0, index, out=x)
        else:
            x.copy_(self.x.index_select(0, index))
            torch.addcmul(self.offset, x, self.factor, out=x)

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of the examples `index`, which can have any shape.

        Several inputs are returned as records of bytes, which a hook of the model unpacks (see
        `fedreach.engines.several`).
        """
        flat = index.reshape(-1)
        x = self.x.index_select(0, flat)
        if self.kind == "tokens":
            x = x.long()
        elif self.factor is not None and self.offset is not None:
            x = torch.addcmul(self.offset, x.float(), self.factor)
        return x.view(*index.shape, *self.x.shape[1:]), self.y.index_select(0, flat).view(
            *index.shape, *self.y.shape[1:]
        )


def _target_dtype(y: AnyArray) -> type[np.int64 | np.float32]:
    """Return the type for storing targets: int64 for classes, float32 for numbers."""
    return np.float32 if y.dtype.kind == "f" else np.int64


def scaling(
    scale: float, mean: Sequence[float], std: Sequence[float], dims: int, device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Return the factor and the offset for which (x / scale - mean) / std = x * factor + offset.

    Args:
        scale: Input value that becomes 1 before standardization.
        mean: (C,) mean of each channel. Empty: mean 0.
        std: (C,) standard deviation of each channel. Empty: standard deviation 1.
        dims: Number of dimensions of an example, channels first.
        device: Device for the factor and the offset.

    Example:
        >>> factor, offset = scaling(255.0, [0.5], [0.25], 3)
        >>> torch.addcmul(offset, torch.full((1, 1, 2), 255.0), factor).round().tolist()
        [[[2.0, 2.0]]]
    """
    shape = (-1, *([1] * (dims - 1)))
    mean_, std_ = (torch.tensor(v or d, device=device).view(shape) for v, d in ((mean, (0.0,)), (std, (1.0,))))
    return 1.0 / (scale * std_), -mean_ / std_


def checked_device(device: str) -> torch.device:
    """Return the torch device.

    Raises:
        ConfigError: If torch cannot use the device.
    """
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).item()
    except Exception as error:  # each device type raises other errors; "meta" fails because it stores no numbers
        raise ConfigError(
            f"engine.device must be a device that torch can use, such as 'cpu' or 'cuda:0'; got {device!r}: "
            f"{str(error).splitlines()[0].rstrip('.')}. Use 'cpu'."
        ) from error
    return chosen


# -------------------- Filters with channels last, for the engine `manual`
# The flat vector stores tensors in torch's order. Convolutions are faster on filters with channels last. So the engine
# converts the vectors that it receives, and converts its results back.


class ChannelsLast:
    """Conversion of a flat vector's filters from (out, channels, height, width) to (out, height, width, channels).

    Args:
        layout: Layout of the model.

    Example:
        >>> import torch
        >>> filters = ChannelsLast(Layout.of(torch.nn.Conv2d(2, 1, (1, 2), bias=False)))
        >>> turned = filters.to_channels_last(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        >>> turned.tolist()
        [1.0, 3.0, 2.0, 4.0]
        >>> rows = turned[None].clone()
        >>> filters.turn_back(rows, torch.tensor([0]))
        >>> rows.tolist()
        [[1.0, 2.0, 3.0, 4.0]]
    """

    def __init__(self, layout: Layout) -> None:
        shapes = layout.shapes[: len(layout.parameters)]
        ends = accumulate(shape.numel() for shape in shapes)
        placed = [(slice(end - shape.numel(), end), shape) for shape, end in zip(shapes, ends, strict=True)]
        self.filters = [(place, shape) for place, shape in placed if len(shape) == 4]

    def to_channels_last(self, vectors: Tensor) -> Tensor:
        """Return (..., p) vectors with channels last; return the same tensor if the model has no filters."""
        if not self.filters:
            return vectors
        converted, stack = vectors.clone(), vectors.shape[:-1]
        for place, (out, channels, height, width) in self.filters:
            filters = vectors[..., place].reshape(*stack, out, channels, height, width)
            converted[..., place].view(*stack, out, height, width, channels).copy_(filters.movedim(-3, -1))
        return converted

    def turn_back(self, vectors: Tensor, rows: Tensor) -> None:
        """Convert the given rows of (k, p) vectors back to torch's order, in place."""
        for place, (out, channels, height, width) in self.filters:
            filters = vectors[:, place][rows].view(-1, out, height, width, channels)
            vectors[rows, place] = filters.movedim(-1, -3).flatten(1)


# --- BatchNorm statistics that adaptation refreshes on a client's inputs

BATCH = 256
"""Number of inputs per forward pass."""


def refreshable_layers(module: nn.Module) -> list[_BatchNorm]:
    """Return the `BatchNorm2d` and `BatchNorm3d` layers with float32 running statistics, in the module's order.

    The result excludes layers of type `BatchNorm1d` (see `fedreach.federation.adaptation.methods`).

    Example:
        >>> len(refreshable_layers(nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False))))
        1
    """
    layers = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d | nn.BatchNorm3d)]
    return [layer for layer in layers if layer.running_mean is not None and layer.running_mean.dtype == torch.float32]


@dataclass(frozen=True, eq=False)
class BatchNormStatistics:
    """Running statistics of a model, measured without changing it (see `fedreach.federation.types.RunningStatistics`).

    A layer's statistics depend on the statistics of the layers before it. So all inputs pass through the model once per
    layer, in the order in which the model calls the layers. The result equals the result of one pass in training mode
    with all inputs as a single batch, but smaller batches require less memory.
    """

    module: nn.Module
    layout: Layout
    vector: Tensor  # (d,)
    compute_outputs: Callable[[Tensor, Tensor], Outputs]  # outputs of a (d,) model for inputs

    def refreshed(self, inputs: Float32s, strength: float) -> Float32s:
        x = torch.from_numpy(inputs).to(self.vector.device)
        self._bind_copy()
        if len(x):
            weight = len(x) / (len(x) + strength)
            for layer in self._in_order(x[:1]):
                for running, moment in zip(_statistics(layer), self._moments(layer, x), strict=True):
                    running.lerp_(moment, weight)
        parts = [part for layer in refreshable_layers(self.module) for part in _statistics(layer)]
        statistics: Float32s = torch.cat(parts).cpu().numpy()
        return statistics

    def outputs(self, statistics: Float32s, inputs: Float32s) -> Outputs:
        vector = self._bind_copy()
        flat_statistics = torch.from_numpy(np.array(statistics, np.float32)).to(vector.device)
        parts = [part for layer in refreshable_layers(self.module) for part in _statistics(layer)]
        for part, values in zip(parts, torch.split(flat_statistics, [len(part) for part in parts]), strict=True):
            part.copy_(values)
        return self.compute_outputs(vector, torch.from_numpy(inputs).to(vector.device))

    def _bind_copy(self) -> Tensor:
        """Bind the module to a copy of the model's vector, and return the copy."""
        vector = self.vector.clone()
        bind(self.module, vector, layout=self.layout)
        self.module.eval()
        return vector

    def _in_order(self, x: Tensor) -> list[_BatchNorm]:
        """Return the layers that the model calls, in the order of their first call."""
        visited: dict[_BatchNorm, None] = {}
        with ExitStack() as hooks, torch.no_grad():
            for layer in refreshable_layers(self.module):
                hooks.enter_context(layer.register_forward_pre_hook(lambda layer, _: visited.setdefault(layer)))
            self.module(x)
        return list(visited)

    def _moments(self, layer: _BatchNorm, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and variance of a layer's inputs over examples and positions, summed in float64.

        The variance has denominator n instead of n - 1, like the layer's normalization in training.
        """
        total = torch.zeros(layer.num_features, dtype=torch.float64, device=x.device)
        squares, count = torch.zeros_like(total), 0

        def add(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            nonlocal count
            values = arguments[0].double().movedim(1, -1).flatten(0, -2)
            total.add_(values.sum(0))
            squares.add_(values.square().sum(0))
            count += len(values)

        with layer.register_forward_pre_hook(add), torch.no_grad():
            for part in torch.split(x, BATCH):
                with seeded_generators(seed_of(part), part.device):  # the model may draw random numbers in evaluation
                    self.module(part)
        mean = total / count
        return mean.float(), (squares / count - mean.square()).clamp_min(0).float()


def _statistics(layer: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Return the running mean and variance of a layer from `refreshable_layers`."""
    mean, variance = layer.running_mean, layer.running_var
    assert mean is not None
    assert variance is not None
    return mean, variance
