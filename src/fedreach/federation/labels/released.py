"""Label entropies as the server computes them from what it was told."""

import math

import numpy as np

from fedreach.arrays import Floats
from fedreach.federation.ranges import Range
from fedreach.theory.entropy import label_entropy


def released_entropy(counts: Floats) -> Floats:
    """Return (n,) entropies in nats of (n, c) label counts, which may be noised.

    Counts below 0 count as 0. A client of whose counts the noise left nothing gets ln c, the entropy of a uniform mix:
    nothing is known of it. Where counts are nan (not told), so is the entropy.

    Example:
        >>> released_entropy(np.array([[3.0, 3.0, -2.0], [0.0, 7.0, 0.0], [0.0, 0.0, 0.0]])).round(4)
        array([0.6931, 0.    , 1.0986])
    """
    held = np.maximum(counts, 0)
    return np.where((held == 0).all(axis=1), np.log(counts.shape[1]), label_entropy(held))


def entropy_range(classes: int) -> Range:
    """Return what the entropy of labels of so many classes lies in, in nats.

    Example:
        >>> print(entropy_range(10))
        from 0 to 2.30259
    """
    return Range(0.0, math.log(classes))
