"""The paper's own algorithm: a DC relaxation chooses clients and shares, then frequencies, in turn."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.errors import ConfigError, require
from fedreach.wireless.allocation import exact
from fedreach.wireless.allocation.baselines.relaxed import Relaxation, RelaxedProblem
from fedreach.wireless.allocation.baselines.sorting import by_energy, cover, sqrt_sort
from fedreach.wireless.allocation.baselines.steps import best_frequencies, best_shares
from fedreach.wireless.allocation.kernel import Needs
from fedreach.wireless.allocation.problem import Allocation, AllocationProblem, check_coverable
from fedreach.wireless.allocation.rules.base import own_frequency
from fedreach.wireless.allocation.search.incumbent import Incumbent
from fedreach.wireless.allocation.search.moves import improve

Shares = Literal["best", "relaxed"]
BINARY = 1e-3  # nearer to 0 or 1 than this is 0 or 1
STILL = 1e-6  # of a: no change any more


@dataclass(frozen=True, eq=False)
class DCResult:
    """What the algorithm ended with, and what had to be mended on the way."""

    allocation: Allocation
    after_shares: float  # cost after step (a), at the frequencies it was given
    after_frequencies: float  # cost after step (b)
    part: Floats  # (K,) a, as the relaxation left it
    raw_share_sum: float  # of 1 / u over those with a > 1/2, before any repair; the band is 1
    not_binary: int  # clients with a neither 0 nor 1
    coverage_failed: bool  # those with a > 1/2 held too few examples, and others were added


@dataclass(frozen=True)
class DC:
    """The paper's two steps: choose clients and shares at fixed frequencies, then frequencies at fixed shares.

    Step (a) relaxes the choice to parts 0 <= a <= 1 and charges a penalty rho (a - a^2) for each that is neither. The
    penalty is replaced by its tangent at the last a, so that a convex problem is left, `iterations` times or until a
    stands still; clients with a > 1/2 are chosen. Those may hold too few examples: then the cheapest by `by_energy`
    join. Step (b) is `best_frequencies`. Neither step sees that a change of both would pay, so the result is not
    optimal, not even for its own clients: `allocation = "joint"` gives these their exact allocation at the end.

    As the paper has it: ``DC("rlt", (1.0,), shares="relaxed", allocation="paper")``. Its start, rho, b_min and numbers
    of iterations are not stated.

    Args:
        relaxation: ``"perspective"``, ours, or ``"rlt"``, the paper's, which hardly sees the channel (see
            `RelaxedProblem`).
        penalties: rho, each positive and tried on its own; the cheapest result is returned. In units of the cost of
            the clients of `sqrt_sort` at the frequencies of the step, so that prices may be scaled.
        smallest_share: b_min of ``"rlt"``, above 0; at most 1 / (2 K) is used, as all K clients must have room.
        start: a of all clients before the first iteration, 0 to 1.
        iterations: Most convex problems of a step (a).
        shares: ``"best"``, the best for the clients that were chosen (`best_shares`); ``"relaxed"``, b = 1 / u of the
            relaxation, scaled down where they are more than the band, and 1 / K for a client that joined.
        passes: How often steps (a) and (b) are done in turn; the paper does them once. The cheapest pass counts.
        first_speed: Frequencies of the first step (a), as a part of f^max, above 0 and at most 1; None begins with
            those that suit each client alone (`own_frequency`).
        local_search: Whether clients are dropped and swapped as long as the exact cost falls (`moves.improve`).
        allocation: ``"joint"`` or ``"paper"``, see above.

    Raises:
        ConfigError: If an option is out of its range, or clarabel is not installed.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", Algorithms 1
    and 2.

    Example:
        >>> tau, P = [0.060, 0.080, 0.055, 0.120, 0.070, 0.065], [0.2, 0.5, 1.0, 0.1, 2.0, 0.3]
        >>> W, f = [2e8, 1.5e8, 3e8, 1e8, 2.5e8, 1.8e8], [3e9, 2e9, 5e9, 4e9, 2.5e9, 3.5e9]
        >>> problem = AllocationProblem(*np.array([tau, P, W, f]), np.array([700, 650, 900, 400, 800, 750]))
        >>> result = DC(first_speed=0.25).solve(problem, 2000)
        >>> result.allocation.ids, round(result.after_frequencies, 6), round(result.allocation.cost, 6)
        (array([0, 1, 5]), 0.920897, 0.897183)
    """

    relaxation: Relaxation = "perspective"
    penalties: tuple[float, ...] = (0.1, 0.3, 1.0)
    smallest_share: float = 1e-3
    start: float = 0.5
    iterations: int = 15
    shares: Shares = "best"
    passes: int = 1
    first_speed: float | None = None
    local_search: bool = False
    allocation: Literal["joint", "paper"] = "joint"

    def __post_init__(self) -> None:
        require(self, relaxation=get_args(Relaxation), shares=get_args(Shares), allocation=("joint", "paper"))
        require(
            self,
            smallest_share="(0, 1]",
            first_speed="(0, 1]",
            start="[0, 1]",
            iterations="[1, inf)",
            passes="[1, inf)",
        )
        if not self.penalties or not all(0 < rho < np.inf for rho in self.penalties):
            raise ConfigError(f"DC.penalties must be positive numbers, at least one; got {self.penalties!r}.")

    def solve(self, problem: AllocationProblem, min_examples: int) -> DCResult:
        """Return the cheapest result of all penalties and passes.

        Raises:
            ConfigError: If `min_examples` is not a whole number from 1.
            InfeasibleError: If all clients together hold fewer.
        """
        check_coverable(problem, min_examples)
        results = []
        for rho in self.penalties:
            hertz = own_frequency(problem) if self.first_speed is None else self.first_speed * problem.max_hertz
            for _ in range(self.passes):
                result, hertz = self._pass(problem, min_examples, hertz, rho)
                results.append(result)
        return min(results, key=lambda result: result.allocation.cost)

    def _pass(
        self, problem: AllocationProblem, min_examples: int, hertz: Floats, rho: float
    ) -> tuple[DCResult, Floats]:
        part, u = self._relaxed(problem, min_examples, hertz, rho)
        chosen = np.flatnonzero(part > 0.5)
        rows = cover(problem, min_examples, by_energy(problem), first=chosen)
        share = self._share(problem, rows, chosen, u, hertz)
        after_a = Allocation.of(problem, rows, share, hertz[rows])
        best = best_frequencies(problem.only(rows), share).hertz
        after_b = Allocation.of(problem, rows, share, best)
        final = after_b
        if self.local_search:
            rows = _improved(problem, min_examples, rows)
        if self.allocation == "joint":
            final = exact.allocate(problem.only(rows))
        elif self.local_search:
            final = _paper_allocation(problem, rows, hertz)
        hertz = hertz.copy()  # those left out keep theirs: the paper does not say
        hertz[rows] = final.hertz
        result = DCResult(
            allocation=final,
            after_shares=after_a.cost,
            after_frequencies=after_b.cost,
            part=part,
            raw_share_sum=float(np.sum(1 / u[chosen])),
            not_binary=int(np.sum((part > BINARY) & (part < 1 - BINARY))),
            coverage_failed=int(problem.num_examples[chosen].sum()) < min_examples,
        )
        return result, hertz

    def _relaxed(
        self, problem: AllocationProblem, min_examples: int, hertz: Floats, rho: float
    ) -> tuple[Floats, Floats]:
        """Return a and u of Algorithm 1."""
        typical = sqrt_sort(problem, min_examples)
        unit = Allocation.of(problem, typical, np.full(len(typical), 1 / len(typical)), hertz[typical]).cost
        smallest = min(self.smallest_share, 1 / (2 * len(problem)))
        relaxed = RelaxedProblem(problem, hertz, min_examples, self.relaxation, smallest, unit)
        a = np.full(len(problem), self.start)
        for _ in range(self.iterations):
            last = a
            a, u = relaxed.solve(rho * (1 - 2 * last))  # rho (a - a^2) by its tangent, but for a constant
            if np.max(np.abs(a - last)) < STILL:
                break
        return a, u

    def _share(self, problem: AllocationProblem, rows: Ints, chosen: Ints, u: Floats, hertz: Floats) -> Floats:
        if self.shares == "best":
            return best_shares(problem.only(rows), hertz[rows])
        share = np.where(np.isin(rows, chosen), 1 / u[rows], 1 / len(problem))
        return share / max(1.0, float(share.sum()))


def _improved(problem: AllocationProblem, min_examples: int, rows: Ints) -> Ints:
    """Return the rows that local search ends with, never costlier when allocated exactly."""
    best = Incumbent(problem, min_examples)
    best.offer([rows])
    improve(best, Needs.of(problem))
    return best.rows


def _paper_allocation(problem: AllocationProblem, rows: Ints, hertz: Floats) -> Allocation:
    """Return steps (a) and (b) once for clients that are settled."""
    share = best_shares(problem.only(rows), hertz[rows])
    return Allocation.of(problem, rows, share, best_frequencies(problem.only(rows), share).hertz)
