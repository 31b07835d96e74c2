"""Exact allocation of bandwidth and CPU frequencies to given clients."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedreach._util.arrays import Bools, Floats, Ints
from fedreach._util.errors import ConfigError, InfeasibleError
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
#
# If a client must not use more than E^max joules, u is also at most the root of P u + eps W^3 / (T - u)^2 = E^max. This
# energy is convex in (u, T) and increasing in u, so the largest u is concave and increasing in T, and c stays convex.

MAX_KERNEL_STEPS = 60  # Newton steps; 3 to 7 are usual
KERNEL_TOLERANCE = 1e-8  # relative size of the last step; the error is about its square
NEAR_ZERO = 1e-100  # replaces sqrt(mu tau) = 0, for which tau / u would be undefined
NO_PRICE = 1e-200  # prevents division by 0 if energy costs nothing, A = Q = 0


class Caps(NamedTuple):
    """Parameters of the energy caps of clients."""

    power: Floats  # P
    work: Floats  # eps W^3
    joules: Floats  # E^max; infinite without a cap

    def longest(self, T: Any, min_seconds: Floats) -> Floats:
        """Return the longest upload times, by Newton's method from the right on a convex, increasing function."""
        power, work, joules = self
        floor = np.where(work > 0, min_seconds, 1.0)
        u = np.asarray(np.minimum(T - min_seconds, joules / np.maximum(power, NO_PRICE)))
        for _ in range(MAX_KERNEL_STEPS):
            x = np.maximum(T - u, floor)
            excess = power * u + work / (x * x) - joules
            step = np.where(excess > 0, excess / (power + 2 * work / (x * x * x) + NO_PRICE), 0.0)
            u = u - step
            if np.all(step <= 1e-15 * np.abs(u)):
                break
        return np.asarray(np.maximum(u, 1e-12 * T))

    def per_second(self, T: Any, u: Floats, min_seconds: Floats) -> Floats:
        """Return dL/dT (m, n) of the longest upload times L = u: 1 unless the energy cap limits u."""
        x = np.maximum(T - u, np.where(self.work > 0, min_seconds, 1.0))
        steep = 2 * self.work / (x * x * x)
        return np.where(u < (T - min_seconds) * (1 - 1e-12), steep / (self.power + steep + NO_PRICE), 1.0)


class Needs(NamedTuple):
    """Parameters of the cost of each client, in arrays of any shape."""

    tau: Floats  # upload time with the whole bandwidth, seconds
    root_tau: Floats  # sqrt(tau)
    A: Floats  # a2 P, price of a second of upload
    Q: Floats  # 2 a2 eps W^3
    min_seconds: Floats  # W / f^max, shortest computing time
    floor: Floats  # min_seconds, or 1 if Q = 0, as a safe divisor of Q
    steepest: Floats  # A + Q / min_seconds^3; its root times u is g(u) at the largest u
    caps: Caps | None = None  # None without energy caps

    @classmethod
    def of(cls, problem: AllocationProblem, rows: Any = slice(None), counted: Any = 1.0) -> Needs:
        """Compute the parameters of the clients at these rows; all are 0 where `counted` is 0."""
        tau, W, f = problem.upload_seconds[rows] * counted, problem.cycles[rows] * counted, problem.max_hertz[rows]
        A, Q = problem.energy_weight * problem.power_watts[rows] * counted, problem.energy_weight * 2 * W * W * W
        Q *= problem.capacitance
        min_seconds, caps = W / f, None
        if np.isfinite(problem.max_joules).any():
            joules = np.where(tau > 0, problem.max_joules[rows], np.inf)
            caps = Caps(problem.power_watts[rows] * counted, problem.capacitance * W * W * W, joules)
            min_seconds = np.maximum(min_seconds, np.sqrt(caps.work / joules))
        floor = np.where(Q > 0, min_seconds, 1.0)
        return cls(tau, np.sqrt(tau), A, Q, min_seconds, floor, A + Q / (floor * floor * floor), caps)

    def only(self, rows: Any) -> Needs:
        """Select rows of every field."""
        caps = None if self.caps is None else Caps(*(values[rows] for values in self.caps))
        return Needs(*(values[rows] for values in self[:7]))._replace(caps=caps)

    def longest(self, T: Any) -> Floats:
        """Return the longest upload times for deadlines T > min_seconds."""
        return T - self.min_seconds if self.caps is None else self.caps.longest(T, self.min_seconds)

    def per_second(self, T: Any, u: Floats) -> Any:
        """Return the derivative of the longest upload times u by the deadline T."""
        return 1.0 if self.caps is None else self.caps.per_second(T, u, self.min_seconds)

    def least_band(self) -> Floats:
        """Return P tau / E^max: with smaller shares, clients exceed their energy caps at any deadline."""
        return np.zeros_like(self.tau) if self.caps is None else self.caps.power * self.tau / self.caps.joules


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
    _, root_tau, A, Q, _, floor, steepest, caps = needs
    r = np.maximum(root_mu * root_tau, NEAR_ZERO)
    longest = needs.longest(T)
    if caps is not None:
        steepest = A + Q / np.maximum(T - longest, floor) ** 3
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
    x = np.where(clipped & (caps is None), floor, np.maximum(T - u, floor))
    return Sending(u, x, np.sqrt(A + Q / (x * x * x) + NO_PRICE), clipped)


