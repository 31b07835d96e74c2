"""Solvers of the CSRA paper: DC algorithm, genetic selection and selection by sorting."""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, get_args

import numpy as np

from fedreach._util.arrays import Bools, Floats, Ints
from fedreach._util.errors import ConfigError, FedReachError, check, require, violation
from fedreach.wireless import exact
from fedreach.wireless import problem as cost
from fedreach.wireless.exact import Needs
from fedreach.wireless.problem import Allocation, AllocationProblem, check_coverable
from fedreach.wireless.rules import frequency_alone, own_frequency

# -------------------- Best bandwidth for given frequencies, best frequencies for given bandwidth


def best_shares(problem: AllocationProblem, hertz: Floats) -> Floats:
    """Return the bandwidth shares b (K,) with the lowest cost at these CPU frequencies; their sum is 1.

    With the computing time v = W / f and r = sqrt(a2 P tau)::

        minimize  a1 T + sum r^2 / b    subject to  b >= m(T) = tau / (T - v),  sum b <= 1

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", P3 for a given
    selection, solved exactly.

    Example:
        >>> problem = AllocationProblem(*np.array([[0.1, 0.2], [1, 1], [1e8, 2e8], [1e9, 1e9]]), np.array([5, 5]))
        >>> best_shares(problem, np.array([5e8, 5e8])).round(4)
        array([0.3333, 0.6667])
    """
    tau, v = problem.upload_seconds, cost.compute_seconds(problem.cycles, hertz)
    A = problem.energy_weight * problem.power_watts
    fixed = Needs(tau, np.sqrt(tau), A, np.zeros_like(tau), v, np.ones_like(tau), A)  # computing time is constant
    fixed = fixed.only(None)
    T, _, u = exact.saddle(fixed, problem.time_weight)
    share = tau / exact.feasible(fixed, T, u)[0][0]
    return np.asarray(share / share.sum())


NEWTON_STEPS = 100


def best_frequencies(problem: AllocationProblem, share: Floats) -> Floats:
    """Return the CPU frequencies f with the lowest cost at these bandwidth shares b (K,) > 0.

    Energy increases with f. So with the upload time t = tau / b, each client computes as slowly as the deadline T
    allows::

        f_k = W_k / (T - t_k)

    a1 T + a2 eps sum W^3 / (T - t)^2 is smallest if sum (f / f0)^3 = 1 with f0 = (a1 / (2 a2 eps))^(1/3). If the
    shortest possible deadline max(t + W / f^max) is later, the function uses this deadline. For clients without cycles,
    f is f^max.

    The paper searches for multipliers with sub-gradient steps (eq. 58 to 60). Eq. 60 omits the upload time, the steps
    do not enforce sum beta = 1, and eq. 58 has a misprint. The benchmarks contain both versions.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", P7, eq. 55 to
    60.

    Example:
        >>> problem = AllocationProblem(*np.array([[0.1, 0.2], [1, 1], [1e8, 2e8], [1e9, 1e9]]), np.array([5, 5]))
        >>> (best_frequencies(problem, np.array([0.5, 0.5])) / 1e6).round(1)
        array([220.4, 788. ])
    """
    t = problem.upload_seconds / share
    shortest = t + cost.compute_seconds(problem.cycles, problem.max_hertz)
    T = max(_best_deadline(t, problem.cycles / frequency_alone(problem)), float(shortest.max()))
    hertz = problem.max_hertz.copy()
    can_slow_down = (problem.cycles > 0) & (shortest < T)
    hertz[can_slow_down] = np.minimum(hertz[can_slow_down], problem.cycles[can_slow_down] / (T - t[can_slow_down]))
    return hertz


