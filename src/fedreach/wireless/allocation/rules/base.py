"""What an allocation rule is."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from fedreach.wireless.allocation.problem import Allocation, AllocationProblem


@runtime_checkable
class AllocationRule(Protocol):
    """Gives every client of a problem its share of the band and its CPU frequency; who takes part is settled."""

    def allocate(self, problem: AllocationProblem, rng: np.random.Generator) -> Allocation:
        """Return an allocation of all clients of `problem`, at least one, whose shares sum to at most 1.

        Args:
            problem: The clients that take part and what a second and a joule are worth; not written to.
            rng: Where a rule draws from; nothing else is random.
        """
        ...
