"""Label statistics, which determine what the server learns about the labels of clients."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import numpy as np

from fedreach._util.arrays import Floats, Ints
from fedreach.data.assignment import label_entropy
from fedreach.federation.base import LabelStatistics
from fedreach.federation.secure_aggregation import SecureAggregation as SecureAggregation

# -------------------- Label entropies from released counts


def released_entropy(counts: Floats) -> Floats:
    """Return (n,) entropies in nats of (n, c) label counts, which may be noisy.

    Negative counts are treated as 0. Without positive counts, the entropy is ln c, as for uniform labels. For counts of
    nan (not released), the entropy is nan.

    Example:
        >>> released_entropy(np.array([[3.0, 3.0, -2.0], [0.0, 7.0, 0.0], [0.0, 0.0, 0.0]])).round(4)
        array([0.6931, 0.    , 1.0986])
    """
    positive = np.maximum(counts, 0)
    return np.where((positive == 0).all(axis=1), np.log(counts.shape[1]), label_entropy(positive))


# -------------------- Exact counts


@dataclass(frozen=True)
class Exact(LabelStatistics):
    """Exact label counts, if a component needs them.

    The server always knows each client's number of examples, because it is public in FedReach.

    Use when: the server may know label counts, as in simulations without privacy requirements.

    Example:
        >>> Exact().release(np.array([[3, 0]]), np.random.Generator(np.random.Philox(0)))
        array([[3., 0.]])
    """

    only_sum = False

    def release(self, counts: Ints, rng: np.random.Generator) -> Floats:
        return counts.astype(np.float64)


EPSILON = "[0.001, inf)"  # at 0.001 the noise is that of thousands of examples

# -------------------- Noise that each client adds to its counts


class Noised(LabelStatistics):
    """Base class of label statistics with noise that each client adds once, before round 1; implement `noise`."""

    only_sum = False
    adds_noise = True

    @abstractmethod
    def noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> Ints:
        """Return noise of this shape, in whole numbers."""

    def release(self, counts: Ints, rng: np.random.Generator) -> Floats:
        """Return the (n, c) noisy counts, where 0 replaces negative counts; this does not reduce privacy."""
        return np.asarray(np.maximum(counts + self.noise(counts.shape, rng), 0), np.float64)


# -------------------- Discrete Gaussian noise


@dataclass(frozen=True)
class DiscreteGaussian(Noised):
    """Label counts with discrete Gaussian noise: (epsilon, delta)-differential privacy of single examples.

    Before round 1, a client adds to each count an integer x with probability proportional to exp(-x^2 / (2 sigma^2)).
    sigma is the smallest sufficient value, see `deviation`. The tails are lighter than those of `DiscreteLaplace`.

    Neighboring data sets differ in the label of one example, which changes two counts by 1 (L2 distance sqrt 2). The
    number of examples is public. For any set of outputs S, P(S) <= exp(epsilon) P'(S) + delta. The guarantee does not
    cover updates. In a simulation the noise depends on the seed, see `DiscreteLaplace`.

    Use when: the reasons for `discrete_laplace` apply, and you accept a delta above 0 to reduce the noise for many
    classes.

    Args:
        epsilon: Privacy parameter, at least 0.001.
        delta: Privacy parameter, at least 1e-12 and below 1. Choose delta far below 1 / number of examples.

    Raises:
        ConfigError: If an option is out of range.

    Reference: Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020.

    Example:
        >>> round(DiscreteGaussian(epsilon=1.0, delta=1e-5).deviation, 3)
        5.275
    """

    epsilon: Annotated[float, EPSILON]
    delta: Annotated[float, "[1e-12, 1)"]

    @property
    def deviation(self) -> float:
        """Standard deviation parameter sigma of the noise, in examples."""
        return smallest_deviation(self.epsilon, self.delta)

    def noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> Ints:
        return discrete_gaussian(self.deviation, math.prod(shape), rng).reshape(shape)


def discrete_gaussian(deviation: float, count: int, rng: np.random.Generator) -> Ints:
    """Draw `count` integers x with probability proportional to exp(-x^2 / (2 sigma^2)), where sigma is `deviation`.

    The function uses rejection sampling. It draws y with probability proportional to exp(-|y| / t), t = floor(sigma) +
    1, and accepts y with probability exp(-(|y| - sigma^2 / t)^2 / (2 sigma^2)). The result is exact up to the 53 bits
    of a uniform number. Canonne et al. use fractions instead.

    Reference: Canonne, Kamath and Steinke 2020, Algorithm 3.
    """
    t = np.floor(deviation) + 1
    success = -np.expm1(-1 / t)
    numbers = np.empty(0, np.int64)
    while len(numbers) < count:
        need = 2 * (count - len(numbers)) + 10
        y = rng.geometric(success, need) - rng.geometric(success, need)
        accepted = rng.random(need) < np.exp(-((np.abs(y) - deviation**2 / t) ** 2) / (2 * deviation**2))
        numbers = np.concatenate([numbers, y[accepted]])
    return numbers[:count]


def delta_of_noise(epsilon: float, deviation: float) -> float:
    """Return the smallest delta for which noise with this deviation is (epsilon, delta)-private.

    delta = sum_d max(0, R(d) - e^epsilon R(d - 2)), where R(d) is the probability that the noises of the two changed
    counts differ by d. The ratio R(d) / R(d - 2) is exp((1 - d) / sigma^2). As x^2 + (x - d)^2 = 2 (x - d/2)^2 +
    d^2 / 2, R(d) is exp(-d^2 / (4 sigma^2)) times a factor that depends only on whether d is even or odd.

    Example:
        >>> round(delta_of_noise(1.0, deviation=1.0), 6), round(delta_of_noise(1.0, deviation=3.0), 6)
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
    """Return the smallest (epsilon, delta)-private sigma, rounded up at the 9th digit; see `delta_of_noise`."""
    low, high = 0.0, 1.0
    while delta_of_noise(epsilon, high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if delta_of_noise(epsilon, middle) <= delta else (middle, high)
    return high


# -------------------- Discrete Laplace noise


@dataclass(frozen=True)
class DiscreteLaplace(Noised):
    """Label counts with discrete Laplace noise: epsilon-differential privacy of single examples.

    Before round 1, a client adds to each count an integer x with probability proportional to exp(-epsilon |x| / 2). The
    variance of x is about 8 / epsilon^2.

    Neighboring data sets differ in the label of one example, which changes two counts by 1 (L1 distance 2). The number
    of examples is public. Any output is at most exp(epsilon) times as probable for one data set as for a neighboring
    one, up to events of probability 1e-15. Clients share no examples, so this guarantee applies to each client
    independently. It covers counts, but not updates. In a simulation the noise depends on the seed of the run, which an
    attacker must not know.

    Use when: label counts must be private, with a single privacy parameter.

    Args:
        epsilon: Privacy parameter, at least 0.001; smaller values are more private. With 1, the noise is about 3
            examples per class.

    Raises:
        ConfigError: If `epsilon` is out of range.

    Reference: Ghosh, Roughgarden and Sundararajan, "Universally Utility-Maximizing Privacy Mechanisms", STOC 2009.

    Example:
        >>> rng = np.random.Generator(np.random.Philox(0))
        >>> DiscreteLaplace(epsilon=1.0).release(np.array([[30, 10, 0]]), rng)
        array([[30., 3., 1.]])
    """

    epsilon: Annotated[float, EPSILON]

    def noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> Ints:
        # The difference of two geometric numbers; both begin at 1, which cancels.
        success = -np.expm1(-self.epsilon / 2)
        return rng.geometric(success, shape) - rng.geometric(success, shape)


# -------------------- Table of label statistics

LABEL_STATISTICS: Mapping[str, Any] = {
    "exact": Exact,
    "discrete_laplace": DiscreteLaplace,
    "discrete_gaussian": DiscreteGaussian,
    "secure_aggregation": SecureAggregation,
}
