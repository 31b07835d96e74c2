"""Representation of a model as one flat vector.

The float32 vector contains the p trainable parameters, followed by the persistent float32 buffers, such as the running
mean and variance of BatchNorm. Clients send these buffers, and the server averages them like parameters. Gradients,
solvers, weight decay, clipping, and the server's learning rate and momentum do not affect the buffers. All other state
of a module is constant (see `fedreach.engines.models.state`). Numbers are in torch's order.

Trained parameters of type bfloat16 or float16 are called *narrow*. Buffers of these types are also narrow if the module
trains narrow parameters. The vector contains narrow tensors as float32, and the server averages them as float32. The
module contains the same numbers, rounded to their type (see `fedreach.engines.models.state`).
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
    """Positions of a model's tensors in its flat vector.

    Args:
        parameters: Names of the trained parameters.
        buffers: Names of the averaged buffers.
        shapes: Shapes of the parameters, then of the buffers.
        num_trainable: Number p of trained parameters.
        size: Length d of the vector: p plus the count of numbers in buffers.
        narrow: Names of the tensors that are bfloat16 or float16 in the module.
    """

    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    num_trainable: int
    size: int
    narrow: frozenset[str] = frozenset()

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Return the layout of a module.

        Raises:
            ConfigError: If the module has no trained parameters, a tensor without a size, a trained parameter of an
                unsupported type, or a BatchNorm layer with ``momentum=None``.

        Example:
            >>> Layout.of(nn.Linear(3, 2)).size
            8
        """
        parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        buffers = _averaged_buffers(module, {torch.float32, *(p.dtype for p in parameters.values())})
        if not parameters:
            raise ConfigError(f"The model {type(module).__name__} must have parameters to train; got none.")
        for name, tensor in module_tensors(module).items():
            if is_lazy(tensor):
                raise ConfigError(
                    f"All tensors of a model must have a size; {name} of {type(module).__name__} has none yet. Call "
                    "the model on a batch first."
                )
        for name, tensor in parameters.items():
            if tensor.dtype not in (torch.float32, *NARROW):
                raise ConfigError(
                    f"All trained parameters of a model must be float32, bfloat16 or float16; {name} of "
                    f"{type(module).__name__} is {tensor.dtype}. Call .float() on the model."
                )
        for name, layer in module.named_modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.momentum is None:
                raise ConfigError(
                    f"The momentum of BatchNorm layer {name!r} must be a number, because the server cannot average a "
                    "counter of batches; got None."
                )
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
        """Names of the parameters, then of the buffers."""
        return self.parameters + self.buffers

    @property
    def parameter_sizes(self) -> list[int]:
        """Numbers of values in the trained parameters, in order."""
        return [shape.numel() for shape in self.shapes[: len(self.parameters)]]

    @cached_property
    def output_bias(self) -> int | None:
        """Size of the last linear layer's bias if the p trained numbers end with this bias, otherwise None.

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
        """Return the model's tensors by name, as views of a (d,) vector or of the rows of a (..., d) stack.

        Example:
            >>> layout = Layout.of(nn.Linear(3, 2))
            >>> {name: tuple(t.shape) for name, t in layout.views(torch.zeros(8)).items()}
            {'weight': (2, 3), 'bias': (2,)}
        """
        p = self.num_trainable
        return {**self.parameter_views(vector[..., :p]), **self.buffer_views(vector[..., p:])}

    def parameter_views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the parameters by name, as views of a (..., p) vector."""
        return _named_views(vector, self.parameters, self.shapes[: len(self.parameters)])

    def buffer_views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the buffers by name, as views of a (..., d - p) vector."""
        return _named_views(vector, self.buffers, self.shapes[len(self.parameters) :])


def _named_views(vector: Tensor, names: tuple[str, ...], shapes: tuple[torch.Size, ...]) -> dict[str, Tensor]:
    pieces = torch.split(vector, [shape.numel() for shape in shapes], dim=-1) if names else ()
    stack = vector.shape[:-1]
    return {name: piece.view((*stack, *shape)) for name, piece, shape in zip(names, pieces, shapes, strict=True)}


def narrow_types(module: nn.Module) -> str:
    """Return the narrow types of a module's trained parameters as text, or "" if there are none.

    Example:
        >>> narrow_types(nn.Linear(3, 2)), narrow_types(nn.Linear(3, 2).bfloat16())
        ('', 'bfloat16')
    """
    dtypes = {p.dtype for p in module.parameters() if p.requires_grad} & set(NARROW)
    return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))


def flatten(module: nn.Module) -> Tensor:
    """Return a module's parameters and averaged buffers as a (d,) vector.

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
    """Make a module's tensors views of a (d,) vector, so that both share their memory.

    Narrow tensors become rounded copies with separate gradients (see `fedreach.engines.models.state`).

    Args:
        module: Module.
        vector: (d,) numbers of the module.
        gradient: (p,) vector to which backward() adds gradients. None: bind no gradients.
        layout: Layout of the module. None: compute the layout from the module.
    """
    layout, tensors = layout or Layout.of(module), module_tensors(module)
    for name, view in layout.views(vector).items():
        tensors[name].data = view.to(tensors[name].dtype) if name in layout.narrow else view
    if gradient is not None:
        for name, view in layout.parameter_views(gradient).items():
            tensors[name].grad = None if name in layout.narrow else view


def keep_buffers(module: nn.Module, vector: Tensor, layout: Layout) -> None:
    """Copy averaged buffers into the module's vector if the module's code replaced their tensors."""
    if layout.buffers:
        tensors = dict(module.named_buffers())
        for name, view in layout.buffer_views(vector[layout.num_trainable :]).items():
            if tensors[name].data_ptr() != view.data_ptr():
                view.copy_(tensors[name].detach())


def module_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _averaged_buffers(module: nn.Module, dtypes: set[torch.dtype]) -> dict[str, Tensor]:
    """Return the averaged buffers: the buffers of these types in the module's `state_dict`."""
    hidden = {
        f"{place}.{key}" if place else key
        for place, part in module.named_modules()
        for key in part._non_persistent_buffers_set
    }
    return {name: b for name, b in module.named_buffers() if b.dtype in dtypes and name not in hidden}
