"""Hooks for models with several inputs, and for models with outputs at positions.

One hook unpacks records of several inputs into tensors. The other hook moves the classes to the last axis of the
outputs. So engines process one tensor of examples and (m, positions..., c) outputs for all models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedreach._util.arrays import AnyArray
from fedreach._util.errors import ConfigError
from fedreach.data.several import has_names


@dataclass(frozen=True)
class UnpackInputs:
    """Forward pre-hook that unpacks records into several inputs of a module.

    Args:
        layout: Layout of the records (see `fedreach.data.several`).

    Example:
        >>> layout = np.dtype([("0", "<f4", (2,)), ("1", "<i8")])
        >>> x = torch.from_numpy(np.array([([1, 2], 3)], layout).view(np.uint8).reshape(1, -1))
        >>> UnpackInputs(layout)(nn.Identity(), (x,), {})
        ((tensor([[1., 2.]]), tensor([3])), {})
    """

    layout: np.dtype[Any]

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        (packed,) = args
        parts = self.tensors(packed)
        return ((), {**kwargs, **parts}) if has_names(self.layout) else (tuple(parts.values()), dict(kwargs))

    def tensors(self, packed: Tensor) -> Mapping[str, Tensor]:
        """Return the (m, ...) tensors in (m, bytes) records by name."""
        parts: dict[str, Tensor] = {}
        for name, (kind, offset, *_) in (self.layout.fields or {}).items():
            # `view` requires aligned memory, which a copy has.
            field_bytes = packed[:, offset : offset + kind.itemsize].clone(memory_format=torch.contiguous_format)
            parts[name] = field_bytes.view(getattr(torch, kind.base.name)).reshape(len(packed), *kind.shape)
        return parts


@dataclass(frozen=True)
class ClassesLast:
    """Forward hook that moves the classes to the last axis of a module's outputs.

    Models can return outputs of shape (m, positions..., c), or of shape (m, c, positions...), which torch's losses
    expect.

    Args:
        positions: Shape of an example's labels.
        num_classes: Number of classes c.

    Example:
        >>> ClassesLast((4, 5), 3)(nn.Identity(), (), torch.zeros(2, 3, 4, 5)).shape
        torch.Size([2, 4, 5, 3])
    """

    positions: tuple[int, ...]
    num_classes: int

    def __call__(self, module: nn.Module, inputs: Any, returned: Any) -> Any:
        if isinstance(returned, Tensor) and returned.shape[1:] == (self.num_classes, *self.positions):
            return returned.movedim(1, -1)
        return returned


def add_hooks(module: nn.Module, layout: np.dtype[Any] | None, positions: tuple[int, ...], num_classes: int) -> None:
    """Add the hooks that the data require (see `UnpackInputs` and `ClassesLast`).

    Raises:
        ConfigError: If the shape of the outputs does not determine the axis of the classes.
    """
    if layout is not None:
        module.register_forward_pre_hook(UnpackInputs(layout), with_kwargs=True)
    if positions and (*positions, num_classes) == (num_classes, *positions):
        raise ConfigError(
            f"model: the axis of the {num_classes} classes must be clear from the shape of the outputs; got "
            f"(m, {', '.join(map(str, (*positions, num_classes)))}). Add an unused class to the model, and set "
            f"num_classes = {num_classes + 1} in the data."
        )
    if positions:
        module.register_forward_hook(ClassesLast(positions, num_classes))


def layout_of(x: AnyArray) -> np.dtype[Any] | None:
    """Return the layout of records of several inputs, or None if the examples are one array."""
    return None if x.dtype.names is None else x.dtype


def as_bytes(x: AnyArray) -> AnyArray:
    """Return records as (n, bytes) integers, which torch supports; return other arrays unchanged."""
    if x.dtype.names is None:
        return x
    plain = np.ascontiguousarray(x)
    return plain.view(np.uint8).reshape(len(x), x.dtype.itemsize)