def _best_deadline(t: Floats, w: Floats) -> float:
    """Return T with sum (w / (T - t))^3 = 1, or the largest t if all w are 0.

    The inverse of the 3-norm of w / (T - t) is concave and increasing in T, and at most 1 at max(t + w). So Newton's
    steps from this point increase, and stay below the root.
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


# -------------------- Selection by energy per example


def by_energy(problem: AllocationProblem) -> Ints:
    """Return all rows, sorted by sqrt(P_k tau_k) / d_k; ties go to the lower id."""
    return np.lexsort((problem.ids, energy_per_example(problem)))


def sqrt_sort(problem: AllocationProblem, min_examples: int) -> Ints:
    """Select clients in the order of sqrt(P_k tau_k) / d_k until they have `min_examples`; return their sorted rows.

    The rule ignores the deadline and the cost of computing. For a thousand clients whose computing costs little
    compared with their uploads, its cost is within 1% of the optimum. Use `exact.allocate` for the allocation of the
    selected clients.

    Raises:
        ConfigError: If `min_examples` is not a whole number, at least 1.
        InfeasibleError: If all clients together have fewer examples.

    Reference: This baseline was developed for FedReach. See `energy_per_example` for the reason for the square root.

    Example:
        >>> problem = AllocationProblem(np.array([0.1, 0.4, 0.1]), *np.ones((3, 3)), np.array([100, 250, 90]))
        >>> sqrt_sort(problem, 300)
        array([0, 1])
    """
    check_coverable(problem, min_examples)
    return cover(problem, min_examples, by_energy(problem))


def energy_per_example(problem: AllocationProblem) -> Floats:
    """Return sqrt(P_k tau_k) / d_k (K,), infinite for clients without examples.

    If time and computing cost nothing, the best shares of a set S are proportional to sqrt(P tau), and the cost of S is
    a2 (sum_S sqrt(P tau))^2. So the result is each client's contribution to the square root of the cost, per example.
    """
    need = np.sqrt(problem.power_watts * problem.upload_seconds)
    ratio: Floats = np.full(len(problem), np.inf)
    return np.divide(need, problem.num_examples, out=ratio, where=problem.num_examples > 0)


def cover(problem: AllocationProblem, min_examples: int, order: Ints, first: Ints | None = None) -> Ints:
    """Return the sorted rows of `first` and of clients from `order`, until all together have `min_examples`.

    Example:
        >>> problem = AllocationProblem(*np.ones((4, 3)), np.array([5, 6, 7]))
        >>> cover(problem, 11, np.array([2, 1, 0])), cover(problem, 11, np.array([2, 1, 0]), first=np.array([0]))
        (array([1, 2]), array([0, 2]))
    """
    start = np.empty(0, np.int64) if first is None else np.asarray(first, np.int64)
    more = order[~np.isin(order, start)]
    missing = min_examples - int(problem.num_examples[start].sum())
    needed = 0 if missing <= 0 else int(np.searchsorted(np.cumsum(problem.num_examples[more]), missing)) + 1
    return np.sort(np.concatenate([start, more[:needed]]))


# -------------------- The convex problem of the DC algorithm

Relaxation = Literal["rlt", "perspective"]
SOLVED = ("Solved", "AlmostSolved", "InsufficientProgress")  # the last one is the limit of float64


class RelaxedProblem:
    """Convex relaxation of the selection and its bandwidth, for given CPU frequencies.

    a is the selected fraction of each client, v = W / f its computing time, and u is a bound on a / b. Y is an upper
    bound on the cost of time::

        minimize   Y + a2 sum (P tau u + eps W f^2 a) + sum price a
        subject to a1 (tau u + v a) <= Y,  sum d a >= e2,  sum b <= 1,  0 <= a <= 1

    ``"rlt"``, from the paper: z >= 1 / b and max(a, z - (1 - a) / b_min) <= u <= min(a / b_min, z + a - 1), eq. 46 to
    48. For a just below 1 it allows u = a, as if each client had the full bandwidth. ``"perspective"``, developed for
    FedReach: u >= a^2 / b, which is convex, and exact for a = 0 and a = 1.

    Args:
        problem: Allocation problem of K clients.
        hertz: f (K,), CPU frequencies.
        min_examples: Smallest number of examples e2.
        relaxation: ``"rlt"`` or ``"perspective"``.
        smallest_share: b_min of ``"rlt"``, at most 1 / K.
        unit: Unit of costs, which keeps the numbers of the solver near 1.

    Raises:
        ConfigError: If clarabel is not installed.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", P6[tau'],
    without the constant of P6, and with the factor a_k that is missing in its compute energy.
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
        # Variables: a, u and b (K each), Y (1), and z (K, only with "rlt").
        self._width = 3 * K + 1 + (K if relaxation == "rlt" else 0)
        tau, v = problem.upload_seconds, cost.compute_seconds(problem.cycles, hertz)
        rows = [self._row(a=-1.0), self._row(a=1.0), self._row(u=problem.time_weight * tau / unit,
                a=problem.time_weight * v / unit, Y=-np.ones(K))]  # fmt: skip
        limits = [np.zeros(K), np.ones(K), np.zeros(K)]
        rows += [self._sum(a=-problem.num_examples / min_examples), self._sum(b=1.0)]
        limits += [np.array([-1.0]), np.array([1.0])]
        if relaxation == "rlt":
            max_u = 1 / smallest_share
            # u >= a; u <= a max_u; u <= z + a - 1; u >= z - (1 - a) max_u; z <= max_u
            rows += [self._row(a=1.0, u=-1.0), self._row(u=1.0, a=-max_u), self._row(u=1.0, z=-1.0, a=-1.0)]
            rows += [self._row(z=1.0, a=max_u, u=-1.0), self._row(z=1.0)]
            limits += [np.zeros(K), np.zeros(K), -np.ones(K), np.full(K, max_u), np.full(K, max_u)]
            cones = self._products("z", 0.0, 2.0)
        else:
            cones = self._products("u", -2.0, 0.0)
        linear = sum(len(limit) for limit in limits)
        self._A = self._sparse.vstack([*rows, cones[0]], format="csc")
        self._limits = np.concatenate([*limits, cones[1]])
        self._cones = [self._clarabel.NonnegativeConeT(linear), *[self._clarabel.SecondOrderConeT(3)] * K]
        energy = cost.compute_joules(problem.capacitance, problem.cycles, hertz)
        self._energy = problem.energy_weight * energy / unit
        self._cost = np.zeros(self._width)
        self._cost[K : 2 * K] = problem.energy_weight * problem.power_watts * tau / unit
        self._cost[3 * K] = 1.0

    def solve(self, price: Floats) -> tuple[Floats, Floats]:
        """Return the optimal a and u (K,) for a price on each a, in the unit of costs."""
        K, cost_ = self._K, self._cost.copy()
        cost_[:K] = self._energy + price
        settings = self._clarabel.DefaultSettings()
        settings.verbose = False
        nothing = self._sparse.csc_matrix((self._width, self._width))
        solution = self._clarabel.DefaultSolver(nothing, cost_, self._A, self._limits, self._cones, settings).solve()
        if str(solution.status) not in SOLVED:
            raise FedReachError(
                f"The relaxed selection of {K} clients was not solved: {solution.status}. Raise smallest_share, or "
                "check that the clients have numbers of similar size."
            )
        x = np.asarray(solution.x)
        return np.clip(x[:K], 0.0, 1.0), x[K : 2 * K]

    def _at(self, name: str) -> int:
        return {"a": 0, "u": self._K, "b": 2 * self._K, "Y": 3 * self._K, "z": 3 * self._K + 1}[name]

    def _row(self, **factors: float | Floats) -> Any:
        """Return K sparse rows; row k contains these factors for variable k of each name. Y is a single variable."""
        K = self._K
        where = [np.full(K, self._at(name)) + (0 if name == "Y" else np.arange(K)) for name in factors]
        data = [np.broadcast_to(factor, K) for factor in factors.values()]
        places = (np.tile(np.arange(K), len(factors)), np.concatenate(where))
        return self._sparse.csc_matrix((np.concatenate(data), places), shape=(K, self._width))

    def _sum(self, **factors: float | Floats) -> Any:
        return self._sparse.csc_matrix(self._row(**factors).sum(axis=0))

    def _products(self, name: str, on_a: float, fixed: float) -> tuple[Any, Floats]:
        """Return the constraint x b >= 1 or x b >= a^2 for each client, as |(2 or 2 a, x - b)| <= x + b.

        x is the variable `name`. The solver requires limit - A x in the cone, with three rows per client.
        """
        K = self._K
        three = [self._row(**{name: -1.0, "b": -1.0}), self._row(a=on_a), self._row(**{name: -1.0, "b": 1.0})]
        order = np.arange(3 * K).reshape(3, K).T.ravel()
        return self._sparse.vstack(three, format="csr")[order], np.tile([0.0, fixed, 0.0], K)


