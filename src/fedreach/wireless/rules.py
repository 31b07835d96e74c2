"""Allocation rules, which determine each client's share of the bandwidth and its CPU frequency."""

import heapq
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from fedreach._util.arrays import Floats, Ints
from fedreach._util.component import Component
from fedreach._util.errors import require
from fedreach.wireless import exact
from fedreach.wireless.problem import Allocation, AllocationProblem

# -------------------- Base class and frequencies


class AllocationRule(Component):
    """Base class of allocation rules, which divide the bandwidth and set CPU frequencies for given clients."""

    component_type = "allocation"

    @abstractmethod
    def allocate(self, problem: AllocationProblem, rng: np.random.Generator) -> Allocation:
        """Return the allocation of all clients of `problem`; the shares must sum to at most 1.

        Args:
            problem: Clients of the round and weights of time and energy, at least one client. Do not modify it.
            rng: Random generator; the only allowed source of randomness.
        """


def frequency_alone(problem: AllocationProblem) -> float:
    """Return f0 = (a1 / (2 a2 eps))^(1/3) in hertz, or infinity if energy costs nothing (a2 = 0).

    f0 minimizes a1 W / f + a2 eps W f^2, the computing cost of a single client. The cycles W cancel out, so f0 is the
    same for all clients. The best frequencies of several clients with a common deadline satisfy sum (f / f0)^3 = 1.

    Example:
        >>> f"{frequency_alone(AllocationProblem(*np.ones((5, 1)))):.10e}"
        '7.9370052598e+08'
    """
    if problem.energy_weight == 0:
        return np.inf
    return float(np.cbrt(problem.time_weight / 2 / problem.energy_weight / problem.capacitance))


def own_frequency(problem: AllocationProblem) -> Floats:
    """Return (K,) min(f_k^max, f0) in hertz."""
    return np.minimum(problem.max_hertz, frequency_alone(problem))


def printed_frequency(problem: AllocationProblem) -> Floats:
    """Return min(f_k^max, (a1 / (2 a2 eps W_k))^(1/3)), as printed in the paper.

    The result is f_k^max if energy or cycles are 0. The division by the cycles W_k is an error in the paper, because
    the result does not have the unit of a frequency. For W_k = 10^8 cycles, it is several hundred times too low.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", section V-A,
    step (3) of the greedy baselines.
    """
    hertz = np.full(len(problem), frequency_alone(problem))
    np.divide(hertz, np.cbrt(problem.cycles), out=hertz, where=problem.cycles > 0)
    return np.minimum(problem.max_hertz, np.where(problem.cycles > 0, hertz, np.inf))


# -------------------- Equal shares


@dataclass(frozen=True)
class EqualShares(AllocationRule):
    """Equal bandwidth for each client, and the CPU frequency that is best for each client alone.

    b_k = 1 / k and f_k = min(f_k^max, (a1 / (2 a2 eps))^(1/3)). If energy costs nothing (a2 = 0), f_k = f_k^max.

    Use when: the network cannot assign different bandwidth to devices, or you need a baseline.

    Example:
        >>> problem = AllocationProblem(*np.array([[0.1, 0.2], [1, 1], [1e8, 2e8], [1e9, 5e8]]), np.array([5, 5]))
        >>> given = EqualShares().allocate(problem, np.random.Generator(np.random.Philox(0)))
        >>> given.share, (given.hertz / 1e6).round(1), round(given.cost, 4)
        (array([0.5, 0.5]), array([793.7, 500. ]), 1.513)
    """

    def allocate(self, problem: AllocationProblem, rng: np.random.Generator) -> Allocation:
        k = len(problem)
        return Allocation.of(problem, np.arange(k), np.full(k, 1 / k), own_frequency(problem))


# -------------------- Exact allocation


@dataclass(frozen=True)
class ExactAllocation(AllocationRule):
    """Bandwidth and CPU frequencies with the lowest cost for the given clients (see `exact.allocate`).

    Use when: another rule selects the clients. This is the default under `[radio]`.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", eq. 36 and 37
    for a given selection. The paper alternates between bandwidth and frequencies; FedReach optimizes both jointly.
    """

    def allocate(self, problem: AllocationProblem, rng: np.random.Generator) -> Allocation:
        return exact.allocate(problem)


# -------------------- Greedy allocation

Frequency = Literal["corrected", "printed"]


