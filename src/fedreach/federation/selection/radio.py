"""Client selection based on channels and devices."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedreach._util.errors import ConfigError
from fedreach.federation.base import Selection
from fedreach.federation.selection.random import AdmittedClients, DivergenceFilter, largest
from fedreach.federation.types import Cohort, ServerView, State
from fedreach.wireless.baselines import (
    DC,
    check_solver,
    genetic_search,
    genetic_selection,
    repair_genetic,
    sqrt_sort,
)
from fedreach.wireless.exact import allocate
from fedreach.wireless.problem import Allocation, AllocationProblem
from fedreach.wireless.solve import solve

# -------------------- Best channels


@dataclass(frozen=True)
class BestChannels(Selection):
    """Selection of the k available clients with the fastest channels in this round.

    The policy compares the rates R over the full bandwidth (see `fedreach.wireless.radio.bits_per_second`). Ties go to
    the lower id. Distant clients are hardly ever selected, so the model learns nothing from their data.

    Use when: only time matters, or you need a baseline that ignores the data. It requires `[radio]`.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", section V-A,
    baseline (a), called SAE there. The paper contains no further details.

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
"""Algorithms 1 and 2 as printed, with constants that the paper does not specify."""


@dataclass(frozen=True)
class CSRA(DivergenceFilter):
    """Client selection with resource allocation (CSRA): the cheapest set of clients with enough suitable examples.

    The policy considers the available clients with KL(p || p_i) <= `threshold` (see `KLFilter`). It selects a set S of
    them with at least `min_examples` examples, bandwidth shares b and CPU frequencies f that

        minimize  a1 T + a2 sum_{i in S} (P_i tau_i / b_i + eps W_i f_i^2),

    where T is the time until the last client of S is ready (see `fedreach.wireless.problem.AllocationProblem`). The
    cohort size k only defines `min_examples` if this option is None. The selection includes an allocation, which the
    option ``allocation`` of a method replaces. This defines two baselines of the paper: CS-Greedy is ``allocation =
    "greedy"``, and GA-Random is ``search = "genetic"`` with ``allocation = "random"``.

    Use when: clients, bandwidth and CPU frequencies should be chosen together at the lowest cost. It requires
    `[radio]`.

    Args:
        threshold: Largest divergence e1 in nats; option of `KLFilter`, as are `direction` and `smoothing`.
        min_examples: Smallest number e2 of training examples of all selected clients together. None: k times the mean
            number per client.
        search: Search for the set S. ``"certified"``: a set with a proof that no set is cheaper, up to `tolerance`.
            ``"sorted"``: clients by increasing sqrt(P tau) / d. ``"genetic"``: the paper's baseline. ``"paper"``: the
            paper's algorithm with its own allocation, see `DC` (requires the extra `reproduce`). For ``"sorted"`` and
            ``"genetic"``, the allocation is exact for the set.
        candidates: Clients that ``"genetic"`` searches. ``"filtered"``: those within the threshold. ``"all"``, from the
            paper: all available clients, with a penalty on their divergence (eq. 61, see
            `fedreach.wireless.baselines.penalty_terms`). Clients of the best set that the penalty did not exclude are
            then replaced, which the remark of the round reports.
        tolerance: Largest gap of ``"certified"``, relative to the cost.
        max_nodes: Largest number of nodes in the search of ``"certified"``. If the search reaches it, the remark of the
            round reports the gap. A limit in seconds would make the result depend on the machine.

    Raises:
        ConfigError: If an option is out of range, the radio is missing, ``"paper"`` lacks its library, or another
            search than ``"genetic"`` has ``candidates = "all"``.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", eq. 37 and
    Algorithm 2. The cost of Algorithm 2 is far from the lowest cost, see ``benchmarks/allocation.py``.

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
    candidates: Literal["filtered", "all"] = "filtered"
    tolerance: Annotated[float, "(0, 1)"] = 1e-4
    max_nodes: Annotated[int, "[1, inf)"] = 2000
    ignores_cohort = True
    needs_radio = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.search == "paper":
            check_solver()
        if self.candidates == "all" and self.search != "genetic":
            raise ConfigError(
                f"CSRA.candidates must be 'filtered' with search = {self.search!r}, which has no penalty for divergent "
                "clients. Use search = 'genetic'."
            )

    def select(self, state: State, view: ServerView, k: int, rng: np.random.Generator) -> Cohort:
        """Return the cohort with its allocation; the remark reports constraints that could not be satisfied."""
        assert view.radio is not None  # because of `needs_radio`
        admitted = self.admitted(view, k)
        problem = view.radio.problem().only(view.rows(admitted.ids))
        remarks = [] if admitted.kept and admitted.enough else [admitted.said]
        if not admitted.enough:
            return Cohort(admitted.ids, remarks[0], allocate(problem))
        if self.candidates == "all":
            everyone = view.radio.problem().only(view.available)
            allocation, remark = self._search_all(everyone, admitted, rng)
        else:
            allocation, remark = self._search(problem, max(1, admitted.min_examples), rng)
        return Cohort(allocation.ids, "; ".join([*remarks, *([remark] if remark else [])]), allocation)

    def _search_all(
        self, problem: AllocationProblem, admitted: AdmittedClients, rng: np.random.Generator
    ) -> tuple[Allocation, str]:
        """Search all available clients for the best set of eq. 61; the remark reports if this set needed a repair."""
        needed, limit = max(1, admitted.min_examples), admitted.max_divergence
        best = genetic_search(problem, needed, rng, divergence=admitted.divergence, max_divergence=limit)
        within = admitted.divergence <= limit
        rows = repair_genetic(problem, needed, best, within)
        remark = ""
        if rows.tolist() != best.tolist():
            removed, added = np.count_nonzero(~within[best]), np.count_nonzero(~np.isin(rows, best))
            remark = f"genetic search: {removed} clients above {limit:.4g} nats removed, {added} clients added"
        return allocate(problem.only(rows)), remark

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
