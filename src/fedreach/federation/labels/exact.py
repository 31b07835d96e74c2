"""Clients tell the truth about their labels."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.arrays import Bools, Floats, Ints
from fedreach.federation.labels.counts import are_counts


@dataclass(frozen=True)
class Exact:
    """The server sees the label counts that a part asks for as they are.

    Whatever is chosen here, the server knows how many examples each client has: sizes are public in FedReach.

    When: the server may know label counts, and for simulations in which nothing is asked of privacy.

    Example:
        >>> Exact().release(np.array([[3, 0]]), np.random.Generator(np.random.Philox(0)))
        array([[3., 0.]])
    """

    only_sum: ClassVar[bool] = False

    def release(self, counts: Ints, rng: np.random.Generator) -> Floats:
        return counts.astype(np.float64)

    def possible(self, counts: Floats, sizes: Ints) -> Bools:
        """Return which of (n, c) counts are whole and sum to the client's number of examples."""
        return np.asarray(are_counts(counts) & (counts.sum(axis=1) == sizes))
