"""Choose the clients with the most varied labels."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.federation.selection.base import Policy, largest
from fedreach.federation.values import ClientView, Selection, State


@dataclass(frozen=True)
class EntropyTopK(Policy):
    """Choose the k available clients whose labels have the highest entropy; ties go to the lower id.

    It follows from the tight form of the bound in "Advocating for the Silent" (arXiv 2310.07171, proof of
    Theorem 2), b/K sum_{i not chosen} H_i, which the k highest entropies make smallest. Unless availability
    changes, the choice is the same in every round.

    When: label counts may be known, and as what balanced labels alone are worth. The same clients are chosen in every
    round.
    """

    needs: ClassVar[tuple[str, ...]] = ("label_entropy",)

    def select(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Selection:
        assert view.label_entropy is not None  # because of `needs`
        # Entropies of equal histograms in another class order differ by rounding; that must not decide a tie.
        entropy = view.label_entropy[view.available].round(12)
        return Selection(largest(view.ids[view.available], entropy, k))
