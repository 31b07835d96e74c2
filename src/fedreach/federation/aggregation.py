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
    """Return ``weights @ update`` in float64, one row after the other.

    A matrix product would be as fast (both wait for memory) but sums in an order that depends on the number of
    threads; this one gives the same bits on every machine.
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
    """The weighted mean of the updates, sum_i w_i u_i, as weights sum to 1.

    When: always, as the baseline; the only aggregator that secure aggregation allows.

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

    With the r clients of a round, their updates u_i, and the y_j of all n participants, 0 at first::

        v = (1/r) sum_i (u_i - y_i) + (1/n) sum_j y_j,   then y_i <- u_i for the r clients

    The server steps along v, whose mean over uniform cohorts is that of all n updates. It varies less than a cohort's
    own mean where a client's updates change little from round to round. With all clients in every round it is FedAvg.

    Updates come in weighed: with weights w_i that sum to 1, u_i denotes r w_i u_i, so that equal weights give the
    paper. They are remembered per unit of the local learning rate, as in the paper, so that a schedule scales old ones,
    too. The server keeps 4 p bytes per participant, in files from 16 MiB on; clients send what they send in FedAvg.

    *When to use it:* with cohorts drawn uniformly from clients whose labels differ, if each comes up again within some
    tens of rounds. Where some are away for long, `fedau` or `mifa`; where clients can keep a memory, `scaffold` does
    more, for twice the bytes.

    When: few of many clients train in a round, and the server has memory for one update of each.

    Reference: Jhunjhunwala, Sharma, Nagarkatti and Joshi, "FedVARP: Tackling the Variance Due to Partial Client
    Participation in Federated Learning", UAI 2022, Algorithm 1; as in the code of FedAU, github.com/IBM/fedau, but for
    the rate there.

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

    With the updates u_i of the clients of a round, and what all n participants sent last, y_j, 0 at first::

        y_i <- u_i for the clients of the round,   then v = (1/n) sum_j y_j

    The server steps along v, in which each client counts the same, however often it is there. With all clients in every
    round it is FedAvg. In the paper all take part in round 1; here clients never heard from count 0, so that first
    steps are short: with k of n clients, k / n of FedAvg's in round 1. Without any reply the model stays, as with
    all methods; github.com/IBM/fedau steps along v then, too.

    Updates come in weighed and are remembered per unit of the local learning rate, as with `FedVARP`: with weights w_i
    of r reports, u_i denotes r w_i u_i, and equal weights give the paper. The server keeps 4 p bytes per participant,
    in files from 16 MiB on.

    *When to use it:* where availability is unknown (`population.participation`), some clients are away for long, and
    all should count. Updates of clients that are away for very long point where the model was: lower `local.lr` then,
    or use `fedau`, which keeps no updates.

    When: clients are away for long and should still count; one update of each is kept.

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
