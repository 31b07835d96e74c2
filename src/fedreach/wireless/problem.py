"""Costs of sending and computing, and what is to be allocated.

Shapes broadcast. Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks",
eq. 4 to 8, in which the number of examples replaces their number of bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, Literal

import numpy as np

from fedreach._util.arrays import AnyArray, Floats, Ints
from fedreach._util.errors import ConfigError, InfeasibleError


def training_cycles(passes: Any, num_examples: Any, bits_per_example: Any, cycles_per_bit: Any) -> Any:
    """Return W = passes * examples * bits per example * cycles per bit, the work of local training in CPU cycles."""
    return passes * np.asarray(num_examples, dtype=np.float64) * bits_per_example * cycles_per_bit


def compute_seconds(cycles: Any, hertz: Any) -> Any:
    """Return W / f; no cycles take no time, at any frequency."""
    cycles, hertz = np.broadcast_arrays(np.asarray(cycles, np.float64), np.asarray(hertz, np.float64))
    return np.divide(cycles, hertz, out=np.zeros(cycles.shape), where=cycles > 0)


def compute_joules(capacitance: float, cycles: Any, hertz: Any) -> Any:
    """Return eps W f^2; `capacitance` eps is the effective switched capacitance, in J / (cycle Hz^2)."""
    return capacitance * np.asarray(cycles) * np.asarray(hertz) ** 2


# -------------------- Problems and allocations

TOO_LARGE = 1e100  # beyond it, products of these numbers could leave float64


@dataclass(frozen=True, eq=False)
class AllocationProblem:
    """The needs of K clients in a round, and the weights of a second and a joule.

    For a set S of clients, bandwidth shares b and CPU frequencies f are sought that::

        minimize    Y = a1 T + a2 E,     E = sum_{k in S} (P_k tau_k / b_k + eps W_k f_k^2)
        subject to  tau_k / b_k + W_k / f_k <= T,   sum_{k in S} b_k <= 1,   0 < f_k <= f_k^max

    Raises:
        ConfigError: If a number is outside its range, or not finite, naming the field and the first client.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", eq. 36 and 37.

    Example:
        >>> AllocationProblem(np.array([0.1, 0.0]), *np.ones((3, 2)), np.array([5, 5]))
        Traceback (most recent call last):
        fedreach.ConfigError: upload_seconds must be positive and below 1e+100; client 1 has 0.0.
    """

    upload_seconds: Floats  # tau (K,), time to send the report over the whole band; positive
    power_watts: Floats  # P (K,), transmit power; positive
    cycles: Floats  # W (K,), CPU cycles of the local training; not negative
    max_hertz: Floats  # f^max (K,); positive
    num_examples: Ints  # d (K,), whole numbers, not negative
    ids: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # (K,) in errors and answers; default: 0, 1, ...
    time_weight: float = 1.0  # a1, cost of a second of the round; positive
    energy_weight: float = 1.0  # a2, cost of a joule; not negative
    capacitance: float = 1e-27  # eps, in J / (cycle Hz^2); positive

    def __post_init__(self) -> None:
        if not np.size(self.ids):
            object.__setattr__(self, "ids", np.arange(np.size(self.upload_seconds)))
        for name in ("upload_seconds", "power_watts", "cycles", "max_hertz", "num_examples"):
            object.__setattr__(self, name, self._column(name))
        for name, zero in {"time_weight": False, "energy_weight": True, "capacitance": False}.items():
            value = getattr(self, name)
            if not (value > 0 or (zero and value == 0)) or not value < TOO_LARGE:
                rule = "not negative" if zero else "positive"
                raise ConfigError(f"{name} must be {rule} and finite; got {value!r}.")
        work = 2 * self.energy_weight * self.capacitance * self.cycles**3
        if not np.all(work < TOO_LARGE):
            raise ConfigError(
                f"cycles must be smaller: the energy of client {self._first(~(work < TOO_LARGE))} is lost in infinity."
            )

    def _column(self, name: str) -> AnyArray:
        """Return the numbers of all clients, floats or whole; they must be in the range of the column."""
        K, is_whole = np.size(self.upload_seconds), name == "num_examples"
        try:
            values = np.asarray(getattr(self, name), dtype=np.float64)
        except (TypeError, ValueError):
            raise ConfigError(f"{name} must be numbers, one a client; got {getattr(self, name)!r}.") from None
        if values.shape != (K,):
            raise ConfigError(f"{name} must hold one number for each of the {K} clients; got shape {values.shape}.")
        good = (values >= 0) & (values <= 2**40) & (np.floor(values) == values) if is_whole else values < TOO_LARGE
        good &= values >= 0 if name == "cycles" else (values > 0) | is_whole
        if not good.all():
            sign = "not negative" if name == "cycles" else "positive"
            rule = "whole numbers from 0 to 2^40" if is_whole else f"{sign} and below {TOO_LARGE:g}"
            raise ConfigError(f"{name} must be {rule}; client {self._first(~good)} has {values[~good][0]}.")
        return values.astype(np.int64) if is_whole else values

    def _first(self, bad: Any) -> Any:
        return self.ids[np.flatnonzero(bad)[0]]

    def __len__(self) -> int:
        return len(self.upload_seconds)

    def only(self, rows: Any) -> AllocationProblem:
        """Return the problem of some of its clients, given their positions, or flags."""
        per_client = ("upload_seconds", "power_watts", "cycles", "max_hertz", "num_examples", "ids")
        return replace(self, **{name: getattr(self, name)[rows] for name in per_client})

    def rows(self, ids: Ints) -> Ints:
        """Return the positions of these ids; ids of the problem must increase."""
        return np.searchsorted(self.ids, ids).astype(np.int64)


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number from 1."""
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= 1


