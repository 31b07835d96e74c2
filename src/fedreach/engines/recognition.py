"""Recognition of a module's layers, so that faster engines can compute it."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import fx, nn
from torch.nn import functional as F

from fedreach.engines.models.draws import changed_generators, generator_states, preserve_generators
from fedreach.engines.models.flat import Layout
from fedreach.engines.observation import HOOKS

# -------------------- Descriptions of layers: shapes, and positions in the flat vector

Pair = tuple[int, int]  # along the height, along the width


@dataclass(frozen=True)
class Dense:
    """y = x W^T + b, and max(0, y) where `relu`."""

    inputs: int
    outputs: int
    weight: slice  # position of W in the flat vector
    bias: slice | None
    relu: bool = False


@dataclass(frozen=True)
class Convolution:
    """Filters over an image, and max(0, y) where `relu`."""

    channels: int
    height: int
    width: int
    filters: int
    kernel: Pair
    stride: Pair
    padding: Pair  # zeros above and below, left and right
    weight: slice  # position of the filters in the flat vector
    bias: slice | None
    relu: bool = False

    @property
    def output_shape(self) -> tuple[int, int, int]:
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
    def output_shape(self) -> tuple[int, int, int]:
        """Shape of the outputs."""
        return self.channels, *_places((self.height, self.width), self.kernel, self.stride, self.padding)

    @property
    def of_pairs(self) -> bool:
        """Whether it takes maxima of disjoint 2 x 2 windows."""
        return self.kind == "maximum" and self.kernel == self.stride == (2, 2) and self.padding == (0, 0)


@dataclass(frozen=True)
class GroupNormalisation:
    """Group normalization with optional factors and offsets, and max(0, y) where `relu`."""

    channels: int
    height: int
    width: int
    groups: int
    raised: float  # epsilon, added to the variance
    weight: slice | None
    bias: slice | None
    relu: bool = False


@dataclass(frozen=True)
class Addition:
    """A shortcut: adds an earlier image, and max(0, y) where `relu`.

    The earlier image is the output of the first `source` layers, without counting dropout. It is subsampled by `every`
    and padded with channels of zeros before and after its own.
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
    """Dropout for examples of this shape."""

    shape: tuple[int, ...]
    probability: float


@dataclass(frozen=True)
class Embedding:
    """An embedding of each token of a window."""

    times: int
    vocabulary: int
    outputs: int
    weight: slice


@dataclass(frozen=True)
class Recurrent:
    """An LSTM layer over a window of inputs; only the last output of the last layer is used."""

    times: int
    inputs: int
    outputs: int
    weight: slice  # position of W_ih and W_hh in the flat vector
    bias: slice | None  # position of both biases


@dataclass(frozen=True)
class Flattening:
    """Images to rows, channels first."""

    channels: int
    height: int
    width: int

    @property
    def numbers(self) -> int:
        """Size of an example."""
        return math.prod((self.channels, self.height, self.width))


Layer = Dense | Convolution | Pooling | GroupNormalisation | Addition | Dropout | Flattening | Embedding | Recurrent