def check_solver() -> None:
    """Raise ConfigError if clarabel is not installed."""
    if find_spec("clarabel") is None:
        raise ConfigError("The DC algorithm requires clarabel. Install it with `pip install 'fedreach[reproduce]'`.")


# -------------------- The paper's DC algorithm

Shares = Literal["best", "relaxed"]
BINARY = 1e-3  # largest distance of a to 0 or 1 that counts as 0 or 1
STILL = 1e-6  # change of a at which the iterations end


@dataclass(frozen=True, eq=False)
class DCResult:
    """Result of the DC algorithm, with measures of the corrections to it."""

    allocation: Allocation
    after_shares: float  # cost after step (a)
    after_frequencies: float  # cost after step (b)
    part: Floats  # (K,) a after the relaxation
    raw_share_sum: float  # sum of 1 / u over the clients with a > 1/2, before scaling; feasible if at most 1
    not_binary: int  # number of clients whose a is neither 0 nor 1
    coverage_failed: bool  # true if clients with a > 1/2 had too few examples, so that others were added


@dataclass(frozen=True)
class DC:
    """DC algorithm of the CSRA paper: select clients and bandwidth, then set CPU frequencies.

    Step (a) relaxes the selection to 0 <= a <= 1, with a penalty rho (a - a^2) for fractions. Each iteration linearizes
    the penalty at the previous a, which results in a convex problem. Clients with a > 1/2 are selected. If these
    clients have too few examples, the cheapest clients by `by_energy` are added. Step (b) is `best_frequencies`. Each
    step fixes the variables of the other step, so the allocation is not optimal even for the selected clients.
    ``allocation = "joint"`` replaces it with the exact allocation.

    The version of the paper is ``DC("rlt", (1.0,), shares="relaxed", allocation="paper")``. The paper does not specify
    the start, rho, b_min and the numbers of iterations.

    Args:
        relaxation: ``"perspective"``, or ``"rlt"`` of the paper, see `RelaxedProblem`. Default: "perspective".
        penalties: Values of rho, each above 0, in units of the cost of the clients that `sqrt_sort` selects. The
            algorithm tries all values and returns the result with the lowest cost.
        smallest_share: b_min of ``"rlt"``, above 0. FedReach uses at most 1 / (2 K), so that all K clients fit.
        start: Initial a of all clients, from 0 to 1. Default: 0.5.
        iterations: Largest number of convex problems of step (a). Default: 15.
        shares: Bandwidth shares after step (a). ``"best"``: `best_shares` of the selected clients. ``"relaxed"``: b =
            1 / u of the relaxation, scaled down if the sum exceeds 1, and 1 / K for added clients. Default: "best".
        first_speed: CPU frequencies of step (a) as a share of f^max, above 0 and at most 1. Default: `own_frequency`.
        allocation: Final allocation, ``"joint"`` or ``"paper"``, see above. Default: "joint".

    Raises:
        ConfigError: If an option is outside its range, or clarabel is not installed.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", Algorithms 1
    and 2.

    Example:
        >>> tau, P = [0.060, 0.080, 0.055, 0.120, 0.070, 0.065], [0.2, 0.5, 1.0, 0.1, 2.0, 0.3]
        >>> W, f = [2e8, 1.5e8, 3e8, 1e8, 2.5e8, 1.8e8], [3e9, 2e9, 5e9, 4e9, 2.5e9, 3.5e9]
        >>> problem = AllocationProblem(*np.array([tau, P, W, f]), np.array([700, 650, 900, 400, 800, 750]))
        >>> result = DC(first_speed=0.25).solve(problem, 2000)
        >>> result.allocation.ids, round(result.after_frequencies, 6), round(result.allocation.cost, 6)
        (array([0, 1, 5]), 0.920897, 0.897183)
    """

    relaxation: Relaxation = "perspective"
    penalties: tuple[float, ...] = (0.1, 0.3, 1.0)
    smallest_share: float = 1e-3
    start: float = 0.5
    iterations: int = 15
    shares: Shares = "best"
    first_speed: float | None = None
    allocation: Literal["joint", "paper"] = "joint"

    def __post_init__(self) -> None:
        require(self, relaxation=get_args(Relaxation), shares=get_args(Shares), allocation=("joint", "paper"))
        require(
            self,
            smallest_share="(0, 1]",
            first_speed="(0, 1]",
            start="[0, 1]",
            iterations="[1, inf)",
        )
        if not self.penalties or not all(0 < rho < np.inf for rho in self.penalties):
            raise ConfigError(f"DC.penalties must be positive numbers, at least one; got {self.penalties!r}.")

    def solve(self, problem: AllocationProblem, min_examples: int) -> DCResult:
        """Return the result with the lowest cost among all penalties.

        Raises:
            ConfigError: If `min_examples` is not a whole number, at least 1.
            InfeasibleError: If all clients together have fewer examples.
        """
        check_coverable(problem, min_examples)
        hertz = own_frequency(problem) if self.first_speed is None else self.first_speed * problem.max_hertz
        results = [self._solve(problem, min_examples, hertz, rho) for rho in self.penalties]
        return min(results, key=lambda result: result.allocation.cost)

    def _solve(self, problem: AllocationProblem, min_examples: int, hertz: Floats, rho: float) -> DCResult:
        part, u = self._relax(problem, min_examples, hertz, rho)
        chosen = np.flatnonzero(part > 0.5)
        rows = cover(problem, min_examples, by_energy(problem), first=chosen)
        share = self._share(problem, rows, chosen, u, hertz)
        after_b = Allocation.of(problem, rows, share, best_frequencies(problem.only(rows), share))
        return DCResult(
            allocation=exact.allocate(problem.only(rows)) if self.allocation == "joint" else after_b,
            after_shares=Allocation.of(problem, rows, share, hertz[rows]).cost,
            after_frequencies=after_b.cost,
            part=part,
            raw_share_sum=float(np.sum(1 / u[chosen])),
            not_binary=int(np.sum((part > BINARY) & (part < 1 - BINARY))),
            coverage_failed=int(problem.num_examples[chosen].sum()) < min_examples,
        )

    def _relax(self, problem: AllocationProblem, min_examples: int, hertz: Floats, rho: float) -> tuple[Floats, Floats]:
        """Run Algorithm 1 of the paper; return a and u."""
        typical = sqrt_sort(problem, min_examples)
        unit = Allocation.of(problem, typical, np.full(len(typical), 1 / len(typical)), hertz[typical]).cost
        smallest = min(self.smallest_share, 1 / (2 * len(problem)))
        relaxed = RelaxedProblem(problem, hertz, min_examples, self.relaxation, smallest, unit)
        a = np.full(len(problem), self.start)
        for _ in range(self.iterations):
            last = a
            a, u = relaxed.solve(rho * (1 - 2 * last))  # tangent of rho (a - a^2), up to a constant
            if np.max(np.abs(a - last)) < STILL:
                break
        return a, u

    def _share(self, problem: AllocationProblem, rows: Ints, chosen: Ints, u: Floats, hertz: Floats) -> Floats:
        if self.shares == "best":
            return best_shares(problem.only(rows), hertz[rows])
        share = np.where(np.isin(rows, chosen), 1 / u[rows], 1 / len(problem))
        return share / max(1.0, float(share.sum()))


