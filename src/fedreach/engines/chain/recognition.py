"""Which models are chains of layers that `layers` and `convolution` know, whatever their code looks like."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from fedreach.engines.chain.convolution import Convolution
from fedreach.engines.chain.layers import Dense, Flatten, Images, Layer
from fedreach.models.flat import Layout

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class NotAChainError(Exception):
    """Says what of a model is not known."""


def chain_of(module: nn.Module, sample: Sequence[int]) -> list[Layer]:
    """Return the layers of a model for samples of this shape.

    Known are linear layers, 2-d convolutions with stride 1, ReLU, max pooling of 2 x 2 and flattening, one after the
    other, as modules or as functions in `forward`.

    Raises:
        NotAChainError: If the model has anything else.

    Example:
        >>> chain_of(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), (4,))[0].relu
        True
    """
    layout = Layout.of(module)
    if layout.buffers:
        raise NotAChainError(f"{layout.buffers[0]} is not trained")
    if any(getattr(layer, hooks) for layer in module.modules() for hooks in HOOKS):
        raise NotAChainError("it has hooks")
    ends = accumulate(shape.numel() for shape in layout.shapes)
    places = {
        name: slice(end - shape.numel(), end)
        for name, shape, end in zip(layout.names, layout.shapes, ends, strict=True)
    }
    was_training, found = module.training, []
    for mode in (False, True):
        try:
            graph = fx.symbolic_trace(module.train(mode)).graph
        except Exception as error:  # whatever the user's code does with what is no tensor
            raise NotAChainError(f"its code cannot be followed ({type(error).__name__})") from error
        finally:
            module.train(was_training)
        found.append(_Chain(module, tuple(sample), places).of(graph))
    if found[0] != found[1]:
        raise NotAChainError("it is another model in training than in evaluation")
    return found[1]


class _Chain:
    """The layers of a graph, as it is walked through."""

    def __init__(self, module: nn.Module, sample: tuple[int, ...], places: Mapping[str, slice]) -> None:
        self.module, self.shape, self.places = module, sample, dict(places)
        self.layers: list[Layer] = []

    def of(self, graph: fx.Graph) -> list[Layer]:
        """Return the layers."""
        last: fx.Node | None = None
        for node in graph.nodes:
            if node.op == "placeholder" and last is None:
                last = node
            elif node.op == "output":
                if node.args[0] is not last:
                    raise NotAChainError("it does not end with its last layer")
            elif node.op == "call_method" and node.target == "size" and node.args[1:] == (0,):
                pass  # as x.view(x.size(0), -1) asks for it
            else:
                if not node.args or node.args[0] is not last:
                    raise NotAChainError(f"{node.name} does not follow {last}")
                self._add(node)
                last = node
        if self.places:
            raise NotAChainError(f"{next(iter(self.places))} is used otherwise than by a layer")
        return self.layers

    def _add(self, node: fx.Node) -> None:
        others = node.args[1:]
        if node.op == "call_module":
            layer = self.module.get_submodule(str(node.target))
            if others or node.kwargs:
                raise NotAChainError(f"{node.target} has further arguments")
            self._add_module(str(node.target), layer)
        elif node.target in (F.relu, torch.relu, "relu", "relu_"):
            self._relu()
        elif node.target in (F.max_pool2d, torch.max_pool2d):
            names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
            self._pool(**{**dict(zip(names, others, strict=False)), **node.kwargs})
        elif node.target in (torch.flatten, "flatten"):
            dims = {**dict(zip(("start_dim", "end_dim"), others, strict=False)), **node.kwargs}
            self._flatten(**{"start_dim": 0, **dims})
        elif node.target in ("view", "reshape") and len(others) == 2:
            first, second = others
            if second not in (-1, math.prod(self.shape)) or not (first == -1 or isinstance(first, fx.Node)):
                raise NotAChainError(f"{node.name} is not a flattening")
            self._flatten(start_dim=1)
        else:
            raise NotAChainError(f"it calls {getattr(node.target, '__name__', node.target)}")

    def _add_module(self, name: str, layer: nn.Module) -> None:
        kind = type(layer)  # a subclass may do anything
        if isinstance(layer, nn.Linear) and kind is nn.Linear:
            self._dense(name, layer)
        elif isinstance(layer, nn.Conv2d) and kind is nn.Conv2d:
            self._convolution(name, layer)
        elif kind is nn.ReLU:
            self._relu()
        elif isinstance(layer, nn.MaxPool2d) and kind is nn.MaxPool2d:
            names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
            self._pool(**{name: getattr(layer, name) for name in names})
        elif isinstance(layer, nn.Flatten) and kind is nn.Flatten:
            self._flatten(layer.start_dim, layer.end_dim)
        elif kind is not nn.Identity:
            raise NotAChainError(f"it has a layer {kind.__name__}")

    def _parameters(self, name: str, layer: nn.Module) -> dict[str, Any]:
        """Return where the weights stand, which nobody else uses."""
        bias = f"{name}.bias" if getattr(layer, "bias", None) is not None else None
        try:
            return {
                "weight": self.places.pop(f"{name}.weight"),
                "bias": None if bias is None else self.places.pop(bias),
            }
        except KeyError as error:
            raise NotAChainError(f"{name} shares its weights") from error

    def _dense(self, name: str, layer: nn.Linear) -> None:
        if len(self.shape) != 1:
            raise NotAChainError(f"{name} does not see flat samples")
        self.layers.append(Dense(layer.in_features, layer.out_features, **self._parameters(name, layer)))
        self.shape = (layer.out_features,)

    def _convolution(self, name: str, layer: nn.Conv2d) -> None:
        plain = layer.stride == layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros"
        if not plain or isinstance(layer.padding, str) or len(self.shape) != 3:
            raise NotAChainError(f"{name} has strides, dilation, groups or padding of another kind")
        (rows, columns), (above, left) = layer.kernel_size, layer.padding
        made = Convolution(
            *self.shape, layer.out_channels, rows, columns, (above, left), **self._parameters(name, layer)
        )
        if not self.layers:
            self.layers.append(Images(*self.shape))
        self.layers.append(made)
        self.shape = (layer.out_channels, *made.shape)

    def _relu(self) -> None:
        last = self.layers[-1] if self.layers else None
        if not isinstance(last, Dense | Convolution):
            raise NotAChainError("a ReLU does not follow a layer with weights")
        self.layers[-1] = replace(last, relu=True)

    def _pool(self, kernel_size: Any, stride: Any = None, **others: Any) -> None:
        last = self.layers[-1] if self.layers else None
        plain = {"padding": (0, (0, 0)), "dilation": (1, (1, 1)), "ceil_mode": (False,), "return_indices": (False,)}
        if (
            kernel_size not in (2, (2, 2))
            or stride not in (None, 2, (2, 2))
            or any(value not in plain[name] for name, value in others.items())
            or not isinstance(last, Convolution)
            or last.pool
            or any(side % 2 for side in last.made)
        ):
            raise NotAChainError("a pooling is not of 2 x 2 after a convolution with an even result")
        # max(0, y) and the maximum of four may change places: a gradient only passes a maximum that is positive.
        self.layers[-1] = made = replace(last, pool=True)
        self.shape = (last.filters, *made.shape)

    def _flatten(self, start_dim: Any, end_dim: Any = -1) -> None:
        if start_dim != 1 or end_dim not in (-1, len(self.shape)):
            raise NotAChainError("a flattening leaves dimensions, or takes the batch with it")
        if self.layers and len(self.shape) == 3:
            self.layers.append(Flatten(math.prod(self.shape)))
        self.shape = (math.prod(self.shape),)
