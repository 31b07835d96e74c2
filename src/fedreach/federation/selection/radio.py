"""Client selection by channels and devices."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedreach.federation.base import Selection
from fedreach.federation.selection.random import DivergenceFilter, largest
from fedreach.federation.types import Cohort, ServerView, State
from fedreach.wireless.baselines import DC, check_solver, genetic_selection, sqrt_sort
from fedreach.wireless.exact import allocate
from fedreach.wireless.problem import Allocation, AllocationProblem
from fedreach.wireless.solve import solve

# -------------------- Best channels


@dataclass(frozen=True)
class BestChannels(Selection):
    """Selection of the k available clients with the fastest channels in this round.

    Compares the rates R over the whole band (see `fedreach.wireless.radio.bits_per_second`); ties go to the lower id.
    Distant clients are hardly ever selected, so the model learns nothing from their data.

    Use when: only time matters, and as the baseline that ignores the data. Needs `[radio]`.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", section V-A,
    baseline (a), called SAE there. The paper gives no further details.

    Example:
        >>> from fedreach.testing.problems import with_rates
        >>> view = with_rates(ServerView.of(np.arange(4), np.full(4, 10)), np.array([1e6, 4e6, 2e6, 3e6]))
        >>> BestChannels().select({}, view, 2, np.random.Generator(np.random.Philox(0))).ids
        array([1, 3])
    """

    needs_radio = True

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        assert view.radio is not None  # because of `needs_radio`
        available = view.available
        return Cohort(largest(view.ids[available], view.radio.bits_per_second[available], k))


# -------------------- CSRA: clients, bandwidth and CPU frequencies together

PAPER = DC("rlt", (1.0,), shares="relaxed", allocation="paper")
"""Algorithms 1 and 2 as printed, with those constants that the paper leaves out."""


@dataclass(frozen=True)
class CSRA(DivergenceFilter):
    """Client selection with resource allocation (CSRA): the cheapest set of clients with enough suitable examples.

    Among the available clients with KL(p || p_i) <= `threshold` (see `KLFilter`), selects the set S with at least
    `min_examples` examples, its bandwidth shares b and CPU frequencies f that

        minimize  a1 T + a2 sum_{i in S} (P_i tau_i / b_i + eps W_i f_i^2),

    where T is the time until the last client of S is ready (see `fedreach.wireless.problem.AllocationProblem`). The
    cohort size k only defines `min_examples` if that is None. The allocation is part of the selection; the option
    ``allocation`` of a method replaces it. That gives the baselines of the paper: CS-Greedy is ``allocation =
    "greedy"``, GA-Random is ``search = "genetic"`` with ``allocation = "random"``.

    Use when: clients, bandwidth and CPU frequencies should be chosen together at the least cost. Needs `[radio]`.

    Args:
        threshold: Largest divergence e1 in nats, as in `KLFilter`, like `direction` and `smoothing`.
        min_examples: Number of training examples e2 that the selected clients must hold together. None: as many as k
            clients of mean size.
        search: ``"certified"``: a set with a proof that no set is cheaper, up to `tolerance`. ``"sorted"``: clients in
            increasing sqrt(P tau) / d. ``"genetic"``: the paper's baseline. ``"paper"``: the paper's algorithm with its
            own allocation, see `DC` (needs the extra `reproduce`). ``"sorted"`` and ``"genetic"`` get the exact
            allocation for their set.
        tolerance: Largest gap of ``"certified"``, relative to the cost.
        max_nodes: Limit of the proof's search. The remark of the round reports the gap if it ends there. A limit in
            seconds would make the choice depend on the machine.

    Raises:
        ConfigError: If an option is out of range, the radio is missing, or ``"paper"`` lacks its library.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", eq. 37 and
    Algorithm 2. Algorithm 2 ends far from the least cost, see ``benchmarks/allocation.py``.

    Example:
        >>> from dataclasses import replace
        >>> from fedreach.testing.problems import with_rates
        >>> counts = np.array([[10, 10], [10, 10], [30, 1], [10, 9]])
        >>> view = replace(ServerView.of(np.arange(4), counts.sum(axis=1)), label_counts=counts)
        >>> view = with_rates(view, np.array([1e6, 4e6, 9e6, 2e6]))
        >>> chosen = CSRA(min_examples=30).select({}, view, 2, np.random.Generator(np.random.Philox(0)))
        >>> chosen.ids, chosen.allocation.share.round(2)
        (array([1, 3]), array([0.34, 0.66]))
    """

    min_examples: int | None = None
    search: Literal["certified", "sorted", "genetic", "paper"] = "certified"
    tolerance: Annotated[float, "(0, 1)"] = 1e-4
    max_nodes: Annotated[int, "[1, inf)"] = 2000
    ignores_cohort = True
    needs_radio = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.search == "paper":
            check_solver()

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        """Return the cohort with its allocation; the remark reports constraints that could not be met."""
        assert view.radio is not None  # because of `needs_radio`
        admitted = self.admitted(view, k)
        problem = view.radio.problem().only(view.rows(admitted.ids))
        remarks = [] if admitted.kept and admitted.enough else [admitted.said]
        if not admitted.enough:
            return Cohort(admitted.ids, remarks[0], allocate(problem))
        allocation, remark = self._search(problem, max(1, admitted.min_examples), rng)
        return Cohort(allocation.ids, "; ".join([*remarks, *([remark] if remark else [])]), allocation)

    def _search(
        self, problem: AllocationProblem, min_examples: int, rng: np.random.Generator
    ) -> tuple[Allocation, str]:
        if self.search == "paper":
            return PAPER.solve(problem, min_examples).allocation, ""
        if self.search == "sorted":
            return allocate(problem.only(sqrt_sort(problem, min_examples))), ""
        if self.search == "genetic":
            return allocate(problem.only(genetic_selection(problem, min_examples, rng))), ""
        solution = solve(
            problem, min_examples, tolerance=self.tolerance, time_limit_seconds=np.inf, max_nodes=self.max_nodes
        )
        remark = "" if solution.status == "optimal" else f"the allocation's gap is {solution.gap:.1e}"
        return solution.allocation, remark
