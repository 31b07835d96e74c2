"""Slow answers to compare with: bisection in place of Newton's method, and every set of clients in turn."""

from dataclasses import replace
from itertools import combinations

import numpy as np

from fedreach.wireless.exact import ClientCost, Needs, allocate_batch, cost_of_needs, shortest_deadlines
from fedreach.wireless.problem import AllocationProblem

HALVINGS = 72

G1 = AllocationProblem(
    upload_seconds=np.array([0.10, 0.08, 0.12, 0.20, 0.06]),
    power_watts=np.array([0.5, 1.0, 0.25, 0.1, 2.0]),
    cycles=np.array([1e8, 2e8, 5e7, 1.5e8, 3e8]),
    max_hertz=np.array([2e9, 3e9, 2.5e9, 1e9, 4e9]),
    num_examples=np.array([100, 150, 80, 120, 200]),
)
"""Goldens G1 (at least 300 examples) and G3 (650: everyone) of the design notes of this allocation."""

G2 = AllocationProblem(
    upload_seconds=np.array([0.06, 0.05, 0.09, 0.07, 0.04, 0.11]),
    power_watts=np.array([0.2, 0.4, 0.1, 1.5, 0.8, 0.3]),
    cycles=np.array([3e7, 5e7, 2e7, 8e7, 6e7, 1e7]),
    max_hertz=np.array([2e6, 5e6, 4e6, 3e6, 4.5e6, 2.5e6]),
    num_examples=np.array([60, 90, 50, 120, 100, 40]),
    time_weight=2.0,
)
"""Golden G2, of at least 210 examples: slow processors, so that one of them runs at its highest frequency."""


def drawn(K, rng, *, slow=False, **prices):
    """Return K clients; `slow` processors run at megahertz, where computing takes most of the time."""
    return AllocationProblem(
        upload_seconds=rng.uniform(0.02, 0.2, K),
        power_watts=rng.uniform(0.1, 2.0, K),
        cycles=rng.uniform(1e7, 3e8, K),
        max_hertz=rng.uniform(2.0, 5.0, K) * (1e6 if slow else 1e9),
        num_examples=rng.integers(50, 201, K),
        **prices,
    )


def scaled(problem, **factors):
    """Return the problem with some of its fields multiplied."""
    return replace(problem, **{name: getattr(problem, name) * factor for name, factor in factors.items()})


def client_cost(problem, T, mu):
    """Return what each client costs at the deadline T when the whole band costs mu; NaN for what late ones have not."""
    cost, u, slope = cost_of_needs(Needs.of(problem), np.asarray(T, np.float64), np.asarray(mu, np.float64))
    late = np.isinf(cost)
    return ClientCost(cost, np.where(late, np.nan, u), np.where(late, np.nan, slope))


def shortest_deadline(problem):
    """Return Tmin, the least deadline that all clients can keep: sum_k tau_k / (Tmin - W_k / f_k^max) = 1."""
    return float(shortest_deadlines(Needs.of(problem).only(None))[0])


def upload_seconds(problem, T, mu):
    """Return the best upload times (K,) at a deadline and a band price, by bisection on the stationary point."""
    tau, A = problem.upload_seconds, problem.energy_weight * problem.power_watts
    Q = 2 * problem.energy_weight * problem.capacitance * problem.cycles**3
    high = np.broadcast_to(T - problem.cycles / problem.max_hertz, np.broadcast_shapes(np.shape(T), np.shape(A)))
    low = np.zeros(high.shape)
    for _ in range(HALVINGS):
        u = 0.5 * (low + high)
        left = np.where(Q > 0, T - u, 1.0)
        below = u * u * (A + Q / left**3) < mu * tau
        low, high = np.where(below, u, low), np.where(below, high, u)
    return high


def by_deadline(problem, T):
    """Return the least costs at deadlines (n,), and band prices: bisection on the logarithm of the price."""
    T = np.asarray(T, np.float64)[:, None]
    tau, least = problem.upload_seconds, problem.cycles / problem.max_hertz
    late = ~_kept(problem, T)
    T = np.where(late, 2 * (least.max() + tau.sum()), T)
    low, high = np.full(T.shape, -80.0), np.full(T.shape, 80.0)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        over = (tau / upload_seconds(problem, T, np.exp(middle))).sum(axis=1, keepdims=True) > 1
        low, high = np.where(over, middle, low), np.where(over, high, middle)
    u = upload_seconds(problem, T, np.exp(high))
    left = np.maximum(T - u, least)
    work = np.divide(problem.cycles**3, left**2, out=np.zeros(left.shape), where=left * problem.cycles > 0)
    joules = (problem.power_watts * u + problem.capacitance * work).sum(axis=1)
    cost = np.where(late[:, 0], np.inf, problem.time_weight * T[:, 0] + problem.energy_weight * joules)
    return cost, np.exp(high)[:, 0]


def _kept(problem, T):
    """Return whether the deadlines (n, 1) are long enough for everyone to send, at the highest frequencies."""
    longest = T - problem.cycles / problem.max_hertz
    share = np.divide(problem.upload_seconds, longest, out=np.full(longest.shape, 2.0), where=longest > 0)
    return share.sum(axis=1, keepdims=True) <= 1


def twin(problem):
    """Return the least cost when everyone takes part, its deadline and its band price: T by ever finer grids."""
    low, high = 0.0, 2 * ((problem.cycles / problem.max_hertz).max() + problem.upload_seconds.sum())
    for _ in range(HALVINGS):  # the shortest deadline
        middle = 0.5 * (low + high)
        low, high = (low, middle) if _kept(problem, np.array([[middle]])) else (middle, high)
    grid = np.geomspace(high, max(high, by_deadline(problem, [high])[0][0] / problem.time_weight), 80)
    while True:
        cost, price = by_deadline(problem, grid)
        best = int(np.argmin(cost))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        if high - low <= 1e-10 * high:
            return cost[best], grid[best], price[best]
        grid = np.linspace(low, high, 21)


def minimal_covers(num_examples, min_examples):
    """Return every set with enough examples from which nobody can be left out."""
    covers = []
    for size in range(1, len(num_examples) + 1):
        for chosen in combinations(range(len(num_examples)), size):
            d = num_examples[list(chosen)]
            if d.sum() >= min_examples > d.sum() - d.min():
                covers.append(chosen)
    return covers


def brute(problem, min_examples):
    """Return the costs of all minimal covers, and the covers, cheapest first.

    A client more never lowers the cost, so that one of them is optimal.
    """
    covers = minimal_covers(problem.num_examples, min_examples)
    rows = np.zeros((len(covers), max(map(len, covers))), np.int64)
    counted = np.zeros(rows.shape, np.bool_)
    for i, cover in enumerate(covers):
        rows[i, : len(cover)] = cover
        counted[i, : len(cover)] = True
    cost, _, _ = allocate_batch(problem, rows, counted)
    order = np.argsort(cost, kind="stable")
    return cost[order], [covers[i] for i in order]
