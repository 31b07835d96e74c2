"""Allocation rules: bandwidth and CPU frequency of each client."""

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
    """Gives every client of a problem its share of the band and its CPU frequency; the clients are given."""

    component_type = "allocation"

    @abstractmethod
    def allocate(self, problem: AllocationProblem, rng: np.random.Generator) -> Allocation:
        """Return an allocation of all clients of `problem`, at least one, whose shares sum to at most 1.

        Args:
            problem: The clients that take part and what a second and a joule are worth; not written to.
            rng: Where a rule draws from; nothing else is random.
        """


def frequency_alone(problem: AllocationProblem) -> float:
    """Return f0 = (a1 / (2 a2 eps))^(1/3) in hertz, inf where joules are free.

    It minimizes a1 W / f + a2 eps W f^2, what one client alone pays for its cycles W; they cancel, so that f0 is the
    same for all. Among several the deadline is shared, and the best frequencies satisfy sum (f / f0)^3 = 1 instead.

    Example:
        >>> f"{frequency_alone(AllocationProblem(*np.ones((5, 1)))):.10e}"
        '7.9370052598e+08'
    """
    if problem.energy_weight == 0:
        return np.inf
    return float(np.cbrt(problem.time_weight / 2 / problem.energy_weight / problem.capacitance))


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
    hertz = np.full(len(problem), frequency_alone(problem))
    np.divide(hertz, np.cbrt(problem.cycles), out=hertz, where=problem.cycles > 0)
    return np.minimum(problem.max_hertz, np.where(problem.cycles > 0, hertz, np.inf))


# -------------------- Equal shares


@dataclass(frozen=True)
class EqualShares(AllocationRule):
    """Equal shares b = 1 / k of the band, and the best frequency of each client on its own.

    f_k = min(f_k^max, (a1 / (2 a2 eps))^(1/3)), and f_k^max where joules are free (a2 = 0).

    When: devices cannot be assigned individual shares, and as a baseline.

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
    """The shares and frequencies with the least cost for the given clients (see `exact.allocate`).

    When: always, where clients are chosen by something else: the default under `[radio]`.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", eq. 36 and 37
    for a given selection; solved jointly, where the paper alternates between shares and frequencies.
    """

    def allocate(self, problem: AllocationProblem, rng: np.random.Generator) -> Allocation:
        return exact.allocate(problem)


# -------------------- Greedy allocation

Frequency = Literal["corrected", "printed"]


@dataclass(frozen=True)
class Greedy(AllocationRule):
    """Greedy allocation: the band in equal units, each to the client whose cost falls fastest.

    Each client begins with one unit. The next goes where the marginal gain (a1 + a2 P_k) tau_k / b_k^2 is largest,
    until none is left; ties go to the lower position. The gain counts the seconds of every client, although only the
    last one keeps the round waiting: that is the rule's weakness, and is kept.

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
        share = hand_out_units(bandwidth_worth(problem), units) / units
        return Allocation.of(problem, np.arange(len(problem)), share, hertz)


def hand_out_units(worth: Floats, units: int) -> Ints:
    """Return how many of `units` each client has in the end (K,); always to the one with the largest worth / own^2.

    One by one this takes `units` steps; here nearly all of them are taken at once. Units go out in falling order of
    gain, and client k takes all that gain it more than level^2, until root_k / own <= level. With the level below,
    these are at most `units` together, so that each client has at least floor(root_k / level) of them in the end.

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
    """Return (a1 + a2 P_k) tau_k (K,): over b_k^2 it is how fast the cost falls as client k is given more of the band.

    The paper prints both terms with a minus, with which the largest gain would be that of the client that needs the
    band least.
    """
    return (problem.time_weight + problem.energy_weight * problem.power_watts) * problem.upload_seconds


# -------------------- Random allocation

LEAST_SHARE = 1e-15  # a draw of exactly 0 is possible, if hardly ever met, and would never be uploaded


@dataclass(frozen=True)
class Random(AllocationRule):
    """Random shares and CPU frequencies: the floor for every other rule.

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


# -------------------- Table of allocation rules

RULES: Mapping[str, Any] = {
    "equal": EqualShares,
    "random": Random,
    "greedy": Greedy,
    "exact": ExactAllocation,
}
