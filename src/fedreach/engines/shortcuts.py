"""Which parts of a shortcut are known: images of before, every so many places of them, with channels of zeros."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from fedreach.engines.layers import Layer, Pair

SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")


@dataclass(frozen=True)
class Value:
    """What a node stands for: the outputs of layers, or a part of them with zeros around it."""

    layers: tuple[Layer, ...]
    shape: tuple[int, ...]
    every: Pair = (1, 1)
    before: int = 0  # channels of zeros


def part_of(node: fx.Node, value: Value) -> Value | None:
    """Return what a node makes of an image by ``x[..., ::2, ::2]`` or ``F.pad(x, (0, 0, 0, 0, 1, 1))``, if it does."""
    if len(value.shape) != 3 or len(node.args) != 2:
        return None
    how: Any = node.args[1]
    if not isinstance(how, tuple | list):
        return None
    channels, height, width = value.shape
    if node.target is F.pad:
        sides: list[Any] = list(how)
        options = {"mode": "constant", "value": None, **node.kwargs}
        plain = options["mode"] == "constant" and options["value"] in (None, 0)
        if not plain or len(sides) != 6 or any(sides[:4]) or min(sides[4:]) < 0:
            return None
        before, after = sides[4:]
        return replace(value, shape=(channels + before + after, height, width), before=value.before + before)
    *others, down, right = how
    steps = [part.step or 1 for part in (down, right) if isinstance(part, slice) and part.start is part.stop is None]
    if others not in ([...], [slice(None), slice(None)]) or len(steps) != 2:
        return None
    shape = (channels, -(-height // steps[0]), -(-width // steps[1]))
    return replace(value, shape=shape, every=(value.every[0] * steps[0], value.every[1] * steps[1]))
