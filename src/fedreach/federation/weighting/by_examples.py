"""Weigh reports by their number of training examples."""

from __future__ import annotations

from dataclasses import dataclass

from fedreach.arrays import Floats
from fedreach.federation.round import Reports, State


@dataclass(frozen=True)
class ByExamples:
    """Give each example the same say: w_i = m_i / sum_j m_j, where m_i is client i's number of examples.

    Reference: McMahan et al., AISTATS 2017, Algorithm 1.
    """

    def weights(self, state: State, reports: Reports) -> tuple[Floats, State]:
        """Return the (r,) weights."""
        examples = reports.metrics["num_examples"]
        return examples / examples.sum(), state
