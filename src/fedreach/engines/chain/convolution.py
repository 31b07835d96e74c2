"""Convolutions as products with banded matrices: fast for few filters, where a processor's own kernels are slow.

A tile is J neighbouring outputs of one image row. They depend on a window of `filter rows x (J + filter columns - 1) x
channels` inputs, and a matrix T that repeats each filter J times, shifted, takes the window to the tile. The windows of
a batch are copied side by side once; forward and both backward passes are then one large product each. A larger J
multiplies more zeros and copies less.

Images lie as (a, c, h, w, b), the examples last, so that everything beside the products runs over long pieces of
memory. With pooling, T has all left members of the pairs before all right ones, for the same reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedreach.engines.chain.layers import Memory, Stack

TILE = 48  # a tile has at least so many numbers where it can, as narrower products are slow


@dataclass(frozen=True)
class BandedConvolution:
    """Filters at every place of an image, then maxima of 2 x 2 where `pool`, then max(0, y) where `relu`."""

    channels: int
    height: int
    width: int
    filters: int
    rows: int  # of a filter
    columns: int
    padding: tuple[int, int]  # zeros above and below, left and right
    weight: slice  # where the filters stand in the flat vector, see `fedreach.engines.filters`
    bias: slice | None
    relu: bool = False
    pool: bool = False

    @property
    def padded(self) -> tuple[int, int]:
        """Height and width of the inputs with the zeros around them."""
        return self.height + 2 * self.padding[0], self.width + 2 * self.padding[1]

    @property
    def made(self) -> tuple[int, int]:
        """Height and width after the filters."""
        return self.padded[0] - self.rows + 1, self.padded[1] - self.columns + 1

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the outputs."""
        h, w = self.made
        return (h // 2, w // 2) if self.pool else (h, w)

    @property
    def tile(self) -> int:
        """J, outputs of a tile: a divisor of the width, even where pairs are pooled."""
        width = self.made[1]
        fitting = [j for j in range(1, width + 1) if width % j == 0 and not (self.pool and j % 2)]
        return next((j for j in fitting if j * self.filters >= TILE), fitting[-1])

    def inside(self, image: Tensor) -> Tensor:
        """Return images (a, c, h, w, b) without the zeros around them."""
        (above, left) = self.padding
        return image[:, :, above : above + self.height, left : left + self.width]

    def on(self, stack: Stack, batch: int, memory: Memory) -> PlacedConvolution:
        return PlacedConvolution(self, stack, batch, memory)


class PlacedConvolution:
    """A convolution upon a stack. All views are made once: in a small step they would cost as much as the products."""

    def __init__(self, layer: BandedConvolution, stack: Stack, b: int, memory: Memory) -> None:
        a, c, o, (h, w), j = len(stack.weights), layer.channels, layer.filters, layer.made, layer.tile
        (height, width), rows, window, tiles = layer.padded, layer.rows, layer.columns + j - 1, w // j
        filters, sides, depth = (o, rows, layer.columns * c), 2 if layer.pool else 1, rows * window * c
        self.relu, self.filters = layer.relu, o
        self.weight, self.weight_gradient = (part.view(a, *filters) for part in stack.views(layer.weight, -1))
        self.bias = self.bias_gradient = None
        if layer.bias is not None:
            self.bias, self.bias_gradient = stack.views(layer.bias, o)

        # T is (left or right, J / 2, o) x (rows, window, c); zeros stay zero only in memory of one's own.
        self.matrix, self.dmatrix = (
            torch.zeros(a, j * o, depth, device=stack.weights.device),
            memory.take(a, j * o, depth),
        )
        shape = (a, sides, j // sides, *filters)
        strides = (j * o * depth, j // sides * o * depth + c, o * depth + sides * c, depth, window * c, 1)
        self.bands = self.matrix.as_strided(shape, strides)  # where each shifted filter stands
        dbands = self.dmatrix.as_strided(shape, strides, self.dmatrix.storage_offset())
        self.dbands = [band for side in dbands.unbind(1) for band in side.unbind(1)]

        padded = any(layer.padding)
        self.image = torch.zeros(a, c, height, width, b, device=self.matrix.device) if padded else None
        self.inside = None if self.image is None else layer.inside(self.image)
        self.windows = memory.take(a, rows, window, c, h, tiles, b)
        self.flat_windows = self.windows.view(a, depth, h * tiles * b)
        row, column = width * b, height * width * b
        self.window_strides = (c * column, row, b, column, row, j * b, 1)
        self.x: Tensor | None = None
        self.seen = self.windows

        dx = memory.take(a, c, height, width, b)
        self.dx, self.whole_dx = layer.inside(dx), dx
        self.gathered = [
            (dx[:, :, r : r + h, t * j : t * j + window], self.windows[:, r, :, :, :, t].permute(0, 2, 3, 1, 4))
            for r in range(rows)
            for t in range(tiles)
        ]
        self.tiles, self.y = memory.take(a, j * o, h * tiles * b), memory.take(a, o, *layer.shape, b)
        pooled = (a, o, layer.shape[0], tiles, j // sides, b)
        self.tiled = self.y.view(pooled).permute(0, 4, 1, 2, 3, 5)  # (a, J or J / 2, o, h, tiles, b)
        self.pairs = _Pairs(self.tiles, self.tiled, h, memory) if layer.pool else None

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
        if self.bias is not None:  # the same for all members of a pair
            self.y.add_(self.bias[:, :, None, None, None])
        return self.y.clamp_min_(0) if self.relu else self.y

    def backward(self, dy: Tensor, *, further: bool, rate: float | None) -> Tensor:
        # What the outputs were is not needed any more: their gradients take their places.
        if self.relu:
            torch.ops.aten.threshold_backward.grad_input(dy, self.y, 0.0, grad_input=self.y)
        else:
            self.y.copy_(dy)
        if self.bias is not None and self.bias_gradient is not None:
            _follow(self.bias, self.bias_gradient, [self.y.sum((2, 3, 4))], rate)
        if self.pairs is not None:
            self.pairs.spread()
        else:
            self.tiles.view(self.tiled.shape).copy_(self.tiled)
        torch.bmm(self.tiles, self.flat_windows.transpose(1, 2), out=self.dmatrix)
        _follow(self.weight, self.weight_gradient, self.dbands, rate)
        if further:
            torch.bmm(self.matrix.transpose(1, 2), self.tiles, out=self.flat_windows)
            self.whole_dx.zero_()
            for target, part in self.gathered:  # an input is in several windows
                target.add_(part)
        return self.dx


def _follow(weight: Tensor, gradient: Tensor, parts: Sequence[Tensor], rate: float | None) -> None:
    """Write the sum of the parts as the gradient, or follow it with this rate."""
    if rate is None:
        gradient.copy_(parts[0])
        for part in parts[1:]:
            gradient.add_(part)
    else:
        for part in parts:
            weight.sub_(part, alpha=rate)


class _Pairs:
    """Maxima of 2 x 2, of which ties go to the first in reading order, as torch has it.

    Args:
        tiles: (a, J o, h tiles b), left members before right ones; gradients take the place of the values.
        out: (a, J / 2, o, h / 2, tiles, b) view of the maxima, and of their gradients.
    """

    def __init__(self, tiles: Tensor, out: Tensor, rows: int, memory: Memory) -> None:
        a, half, filters, _, count, b = out.shape
        self.left, self.right = tiles.view(a, 2, -1).unbind(1)
        self.across = memory.take(*self.left.shape)  # the larger of left and right
        self.by_right = memory.take(*self.left.shape)  # how much larger the right one is
        self.upper, self.lower = self.across.view(a, half, filters, rows // 2, 2, count, b).unbind(4)
        self.by_lower, self.out = memory.take(*self.upper.shape), out

    def larger(self) -> None:
        """Write the maxima."""
        torch.maximum(self.left, self.right, out=self.across)
        torch.sub(self.right, self.left, out=self.by_right)
        torch.sub(self.lower, self.upper, out=self.by_lower)
        torch.maximum(self.upper, self.lower, out=self.out)

    def spread(self) -> None:
        """Write the gradient of the maxima to where they come from, and zero elsewhere."""
        _share(self.out, self.by_lower, self.upper, self.lower)
        _share(self.across, self.by_right, self.left, self.right)


def _share(dy: Tensor, by_second: Tensor, first: Tensor, second: Tensor) -> None:
    """Hand each number to the second where that was larger, else to the first."""
    torch.ops.aten.threshold_backward.grad_input(dy, by_second, 0.0, grad_input=second)
    torch.sub(dy, second, out=first)
