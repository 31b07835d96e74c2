"""One client, given the deadline T and the price mu of the band: how long should it send, and what does that cost?

    c(T, mu) = min_{0 < u <= T - W/f^max}  A u + Q / (2 (T - u)^2) + mu tau / u

with u the upload time, A = a2 P and Q = 2 a2 eps W^3: the energy to send, the energy to compute in the time that is
left, and the rent of the share tau / u. c is convex and nonincreasing in T, and concave in mu.

Stationary is g(u) = u sqrt(A + Q / (T - u)^3) = sqrt(mu tau). g increases and is convex, so Newton's method that
starts right of the root stays there, and needs neither bracket nor safeguard. Derived by hand; the paper alternates
between shares and frequencies instead, which is not exact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedreach.arrays import Floats
from fedreach.wireless.allocation.problem import AllocationProblem

STEPS = 60  # newton steps at most; 3 to 7 are usual
CLOSE = 1e-8  # a step this small, relative to u and T - u, leaves an error of about its square
NEAR_ZERO = 1e-100  # stands for sqrt(mu tau) = 0, where the best u is 0 and tau / u has no value
NO_PRICE = 1e-200  # keeps quotients finite where joules cost nothing, A = Q = 0, and everyone is at the upper end


class Needs(NamedTuple):
    """What the kernel needs of clients; any shape."""

    tau: Floats  # seconds to send over the whole band
    root_tau: Floats  # sqrt(tau)
    A: Floats  # a2 P, price of a second of sending
    Q: Floats  # 2 a2 eps W^3
    min_seconds: Floats  # W / f^max, seconds to compute at the highest frequency
    floor: Floats  # the same, and 1 where Q = 0, whose quotient by it must be 0
    steepest: Floats  # A + Q / min_seconds^3: the root of it times u is g where u is at its upper end

    @classmethod
    def of(cls, problem: AllocationProblem, rows: Any = slice(None), counted: Any = 1.0) -> Needs:
        """Return what the clients at these rows need; nothing at all where `counted` is 0."""
        tau, W, f = problem.upload_seconds[rows] * counted, problem.cycles[rows] * counted, problem.max_hertz[rows]
        A, Q = problem.joules_price * problem.power_watts[rows] * counted, problem.joules_price * 2 * W * W * W
        Q *= problem.capacitance
        least = W / f
        floor = np.where(Q > 0, least, 1.0)
        return cls(tau, np.sqrt(tau), A, Q, least, floor, A + Q / (floor * floor * floor))

    def only(self, rows: Any) -> Needs:
        """Return these rows of every field."""
        return Needs(*(values[rows] for values in self))


class Sending(NamedTuple):
    """The best way to send: u, the time x that is left to compute, sqrt(A + Q / x^3), and whether u is at its end."""

    u: Floats
    x: Floats
    h: Floats
    clipped: Any


class ClientCost(NamedTuple):
    """c(T, mu), the upload time u that attains it, and dc/dT; infinite, NaN and NaN where T <= W / f^max."""

    cost: Floats
    upload_seconds: Floats
    slope: Floats


def sending(needs: Needs, T: Any, root_mu: Any) -> Sending:
    """Return the best upload times at the deadlines T > W / f^max and the prices root_mu^2."""
    _, root_tau, A, Q, least, floor, steepest = needs
    r = np.maximum(root_mu * root_tau, NEAR_ZERO)
    longest = T - least
    clipped = longest * np.sqrt(steepest) <= r
    # Three points that are never left of the root: the end; sqrt(mu tau) over the least slope of g; and where Q alone,
    # of a u of at least T / 2, makes g as large.
    half = 0.5 * T
    u = np.minimum(T - np.minimum(np.cbrt(Q * (half / r) ** 2), half), r / np.sqrt(A + Q / T**3 + NO_PRICE))
    u = np.where(clipped, longest, np.minimum(u, longest))
    for _ in range(STEPS):
        x = np.maximum(T - u, floor)
        y = Q / (x * x * x)
        h = np.sqrt(A + y + NO_PRICE)
        step = np.where(clipped, 0.0, (u * h - r) * h / (h * h + 1.5 * u * y / x))
        u = u - step
        if np.all(step <= CLOSE * np.minimum(u, x) + 1e-15 * T):
            break
    x = np.where(clipped, floor, np.maximum(T - u, floor))
    return Sending(u, x, np.sqrt(A + Q / (x * x * x) + NO_PRICE), clipped)


def priced(needs: Needs, T: Any, mu: Any) -> ClientCost:
    """Return what `client_cost` does, for clients whose needs are known; where T is too short, only the cost counts."""
    late = needs.min_seconds >= T
    with np.errstate(over="ignore"):
        u, x, _, clipped = sending(needs, np.where(late, 2 * needs.min_seconds + 1.0, T), np.sqrt(mu))
        rent = mu * (needs.tau / u)
        cost = np.where(late, np.inf, needs.A * u + needs.Q / (2 * x * x) + rent)
        slope = np.where(clipped, needs.A - rent / u, -needs.Q / (x * x * x))
    return ClientCost(cost, u, slope)


def client_cost(problem: AllocationProblem, T: Any, mu: Any) -> ClientCost:
    """Return what each client costs at the deadline T when the whole band costs mu.

    Args:
        T: Seconds, positive; broadcasts against (K,), as (m, 1) to have m deadlines at once.
        mu: Price of the whole band, not negative; broadcasts likewise.

    Reference: ours; see the head of this file.

    Example:
        >>> client = AllocationProblem(*np.array([[0.1], [0.5], [1e8], [2e9]]), np.array([100]))
        >>> cost, seconds, slope = client_cost(client, 1.0, 1.0)
        >>> cost.round(9), seconds.round(9)
        (array([0.45045599]), array([0.44214879]))
    """
    cost, u, slope = priced(Needs.of(problem), np.asarray(T, np.float64), np.asarray(mu, np.float64))
    late = np.isinf(cost)
    return ClientCost(cost, np.where(late, np.nan, u), np.where(late, np.nan, slope))
