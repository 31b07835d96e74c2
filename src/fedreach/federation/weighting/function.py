"""A user's function as a weighting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Floats
from fedreach.federation.round import Measurement, Reports, State
from fedreach.federation.weighting.base import normalised


@dataclass(frozen=True)
class FunctionWeighting:
    """Use ``function(reports) -> (r,) numbers``; they are divided by their sum.

    Facts that the function needs (see `FACTS`) are named in its attribute ``needs``, what clients shall measure for it
    stands in ``measures``.

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

    @property
    def measures(self) -> tuple[Measurement, ...]:
        """What the function has clients measure."""
        return tuple(getattr(self.function, "measures", ()))

    def weights(self, state: State, reports: Reports) -> tuple[Floats, State]:
        """Return the (r,) weights."""
        return normalised(self, np.asarray(self.function(reports), dtype=np.float64)), state
