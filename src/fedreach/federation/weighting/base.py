"""Weights that a client could work out itself, up to a factor that all share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from fedreach.arrays import Floats
from fedreach.errors import PartError
from fedreach.federation.contract import name_of
from fedreach.federation.round import Reports, State


class OwnWeight(ABC):
    """A weighting w_i = a_i / sum_j a_j, in which a_i depends on client i alone; inherit from it and write `raw`.

    Clients can then scale their updates themselves, and the server needs the sums of a_i update_i and a_i only (see
    `fedreach.federation.secure_sum`).
    """

    @abstractmethod
    def raw(self, metrics: Mapping[str, Floats]) -> Floats:
        """Return the (r,) numbers a_i, not negative, each from the client's own entry of the metrics."""

    def weights(self, state: State, reports: Reports) -> tuple[Floats, State]:
        """Return the (r,) weights."""
        return normalised(self, self.raw(reports.metrics)), state


def normalised(weighting: object, raw: Floats) -> Floats:
    """Return the numbers divided by their sum, or say which weighting gave numbers that are no weights."""
    if not ((raw >= 0).all() and 0 < (total := raw.sum()) < np.inf):
        raise PartError(f"{name_of(weighting)} must return numbers that are not negative, not all 0; got {raw}.")
    result: Floats = raw / total
    return result
