"""Clients add whole-number Laplace noise to their label counts."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedreach.arrays import Bools, Floats, Ints
from fedreach.errors import require
from fedreach.federation.labels.accounting import EPSILON, loss_distributions, spent_epsilon
from fedreach.federation.labels.counts import are_counts

FURTHEST = 100.0
"""-log of the probability of noise that no client ever drew; uniform numbers of 53 bits make it 45 at most."""


@dataclass(frozen=True)
class DiscreteLaplace:
    """The server sees label counts with noise that hides any single example: epsilon-differential privacy.

    To each count a client adds a whole number x with probability proportional to exp(-epsilon |x| / 2), whose variance
    is about 8 / epsilon^2, once, before round 1.

    What is hidden: whether one example of a client was another one instead. That changes two of the client's counts by
    1 (an L1 distance of 2); its number of examples is public in FedReach. What the server sees is at most exp(epsilon)
    times as probable with the one as with the other (but for events of probability 1e-15: uniform numbers have 53
    bits). Clients share no examples, so this holds for each of them whatever the others tell. It is about the counts
    only, not about the updates that clients send later. And in a simulation the noise follows from the seed of the
    run, which must stay unknown to whom it shall deceive.

    When: label counts shall be private by themselves, with one number to argue about.

    Args:
        epsilon: At least 0.001. Small is private; 1 gives noise of about 3 examples a class.

    Raises:
        ConfigError: If `epsilon` is outside its range.

    Reference: Ghosh, Roughgarden and Sundararajan, "Universally Utility-Maximizing Privacy Mechanisms", STOC 2009.

    Example:
        >>> rng = np.random.Generator(np.random.Philox(0))
        >>> DiscreteLaplace(epsilon=1.0).release(np.array([[30, 10, 0]]), rng)
        array([[30., 3., 1.]])
    """

    only_sum: ClassVar[bool] = False

    epsilon: float

    def __post_init__(self) -> None:
        require(self, epsilon=EPSILON)

    def release(self, counts: Ints, rng: np.random.Generator) -> Floats:
        """Return the (n, c) noised counts; those below 0 are 0, which anybody can do who sees them."""
        # The difference of two geometric numbers; both begin at 1, which cancels.
        success = -np.expm1(-self.epsilon / 2)
        noise = rng.geometric(success, counts.shape) - rng.geometric(success, counts.shape)
        return np.maximum(counts + noise, 0).astype(np.float64)

    def possible(self, counts: Floats, sizes: Ints) -> Bools:
        """Return which of (n, c) counts are whole and at most what noise of probability e^-100 makes of all examples.

        A sum says nothing: counts below 0 became 0.
        """
        furthest = FURTHEST / (self.epsilon / 2) + 1
        return are_counts(counts) & (counts <= sizes[:, None] + furthest).all(axis=1)

    def spent(self) -> tuple[float, float]:
        """Return (epsilon, 0), worked out by dp_accounting from the distribution of the noise.

        Raises:
            ConfigError: If dp_accounting is not installed (the extra `privacy`).
        """
        a = self.epsilon / 2
        grid = a / 1000 * (1 + 1e-12)  # to which losses are rounded up: that of one count, a, by next to nothing
        one = loss_distributions().from_discrete_laplace_mechanism(a, value_discretization_interval=grid)
        return spent_epsilon(one, 0.0), 0.0
