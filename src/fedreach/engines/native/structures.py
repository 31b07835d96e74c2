"""What C is handed beside numbers: the structures of `training.c` and `samples.h`, field by field."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedreach.engines.samples import Samples


class GivenSamples(ctypes.Structure):
    """Examples as C is told of them."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("wide", ctypes.c_int64),
        ("factor", ctypes.c_void_p),
        ("offset", ctypes.c_void_p),
        ("labels", ctypes.c_void_p),
    )
    kept: list[Tensor]

    @classmethod
    def of(cls, samples: Samples) -> GivenSamples:
        """Return these; tensors that it points to are kept."""
        factor, offset = (
            None if numbers is None else numbers.expand(1, *samples.x.shape[1:]).contiguous()
            for numbers in (samples.factor, samples.offset)
        )
        places = (None if tensor is None else tensor.data_ptr() for tensor in (factor, offset))
        made = cls(samples.x.data_ptr(), samples.x.dtype != torch.uint8, *places, samples.y.data_ptr())
        made.kept = [tensor for tensor in (samples.x, factor, offset, samples.y) if tensor is not None]
        return made


class Batches(ctypes.Structure):
    """How batches are drawn."""

    _fields_ = (
        ("batch", ctypes.c_int64),
        ("steps", ctypes.c_void_p),
        ("drop_last", ctypes.c_int64),
        ("order", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("words", ctypes.c_void_p),
        ("dropout", ctypes.c_int64),
        ("given", ctypes.c_void_p),
    )


class Progress(ctypes.Structure):
    """Where training stands between two calls."""

    _fields_ = (
        ("client", ctypes.c_int64),
        ("step", ctypes.c_int64),
        ("seen", ctypes.c_int64),
        ("loss", ctypes.c_double),
        ("generator", ctypes.c_uint64 * 12),
    )


class UpdateRule(ctypes.Structure):
    """How a gradient is followed."""

    _fields_ = (
        ("rate", ctypes.c_double),
        ("momentum", ctypes.c_double),
        ("decay", ctypes.c_double),
        ("clip", ctypes.c_double),
        ("pull", ctypes.c_void_p),
        ("shift", ctypes.c_void_p),
        ("added", ctypes.c_void_p),
    )


def place_of(array: NDArray[Any] | None) -> int | None:
    return None if array is None else array.ctypes.data
