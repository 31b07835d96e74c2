"""The solvers of the paper: relaxation, differences of convex functions, genetic search, sorting."""

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

# -------------------- The paper's two steps: best shares, best frequencies


def best_shares(problem: AllocationProblem, hertz: Floats) -> Floats:
    """Return the shares b (K,) that cost all clients of the problem least at these frequencies; their sum is 1.

    With v = W / f the time to compute, and r = sqrt(a2 P tau)::

        minimize  a1 T + sum r^2 / b    subject to  b >= m(T) = tau / (T - v),  sum b <= 1

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", P3 with a given
    selection, solved exactly.

    Example:
        >>> problem = AllocationProblem(*np.array([[0.1, 0.2], [1, 1], [1e8, 2e8], [1e9, 1e9]]), np.array([5, 5]))
        >>> best_shares(problem, np.array([5e8, 5e8])).round(4)
        array([0.3333, 0.6667])
    """
    tau, v = problem.upload_seconds, cost.compute_seconds(problem.cycles, hertz)
    A = problem.energy_weight * problem.power_watts
    fixed = Needs(tau, np.sqrt(tau), A, np.zeros_like(tau), v, np.ones_like(tau), A)  # what computing costs is settled
    fixed = Needs(*(values[None] for values in fixed))
    T, _, u = exact.saddle(fixed, problem.time_weight)
    share = tau / exact.feasible(fixed, T, u)[0][0]
    return np.asarray(share / share.sum())


NEWTON_STEPS = 100


def best_frequencies(problem: AllocationProblem, share: Floats) -> Floats:
    """Return the frequencies f that cost all clients of the problem least at these shares b (K,) > 0 of the band.

    With t = tau / b the time to upload, energy grows with f, so no client computes faster than the deadline asks::

        f_k = W_k / (T - t_k)

    and a1 T + a2 eps sum W^3 / (T - t)^2 is least at sum (f / f0)^3 = 1, f0 = (a1 / (2 a2 eps))^(1/3), or at the
    shortest deadline T_min = max(t + W / f^max) where that is later. A client without cycles is given f^max.

    Differs from the paper, which seeks the multipliers by sub-gradient steps on eq. 58 to 60: those lose the upload
    time in (60), never enforce sum beta = 1, and (58) is misprinted for its common case. The benchmarks have both.

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


# -------------------- Selection by energy per example


def by_energy(problem: AllocationProblem) -> Ints:
    """Return all rows in increasing sqrt(P_k tau_k) / d_k; ties by id."""
    return np.lexsort((problem.ids, energy_per_example(problem)))


def sqrt_sort(problem: AllocationProblem, min_examples: int) -> Ints:
    """Take clients in increasing sqrt(P_k tau_k) / d_k until they hold `min_examples`; return their rows, sorted.

    Blind to computing and to the deadline, yet within 1% of the optimum for a thousand clients whose cycles cost
    little compared with their uploads. Give the set its exact allocation afterwards.

    Raises:
        ConfigError: If `min_examples` is not a whole number from 1.
        InfeasibleError: If all clients together hold fewer.

    Reference: ours, for comparison; see `energy_per_example` for the reason of the square root.

    Example:
        >>> problem = AllocationProblem(np.array([0.1, 0.4, 0.1]), *np.ones((3, 3)), np.array([100, 250, 90]))
        >>> sqrt_sort(problem, 300)
        array([0, 1])
    """
    check_coverable(problem, min_examples)
    return cover(problem, min_examples, by_energy(problem))


def energy_per_example(problem: AllocationProblem) -> Floats:
    """Return sqrt(P_k tau_k) / d_k (K,), inf for a client without examples.

    Where time and computing are free, the best shares of a set S are proportional to sqrt(P tau), and its cost is
    a2 (sum_S sqrt(P tau))^2: so sqrt(P tau) is what a client adds, and this is what it adds for each example.
    """
    need = np.sqrt(problem.power_watts * problem.upload_seconds)
    ratio: Floats = np.full(len(problem), np.inf)
    return np.divide(need, problem.num_examples, out=ratio, where=problem.num_examples > 0)


def cover(problem: AllocationProblem, min_examples: int, order: Ints, first: Ints | None = None) -> Ints:
    """Return the rows `first` and then as many of `order` as are needed to hold `min_examples`, sorted.

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
SOLVED = ("Solved", "AlmostSolved", "InsufficientProgress")  # the last: as far as float64 goes


