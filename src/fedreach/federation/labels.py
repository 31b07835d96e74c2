"""Label statistics: what the server learns of clients' labels."""

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
    """Return (n,) entropies in nats of (n, c) label counts, which may be noised.

    Counts below 0 count as 0. A client of whose counts the noise left nothing gets ln c, the entropy of a uniform mix:
    nothing is known of it. Where counts are nan (not released), so is the entropy.

    Example:
        >>> released_entropy(np.array([[3.0, 3.0, -2.0], [0.0, 7.0, 0.0], [0.0, 0.0, 0.0]])).round(4)
        array([0.6931, 0.    , 1.0986])
    """
    positive = np.maximum(counts, 0)
    return np.where((positive == 0).all(axis=1), np.log(counts.shape[1]), label_entropy(positive))


# -------------------- Exact counts


@dataclass(frozen=True)
class Exact(LabelStatistics):
    """Exact label counts, if a component asks for them.

    Whatever is chosen here, the server knows how many examples each client has: sizes are public in FedReach.

    When: the server may know label counts, and for simulations in which nothing is asked of privacy.

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
    """Base of label statistics with noise that is added once, before round 1; write `noise`."""

    only_sum = False

    @abstractmethod
    def noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> Ints:
        """Return whole numbers of this shape."""

    def release(self, counts: Ints, rng: np.random.Generator) -> Floats:
        """Return the (n, c) noised counts; those below 0 are 0, which anybody can do who sees them."""
        return np.asarray(np.maximum(counts + self.noise(counts.shape, rng), 0), np.float64)


# -------------------- Discrete Gaussian noise


@dataclass(frozen=True)
class DiscreteGaussian(Noised):
    """Label counts with discrete Gaussian noise: (epsilon, delta)-differential privacy of single examples.

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

    epsilon: Annotated[float, EPSILON]
    delta: Annotated[float, "[1e-12, 1)"]

    @property
    def deviation(self) -> float:
        """sigma, in examples."""
        return smallest_deviation(self.epsilon, self.delta)

    def noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> Ints:
        return discrete_gaussian(self.deviation, math.prod(shape), rng).reshape(shape)


def discrete_gaussian(deviation: float, count: int, rng: np.random.Generator) -> Ints:
    """Draw `count` whole numbers x with probability proportional to exp(-x^2 / (2 sigma^2)), sigma the deviation.

    By rejection: y with probability proportional to exp(-|y| / t), t = floor(sigma) + 1, is kept with probability
    exp(-(|y| - sigma^2 / t)^2 / (2 sigma^2)). Exact but for the 53 bits of a uniform number, where Canonne et al. use
    fractions throughout.

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
    """Return the smallest delta for which noise of this deviation is (epsilon, delta)-private.

    delta = sum_d max(0, R(d) - e^epsilon R(d - 2)), where R(d) is the probability that the noises of the two counts
    that change differ by d; the ratio R(d) / R(d - 2) is exp((1 - d) / sigma^2). As x^2 + (x - d)^2 =
    2 (x - d/2)^2 + d^2 / 2, R(d) is exp(-d^2 / (4 sigma^2)) times one factor for even and another for odd d.

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
    """Return the smallest sigma, to 9 digits and rounded up, that is (epsilon, delta)-private; see `delta_of_noise`."""
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

    To each count a client adds a whole number x with probability proportional to exp(-epsilon |x| / 2), whose variance
    is about 8 / epsilon^2, once, before round 1.

    What is hidden: whether one example of a client was another one instead. That changes two of the client's counts by
    1 (an L1 distance of 2); its number of examples is public in FedReach. What the server sees is at most exp(epsilon)
    times as probable with the one as with the other (but for events of probability 1e-15: uniform numbers have 53
    bits). Clients share no examples, so this holds for each of them whatever the others send. It covers the counts
    only, not about the updates that clients send later. And in a simulation the noise follows from the seed of the
    run, which an attacker must not know.

    When: label counts must be private by themselves, with one number to argue about.

    Args:
        epsilon: At least 0.001. Small is private; 1 gives noise of about 3 examples per class.

    Raises:
        ConfigError: If `epsilon` is outside its range.

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