# -------------------- Genetic selection

Frequency = Literal["own", "maximum"]


def genetic_selection(
    problem: AllocationProblem,
    min_examples: int,
    rng: np.random.Generator,
    *,
    divergence: Floats | None = None,
    max_divergence: float | None = None,
    **options: Any,
) -> Ints:
    """Select clients by genetic search; return the sorted rows of a set with `min_examples` (GA-Greedy).

    `genetic_search` returns a set that may violate a constraint, because its penalties are finite. Clients above
    `max_divergence` are removed from this set. The cheapest clients by `by_energy` are added until the set has
    `min_examples`. The arguments and errors are those of `genetic_search`.

    Raises:
        InfeasibleError: If the clients within `max_divergence` together have too few examples.

    Example:
        >>> problem = AllocationProblem(np.array([0.1, 0.4, 0.1]), *np.ones((3, 3)), np.array([100, 250, 90]))
        >>> genetic_selection(problem, 150, np.random.Generator(np.random.Philox(0)))
        array([0, 2])
    """
    within = np.ones(len(problem), np.bool_)
    if divergence is not None and max_divergence is not None:
        within = np.less_equal(divergence, max_divergence)
    check_coverable(problem.only(within), min_examples)
    limits: dict[str, Any] = {"divergence": divergence, "max_divergence": max_divergence}
    return repair_genetic(
        problem, min_examples, genetic_search(problem, min_examples, rng, **limits, **options), within
    )


