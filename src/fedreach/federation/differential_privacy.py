"""Aggregators with differential privacy of whole clients: clipped updates and Gaussian noise at the server.

A client that joins or leaves changes the sum of the clipped updates by at most the clipping norm. The server adds noise
in proportion to this norm and divides by the expected cohort size, which does not depend on the clients of the round.
With secure aggregation, the clients do both. `fedreach.federation.accounting` computes the noise and the guarantee.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from fedreach._util.arrays import Float32s, Floats, weighted_sum
from fedreach._util.errors import ComponentError, ConfigError
from fedreach._util.streams import generator
from fedreach.federation.base import Aggregator
from fedreach.federation.robust import UpdateRows
from fedreach.federation.secure_aggregation import NO_SUM, Words
from fedreach.federation.types import State


@dataclass(frozen=True)
class PrivateAggregator(Aggregator):
    """Base class of aggregators with (epsilon, delta)-differential privacy of clients; `DPFedAvg` has the options.

    Before round 1, the state contains `noise_multiplier` and `cohort_size`, one number each. Without them, as in checks
    of components, the noise multiplier is 1 unless it is set, and the cohort is the replies.
    """

    ignores_weights = True

    clip: Annotated[float, "(0, inf)"]
    delta: Annotated[float, "(0, 1)"]
    epsilon: Annotated[float | None, "(0, 1000]"] = None
    noise_multiplier: Annotated[float | None, "(0, inf)"] = None
    accountant: Literal["pld", "rdp"] = "pld"
    adaptation_noise: Annotated[float | None, "(0, inf)"] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon is not None and self.adaptation_noise is not None:
            raise ConfigError(
                f"{type(self).__name__}.adaptation_noise is computed from `epsilon`; got {self.adaptation_noise}. "
                "Remove it, or set `noise_multiplier` instead of `epsilon`."
            )
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ConfigError(
                f"{type(self).__name__} must have either `epsilon` or `noise_multiplier`; got "
                f"{self.epsilon} and {self.noise_multiplier}. Set one of them."
            )

    def check_noise(self, noise_multiplier: float, cohort_size: int) -> None:
        """Raise ConfigError if the aggregator cannot have this noise multiplier with this cohort size."""

    def _number(self, state: State, name: str, default: float) -> float:
        return float(state[name][0]) if name in state else default

    def _noise_multiplier(self, state: State) -> float:
        return self._number(state, "noise_multiplier", self.noise_multiplier or 1.0)


def lengths_of(update: Float32s) -> Floats:
    """Return the (r,) Euclidean lengths of updates.

    Example:
        >>> lengths_of(np.array([[3, 4], [0, 0]], np.float32))
        array([5., 0.])
    """
    squares: Any = sum((block**2).sum(axis=1) for _, block in UpdateRows(update).blocks())
    lengths: Floats = np.sqrt(squares)
    return lengths


def clipped_sum(update: Float32s, lengths: Floats, clip: float) -> Floats:
    """Return the (d,) sum of the updates, each shortened to at most `clip`.

    Example:
        >>> update = np.array([[3, 4], [0, 1]], np.float32)
        >>> clipped_sum(update, lengths_of(update), 1.0)
        array([0.6, 1.8])
    """
    return weighted_sum(np.minimum(1, clip / np.maximum(lengths, np.finfo(float).tiny)), update)


# -------------------- Independent noise in each round


SECURE_NOISE = (1e-4, 1e4)
"""Smallest and largest noise multiplier with secure aggregation.

