"""A user's function as a weighting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Floats
from fedreach.errors import PartError
from fedreach.federation.round import Reports, State


@dataclass(frozen=True)
class FunctionWeighting:
    """Use ``function(reports) -> (r,) numbers``; they are divided by their sum.

    Facts that the function needs (see `FACTS`) are named in its attribute ``needs``.

    Example:
        >>> reports = Reports(np.arange(2), np.zeros((2, 1), np.float32), {"num_examples": np.array([1.0, 3.0])})
        >>> FunctionWeighting(lambda reports: reports.metrics["num_examples"] ** 2).weights({}, reports)[0]
        array([0.1, 0.9])
    """

    function: Callable[[Reports], Floats]

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return getattr(self.function, "__name__", "weighting")

    @property
    def needs(self) -> tuple[str, ...]:
        """The facts that the function asks of clients."""
        return tuple(getattr(self.function, "needs", ()))

    def weights(self, state: State, reports: Reports) -> tuple[Floats, State]:
        """Return the (r,) weights."""
        raw = np.asarray(self.function(reports), dtype=np.float64)
        if not (np.isfinite(raw).all() and (raw >= 0).all() and raw.sum() > 0):
            raise PartError(f"{self.name} must return numbers that are not negative, not all 0; got {raw}.")
        return raw / raw.sum(), state