def repair_genetic(problem: AllocationProblem, min_examples: int, best: Ints, within: Bools) -> Ints:
    """Return the rows of `best` that are `within` the divergence, and the cheapest further ones for `min_examples`."""
    order = by_energy(problem)
    return cover(problem, min_examples, order[within[order]], first=best[within[best]])


def genetic_search(
    problem: AllocationProblem,
    min_examples: int,
    rng: np.random.Generator,
    *,
    divergence: Floats | None = None,
    max_divergence: float | None = None,
    population: int = 40,
    generations: int = 60,
    crossover: float = 0.9,
    mutations: float = 1.0,
    penalty: float | None = None,
    frequency: Frequency = "own",
) -> Ints:
    """Return the sorted rows of the best set of a genetic search, which may violate a constraint.

    The fitness of a set S is its cost with equal shares b = 1 / |S| and CPU frequencies that do not depend on S, plus
    M (c1^2 + c2^2) for violated constraints (see `penalty_terms`). Each generation keeps the best set. The parents of
    all other sets are the winners of tournaments of two. A child inherits each client from one of its parents, and then
    a few clients change.

    The paper's fitness (eq. 61) contains no cost, so it cannot compare two feasible sets. The paper does not specify
    the parameters below.

    Args:
        problem: Allocation problem of K clients.
        min_examples: Smallest number of examples e2, at least 1.
        rng: Random generator.
        divergence: Label divergence of each client (K,) in nats. Default: no limit on the divergence.
        max_divergence: Largest divergence e1 in nats, required with `divergence`.
        population: Number of sets per generation, at least 2. Default: 40.
        generations: Number of generations, at least 0. Default: 60.
        crossover: Probability that a set has two parents instead of one, from 0 to 1. Default: 0.9.
        mutations: Mean number of clients that change in a set, from 0 to K. Default: 1.
        penalty: Penalty M, above 0. Default: the cost of all clients together, so that one missing example costs more
            than any set.
        frequency: CPU frequencies in the fitness. ``"own"``: `own_frequency`. ``"maximum"``: f^max, which overestimates
            the energy if f^max is high. Default: "own".

    Raises:
        ConfigError: If an option is outside its range.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", section V-A,
    eq. 61.
    """
    K = len(problem)
    for name, number, interval in (
        ("population", population, "[2, inf)"),
        ("generations", generations, "[0, inf)"),
        ("crossover", crossover, "[0, 1]"),
        ("mutations", mutations, f"[0, {K}]"),
        ("penalty", 1.0 if penalty is None else penalty, "(0, inf)"),
    ):
        check("genetic_search", name, number, interval)
    if wrong := violation(frequency, get_args(Frequency)):
        raise ConfigError(f"genetic_search: frequency {wrong}")
    if (divergence is None) != (max_divergence is None):
        raise ConfigError("divergence and max_divergence must be given together. Add the other one, or remove both.")
    D = np.zeros(K) if divergence is None else np.asarray(divergence, np.float64)
    e1 = np.inf if max_divergence is None else max_divergence
    hertz = own_frequency(problem) if frequency == "own" else problem.max_hertz
    M = float(equal_share_costs(problem, np.ones((1, K), bool), hertz)[0]) if penalty is None else penalty
    finite = np.minimum(D, 1e6)  # 0 times an infinite divergence would be nan

    def fitness(sets: Bools) -> Floats:
        c1, c2 = penalty_terms(sets, finite, e1, problem.num_examples, min_examples)
        return equal_share_costs(problem, sets, hertz) + M * (c1**2 + c2**2)

    # On average, the first sets contain between the needed share of all clients and all clients.
    lowest = min_examples / int(problem.num_examples.sum())
    sets = rng.random((population, K)) < rng.uniform(lowest, 1.0, (population, 1))
    value = fitness(sets)
    for _ in range(generations):
        sets = np.concatenate([sets[[np.argmin(value)]], _children(sets, value, rng, crossover, mutations)])
        value = fitness(sets)
    return np.flatnonzero(sets[np.argmin(value)])