@dataclass(frozen=True)
class Greedy(AllocationRule):
    """Greedy allocation: repeatedly assigns one unit of bandwidth to the client with the largest gain.

    Each client starts with one unit. Each further unit is assigned to the client with the largest gain
    (a1 + a2 P_k) tau_k / b_k^2. Ties go to the lower position. As in the paper, the gain includes the time of every
    client, although only the slowest client determines the duration of the round.

    Use when: you compare with the greedy baselines of the CSRA paper.

    Args:
        unit: Delta b, the smallest share of the bandwidth to assign, above 0 and at most 1. The number of units is the
            largest for which a unit has at least this size, or the number of clients if this number is larger. The
            paper does not specify its unit. Default: 0.001.
        frequency: Formula of the CPU frequency. ``"corrected"`` is min(f_k^max, (a1 / (2 a2 eps))^(1/3)).
            ``"printed"`` is the paper's formula, whose frequencies are far too low (see `printed_frequency`).
            Default: "corrected".

    Raises:
        ConfigError: If an option is outside its range.

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
        require(self, unit="[1e-9, 1]: It is a share of the bandwidth.", frequency=get_args(Frequency))

    def allocate(self, problem: AllocationProblem, rng: np.random.Generator) -> Allocation:
        units = max(len(problem), int(1 / self.unit * (1 + 1e-12)))
        hertz = own_frequency(problem) if self.frequency == "corrected" else printed_frequency(problem)
        share = hand_out_units(bandwidth_worth(problem), units) / units
        return Allocation.of(problem, np.arange(len(problem)), share, hertz)


def hand_out_units(worth: Floats, units: int) -> Ints:
    """Return (K,) the number of units of each client; each unit goes to the client with the largest worth / count^2.

    To assign units one by one would need `units` steps, so the function assigns most units at once. Units are assigned
    in decreasing order of gain. Client k receives all units with a gain above level^2, at least floor(root_k / level)
    units. The level is chosen so that these numbers sum to at most `units`.

    Example:
        >>> hand_out_units(np.array([1.0, 4.0, 0.01]), 10)
        array([3, 6, 1])
    """
    root = np.sqrt(worth)
    counts = np.ones(len(worth), np.int64)
    if units > len(worth):
        level = root.sum() / (units - len(worth))
        counts = np.maximum(counts, np.floor(root / level * (1 - 1e-9)).astype(np.int64))
    heap = [(-gain, row) for row, gain in enumerate(worth / counts**2)]
    heapq.heapify(heap)
    for _ in range(units - int(counts.sum())):
        row = heap[0][1]
        counts[row] += 1
        heapq.heapreplace(heap, (-worth[row] / counts[row] ** 2, row))
    return counts


def bandwidth_worth(problem: AllocationProblem) -> Floats:
    """Return (K,) (a1 + a2 P_k) tau_k, which is b_k^2 times the decrease of the cost per bandwidth of client k.

    The paper prints both terms with a minus sign. This would prefer the client that needs bandwidth least.
    """
    return (problem.time_weight + problem.energy_weight * problem.power_watts) * problem.upload_seconds


# -------------------- Random allocation

LEAST_SHARE = 1e-15  # a share of exactly 0, which can be drawn, would make the upload endless


@dataclass(frozen=True)
class Random(AllocationRule):
    """Random bandwidth and CPU frequencies.

    The shares b are Dirichlet(c, ..., c) with c = `concentration`. f_k / f_k^max is uniform between `slowest` and 1.
    With c = 1, b is uniform over all ways to divide the bandwidth. The upload time is proportional to 1 / b_k. Its mean
    is infinite for c <= 1, and its variance is infinite for c <= 2.

    Use when: you need a baseline that every other rule should outperform.

    Args:
        slowest: Lowest drawn frequency as a share of f_k^max, above 0 and at most 1. The paper does not specify its
            distribution. Default: 0.1.
        concentration: Dirichlet concentration c, above 0. With a larger c, shares are more equal. Default: 1.

    Raises:
        ConfigError: If an option is outside its range.

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
        """Return an allocation with drawn shares and then drawn frequencies."""
        k = len(problem)
        share = np.maximum(rng.dirichlet(np.full(k, self.concentration)), LEAST_SHARE)
        part = rng.uniform(self.slowest, 1.0, k)
        return Allocation.of(problem, np.arange(k), share / share.sum(), part * problem.max_hertz)


# -------------------- Table of allocation rules

RULES: Mapping[str, Any] = {
    "equal": EqualShares,
    "random": Random,
    "greedy": Greedy,
    "exact": ExactAllocation,
}
