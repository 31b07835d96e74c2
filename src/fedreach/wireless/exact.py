"""Exact allocation of bandwidth and CPU frequencies to given clients."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedreach._util.arrays import Bools, Floats, Ints
from fedreach._util.errors import ConfigError
from fedreach.wireless.problem import Allocation, AllocationProblem

# -------------------- Cost of one client for a deadline T and a bandwidth price mu
#     c(T, mu) = min_{0 < u <= T - W/f^max}  A u + Q / (2 (T - u)^2) + mu tau / u
#
# u is the upload time, A = a2 P, and Q = 2 a2 eps W^3. The terms are the energy of the upload, the energy of computing
# in the remaining time, and the price of the share tau / u. c is convex and nonincreasing in T, and concave in mu.
#
# The optimality condition is g(u) = u sqrt(A + Q / (T - u)^3) = sqrt(mu tau). g is increasing and convex, so Newton's
# method that starts to the right of the root stays there, and needs no bracket. The paper alternates between bandwidth
# and frequencies instead, which is not exact.

MAX_KERNEL_STEPS = 60  # Newton steps; 3 to 7 are usual
KERNEL_TOLERANCE = 1e-8  # relative size of the last step; the error is about its square
NEAR_ZERO = 1e-100  # replaces sqrt(mu tau) = 0, for which tau / u would be undefined
NO_PRICE = 1e-200  # prevents division by 0 if energy costs nothing, A = Q = 0


class Needs(NamedTuple):
    """Parameters of the cost of each client, in arrays of any shape."""

    tau: Floats  # upload time with the whole bandwidth, seconds
    root_tau: Floats  # sqrt(tau)
    A: Floats  # a2 P, price of a second of upload
    Q: Floats  # 2 a2 eps W^3
    min_seconds: Floats  # W / f^max, shortest computing time
    floor: Floats  # min_seconds, or 1 if Q = 0, as a safe divisor of Q
    steepest: Floats  # A + Q / min_seconds^3; its root times u is g(u) at the largest u

    @classmethod
    def of(cls, problem: AllocationProblem, rows: Any = slice(None), counted: Any = 1.0) -> Needs:
        """Compute the parameters of the clients at these rows; all are 0 where `counted` is 0."""
        tau, W, f = problem.upload_seconds[rows] * counted, problem.cycles[rows] * counted, problem.max_hertz[rows]
        A, Q = problem.energy_weight * problem.power_watts[rows] * counted, problem.energy_weight * 2 * W * W * W
        Q *= problem.capacitance
        min_seconds = W / f
        floor = np.where(Q > 0, min_seconds, 1.0)
        return cls(tau, np.sqrt(tau), A, Q, min_seconds, floor, A + Q / (floor * floor * floor))

    def only(self, rows: Any) -> Needs:
        """Select rows of every field."""
        return Needs(*(values[rows] for values in self))


class Sending(NamedTuple):
    """Optimal upload time u, remaining time x, h = sqrt(A + Q / x^3), and whether u is at its upper limit."""

    u: Floats
    x: Floats
    h: Floats
    clipped: Any


class ClientCost(NamedTuple):
    """c(T, mu), the optimal upload time u, and dc/dT; c is infinite for T <= W / f^max."""

    cost: Floats
    upload_seconds: Floats
    slope: Floats


def sending(needs: Needs, T: Any, root_mu: Any) -> Sending:
    """Return the optimal upload times for deadlines T > W / f^max and prices root_mu^2."""
    _, root_tau, A, Q, min_seconds, floor, steepest = needs
    r = np.maximum(root_mu * root_tau, NEAR_ZERO)
    longest = T - min_seconds
    clipped = longest * np.sqrt(steepest) <= r
    # Three upper bounds on the root: the upper limit of u; sqrt(mu tau) divided by the smallest slope of g; and, for
    # u >= T / 2, the point where Q alone gives g(u) = sqrt(mu tau).
    half = 0.5 * T
    u = np.minimum(T - np.minimum(np.cbrt(Q * (half / r) ** 2), half), r / np.sqrt(A + Q / T**3 + NO_PRICE))
    u = np.where(clipped, longest, np.minimum(u, longest))
    for _ in range(MAX_KERNEL_STEPS):
        x = np.maximum(T - u, floor)
        y = Q / (x * x * x)
        h = np.sqrt(A + y + NO_PRICE)
        step = np.where(clipped, 0.0, (u * h - r) * h / (h * h + 1.5 * u * y / x))
        u = u - step
        if np.all(step <= KERNEL_TOLERANCE * np.minimum(u, x) + 1e-15 * T):
            break
    x = np.where(clipped, floor, np.maximum(T - u, floor))
    return Sending(u, x, np.sqrt(A + Q / (x * x * x) + NO_PRICE), clipped)


def cost_of_needs(needs: Needs, T: Any, mu: Any) -> ClientCost:
    """Return the cost of each client for deadlines T and bandwidth prices mu; it is infinite if T is too early."""
    late = needs.min_seconds >= T
    with np.errstate(over="ignore"):
        u, x, _, clipped = sending(needs, np.where(late, 2 * needs.min_seconds + 1.0, T), np.sqrt(mu))
        rent = mu * (needs.tau / u)
        cost = np.where(late, np.inf, needs.A * u + needs.Q / (2 * x * x) + rent)
        slope = np.where(clipped, needs.A - rent / u, -needs.Q / (x * x * x))
    return ClientCost(cost, u, slope)


# -------------------- Optimal allocation for given clients
#     min_T max_mu  a1 T - mu + sum_k c_k(T, mu)
#
# is convex in T and concave in mu. The inner problem uses Newton's method on 1 / sum_k (tau_k / u_k) = 1 as a function
# of sqrt(mu). It is concave, so it stays left of the root after the first step. The outer problem uses Newton's method
# with a bracket, on the power -1/3 of the marginal gain of time, which is nearly linear in T.
#
# Many sets are solved at once, one per row. The tests contain a slower, readable version with nested bisections.

MAX_NEWTON_STEPS = 100  # inner and outer Newton steps; 4 to 8 are usual
RELATIVE_TOLERANCE = 1e-13  # relative change of T, or of the sum of shares, at which the method stops


def allocate(problem: AllocationProblem) -> Allocation:
    """Return the allocation with the lowest cost that includes all clients of the problem.

    Raises:
        ConfigError: If the problem has no client.

    Reference: This method was developed for FedReach. The paper alternates between bandwidth and frequencies
    (Algorithm 2).

    Example:
        >>> clients = np.array([[0.1, 0.06], [0.5, 2.0], [1e8, 3e8], [2e9, 4e9]])
        >>> best = allocate(AllocationProblem(*clients, np.array([100, 200])))
        >>> round(best.cost, 10), best.share.round(6)
        (1.0089620654, array([0.382248, 0.617752]))
    """
    if not len(problem):
        raise ConfigError("An allocation must have at least one client; got none.")
    needs = Needs(*(values[None] for values in Needs.of(problem)))
    T, mu, u = saddle(needs, problem.time_weight)
    u, T = feasible(needs, T, u)
    compute_seconds = np.maximum(T[0] - u[0], needs.min_seconds[0])
    hertz = np.divide(problem.cycles, compute_seconds, out=problem.max_hertz.copy(), where=problem.cycles > 0)
    share = problem.upload_seconds / u[0]
    return Allocation.of(
        problem, slice(None), share / max(1.0, share.sum()), np.minimum(hertz, problem.max_hertz), float(mu[0])
    )


def allocate_batch(problem: AllocationProblem, rows: Ints, counted: Bools) -> tuple[Floats, Floats, Floats]:
    """Return cost, deadline and bandwidth price of the optimal allocation for each of m sets of clients.

    Args:
        problem: Allocation problem of K clients.
        rows: (m, n) positions of the clients in each set.
        counted: (m, n) mask of the valid entries in `rows`, at least one per set.

    Raises:
        ConfigError: If a set is empty.

    Example:
        >>> clients = np.array([[0.1, 0.06], [0.5, 2.0], [1e8, 3e8], [2e9, 4e9]])
        >>> problem = AllocationProblem(*clients, np.array([100, 200]))
        >>> rows, counted = np.array([[0, 1], [1, 0]]), np.array([[True, True], [True, False]])
        >>> allocate_batch(problem, rows, counted)[0].round(6)
        array([1.008962, 0.746964])
    """
    counted = np.asarray(counted, np.bool_)
    if not counted.any(axis=1).all():
        raise ConfigError(f"Each set must have at least one client; set {int(counted.any(axis=1).argmin())} has none.")
    needs = Needs.of(problem, rows, counted)
    T, mu, u = saddle(needs, problem.time_weight)
    u, T = feasible(needs, T, u)
    x = np.maximum(T[:, None] - u, needs.floor)
    energy = (needs.A * u + needs.Q / (2 * x * x)).sum(axis=1)
    return problem.time_weight * T + energy, T, mu


def shortest_deadlines(needs: Needs) -> Floats:
    """Return the (m,) shortest deadlines, by Newton's method on 1 / sum tau / (T - min_seconds) = 1 from the left."""
    tau, min_seconds = needs.tau, needs.min_seconds
    start: Floats = (min_seconds * (1 + 1e-15) + tau).max(axis=1)
    T = start
    for _ in range(MAX_NEWTON_STEPS):
        share = tau / (T[:, None] - min_seconds)
        total = share.sum(axis=1)
        step = total * (total - 1) / (share / (T[:, None] - min_seconds)).sum(axis=1)
        T = np.maximum(T + step, start)
        if np.all(np.abs(step) <= RELATIVE_TOLERANCE * T):
            break
    return T


