"""Who may and who must take part, in the form that the bounds need, and what prices make of each."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np

from fedreach.arrays import Bools, Floats, Ints
from fedreach.wireless.allocation.kernel import Needs
from fedreach.wireless.allocation.problem import AllocationProblem
from fedreach.wireless.allocation.search.knapsack import FractionalCover, fractional_cover


class Candidates(NamedTuple):
    """Those who may take part, of whom some must, as the bounds need them; n clients, which `rows` names."""

    needs: Needs
    sizes: Ints  # (n,) d, numbers of examples
    forced: Bools  # (n,) who must
    rows: Ints  # (n,) where they stand in the problem
    demand: int  # e2
    seconds_price: float  # a1

    @classmethod
    def of(cls, problem: AllocationProblem, min_examples: int) -> Candidates:
        """Return all clients of a problem, free to take part or not."""
        forced, rows = np.zeros(len(problem), bool), np.arange(len(problem))
        return cls(Needs.of(problem), problem.num_examples, forced, rows, min_examples, problem.seconds_price)

    @property
    def num_free(self) -> int:
        """How many may take part but need not."""
        return len(self.rows) - int(np.count_nonzero(self.forced))

    @property
    def short(self) -> int:
        """How many examples those who must take part leave open; at least 0."""
        return max(0, self.demand - int(self.sizes[self.forced].sum()))

    def only(self, kept: Bools, forced: Bools) -> Candidates:
        """Return those who are kept, and who of them must take part; flags (n,)."""
        if kept.all():
            return self._replace(forced=forced)
        return self._replace(
            needs=self.needs.only(kept), sizes=self.sizes[kept], forced=forced[kept], rows=self.rows[kept]
        )

    def band_needed(self, T: float) -> float:
        """Return the least band, in parts of all, that any cover needs by T: falls in T; +inf if none keeps T."""
        return self._least_band(T).value

    def keeping(self, T: float) -> Candidates | None:
        """Return them without those in no cover that keeps T, forcing those in every such cover; None: there is none.

        Taking in a client, or leaving it out, against the sign of its reduced share raises the band needed by that.
        """
        least = self._least_band(T)
        if least.value > 1:
            return None
        reduced = self.least_shares(T) - least.price * self.sizes
        kept = self.forced | (least.value + reduced <= 1)
        return self.only(kept, self.forced | (least.value - reduced > 1))

    def _least_band(self, T: float) -> FractionalCover:
        if (self.forced & (self.needs.min_seconds >= T)).any():
            return FractionalCover(inf, np.zeros(len(self.rows)), 0.0)
        return fractional_cover(self.least_shares(T), self.sizes, self.demand, self.forced)

    def least_shares(self, T: float) -> Floats:
        """Return tau / (T - W / f^max) (n,), the share that each needs to keep T; +inf if none is enough."""
        late = self.needs.min_seconds >= T
        return np.where(late, inf, self.needs.tau / np.where(late, 1.0, T - self.needs.min_seconds))
