"""Layers with explicit gradients for the engine `manual`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from fedreach.engines.recognition import Layer, NotAChainError

# -------------------- Layers with explicit gradients, for a stack of clients
# Placing a layer on a stack makes its filters views of the stack's rows, and its outputs memory that every step reuses.
# Activations are (a, b, ...), for a clients with b examples each.


class Memory:
    """Memory that all shapes of a stack reuse, and that grows if necessary.

    Example:
        >>> memory = Memory(torch.device("cpu"))
        >>> memory.take(2, 3).shape
        torch.Size([2, 3])
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pieces: list[Tensor] = []
        self._next = 0

    def take(self, *shape: int) -> Tensor:
        """Return a contiguous tensor with undefined values from the memory."""
        size = math.prod(shape)
        if self._next == len(self._pieces):
            self._pieces.append(torch.empty(0, device=self.device))
        if self._pieces[self._next].numel() < size:
            self._pieces[self._next] = torch.empty(size, device=self.device)
        self._next += 1
        return self._pieces[self._next - 1][:size].view(*shape)

    @property
    def numbers(self) -> int:
        """Number of values that fit into the memory."""
        return sum(piece.numel() for piece in self._pieces)

    def begin_again(self) -> None:
        """Make the entire memory available again."""
        self._next = 0


@dataclass(frozen=True)
class ModelStack:
    """Models of `a` clients, and memory for their gradients: the rows of two (a, p) matrices."""

    weights: Tensor
    gradients: Tensor
    begin: int = 0  # position in the flat vector of the first column

    def views(self, part: slice | None, *shape: int) -> tuple[Tensor, Tensor]:
        """Return the (a, *shape) weights and gradients at one part of the flat vector."""
        assert part is not None  # layers without weights do not call this method
        a, part = len(self.weights), slice(part.start - self.begin, part.stop - self.begin)
        return self.weights[:, part].view(a, *shape), self.gradients[:, part].view(a, *shape)


class PlacedLayer(Protocol):
    """Layer of all models of a stack."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs; the next call overwrites them."""

    def backward(self, dy: Tensor, *, with_input_gradient: bool, lr: float | None) -> Tensor:
        """Write the gradient of the weights or take a gradient step, and return the gradient of the inputs.

        Args:
            dy: Gradient with respect to the outputs. It may be overwritten.
            with_input_gradient: Compute the gradient of the inputs. Otherwise the returned numbers are undefined.
            lr: Learning rate. None: write the gradient without taking a step.
        """


PlaceLayer = Callable[[ModelStack, int, Memory], PlacedLayer]
"""Function that builds the layer of a stack for a batch size."""


class PlacedDense:
    """Dense layer of all models of a stack."""

    def __init__(self, layer: Layer, stack: ModelStack, batch: int, memory: Memory) -> None:
        a, (inputs,), (outputs,) = len(stack.weights), layer.shape, layer.outputs
        self.relu = layer.relu
        assert layer.weight is not None  # a dense layer has weights
        self.weight, self.weight_gradient = stack.views(layer.weight, outputs, inputs)
        self.transposed = self.weight.transpose(1, 2)
        self.row = self.row_gradient = None
        if layer.bias is not None:
            self.row, self.row_gradient = stack.views(layer.bias, 1, outputs)
        self.x = self.y = memory.take(a, batch, outputs)
        self.dx = torch.empty(0, device=self.y.device)  # allocated on first use; a first layer does not need it
        self.inputs = (a, batch, inputs)
        self.ones = torch.ones(a, 1, batch, device=self.y.device)  # sums over the batch, as a product

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        if self.row is None:
            torch.bmm(x, self.transposed, out=self.y)
        else:
            torch.baddbmm(self.row, x, self.transposed, out=self.y)
        return self.y.clamp_min_(0) if self.relu else self.y

    def backward(self, dy: Tensor, *, with_input_gradient: bool, lr: float | None) -> Tensor:
        if self.relu:
            torch.ops.aten.threshold_backward.grad_input(dy, self.y, 0.0, grad_input=dy)
        if with_input_gradient:  # before W changes
            if not self.dx.numel():
                self.dx = torch.empty(self.inputs, device=dy.device)
            torch.bmm(dy, self.weight, out=self.dx)
        if lr is not None:
            self.weight.baddbmm_(dy.transpose(1, 2), self.x, alpha=-lr)
            if self.row is not None:
                self.row.baddbmm_(self.ones, dy, alpha=-lr)
            return self.dx
        torch.bmm(dy.transpose(1, 2), self.x, out=self.weight_gradient)
        if self.row_gradient is not None:
            torch.bmm(self.ones, dy, out=self.row_gradient)
        return self.dx