def cost_of_needs(needs: Needs, T: Any, mu: Any) -> ClientCost:
    """Return the cost of each client for deadlines T and bandwidth prices mu; it is infinite if T is too early."""
    late = needs.min_seconds >= T
    with np.errstate(over="ignore"):
        u, x, _, clipped = sending(needs, np.where(late, 2 * needs.min_seconds + 1.0, T), np.sqrt(mu))
        rent = mu * (needs.tau / u)
        cost = np.where(late, np.inf, needs.A * u + needs.Q / (2 * x * x) + rent)
        slope = np.where(clipped, needs.A - rent / u, -needs.Q / (x * x * x))
        if needs.caps is not None:
            share = needs.per_second(np.where(late, np.inf, T), u)
            slope = np.where(clipped, share * (needs.A - rent / u) - (1 - share) * needs.Q / (x * x * x), slope)
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
        InfeasibleError: If no shares keep all clients within their energy caps.

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
    needs = Needs.of(problem).only(None)
    T, mu, u = saddle(needs, problem.time_weight)
    u, T = feasible(needs, T, u)
    if not np.isfinite(T[0]):
        raise InfeasibleError(
            f"max_joules must allow {len(problem)} clients to share the bandwidth; even without a deadline, they need "
            f"{needs.least_band().sum():.4g} times the whole bandwidth. Raise max_joules, or select fewer clients."
        )
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
        longest = needs.longest(T[:, None])
        share = tau / longest
        total = share.sum(axis=1)
        step = total * (total - 1) / (share / longest * needs.per_second(T[:, None], longest)).sum(axis=1)
        T = np.maximum(T + step, start)
        if np.all(np.abs(step) <= RELATIVE_TOLERANCE * T):
            break
    return T


def feasible(needs: Needs, T: Floats, u: Floats) -> tuple[Floats, Floats]:
    """Return upload times whose shares sum to 1, and a deadline that all clients then meet."""
    u = u * np.divide(needs.tau, u, out=np.zeros_like(u), where=needs.tau > 0).sum(axis=1, keepdims=True)
    computing = needs.min_seconds
    if needs.caps is not None:  # P u + eps W^3 / (T - u)^2 <= E^max
        power, work, joules = needs.caps
        left = joules - power * u
        within = np.divide(work, left, out=np.where(left > 0, 0.0, np.inf), where=(left > 0) & np.isfinite(left))
        computing = np.maximum(computing, np.sqrt(within))
    return u, np.maximum(T, (u + computing).max(axis=1))


def saddle(needs: Needs, a1: float) -> tuple[Floats, Floats, Floats]:
    """Return T (m,), mu (m,) and upload times u (m, n) of the saddle points of m sets."""
    if needs.caps is not None and (hopeless := needs.least_band().sum(axis=1) >= 1).any():
        T, mu, u = np.full(len(hopeless), np.inf), np.zeros(len(hopeless)), np.ones(needs.tau.shape)
        if not hopeless.all():
            T[~hopeless], mu[~hopeless], u[~hopeless] = saddle(needs.only(~hopeless), a1)
        return T, mu, u
    m = len(needs.tau)
    Tmin = shortest_deadlines(needs)
    longest = needs.longest(Tmin[:, None])
    # At Tmin, all u are at their upper limits. This is optimal if the price that balances a1 keeps them there.
    share, x = needs.per_second(Tmin[:, None], longest), np.maximum(Tmin[:, None] - longest, needs.floor)
    steep = needs.steepest if needs.caps is None else needs.A + needs.Q / x**3
    gain = needs.A if needs.caps is None else share * needs.A - (1 - share) * needs.Q / x**3
    mu = (a1 + gain.sum(axis=1)) / (needs.tau / (longest * longest) * share).sum(axis=1)
    root = longest * np.sqrt(steep)
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
        slope, along, curvature = _derivatives(needs, T, best, root)
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


def _derivatives(needs: Needs, T: Floats, best: Sending, root: Floats) -> tuple[Floats, Floats, Floats]:
    """Return d(cost)/dT without a1, dsqrt(mu)/dT along the optimum, and d2(cost)/dT2, each (m,)."""
    u, x, h, clipped = best
    tau, mu = needs.tau, (root * root)[:, None]
    share = needs.per_second(T[:, None], u)
    at_limit = needs.A - mu * tau / (u * u)
    if needs.caps is not None:
        at_limit = share * at_limit - (1 - share) * needs.Q / (x * x * x)
    slope = np.where(clipped, at_limit, -needs.Q / (x * x * x)).sum(axis=1)
    bend = u * _bend(needs, best)
    u_T = np.where(clipped, share, bend / (h + bend))
    weight = tau / (u * u)
    cross = (weight * u_T).sum(axis=1)
    self_term = (weight * _per_root(needs, best)).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        along = -cross / self_term
        curvature = (2 * mu * weight / u * u_T).sum(axis=1) + 2 * root * cross * cross / self_term
    return slope, along, curvature
