"""Examples on a device."""

import copy
import warnings
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedreach.arrays import AnyArray, Float32s
from fedreach.engines.several import as_bytes
from fedreach.errors import ConfigError


class Samples:
    """Examples and labels on a device, in their compact type, made into model inputs batch by batch."""

    def __init__(
        self, x: Float32s, y: AnyArray, kind: str, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
    ) -> None:
        with warnings.catch_warnings():
            # Arrays of a memory map are read-only and torch says so; nothing here writes to them.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
            self.x = torch.from_numpy(np.ascontiguousarray(as_bytes(x))).to(device)
            self.y = torch.from_numpy(np.ascontiguousarray(y, dtype=_kept(y))).to(device)
        self.kind = kind
        scale = 255.0 if self.x.dtype == torch.uint8 and kind != "several" else 1.0
        self.factor = self.offset = None
        if kind != "tokens" and (mean or scale != 1.0):
            self.factor, self.offset = scaling(scale, mean, std, self.x.dim() - 1, device)

    def __len__(self) -> int:
        return len(self.y)

    def relabelled(self, y: AnyArray) -> Self:
        """Return the same examples with other labels; the examples are not copied."""
        other = copy.copy(self)
        other.y = torch.from_numpy(np.array(y, dtype=_kept(y))).to(self.y.device)
        return other

    def batch_into(self, index: Tensor, x: Tensor) -> None:
        """Write the inputs for a (m,) index into `x` (m, *sample)."""
        if self.factor is None or self.offset is None:
            torch.index_select(self.x, 0, index, out=x)
        else:
            x.copy_(self.x.index_select(0, index))
            torch.addcmul(self.offset, x, self.factor, out=x)

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs (..., *sample) and labels (...), or numbers (..., t), for an index of any shape (...).

        Several inputs are records of bytes, which a hook of the model takes apart, see `fedreach.engines.several`.
        """
        flat = index.reshape(-1)
        x = self.x.index_select(0, flat)
        if self.kind == "tokens":
            x = x.long()
        elif self.factor is not None and self.offset is not None:
            x = torch.addcmul(self.offset, x.float(), self.factor)
        return x.view(*index.shape, *self.x.shape[1:]), self.y.index_select(0, flat).view(
            *index.shape, *self.y.shape[1:]
        )


def _kept(y: AnyArray) -> type[np.int64 | np.float32]:
    """Return the type of targets: classes, or numbers."""
    return np.float32 if y.dtype.kind == "f" else np.int64


def scaling(
    scale: float, mean: Sequence[float], std: Sequence[float], dims: int, device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Return (x / scale - mean) / std as one multiplication and one addition: the factor and then the offset.

    Args:
        scale: What is 1 afterwards.
        mean: (C,) of each channel; none: 0.
        std: (C,) of each channel; none: 1.
        dims: Of a sample, the first of which is channels.
        device: Where the two shall be.

    Example:
        >>> factor, offset = scaling(255.0, [0.5], [0.25], 3)
        >>> torch.addcmul(offset, torch.full((1, 1, 2), 255.0), factor).round().tolist()
        [[[2.0, 2.0]]]
    """
    shape = (-1, *([1] * (dims - 1)))
    mean_, std_ = (torch.tensor(v or d, device=device).view(shape) for v, d in ((mean, (0.0,)), (std, (1.0,))))
    return 1.0 / (scale * std_), -mean_ / std_


def checked_device(device: str) -> torch.device:
    """Return the torch device, or say why it cannot be used."""
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"engine.device must be a torch device such as 'cpu' or 'cuda:0'; got {device!r}.") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"engine.device is {device!r}, but this torch sees no CUDA device. Use 'cpu'.")
    try:
        torch.zeros(1, device=chosen).item()
    except Exception as error:  # each kind of device has its own; "meta" takes numbers and gives none back
        said = str(error).splitlines()[0]
        raise ConfigError(f"engine.device is {device!r}, which this torch cannot use: {said}. Use 'cpu'.") from error
    return chosen
