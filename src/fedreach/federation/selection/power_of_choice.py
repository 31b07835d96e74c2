"""Choose the worst off of some candidates."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedreach.arrays import Ints
from fedreach.errors import require
from fedreach.federation.selection.base import Policy, largest
from fedreach.federation.values import ClientView, Probe, Selection, State

Loss = Literal["full", "batch", "last"]


@dataclass(frozen=True)
class PowerOfChoice(Policy):
    """Choose the k clients with the largest loss among some candidates.

    Candidates are drawn without replacement with probability proportional to their number of examples. A candidate
    that is asked is sent the model and answers with its mean training loss: one model down and 4 bytes up, counted.
    Ties go to the lower id; a candidate that was asked and did not answer comes last.

    When: clients may be asked for their loss, and those that are served worst shall count more.

    Args:
        candidates: How many there are, at least the cohort; None takes everybody who is available, as in
            "Advocating for the Silent" (arXiv 2310.07171). Fewer than the cohort: as many as the cohort.
        loss: Which loss is compared. ``"full"``: over all of a candidate's examples. ``"batch"``: over `batch_size`
            of them, less work for the client (cpow-d). ``"last"``: the last one heard, for which nobody is asked; a
            candidate never heard from counts as +inf and so goes first (rpow-d).
        batch_size: Examples of ``loss = "batch"``, at least 1.

    Raises:
        ConfigError: If an option is out of its range.

    Reference: Cho et al., "Towards Understanding Biased Client Selection in Federated Learning", AISTATS 2022,
    section 4.

    Example:
        >>> view = ClientView.of(np.arange(5), np.full(5, 10), loss=np.array([0.3, 0.9, np.nan, 0.9, 0.5]))
        >>> PowerOfChoice(loss="last").select({}, view, 2, np.random.Generator(np.random.Philox(0))).ids
        array([2, 1])
    """

    candidates: int | None = None
    loss: Loss = "full"
    batch_size: int = 64

    def __post_init__(self) -> None:
        require(self, loss=get_args(Loss), candidates="[1, inf)", batch_size="[1, inf)")

    def probe(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Probe | None:
        """Return the candidates, unless it is the last known loss that counts."""
        if self.loss == "last":
            return None
        ids = self._candidates(view, k, rng)
        return Probe(ids) if self.loss == "full" else Probe(ids, "batch_loss", self.batch_size)

    def select(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Selection:
        if self.loss == "last":
            rows = view.rows(np.sort(self._candidates(view, k, rng)))
            loss = view.loss[rows]
            return Selection(largest(view.ids[rows], np.where(np.isnan(loss), np.inf, loss), k))
        return Selection(largest(view.ids[view.probed], view.loss[view.probed], k))

    def _candidates(self, view: ClientView, k: int, rng: np.random.Generator) -> Ints:
        """Return the ids of the candidates."""
        ids: Ints = view.ids[view.available]
        if self.candidates is None or self.candidates >= len(ids):
            return ids
        examples = view.num_examples[view.available]
        return rng.choice(ids, size=max(k, self.candidates), replace=False, p=examples / examples.sum())
