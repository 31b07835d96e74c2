"""What label counts are; without other imports, as a serving rule takes it along."""

import numpy as np

from fedreach.arrays import Bools, Floats


def are_counts(counts: Floats) -> Bools:
    """Return (n,) whether all of a client's (c,) counts are whole and not negative.

    Example:
        >>> are_counts(np.array([[3.0, 0.0], [2.5, 0.5], [4.0, -1.0], [np.nan, 1.0]])).tolist()
        [True, False, False, False]
    """
    return np.asarray((np.isfinite(counts) & (counts >= 0) & (counts == np.rint(counts))).all(axis=1))