class RelaxedProblem:
    """The relaxed choice of parts a of clients and their band at fixed frequencies, a convex problem.

    With v = W / f the time to compute, Y bounding the cost of time, and u standing for a / b::

        minimize   Y + a2 sum (P tau u + eps W f^2 a) + sum price a
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
        # Order of variables: a, u, b, K each, then Y, then z, K, if any.
        self._width = 3 * K + 1 + (K if relaxation == "rlt" else 0)
        tau, v = problem.upload_seconds, cost.compute_seconds(problem.cycles, hertz)
        rows = [self._row(a=-1.0), self._row(a=1.0), self._row(u=problem.time_weight * tau / unit,
                a=problem.time_weight * v / unit, Y=-np.ones(K))]  # fmt: skip
        limits = [np.zeros(K), np.ones(K), np.zeros(K)]
        rows += [self._sum(a=-problem.num_examples / min_examples), self._sum(b=1.0)]
        limits += [np.array([-1.0]), np.array([1.0])]
        if relaxation == "rlt":
            max_u = 1 / smallest_share
            # u >= a; u <= a most; u <= z + a - 1; u >= z - (1 - a) most; z <= most
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
        """Return the best a and u (K,) each, at this price on each a, in units of cost."""
        K, cost_ = self._K, self._cost.copy()
        cost_[:K] = self._energy + price
        settings = self._clarabel.DefaultSettings()
        settings.verbose = False
        nothing = self._sparse.csc_matrix((self._width, self._width))
        solution = self._clarabel.DefaultSolver(nothing, cost_, self._A, self._limits, self._cones, settings).solve()
        if str(solution.status) not in SOLVED:
            raise FedReachError(
                f"the relaxed selection of {K} clients was not solved: {solution.status}. Is `smallest_share` too "
                "small, or are the clients of very different scale?"
            )
        x = np.asarray(solution.x)
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

        The solver wants limit - A x in the cone, three rows per client.
        """
        K = self._K
        three = [self._row(**{name: -1.0, "b": -1.0}), self._row(a=on_a), self._row(**{name: -1.0, "b": 1.0})]
        order = np.arange(3 * K).reshape(3, K).T.ravel()
        return self._sparse.vstack(three, format="csr")[order], np.tile([0.0, fixed, 0.0], K)


def check_solver() -> None:
    """Raise ConfigError if clarabel is not installed."""
    if find_spec("clarabel") is None:
        raise ConfigError("the DC algorithm needs clarabel. Install it by `pip install 'fedreach[reproduce]'`.")


# -------------------- The paper's DC algorithm

Shares = Literal["best", "relaxed"]
BINARY = 1e-3  # nearer to 0 or 1 than this is 0 or 1
STILL = 1e-6  # of a: no change any more


@dataclass(frozen=True, eq=False)
class DCResult:
    """The result of the algorithm, and the repairs on the way."""

    allocation: Allocation
    after_shares: float  # cost after step (a), at the frequencies it was given
    after_frequencies: float  # cost after step (b)
    part: Floats  # (K,) a, as the relaxation left it
    raw_share_sum: float  # of 1 / u over those with a > 1/2, before any repair; the band is 1
    not_binary: int  # clients with a neither 0 nor 1
    coverage_failed: bool  # those with a > 1/2 held too few examples, and others were added


