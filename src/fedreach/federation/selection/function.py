"""A user's function as a selection policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Ints
from fedreach.federation.round import ClientView, Selection, State
from fedreach.federation.selection.base import Policy


@dataclass(frozen=True)
class FunctionSelection(Policy):
    """Use ``function(view, k, rng) -> ids``; facts it needs (see `FACTS`) are named in its attribute ``needs``.

    Example:
        >>> most_data = FunctionSelection(lambda view, k, rng: view.ids[np.argsort(-view.num_examples)[:k]])
        >>> most_data.select({}, ClientView.of(np.arange(3), np.array([5, 9, 7])), 2, None).ids
        array([1, 2])
    """

    function: Callable[[ClientView, int, np.random.Generator], Ints]

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return getattr(self.function, "__name__", "selection")

    @property
    def needs(self) -> tuple[str, ...]:
        """The facts that the function asks of clients."""
        return tuple(getattr(self.function, "needs", ()))

    def select(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Selection:
        """Return what the function chose."""
        return Selection(np.asarray(self.function(view, k, rng)))
