"""The layers of a model as this engine writes them out, where it knows all of them."""

from collections.abc import Sequence

from fedreach.engines import layers as described
from fedreach.engines.chain.convolution import Convolution
from fedreach.engines.chain.layers import Dense, Flatten, Images, Layer
from fedreach.engines.recognition import NotAChainError

NO_POOLING = "a pooling is not of 2 x 2 after a convolution with an even result"


def written_out(layers: Sequence[described.Layer]) -> list[Layer]:
    """Return them; a convolution and the maxima after it are one.

    Raises:
        NotAChainError: If there is a convolution with strides or another pooling than of 2 x 2.
    """
    found: list[Layer] = []
    rest = list(layers)
    while rest:
        layer = rest.pop(0)
        if isinstance(layer, described.Dense):
            found.append(Dense(layer.inputs, layer.outputs, layer.weight, layer.bias, layer.relu))
        elif isinstance(layer, described.Flattening):
            found.append(Flatten(layer.numbers))
        elif isinstance(layer, described.Convolution):
            following = rest[0] if rest else None
            pool = following if isinstance(following, described.Pooling) else None
            if not found:
                found.append(Images(layer.channels, layer.height, layer.width))
            found.append(_convolution(layer, pool))
            rest = rest[1:] if pool is not None else rest
        elif isinstance(layer, described.Pooling):
            raise NotAChainError(NO_POOLING)
        else:
            raise NotAChainError(f"it has a layer {type(layer).__name__}")
    return found


def _convolution(layer: described.Convolution, pool: described.Pooling | None) -> Convolution:
    if layer.stride != (1, 1):
        raise NotAChainError("a convolution has strides")
    if pool is not None and (not pool.of_pairs or any(side % 2 for side in layer.made[1:])):
        raise NotAChainError(NO_POOLING)
    rows, columns = layer.kernel
    return Convolution(
        layer.channels,
        layer.height,
        layer.width,
        layer.filters,
        rows,
        columns,
        layer.padding,
        layer.weight,
        layer.bias,
        relu=layer.relu or (pool is not None and pool.relu),
        pool=pool is not None,
    )
