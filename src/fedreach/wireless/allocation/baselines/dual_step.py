"""The paper's sub-gradient loop for step (b), as printed and set right: a comparison, not a tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedreach.arrays import Floats
from fedreach.errors import ConfigError, nearest
from fedreach.wireless import cost
from fedreach.wireless.allocation.baselines.cubic import printed_hertz, stationary_hertz
from fedreach.wireless.allocation.problem import AllocationProblem
from fedreach.wireless.allocation.rules.base import frequency_alone

Version = Literal["corrected", "printed"]
RUNAWAY = 1e15  # times f^max: no way back, and float64 ends soon
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
    """Seek the best frequencies at fixed shares by dual sub-gradient steps; `step_b.best_frequencies` has them at once.

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
    t, W, fmax = cost.upload_seconds(problem.upload_seconds, share), problem.cycles, problem.max_hertz
    f0 = frequency_alone(problem)
    longest = float(np.max(t + W / np.minimum(f0, fmax)))
    gamma_unit = problem.seconds_price * W / np.minimum(f0, fmax) ** 2
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
    if problem.joules_price == 0 or not np.all(problem.cycles > 0):
        raise ConfigError(
            "eq. 58 divides by the joules' price and the cycles: both must be positive. Use `best_frequencies`."
        )
