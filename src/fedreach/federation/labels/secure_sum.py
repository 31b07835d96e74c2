"""The server sees sums over clients only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.arrays import Floats, Ints


@dataclass(frozen=True)
class SecureSum:
    """Clients weigh and scale their updates themselves; the server sees two sums, sum_i a_i u_i and sum_i a_i.

    Their quotient is the weighted mean, so the model is the same as if the server had seen the weights
    a_i / sum_j a_j, for every weighting in which a_i is the client's own: see `fedreach.federation.secure_sum`.
    """

    only_sum: ClassVar[bool] = True

    def release(self, counts: Ints, rng: np.random.Generator) -> Floats:
        """Return nan: clients compute with their counts, the server does not see them."""
        return np.full(counts.shape, np.nan)
