"""What an allocation rule is."""

from typing import Protocol, runtime_checkable

import numpy as np

from fedreach.arrays import Floats
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


def frequency_alone(problem: AllocationProblem) -> float:
    """Return f0 = (a1 / (2 a2 eps))^(1/3) in hertz, inf where joules are free.

    It minimises a1 W / f + a2 eps W f^2, what one client alone pays for its cycles W; they cancel, so that f0 is the
    same for all. Among several the deadline is shared, and the best frequencies satisfy sum (f / f0)^3 = 1 instead.

    Example:
        >>> f"{frequency_alone(AllocationProblem(*np.ones((5, 1)))):.10e}"
        '7.9370052598e+08'
    """
    if problem.joules_price == 0:
        return np.inf
    return float(np.cbrt(problem.seconds_price / 2 / problem.joules_price / problem.capacitance))


def own_frequency(problem: AllocationProblem) -> Floats:
    """Return min(f_k^max, f0) for each client, (K,) hertz."""
    return np.minimum(problem.max_hertz, frequency_alone(problem))


def printed_frequency(problem: AllocationProblem) -> Floats:
    """Return min(f_k^max, (a1 / (2 a2 eps W_k))^(1/3)), as the paper prints it; f_k^max where joules or cycles are 0.

    W = d s E in the denominator is an error of dimension: the result is not a frequency, and is a few hundred times
    too low where W is 10^8 cycles.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", section V-A,
    step (3) of the greedy baselines.
    """
    own = np.full(len(problem), frequency_alone(problem))
    np.divide(own, np.cbrt(problem.cycles), out=own, where=problem.cycles > 0)
    return np.minimum(problem.max_hertz, np.where(problem.cycles > 0, own, np.inf))
