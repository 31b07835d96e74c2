"""FedVARP: the mean update, without the variance that a small cohort brings."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.arrays import Float32s, Floats
from fedreach.federation.aggregation.mean import weighted_sum
from fedreach.federation.values import State


def total_change(update: Float32s, last: Float32s) -> Floats:
    """Return (p,) sum_i (u_i - y_i) in float64, row by row as `weighted_sum`.

    Example:
        >>> total_change(np.array([[1, 2], [3, 4]], np.float32), np.array([[1, 1], [0, 0]], np.float32))
        array([3., 5.])
    """
    once = np.ones(len(update))
    return weighted_sum(once, update) - weighted_sum(once, last)


@dataclass(frozen=True)
class FedVARP:
    """Let the last update y_j of each client that is not there stand in for it.

    With the r clients of a round, their updates u_i, and the y_j of all n participants, 0 at first::

        v = (1/r) sum_i (u_i - y_i) + (1/n) sum_j y_j,   then y_i <- u_i for the r clients

    The server steps along v, whose mean over uniform cohorts is that of all n updates. It varies less than a cohort's
    own mean where a client's updates change little from round to round. With all clients in every round it is FedAvg.

    Updates come in weighed: of weights w_i that sum to 1, u_i stands for r w_i u_i, so that equal weights give the
    paper. They are remembered per unit of the local rate, as in the paper, so that a schedule scales old ones, too. The
    server keeps 4 p bytes a participant, in files from 16 MiB on; clients send what they send in FedAvg.

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

    remembers_updates: ClassVar[bool] = True

    def combine(
        self, state: State, weights: Floats, update: Float32s, rng: np.random.Generator, *, last: Float32s, n: int
    ) -> tuple[Floats, State]:
        mean, change = state.get("mean", 0.0), total_change(update, last)
        return mean + change / len(update), {"mean": mean + change / n}
