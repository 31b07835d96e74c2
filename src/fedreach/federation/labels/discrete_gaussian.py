"""Clients add whole-number Gaussian noise to their label counts."""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from fedreach.arrays import Bools, Floats, Ints
from fedreach.errors import require
from fedreach.federation.labels.accounting import EPSILON, loss_distributions, spent_epsilon
from fedreach.federation.labels.counts import are_counts


@dataclass(frozen=True)
class DiscreteGaussian:
    """The server sees label counts with noise that hides any single example: (epsilon, delta)-differential privacy.

    To each count a client adds a whole number x with probability proportional to exp(-x^2 / (2 sigma^2)), once, before
    round 1; sigma is the smallest that will do, see `deviation`. Its tails are shorter than those of `DiscreteLaplace`.

    What is hidden: whether one example of a client was another one instead. That changes two of the client's counts by
    1 (an L2 distance of sqrt 2); its number of examples is public in FedReach. Any set of answers has at most
    exp(epsilon) times the probability with the one that it has with the other, plus delta. What `DiscreteLaplace` says
    of other clients, of updates and of the seed holds here, too.

    When: as `discrete_laplace`, with less noise on many classes, at the price of delta.

    Args:
        epsilon: At least 0.001.
        delta: At least 1e-12 and below 1; should be far below one over the number of examples.

    Raises:
        ConfigError: If an option is outside its range.

    Reference: Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020.

    Example:
        >>> round(DiscreteGaussian(epsilon=1.0, delta=1e-5).deviation, 3)
        5.275
    """

    only_sum: ClassVar[bool] = False

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        require(self, epsilon=EPSILON, delta="[1e-12, 1)")

    @property
    def deviation(self) -> float:
        """sigma, in examples."""
        return smallest_deviation(self.epsilon, self.delta)

    def release(self, counts: Ints, rng: np.random.Generator) -> Floats:
        """Return the (n, c) noised counts; those below 0 are 0, which anybody can do who sees them."""
        noise = discrete_gaussian(self.deviation, counts.size, rng).reshape(counts.shape)
        return np.asarray(np.maximum(counts + noise, 0).astype(np.float64))

    def possible(self, counts: Floats, sizes: Ints) -> Bools:
        """Return which of (n, c) counts are whole and at most twenty deviations above the number of all examples.

        Such noise has probability e^-200. A sum says nothing: counts below 0 became 0.
        """
        furthest = 20 * self.deviation + 1
        return are_counts(counts) & (counts <= sizes[:, None] + furthest).all(axis=1)

    def spent(self) -> tuple[float, float]:
        """Return (epsilon, delta), the former worked out by dp_accounting from the distribution of the noise.

        Its losses are rounded up to a grid, so epsilon may come out larger than the option by about one part in 1000.

        Raises:
            ConfigError: If dp_accounting is not installed (the extra `privacy`).
        """
        one = loss_distributions().from_discrete_gaussian_mechanism(
            self.deviation, value_discretization_interval=self.epsilon / 2000
        )
        return spent_epsilon(one, self.delta), self.delta


def discrete_gaussian(deviation: float, count: int, rng: np.random.Generator) -> Ints:
    """Draw `count` whole numbers x with probability proportional to exp(-x^2 / (2 sigma^2)), sigma the deviation.

    By rejection: y with probability proportional to exp(-|y| / t), t = floor(sigma) + 1, is kept with probability
    exp(-(|y| - sigma^2 / t)^2 / (2 sigma^2)). Exact but for the 53 bits of a uniform number, where Canonne et al. use
    fractions throughout.

    Reference: Canonne, Kamath and Steinke 2020, Algorithm 3.
    """
    t = np.floor(deviation) + 1
    success = -np.expm1(-1 / t)
    found = np.empty(0, np.int64)
    while len(found) < count:
        need = 2 * (count - len(found)) + 10
        y = rng.geometric(success, need) - rng.geometric(success, need)
        kept = rng.random(need) < np.exp(-((np.abs(y) - deviation**2 / t) ** 2) / (2 * deviation**2))
        found = np.concatenate([found, y[kept]])
    return found[:count]


def exceeding(epsilon: float, deviation: float) -> float:
    """Return the smallest delta for which noise of this deviation is (epsilon, delta)-private.

    delta = sum_d max(0, R(d) - e^epsilon R(d - 2)), where R(d) is the probability that the noises of the two counts
    that change differ by d; the ratio R(d) / R(d - 2) is exp((1 - d) / sigma^2). As x^2 + (x - d)^2 =
    2 (x - d/2)^2 + d^2 / 2, R(d) is exp(-d^2 / (4 sigma^2)) times one factor for even and another for odd d.

    Example:
        >>> round(exceeding(1.0, deviation=1.0), 6), round(exceeding(1.0, deviation=3.0), 6)
        (0.2625, 0.004489)
    """
    reach = int(40 * deviation) + 10
    x = np.arange(-reach, reach + 1)
    normal = np.exp(-(x**2) / (2 * deviation**2)).sum() ** 2
    even, odd = (np.exp(-((x + shift) ** 2) / deviation**2).sum() for shift in (0.0, 0.5))
    difference = np.exp(-(x**2) / (4 * deviation**2)) * np.where(x % 2 == 0, even, odd) / normal
    excess = np.maximum((1 - x) / deviation**2 - epsilon, 0)
    return float((difference * -np.expm1(-excess)).sum())


@cache
def smallest_deviation(epsilon: float, delta: float) -> float:
    """Return the smallest sigma, to 9 digits and rounded up, that is (epsilon, delta)-private; see `exceeding`."""
    low, high = 0.0, 1.0
    while exceeding(epsilon, high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if exceeding(epsilon, middle) <= delta else (middle, high)
    return high
