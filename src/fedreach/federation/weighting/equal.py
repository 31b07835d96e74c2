"""Weigh all reports equally."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Floats
from fedreach.federation.weighting.base import OwnWeight


@dataclass(frozen=True)
class Equal(OwnWeight):
    """Give each client the same say: w_i = 1 / r.

    When: every client shall have the same say, however little it holds.
    """

    def raw(self, metrics: Mapping[str, Floats]) -> Floats:
        return np.ones(len(metrics["num_examples"]))