class PlacedImages:
    """Conversion of (a, b, c h w) rows to (a, c, h, w, b) images, with the examples last, for convolutions."""

    def __init__(self, layer: Layer, stack: ModelStack, batch: int, memory: Memory) -> None:
        self.y = memory.take(len(stack.weights), *layer.shape, batch)
        self.columns = self.y.view(len(self.y), -1, batch)

    def forward(self, x: Tensor) -> Tensor:
        for column, row in zip(self.columns, x, strict=True):  # copying matrices is faster than copying the stack
            column.copy_(row.t())
        return self.y

    def backward(self, dy: Tensor, *, with_input_gradient: bool, lr: float | None) -> Tensor:
        return dy  # unused, because the inputs of the model are not trained


class PlacedFlatten:
    """Conversion of (a, c, h, w, b) images to (a, b, c h w) rows in torch's order."""

    def __init__(self, layer: Layer, stack: ModelStack, batch: int, memory: Memory) -> None:
        self.dx = memory.take(len(stack.weights), *layer.outputs, batch)
        self.images = self.dx.shape

    def forward(self, x: Tensor) -> Tensor:
        self.images = x.shape
        return x.view(self.dx.shape).transpose(1, 2)

    def backward(self, dy: Tensor, *, with_input_gradient: bool, lr: float | None) -> Tensor:
        return self.dx.copy_(dy.transpose(1, 2)).view(self.images)


LossGradient = Callable[[Tensor, Tensor], Tensor]


class TrainingStep:
    """One training step of a stack: forward pass, gradient of each client's mean loss, and backward pass.

    Each client has `batch` examples of the shape `sample`. Activations are stored in `memory`.
    """

    def __init__(
        self,
        layers: Sequence[PlaceLayer],
        stack: ModelStack,
        batch: int,
        sample: Sequence[int],
        outputs: int,
        memory: Memory,
    ) -> None:
        a = len(stack.weights)
        self.inputs = memory.take(a * batch, *sample)
        self.x = self.inputs.view(a, batch, -1)
        self.layers = [place(stack, batch, memory) for place in layers]
        self.first = 1 if isinstance(self.layers[0], PlacedImages) else 0  # index of the first layer with weights
        self.dlogits = memory.take(a, batch, outputs)

    def step(
        self, gradient: LossGradient, lr: float | None, shift: Tensor | None, *, with_input_gradient: bool = False
    ) -> Tensor:
        """Write the gradients for the examples in `inputs`, or take a gradient step; return the gradient of the inputs.

        Args:
            gradient: Function that writes the gradient of the loss at (a, b, c) outputs into its second argument.
            lr: Learning rate. None: write the gradients without taking a step.
            shift: (a, c) shift that the loss adds to the outputs of each client.
            with_input_gradient: Compute the gradient of the inputs, which are the outputs of an earlier layer.
        """
        x = self.x
        for layer in self.layers:
            x = layer.forward(x)
        if shift is not None:
            x = x + shift[:, None]
        dy = gradient(x, self.dlogits)
        for number in range(len(self.layers) - 1, self.first - 1, -1):
            dy = self.layers[number].backward(dy, with_input_gradient=with_input_gradient or number > self.first, lr=lr)
        return dy


# --- Convolutions as products with banded matrices, which are fast for few filters, unlike library kernels
# A tile is J neighboring outputs of one image row. They depend on a window of
# `filter rows x (J + filter columns - 1) x channels` inputs. A matrix T contains each filter J times, shifted, and maps
# the window to the tile. The windows of a batch are copied once. The forward pass and both backward passes are then one
# large product each. A larger J multiplies more zeros and copies less.
#
# Images are stored as (a, c, h, w, b), with the examples last, so that all other operations run over long blocks of
# memory. With pooling, T has all left members of the pairs before all right members, for the same reason.

TILE = 48  # smallest size of a tile if possible, because narrower products are slow


