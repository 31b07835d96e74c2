"""A model as one flat vector.

The vector is float32. It holds the p trainable parameters first, and then the persistent float32 buffers, such as the
running mean and variance of BatchNorm. These buffers are sent and averaged like parameters, with the same weights. No
gradient, solver correction, weight decay, clipping, server learning rate or server momentum changes them. All other
state of a module is constant (see `fedreach.engines.models.state`). Numbers are in torch's order, so that a module sees
tensors with torch's default strides.

Trained parameters of bfloat16 or float16 are *narrow*, as are buffers of these types in a module that trains such
parameters. The vector holds them as well, and is averaged and sent as float32. The module holds them rounded once to
their own type (see `fedreach.engines.models.state`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedreach._util.errors import ConfigError

NARROW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Layout:
    """Position of each tensor of a model in its flat vector."""

    parameters: tuple[str, ...]  # that are trained
    buffers: tuple[str, ...]  # that are averaged
    shapes: tuple[torch.Size, ...]  # of the parameters, then of the buffers
    num_trainable: int  # p
    size: int  # d = p + numbers in buffers
    narrow: frozenset[str] = frozenset()  # names of those that are bfloat16 or float16 in the module

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Return the layout of a module.

        Raises:
            ConfigError: If the module has nothing to train, a trained parameter has no size yet or a type other than
                float32, bfloat16 and float16, or a BatchNorm layer averages its statistics cumulatively.

        Example:
            >>> Layout.of(nn.Linear(3, 2)).size
            8
        """
        parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        buffers = _averaged_buffers(module, {torch.float32, *(p.dtype for p in parameters.values())})
        if not parameters:
            raise ConfigError(f"The model {type(module).__name__} has no parameters to train.")
        for name, tensor in module_tensors(module).items():
            if is_lazy(tensor):
                raise ConfigError(
                    f"All tensors of a model must have a size; {name} of {type(module).__name__} has none yet. Run a "
                    "batch through the model first."
                )
        for name, tensor in parameters.items():
            if tensor.dtype not in (torch.float32, *NARROW):
                raise ConfigError(
                    f"All trained parameters of a model must be float32, bfloat16 or float16; {name} of "
                    f"{type(module).__name__} is {tensor.dtype}. Call .float() on the model."
                )
        for name, layer in module.named_modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.momentum is None:
                raise ConfigError(f"BatchNorm layer {name!r} has momentum=None, whose counter cannot be averaged.")
        tensors = [*parameters.values(), *buffers.values()]
        p = sum(t.numel() for t in parameters.values())
        return cls(
            parameters=tuple(parameters),
            buffers=tuple(buffers),
            shapes=tuple(t.shape for t in tensors),
            num_trainable=p,
            size=p + sum(t.numel() for t in buffers.values()),
            narrow=frozenset(name for name, t in {**parameters, **buffers}.items() if t.dtype in NARROW),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of parameters, then of buffers."""
        return self.parameters + self.buffers

    @cached_property
    def output_bias(self) -> int | None:
        """Size of the last linear layer's bias, at the end of the p numbers. None if the model ends otherwise.

        Example:
            >>> Layout.of(nn.Linear(3, 2)).output_bias, Layout.of(nn.Linear(3, 2, bias=False)).output_bias
            (2, None)
        """
        trained = self.shapes[: len(self.parameters)]
        layer = self.parameters[-1].removesuffix("bias")
        if self.parameters[-2:] != (f"{layer}weight", f"{layer}bias") or len(trained[-2]) != 2:
            return None
        return trained[-1].numel()

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the named tensors of a (d,) vector, or of the rows of a (..., d) stack; views, not copies.

        Example:
            >>> layout = Layout.of(nn.Linear(3, 2))
            >>> {name: tuple(t.shape) for name, t in layout.views(torch.zeros(8)).items()}
            {'weight': (2, 3), 'bias': (2,)}
        """
        p = self.num_trainable
        return {**self.parameter_views(vector[..., :p]), **self.buffer_views(vector[..., p:])}

    def parameter_views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the named parameters in the first p numbers."""
        return _named_views(vector, self.parameters, self.shapes[: len(self.parameters)])

    def buffer_views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the named buffers in the last d - p numbers."""
        return _named_views(vector, self.buffers, self.shapes[len(self.parameters) :])


def _named_views(vector: Tensor, names: tuple[str, ...], shapes: tuple[torch.Size, ...]) -> dict[str, Tensor]:
    pieces = torch.split(vector, [shape.numel() for shape in shapes], dim=-1) if names else ()
    stack = vector.shape[:-1]
    return {name: piece.view((*stack, *shape)) for name, piece, shape in zip(names, pieces, shapes, strict=True)}


def narrow_types(module: nn.Module) -> str:
    """Return the narrow types among a module's trained parameters, bfloat16 or float16, in words; else "".

    Example:
        >>> narrow_types(nn.Linear(3, 2)), narrow_types(nn.Linear(3, 2).bfloat16())
        ('', 'bfloat16')
    """
    dtypes = {p.dtype for p in module.parameters() if p.requires_grad} & set(NARROW)
    return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))


def flatten(module: nn.Module) -> Tensor:
    """Return a copy of a module's numbers as its (d,) vector.

    Example:
        >>> flatten(nn.Linear(3, 2)).shape
        torch.Size([8])
    """
    layout, tensors = Layout.of(module), module_tensors(module)
    vector = torch.empty(layout.size, device=tensors[layout.names[0]].device)
    for name, view in layout.views(vector).items():
        view.copy_(tensors[name].detach())
    return vector


def bind(module: nn.Module, vector: Tensor, gradient: Tensor | None = None, *, layout: Layout | None = None) -> None:
    """Make a module's tensors views of a (d,) vector, so that both share their numbers.

    Narrow tensors are rounded copies with their own gradients (see `fedreach.engines.models.state`).

    Args:
        module: The module.
        vector: (d,) numbers of the module.
        gradient: (p,) vector into which backward() adds gradients. None leaves gradients unchanged.
        layout: Layout of the module. None computes it.
    """
    layout, tensors = layout or Layout.of(module), module_tensors(module)
    for name, view in layout.views(vector).items():
        tensors[name].data = view.to(tensors[name].dtype) if name in layout.narrow else view
    if gradient is not None:
        for name, view in layout.parameter_views(gradient).items():
            tensors[name].grad = None if name in layout.narrow else view


def keep_buffers(module: nn.Module, vector: Tensor, layout: Layout) -> None:
    """Copy averaged buffers into the vector that a module is bound to, where its code has created new tensors."""
    if layout.buffers:
        tensors = dict(module.named_buffers())
        for name, view in layout.buffer_views(vector[layout.num_trainable :]).items():
            if tensors[name].data_ptr() != view.data_ptr():
                view.copy_(tensors[name].detach())


def module_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers of a module by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _averaged_buffers(module: nn.Module, dtypes: set[torch.dtype]) -> dict[str, Tensor]:
    """Return the averaged buffers: those of these types in the module's `state_dict`."""
    hidden = {
        f"{place}.{key}" if place else key
        for place, part in module.named_modules()
        for key in part._non_persistent_buffers_set
    }
    return {name: b for name, b in module.named_buffers() if b.dtype in dtypes and name not in hidden}
