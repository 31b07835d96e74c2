"""The cheapest allocation there is."""

from dataclasses import dataclass

import numpy as np

from fedreach.wireless.allocation import exact
from fedreach.wireless.allocation.problem import Allocation, AllocationProblem


@dataclass(frozen=True)
class Exact:
    """Give these clients the shares and frequencies with the least cost, all found at once (see `exact.allocate`).

    When: always, where clients are chosen by something else: the default under `[radio]`.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", eq. 36 and 37
    for a given selection; solved jointly, where the paper alternates between shares and frequencies.
    """

    def allocate(self, problem: AllocationProblem, rng: np.random.Generator) -> Allocation:
        return exact.allocate(problem)
