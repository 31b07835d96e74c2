"""Ask some clients for their loss and choose the worst off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedreach.errors import ConfigError
from fedreach.federation.round import ClientView, Probe, Selection, State
from fedreach.federation.selection.base import Policy, largest


@dataclass(frozen=True)
class PowerOfChoice(Policy):
    """Choose the k clients with the largest loss among some candidates.

    Candidates are drawn without replacement with probability proportional to their number of examples. Each is
    sent the model and answers with its mean training loss: one model down and 4 bytes up a candidate, counted.
    Ties go to the lower id.

    Args:
        candidates: How many are asked, at least the cohort; None asks everybody who is available, as in
            "Advocating for the Silent" (arXiv 2310.07171). Fewer than the cohort: as many as the cohort.

    Reference: Cho et al., "Towards Understanding Biased Client Selection in Federated Learning", AISTATS 2022,
    section 4.
    """

    candidates: int | None = None

    def __post_init__(self) -> None:
        if self.candidates is not None and self.candidates < 1:
            raise ConfigError(f"PowerOfChoice.candidates must be at least 1; got {self.candidates}.")

    def probe(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Probe | None:
        """Return the candidates."""
        ids = view.ids[view.available]
        if self.candidates is None or self.candidates >= len(ids):
            return Probe(ids)
        examples = view.num_examples[view.available]
        return Probe(rng.choice(ids, size=max(k, self.candidates), replace=False, p=examples / examples.sum()))

    def select(self, state: State, view: ClientView, k: int, rng: np.random.Generator) -> Selection:
        """Return the k candidates with the largest loss."""
        return Selection(largest(view.ids[view.probed], view.loss[view.probed], k))