def feasible(needs: Needs, T: Floats, u: Floats) -> tuple[Floats, Floats]:
    """Return upload times whose shares sum to 1, and a deadline that all clients then meet."""
    u = u * np.divide(needs.tau, u, out=np.zeros_like(u), where=needs.tau > 0).sum(axis=1, keepdims=True)
    return u, np.maximum(T, (u + needs.min_seconds).max(axis=1))


def saddle(needs: Needs, a1: float) -> tuple[Floats, Floats, Floats]:
    """Return T (m,), mu (m,) and upload times u (m, n) of the saddle points of m sets."""
    m = len(needs.tau)
    Tmin = shortest_deadlines(needs)
    longest = Tmin[:, None] - needs.min_seconds
    # At Tmin, all u are at their upper limits. This is optimal if the price that balances a1 keeps them there.
    mu = (a1 + needs.A.sum(axis=1)) / (needs.tau / (longest * longest)).sum(axis=1)
    root = longest * np.sqrt(needs.steepest)
    open_ = (root > np.sqrt(mu)[:, None] * needs.root_tau).any(axis=1)
    T, u = Tmin.copy(), longest
    if open_.any():
        rows = np.flatnonzero(open_)
        T[rows], mu[rows], u[rows] = _interior(needs.only(rows) if len(rows) < m else needs, a1, Tmin[rows])
    return T, mu, u


