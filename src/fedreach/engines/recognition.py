"""Recognition of a module's layers for the engines `native` and `manual`."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from fedreach.engines.models.draws import changed_generators, generator_states, preserve_generators
from fedreach.engines.models.flat import Layout
from fedreach.engines.models.state import constants_of, copy_module, counts_batches
from fedreach.engines.observation import HOOKS

# -------------------- Descriptions of layers: shapes, and positions in the flat vector

Pair = tuple[int, int]  # along height and width


@dataclass(frozen=True)
class Layer:
    """Layer of a chain, optionally followed by a ReLU.

    Attributes:
        kind: Name of the layer in `torch.nn`, or ``"Addition"`` for a shortcut that adds an earlier image.
        shape: Shape of an example's inputs: (numbers,), (channels, height, width), or (length, numbers) for a sequence.
        outputs: Shape of an example's outputs. Only the last output of the last LSTM is used.
        weight: Position of the weights in the flat vector. For an LSTM, position of both matrices.
        bias: Position of the biases in the flat vector.
        relu: Whether a ReLU follows.
        kernel: Size of filters or pooling windows.
        stride: Stride of filters or pooling windows.
        padding: Rows of zeros at top and bottom, and columns of zeros at left and right.
        groups: Number of groups in a group normalization.
        amount: Number that a normalization adds to the variance, or probability of dropout.
        source: Number of layers that precede the image that an addition adds, not counting dropout.
        every: Steps in which the added image is subsampled.
        before: Number of channels of zeros before the channels of the added image.
    """

    kind: str
    shape: tuple[int, ...]
    outputs: tuple[int, ...]
    weight: slice | None = None
    bias: slice | None = None
    relu: bool = False
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    groups: int = 1
    amount: float = 0.0
    source: int = 0
    every: Pair = (1, 1)
    before: int = 0

    @property
    def pools_pairs(self) -> bool:
        """Whether the layer is max pooling over disjoint 2 x 2 windows."""
        return self.kind == "MaxPool2d" and self.kernel == self.stride == (2, 2) and self.padding == (0, 0)


LAST_OUTPUT: tuple[tuple[Any, ...], ...] = (
    (0, (slice(None), -1)),  # outputs, _ = lstm(x); outputs[:, -1]
    (0, (slice(None), -1, slice(None))),
    (1, 0, -1),  # _, (h, _) = lstm(x); h[-1]
)
"""Sequences of indices into an LSTM's result that select the last output of each example."""
OUTPUTS = LAST_OUTPUT[0][:1]


# --- Shortcuts: earlier images, subsampled and padded with channels of zeros

SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")


@dataclass(frozen=True)
class Value:
    """Value of a node in the graph: the output of layers, optionally subsampled and padded with zeros."""

    layers: tuple[Layer, ...]
    shape: tuple[int, ...]
    every: Pair = (1, 1)
    before: int = 0  # number of channels of zeros


