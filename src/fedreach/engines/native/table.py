"""The layers of a model as C is told of them: a row of whole numbers each, the fields of `Layer` in `layers.h`."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from fedreach.arrays import Ints
from fedreach.engines.layers import (
    Addition,
    Convolution,
    Dense,
    Dropout,
    Embedding,
    Flattening,
    GroupNormalisation,
    Layer,
    Pooling,
    Recurrent,
)
from fedreach.engines.recognition import NotAChainError

MAX_LAYERS = 64  # as `layers.h` says
LARGEST_WINDOW = 256  # as `pooling.h` says
DENSE, CONVOLUTION, MAXIMUM, MEAN, NORM, DROPOUT, ADDITION, EMBEDDING, RECURRENT = range(9)


@dataclass
class _Row:
    """A row, in the order of `layers.h`."""

    kind: int
    inputs: int
    outputs: int
    weight: int = -1
    bias: int = -1
    relu: bool = False
    pooled: bool = False
    channels: int = 1
    height: int = 1
    width: int = 1
    filters: int = 0
    rows: int = 0
    columns: int = 0
    down: int = 1
    right: int = 1
    above: int = 0
    left: int = 0
    groups: int = 1
    source: int = 0
    source_down: int = 1
    source_right: int = 1
    before: int = 0
    amount: float = 0.0

    def numbers(self) -> list[int]:
        """Return it as whole numbers; the last holds the bits of what is none."""
        *whole, amount = astuple(self)
        return [*map(int, whole), int(np.float64(amount).view(np.int64))]


def layer_table(layers: Sequence[Layer]) -> Ints:
    """Return a row for each layer; maxima of 2 x 2 are in that of the convolution before them.

    Raises:
        NotAChainError: If C does not know a layer, or their order.
    """
    rows: list[_Row] = []
    channels = 1  # that the next linear layer finds side by side
    sources = {layer.source for layer in layers if isinstance(layer, Addition)}
    stand = [0]  # after how many rows the outputs of so many layers stand, dropout not counted
    for number, layer in enumerate(layers):
        if isinstance(layer, Dense):
            rows.append(_dense(layer, channels))
            channels = 1
        elif isinstance(layer, Flattening):
            channels = layer.channels if rows else 1
        elif isinstance(layer, Dropout):
            _drop(layer, rows)
        elif rows and rows[-1].kind == DENSE:
            raise NotAChainError("it makes images of flat outputs")
        elif isinstance(layer, Embedding):
            rows.append(_Row(EMBEDDING, layer.times, layer.outputs, layer.weight.start, channels=layer.vocabulary))
        elif isinstance(layer, Recurrent):
            rows.append(_Row(RECURRENT, layer.inputs, layer.outputs, *_places(layer), width=layer.times))
        elif isinstance(layer, Convolution):
            rows.append(_convolution(layer))
        elif isinstance(layer, GroupNormalisation):
            rows.append(_norm(layer))
        elif isinstance(layer, Addition):
            rows.append(_addition(layer, stand[layer.source]))
        elif (
            layer.of_pairs
            and number
            and isinstance(layers[number - 1], Convolution)
            and len(stand) - 1 not in sources  # or what the convolution makes is needed once more
        ):
            rows[-1].outputs, rows[-1].pooled = int(np.prod(layer.made)), True
            rows[-1].relu |= layer.relu
        else:
            rows.append(_pooling(layer))
        if not isinstance(layer, Dropout):
            stand.append(len(rows))
    if not rows or rows[-1].kind != DENSE:
        raise NotAChainError("its last layer is not linear")
    if len(rows) > MAX_LAYERS:
        raise NotAChainError(f"it has more than {MAX_LAYERS} layers")
    return np.array([row.numbers() for row in rows], np.int64)


def vocabulary_of(table: Ints) -> int | None:
    """Return how many tokens the first layer knows; None if it does not see tokens."""
    first = _Row(*table[0].tolist())
    return first.channels if first.kind == EMBEDDING else None


def first_outputs_of(table: Ints) -> int:
    """Return how many numbers the first layer makes of an example: where it is not formed, no client sees as many."""
    return _Row(*table[0].tolist()).outputs


def products_of(table: Ints) -> int:
    """Return how many products an example costs on its way forward."""
    found = 0
    for row in (_Row(*numbers) for numbers in table.tolist()):
        if row.kind == DENSE:
            found += row.inputs * row.outputs
        elif row.kind == CONVOLUTION:
            found += row.outputs * (4 if row.pooled else 1) * row.rows * row.columns * row.channels
        elif row.kind == RECURRENT:
            found += row.width * 4 * row.outputs * (row.inputs + row.outputs)
    return found


def _dense(layer: Dense, channels: int) -> _Row:
    return _Row(DENSE, layer.inputs, layer.outputs, *_places(layer), layer.relu, channels=channels)


def _convolution(layer: Convolution) -> _Row:
    size = layer.channels, layer.height, layer.width
    return _Row(
        CONVOLUTION,
        int(np.prod(size)),
        int(np.prod(layer.made)),
        *_places(layer),
        layer.relu,
        False,
        *size,
        layer.filters,
        *layer.kernel,
        *layer.stride,
        *layer.padding,
    )


def _pooling(layer: Pooling) -> _Row:
    if layer.kind == "maximum" and layer.kernel[0] * layer.kernel[1] > LARGEST_WINDOW:
        raise NotAChainError(f"it takes maxima of more than {LARGEST_WINDOW} places")
    size = layer.channels, layer.height, layer.width
    return _Row(
        MAXIMUM if layer.kind == "maximum" else MEAN,
        int(np.prod(size)),
        int(np.prod(layer.made)),
        relu=layer.relu,
        channels=layer.channels,
        height=layer.height,
        width=layer.width,
        filters=layer.channels,
        rows=layer.kernel[0],
        columns=layer.kernel[1],
        down=layer.stride[0],
        right=layer.stride[1],
        above=layer.padding[0],
        left=layer.padding[1],
    )


def _norm(layer: GroupNormalisation) -> _Row:
    row = _image(NORM, layer.channels, layer.height, layer.width)
    row.weight, row.bias = _places(layer)
    row.relu, row.groups, row.amount = layer.relu, layer.groups, layer.raised
    return row


def _addition(layer: Addition, source: int) -> _Row:
    row = _image(ADDITION, layer.channels, layer.height, layer.width)
    row.relu, row.source, row.before = layer.relu, source, layer.before
    row.source_down, row.source_right = layer.every
    return row


def _drop(layer: Dropout, rows: list[_Row]) -> None:
    """Add a dropout: to the linear layer before it, or after one of images."""
    if not rows or rows[-1].kind == EMBEDDING or (rows[-1].kind in (DENSE, DROPOUT, RECURRENT) and rows[-1].amount):
        raise NotAChainError("a dropout does not follow a layer with weights")
    if layer.probability >= 1:
        raise NotAChainError("a dropout leaves nothing")
    if rows[-1].kind in (DENSE, RECURRENT):
        rows[-1].amount = layer.probability
        return
    last = rows[-1]
    high, wide = _made(last)
    rows.append(_image(DROPOUT, last.filters, high, wide))
    rows[-1].amount = layer.probability


def _image(kind: int, channels: int, height: int, width: int) -> _Row:
    """Return a layer that leaves the shape of images as it is."""
    size = channels * height * width
    row = _Row(kind, size, size, channels=channels, height=height, width=width, filters=channels)
    row.rows = row.columns = 1
    return row


def _made(row: _Row) -> tuple[int, int]:
    """Return height and width of a layer's outputs."""
    places = row.outputs // row.filters
    high = (row.height + 2 * row.above - row.rows) // row.down + 1
    high //= 2 if row.pooled else 1
    return high, places // high


def _places(layer: Dense | Convolution | GroupNormalisation | Recurrent) -> tuple[int, int]:
    """Return where weights and biases stand in the flat vector."""
    weight, bias = (-1 if part is None else part.start for part in (layer.weight, layer.bias))
    return weight, bias
