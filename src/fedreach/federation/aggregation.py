"""Aggregators: how client results become one update."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedreach._util.arrays import Bools, Float32s, Floats
from fedreach.federation.base import Aggregator
from fedreach.federation.types import State

# -------------------- Weighted sum of updates


def finite_rows(update: Float32s) -> Bools:
    """Return (k,) whether all numbers of each row are finite.

    Example:
        >>> finite_rows(np.array([[1.0, 2.0], [np.nan, 0.0], [3e38, 3e38], [np.inf, -np.inf]], np.float32))
        array([ True, False,  True, False])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        # What is not finite stays so in a sum, which reads the rows once; a sum may overflow, though.
        finite: Bools = np.isfinite(update.sum(axis=1))
    for row in np.flatnonzero(~finite):
        finite[row] = np.isfinite(update[row]).all()
    return finite


BLOCK = 65_536  # numbers of a vector that are summed at a time


def weighted_sum(weights: Floats, update: Float32s) -> Floats:
    """Return ``weights @ update`` in float64, summed row by row.

    A matrix product would sum in an order that depends on the number of threads; this function gives the same bits on
    every machine, and both are limited by memory.
    """
    total = np.zeros(update.shape[1])
    product = np.empty(min(len(total), BLOCK))
    for begin in range(0, len(total), BLOCK):  # block by block, so that sums stay in the cache
        part = total[begin : begin + BLOCK]
        scaled_row = product[: len(part)]
        for weight, row in zip(weights, update[:, begin : begin + BLOCK], strict=True):
            scaled_row[:] = row  # float64 first: a product of two kinds of numbers is twice as slow
            scaled_row *= weight
            part += scaled_row
    return total


@dataclass(frozen=True)
class Mean(Aggregator):
    """Weighted mean of the updates, sum_i w_i u_i.

    Use when: always, as the baseline. Secure aggregation allows no other aggregator.

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
    """Return (p,) sum_i (u_i - y_i) in float64, row by row as `weighted_sum`.

    Example:
        >>> total_change(np.array([[1, 2], [3, 4]], np.float32), np.array([[1, 1], [0, 0]], np.float32))
        array([3., 5.])
    """
    once = np.ones(len(update))
    return weighted_sum(once, update) - weighted_sum(once, last)


@dataclass(frozen=True)
class FedVARP(Aggregator):
    """FedVARP (Jhunjhunwala et al., 2022): absent clients count by their last updates y_j.

    With the updates u_i of the r clients of a round, and the last updates y_j of all n participants, initially 0::

        v = (1/r) sum_i (u_i - y_i) + (1/n) sum_j y_j,   then y_i <- u_i for the r clients

    The server steps along v. Over uniform cohorts, its expectation is the mean of all n updates. Its variance is
    smaller than that of the cohort's mean if updates of a client change little between rounds. With full participation
    it is FedAvg.

    Updates include their weights: with weights w_i that sum to 1, u_i denotes r w_i u_i, so equal weights give the
    paper. They are stored per unit of the local learning rate, as in the paper, so a schedule scales stored updates
    too. The server stores 4 p bytes per participant, in files from 16 MiB on. Clients send the same as in FedAvg.

    Use when: cohorts are uniform, labels differ between clients, each client is selected every few dozen rounds, and
    the server can store one update per client. For long absences use `fedau` or `mifa`; if clients can store a vector,
    `scaffold` reduces variance further at twice the bytes.

    Reference: Jhunjhunwala, Sharma, Nagarkatti and Joshi, "FedVARP: Tackling the Variance Due to Partial Client
    Participation in Federated Learning", UAI 2022, Algorithm 1; as in the code of FedAU (github.com/IBM/fedau), except
    for its learning rate.

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
    """MIFA (Gu et al., 2021): the mean of the last updates of all clients.

    With the updates u_i of the clients of a round, and the last updates y_j of all n participants, initially 0::

        y_i <- u_i for the clients of the round,   then v = (1/n) sum_j y_j

    The server steps along v, in which every client counts the same, however often it is available. With full
    participation it is FedAvg. In the paper all clients participate in round 1; here clients without an update count 0,
    so the first steps are short: with k of n clients, k / n of FedAvg's step in round 1. Without any reply the model
    stays unchanged, as with all methods; github.com/IBM/fedau steps along v then.

    Updates include their weights and are stored per unit of the local learning rate, as in `FedVARP`. The server stores
    4 p bytes per participant, in files from 16 MiB on.

    Use when: availability is unknown (`population.participation`), some clients are absent for long, and all should
    count. Updates of long absences are outdated: lower `local.lr` then, or use `fedau`, which stores no updates.

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
}
