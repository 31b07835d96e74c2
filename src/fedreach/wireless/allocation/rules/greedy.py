"""The band unit by unit, each to the client that gains most."""

import heapq
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.errors import require
from fedreach.wireless.allocation.problem import Allocation, AllocationProblem
from fedreach.wireless.allocation.rules.base import own_frequency, printed_frequency

Frequency = Literal["corrected", "printed"]


def marginal_gains(problem: AllocationProblem, share: Floats) -> Floats:
    """Return (a1 tau_k + a2 P_k tau_k) / b_k^2 (K,): how fast its cost falls as client k is given more of the band.

    The paper prints both terms with a minus, with which the largest gain would be that of the client that needs the
    band least.
    """
    return _worth(problem) / share**2


@dataclass(frozen=True)
class Greedy:
    """Hand out the band in equal units, each to the client whose cost falls fastest.

    Everybody begins with one unit. The next goes where the marginal gain (a1 + a2 P_k) tau_k / b_k^2 is largest, until
    none is left; ties go to the lower position. The gain counts the seconds of every client, although only the last
    one keeps the round waiting: that is the rule's weakness, and is kept.

    When: only to compare with that paper's baseline.

    Args:
        unit: Delta b, smallest part of the band that is handed out, above 0 and at most 1. The band is cut into the
            largest whole number of equal units of at least this size, and into one for each client if these are more.
            The paper does not state it.
        frequency: ``"corrected"``, f_k = min(f_k^max, (a1 / (2 a2 eps))^(1/3)); ``"printed"``, the paper's formula,
            which divides by the cycles too and is far too low (see `printed_frequency`).

    Raises:
        ConfigError: If an option is out of its range.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", section V-A,
    CS-Greedy and GA-Greedy.

    Example:
        >>> problem = AllocationProblem(*np.array([[0.1, 0.3], [1, 1], [1e8, 2e8], [1e9, 5e8]]), np.array([5, 5]))
        >>> Greedy(unit=0.01).allocate(problem, np.random.Generator(np.random.Philox(0))).share
        array([0.37, 0.63])
    """

    unit: float = 0.001
    frequency: Frequency = "corrected"

    def __post_init__(self) -> None:
        require(self, unit="[1e-9, 1]: It is a part of the band.", frequency=get_args(Frequency))

    def allocate(self, problem: AllocationProblem, rng: np.random.Generator) -> Allocation:
        units = max(len(problem), int(1 / self.unit * (1 + 1e-12)))
        hertz = own_frequency(problem) if self.frequency == "corrected" else printed_frequency(problem)
        share = handed_out(_worth(problem), units) / units
        return Allocation.of(problem, np.arange(len(problem)), share, hertz)


def handed_out(worth: Floats, units: int) -> Ints:
    """Return how many of `units` each client has in the end (K,); always to the one with the largest worth / own^2.

    One by one this takes `units` steps; here nearly all of them are taken at once. Units go out in falling order of
    gain, and client k takes all that gain it more than level^2, until root_k / own <= level. With the level below,
    these are at most `units` together, so that everybody has at least floor(root_k / level) of them in the end.

    Example:
        >>> handed_out(np.array([1.0, 4.0, 0.01]), 10)
        array([3, 6, 1])
    """
    root = np.sqrt(worth)
    own = np.ones(len(worth), np.int64)
    if units > len(worth):
        level = root.sum() / (units - len(worth))
        own = np.maximum(own, np.floor(root / level * (1 - 1e-9)).astype(np.int64))
    heap = [(-gain, row) for row, gain in enumerate(worth / own**2)]
    heapq.heapify(heap)
    for _ in range(units - int(own.sum())):
        row = heap[0][1]
        own[row] += 1
        heapq.heapreplace(heap, (-worth[row] / own[row] ** 2, row))
    return own


def _worth(problem: AllocationProblem) -> Floats:
    return (problem.seconds_price + problem.joules_price * problem.power_watts) * problem.upload_seconds
