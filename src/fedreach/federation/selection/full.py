"""Choose everybody."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.federation.selection.base import Policy
from fedreach.federation.values import ClientView, Selection, State


@dataclass(frozen=True)
class Full(Policy):
    """Choose all available participants, whatever the cohort size: what selection is measured against.

    When: there are few clients, or to see what choosing costs.

    Example:
        >>> Full().select({}, ClientView.of(np.arange(3), np.full(3, 10)), 1, None).ids
        array([0, 1, 2])
    """

    ignores_cohort: ClassVar[bool] = True

    def select(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Selection:
        return Selection(view.ids[view.available])
