"""The paper's step (a) for clients already chosen: the best shares at fixed CPU frequencies."""

from __future__ import annotations

import numpy as np

from fedreach.arrays import Floats
from fedreach.wireless import cost
from fedreach.wireless.allocation.problem import AllocationProblem

HALVINGS = 200  # of an interval of float64, until nothing is left between its ends


def best_shares(problem: AllocationProblem, hertz: Floats) -> Floats:
    """Return the shares b (K,) that cost all clients of the problem least at these frequencies; their sum is 1.

    With v = W / f the time to compute, and r = sqrt(a2 P tau)::

        minimise  a1 T + sum r^2 / b    subject to  b >= m(T) = tau / (T - v),  sum b <= 1

    For a deadline T the best are b = max(m, r / s) with the s for which they sum to 1; and T is where the clients that
    are held up by it, b = m, would together pay a1 for a second more.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", P3 with a given
    selection, solved exactly.

    Example:
        >>> problem = AllocationProblem(*np.array([[0.1, 0.2], [1, 1], [1e8, 2e8], [1e9, 1e9]]), np.array([5, 5]))
        >>> best_shares(problem, np.array([5e8, 5e8])).round(4)
        array([0.3333, 0.6667])
    """
    tau, v = problem.upload_seconds, cost.compute_seconds(problem.cycles, hertz)
    r = np.sqrt(problem.joules_price * problem.power_watts * tau)
    low = _shortest(tau, v)
    if problem.joules_price == 0:
        return _scaled(tau / (low - v))
    high = max(low, float(np.max(v + tau * r.sum() / r)))  # from here on nobody is held up
    for _ in range(HALVINGS):
        T = low + (high - low) / 2
        if not low < T < high:
            break
        m = tau / (T - v)
        s = _level(r, m)
        # A share of 1 is worth s^2; who is held up at m has it for r^2 / m^2 less, at dm/dT = -m^2 / tau.
        held = float(np.sum(np.maximum(s**2 * m**2 - r**2, 0.0) / tau))
        low, high = (T, high) if held > problem.seconds_price else (low, T)
    m = tau / (high - v)
    return _scaled(np.maximum(m, r / _level(r, m)))


def _scaled(share: Floats) -> Floats:
    scaled: Floats = share / share.sum()
    return scaled


def _level(r: Floats, m: Floats) -> float:
    """Return the s with sum max(m, r / s) = 1, given sum m <= 1."""
    order = np.argsort(m / r, kind="stable")  # held up, from the last on: those with m > r / s, 1 / s < m / r
    r, m = r[order], m[order]
    free = np.cumsum(r)  # the first n are free
    left = 1.0 - (m.sum() - np.cumsum(m))  # what those have to share
    # With the first n free, 1 / s = left / free; right for the first n whose next client is indeed held up.
    rates = np.maximum(left, np.finfo(float).tiny) / free
    right = rates <= np.append(m[1:] / r[1:], np.inf)
    return float(1.0 / rates[int(np.argmax(right))])


def _shortest(tau: Floats, v: Floats) -> float:
    """Return the T with sum tau / (T - v) = 1, by Newton steps on 1 / sum - 1, concave: they come from below."""
    T = float(np.max(tau + v))
    for _ in range(HALVINGS):
        need = tau / (T - v)
        total = float(need.sum())
        step = total * (total - 1.0) / float(np.sum(need**2 / tau))
        if not T + step > T:
            break
        T += step
    return float(T)
