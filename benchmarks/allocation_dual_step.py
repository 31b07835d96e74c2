"""Sub-gradient loop of the paper for step (b) and its cubic (eq. 57 to 60), as printed and corrected.

A comparison, not a tool: `fedreach.wireless.baselines.best_frequencies` computes the answer directly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedreach._util.arrays import Floats
from fedreach._util.errors import ConfigError, nearest
from fedreach.wireless.problem import AllocationProblem
from fedreach.wireless.rules import frequency_alone

Version = Literal["corrected", "printed"]
RUNAWAY = 1e15  # times f^max: no way back, and float64 ends soon
POLISH = 8  # Newton steps; they double the digits from 1 or 2 to all
LEAST_PRICE = 1e-9  # of a deadline: at 0 the frequency is 0, and the client is never ready


@dataclass(frozen=True, eq=False)
class DualSteps:
    """Where the loop ended: the frequencies after the last step, cut to (0, f^max], and the multipliers."""

    hertz: Floats  # (K,)
    deadline_price: Floats  # (K,) beta
    limit_price: Floats  # (K,) gamma
    steps: int  # taken; fewer than asked where the frequencies ran away


def subgradient_frequencies(
    problem: AllocationProblem,
    share: Floats,
    *,
    version: Version = "corrected",
    steps: int = 500,
    step_size: float = 0.5,
) -> DualSteps:
    """Seek the best frequencies at fixed shares by dual sub-gradient steps; `best_frequencies` has them at once.

    ``"printed"``: f by eq. 58, gamma <- [gamma + (f - f^max)]+ (59), beta <- [beta + (a1 W / f - Y')]+ (60), with
    Y' = a1 max(t + W / f) as in 55a. As (60) lacks the upload time t, all beta only ever fall, to 0. Ends where
    some f is beyond 10^15 f^max.

    ``"corrected"``: f by the corrected cubic; the step of beta is a1 (t + W / f), and then beta is brought back to
    sum 1 (its nearest point there), which Y' demands by being free.

    Step sizes, which the paper does not state, fall as step_size / sqrt(step). They are counted in natural units:
    beta against the longest round at f0 (`frequency_alone`), gamma against the price of a second there.

    Args:
        problem: The clients that take part, all of them; cycles and a2 must be positive.
        share: b (K,), of the band; positive.
        version: ``"corrected"`` or ``"printed"``.
        steps: At least 1.
        step_size: Positive.

    Raises:
        ConfigError: If an option is out of its range, a client has no cycles, or joules are free.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", eq. 58 to 60
    and Algorithm 2, lines 3 to 8.

    Example:
        >>> problem = AllocationProblem(*np.array([[0.1, 0.2], [1, 1], [1e8, 2e8], [1e9, 1e9]]), np.array([5, 5]))
        >>> found = subgradient_frequencies(problem, np.array([0.5, 0.5]))
        >>> (found.hertz / 1e6).round(1), found.deadline_price.round(3)  # as `best_frequencies` has them
        (array([220.4, 788. ]), array([0.021, 0.979]))
    """
    _check(problem, version, steps, step_size)
    t, W, fmax = problem.upload_seconds / share, problem.cycles, problem.max_hertz
    f0 = frequency_alone(problem)
    longest = float(np.max(t + W / np.minimum(f0, fmax)))
    gamma_unit = problem.time_weight * W / np.minimum(f0, fmax) ** 2
    beta, gamma = np.full(len(t), 1 / len(t)), np.zeros(len(t))
    f = _frequencies(problem, beta, gamma, version)
    for step in range(1, steps + 1):
        size = step_size / np.sqrt(step)
        gamma = np.maximum(gamma + size * gamma_unit * (f - fmax) / fmax, 0.0)
        usable = np.clip(f, LEAST_PRICE * fmax, None)
        if version == "printed":
            beta = np.maximum(beta + size * (W / usable - np.max(t + W / usable)) / longest, 0.0)
        else:
            beta = _onto_simplex(beta + size * (t + W / usable) / longest)
        f = _frequencies(problem, beta, gamma, version)
        if np.any(f > RUNAWAY * fmax):
            break
    return DualSteps(np.clip(f, LEAST_PRICE * fmax, fmax), beta, gamma, step)


def _frequencies(problem: AllocationProblem, beta: Floats, gamma: Floats, version: Version) -> Floats:
    if version == "printed":
        return printed_hertz(problem, beta, gamma)
    return stationary_hertz(problem, np.maximum(beta, LEAST_PRICE), gamma)


def _onto_simplex(beta: Floats) -> Floats:
    """Return the nearest point with sum 1 and no negative entry: all are lowered by the same amount, and cut at 0."""
    falling = np.sort(beta)[::-1]
    excess = (np.cumsum(falling) - 1) / np.arange(1, len(beta) + 1)
    nearest_point: Floats = np.maximum(beta - excess[falling > excess][-1], 0.0)
    return nearest_point


def _check(problem: AllocationProblem, version: str, steps: int, step_size: float) -> None:
    if version not in get_args(Version):
        raise ConfigError(
            f"version must be 'corrected' or 'printed'; got {version!r}." + nearest(str(version), get_args(Version))
        )
    if steps < 1:
        raise ConfigError(f"steps must be at least 1; got {steps}.")
    if not 0 < step_size < np.inf:
        raise ConfigError(f"step_size must be positive; got {step_size!r}.")
    if problem.energy_weight == 0 or not np.all(problem.cycles > 0):
        raise ConfigError(
            "eq. 58 divides by the joules' price and the cycles: both must be positive. Use `best_frequencies`."
        )


def stationary_hertz(problem: AllocationProblem, deadline_price: Floats, limit_price: Floats) -> Floats:
    """Return the root f > 0 of 2 a2 eps W f + gamma - beta a1 W / f^2 = 0, eq. 57 (K,).

    With p = gamma / (2 a2 eps W) and q = a1 beta / (2 a2 eps) it is the one positive root of f^3 + p f^2 = q: there
    always is one, and it is 0 only for beta = 0. In units of q^(1/3) the cubic is x^3 + c x^2 = 1, with the two
    branches of eq. 58, by the sign of 1 / 4 - c^3 / 27; Newton's steps give back the digits that its cosine loses where
    c is large.

    Args:
        problem: The clients; a2 and all W must be positive.
        deadline_price: beta (K,), not negative.
        limit_price: gamma (K,), cost per hertz, not negative.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", eq. 57 and 58,
    with the factor 1/2 that its X_1 and X_2 lack, and the sum of roots that it prints inside another root.

    Example:
        >>> problem = AllocationProblem(*np.array([[1.0], [1.0], [5e7], [1e9]]), np.array([1]))
        >>> f"{stationary_hertz(problem, np.array([0.4]), np.array([1e-10]))[0]:.10e}"
        '3.8060945767e+08'
    """
    p, q = _coefficients(problem, deadline_price, limit_price)
    unit = np.cbrt(q)
    c = np.divide(p, unit, out=np.zeros(len(p)), where=unit > 0)
    # Of c x^2 = 1 and x^3 = 1 the smaller root is above that of their sum, and 3/4 of it below: the closed form, which
    # is nothing but noise for c > 10^5, is held between them.
    high = 1 / np.sqrt(np.maximum(c, 1.0))
    x = np.clip(_closed_form(np.minimum(c, 1e9)), 0.75 * high, high)
    for _ in range(POLISH):
        x = x - (x**3 + c * x**2 - 1) / (3 * x**2 + 2 * c * x)
    return unit * x


def _closed_form(c: Floats) -> Floats:
    """Return the positive root of x^3 + c x^2 = 1 by Cardano's formula."""
    discriminant = 1 / 4 - c**3 / 27
    root = np.sqrt(np.maximum(discriminant, 0.0))
    middle = 1 / 2 - c**3 / 27
    one = np.cbrt(middle + root) + np.cbrt(middle - root) - c / 3
    safe = np.where(discriminant > 0, 3.0, c)  # the cosine is for c^3 >= 27 / 4
    three = 2 * c / 3 * np.cos(np.arccos(np.clip(27 / (2 * safe**3) - 1, -1, 1)) / 3) - c / 3
    return np.where(discriminant > 0, one, three)


def printed_hertz(problem: AllocationProblem, deadline_price: Floats, limit_price: Floats) -> Floats:
    """Return what eq. 58 gives as it is printed; for comparison only. Arguments as of `stationary_hertz`.

    Where Delta > 0 it prints f = (-q1 - q2 (X1^(1/3) + X2^(1/3)))^(1/3), with X without its factor 1/2: a root of order
    q^(4/9), not q^(1/3), about a thousand times too high in SI units. The condition X1^(1/3) + X2^(1/3) < 3/2, else
    "no solution", is left out: in SI units it never holds. "epsilon" and "sigma" are taken for the same.

    Example:
        >>> problem = AllocationProblem(*np.array([[1.0], [1.0], [5e7], [1e9]]), np.array([1]))
        >>> f"{printed_hertz(problem, np.array([0.4]), np.array([0.0]))[0]:.1e}"
        '5.3e+11'
    """
    p, q = _coefficients(problem, deadline_price, limit_price)
    discriminant = q**2 / 4 - q * p**3 / 27
    root = np.sqrt(np.maximum(discriminant, 0.0))
    roots = np.cbrt(q - 2 * p**3 / 27 + root) + np.cbrt(q - 2 * p**3 / 27 - root)
    one = np.cbrt(q - 2 * p**3 / 27 - (4 * p**3 / 81 - 2 * q / 3) * roots)
    safe = np.where(discriminant < 0, p, 1.0)
    cosine = np.cos(np.arccos(np.clip(27 * q / (2 * safe**3) - 1, -1, 1)) / 3)
    three = 2 * p / 3 * cosine - p / 3
    return np.select([discriminant > 0, discriminant < 0], [one, three], p / 3)


def _coefficients(problem: AllocationProblem, beta: Floats, gamma: Floats) -> tuple[Floats, Floats]:
    twice = 2 * problem.energy_weight * problem.capacitance
    return gamma / (twice * problem.cycles), problem.time_weight * beta / twice
