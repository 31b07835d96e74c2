"""The whole problem: which clients take part, with which shares and frequencies, and a proof of how good that is."""

import time
from numbers import Real
from typing import Any

import numpy as np

from fedreach.arrays import Ints
from fedreach.errors import ConfigError
from fedreach.wireless.allocation.exact import allocate
from fedreach.wireless.allocation.problem import AllocationProblem, Solution, Status, check_coverable, is_whole
from fedreach.wireless.allocation.search.candidates import Candidates
from fedreach.wireless.allocation.search.certificate import Effort, prove
from fedreach.wireless.allocation.search.incumbent import Incumbent
from fedreach.wireless.allocation.search.interval_bounds import Node
from fedreach.wireless.allocation.search.moves import improve
from fedreach.wireless.allocation.search.relaxation import earliest_deadline, least_energy, relax
from fedreach.wireless.allocation.search.rounding import settle

FEW_COVERS = 200  # sets so few that all of them are allocated, which is faster than a proof, and is one
CUTS = 6  # intervals to either side of the first deadline found; each is twice as wide, in log T, as the one before
UNPROVEN = 40  # nodes that the bound may take where no proof is asked for


def solve(
    problem: AllocationProblem,
    min_examples: int,
    *,
    tolerance: float = 1e-6,
    time_limit_seconds: float = 30.0,
    max_nodes: int | None = None,
    certify: bool = True,
) -> Solution:
    """Return the cheapest set of clients that together hold enough examples, with its best allocation, and a bound.

    Args:
        problem: Of K clients.
        min_examples: e2, how many examples the set must hold at least.
        tolerance: The gap between cost and bound, relative to the cost, at which the proof ends; 1e-9 or more.
        time_limit_seconds: After which the proof stops where it is; the bound holds all the same. The search for a
            good set that comes before it is always finished: about 0.1 s for 1000 clients, 3 s for 100,000.
        max_nodes: Parts after which the proof stops likewise, on every machine at the same place; None: no limit.
        certify: Whether to prove, where not all sets are tried anyway. Without, the set is the same in nearly all
            cases, and the bound looser.

    Raises:
        InfeasibleError: If all clients together hold too few examples.
        ConfigError: If an argument is outside its range.

    Reference: the problem is P1' of "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless
    Networks", eq. 37; the method is ours. The paper's is not exact, and gives no bound.

    Example:
        >>> tau, P = [0.10, 0.08, 0.12, 0.20, 0.06], [0.5, 1.0, 0.25, 0.1, 2.0]
        >>> W, f = [1e8, 2e8, 5e7, 1.5e8, 3e8], [2e9, 3e9, 2.5e9, 1e9, 4e9]
        >>> problem = AllocationProblem(*np.array([tau, P, W, f]), np.array([100, 150, 80, 120, 200]))
        >>> solution = solve(problem, 300)
        >>> solution.allocation.ids, round(solution.cost, 12), solution.status
        (array([0, 4]), 1.008962065383, 'optimal')
    """
    start = time.monotonic()
    _check(problem, min_examples, tolerance, time_limit_seconds, max_nodes)
    best = Incumbent(problem, min_examples)
    if covers := minimal_covers(problem.num_examples, min_examples, FEW_COVERS):
        best.offer(covers)
        allocation = allocate(problem.only(best.rows))
        return Solution(allocation, allocation.cost, "optimal", nodes=0)
    clients = Candidates.of(problem, min_examples)
    earliest = earliest_deadline(clients)
    _first_set(best, clients, earliest, tolerance)
    nodes = _seeds(best, clients, earliest)
    _search(best, nodes, tolerance)

    def in_time(looked_at: int) -> bool:
        if not certify:
            return looked_at < UNPROVEN
        return (max_nodes is None or looked_at < max_nodes) and time.monotonic() - start < time_limit_seconds

    proof = prove(nodes, best, tolerance=tolerance, go_on=in_time, effort=Effort(whole=certify))
    allocation = allocate(problem.only(best.rows))
    status: Status = ("optimal" if proof.complete else "time_limit") if certify else "heuristic"
    return Solution(allocation, min(proof.lower_bound, allocation.cost), status, proof.nodes)