def _places(size: Pair, kernel: Pair, stride: Pair, padding: Pair) -> Pair:
    """Return the number of windows along height and width.

    Example:
        >>> _places((28, 28), (5, 5), (1, 1), (2, 2))
        (28, 28)
    """
    down, right = ((size[side] + 2 * padding[side] - kernel[side]) // stride[side] + 1 for side in (0, 1))
    return down, right


# --- Recognized parts of an LSTM: embedding, plain layers, and the last output of the last layer

LAST_OUTPUT: tuple[tuple[Any, ...], ...] = (
    (0, (slice(None), -1)),  # outputs, _ = lstm(x); outputs[:, -1]
    (0, (slice(None), -1, slice(None))),
    (1, 0, -1),  # _, (h, _) = lstm(x); h[-1]
)
"""Indices into an LSTM's result, one after the other, that select the last output of each example."""
OUTPUTS = LAST_OUTPUT[0][:1]


def embedding(name: str, layer: nn.Embedding, times: int, places: MutableMapping[str, slice]) -> Embedding | None:
    """Return the layer and remove its weights from `places`, or return None if it does more than look up."""
    if layer.padding_idx is not None or layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse:
        return None
    return Embedding(times, layer.num_embeddings, layer.embedding_dim, places.pop(f"{name}.weight"))


def recurrent(name: str, layer: nn.LSTM, times: int, places: MutableMapping[str, slice]) -> Iterator[Recurrent] | None:
    """Return the layers, or None if they have dropout, projections, two directions or the batch not first."""
    plain = layer.batch_first and not layer.bidirectional and not layer.proj_size
    if not plain or (layer.dropout and layer.num_layers > 1):
        return None
    return (
        Recurrent(
            times,
            layer.hidden_size if number else layer.input_size,
            layer.hidden_size,
            _together(places, f"{name}.weight_ih_l{number}", f"{name}.weight_hh_l{number}"),
            _together(places, f"{name}.bias_ih_l{number}", f"{name}.bias_hh_l{number}") if layer.bias else None,
        )
        for number in range(layer.num_layers)
    )


def _together(places: MutableMapping[str, slice], first: str, second: str) -> slice:
    """Return the position of both tensors together; in torch's order they are adjacent."""
    first_slice, second_slice = places.pop(first), places.pop(second)
    if first_slice.stop != second_slice.start:
        raise KeyError(second)
    return slice(first_slice.start, second_slice.stop)


# --- Recognized parts of a shortcut: earlier images, subsampled and padded with channels of zeros

SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")


@dataclass(frozen=True)
class Value:
    """Value of a node: the outputs of layers, or a part of them padded with zeros."""

    layers: tuple[Layer, ...]
    shape: tuple[int, ...]
    every: Pair = (1, 1)
    before: int = 0  # channels of zeros


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

MAXIMA = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
MEANS = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")


class NotAChainError(Exception):
    """The model is not a chain of known layers; the message names the reason."""


def chain_of(module: nn.Module, sample: Sequence[int]) -> list[Layer]:
    """Return the layers of a model for samples of this shape.

    Known layers are linear layers, 2-d convolutions, ReLU, maximum and mean pooling, group normalization, dropout and
    flattening, in sequence, as modules or as functions in `forward`. Shortcuts without weights, as in `resnet20`, are
    known as well, and so is an embedding with an LSTM whose last output is used.

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
    was_training, chains, before = module.training, [], generator_states()
    with preserve_generators():
        for mode in (False, True):
            try:
                graph = fx.symbolic_trace(module.train(mode)).graph
            except Exception as error:  # the user's code may fail on values that are not tensors
                raise NotAChainError(f"its code cannot be followed ({type(error).__name__})") from error
            finally:
                module.train(was_training)
            if changed_generators(before):
                raise NotAChainError("its code draws a random number that the graph would keep")
            chains.append(_Chain(module, tuple(sample), places, training=mode).of(graph))
    if chains[0] != [layer for layer in chains[1] if not isinstance(layer, Dropout)]:
        raise NotAChainError("it is another model in training than in evaluation")
    return chains[1]


class _Chain:
    """Collects the layers of a graph, node by node."""

    def __init__(
        self, module: nn.Module, sample: tuple[int, ...], places: Mapping[str, slice], *, training: bool
    ) -> None:
        self.module, self.shape, self.places, self.training = module, sample, dict(places), training
        self.layers: list[Layer] = []
        self.values: dict[fx.Node, Value] = {}
        self.items: tuple[Any, ...] | None = None  # indices into an LSTM's result so far, until the last output

    def of(self, graph: fx.Graph) -> list[Layer]:
        """Return the layers."""
        last: fx.Node | None = None
        unused: set[fx.Node] = set()
        for node in reversed(graph.nodes):
            if node.target is operator.getitem and unused.issuperset(node.users):
                unused.add(node)
        for node in graph.nodes:
            if node.op == "placeholder" and last is None:
                last = node
                self.values[node] = self._current_value()
            elif node.op == "output":
                if node.args[0] is not last or self.items is not None:
                    raise NotAChainError("it does not end with its last layer")
            elif node in unused:
                pass  # such as _ in outputs, _ = lstm(x)
            elif node.op == "call_method" and node.target == "size" and node.args[1:] == (0,):
                pass  # as in x.view(x.size(0), -1)
            elif node.target in (operator.getitem, F.pad) and self.items is None:
                self.values[node] = self._part(node)
            elif node.target in SUMS:
                self._add_shortcut(node, last)
                last = node
                self.values[node] = self._current_value()
            else:
                if not node.args or node.args[0] is not last:
                    raise NotAChainError(f"{node.name} does not follow {last}")
                self._add(node)
                last = node
                self.values[node] = self._current_value()
        if self.places:
            raise NotAChainError(f"{next(iter(self.places))} is used otherwise than by a layer")
        return self.layers

    def _current_value(self) -> Value:
        return Value(tuple(layer for layer in self.layers if not isinstance(layer, Dropout)), self.shape)

    def _value_of(self, argument: Any) -> Value | None:
        return self.values.get(argument) if isinstance(argument, fx.Node) else None

    def _part(self, node: fx.Node) -> Value:
        value = self._value_of(node.args[0])
        part = None if value is None else part_of(node, value)
        if part is None:
            raise NotAChainError(f"{node.name} is no image at every so many places, with channels of zeros")
        return part

    def _add_shortcut(self, node: fx.Node, last: fx.Node | None) -> None:
        addends = [argument for argument in node.args if argument is not last]
        value = self._value_of(addends[0]) if len(node.args) == 2 and len(addends) == 1 else None
        layers = self._current_value().layers
        if value is None or node.kwargs or value.shape != self.shape or len(self.shape) != 3:
            raise NotAChainError(f"{node.name} adds something else than an image of before")
        if layers[: len(value.layers)] != value.layers:
            raise NotAChainError(f"{node.name} adds what stood before a ReLU or a maximum")
        self.layers.append(Addition(*self.shape, len(value.layers), value.every, value.before))

    def _add(self, node: fx.Node) -> None:
        arguments = node.args[1:]
        if node.target is operator.getitem:
            self._item(arguments[0])
        elif node.op == "call_module":
            layer = self.module.get_submodule(str(node.target))
            if arguments or node.kwargs:
                raise NotAChainError(f"{node.target} has further arguments")
            self._add_module(str(node.target), layer)
        elif self.items is not None:
            raise NotAChainError(f"{node.name} sees more than the last output of an LSTM")
        elif node.target in (F.relu, torch.relu, "relu", "relu_"):
            self._relu()
        elif node.target in (F.max_pool2d, torch.max_pool2d):
            self._maxima(**{**dict(zip(MAXIMA, arguments, strict=False)), **node.kwargs})
        elif node.target in (F.avg_pool2d, F.adaptive_avg_pool2d):
            names = MEANS if node.target is F.avg_pool2d else ("output_size",)
            self._means(**{**dict(zip(names, arguments, strict=False)), **node.kwargs})
        elif node.target is F.dropout:
            self._dropout(*arguments, **node.kwargs)
        elif node.target in (torch.flatten, "flatten"):
            dims = {**dict(zip(("start_dim", "end_dim"), arguments, strict=False)), **node.kwargs}
            self._flatten(**{"start_dim": 0, **dims})
        elif node.target in ("view", "reshape") and len(arguments) == 2:
            first, second = arguments
            if second not in (-1, math.prod(self.shape)) or not (first == -1 or isinstance(first, fx.Node)):
                raise NotAChainError(f"{node.name} is not a flattening")
            self._flatten(start_dim=1)
        else:
            raise NotAChainError(f"it calls {getattr(node.target, '__name__', node.target)}")

    def _add_module(self, name: str, layer: nn.Module) -> None:
        kind = type(layer)  # a subclass may do anything
        if isinstance(layer, nn.LSTM) and kind is nn.LSTM:
            self._recurrent(name, layer)
        elif self.items is not None:
            raise NotAChainError(f"{name} sees more than the last output of an LSTM")
        elif isinstance(layer, nn.Embedding) and kind is nn.Embedding:
            self._embedding(name, layer)
        elif isinstance(layer, nn.Linear) and kind is nn.Linear:
            self._dense(name, layer)
        elif isinstance(layer, nn.Conv2d) and kind is nn.Conv2d:
            self._convolution(name, layer)
        elif kind is nn.ReLU:
            self._relu()
        elif isinstance(layer, nn.MaxPool2d) and kind is nn.MaxPool2d:
            self._maxima(**{option: getattr(layer, option) for option in MAXIMA})
        elif isinstance(layer, nn.AvgPool2d) and kind is nn.AvgPool2d:
            self._means(**{option: getattr(layer, option) for option in MEANS})
        elif isinstance(layer, nn.AdaptiveAvgPool2d) and kind is nn.AdaptiveAvgPool2d:
            self._means(output_size=layer.output_size)
        elif isinstance(layer, nn.GroupNorm) and kind is nn.GroupNorm:
            self._group_norm(name, layer)
        elif isinstance(layer, nn.Dropout) and kind is nn.Dropout:
            self._dropout(layer.p, self.training)
        elif isinstance(layer, nn.Flatten) and kind is nn.Flatten:
            self._flatten(layer.start_dim, layer.end_dim)
        elif kind is not nn.Identity:
            raise NotAChainError(f"it has a layer {kind.__name__}")

    def _parameters(self, name: str, layer: nn.Linear | nn.Conv2d | nn.GroupNorm) -> dict[str, Any]:
        """Return the positions of the layer's weights and remove them, so that no other layer can use them."""
        bias = f"{name}.bias" if layer.bias is not None else None
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
        plain = layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros"
        if not plain or isinstance(layer.padding, str) or len(self.shape) != 3:
            raise NotAChainError(f"{name} has dilation, groups or padding of another kind")
        convolution = Convolution(
            *self.shape,
            layer.out_channels,
            _pair(layer.kernel_size),
            _pair(layer.stride),
            _pair(layer.padding),
            **self._parameters(name, layer),
        )
        self.layers.append(convolution)
        self.shape = convolution.output_shape

    def _embedding(self, name: str, layer: nn.Embedding) -> None:
        if self.layers or len(self.shape) != 1:
            raise NotAChainError(f"{name} does not see tokens")
        try:
            lookup = embedding(name, layer, self.shape[0], self.places)
        except KeyError as error:
            raise NotAChainError(f"{name} shares its weights") from error
        if lookup is None:
            raise NotAChainError(f"{name} does more than look up")
        self.layers.append(lookup)
        self.shape = (lookup.times, lookup.outputs)

    def _recurrent(self, name: str, layer: nn.LSTM) -> None:
        last = self.layers[-1] if self.layers else None
        sees_all = self.items is None if isinstance(last, Embedding) else self.items == OUTPUTS
        if not isinstance(last, Embedding | Recurrent) or not sees_all:
            raise NotAChainError(f"{name} does not see all outputs of an embedding or an LSTM")
        recurrent_layers = recurrent(name, layer, last.times, self.places)
        if recurrent_layers is None:
            raise NotAChainError(f"{name} drops, projects, looks back or has batches inside")
        try:
            self.layers.extend(recurrent_layers)
        except KeyError as error:
            raise NotAChainError(f"{name} shares its weights") from error
        self.shape, self.items = (layer.hidden_size,), ()

    def _item(self, item: Any) -> None:
        """Follow an index into the result of an LSTM."""
        items = (*self.items, item) if self.items is not None else None
        if items is None or not any(items == pattern[: len(items)] for pattern in LAST_OUTPUT):
            raise NotAChainError("something else is asked for than the last output of an LSTM")
        self.items = None if items in LAST_OUTPUT else items

    def _relu(self) -> None:
        # ReLU commutes with flattening, and with dropout, which keeps signs.
        for number in reversed(range(len(self.layers))):
            layer = self.layers[number]
            if isinstance(layer, Embedding | Recurrent):
                break
            if not isinstance(layer, Flattening | Dropout):
                self.layers[number] = replace(layer, relu=True)
                return
        raise NotAChainError("a ReLU does not follow a layer with weights")

    def _group_norm(self, name: str, layer: nn.GroupNorm) -> None:
        if len(self.shape) != 3:
            raise NotAChainError(f"{name} does not see images")
        places = {"weight": None, "bias": None} if not layer.affine else self._parameters(name, layer)
        self.layers.append(GroupNormalisation(*self.shape, layer.num_groups, layer.eps, **places))

    def _dropout(self, p: Any = 0.5, training: Any = True, inplace: Any = False) -> None:
        if training and not self.training:
            raise NotAChainError("it drops numbers in evaluation, too")
        if training and p:
            self.layers.append(Dropout(self.shape, float(p)))

    def _maxima(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: Any = False,
        return_indices: Any = False,
    ) -> None:
        if _pair(dilation) != (1, 1) or ceil_mode or return_indices:
            raise NotAChainError("a pooling has dilation, a last window that is cut off, or returns places")
        self._pool("maximum", _pair(kernel_size), kernel_size if stride is None else stride, padding)

    def _means(
        self,
        kernel_size: Any = None,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: Any = False,
        count_include_pad: Any = True,
        divisor_override: Any = None,
        output_size: Any = None,
    ) -> None:
        if output_size is not None:
            if output_size not in (1, (1, 1)) or len(self.shape) != 3:
                raise NotAChainError("an adaptive pooling makes more than one place")
            kernel_size = stride = self.shape[1:]
        if ceil_mode or divisor_override is not None or (not count_include_pad and _pair(padding) != (0, 0)):
            raise NotAChainError("a pooling divides by another number than its window has")
        self._pool("mean", _pair(kernel_size), kernel_size if stride is None else stride, padding)

    def _pool(self, kind: Literal["maximum", "mean"], kernel: Pair, stride: Any, padding: Any) -> None:
        if len(self.shape) != 3:
            raise NotAChainError("a pooling does not see images")
        # max(0, y) commutes with maximum pooling: a gradient only passes a positive maximum.
        before = [number for number, layer in enumerate(self.layers) if not isinstance(layer, Dropout)]
        last = self.layers[before[-1]] if before else None
        later = kind == "maximum" and isinstance(last, Convolution) and last.relu
        if later and isinstance(last, Convolution):
            self.layers[before[-1]] = replace(last, relu=False)
        pooling = Pooling(kind, *self.shape, kernel, _pair(stride), _pair(padding), relu=later)
        self.layers.append(pooling)
        self.shape = pooling.output_shape

    def _flatten(self, start_dim: Any, end_dim: Any = -1) -> None:
        inside = any(isinstance(layer, Embedding | Recurrent) for layer in self.layers) and len(self.shape) > 1
        if inside or start_dim != 1 or end_dim not in (-1, len(self.shape)):
            raise NotAChainError("a flattening leaves dimensions, or takes the batch with it")
        if len(self.shape) == 3 and any(not isinstance(layer, Dropout) for layer in self.layers):
            self.layers.append(Flattening(*self.shape))
        self.shape = (math.prod(self.shape),)


def _pair(size: Any) -> Pair:
    """Return a size along height and width, which torch takes as one number or two."""
    down, right = (size, size) if isinstance(size, int) else size
    return int(down), int(right)
