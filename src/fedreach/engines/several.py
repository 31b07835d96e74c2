"""What a module is given and returns, in the form that all engines share: hooks on a copy of it.

Records of several inputs become tensors just before the model, and classes become the last axis just after it. So
whatever calls the module handles one tensor of examples and (m, positions..., c) outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedreach._util.arrays import AnyArray
from fedreach._util.errors import ConfigError
from fedreach.data.several import has_names

NO_FIELDS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class UnpackInputs:
    """Hands a module several inputs, as a forward hook before it.

    Args:
        layout: Of the records, see `fedreach.data.several`.

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
        """Return (m, ...) tensors by name, of (m, bytes) records."""
        parts: dict[str, Tensor] = {}
        for name in self.layout.names or ():
            kind, offset = (self.layout.fields or NO_FIELDS)[name][:2]
            # A copy begins at a multiple of every item size, which `view` needs.
            field_bytes = packed[:, offset : offset + kind.itemsize].clone(memory_format=torch.contiguous_format)
            parts[name] = field_bytes.view(getattr(torch, kind.base.name)).reshape(len(packed), *kind.shape)
        return parts


@dataclass(frozen=True)
class ClassesLast:
    """Moves classes to the last axis of what a module returns, as a forward hook.

    Models return (m, positions..., c), or (m, c, positions...) as torch's losses take it.

    Args:
        positions: Shape of an example's labels.
        num_classes: c.

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
    """Have a module take records of several inputs, and return classes last; nothing where data need neither.

    Raises:
        ConfigError: If classes could be the first or the last axis of what it returns.
    """
    if layout is not None:
        module.register_forward_pre_hook(UnpackInputs(layout), with_kwargs=True)
    if positions and (*positions, num_classes) == (num_classes, *positions):
        raise ConfigError(
            f"model: outputs of shape (m, {', '.join(map(str, (*positions, num_classes)))}) could have classes first "
            "or last, as there are as many classes as positions along each axis. Give the model one more class, and "
            f"the data num_classes = {num_classes + 1}."
        )
    if positions:
        module.register_forward_hook(ClassesLast(positions, num_classes))


def layout_of(x: AnyArray) -> np.dtype[Any] | None:
    """Return the layout of records of several inputs; None where examples are one array."""
    return None if x.dtype.names is None else x.dtype


def as_bytes(x: AnyArray) -> AnyArray:
    """Return records as (n, bytes) numbers that torch can hold; other arrays as they are."""
    if x.dtype.names is None:
        return x
    plain = np.ascontiguousarray(x)
    return plain.view(np.uint8).reshape(len(x), x.dtype.itemsize)
