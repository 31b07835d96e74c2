"""The layers of a model as this engine writes them out, where it knows all of them."""

from collections.abc import Sequence

from fedreach.engines.chain.convolution import BandedConvolution
from fedreach.engines.chain.layers import Flatten, Images, StackedDense, StackLayer
from fedreach.engines.layers import Convolution, Dense, Flattening, Layer, Pooling
from fedreach.engines.recognition import NotAChainError

NO_POOLING = "a pooling is not of 2 x 2 after a convolution with an even result"


def written_out(layers: Sequence[Layer]) -> list[StackLayer]:
    """Return them; a convolution and the maxima after it are one.

    Raises:
        NotAChainError: If there is a convolution with strides or another pooling than of 2 x 2.
    """
    found: list[StackLayer] = []
    rest = list(layers)
    while rest:
        layer = rest.pop(0)
        if isinstance(layer, Dense):
            found.append(StackedDense(**vars(layer)))
        elif isinstance(layer, Flattening):
            found.append(Flatten(layer.numbers))
        elif isinstance(layer, Convolution):
            following = rest[0] if rest else None
            pool = following if isinstance(following, Pooling) else None
            if not found:
                found.append(Images(layer.channels, layer.height, layer.width))
            found.append(_convolution(layer, pool))
            rest = rest[1:] if pool is not None else rest
        elif isinstance(layer, Pooling):
            raise NotAChainError(NO_POOLING)
        else:
            raise NotAChainError(f"it has a layer {type(layer).__name__}")
    return found


def _convolution(layer: Convolution, pool: Pooling | None) -> BandedConvolution:
    if layer.stride != (1, 1):
        raise NotAChainError("a convolution has strides")
    if pool is not None and (not pool.of_pairs or any(side % 2 for side in layer.made[1:])):
        raise NotAChainError(NO_POOLING)
    rows, columns = layer.kernel
    return BandedConvolution(
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