def check_coverable(problem: AllocationProblem, min_examples: Any) -> None:
    """Reject a number of examples that no set of clients holds.

    Raises:
        ConfigError: If `min_examples` is not a whole number from 1.
        InfeasibleError: If all clients together hold fewer.
    """
    if not is_whole(min_examples):
        raise ConfigError(f"min_examples must be a whole number, at least 1; got {min_examples!r}.")
    total = int(problem.num_examples.sum())
    if total < min_examples:
        raise InfeasibleError(
            f"min_examples is {min_examples}, but all {len(problem)} clients together hold {total} examples. "
            f"Lower `min_examples` to {total} at most, or admit more clients."
        )


@dataclass(frozen=True, eq=False)
class Allocation:
    """Shares of the band and CPU frequencies of clients, and their cost; ids increasing."""

    ids: Ints  # (k,)
    share: Floats  # (k,) b, of the band; the sum is at most 1
    hertz: Floats  # (k,) f, CPU frequency
    upload_seconds: Floats  # (k,) tau / b
    compute_seconds: Floats  # (k,) W / f
    upload_joules: Floats  # (k,)
    compute_joules: Floats  # (k,)
    cost: float  # Y = a1 T + a2 E
    band_price: float | None = None  # mu = -dY/d(sum of shares), where the allocation is optimal for these clients

    @classmethod
    def of(
        cls, problem: AllocationProblem, rows: Any, share: Floats, hertz: Floats, band_price: float | None = None
    ) -> Allocation:
        """Return the allocation of shares and frequencies to the clients at these rows."""
        chosen = problem.only(rows)
        sending, computing = chosen.upload_seconds / share, compute_seconds(chosen.cycles, hertz)
        joules = chosen.power_watts * sending, compute_joules(problem.capacitance, chosen.cycles, hertz)
        total = problem.time_weight * np.max(sending + computing, initial=0.0) + problem.energy_weight * np.sum(joules)
        return cls(chosen.ids, share, hertz, sending, computing, *joules, float(total), band_price)

    @property
    def seconds(self) -> float:
        """T, until the last client is ready."""
        return float(np.max(self.upload_seconds + self.compute_seconds, initial=0.0))

    @property
    def joules(self) -> float:
        """E, of all clients."""
        return float(self.upload_joules.sum() + self.compute_joules.sum())


Status = Literal["optimal", "time_limit"]


@dataclass(frozen=True, eq=False)
class Solution:
    """The best set that was found, with its exact allocation, and a proven bound on every other.

    `status`: ``"optimal"``, the gap is at most the tolerance; ``"time_limit"``, time or the nodes that were allowed
    ended before, and the bound holds all the same.
    """

    allocation: Allocation
    lower_bound: float  # no set of clients with enough examples costs less
    status: Status
    nodes: int  # parts that the proof examined

    @property
    def cost(self) -> float:
        """Y of the allocation."""
        return self.allocation.cost

    @property
    def gap(self) -> float:
        """(cost - lower bound) / cost, at least 0."""
        return max(0.0, 1.0 - self.lower_bound / self.cost)
