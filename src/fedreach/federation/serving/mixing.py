"""From evidence to a prior: how much of a client's own estimate counts beside the participants' class shares."""

from __future__ import annotations

import numpy as np

from fedreach.arrays import Floats

TINY = float(np.finfo(np.float64).tiny)
"""The smallest class share that is told from 0, so that its logarithm is a number."""


def weights(log_evidence: Floats, odds: float) -> Floats:
    """Return 1/(1 + odds/W) of (k,) log W: how probable a shift is if it was `odds` times less probable than none.

    Example:
        >>> weights(np.array([0.0, 1e4, -1e4]), 9.0), weights(np.zeros(1), 0.0)
        (array([0.1, 1. , 0. ]), array([1.]))
    """
    if odds == 0:
        return np.ones_like(log_evidence)
    # exp() of what is not positive only: it cannot overflow
    rarely = np.exp(-np.abs(log_evidence))
    result: Floats = np.where(log_evidence > 0, 1 / (1 + odds * rarely), rarely / (rarely + odds))
    return result


def blended(prior: Floats, weight: Floats, base: Floats) -> Floats:
    """Return w pi + (1 - w) base, no share below the smallest positive number."""
    return np.maximum(weight * prior + (1 - weight) * base, TINY)
