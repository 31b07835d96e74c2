"""Selection by a genetic algorithm, one of the paper's baselines."""

from typing import Literal, get_args

import numpy as np

from fedreach.arrays import Bools, Floats, Ints
from fedreach.errors import ConfigError, nearest
from fedreach.wireless import cost
from fedreach.wireless.allocation.baselines.sorting import by_energy, cover
from fedreach.wireless.allocation.problem import AllocationProblem, check_coverable
from fedreach.wireless.allocation.rules.base import own_frequency

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

    Differs from eq. 61, which has no cost in it, so that it cannot tell two covering sets apart, and no sign. The paper
    states none of the sizes below.

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
    _check(K, divergence, max_divergence, population, generations, crossover, mutations, penalty, frequency)
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
    least = min_examples / int(problem.num_examples.sum())
    sets = rng.random((population, K)) < rng.uniform(least, 1.0, (population, 1))
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
    upload = cost.upload_joules(problem.power_watts, problem.upload_seconds)
    compute = cost.compute_joules(problem.capacitance, problem.cycles, hertz)
    joules = size * (sets @ upload) + sets @ compute
    return np.asarray(problem.seconds_price * seconds + problem.joules_price * joules)


def _children(sets: Bools, value: Floats, rng: np.random.Generator, crossover: float, mutations: float) -> Bools:
    """Return one set fewer than there are, each of parents that won tournaments of two."""
    population, K = sets.shape
    pairs = rng.integers(population, size=(2, 2, population - 1))  # of rivals, for both parents
    first, second = np.where(value[pairs[:, 0]] <= value[pairs[:, 1]], pairs[:, 0], pairs[:, 1])
    from_second = rng.random((population - 1, K)) < 0.5
    from_second &= rng.random((population - 1, 1)) < crossover
    children = np.where(from_second, sets[second], sets[first])
    return np.asarray(children ^ (rng.random(children.shape) < mutations / K))


def _check(
    K: int,
    divergence: Floats | None,
    max_divergence: float | None,
    population: int,
    generations: int,
    crossover: float,
    mutations: float,
    penalty: float | None,
    frequency: str,
) -> None:
    if (divergence is None) != (max_divergence is None):
        raise ConfigError("divergence and max_divergence must be given together.")
    if divergence is not None and np.shape(divergence) != (K,):
        raise ConfigError(f"divergence must hold one number for each of the {K} clients; got {np.shape(divergence)}.")
    for name, value, low, high in (
        ("population", population, 2, np.inf),
        ("generations", generations, 0, np.inf),
        ("crossover", crossover, 0, 1),
        ("mutations", mutations, 0, K),
    ):
        if not low <= value <= high:
            raise ConfigError(f"{name} must be from {low} to {high}; got {value!r}.")
    if penalty is not None and not 0 < penalty < np.inf:
        raise ConfigError(f"penalty must be positive and finite; got {penalty!r}.")
    if frequency not in get_args(Frequency):
        raise ConfigError(
            f"frequency must be 'own' or 'maximum'; got {frequency!r}." + nearest(str(frequency), get_args(Frequency))
        )


def penalty_terms(
    sets: Bools, divergence: Floats, max_divergence: float, num_examples: Ints, min_examples: int
) -> tuple[Floats, Floats]:
    """Return c1, how far the chosen clients are beyond the divergence, and c2, how many examples are missing.

    c1 = sum_k max(0, a_k (D_k - e1)) and c2 = max(0, e2 - sum_k a_k d_k), of each of p sets (p, K).

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", eq. 61, set
    right: see `printed_penalty_terms`.

    Example:
        >>> D, d = np.array([0.1, 0.35, 0.15, 0.6]), np.array([700, 650, 900, 400])
        >>> c1, c2 = penalty_terms(np.array([[True, True, False, False]]), D, 0.2, d, 2000)
        >>> c1.round(2), c2
        (array([0.15]), array([650.]))
    """
    inside = sets.astype(np.float64)
    beyond = inside @ np.maximum(divergence - max_divergence, 0.0)
    return beyond, np.maximum(min_examples - inside @ num_examples, 0.0)


def printed_penalty_terms(
    sets: Bools, divergence: Floats, max_divergence: float, num_examples: Ints, min_examples: int
) -> tuple[Floats, Floats]:
    """Return c1 and c2 as the paper prints them; for comparison only.

    c1 = max(0, sum_k (a_k D_k - e1)) is nearly always 0, as each client left out counts -e1; and
    c2 = max(0, sum_k a_k d_k - 1 / e2) grows with the examples that a set holds.

    Example:
        >>> D, d = np.array([0.1, 0.35, 0.15, 0.6]), np.array([700, 650, 900, 400])
        >>> printed_penalty_terms(np.array([[True, True, False, False]]), D, 0.2, d, 2000)
        (array([0.]), array([1349.9995]))
    """
    inside = sets.astype(np.float64)
    c1 = np.maximum(inside @ divergence - len(divergence) * max_divergence, 0.0)
    return c1, np.maximum(inside @ num_examples - 1 / min_examples, 0.0)
