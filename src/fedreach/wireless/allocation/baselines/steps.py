"""The paper's two steps for clients already chosen: the best shares, and the best frequencies."""

from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Floats
from fedreach.wireless import cost
from fedreach.wireless.allocation.problem import AllocationProblem
from fedreach.wireless.allocation.rules.base import frequency_alone

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
    return np.asarray(share / share.sum())


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


NEWTON_STEPS = 100


@dataclass(frozen=True, eq=False)
class BestFrequencies:
    """The best frequencies at fixed shares, with the multipliers that prove it."""

    hertz: Floats  # (K,) f
    deadline_seconds: float  # T
    deadline_price: Floats  # (K,) beta, part of a1 that client k's own deadline is worth; sum 1
    limit_price: Floats  # (K,) gamma, what f_k^max is worth: cost per hertz more


def best_frequencies(problem: AllocationProblem, share: Floats) -> BestFrequencies:
    """Return the frequencies f that cost all clients of the problem least at these shares b (K,) > 0 of the band.

    With t = tau / b the time to upload, energy grows with f, so nobody computes faster than the deadline asks::

        f_k = W_k / (T - t_k)

    and a1 T + a2 eps sum W^3 / (T - t)^2 is least at sum (f / f0)^3 = 1, f0 = (a1 / (2 a2 eps))^(1/3), or at the
    shortest deadline T_min = max(t + W / f^max) where that is later. A client without cycles is given f^max.

    Differs from the paper, which seeks the multipliers by sub-gradient steps on eq. 58 to 60: those lose the upload
    time in (60), never enforce sum beta = 1, and (58) is misprinted for its common case. The benchmarks have both.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", P7, eq. 55 to
    60.

    Example:
        >>> problem = AllocationProblem(*np.array([[0.1, 0.2], [1, 1], [1e8, 2e8], [1e9, 1e9]]), np.array([5, 5]))
        >>> best = best_frequencies(problem, np.array([0.5, 0.5]))
        >>> (best.hertz / 1e6).round(1), round(best.deadline_seconds, 4), best.deadline_price.round(3)
        (array([220.4, 788. ]), 0.6538, array([0.021, 0.979]))
    """
    t = cost.upload_seconds(problem.upload_seconds, share)
    shortest = t + cost.compute_seconds(problem.cycles, problem.max_hertz)
    f0 = frequency_alone(problem)
    T = max(_best_deadline(t, problem.cycles / f0), float(shortest.max()))
    hertz = problem.max_hertz.copy()
    asked = (problem.cycles > 0) & (shortest < T)
    hertz[asked] = np.minimum(hertz[asked], problem.cycles[asked] / (T - t[asked]))
    return BestFrequencies(hertz, T, *_prices(problem, hertz, f0, int(np.argmax(shortest)), not shortest.max() < T))


def _best_deadline(t: Floats, w: Floats) -> float:
    """Return the T with sum (w / (T - t))^3 = 1, or the largest t where all w are 0.

    1 / the 3-norm of w / (T - t) is concave and increasing in T, and at most 1 at max(t + w): Newton's steps from there
    stay below the root and only increase.
    """
    T = float(np.max(t + w))
    t, w = t[w > 0], w[w > 0]
    if not len(w):
        return T
    for _ in range(NEWTON_STEPS):
        y = w / (T - t)
        total = float(np.sum(y**3))
        step = total * (np.cbrt(total) - 1.0) / float(np.sum(y**4 / w))
        if not T + step > T:
            break
        T += step
    return float(T)


def _prices(problem: AllocationProblem, hertz: Floats, f0: float, last: int, capped: bool) -> tuple[Floats, Floats]:
    """Return beta = (f / f0)^3 and gamma = 0; where T_min binds, the last client makes up for what is missing."""
    beta, gamma = np.where(problem.cycles > 0, (hertz / f0) ** 3, 0.0), np.zeros(len(problem))
    if capped:
        beta[last] = 0.0
        beta[last] = 1.0 - beta.sum()
        if problem.cycles[last] > 0:
            W, f = problem.cycles[last], hertz[last]
            gain = beta[last] * problem.seconds_price * W / f**2  # of a faster deadline, against the energy for it
            gamma[last] = gain - 2 * problem.joules_price * problem.capacitance * W * f
    return beta, gamma
