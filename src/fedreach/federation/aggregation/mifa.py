"""MIFA: the mean of all clients' last updates."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.arrays import Float32s, Floats
from fedreach.federation.aggregation.fedvarp import total_change
from fedreach.federation.values import State


@dataclass(frozen=True)
class MIFA:
    """Count every client in every round, by the last update that it sent.

    With the updates u_i of the clients of a round, and what all n participants sent last, y_j, 0 at first::

        y_i <- u_i for the clients of the round,   then v = (1/n) sum_j y_j

    The server steps along v, in which each client counts the same, however often it is there. With all clients in every
    round it is FedAvg. In the paper all take part in round 1; here whoever was never heard counts 0, so that first
    steps are short: with k of n clients, k / n of FedAvg's in round 1. Where nobody replies the model stays, as with
    all methods; github.com/IBM/fedau steps along v then, too.

    Updates come in weighed and are remembered per unit of the local rate, as with `FedVARP`: with weights w_i of r
    reports, u_i stands for r w_i u_i, and equal weights give the paper. The server keeps 4 p bytes a participant, in
    files from 16 MiB on.

    *When to use it:* where clients are away in ways that nobody knows (`population.participation`), some for long, and
    all should count. Updates of clients that are away for very long point where the model was: lower `local.rate` then,
    or use `fedau`, which keeps no updates.

    When: clients are away for long and shall count all the same; one update of each is kept.

    Reference: Gu, Huang, Zhang and Huang, "Fast Federated Learning in the Presence of Arbitrary Device Unavailability",
    NeurIPS 2021, Algorithm 1.

    Example:
        >>> step, rng, w = MIFA(), np.random.default_rng(0), np.array([1.0])
        >>> one, zero = np.array([[8.0]], np.float32), np.array([[0.0]], np.float32)
        >>> v, state = step.combine({}, w, one, rng, last=zero, n=4)  # client 0 sends 8
        >>> v, step.combine(state, w, one / 2, rng, last=zero, n=4)[0]  # then client 1 sends 4: (8 + 4) / 4
        (array([2.]), array([3.]))
    """

    remembers_updates: ClassVar[bool] = True

    def combine(
        self, state: State, weights: Floats, update: Float32s, rng: np.random.Generator, *, last: Float32s, n: int
    ) -> tuple[Floats, State]:
        mean = state.get("mean", 0.0) + total_change(update, last) / n
        return mean, {"mean": mean}
