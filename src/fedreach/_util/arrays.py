"""Small helpers for NumPy arrays and frozen dataclasses."""

from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

# ---- Array types for signatures; comments where arrays are used give their shapes

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Float32s = NDArray[np.float32]
AnyArray = NDArray[Any]
Dtype = Literal["float32", "float16"]
"""Types in which rows of numbers are kept."""


# ---- Copies of frozen dataclasses: a round of half a millisecond makes several

T = TypeVar("T")


def replace_fields(value: T, **changes: object) -> T:
    """Return a copy of a dataclass with these fields changed, six times faster than `dataclasses.replace`.

    `__post_init__` does not run again: use it only for FedReach's own dataclasses that check nothing there.

    Example:
        >>> from fedreach.federation.types import Cohort
        >>> replace_fields(Cohort(ids=[3, 7]), remark="late").remark
        'late'

    Raises:
        TypeError: If the dataclass lacks one of the fields.
    """
    fields, had = type(value).__dataclass_fields__, value.__dict__  # type: ignore[attr-defined]
    if not changes.keys() <= fields.keys():
        unknown = ", ".join(sorted(changes.keys() - fields.keys()))
        raise TypeError(f"{type(value).__name__} has no field {unknown}.")
    copy = object.__new__(type(value))
    copy.__dict__.update({name: had[name] for name in fields}, **changes)
    return copy


# ---- Rows in half the bytes: float16 with one power of two per row
# A float16 has 11 binary digits, but loses them below 6e-5, where the updates of large models are. So a row x is
# stored as x / 2^e, after e itself. The exponent e puts the largest number of the row between 2^14 and 2^15.
# Dividing by a power of two rounds nothing. Each number is off by at most
#
#     |x'_j - x_j| <= max(2^-11 |x_j|, 2^-39 max_i |x_i|),
#
# so that a row is off by 2^-11 of its length (0.05%), and the cosine of two rows by at most 2^-10.

DIGITS = 15  # exponent: the largest number of a row is below 2 to this; the largest float16 is 65504
LEAST = -126  # exponent: 2 to this is the smallest float32 with all its digits


def pack_rows(rows: Float32s) -> AnyArray:
    """Return the (k, p + 1) float16 for (k, p) finite rows.

    Example:
        >>> pack_rows(np.array([[3.0, 0.5], [0.0, 0.0]], np.float32))  # e = -13: 3 is 24576 / 2^13
        array([[-1.300e+01,  2.458e+04,  4.096e+03],
               [ 0.000e+00,  0.000e+00,  0.000e+00]], dtype=float16)
    """
    result = np.empty((len(rows), rows.shape[1] + 1), np.float16)
    for target, row in zip(result, rows, strict=True):  # row by row: temporary arrays stay small
        largest = np.float32(max(row.max(initial=0.0), -row.min(initial=0.0)))
        exponent = max(int(np.frexp(largest)[1]) - DIGITS, LEAST) if largest else 0
        target[0], target[1:] = exponent, row * np.float32(2.0**-exponent)
    return result


def unpack_rows(rows: AnyArray) -> Float32s:
    """Return the (k, p) float32 rows that `pack_rows` stored.

    Example:
        >>> unpack_rows(pack_rows(np.array([[1e-7, -1e-9], [3e4, 0.1]], np.float32)))
        array([[ 1.0000076e-07, -1.0004442e-09],
               [ 3.0000000e+04,  9.9975586e-02]], dtype=float32)
    """
    return scale_rows(rows[:, 1:], rows[:, :1])


def scale_rows(numbers: AnyArray, exponents: AnyArray) -> Float32s:
    """Return (k, c) numbers times 2^e, with one of the (k, 1) exponents e per row."""
    result: Float32s = numbers.astype(np.float32)
    result *= np.exp2(exponents, dtype=np.float32)
    return result
