"""The server sees sums over clients only."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.arrays import Floats, Ints


@dataclass(frozen=True)
class SecureSum:
    """The server sees no client's labels, weight or update, but their sums.

    Clients weigh and scale their updates themselves; the server sees sum_i a_i update_i and sum_i a_i. Their quotient
    is the weighted mean, so the model is the same, up to rounding, as if the server had seen the weights
    a_i / sum_j a_j: see `fedreach.federation.aggregation.secure_sum`, which states how far off it may be.

    This needs a weighting in which a_i is the client's own (one with a method `raw`), and a selection that asks for
    neither labels nor updates. Sizes are public in FedReach, and so is who was chosen; and a sum over a single client
    is that client's update.

    When: the server shall see nothing of any single client; then only sums can be used.
    """

    only_sum: ClassVar[bool] = True

    def release(self, counts: Ints, rng: np.random.Generator) -> Floats:
        """Return nan: clients compute with their counts, the server does not see them."""
        return np.full(counts.shape, np.nan)
