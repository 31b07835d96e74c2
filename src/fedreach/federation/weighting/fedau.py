"""Weigh reports by how rarely their clients take part."""

from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.errors import require
from fedreach.federation.values import Reports, State
from fedreach.federation.weighting.base import normalised


@dataclass(frozen=True)
class FedAU:
    """Give more say to clients that take part rarely, as estimated from the past alone.

    The rounds of each client are cut into intervals that end where its report counts, or are `cutoff` rounds long. Its
    number a_i is the mean length of the intervals that ended before this round, 1 where none did: an estimate of 1 /
    (how often it takes part). Reports weigh w_i = a_i / sum_j a_j, and their mean is multiplied by sum_j a_j / n, n the
    participants that share the model, so that together the step is

        (1 / n) sum_i a_i u_i,

    on average the plain mean over all n once estimates are right. The first steps are short: with k of n clients, k / n
    of the mean in round 1. Inside `product`, `mix` and `clip` only the ratios of the a_i count.

    *When to use it:* where clients differ much in how often they can be reached (`population.participation`) and every
    client should count the same, however rarely it is there. Where all are there equally often, `equal` does the same
    without the slow start.

    When: how often clients can be reached differs, and nobody knows by how much.

    Args:
        cutoff: K, the rounds that an interval has at most, at least 1; the authors' code has 50 as well as none. A
            short one keeps rare clients from large weights; whoever comes less often than every K rounds then counts
            too little.

    Raises:
        ConfigError: If `cutoff` is out of its range.

    Reference: Wang and Ji, "A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging",
    ICLR 2024, Algorithms 1 and 2; intervals and numbers are those of the authors' code, github.com/IBM/fedau.

    Example:
        >>> weighting, metrics = FedAU(), {"num_examples": np.ones(2)}
        >>> update = np.zeros((2, 1), np.float32)
        >>> _, state = weighting.weights({}, Reports(np.array([0, 1]), update, metrics, round=3))
        >>> _, state = weighting.weights(state, Reports(np.array([0, 2]), update, metrics, round=4))
        >>> weighting.weights(state, Reports(np.array([0, 1]), update, metrics, round=5))[0]  # means 4 / 2 and 3 / 1
        array([0.4, 0.6])
    """

    cutoff: int = 50

    def __post_init__(self) -> None:
        require(self, cutoff="[1, inf)")

    def weights(self, state: State, reports: Reports) -> tuple[Floats, State]:
        """Return the (r,) weights, and of all clients heard so far what their intervals were."""
        raw, intervals = self._mean_lengths(state, reports)
        return normalised(self, raw), self._noted(state, reports, intervals)

    def mean_scale(self, state: State, reports: Reports, n: int) -> float:
        """Return sum_j a_j / n."""
        return float(self._mean_lengths(state, reports)[0].sum() / n)

    def _mean_lengths(self, state: State, reports: Reports) -> tuple[Floats, Ints]:
        """Return (r,) mean lengths of the intervals that ended before this round, and how many did."""
        # Intervals lie end to end, so that their lengths sum to the round in which the last one ended.
        ids = state.get("ids", reports.ids[:0])
        intervals, end = np.zeros((2, len(reports.ids)), np.int64)
        known = np.isin(reports.ids, ids)
        where = np.searchsorted(ids, reports.ids[known])
        if len(where):
            intervals[known], end[known] = state["intervals"][where], state["end"][where]
        cut = (reports.round - 1 - end) // self.cutoff
        intervals, end = intervals + cut, end + cut * self.cutoff
        return np.where(intervals > 0, end / np.maximum(intervals, 1), 1.0), intervals

    def _noted(self, state: State, reports: Reports, intervals: Ints) -> State:
        """Return the state in which an interval of each client that reported ended in this round."""
        if "ids" not in state:
            return {"ids": reports.ids, "intervals": intervals + 1, "end": np.full(len(reports.ids), reports.round)}
        ids = np.union1d(state["ids"], reports.ids)
        kept, new = np.searchsorted(ids, state["ids"]), np.searchsorted(ids, reports.ids)
        count, end = np.zeros((2, len(ids)), np.int64)
        count[kept], end[kept] = state["intervals"], state["end"]
        count[new], end[new] = intervals + 1, reports.round
        return {"ids": ids, "intervals": count, "end": end}