def _check(
    problem: AllocationProblem, min_examples: Any, tolerance: Any, time_limit_seconds: Any, max_nodes: Any
) -> None:
    check_coverable(problem, min_examples)
    if not isinstance(tolerance, Real) or not 1e-9 <= float(tolerance) < 1:
        raise ConfigError(f"tolerance must be at least 1e-9, where rounding begins, and below 1; got {tolerance!r}.")
    if not isinstance(time_limit_seconds, Real) or not float(time_limit_seconds) > 0:
        raise ConfigError(f"time_limit_seconds must be positive; got {time_limit_seconds!r}.")
    if max_nodes is not None and not is_whole(max_nodes):
        raise ConfigError(f"max_nodes must be a whole number, at least 1, or None; got {max_nodes!r}.")


def _first_set(best: Incumbent, clients: Candidates, earliest: float, tolerance: float) -> None:
    """Find a good set: from the prices at twice the earliest deadline."""
    T = 2 * earliest
    settle(best, clients.needs, T, relax(clients, T, tolerance=tolerance).band_price)
    improve(best, clients.needs, worthwhile=0.1 * tolerance)


def _seeds(best: Incumbent, clients: Candidates, earliest: float) -> list[Node]:
    """Cut the deadlines that may be better than the best set's into intervals, narrow near it and wide far away.

    No set is ready before `earliest`, and none that is ready after (best cost - least energy) / a1 is cheaper. Near the
    optimum bounds must be tight; away from it they rise as the square of the distance, as do the errors of lines.
    """
    energy = least_energy(clients)
    latest = (best.cost - energy) / clients.seconds_price * (1 + 1e-9)
    latest = max(latest, best.deadline)
    cuts = {earliest, latest}
    for end in (earliest, latest):
        reach = np.log(end / best.deadline) / (2**CUTS - 1)
        cuts |= {best.deadline * float(np.exp(reach * (2**j - 1))) for j in range(CUTS)}
    ends = sorted(cuts)
    bounds = [clients.seconds_price * low + energy for low in ends[:-1]]
    mu = best.band_price
    return [Node(a, b, clients, bound, mu) for a, b, bound in zip(ends[:-1], ends[1:], bounds, strict=True)]


def _search(best: Incumbent, nodes: list[Node], tolerance: float) -> None:
    """Look for better sets in every interval whose bound leaves room for one."""
    for node in nodes:
        if node.clients.band_needed(node.middle) <= 1:
            point = relax(node.clients, node.middle, node.band_price, limit=best.cost, tolerance=tolerance)
            if point.bound < best.cost:
                settle(best, node.clients.needs, node.middle, point.band_price)
    improve(best, nodes[0].clients.needs, worthwhile=0.1 * tolerance)


def minimal_covers(sizes: Ints, demand: int, max_sets: int) -> list[Ints] | None:
    """Return every set whose sizes sum to the demand and from which nobody can be left out; None beyond `max_sets`.

    Who takes part adds to the cost, never the contrary, so that one of these sets is the best of all. Clients are taken
    in falling order of size: the one that completes a set is then its smallest, and without it, or anybody else, the
    set falls short.

    Example:
        >>> [rows.tolist() for rows in minimal_covers(np.array([3, 1, 2]), 3, max_sets=10)]
        [[0], [1, 2]]
    """
    order = np.argsort(-sizes, kind="stable")
    falling = sizes[order].tolist()
    left = np.cumsum(falling[::-1])[::-1].tolist()  # what an item and all after it hold
    found: list[list[int]] = []
    items: list[int] = []
    missing, j = demand, 0
    while items or (j < len(falling) and left[j] >= missing):
        if j == len(falling) or left[j] < missing:  # nothing comes of these items: go on without the last
            j = items.pop()
            missing += falling[j]
        elif falling[j] >= missing:
            found.append([*items, j])
            if len(found) > max_sets:
                return None
        else:
            items.append(j)
            missing -= falling[j]
        j += 1
    return [np.sort(order[items]) for items in found]