def part_of(node: fx.Node, value: Value) -> Value | None:
    """Return the value of ``x[..., ::2, ::2]`` or ``F.pad(x, (0, 0, 0, 0, 1, 1))``, or None for other nodes."""
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
    *leading, down, right = how
    steps = [part.step or 1 for part in (down, right) if isinstance(part, slice) and part.start is part.stop is None]
    if leading not in ([...], [slice(None), slice(None)]) or len(steps) != 2:
        return None
    shape = (channels, -(-height // steps[0]), -(-width // steps[1]))
    return replace(value, shape=shape, every=(value.every[0] * steps[0], value.every[1] * steps[1]))


# --- Recognition of chains of layers from a traced graph

FUNCTIONS: dict[Any, type[nn.Module]] = {
    F.relu: nn.ReLU,
    torch.relu: nn.ReLU,
    "relu": nn.ReLU,
    "relu_": nn.ReLU,
    F.max_pool2d: nn.MaxPool2d,
    torch.max_pool2d: nn.MaxPool2d,
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    torch.flatten: nn.Flatten,
    "flatten": nn.Flatten,
}
"""Functions in `forward`, with the layers that have the same arguments."""


class NotAChainError(Exception):
    """Error for a model that is not a chain of known layers; the message states the reason."""


def chain_of(module: nn.Module, sample: Sequence[int]) -> list[Layer]:
    """Return the layers of a model for examples of the given shape, without changing the model.

    Known layers are linear layers, 2-d convolutions, ReLU, maximum and mean pooling, group normalization, dropout and
    flattening. They can be modules or functions in `forward`. Two structures are also known: shortcuts without weights,
    as in `resnet20`, and an embedding with an LSTM whose last output is used.

    Raises:
        NotAChainError: If the model contains other layers, or constants (see `fedreach.engines.models.state`).

    Example:
        >>> chain_of(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), (4,))[0].relu
        True
    """
    module, layout = copy_module(module), Layout.of(module)
    for name in (*layout.buffers, *constants_of(module)):
        if not counts_batches(name):
            raise NotAChainError(f"{name} is not trained")
    if any(getattr(layer, hooks) for layer in module.modules() for hooks in HOOKS):
        raise NotAChainError("it has hooks")
    ends = accumulate(shape.numel() for shape in layout.shapes)
    places = {
        name: slice(end - shape.numel(), end)
        for name, shape, end in zip(layout.names, layout.shapes, ends, strict=True)
    }
    chains, before = [], generator_states()
    with preserve_generators():
        for mode in (False, True):
            try:
                graph = fx.symbolic_trace(module.train(mode)).graph
            except Exception as error:  # the user's code may fail on the symbols that torch.fx passes
                raise NotAChainError(f"its code cannot be traced ({type(error).__name__})") from error
            if changed_generators(before):
                raise NotAChainError("its code draws a random number, which would become a constant of the graph")
            chains.append(_Chain(module, tuple(sample), places, training=mode).of(graph))
    if chains[0] != [layer for layer in chains[1] if layer.kind != "Dropout"]:
        raise NotAChainError("it differs between training and evaluation")
    return chains[1]


class _Chain:
    """Collects the layers of a graph, node by node."""

    def __init__(
        self, module: nn.Module, sample: tuple[int, ...], places: Mapping[str, slice], *, training: bool
    ) -> None:
        self.module, self.shape, self.places, self.training = module, sample, dict(places), training
        self.layers: list[Layer] = []
        self.values: dict[fx.Node, Value] = {}
        self.items: tuple[Any, ...] | None = None  # indices so far into an LSTM's result, until the last output

    def of(self, graph: fx.Graph) -> list[Layer]:
        """Return the layers."""
        last: fx.Node | None = None
        unused: set[fx.Node] = set()
        for node in reversed(graph.nodes):
            if node.target is operator.getitem and unused.issuperset(node.users):
                unused.add(node)
        for node in graph.nodes:
            if node.op == "output":
                if node.args[0] is not last or self.items is not None:
                    raise NotAChainError("it does not end with its last layer")
                continue
            if node in unused or (node.op == "call_method" and node.target == "size" and node.args[1:] == (0,)):
                continue  # such as `_` in ``outputs, _ = lstm(x)``, or ``x.size(0)`` in ``x.view(x.size(0), -1)``
            if node.target in (operator.getitem, F.pad) and self.items is None:
                self.values[node] = self._part(node)
                continue
            if last is not None or node.op != "placeholder":
                if node.target in SUMS:
                    self._add_shortcut(node, last)
                elif not node.args or node.args[0] is not last:
                    raise NotAChainError(f"{node.name} does not follow {last}")
                else:
                    self._add(node)
            last = node
            self.values[node] = Value(self._without_dropout(), self.shape)
        if self.places:
            raise NotAChainError(f"{next(iter(self.places))} is used outside of a layer")
        return self.layers

    def _without_dropout(self) -> tuple[Layer, ...]:
        return tuple(layer for layer in self.layers if layer.kind != "Dropout")

    def _value_of(self, argument: Any) -> Value | None:
        return self.values.get(argument) if isinstance(argument, fx.Node) else None

    def _part(self, node: fx.Node) -> Value:
        value = self._value_of(node.args[0])
        part = None if value is None else part_of(node, value)
        if part is None:
            raise NotAChainError(f"{node.name} is not a subsampled or zero-padded image")
        return part

    def _add_shortcut(self, node: fx.Node, last: fx.Node | None) -> None:
        addends = [argument for argument in node.args if argument is not last]
        value = self._value_of(addends[0]) if len(node.args) == 2 and len(addends) == 1 else None
        if value is None or node.kwargs or value.shape != self.shape or len(self.shape) != 3:
            raise NotAChainError(f"{node.name} does not add an earlier image")
        if self._without_dropout()[: len(value.layers)] != value.layers:
            raise NotAChainError(f"{node.name} adds an image from before a ReLU or a maximum")
        self._append("Addition", self.shape, source=len(value.layers), every=value.every, before=value.before)

    def _append(self, kind: str, outputs: tuple[int, ...], **options: Any) -> None:
        self.layers.append(Layer(kind, self.shape, outputs, **options))
        self.shape = outputs

    def _add(self, node: fx.Node) -> None:
        arguments = node.args[1:]
        if node.target is operator.getitem:
            self._item(arguments[0])
        elif node.op == "call_module":
            if arguments or node.kwargs:
                raise NotAChainError(f"{node.target} has additional arguments")
            self._add_module(str(node.target), self.module.get_submodule(str(node.target)))
        elif self.items is not None:
            raise NotAChainError(f"{node.name} uses more than the last output of an LSTM")
        elif node.target is F.dropout:
            self._drop(*arguments, **node.kwargs)
        elif (kind := FUNCTIONS.get(node.target)) is not None:
            defaults: dict[str, Any] = {"start_dim": 0} if kind is nn.Flatten and not arguments else {}
            self._add_module(node.name, kind(*arguments, **(defaults | node.kwargs)))
        elif node.target in ("view", "reshape") and len(arguments) == 2:
            first, second = arguments
            if second not in (-1, math.prod(self.shape)) or not (first == -1 or isinstance(first, fx.Node)):
                raise NotAChainError(f"{node.name} is not a flattening")
            self._flatten(node.name, nn.Flatten())
        else:
            raise NotAChainError(f"it calls {getattr(node.target, '__name__', node.target)}")

    def _add_module(self, name: str, layer: nn.Module) -> None:
        if self.items is not None and type(layer) is not nn.LSTM:
            raise NotAChainError(f"{name} uses more than the last output of an LSTM")
        add = ADD.get(type(layer))  # no subclasses, which may override anything
        if add is None:
            raise NotAChainError(f"it has a layer {type(layer).__name__}")
        add(self, name, layer)

    def _take(self, name: str, *tensors: str) -> slice:
        """Return the position of a layer's adjacent tensors, and remove them, so that no other layer can use them."""
        places = [self.places.pop(f"{name}.{tensor}", None) for tensor in tensors]
        valid_places = [place for place in places if place is not None]
        if len(valid_places) < len(places) or any(
            first.stop != second.start for first, second in pairwise(valid_places)
        ):
            raise NotAChainError(f"{name} shares its weights")
        return slice(valid_places[0].start, valid_places[-1].stop)

    def _parameters(self, name: str, layer: nn.Linear | nn.Conv2d | nn.GroupNorm) -> dict[str, Any]:
        """Return the positions of the layer's weights."""
        weight = self._take(name, "weight")
        return {"weight": weight, "bias": None if layer.bias is None else self._take(name, "bias")}

    def _dense(self, name: str, layer: nn.Linear) -> None:
        if len(self.shape) != 1:
            raise NotAChainError(f"the inputs of {name} are not flat")
        self._append("Linear", (layer.out_features,), **self._parameters(name, layer))

    def _convolution(self, name: str, layer: nn.Conv2d) -> None:
        plain = layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros"
        if not plain or isinstance(layer.padding, str) or len(self.shape) != 3:
            raise NotAChainError(f"{name} has dilation, groups or an unsupported padding")
        sizes = layer.kernel_size, layer.stride, layer.padding
        self._append_windows("Conv2d", layer.out_channels, *sizes, **self._parameters(name, layer))

    def _append_windows(self, kind: str, channels: int, kernel: Any, stride: Any, padding: Any, **options: Any) -> None:
        """Append a layer of filters or windows over an image."""
        kernel, stride, padding = (_pair(size) for size in (kernel, stride, padding))
        places = [
            (size + 2 * zeros - extent) // step + 1
            for size, extent, step, zeros in zip(self.shape[1:], kernel, stride, padding, strict=True)
        ]
        self._append(kind, (channels, *places), kernel=kernel, stride=stride, padding=padding, **options)

    def _embedding(self, name: str, layer: nn.Embedding) -> None:
        if self.layers or len(self.shape) != 1:
            raise NotAChainError(f"the inputs of {name} are not tokens")
        if layer.padding_idx is not None or layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse:
            raise NotAChainError(f"{name} has an unsupported option of nn.Embedding")
        self._append("Embedding", (*self.shape, layer.embedding_dim), weight=self._take(name, "weight"))

    def _recurrent(self, name: str, layer: nn.LSTM) -> None:
        last = self.layers[-1] if self.layers else None
        kind = None if last is None else last.kind
        if last is None or (kind, self.items) not in (("Embedding", None), ("LSTM", OUTPUTS)):
            raise NotAChainError(f"the inputs of {name} are not all outputs of an embedding or an LSTM")
        plain = layer.batch_first and not layer.bidirectional and not layer.proj_size
        if not plain or (layer.dropout and layer.num_layers > 1):
            raise NotAChainError(f"{name} has dropout or a projection, is bidirectional, or is not batch_first")
        self.shape = last.outputs
        for number in range(layer.num_layers):
            weight = self._take(name, f"weight_ih_l{number}", f"weight_hh_l{number}")
            bias = self._take(name, f"bias_ih_l{number}", f"bias_hh_l{number}") if layer.bias else None
            self._append("LSTM", (self.shape[0], layer.hidden_size), weight=weight, bias=bias)
        self.shape, self.items = (layer.hidden_size,), ()

    def _item(self, item: Any) -> None:
        """Follow an index into the result of an LSTM."""
        items = (*self.items, item) if self.items is not None else None
        if items is None or not any(items == pattern[: len(items)] for pattern in LAST_OUTPUT):
            raise NotAChainError("it uses more than the last output of an LSTM")
        self.items = None if items in LAST_OUTPUT else items

    def _relu(self, name: str, layer: nn.ReLU) -> None:
        # ReLU commutes with flattening, and with dropout, which preserves signs.
        for number in reversed(range(len(self.layers))):
            kind = self.layers[number].kind
            if kind in ("Embedding", "LSTM"):
                break
            if kind not in ("Flatten", "Dropout"):
                self.layers[number] = replace(self.layers[number], relu=True)
                return
        raise NotAChainError("a ReLU does not follow a layer with weights")

    def _group_norm(self, name: str, layer: nn.GroupNorm) -> None:
        if len(self.shape) != 3:
            raise NotAChainError(f"the inputs of {name} are not images")
        places = self._parameters(name, layer) if layer.affine else {}
        self._append("GroupNorm", self.shape, groups=layer.num_groups, amount=layer.eps, **places)

    def _dropout(self, name: str, layer: nn.Dropout) -> None:
        self._drop(layer.p, self.training)

    def _drop(self, p: Any = 0.5, training: Any = True, inplace: Any = False) -> None:
        if training and not self.training:
            raise NotAChainError("it uses dropout in evaluation")
        if training and p:
            self._append("Dropout", self.shape, amount=float(p))

    def _maxima(self, name: str, layer: nn.MaxPool2d) -> None:
        if _pair(layer.dilation) != (1, 1) or layer.ceil_mode or layer.return_indices:
            raise NotAChainError("a pooling has dilation, ceil_mode or return_indices")
        # ReLU commutes with maximum pooling: a gradient only passes a positive maximum.
        before = [number for number, earlier in enumerate(self.layers) if earlier.kind != "Dropout"]
        last = self.layers[before[-1]] if before else None
        later = last is not None and last.kind == "Conv2d" and last.relu
        if last is not None and later:
            self.layers[before[-1]] = replace(last, relu=False)
        self._pool("MaxPool2d", layer.kernel_size, layer.stride, layer.padding, relu=later)

    def _means(self, name: str, layer: nn.AvgPool2d) -> None:
        uneven = not layer.count_include_pad and _pair(layer.padding) != (0, 0)
        if layer.ceil_mode or layer.divisor_override is not None or uneven:
            raise NotAChainError("a mean pooling does not divide by the size of its window")
        self._pool("AvgPool2d", layer.kernel_size, layer.stride, layer.padding)

    def _mean(self, name: str, layer: nn.AdaptiveAvgPool2d) -> None:
        if layer.output_size not in (1, (1, 1)) or len(self.shape) != 3:
            raise NotAChainError("an adaptive pooling has more than one output position")
        self._pool("AvgPool2d", self.shape[1:], self.shape[1:], 0)

    def _pool(self, kind: str, kernel: Any, stride: Any, padding: Any, **options: Any) -> None:
        if len(self.shape) != 3:
            raise NotAChainError("the inputs of a pooling are not images")
        self._append_windows(kind, self.shape[0], kernel, stride, padding, **options)

    def _flatten(self, name: str, layer: nn.Flatten) -> None:
        inside = any(earlier.kind in ("Embedding", "LSTM") for earlier in self.layers) and len(self.shape) > 1
        if inside or layer.start_dim != 1 or layer.end_dim not in (-1, len(self.shape)):
            raise NotAChainError("a flattening keeps dimensions, or includes the batch dimension")
        flat = (math.prod(self.shape),)
        if len(self.shape) == 3 and self._without_dropout():
            self._append("Flatten", flat)
        self.shape = flat


ADD: dict[type[nn.Module], Any] = {
    nn.Identity: lambda *_: None,
    nn.Linear: _Chain._dense,
    nn.Conv2d: _Chain._convolution,
    nn.ReLU: _Chain._relu,
    nn.MaxPool2d: _Chain._maxima,
    nn.AvgPool2d: _Chain._means,
    nn.AdaptiveAvgPool2d: _Chain._mean,
    nn.GroupNorm: _Chain._group_norm,
    nn.Dropout: _Chain._dropout,
    nn.Flatten: _Chain._flatten,
    nn.Embedding: _Chain._embedding,
    nn.LSTM: _Chain._recurrent,
}
"""Types of layers, with the method that adds a layer of each type."""


def _pair(size: Any) -> Pair:
    """Return a size along height and width; torch accepts one number or two."""
    down, right = (size, size) if isinstance(size, int) else size
    return int(down), int(right)
