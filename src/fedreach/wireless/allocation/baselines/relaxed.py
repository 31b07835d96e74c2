"""The convex problem that the DC algorithm solves again and again, in the form of an interior-point solver."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

from fedreach.arrays import Floats
from fedreach.errors import ConfigError, FedReachError
from fedreach.wireless import cost
from fedreach.wireless.allocation.problem import AllocationProblem

Relaxation = Literal["rlt", "perspective"]
SOLVED = ("Solved", "AlmostSolved", "InsufficientProgress")  # the last: as far as float64 goes


class RelaxedProblem:
    """Choose parts a of clients and their band at fixed frequencies: convex, for one price on each a.

    With v = W / f the time to compute, Y bounding the cost of time, and u standing for a / b::

        minimise   Y + a2 sum (P tau u + eps W f^2 a) + sum price a
        subject to a1 (tau u + v a) <= Y,  sum d a >= e2,  sum b <= 1,  0 <= a <= 1

    ``"rlt"``, the paper's: z >= 1 / b and max(a, z - (1 - a) / b_min) <= u <= min(a / b_min, z + a - 1), eq. 46 to 48.
    With a just below 1 it allows u = a, as if each client had the whole band: it hardly sees the channel.
    ``"perspective"``, ours: u >= a^2 / b, convex in both, and the truth at a = 0 and a = 1.

    Args:
        problem: Of K clients.
        hertz: f (K,), fixed.
        min_examples: e2.
        relaxation: ``"rlt"`` or ``"perspective"``.
        smallest_share: b_min of ``"rlt"``, at most 1 / K.
        unit: A cost; costs are counted in it, so that the solver sees neither joules nor gigahertz.

    Raises:
        ConfigError: If clarabel is not installed.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", P6[tau'],
    without its constant and with the a_k that its compute energy lacks.
    """

    def __init__(
        self,
        problem: AllocationProblem,
        hertz: Floats,
        min_examples: int,
        relaxation: Relaxation,
        smallest_share: float,
        unit: float,
    ) -> None:
        check_solver()
        self._clarabel, self._sparse = import_module("clarabel"), import_module("scipy.sparse")
        K = self._K = len(problem)
        # Variables stand as a, u, b, K each, then Y, then z, K, if any.
        self._width = 3 * K + 1 + (K if relaxation == "rlt" else 0)
        tau, v = problem.upload_seconds, cost.compute_seconds(problem.cycles, hertz)
        rows = [self._row(a=-1.0), self._row(a=1.0), self._row(u=problem.seconds_price * tau / unit,
                a=problem.seconds_price * v / unit, Y=-np.ones(K))]  # fmt: skip
        limits = [np.zeros(K), np.ones(K), np.zeros(K)]
        rows += [self._sum(a=-problem.num_examples / min_examples), self._sum(b=1.0)]
        limits += [np.array([-1.0]), np.array([1.0])]
        if relaxation == "rlt":
            most = 1 / smallest_share
            # u >= a; u <= a most; u <= z + a - 1; u >= z - (1 - a) most; z <= most
            rows += [self._row(a=1.0, u=-1.0), self._row(u=1.0, a=-most), self._row(u=1.0, z=-1.0, a=-1.0)]
            rows += [self._row(z=1.0, a=most, u=-1.0), self._row(z=1.0)]
            limits += [np.zeros(K), np.zeros(K), -np.ones(K), np.full(K, most), np.full(K, most)]
            cones = self._products("z", 0.0, 2.0)
        else:
            cones = self._products("u", -2.0, 0.0)
        linear = sum(len(limit) for limit in limits)
        self._A = self._sparse.vstack([*rows, cones[0]], format="csc")
        self._limits = np.concatenate([*limits, cones[1]])
        self._cones = [self._clarabel.NonnegativeConeT(linear), *[self._clarabel.SecondOrderConeT(3)] * K]
        energy = cost.compute_joules(problem.capacitance, problem.cycles, hertz)
        self._energy = problem.joules_price * energy / unit
        self._cost = np.zeros(self._width)
        self._cost[K : 2 * K] = problem.joules_price * problem.power_watts * tau / unit
        self._cost[3 * K] = 1.0

    def solve(self, price: Floats) -> tuple[Floats, Floats]:
        """Return the best a and u (K,) each, at this price on each a, in units of cost."""
        K, cost_ = self._K, self._cost.copy()
        cost_[:K] = self._energy + price
        settings = self._clarabel.DefaultSettings()
        settings.verbose = False
        nothing = self._sparse.csc_matrix((self._width, self._width))
        found = self._clarabel.DefaultSolver(nothing, cost_, self._A, self._limits, self._cones, settings).solve()
        if str(found.status) not in SOLVED:
            raise FedReachError(
                f"the relaxed selection of {K} clients was not solved: {found.status}. Is `smallest_share` too small, "
                "or are the clients of very different scale?"
            )
        x = np.asarray(found.x)
        return np.clip(x[:K], 0.0, 1.0), x[K : 2 * K]

    def _at(self, name: str) -> int:
        return {"a": 0, "u": self._K, "b": 2 * self._K, "Y": 3 * self._K, "z": 3 * self._K + 1}[name]

    def _row(self, **factors: float | Floats) -> Any:
        """Return K rows, the k-th with these factors on the k-th of each variable; Y has only one."""
        K = self._K
        where = [np.full(K, self._at(name)) + (0 if name == "Y" else np.arange(K)) for name in factors]
        data = [np.broadcast_to(factor, K) for factor in factors.values()]
        places = (np.tile(np.arange(K), len(factors)), np.concatenate(where))
        return self._sparse.csc_matrix((np.concatenate(data), places), shape=(K, self._width))

    def _sum(self, **factors: float | Floats) -> Any:
        return self._sparse.csc_matrix(self._row(**factors).sum(axis=0))

    def _products(self, name: str, on_a: float, fixed: float) -> tuple[Any, Floats]:
        """Return x b >= 1 or x b >= a^2 for each client, as |(2 or 2 a, x - b)| <= x + b with x this variable.

        The solver wants limit - A x in the cone, three rows a client.
        """
        K = self._K
        three = [self._row(**{name: -1.0, "b": -1.0}), self._row(a=on_a), self._row(**{name: -1.0, "b": 1.0})]
        order = np.arange(3 * K).reshape(3, K).T.ravel()
        return self._sparse.vstack(three, format="csr")[order], np.tile([0.0, fixed, 0.0], K)


def check_solver() -> None:
    """Raise ConfigError if clarabel is not installed."""
    if find_spec("clarabel") is None:
        raise ConfigError("the DC algorithm needs clarabel. Install it by `pip install 'fedreach[reproduce]'`.")
