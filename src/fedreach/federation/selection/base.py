"""The largest of some scores, and a plain function as a selection."""

from dataclasses import dataclass

import numpy as np

from fedreach._util.arrays import AnyArray, Ints
from fedreach.federation.base import OfFunction, Selection
from fedreach.federation.types import Cohort, ServerView, State


def largest(ids: Ints, score: AnyArray, k: int) -> Ints:
    """Return the k ids with the largest score; ties go to the lower id.

    Example:
        >>> largest(np.array([0, 1, 2, 3, 4]), np.array([0.3, 0.9, 0.1, 0.9, 0.5]), 2)
        array([1, 3])
    """
    return ids[np.lexsort((ids, -score))[:k]]


@dataclass(frozen=True)
class FunctionSelection(OfFunction, Selection):
    """Use ``function(view, k, rng) -> ids``; its attributes, such as ``needs``, count.

    Example:
        >>> most_data = FunctionSelection(lambda view, k, rng: view.ids[np.argsort(-view.num_examples)[:k]])
        >>> most_data.select({}, ServerView.of(np.arange(3), np.array([5, 9, 7])), 2, None).ids
        array([1, 2])
    """

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        return Cohort(np.asarray(self.function(view, k, rng)))