class PlacedConvolution:
    """Convolution of all models of a stack, with optional 2 x 2 max pooling and optional ReLU.

    The constructor creates all views, because in a small step this would take as long as the matrix products.

    Args:
        layer: Convolution. Its filters have channels last (see `fedreach.engines.batches.ChannelsLast`).
        pool: Max pooling after the convolution. None: no pooling.
        stack: Models.
        b: Batch size.
        memory: Memory for outputs and gradients.
    """

    def __init__(self, layer: Layer, pool: Layer | None, stack: ModelStack, b: int, memory: Memory) -> None:
        a, (c, *size), (o, h, w), (rows, columns) = len(stack.weights), layer.shape, layer.outputs, layer.kernel
        height, width = (side + 2 * zeros for side, zeros in zip(size, layer.padding, strict=True))
        # J, the number of outputs of a tile, divides the width, and is even with pooling.
        fitting = [j for j in range(1, w + 1) if w % j == 0 and not (pool and j % 2)]
        j = next((j for j in fitting if j * o >= TILE), fitting[-1])
        window, tiles, sides = columns + j - 1, w // j, 2 if pool else 1
        filters, depth = (o, rows, columns * c), rows * window * c
        out_shape = (h // sides, w // sides)
        self.relu, self.filters = layer.relu or (pool is not None and pool.relu), o
        assert layer.weight is not None  # a convolution has filters
        self.weight, self.weight_gradient = (part.view(a, *filters) for part in stack.views(layer.weight, -1))
        self.bias = self.bias_gradient = None
        if layer.bias is not None:
            self.bias, self.bias_gradient = stack.views(layer.bias, o)

        # T is (left or right, J / 2, o) x (rows, window, c). It has separate memory, so that its zeros stay zero.
        self.matrix = torch.zeros(a, j * o, depth, device=stack.weights.device)
        self.dmatrix = memory.take(a, j * o, depth)
        shape = (a, sides, j // sides, *filters)
        strides = (j * o * depth, j // sides * o * depth + c, o * depth + sides * c, depth, window * c, 1)
        self.bands = self.matrix.as_strided(shape, strides)  # positions of the shifted filters
        dbands = self.dmatrix.as_strided(shape, strides, self.dmatrix.storage_offset())
        self.dbands = [band for side in dbands.unbind(1) for band in side.unbind(1)]

        first_row, first_column = layer.padding
        without_padding = (
            slice(None),
            slice(None),
            slice(first_row, first_row + size[0]),
            slice(first_column, first_column + size[1]),
        )
        padded = any(layer.padding)
        self.image = torch.zeros(a, c, height, width, b, device=self.matrix.device) if padded else None
        self.inside = None if self.image is None else self.image[without_padding]
        self.windows = memory.take(a, rows, window, c, h, tiles, b)
        self.flat_windows = self.windows.view(a, depth, h * tiles * b)
        row, column = width * b, height * width * b
        self.window_strides = (c * column, row, b, column, row, j * b, 1)
        self.x: Tensor | None = None
        self.seen = self.windows

        dx = memory.take(a, c, height, width, b)
        self.dx, self.whole_dx = dx[without_padding], dx
        self.gathered = [
            (dx[:, :, r : r + h, t * j : t * j + window], self.windows[:, r, :, :, :, t].permute(0, 2, 3, 1, 4))
            for r in range(rows)
            for t in range(tiles)
        ]
        self.tiles, self.y = memory.take(a, j * o, h * tiles * b), memory.take(a, o, *out_shape, b)
        pooled = (a, o, out_shape[0], tiles, j // sides, b)
        self.tiled = self.y.view(pooled).permute(0, 4, 1, 2, 3, 5)  # (a, J / sides, o, h / sides, tiles, b)
        self.pairs = _Pairs(self.tiles, self.tiled, h, memory) if pool else None

    def forward(self, x: Tensor) -> Tensor:
        if self.image is not None and self.inside is not None:
            self.inside.copy_(x)
            x = self.image
        if x is not self.x:
            self.x, self.seen = x, x.as_strided(self.windows.shape, self.window_strides, x.storage_offset())
        self.bands.copy_(self.weight[:, None, None])
        self.windows.copy_(self.seen)
        torch.bmm(self.matrix, self.flat_windows, out=self.tiles)
        if self.pairs is not None:
            self.pairs.larger()
        else:
            self.tiled.copy_(self.tiles.view(self.tiled.shape))
        if self.bias is not None:  # after pooling, because all members of a pair have the same bias
            self.y.add_(self.bias[:, :, None, None, None])
        return self.y.clamp_min_(0) if self.relu else self.y

    def backward(self, dy: Tensor, *, with_input_gradient: bool, lr: float | None) -> Tensor:
        # From here on, gradients replace the outputs in `self.y`.
        if self.relu:
            torch.ops.aten.threshold_backward.grad_input(dy, self.y, 0.0, grad_input=self.y)
        else:
            self.y.copy_(dy)
        if self.bias is not None and self.bias_gradient is not None:
            _follow(self.bias, self.bias_gradient, [self.y.sum((2, 3, 4))], lr)
        if self.pairs is not None:
            self.pairs.spread()
        else:
            self.tiles.view(self.tiled.shape).copy_(self.tiled)
        torch.bmm(self.tiles, self.flat_windows.transpose(1, 2), out=self.dmatrix)
        _follow(self.weight, self.weight_gradient, self.dbands, lr)
        if with_input_gradient:
            torch.bmm(self.matrix.transpose(1, 2), self.tiles, out=self.flat_windows)
            self.whole_dx.zero_()
            for target, part in self.gathered:  # an input can be in several windows
                target.add_(part)
        return self.dx


def _follow(weight: Tensor, gradient: Tensor, parts: Sequence[Tensor], lr: float | None) -> None:
    """Write the sum of the parts into the gradient, or take a gradient step with it."""
    if lr is None:
        gradient.copy_(parts[0])
        for part in parts[1:]:
            gradient.add_(part)
    else:
        for part in parts:
            weight.sub_(part, alpha=lr)


class _Pairs:
    """Max pooling over 2 x 2 windows; as in torch, the first of equal values in reading order is the maximum.

    Args:
        tiles: (a, J o, h tiles b) values, left members before right members. Gradients overwrite them.
        out: (a, J / 2, o, h / 2, tiles, b) view of the maxima and of their gradients.
        rows: Number of rows h of an image.
        memory: Memory for intermediate results.
    """

    def __init__(self, tiles: Tensor, out: Tensor, rows: int, memory: Memory) -> None:
        a, half, filters, _, count, b = out.shape
        self.left, self.right = tiles.view(a, 2, -1).unbind(1)
        self.across = memory.take(*self.left.shape)  # the larger of left and right
        self.by_right = memory.take(*self.left.shape)  # right minus left
        self.upper, self.lower = self.across.view(a, half, filters, rows // 2, 2, count, b).unbind(4)
        self.by_lower, self.out = memory.take(*self.upper.shape), out

    def larger(self) -> None:
        """Write the maxima."""
        torch.maximum(self.left, self.right, out=self.across)
        torch.sub(self.right, self.left, out=self.by_right)
        torch.sub(self.lower, self.upper, out=self.by_lower)
        torch.maximum(self.upper, self.lower, out=self.out)

    def spread(self) -> None:
        """Write the gradient of each maximum at the position of the maximum, and 0 at the other positions."""
        _share(self.out, self.by_lower, self.upper, self.lower)
        _share(self.across, self.by_right, self.left, self.right)


def _share(dy: Tensor, by_second: Tensor, first: Tensor, second: Tensor) -> None:
    """Write each gradient into `second` if its value was larger, otherwise into `first`, and 0 into the other."""
    torch.ops.aten.threshold_backward.grad_input(dy, by_second, 0.0, grad_input=second)
    torch.sub(dy, second, out=first)


# -------------------- Layers of a model for this engine

POOLINGS = ("MaxPool2d", "AvgPool2d")
NO_POOLING = "a pooling is not a 2 x 2 max pooling after a convolution whose output has even height and width"


def to_stack_layers(layers: Sequence[Layer]) -> list[PlaceLayer]:
    """Return the layers with explicit gradients; a convolution and max pooling after it become one layer.

    Raises:
        NotAChainError: If the engine `manual` does not support a layer.
    """
    places: list[PlaceLayer] = []
    pending = list(layers)
    while pending:
        layer = pending.pop(0)
        if layer.kind == "Linear":
            places.append(partial(PlacedDense, layer))
        elif layer.kind == "Flatten":
            places.append(partial(PlacedFlatten, layer))
        elif layer.kind == "Conv2d":
            if layer.stride != (1, 1):
                raise NotAChainError("a convolution has a stride other than 1")
            pool = pending.pop(0) if pending and pending[0].kind in POOLINGS else None
            if pool is not None and (not pool.pools_pairs or any(side % 2 for side in layer.outputs[1:])):
                raise NotAChainError(NO_POOLING)
            if not places:
                places.append(partial(PlacedImages, layer))
            places.append(partial(PlacedConvolution, layer, pool))
        else:
            raise NotAChainError(NO_POOLING if layer.kind in POOLINGS else f"it has a layer {layer.kind}")
    return places
