"""Two general solvers of the same problems, SCIP and Clarabel, to check FedReach's solver. Slower and optional.

With z for "takes part" and t = sqrt(a2 eps W^3), the problem is one of rotated cones::

    minimise a1 T + sum_k (a2 P_k u_k + y_k)   such that   sum_k b_k <= 1,  sum_k d_k z_k >= e2,
    u b >= tau z^2,   w v >= t z^2,   y >= w^2,   v >= W z / f^max,   u + v <= T,   b <= z,   z in {0, 1}

u and v are the times to send and to compute, y = t^2 / v^2 = a2 eps W f^2 the price of computing.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from fedreach._util.arrays import Floats
from fedreach._util.errors import ConfigError, InfeasibleError
from fedreach.wireless import problem as cost
from fedreach.wireless.problem import AllocationProblem


def scip(
    problem: AllocationProblem, min_examples: int, *, tolerance: float = 1e-9, time_limit_seconds: float = 60.0
) -> float:
    """Return the least cost of any set with enough examples, as SCIP finds it.

    It may be lower than the truth by about `tolerance`, by which SCIP lets constraints be violated.

    Args:
        problem: Of K clients; up to about 80 take seconds.
        min_examples: e2, what the clients that take part must hold together.
        tolerance: Of the constraints and of the gap; relative, positive.
        time_limit_seconds: Positive.

    Raises:
        ConfigError: If PySCIPOpt is not installed, or no proof was found within the time.
        InfeasibleError: If all clients together hold too few examples.
    """
    pyscipopt = _imported("pyscipopt")
    needs = _Scaled.of(problem)
    model = pyscipopt.Model()
    model.hideOutput()
    model.setParam("numerics/feastol", tolerance)
    model.setParam("limits/gap", tolerance)
    model.setParam("limits/time", time_limit_seconds)
    deadline = model.addVar(lb=0.0)
    paid, band, examples = deadline, 0.0, 0.0
    for tau, price, root, least, d in zip(*needs.of_client, problem.num_examples.tolist(), strict=True):
        z = model.addVar(vtype="B")
        u, v, w, y = (model.addVar(lb=0.0) for _ in range(4))
        b = model.addVar(lb=0.0, ub=1.0)
        model.addCons(u * b >= tau * z * z)
        model.addCons(v >= least * z)
        if root > 0:
            model.addCons(w * v >= root * z * z)
            model.addCons(y >= w * w)
        model.addCons(u + v <= deadline)
        model.addCons(b <= z)
        paid, band, examples = paid + price * u + y, band + b, examples + d * z
    model.addCons(band <= 1.0)
    model.addCons(examples >= min_examples)
    model.setObjective(paid, "minimize")
    model.optimize()
    if model.getStatus() == "infeasible":
        raise InfeasibleError(
            f"min_examples must be at most {problem.num_examples.sum()}, which all clients together hold; got "
            f"{min_examples}."
        )
    if model.getStatus() not in ("optimal", "gaplimit"):
        raise ConfigError(
            f"time_limit_seconds = {time_limit_seconds:g} were not enough for SCIP, which ended with "
            f"{model.getStatus()!r}. Raise it, or compare on fewer clients."
        )
    return float(model.getObjVal()) * needs.unit


def clarabel(problem: AllocationProblem) -> float:
    """Return the least cost when every client of the problem takes part, as Clarabel finds it by way of CVXPY.

    It is within about 1e-9 of the truth, relative; 1e-7 where Clarabel gets no further.

    Raises:
        ConfigError: If CVXPY or Clarabel is not installed, or Clarabel gives up.
    """
    cvxpy = _imported("cvxpy")
    _imported("clarabel")
    needs = _Scaled.of(problem)
    tau, price, root, least = needs.of_client
    K = len(problem)
    u, v, b, w = (cvxpy.Variable(K, nonneg=True) for _ in range(4))
    deadline = cvxpy.Variable(nonneg=True)
    works = np.flatnonzero(root)
    # x y >= c is the second-order cone ||(2 sqrt(c), x - y)|| <= x + y.
    rules = [
        cvxpy.sum(b) <= 1,
        v >= least,
        u + v <= deadline,
        cvxpy.SOC(u + b, cvxpy.vstack([2 * np.sqrt(tau), u - b])),
    ]
    if works.size:
        rules.append(cvxpy.SOC(w[works] + v[works], cvxpy.vstack([2 * np.sqrt(root[works]), w[works] - v[works]])))
    paid = deadline + price @ u + cvxpy.sum_squares(w)
    model = cvxpy.Problem(cvxpy.Minimize(paid), rules)
    names = ("gap_rel", "gap_abs", "feas")
    aims = {f"tol_{name}": 1e-9 for name in names} | {f"reduced_tol_{name}": 1e-7 for name in names}
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning, UserWarning):  # the last: that only 1e-7 was reached
            warnings.simplefilter("ignore", category)
        model.solve(solver="CLARABEL", **aims)
    if model.value is None:
        raise ConfigError(f"problem could not be solved by Clarabel, which ended with {model.status!r}.")
    return float(model.value) * needs.unit


class _Scaled(NamedTuple):
    """The problem in units in which a deadline that everyone can keep, and its price, are 1."""

    unit: float  # of cost
    of_client: tuple[Floats, Floats, Floats, Floats]  # tau, a2 P, sqrt(a2 eps W^3) and W / f^max

    @classmethod
    def of(cls, problem: AllocationProblem) -> _Scaled:
        least = cost.compute_seconds(problem.cycles, problem.max_hertz)
        second = float(problem.upload_seconds.sum() + least.max())
        unit = problem.time_weight * second
        root = np.sqrt(problem.energy_weight * problem.capacitance * problem.cycles**3 / unit) / second
        price = problem.energy_weight * problem.power_watts * second / unit
        return cls(unit, (problem.upload_seconds / second, price, root, least / second))


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(f"an oracle needs {name}, which is not installed: pip install 'fedreach[oracles]'.") from None
