"""Filters with their channels last, as the engine `chain` reads them.

The flat vector holds every tensor as torch does. Convolutions are faster on filters whose channels lie last, so the
engine turns the vectors that it is handed, and turns back those that it returns.
"""

from __future__ import annotations

from itertools import accumulate

from torch import Tensor

from fedreach.models.flat import Layout


class ChannelsLast:
    """Turns the filters of flat vectors, (out, channels, height, width) in torch, to (out, height, width, channels).

    Args:
        layout: Of the model.

    Example:
        >>> import torch
        >>> filters = ChannelsLast(Layout.of(torch.nn.Conv2d(2, 1, (1, 2), bias=False)))
        >>> turned = filters.turned(torch.tensor([1.0, 2.0, 3.0, 4.0]))
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

    def turned(self, vectors: Tensor) -> Tensor:
        """Return (..., p) vectors with the filters' channels last; the same tensor where there are no filters."""
        if not self.filters:
            return vectors
        found, stack = vectors.clone(), vectors.shape[:-1]
        for place, (out, channels, height, width) in self.filters:
            filters = vectors[..., place].reshape(*stack, out, channels, height, width)
            found[..., place].view(*stack, out, height, width, channels).copy_(filters.movedim(-3, -1))
        return found

    def turn_back(self, vectors: Tensor, rows: Tensor) -> None:
        """Turn these rows of (k, p) vectors back to torch's order, in place."""
        for place, (out, channels, height, width) in self.filters:
            filters = vectors[:, place][rows].view(-1, out, height, width, channels)
            vectors[rows, place] = filters.movedim(-1, -3).flatten(1)
