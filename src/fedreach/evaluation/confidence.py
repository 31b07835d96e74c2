"""How sure a mean over clients is: bootstrap intervals over clients."""

from __future__ import annotations

import math

import numpy as np

from fedreach.arrays import Floats

RESAMPLES = 1000
LEVEL = 0.95
LARGE = 5000  # from this many clients on the mean is normal to well below the resampling error


def bootstrap_means(values: Floats, rng: np.random.Generator) -> Floats:
    """Return (RESAMPLES,) means of n clients drawn with replacement from the n given.

    Many clients (n >= LARGE) are not resampled: the means are drawn from the normal distribution with the same
    standard error, which the bootstrap tends to.
    """
    n = len(values)
    if n >= LARGE:
        spread = float(values.std()) / math.sqrt(n)
        return float(values.mean()) + spread * rng.standard_normal(RESAMPLES)
    means: Floats = values[rng.integers(n, size=(RESAMPLES, n))].mean(axis=1)
    return means


def interval(means: Floats) -> tuple[float, float]:
    """Return the percentile interval at `LEVEL`.

    Example:
        >>> interval(np.linspace(0.0, 1.0, 1001))
        (0.025, 0.975)
    """
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return round(float(low), 12), round(float(high), 12)
