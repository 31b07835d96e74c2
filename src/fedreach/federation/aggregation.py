"""Aggregators, which combine client results into one update."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedreach._util.arrays import Float32s, Floats, weighted_sum
from fedreach.federation.base import Aggregator
from fedreach.federation.differential_privacy import DPFTRL, DPFedAvg
from fedreach.federation.robust import (
    CenteredClipping,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    NormBound,
    TrimmedMean,
)
from fedreach.federation.types import State

# -------------------- Weighted sum of updates


@dataclass(frozen=True)
class Mean(Aggregator):
    """Weighted mean of the updates, sum_i w_i u_i.

    Use when: you need a baseline, or secure aggregation, which supports no other built-in aggregator but `dp_fedavg`.

    Example:
        >>> update = np.array([[1, 2], [3, 6]], np.float32)
        >>> Mean().combine({}, np.array([0.75, 0.25]), update, np.random.default_rng(0))[0]
        array([1.5, 3. ])
    """

    linear = True

    def combine(
        self, state: State, weights: Floats, update: Float32s, rng: np.random.Generator
    ) -> tuple[Floats, State]:
        return weighted_sum(weights, update), state


# -------------------- FedVARP


def total_change(update: Float32s, last: Float32s) -> Floats:
    """Return (p,) sum_i (u_i - y_i) in float64, summed row by row as in `weighted_sum`.

    Example:
        >>> total_change(np.array([[1, 2], [3, 4]], np.float32), np.array([[1, 1], [0, 0]], np.float32))
        array([3., 5.])
    """
    once = np.ones(len(update))
    return weighted_sum(once, update) - weighted_sum(once, last)


@dataclass(frozen=True)
class FedVARP(Aggregator):
    """FedVARP (Jhunjhunwala et al., 2022): uses the last updates y_j of absent clients.

    With the updates u_i of the r clients of a round, and the last updates y_j of all n participants, initially 0::

        v = (1/r) sum_i (u_i - y_i) + (1/n) sum_j y_j,   then y_i <- u_i for the r clients

    The server optimizer receives v as the update. For uniformly drawn cohorts, the expectation of v is the mean of all
    n updates. Its variance is smaller than the variance of the cohort's mean if a client's update changes little
    between rounds. With full participation, FedVARP equals FedAvg.

    Updates include their weights: with weights w_i that sum to 1, u_i denotes r w_i u_i. So equal weights correspond to
    the paper. As in the paper, stored updates are divided by the local learning rate, so a schedule also scales stored
    updates. The server stores 4 p bytes per participant, in a file if the total is at least 16 MiB. Clients send the
    same data as in FedAvg.

    Use when: cohorts are uniform, labels differ between clients, each client is selected every few dozen rounds, and
    the server can store one update per client. For long absences use `fedau` or `mifa`. If clients can store a vector,
    `scaffold` reduces the variance further, with twice the communication.

    Reference: Jhunjhunwala, Sharma, Nagarkatti and Joshi, "FedVARP: Tackling the Variance Due to Partial Client
    Participation in Federated Learning", UAI 2022, Algorithm 1, as in the code of FedAU (github.com/IBM/fedau) except
    for the learning rate.

    Example:
        >>> step, rng, w = FedVARP(), np.random.default_rng(0), np.array([1.0])
        >>> one, zero = np.array([[8.0]], np.float32), np.array([[0.0]], np.float32)
        >>> v, state = step.combine({}, w, one, rng, last=zero, n=4)  # client 0 sends 8
        >>> v, step.combine(state, w, one / 2, rng, last=zero, n=4)[0]  # then client 1 sends 4: 4 - 0 + 8 / 4
        (array([8.]), array([6.]))
    """

    remembers_updates = True

    def combine(  # type: ignore[override]
        self, state: State, weights: Floats, update: Float32s, rng: np.random.Generator, *, last: Float32s, n: int
    ) -> tuple[Floats, State]:
        mean, change = state.get("mean", 0.0), total_change(update, last)
        return mean + change / len(update), {"mean": mean + change / n}


# -------------------- MIFA


@dataclass(frozen=True)
class MIFA(Aggregator):
    """MIFA (Gu et al., 2021): mean of the last updates of all clients.

    With the updates u_i of the clients of a round, and the last updates y_j of all n participants, initially 0::

        y_i <- u_i for the clients of the round,   then v = (1/n) sum_j y_j

    The server optimizer receives v as the update. Every client has the same weight in v, regardless of its
    availability. With full participation, MIFA equals FedAvg. In the paper all clients participate in round 1. In
    FedReach, clients without an update count as 0. So the first steps are short: with k of n clients, the step in round
    1 is k / n of FedAvg's step. As with all methods, the model does not change in a round without replies. In this
    case, github.com/IBM/fedau applies v.

    Updates include their weights and are divided by the local learning rate, as in `FedVARP`. The server stores 4 p
    bytes per participant, in a file if the total is at least 16 MiB.

    Use when: availability is unknown (`population.participation`), some clients are absent for long, and all clients
    should have equal influence. After long absences, stored updates are outdated. In this case, reduce `local.lr` or
    use `fedau`, which stores no updates.

    Reference: Gu, Huang, Zhang and Huang, "Fast Federated Learning in the Presence of Arbitrary Device Unavailability",
    NeurIPS 2021, Algorithm 1.

    Example:
        >>> step, rng, w = MIFA(), np.random.default_rng(0), np.array([1.0])
        >>> one, zero = np.array([[8.0]], np.float32), np.array([[0.0]], np.float32)
        >>> v, state = step.combine({}, w, one, rng, last=zero, n=4)  # client 0 sends 8
        >>> v, step.combine(state, w, one / 2, rng, last=zero, n=4)[0]  # then client 1 sends 4: (8 + 4) / 4
        (array([2.]), array([3.]))
    """

    remembers_updates = True

    def combine(  # type: ignore[override]
        self, state: State, weights: Floats, update: Float32s, rng: np.random.Generator, *, last: Float32s, n: int
    ) -> tuple[Floats, State]:
        mean = state.get("mean", 0.0) + total_change(update, last) / n
        return mean, {"mean": mean}


# -------------------- Table of aggregators

AGGREGATIONS: Mapping[str, Any] = {
    "mean": Mean,
    "fedvarp": FedVARP,
    "mifa": MIFA,
    "median": Median,
    "trimmed_mean": TrimmedMean,
    "geometric_median": GeometricMedian,
    "multi_krum": MultiKrum,
    "krum": Krum,
    "centered_clipping": CenteredClipping,
    "norm_bound": NormBound,
    "dp_fedavg": DPFedAvg,
    "dp_ftrl": DPFTRL,
}
