"""Weigh reports by their number of training examples."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedreach.arrays import Floats
from fedreach.federation.weighting.base import OwnWeight


@dataclass(frozen=True)
class ByExamples(OwnWeight):
    """Give each example the same say: w_i = m_i / sum_j m_j, where m_i is client i's number of examples.

    When: every example shall have the same say; the default, and what most theory is about.

    Reference: McMahan et al., AISTATS 2017, Algorithm 1.
    """

    def raw(self, metrics: Mapping[str, Floats]) -> Floats:
        return metrics["num_examples"]
