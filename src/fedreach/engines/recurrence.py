"""Which parts of an LSTM are known: a table of tokens, plain layers, and the last output of the last one."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from torch import nn

from fedreach.engines.layers import Embedding, Recurrent

LAST_OUTPUT: tuple[tuple[Any, ...], ...] = (
    (0, (slice(None), -1)),  # outputs, _ = lstm(x); outputs[:, -1]
    (0, (slice(None), -1, slice(None))),
    (1, 0, -1),  # _, (h, _) = lstm(x); h[-1]
)
"""What one asks of an LSTM's result, one item after the other, to have the last output of each example."""
OUTPUTS = LAST_OUTPUT[0][:1]


def embedding(name: str, layer: nn.Embedding, times: int, places: MutableMapping[str, slice]) -> Embedding | None:
    """Return the layer, whose weights are taken out of `places`; None if it does more than look up."""
    if layer.padding_idx is not None or layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse:
        return None
    return Embedding(times, layer.num_embeddings, layer.embedding_dim, places.pop(f"{name}.weight"))


def recurrent(name: str, layer: nn.LSTM, times: int, places: MutableMapping[str, slice]) -> Iterator[Recurrent] | None:
    """Return one layer after the other; None if they drop, project, look back or have the batch inside."""
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
    """Return where both stand; torch lets them follow each other."""
    one, other = places.pop(first), places.pop(second)
    if one.stop != other.start:
        raise KeyError(second)
    return slice(one.start, other.stop)
