"""A model without its dropout, by whose numbers engines can be compared: masks differ between them by design."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedreach.models.copying import copied

DROPOUTS: set[Any] = {
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    torch.dropout,
    torch.dropout_,
    torch.alpha_dropout,
    torch.alpha_dropout_,
    torch.feature_dropout,
    torch.feature_dropout_,
    torch.feature_alpha_dropout,
    torch.feature_alpha_dropout_,
}
# Functions that drop numbers among other things, and the place of `dropout_p` among their arguments. What they call is
# not seen by the mode below.
ATTENTION: dict[Any, int] = {F.scaled_dot_product_attention: 4, F.multi_head_attention_forward: 10}


class _WithoutDropout(TorchFunctionMode):
    """Has functions that drop numbers return their input."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if (place := ATTENTION.get(func)) is not None:
            if len(args) > place:
                args = (*args[:place], 0.0, *args[place + 1 :])
            else:
                kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)


def without_dropout(module: nn.Module) -> nn.Module:
    """Return a copy whose layers drop nothing; functions in `forward` drop nothing under `no_dropout`.

    Example:
        >>> module = without_dropout(nn.Sequential(nn.Dropout(0.5), nn.Flatten())).train()
        >>> module(torch.ones(1, 3))
        tensor([[1., 1., 1.]])
    """
    other = copied(module)
    for layer in other.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            layer.p = 0.0
        elif isinstance(layer, nn.MultiheadAttention | nn.RNNBase):
            layer.dropout = 0.0
    return other


@contextmanager
def no_dropout() -> Iterator[None]:
    """Have functions such as `F.dropout` drop nothing for a while.

    Example:
        >>> with no_dropout():
        ...     F.dropout(torch.ones(3), 0.5)
        tensor([1., 1., 1.])
    """
    with _WithoutDropout():
        yield
