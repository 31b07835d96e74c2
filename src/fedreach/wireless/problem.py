"""Time and energy of computing and sending, allocation problems, and their solutions.

Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", eq. 4 to 8. All
functions broadcast their arguments. `min_examples` counts examples, but the paper counts bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, Literal

import numpy as np

from fedreach._util.arrays import AnyArray, Floats, Ints
from fedreach._util.errors import ConfigError, InfeasibleError


def training_cycles(passes: Any, num_examples: Any, bits_per_example: Any, cycles_per_bit: Any) -> Any:
    """Return the CPU cycles of local training, W = passes * examples * bits per example * cycles per bit."""
    return passes * np.asarray(num_examples, dtype=np.float64) * bits_per_example * cycles_per_bit


def compute_seconds(cycles: Any, hertz: Any) -> Any:
    """Return the computing time W / f, or 0 if there are no cycles."""
    cycles, hertz = np.broadcast_arrays(np.asarray(cycles, np.float64), np.asarray(hertz, np.float64))
    return np.divide(cycles, hertz, out=np.zeros(cycles.shape), where=cycles > 0)


def compute_joules(capacitance: float, cycles: Any, hertz: Any) -> Any:
    """Return the computing energy eps W f^2; `capacitance` is the switched capacitance eps in J / (cycle Hz^2)."""
    return capacitance * np.asarray(cycles) * np.asarray(hertz) ** 2


# -------------------- Problems and allocations

TOO_LARGE = 1e100  # products of larger numbers could overflow float64


@dataclass(frozen=True, eq=False)
class AllocationProblem:
    """Allocation problem of a round with K clients.

    A solution selects a set S of clients, with bandwidth shares b and CPU frequencies f that::

        minimize    Y = a1 T + a2 E,     E = sum_{k in S} (P_k tau_k / b_k + eps W_k f_k^2)
        subject to  tau_k / b_k + W_k / f_k <= T,   sum_{k in S} b_k <= 1,   0 < f_k <= f_k^max,
                    P_k tau_k / b_k + eps W_k f_k^2 <= E_k^max

    Raises:
        ConfigError: If a number is outside its range or not finite. The message names the first such client.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", eq. 36 and 37.
    Table I contains the maximum acceptable energy, which the paper's problem does not use. By default, it is infinite.

    Example:
        >>> AllocationProblem(np.array([0.1, 0.0]), *np.ones((3, 2)), np.array([5, 5]))
        Traceback (most recent call last):
        fedreach.ConfigError: upload_seconds must be positive and below 1e+100; client 1 has 0.0.
    """

    upload_seconds: Floats  # tau (K,), upload time with the whole bandwidth; positive
    power_watts: Floats  # P (K,), transmit power; positive
    cycles: Floats  # W (K,), CPU cycles of local training; at least 0
    max_hertz: Floats  # f^max (K,), highest CPU frequency; positive
    num_examples: Ints  # d (K,), number of training examples; at least 0
    ids: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # (K,) client ids; default: 0, 1, ...
    time_weight: float = 1.0  # a1, weight of a second in the cost; positive
    energy_weight: float = 1.0  # a2, weight of a joule in the cost; at least 0
    capacitance: float = 1e-27  # eps, switched capacitance in J / (cycle Hz^2); positive
    max_joules: Floats = field(default_factory=lambda: np.empty(0))  # E^max (K,), positive; default: infinite

    def __post_init__(self) -> None:
        if not np.size(self.ids):
            object.__setattr__(self, "ids", np.arange(np.size(self.upload_seconds)))
        if not np.size(self.max_joules):
            object.__setattr__(self, "max_joules", np.full(np.size(self.upload_seconds), np.inf))
        for name in ("upload_seconds", "power_watts", "cycles", "max_hertz", "num_examples", "max_joules"):
            object.__setattr__(self, name, self._column(name))
        for name, zero in {"time_weight": False, "energy_weight": True, "capacitance": False}.items():
            value = getattr(self, name)
            if not (value > 0 or (zero and value == 0)) or not value < TOO_LARGE:
                rule = "at least 0" if zero else "positive"
                raise ConfigError(f"{name} must be {rule} and below {TOO_LARGE:g}; got {value!r}.")
        work = 2 * self.energy_weight * self.capacitance * self.cycles**3
        if not np.all(work < TOO_LARGE):
            client = self._first(~(work < TOO_LARGE))
            raise ConfigError(f"cycles must be smaller: the energy of client {client} exceeds the range of float64.")

    def _column(self, name: str) -> AnyArray:
        """Return the checked numbers of all clients."""
        K, is_whole = np.size(self.upload_seconds), name == "num_examples"
        try:
            values = np.asarray(getattr(self, name), dtype=np.float64)
        except (TypeError, ValueError):
            raise ConfigError(f"{name} must be one number per client; got {getattr(self, name)!r}.") from None
        if values.shape != (K,):
            raise ConfigError(f"{name} must be one number for each of the {K} clients; got shape {values.shape}.")
        good = (values >= 0) & (values <= 2**40) & (np.floor(values) == values) if is_whole else values < TOO_LARGE
        good |= (values == np.inf) & (name == "max_joules")
        good &= values >= 0 if name == "cycles" else (values > 0) | is_whole
        if not good.all():
            sign = "at least 0" if name == "cycles" else "positive"
            rule = "whole numbers from 0 to 2^40" if is_whole else f"{sign} and below {TOO_LARGE:g}"
            raise ConfigError(f"{name} must be {rule}; client {self._first(~good)} has {values[~good][0]}.")
        return values.astype(np.int64) if is_whole else values

    def _first(self, bad: Any) -> Any:
        return self.ids[np.flatnonzero(bad)[0]]

    def __len__(self) -> int:
        return len(self.upload_seconds)

    def only(self, rows: Any) -> AllocationProblem:
        """Return the problem of a subset of the clients, given positions or a boolean mask."""
        per_client = ("upload_seconds", "power_watts", "cycles", "max_hertz", "num_examples", "ids", "max_joules")
        return replace(self, **{name: getattr(self, name)[rows] for name in per_client})

    def rows(self, ids: Ints) -> Ints:
        """Return the positions of these client ids; the ids of the problem must be sorted."""
        return np.searchsorted(self.ids, ids).astype(np.int64)


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number, at least 1."""
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= 1


