"""Label entropies as the server computes them."""

from __future__ import annotations

import numpy as np

from fedreach.arrays import Floats


def released_entropy(counts: Floats) -> Floats:
    """Return (n,) entropies in nats of (n, c) label counts."""
    p = counts / counts.sum(axis=1, keepdims=True)
    result: Floats = -np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0)), 0.0).sum(axis=1)
    return result
