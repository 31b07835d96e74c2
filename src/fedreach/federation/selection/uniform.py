"""Choose at random."""

from dataclasses import dataclass

import numpy as np

from fedreach.federation.selection.base import Policy
from fedreach.federation.values import ClientView, Selection, State


@dataclass(frozen=True)
class Uniform(Policy):
    """Choose k of the available clients at random, each set of k equally likely.

    When: always, as the baseline; it is unbiased and asks nothing of clients.

    Example:
        >>> view = ClientView.of(np.arange(5), np.full(5, 10))
        >>> len(Uniform().select({}, view, 2, np.random.Generator(np.random.Philox(0))).ids)
        2
    """

    def select(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Selection:
        return Selection(rng.choice(view.available_ids, size=k, replace=False))
