"""What a layer of a chain is: its shapes, and where its numbers stand in the flat vector."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Pair = tuple[int, int]  # along the height, along the width


@dataclass(frozen=True)
class Dense:
    """y = x W^T + b, and max(0, y) where `relu`."""

    inputs: int
    outputs: int
    weight: slice  # where W stands in the flat vector
    bias: slice | None
    relu: bool = False


@dataclass(frozen=True)
class Convolution:
    """Filters at the places of an image, and max(0, y) where `relu`."""

    channels: int
    height: int
    width: int
    filters: int
    kernel: Pair
    stride: Pair
    padding: Pair  # zeros above and below, left and right
    weight: slice  # where the filters stand in the flat vector, see `fedreach.engines.filters`
    bias: slice | None
    relu: bool = False

    @property
    def made(self) -> tuple[int, int, int]:
        """Shape of the outputs."""
        return self.filters, *_places((self.height, self.width), self.kernel, self.stride, self.padding)


@dataclass(frozen=True)
class Pooling:
    """Maxima or means of windows of an image, and max(0, y) where `relu`."""

    kind: Literal["maximum", "mean"]
    channels: int
    height: int
    width: int
    kernel: Pair
    stride: Pair
    padding: Pair
    relu: bool = False

    @property
    def made(self) -> tuple[int, int, int]:
        """Shape of the outputs."""
        return self.channels, *_places((self.height, self.width), self.kernel, self.stride, self.padding)

    @property
    def of_pairs(self) -> bool:
        """Whether it takes maxima of 2 x 2, each place in one window at most."""
        return self.kind == "maximum" and self.kernel == self.stride == (2, 2) and self.padding == (0, 0)


@dataclass(frozen=True)
class GroupNormalisation:
    """Each group of channels of an example to mean 0 and variance 1, factors and sums, and max(0, y) where `relu`."""

    channels: int
    height: int
    width: int
    groups: int
    raised: float  # what is added to a variance
    weight: slice | None
    bias: slice | None
    relu: bool = False


@dataclass(frozen=True)
class Addition:
    """A shortcut: an image of before is added, and max(0, y) where `relu`.

    What is added are the outputs of the first `source` layers, dropout not counted: every so many places of them, with
    channels of zeros before and after theirs.
    """

    channels: int
    height: int
    width: int
    source: int
    every: Pair
    before: int  # channels of zeros
    relu: bool = False


@dataclass(frozen=True)
class Dropout:
    """In training, numbers of examples of this shape are 0 with a probability, else divided by its complement."""

    shape: tuple[int, ...]
    probability: float


@dataclass(frozen=True)
class Embedding:
    """A row of a table for each token of a window."""

    times: int
    vocabulary: int
    outputs: int
    weight: slice


@dataclass(frozen=True)
class Recurrent:
    """An LSTM layer over a window of inputs; of the last layer only the last output goes on."""

    times: int
    inputs: int
    outputs: int
    weight: slice  # where W_ih and W_hh stand in the flat vector, one after the other
    bias: slice | None  # and both biases


@dataclass(frozen=True)
class Flattening:
    """Images to rows, channels first."""

    channels: int
    height: int
    width: int

    @property
    def numbers(self) -> int:
        """Of an example."""
        return math.prod((self.channels, self.height, self.width))


Layer = Dense | Convolution | Pooling | GroupNormalisation | Addition | Dropout | Flattening | Embedding | Recurrent


def _places(size: Pair, kernel: Pair, stride: Pair, padding: Pair) -> Pair:
    """Return how many windows there are, down and across.

    Example:
        >>> _places((28, 28), (5, 5), (1, 1), (2, 2))
        (28, 28)
    """
    down, right = ((size[side] + 2 * padding[side] - kernel[side]) // stride[side] + 1 for side in (0, 1))
    return down, right
