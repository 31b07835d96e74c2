"""A weighted mean of which the server sees two sums only."""

from __future__ import annotations

import numpy as np

from fedreach.arrays import Float32s, Floats


def weighted_mean_of_shares(raw: Floats, update: Float32s) -> Floats:
    """Return sum_i raw_i update_i / sum_i raw_i."""
    total = np.zeros(update.shape[1])
    for weight, row in zip(raw, update, strict=True):
        total += weight * row
    result: Floats = total / raw.sum()
    return result