def check_coverable(problem: AllocationProblem, min_examples: Any) -> None:
    """Check that all clients together have enough examples.

    Raises:
        ConfigError: If `min_examples` is not a whole number, at least 1.
        InfeasibleError: If all clients together have fewer examples.
    """
    if not is_whole(min_examples):
        raise ConfigError(f"min_examples must be a whole number, at least 1; got {min_examples!r}.")
    total = int(problem.num_examples.sum())
    if total < min_examples:
        raise InfeasibleError(
            f"min_examples must be at most {total}, the number of examples of all {len(problem)} clients; got "
            f"{min_examples}. Lower min_examples or add clients."
        )


@dataclass(frozen=True, eq=False)
class Allocation:
    """Bandwidth, CPU frequency, time and energy of each selected client, and the total cost."""

    ids: Ints  # (k,) client ids, increasing
    share: Floats  # (k,) b, share of the bandwidth; the sum is at most 1
    hertz: Floats  # (k,) f, CPU frequency
    upload_seconds: Floats  # (k,) tau / b
    compute_seconds: Floats  # (k,) W / f
    upload_joules: Floats  # (k,) P tau / b
    compute_joules: Floats  # (k,) eps W f^2
    cost: float  # Y = a1 T + a2 E
    band_price: float | None = None  # mu = -dY/d(sum of shares); None unless the allocation is optimal for its clients

    @classmethod
    def of(
        cls, problem: AllocationProblem, rows: Any, share: Floats, hertz: Floats, band_price: float | None = None
    ) -> Allocation:
        """Compute time, energy and cost of these shares and frequencies, for the clients at these rows."""
        chosen = problem.only(rows)
        sending, computing = chosen.upload_seconds / share, compute_seconds(chosen.cycles, hertz)
        joules = chosen.power_watts * sending, compute_joules(problem.capacitance, chosen.cycles, hertz)
        total = problem.time_weight * np.max(sending + computing, initial=0.0) + problem.energy_weight * np.sum(joules)
        return cls(chosen.ids, share, hertz, sending, computing, *joules, float(total), band_price)

    @property
    def seconds(self) -> float:
        """Duration T of the round: the time until the last client has sent its reply."""
        return float(np.max(self.upload_seconds + self.compute_seconds, initial=0.0))

    @property
    def joules(self) -> float:
        """Energy E of all clients."""
        return float(self.upload_joules.sum() + self.compute_joules.sum())


Status = Literal["optimal", "time_limit"]


@dataclass(frozen=True, eq=False)
class Solution:
    """Best set of clients in a search, its optimal allocation, and a lower bound on the cost.

    With the status ``"optimal"``, the relative gap is at most the tolerance. With ``"time_limit"``, the search reached
    its limit of time or nodes. The lower bound is valid in both cases.
    """

    allocation: Allocation
    lower_bound: float  # no set of clients with enough examples has a lower cost
    status: Status
    nodes: int  # number of search nodes that were examined

    @property
    def cost(self) -> float:
        """Cost Y of the allocation."""
        return self.allocation.cost

    @property
    def gap(self) -> float:
        """Relative gap (cost - lower bound) / cost, at least 0."""
        return max(0.0, 1.0 - self.lower_bound / self.cost)
