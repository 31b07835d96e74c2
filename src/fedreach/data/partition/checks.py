"""What every partitioner asks of its arguments, checked once at the edge."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedreach.arrays import Ints
from fedreach.errors import ConfigError, DataError

ALPHA_RANGE = (1e-100, 1e100)  # outside it exp() and log() of the Dirichlet draws leave the floating-point range


def checked_labels(labels: ArrayLike) -> Ints:
    """Return the class labels as an (n,) int64 array: at least one, whole numbers, none negative."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise DataError(
            "labels must be a one-dimensional array with one whole number per sample; "
            f"got shape {array.shape}, dtype {array.dtype}. Pass the class index of each training sample."
        )
    if array.min() < 0:
        raise DataError(f"labels must not be negative; got {array.min()}. Number the classes from 0.")
    return array.astype(np.int64)


def checked_count(name: str, value: Any, low: int) -> int:
    """Return `value` as an int that is at least `low`."""
    try:
        count = operator.index(value)
    except TypeError:
        count = low - 1
    if isinstance(value, bool) or count < low:
        raise ConfigError(f"{name} must be a whole number, at least {low}; got {value!r}.")
    return count


def checked_number(name: str, value: Any, low: float, high: float) -> float:
    """Return `value` as a finite float in [low, high]."""
    try:
        number = math.nan if isinstance(value, str | bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= high:  # false for nan as well
        raise ConfigError(f"{name} must be a number from {low:g} to {high:g}; got {value!r}.")
    return number


def check_generator(rng: Any) -> None:
    """Refuse seeds and global modules: the caller owns the stream."""
    if not isinstance(rng, np.random.Generator):
        raise ConfigError(
            f"rng must be a numpy Generator; got {type(rng).__name__}. "
            "Use fedreach.streams.generator(seed, 'partition')."
        )


def check_enough(num_samples: int, num_clients: int, min_size: int) -> None:
    """Refuse a partition in which not every client can hold `min_size` samples."""
    if num_samples < num_clients * min_size:
        raise DataError(
            f"{num_clients} clients with at least min_size = {min_size} samples need {num_clients * min_size} samples; "
            f"there are {num_samples}. Lower the number of clients, or min_size where the partition has that option."
        )
