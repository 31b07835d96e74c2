"""Layers whose gradients are written out, for a stack of clients at a time.

A layer describes itself; `on` places it upon a stack: its filters are views of the stack's rows, its outputs lie in
memory that is used again in every step. Activations are (a, b, ...), a clients with b examples each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedreach.engines.layers import Dense


class Memory:
    """One piece of memory that is handed out anew for each shape of a stack, and grows where it must.

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
        """Return a contiguous tensor whose numbers mean nothing yet."""
        size = math.prod(shape)
        if self._next == len(self._pieces):
            self._pieces.append(torch.empty(0, device=self.device))
        if self._pieces[self._next].numel() < size:
            self._pieces[self._next] = torch.empty(size, device=self.device)
        self._next += 1
        return self._pieces[self._next - 1][:size].view(*shape)

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        return sum(piece.numel() for piece in self._pieces)

    def begin_again(self) -> None:
        """Forget who was handed what."""
        self._next = 0


@dataclass(frozen=True)
class Stack:
    """Models of a clients and where their gradients are written: rows of two (a, p) matrices."""

    weights: Tensor
    gradients: Tensor
    begin: int = 0  # where in the flat vector the rows begin

    def views(self, part: slice, *shape: int) -> tuple[Tensor, Tensor]:
        """Return weights and gradients of a part of the vector, (a, *shape) each."""
        a, part = len(self.weights), slice(part.start - self.begin, part.stop - self.begin)
        return self.weights[:, part].view(a, *shape), self.gradients[:, part].view(a, *shape)


class PlacedLayer(Protocol):
    """A layer upon a stack."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs; they are valid until the next call."""

    def backward(self, dy: Tensor, *, further: bool, rate: float | None) -> Tensor:
        """Write the gradient of the weights, or follow it with this rate; return that of the inputs where `further`.

        `dy` is the gradient of the outputs; it may be written over.
        """


class StackLayer(Protocol):
    """What a layer is, before it is placed upon a stack."""

    def on(self, stack: Stack, batch: int, memory: Memory) -> PlacedLayer:
        """Place it upon a stack for batches of this size."""


@dataclass(frozen=True)
class StackedDense(Dense):
    """A dense layer of all clients at once."""

    def on(self, stack: Stack, batch: int, memory: Memory) -> PlacedDense:
        return PlacedDense(self, stack, batch, memory)


class PlacedDense:
    def __init__(self, layer: Dense, stack: Stack, batch: int, memory: Memory) -> None:
        a, inputs, outputs = len(stack.weights), layer.inputs, layer.outputs
        self.relu = layer.relu
        self.weight, self.weight_gradient = stack.views(layer.weight, outputs, inputs)
        self.transposed = self.weight.transpose(1, 2)
        self.row = self.row_gradient = None
        if layer.bias is not None:
            self.row, self.row_gradient = stack.views(layer.bias, 1, outputs)
        self.x = self.y = memory.take(a, batch, outputs)
        self.dx = torch.empty(0, device=self.y.device)  # made when it is asked for: a first layer never is
        self.inputs = (a, batch, inputs)
        self.ones = torch.ones(a, 1, batch, device=self.y.device)  # a product with it is a sum over the batch

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        if self.row is None:
            torch.bmm(x, self.transposed, out=self.y)
        else:
            torch.baddbmm(self.row, x, self.transposed, out=self.y)
        return self.y.clamp_min_(0) if self.relu else self.y

    def backward(self, dy: Tensor, *, further: bool, rate: float | None) -> Tensor:
        if self.relu:
            torch.ops.aten.threshold_backward.grad_input(dy, self.y, 0.0, grad_input=dy)
        if further:  # before W moves
            if not self.dx.numel():
                self.dx = torch.empty(self.inputs, device=dy.device)
            torch.bmm(dy, self.weight, out=self.dx)
        if rate is not None:
            self.weight.baddbmm_(dy.transpose(1, 2), self.x, alpha=-rate)
            if self.row is not None:
                self.row.baddbmm_(self.ones, dy, alpha=-rate)
            return self.dx
        torch.bmm(dy.transpose(1, 2), self.x, out=self.weight_gradient)
        if self.row_gradient is not None:
            torch.bmm(self.ones, dy, out=self.row_gradient)
        return self.dx


@dataclass(frozen=True)
class Images:
    """Rows (a, b, c h w) to images with the examples last, (a, c, h, w, b), as convolutions take them."""

    channels: int
    height: int
    width: int

    def on(self, stack: Stack, batch: int, memory: Memory) -> PlacedImages:
        return PlacedImages(memory.take(len(stack.weights), self.channels, self.height, self.width, batch))


class PlacedImages:
    def __init__(self, y: Tensor) -> None:
        self.y, self.columns = y, y.view(len(y), -1, y.shape[-1])

    def forward(self, x: Tensor) -> Tensor:
        for column, row in zip(self.columns, x, strict=True):  # a copy of a matrix is faster than one of a stack
            column.copy_(row.t())
        return self.y

    def backward(self, dy: Tensor, *, further: bool, rate: float | None) -> Tensor:
        return dy  # nobody asks for it: samples stay as they are


@dataclass(frozen=True)
class Flatten:
    """Images (a, c, h, w, b) to rows in torch's order, (a, b, c h w)."""

    numbers: int  # c h w

    def on(self, stack: Stack, batch: int, memory: Memory) -> PlacedFlatten:
        return PlacedFlatten(memory.take(len(stack.weights), self.numbers, batch))


class PlacedFlatten:
    def __init__(self, dx: Tensor) -> None:
        self.dx, self.images = dx, dx.shape

    def forward(self, x: Tensor) -> Tensor:
        self.images = x.shape
        return x.view(self.dx.shape).transpose(1, 2)

    def backward(self, dy: Tensor, *, further: bool, rate: float | None) -> Tensor:
        return self.dx.copy_(dy.transpose(1, 2)).view(self.images)


LossGradient = Callable[[Tensor, Tensor], Tensor]


class TrainingStep:
    """One step of a stack: forward, the gradient of each client's mean loss, backward.

    Each client of the stack has b examples of the shape `sample`; activations lie in the memory.
    """

    def __init__(
        self,
        layers: Sequence[StackLayer],
        stack: Stack,
        batch: int,
        sample: Sequence[int],
        outputs: int,
        memory: Memory,
    ) -> None:
        a = len(stack.weights)
        self.inputs = memory.take(a * batch, *sample)
        self.x = self.inputs.view(a, batch, -1)
        self.layers = [layer.on(stack, batch, memory) for layer in layers]
        self.first = 1 if isinstance(self.layers[0], PlacedImages) else 0  # that has weights
        self.dlogits = memory.take(a, batch, outputs)

    def step(
        self, gradient: LossGradient, rate: float | None, shift: Tensor | None, *, further: bool = False
    ) -> Tensor:
        """Write the gradients, or with a rate follow them, for the examples that stand in `inputs`.

        Returns the gradient of the inputs where `further`.

        Args:
            gradient: Of the loss by the (a, b, c) outputs, which it is handed, and writes it into the second argument.
            rate: Step size; None only writes the gradients.
            shift: (a, c) what the loss adds to the outputs of each client.
            further: Whether the inputs are the outputs of a layer before.
        """
        x = self.x
        for layer in self.layers:
            x = layer.forward(x)
        if shift is not None:
            x = x + shift[:, None]
        dy = gradient(x, self.dlogits)
        for number in range(len(self.layers) - 1, self.first - 1, -1):
            dy = self.layers[number].backward(dy, further=further or number > self.first, rate=rate)
        return dy