def equal_share_costs(problem: AllocationProblem, sets: Bools, hertz: Floats) -> Floats:
    """Return (p,) the costs of (p, K) sets with b = 1 / |S| at (K,) CPU frequencies; 0 for an empty set.

    Example:
        >>> problem = AllocationProblem(*np.array([[0.1, 0.2], [1, 1], [1e8, 2e8], [1e9, 1e9]]), np.array([5, 5]))
        >>> equal_share_costs(problem, np.array([[True, False], [True, True]]), problem.max_hertz).round(6)
        array([0.4, 1.5])
    """
    size = sets.sum(axis=1)
    computing = cost.compute_seconds(problem.cycles, hertz)
    seconds = np.where(sets, problem.upload_seconds * size[:, None] + computing, 0.0).max(axis=1)
    upload = problem.power_watts * problem.upload_seconds
    compute = cost.compute_joules(problem.capacitance, problem.cycles, hertz)
    joules = size * (sets @ upload) + sets @ compute
    return np.asarray(problem.time_weight * seconds + problem.energy_weight * joules)


def _children(sets: Bools, value: Floats, rng: np.random.Generator, crossover: float, mutations: float) -> Bools:
    """Return children of `sets`, one fewer than there are sets; their parents are winners of tournaments of two."""
    population, K = sets.shape
    pairs = rng.integers(population, size=(2, 2, population - 1))  # two rivals for each of two parents
    first, second = np.where(value[pairs[:, 0]] <= value[pairs[:, 1]], pairs[:, 0], pairs[:, 1])
    from_second = rng.random((population - 1, K)) < 0.5
    from_second &= rng.random((population - 1, 1)) < crossover
    children = np.where(from_second, sets[second], sets[first])
    return np.asarray(children ^ (rng.random(children.shape) < mutations / K))


def penalty_terms(
    sets: Bools, divergence: Floats, max_divergence: float, num_examples: Ints, min_examples: int
) -> tuple[Floats, Floats]:
    """Return the excess divergence c1 and the number c2 of missing examples for each of p sets (p, K).

    c1 = sum_k max(0, a_k (D_k - e1)) and c2 = max(0, e2 - sum_k a_k d_k).

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", eq. 61,
    corrected: as printed, c1 is almost always 0, and c2 increases with the number of examples.

    Example:
        >>> D, d = np.array([0.1, 0.35, 0.15, 0.6]), np.array([700, 650, 900, 400])
        >>> c1, c2 = penalty_terms(np.array([[True, True, False, False]]), D, 0.2, d, 2000)
        >>> c1.round(2), c2
        (array([0.15]), array([650.]))
    """
    inside = sets.astype(np.float64)
    beyond = inside @ np.maximum(divergence - max_divergence, 0.0)
    return beyond, np.maximum(min_examples - inside @ num_examples, 0.0)
