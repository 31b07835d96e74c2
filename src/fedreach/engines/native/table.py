"""The layers of a model as C is told of them: a row of whole numbers each, the fields of `Layer` in `layers.h`."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from fedreach.arrays import Ints
from fedreach.engines.layers import Convolution, Dense, Flattening, Layer, Pooling
from fedreach.engines.recognition import NotAChainError

MAX_LAYERS = 64  # as `layers.h` says
LARGEST_WINDOW = 256  # as `pooling.h` says
DENSE, CONVOLUTION, MAXIMUM, MEAN = range(4)


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


def layer_table(layers: Sequence[Layer]) -> Ints:
    """Return a row for each layer; maxima of 2 x 2 are in that of the convolution before them.

    Raises:
        NotAChainError: If C does not know a layer, or their order.
    """
    rows: list[_Row] = []
    channels = 1  # that the next linear layer finds side by side
    for number, layer in enumerate(layers):
        if isinstance(layer, Dense):
            rows.append(_dense(layer, channels))
            channels = 1
        elif isinstance(layer, Flattening):
            channels = layer.channels if rows else 1
        elif rows and rows[-1].kind == DENSE:
            raise NotAChainError("it makes images of flat outputs")
        elif isinstance(layer, Convolution):
            rows.append(_convolution(layer))
        elif layer.of_pairs and isinstance(layers[number - 1] if number else None, Convolution):
            rows[-1].outputs, rows[-1].pooled = int(np.prod(layer.made)), True
            rows[-1].relu |= layer.relu
        else:
            rows.append(_pooling(layer))
    if not rows or rows[-1].kind != DENSE:
        raise NotAChainError("its last layer is not linear")
    if len(rows) > MAX_LAYERS:
        raise NotAChainError(f"it has more than {MAX_LAYERS} layers")
    return np.array([astuple(row) for row in rows], np.int64)


def products_of(table: Ints) -> int:
    """Return how many products an example costs on its way forward."""
    found = 0
    for numbers in table.tolist():
        row = _Row(*numbers)
        if row.kind == DENSE:
            found += row.inputs * row.outputs
        elif row.kind == CONVOLUTION:
            found += row.outputs * (4 if row.pooled else 1) * row.rows * row.columns * row.channels
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


def _places(layer: Dense | Convolution) -> tuple[int, int]:
    """Return where weights and biases stand in the flat vector."""
    return layer.weight.start, -1 if layer.bias is None else layer.bias.start
