"""Your own data: a function that returns a Dataset, named in an experiment as ``my_data.py:two_moons``."""

import numpy as np

from fedreach.data.datasets import from_arrays


def two_moons(samples=2000, seed=0):
    """Return two half circles; replace them by your own arrays, x (n, ...) and y (n,).

    If your data names clients, pass ``owners=``, the client of each training example, and choose
    ``[partition] name = "natural"``.
    """
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=samples)
    angle = np.pi * rng.random(samples)
    x = np.stack([np.cos(angle) * (1 - 2 * y) + y, np.sin(angle) * (1 - 2 * y) + y / 2], axis=1)
    x = (x + 0.1 * rng.standard_normal(x.shape)).astype(np.float32)
    cut = samples * 4 // 5
    return from_arrays(x[:cut], y[:cut], x[cut:], y[cut:], num_classes=2, name="two moons")
