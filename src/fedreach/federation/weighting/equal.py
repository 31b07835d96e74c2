"""Weigh all reports equally."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Floats
from fedreach.federation.round import Reports, State


@dataclass(frozen=True)
class Equal:
    """Give each client the same say: w_i = 1 / r."""

    def weights(self, state: State, reports: Reports) -> tuple[Floats, State]:
        """Return the (r,) weights."""
        r = len(reports.ids)
        return np.full(r, 1 / r), state