The noise of each of up to 2^20 clients is then at least 100 units, and the sum of their words stays below 2^62.
"""


@dataclass(frozen=True)
class DPFedAvg(PrivateAggregator):
    """DP-FedAvg (McMahan et al., 2018): mean of clipped updates with Gaussian noise that is new in each round.

    With the updates u_i of the clients of a round, the clipping norm C, the noise multiplier z and the expected cohort
    size m::

        v = (1/m) (sum_i u_i min(1, C / ||u_i||) + z C N(0, I))

    m is constant: `cohort_size` for the selections `poisson`, `uniform` and `least_often`, all participants for `full`.
    A round without replies has the same noise. All models of the run together are (epsilon, delta)-differentially
    private for each client with all its data, together with the adaptation rule. Losses, scores and the choice of the
    best round are not covered. See "Differential privacy" on the security page.

    With `quantile`, the clipping norm follows this quantile of the lengths. With the noisy share b of updates that are
    not clipped, C <- C exp(-clip_rate (b - quantile)). The noise of the count has standard deviation `count_noise`. So
    that both together have the noise multiplier z, the noise of the updates is (z^-2 - (2 count_noise)^-2)^(-1/2) C.

    With secure aggregation, each client clips its update and adds its part of the noise, see `noisy_share`. A second
    guarantee then covers the sums that the server sees. The clipping norm is constant.

    Use when: the model must not reveal whether a client participated. Use secure aggregation if the server must not
    learn it from single updates either. The noise of the mean decreases with the cohort size, so use hundreds of
    clients in a round.

    Args:
        clip: Clipping norm C, positive; with `quantile`, its initial value. Choose about the median length of updates.
        delta: Delta of the guarantee, in (0, 1). Choose it far below 1 / number of participants.
        epsilon: Epsilon of the guarantee after all rounds and the fit of the adaptation rule. FedReach computes the
            noise multipliers before round 1.
        noise_multiplier: Noise multiplier z, instead of `epsilon`.
        accountant: ``"pld"``, or ``"rdp"``, with a larger epsilon. The selection `uniform` always uses ``"rdp"``.
        adaptation_noise: Noise multiplier of the sums to which an adaptation rule is fitted, with `noise_multiplier`.
            With `epsilon`, FedReach computes it so that the fit alone would spend a quarter of epsilon.
        quantile: Target share of updates that are not clipped, in (0, 1). None: constant clipping norm.
        clip_rate: Learning rate of the clipping norm, positive.
        count_noise: Standard deviation of the noise of the count, above z / 2. None: cohort size / 20, as in the paper.

    Raises:
        ConfigError: If a value is out of range, or if not exactly one of `epsilon` and `noise_multiplier` is set.

    Reference: McMahan, Ramage, Talwar and Zhang, "Learning Differentially Private Recurrent Language Models", ICLR
    2018, Algorithm 1 with the estimator f_f and equal weights. Andrew, Thakkar, McMahan and Ramaswamy,
    "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021, Algorithm 1 and Theorem 1.

    Example:
        >>> update = np.array([[1], [1], [100]], np.float32)
        >>> rule = DPFedAvg(clip=2.0, delta=1e-5, noise_multiplier=1e-9)  # next to no noise: (1 + 1 + 2) / 3
        >>> rule.combine({}, np.full(3, 1 / 3), update, np.random.default_rng(0))[0].round(3)
        array([1.333])
    """

    quantile: Annotated[float | None, "(0, 1)"] = None
    clip_rate: Annotated[float, "(0, inf)"] = 0.2
    count_noise: Annotated[float | None, "(0, inf)"] = None

    def check_noise(self, noise_multiplier: float, cohort_size: int) -> None:
        if self.quantile is not None and noise_multiplier >= 2 * self._count_noise(cohort_size):
            raise ConfigError(
                f"DPFedAvg.count_noise must be above noise_multiplier / 2 = {noise_multiplier / 2:.4g}; got "
                f"{self._count_noise(cohort_size):.4g}. Raise count_noise or the cohort size, or remove `quantile`."
            )

    def _count_noise(self, cohort_size: float) -> float:
        return cohort_size / 20 if self.count_noise is None else self.count_noise

    def combine(
        self, state: State, weights: Floats, update: Float32s, rng: np.random.Generator
    ) -> tuple[Floats, State]:
        noise, clip = self._noise_multiplier(state), self._number(state, "clip", self.clip)
        cohort_size, lengths = self._number(state, "cohort_size", len(update)), lengths_of(update)
        if self.quantile is not None:
            count_noise = self._count_noise(cohort_size)
            noise = (noise**-2 - (2 * count_noise) ** -2) ** -0.5
            # A client adds 1/2 or -1/2, so that it changes the count by 1/2 only.
            excess = np.count_nonzero(lengths <= clip) - len(lengths) / 2 + count_noise * rng.standard_normal()
            change = math.exp(-self.clip_rate * (excess / cohort_size + 0.5 - self.quantile))
            state = {**state, "clip": np.array([clip * change])}
        total = clipped_sum(update, lengths, clip) + noise * clip * rng.standard_normal(update.shape[1])
        return total / cohort_size, state

    # ---- With secure aggregation

    @property
    def unit(self) -> float:
        """Unit of the numbers in a sum of secure aggregation, the largest power of two up to C / 2^30."""
        return math.ldexp(1.0, math.frexp(self.clip)[1] - 31)

    def noisy_share(self, state: State, update: Float32s, clients: int, rng: np.random.Generator) -> Words:
        """Return a client's contribution to the sum: its clipped update with its part of the noise, as (d,) words.

        In units of `unit`, with the n clients of the cohort::

            q_i = round(u_i min(1, (C - sqrt(d) / 2) / ||u_i||)),   share_i = q_i + round(N(0, z^2 C^2 / n I))

        Rounding changes a length by at most sqrt(d) / 2, so q_i is at most C long. The sum of k shares is a function of
        the Gaussian mechanism sum_i q_i + N(0, k z^2 C^2 / n I), so its accounting holds: let s be the standard
        deviation of a client's noise, and U_i uniform on (-1/2, 1/2). round(N) has the probabilities that N + U has as
        densities at whole numbers. By Poisson's summation formula, its characteristic function is the sum over m of
        f(t + 2 pi m), where f belongs to N + U. f is below exp(-pi^2 s^2 / 2) where |t| > pi. So up to such terms, the
        sum of k rounded numbers is distributed as round(N_1 + ... + N_k + U_1 + ... + U_(k-1)). s is at least 100
        units, see `SECURE_NOISE`, so these terms are below 10^-20000.

        Args:
            update: (d,) update of the client.
            clients: Number n of clients in the cohort.
            rng: Generator that only the client knows.

        Raises:
            ComponentError: If the update is not finite.

        Example:
            >>> rule = DPFedAvg(clip=1.0, delta=1e-5, noise_multiplier=1e-4)  # next to no noise: (3, 4) / 5
            >>> words = rule.noisy_share({}, np.array([3, 4], np.float32), 100, np.random.default_rng(0))
            >>> (words.view(np.int64) * rule.unit).round(3)
            array([0.6, 0.8])
        """
        numbers = update.astype(np.float64) / self.unit
        if not np.isfinite(numbers).all():
            raise ComponentError("Under secure aggregation, an update must be finite. Lower local.lr.")
        limit = self.clip / self.unit - math.sqrt(len(numbers)) / 2  # positive, since C is at least 2^30 units
        clipped = np.rint(numbers * (limit / max(float(np.linalg.norm(numbers)), limit)))
        noise = self._noise_multiplier(state) * self.clip / self.unit / math.sqrt(clients)
        noisy = clipped + np.rint(noise * rng.standard_normal(len(numbers)))
        return np.asarray(noisy.astype(np.int64).view(np.uint64))

    def mean_of_shares(self, state: State, total: Words, replied: int, clients: int) -> Floats:
        """Return the (d,) sum of the shares of `replied` of the `clients` clients, divided by the expected cohort size.

        Raises:
            ComponentError: If valid shares cannot have this sum.
        """
        numbers = total.view(np.int64).astype(np.float64)
        largest = 2.0**31 * (1 + 40 * self._noise_multiplier(state) / math.sqrt(clients))  # of a share
        if np.abs(numbers).max(initial=0) > replied * largest:
            raise ComponentError(NO_SUM)
        return np.asarray(numbers * (self.unit / self._number(state, "cohort_size", clients)))

    def missing_noise(self, state: State, replied: int, clients: int, d: int, rng: np.random.Generator) -> Floats:
        """Return the (d,) noise that the server adds to the mean for clients of the cohort that did not reply.

        With it, the models have the noise z C in each round, also if a sum is lost or nobody was asked. Otherwise the
        amount of noise would show how many clients were in the cohort, and sampling would hide no client.
        """
        missing = 1 - replied / clients if clients else 1.0
        noise = self._noise_multiplier(state) * self.clip / self.unit * math.sqrt(missing)
        scale = self.unit / self._number(state, "cohort_size", max(clients, 1))
        return np.asarray(np.rint(noise * rng.standard_normal(d)) * scale)


# -------------------- Noise of a binary tree over the rounds


@dataclass(frozen=True)
class DPFTRL(PrivateAggregator):
    """DP-FTRL (Kairouz et al., 2021): mean of clipped updates with the noise of a binary tree over the rounds.

    The server draws noise z C N(0, I) for each node of a binary tree whose leaves are the rounds. The sum of the
    clipped updates of rounds 1 to t has the noise of the nodes that cover these rounds, one per binary digit 1 of t. A
    round adds the difference to the noise of the previous round. So the noise of the model grows with log t instead of
    t, and no client needs to be sampled at random. With the server `average`, this is DP-FTRL without restarts.
    `DPFedAvg` explains the guarantee and the options.

    Use when: cohorts cannot be sampled at random, because clients decide when they are available. Use the selection
    `least_often` with `max_participations` and a large `min_gap`, which reduces the noise.

    Args:
        clip: Clipping norm C, positive.
        delta: Delta of the guarantee, in (0, 1).
        epsilon: Epsilon of the guarantee after all rounds. FedReach computes the noise multiplier before round 1.
        noise_multiplier: Noise multiplier z of a node, instead of `epsilon`.
        accountant: ``"pld"``, or ``"rdp"``, with a larger epsilon.
        adaptation_noise: Option of `DPFedAvg`.

    Raises:
        ConfigError: If a value is out of range, or if not exactly one of `epsilon` and `noise_multiplier` is set.

    Reference: Kairouz, McMahan, Song, Thakkar, Thakurta and Xu, "Practical and Private (Deep) Learning without Sampling
    or Shuffling", ICML 2021, Algorithm 1 and appendix D.1, without the variance reduction of appendix B.

    Example:
        >>> rule = DPFTRL(clip=2.0, delta=1e-5, noise_multiplier=1e-9)  # next to no noise
        >>> rule.combine({}, np.ones(2) / 2, np.array([[1], [100]], np.float32), np.random.default_rng(0))[0].round(3)
        array([1.5])
    """

    def combine(
        self, state: State, weights: Floats, update: Float32s, rng: np.random.Generator
    ) -> tuple[Floats, State]:
        key = state["key"] if "key" in state else rng.integers(256, size=16, dtype=np.uint8)
        t = 1 + int(self._number(state, "leaves", 0))
        total = clipped_sum(update, lengths_of(update), self.clip)
        total += self._noise_multiplier(state) * self.clip * tree_noise(int.from_bytes(key.tobytes()), t, len(total))
        cohort_size = self._number(state, "cohort_size", len(update))
        return total / cohort_size, {**state, "key": key, "leaves": np.array([t])}


def tree_noise(key: int, t: int, d: int) -> Floats:
    """Return the (d,) difference between the noise of the first t leaves of the tree and that of the first t - 1.

    Node i of level l covers the leaves i 2^l - 2^l + 1 to i 2^l. With t = i 2^m and odd i, leaf t completes a node of
    level m, which replaces m smaller nodes.

    Example:
        >>> prefix = sum(tree_noise(7, t, 3) for t in range(1, 9))  # 8 leaves: one node
        >>> bool(np.allclose(prefix, generator(7, "tree", 3, 1).standard_normal(3)))
        True
    """

    def node(level: int, index: int) -> Floats:
        return generator(key, "tree", level, index).standard_normal(d)

    m = (t & -t).bit_length() - 1
    noise = node(m, t >> m)
    for level in range(m):
        noise -= node(level, (t - 1) >> level)
    return noise


def tree_sensitivity(rounds: int, participations: int, gap: int = 1) -> float:
    """Return the largest change of all nodes of the tree by a client, in units of the clipping norm.

    A node of level l covers 2^l rounds, in which a client participates at most ceil(2^l / gap) times. So c_v
    participations of the client change node v by at most c_v, where the c_v of a level sum to at most `participations`.
    The result is an upper bound of the root of sum_v c_v^2. For one participation it is the root of the number of
    levels.

    Args:
        rounds: Number of rounds.
        participations: Largest number of participations of the client.
        gap: Smallest number of rounds from one participation to the next.

    Example:
        >>> tree_sensitivity(4, 3) ** 2, tree_sensitivity(4, 2, gap=2) ** 2  # levels 3 + (4 + 1) + 9; 2 + 2 + 4
        (17.0, 8.000000000000002)
    """
    squares = 0
    for level in range(rounds.bit_length()):
        highest = min(-(-(2**level) // gap), participations)
        full, remainder = divmod(min(participations, rounds), highest)
        squares += full * highest**2 + remainder**2
    return math.sqrt(squares)
