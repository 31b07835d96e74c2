"""The same share for everybody."""

from dataclasses import dataclass

import numpy as np

from fedreach.wireless.allocation.problem import Allocation, AllocationProblem
from fedreach.wireless.allocation.rules.base import own_frequency


@dataclass(frozen=True)
class Equal:
    """Give each of k clients b = 1 / k of the band, and the frequency that suits it on its own.

    f_k = min(f_k^max, (a1 / (2 a2 eps))^(1/3)), and f_k^max where joules are free (a2 = 0).

    When: devices cannot be told shares of their own, and as a baseline.

    Example:
        >>> problem = AllocationProblem(*np.array([[0.1, 0.2], [1, 1], [1e8, 2e8], [1e9, 5e8]]), np.array([5, 5]))
        >>> given = Equal().allocate(problem, np.random.Generator(np.random.Philox(0)))
        >>> given.share, (given.hertz / 1e6).round(1), round(given.cost, 4)
        (array([0.5, 0.5]), array([793.7, 500. ]), 1.513)
    """

    def allocate(self, problem: AllocationProblem, rng: np.random.Generator) -> Allocation:
        k = len(problem)
        return Allocation.of(problem, np.arange(k), np.full(k, 1 / k), own_frequency(problem))