@dataclass(frozen=True)
class DC:
    """The paper's DC algorithm: clients and shares at fixed frequencies, then frequencies at fixed shares.

    Step (a) relaxes the choice to parts 0 <= a <= 1 and charges a penalty rho (a - a^2) for each that is neither. The
    penalty is replaced by its tangent at the last a, so that a convex problem is left, `iterations` times or until a
    stands still; clients with a > 1/2 are chosen. Those may hold too few examples: then the cheapest by `by_energy`
    join. Step (b) is `best_frequencies`. Neither step sees that a change of both would pay, so the result is not
    optimal, not even for its own clients: `allocation = "joint"` gives these their exact allocation at the end.

    As the paper has it: ``DC("rlt", (1.0,), shares="relaxed", allocation="paper")``. Its start, rho, b_min and numbers
    of iterations are not stated.

    Args:
        relaxation: ``"perspective"``, ours, or ``"rlt"``, the paper's, which hardly sees the channel (see
            `RelaxedProblem`).
        penalties: rho, each positive and tried on its own; the cheapest result is returned. In units of the cost of
            the clients of `sqrt_sort` at the frequencies of the step, so that prices may be scaled.
        smallest_share: b_min of ``"rlt"``, above 0; at most 1 / (2 K) is used, as all K clients must have room.
        start: a of all clients before the first iteration, 0 to 1.
        iterations: Most convex problems of a step (a).
        shares: ``"best"``, the best for the clients that were chosen (`best_shares`); ``"relaxed"``, b = 1 / u of the
            relaxation, scaled down where they are more than the band, and 1 / K for a client that joined.
        first_speed: Frequencies of the first step (a), as a part of f^max, above 0 and at most 1; None begins with
            those that suit each client alone (`own_frequency`).
        allocation: ``"joint"`` or ``"paper"``, see above.

    Raises:
        ConfigError: If an option is out of its range, or clarabel is not installed.

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
        """Return the cheapest result of all penalties.

        Raises:
            ConfigError: If `min_examples` is not a whole number from 1.
            InfeasibleError: If all clients together hold fewer.
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
        """Return a and u of Algorithm 1."""
        typical = sqrt_sort(problem, min_examples)
        unit = Allocation.of(problem, typical, np.full(len(typical), 1 / len(typical)), hertz[typical]).cost
        smallest = min(self.smallest_share, 1 / (2 * len(problem)))
        relaxed = RelaxedProblem(problem, hertz, min_examples, self.relaxation, smallest, unit)
        a = np.full(len(problem), self.start)
        for _ in range(self.iterations):
            last = a
            a, u = relaxed.solve(rho * (1 - 2 * last))  # rho (a - a^2) by its tangent, but for a constant
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
    population: int = 40,
    generations: int = 60,
    crossover: float = 0.9,
    mutations: float = 1.0,
    penalty: float | None = None,
    frequency: Frequency = "own",
) -> Ints:
    """Breed sets of clients, and return the rows of the cheapest that holds `min_examples`, sorted.

    A set S is judged by its cost with equal shares, b = 1 / |S|, and frequencies that do not depend on S, plus
    M (c1^2 + c2^2) for what it breaks (see `penalty_terms`). Each generation keeps the best set; the parents of the
    others win tournaments of two, are mixed client by client, and a few clients change sides. In the end the best set
    is made to hold: clients over `max_divergence` leave it, and the cheapest by `by_energy` join until it is covered.

    Differs from eq. 61, which has no cost in it, so that it cannot distinguish two covering sets, and no sign. The
    paper states none of the sizes below.

    Args:
        min_examples: e2, at least 1.
        rng: Where everything is drawn from.
        divergence: D_kl of each client (K,), in nats; None where the clients are filtered already.
        max_divergence: e1, given together with `divergence`.
        population: Sets in a generation, at least 2.
        generations: At least 0.
        crossover: Probability that a set has two parents and not one, 0 to 1.
        mutations: Clients of a set that change sides, on average; 0 to K.
        penalty: M, positive; None takes the cost of all clients together, with which one missing example costs more
            than any set does.
        frequency: ``"own"``, the one that suits a client alone (`own_frequency`); ``"maximum"``, f^max, which counts
            far more joules than the set will need where f^max is high.

    Raises:
        ConfigError: If an option is out of its range.
        InfeasibleError: If all clients, or all within `max_divergence`, together hold too few examples.

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", section V-A,
    eq. 61.

    Example:
        >>> problem = AllocationProblem(np.array([0.1, 0.4, 0.1]), *np.ones((3, 3)), np.array([100, 250, 90]))
        >>> genetic_selection(problem, 150, np.random.Generator(np.random.Philox(0)))
        array([0, 2])
    """
    K = len(problem)
    for name, number, interval in (
        ("population", population, "[2, inf)"),
        ("generations", generations, "[0, inf)"),
        ("crossover", crossover, "[0, 1]"),
        ("mutations", mutations, f"[0, {K}]"),
        ("penalty", 1.0 if penalty is None else penalty, "(0, inf)"),
    ):
        check("genetic_selection", name, number, interval)
    if wrong := violation(frequency, get_args(Frequency)):
        raise ConfigError(f"genetic_selection: frequency {wrong}")
    if (divergence is None) != (max_divergence is None):
        raise ConfigError("divergence and max_divergence must be given together.")
    D = np.zeros(K) if divergence is None else np.asarray(divergence, np.float64)
    e1 = np.inf if max_divergence is None else max_divergence
    within = np.less_equal(D, e1)
    check_coverable(problem.only(within), min_examples)
    hertz = own_frequency(problem) if frequency == "own" else problem.max_hertz
    M = float(equal_share_costs(problem, np.ones((1, K), bool), hertz)[0]) if penalty is None else penalty
    finite = np.minimum(D, 1e6)  # an infinite divergence is a large one: 0 times it must be 0

    def fitness(sets: Bools) -> Floats:
        c1, c2 = penalty_terms(sets, finite, e1, problem.num_examples, min_examples)
        return equal_share_costs(problem, sets, hertz) + M * (c1**2 + c2**2)

    # As many clients as hold the examples on average, up to all: sets of every size are tried.
    lowest = min_examples / int(problem.num_examples.sum())
    sets = rng.random((population, K)) < rng.uniform(lowest, 1.0, (population, 1))
    value = fitness(sets)
    for _ in range(generations):
        sets = np.concatenate([sets[[np.argmin(value)]], _children(sets, value, rng, crossover, mutations)])
        value = fitness(sets)
    best = np.flatnonzero(sets[np.argmin(value)] & within)
    order = by_energy(problem)
    return cover(problem, min_examples, order[within[order]], first=best)