def _interior(needs: Needs, a1: float, Tmin: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the saddle points of sets with T > Tmin."""
    low, high = Tmin, np.full(len(Tmin), np.inf)
    least_root = np.sqrt(needs.A * needs.tau).sum(axis=1)  # lower bound on sqrt(mu)
    T = np.maximum(1.2 * Tmin, np.cbrt(needs.Q.sum(axis=1) / a1) + 0.5 * Tmin)
    root = least_root
    last = np.full(len(T), np.inf)
    for _ in range(MAX_NEWTON_STEPS):
        root, best = _price(needs, T, root, least_root)
        slope, along, curvature = _derivatives(needs, best, root)
        gain = -slope  # decrease of the energy cost per second of T
        low, high = np.where(gain > a1, T, low), np.where(gain > a1, high, T)
        with np.errstate(divide="ignore", invalid="ignore"):
            step = 3 * gain * (np.cbrt(gain / a1) - 1) / curvature
        done = (np.abs(step) <= RELATIVE_TOLERANCE * T) | (high - low <= RELATIVE_TOLERANCE * T)
        if done.all():
            break
        # Newton's step if it is inside the bracket and shrinks, else the middle of the bracket in log(T - Tmin).
        good = (T + step > low) & (T + step < high) & (np.abs(step) < 0.5 * last)
        wide = np.where(np.isfinite(high), high - Tmin, 64 * (T - Tmin))
        middle = Tmin + np.sqrt(wide * np.maximum(low - Tmin, 1e-3 * wide))
        last = np.where(done, 0.0, np.where(good, step, middle - T))
        T, root = T + last, np.maximum(root + np.nan_to_num(along * last), least_root)
        last = np.abs(last)
    root, best = _price(needs, T, root, least_root)
    return T, root * root, best.u


def _price(needs: Needs, T: Floats, root: Floats, least_root: Floats) -> tuple[Floats, Sending]:
    """Return sqrt(mu) (m,) for which the shares of each set sum to 1 with T > Tmin, and the optimal uploads."""
    done = np.zeros(len(T), np.bool_)
    for i in range(MAX_NEWTON_STEPS):
        best = sending(needs, T[:, None], root[:, None])
        share = needs.tau / best.u
        total = share.sum(axis=1)
        # After the first step, the root is never to the left, except by rounding.
        done |= (np.abs(total - 1) <= RELATIVE_TOLERANCE) | ((total <= 1) & (i > 0))
        if done.all():
            break
        with np.errstate(divide="ignore"):  # if rounding brings all u to their upper limits, the step is to the left
            step = total * (total - 1) / (share / best.u * _per_root(needs, best)).sum(axis=1)
        root = np.where(done, root, np.maximum(root + step, least_root))
    return root, best


def _per_root(needs: Needs, best: Sending) -> Floats:
    """Return du / dsqrt(mu) (m, n)."""
    return np.where(best.clipped, 0.0, needs.root_tau / (best.h + best.u * _bend(needs, best)))


def _bend(needs: Needs, best: Sending) -> Floats:
    return 1.5 * needs.Q / (best.x**4 * best.h)


def _derivatives(needs: Needs, best: Sending, root: Floats) -> tuple[Floats, Floats, Floats]:
    """Return d(cost)/dT without a1, dsqrt(mu)/dT along the optimum, and d2(cost)/dT2, each (m,)."""
    u, x, h, clipped = best
    tau, mu = needs.tau, (root * root)[:, None]
    slope = np.where(clipped, needs.A - mu * tau / (u * u), -needs.Q / (x * x * x)).sum(axis=1)
    bend = u * _bend(needs, best)
    u_T = np.where(clipped, 1.0, bend / (h + bend))
    weight = tau / (u * u)
    cross = (weight * u_T).sum(axis=1)
    self_term = (weight * _per_root(needs, best)).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        along = -cross / self_term
        curvature = (2 * mu * weight / u * u_T).sum(axis=1) + 2 * root * cross * cross / self_term
    return slope, along, curvature
