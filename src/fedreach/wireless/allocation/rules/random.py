"""Shares and frequencies at random."""

from dataclasses import dataclass

import numpy as np

from fedreach.errors import require
from fedreach.wireless.allocation.problem import Allocation, AllocationProblem

LEAST_SHARE = 1e-15  # a draw of exactly 0 is possible, if hardly ever met, and would never be uploaded


@dataclass(frozen=True)
class Random:
    """Cut the band at random and set the CPU frequencies at random: the floor for every other rule.

    b is Dirichlet(c, ..., c) with c = `concentration`, and f_k / f_k^max uniform from `slowest` to 1. With c = 1, b is
    uniform over all ways to share the band, and the time of an upload, which goes with 1 / b_k, has no mean: no number
    of rounds averages it. The mean is finite for c > 1, the variance for c > 2.

    When: only as the floor that every other rule must beat.

    Args:
        slowest: The lowest frequency that is drawn, as a part of f_k^max; above 0 and at most 1. The paper does not
            state how it draws.
        concentration: c, above 0; the larger, the more equal are the shares.

    Raises:
        ConfigError: If an option is out of its range.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", section V-A,
    CS-Random and GA-Random.

    Example:
        >>> problem = AllocationProblem(*np.array([[0.1, 0.2], [1, 1], [1e8, 2e8], [1e9, 5e8]]), np.array([5, 5]))
        >>> given = Random().allocate(problem, np.random.Generator(np.random.Philox(0)))
        >>> given.share.round(3), (given.hertz / 1e6).round(1)
        (array([0.146, 0.854]), array([524.4,  91.1]))
    """

    slowest: float = 0.1
    concentration: float = 1.0

    def __post_init__(self) -> None:
        require(self, slowest="(0, 1]", concentration="(0, inf)")

    def allocate(self, problem: AllocationProblem, rng: np.random.Generator) -> Allocation:
        """Return k shares and then k frequencies drawn from `rng`, whatever the clients are."""
        k = len(problem)
        share = np.maximum(rng.dirichlet(np.full(k, self.concentration)), LEAST_SHARE)
        part = rng.uniform(self.slowest, 1.0, k)
        return Allocation.of(problem, np.arange(k), share / share.sum(), part * problem.max_hertz)
