"""The layers of a model as this engine writes them out, where it knows all of them."""

from collections.abc import Sequence

from fedreach.engines import layers as described
from fedreach.engines.chain.convolution import Convolution
from fedreach.engines.chain.layers import Dense, Flatten, Images, Layer
from fedreach.engines.recognition import NotAChainError


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
            found.append(Dense(**vars(layer)))
        elif isinstance(layer, described.Flattening):
            found.append(Flatten(layer.numbers))
        elif isinstance(layer, described.Convolution):
            if layer.stride != (1, 1):
                raise NotAChainError("a convolution has strides")
            pool = rest.pop(0) if rest and isinstance(rest[0], described.Pooling) else None
            if pool is not None and (not pool.of_pairs or any(side % 2 for side in layer.made[1:])):
                raise NotAChainError("a pooling is not of 2 x 2 after a convolution with an even result")
            size = layer.channels, layer.height, layer.width
            if not found:
                found.append(Images(*size))
            relu = layer.relu or (pool is not None and pool.relu)
            filters = layer.filters, *layer.kernel, layer.padding, layer.weight, layer.bias
            found.append(Convolution(*size, *filters, relu, pool is not None))
        else:
            raise NotAChainError("a pooling is not of 2 x 2 after a convolution with an even result")
    return found
