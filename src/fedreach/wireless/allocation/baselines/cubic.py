"""The frequency that eq. 58 seeks, given the multipliers of step (b)."""

from __future__ import annotations

import numpy as np

from fedreach.arrays import Floats
from fedreach.wireless.allocation.problem import AllocationProblem

POLISH = 8  # Newton steps; they double the digits from 1 or 2 to all


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
    twice = 2 * problem.joules_price * problem.capacitance
    return gamma / (twice * problem.cycles), problem.seconds_price * beta / twice
