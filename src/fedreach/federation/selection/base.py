"""What most policies share: no state and no probe."""

from __future__ import annotations

import numpy as np

from fedreach.arrays import AnyArray, Ints
from fedreach.federation.protocols import no_probe
from fedreach.federation.round import NO_STATE, ClientView, Reports, State


class Policy:
    """A policy that remembers nothing and asks nobody; inherit from it and write `select`."""

    def init(self, view: ClientView) -> State:
        """Return no state."""
        return NO_STATE

    probe = no_probe

    def observe(self, state: State, reports: Reports) -> State:
        """Remember nothing new."""
        return state


def largest(ids: Ints, score: AnyArray, k: int) -> Ints:
    """Return the k ids with the largest score; ties go to the lower id.

    Example:
        >>> largest(np.array([0, 1, 2, 3, 4]), np.array([0.3, 0.9, 0.1, 0.9, 0.5]), 2)
        array([1, 3])
    """
    return ids[np.lexsort((ids, -score))[:k]]
