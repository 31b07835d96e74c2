"""Logarithms of sums of exponentials, without overflow."""

from __future__ import annotations

import numpy as np

from fedreach.arrays import Floats


def log_softmax(z: Floats) -> Floats:
    """Return z - log sum_c exp z_c, row by row, in float64.

    Example:
        >>> log_softmax(np.array([[1000.0, 1000.0]])).round(4).tolist()
        [[-0.6931, -0.6931]]
    """
    shifted: Floats = z - z.max(axis=-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