def equal_share_costs(problem: AllocationProblem, sets: Bools, hertz: Floats) -> Floats:
    """Return the cost of each set (p, K) with b = 1 / |S| at these frequencies (K,), (p,); 0 for an empty one.

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
    """Return one set fewer than there are, each of parents that won tournaments of two."""
    population, K = sets.shape
    pairs = rng.integers(population, size=(2, 2, population - 1))  # of rivals, for both parents
    first, second = np.where(value[pairs[:, 0]] <= value[pairs[:, 1]], pairs[:, 0], pairs[:, 1])
    from_second = rng.random((population - 1, K)) < 0.5
    from_second &= rng.random((population - 1, 1)) < crossover
    children = np.where(from_second, sets[second], sets[first])
    return np.asarray(children ^ (rng.random(children.shape) < mutations / K))


def penalty_terms(
    sets: Bools, divergence: Floats, max_divergence: float, num_examples: Ints, min_examples: int
) -> tuple[Floats, Floats]:
    """Return c1, how far the chosen clients are beyond the divergence, and c2, how many examples are missing.

    c1 = sum_k max(0, a_k (D_k - e1)) and c2 = max(0, e2 - sum_k a_k d_k), of each of p sets (p, K).

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", eq. 61, set
    right: as printed, c1 is nearly always 0, and c2 grows with the examples that a set holds.

    Example:
        >>> D, d = np.array([0.1, 0.35, 0.15, 0.6]), np.array([700, 650, 900, 400])
        >>> c1, c2 = penalty_terms(np.array([[True, True, False, False]]), D, 0.2, d, 2000)
        >>> c1.round(2), c2
        (array([0.15]), array([650.]))
    """
    inside = sets.astype(np.float64)
    beyond = inside @ np.maximum(divergence - max_divergence, 0.0)
    return beyond, np.maximum(min_examples - inside @ num_examples, 0.0)
