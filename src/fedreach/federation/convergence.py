"""Bounds on errors and convergence, and optimal settings, from the papers."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedreach._util.arrays import AnyArray, Floats, Ints
from fedreach._util.divergence import kl_divergence
from fedreach._util.errors import ConfigError, Count, NotNegative, Positive, Probability, Share, check, checked

# -------------------- Generalization bound of CSRA, printed and corrected
# Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks" (CSRA), Theorem 1.
#
# The generalization error l - l^ (loss on the distribution p_g of all clients minus loss on the clients' examples) is
# split in three: l - l_bar, because clients are unlike p_g (`Terms.divergence`); l_bar - l^', because they hold few
# examples (`Terms.sampling`); l^' - l^, because the model has seen these examples (`Terms.stability`, `Terms.drift`).
#
# What is wrong in Theorem 1 and its proof, besides the misprints that `printed_bound` names:
#
# - Eq. 9 takes a client's whole data set for a single sample: with d_k samples the divergence is d_k KL(p_g || p_k).
#   The printed c^2 / (8 d) + sum_k KL(p_g || p_k) is not a bound: one client with a fair coin for p_k, 0.6 : 0.4 for
#   p_g and the 0-1 loss is 0.1 off, while the sum tends to 0.0204 as d grows. Pinsker's inequality gives one that
# holds.
# - Lemma 2 bounds how far local steps lead away from the broadcast, not how far the global model moves: for one local
#   step, E = 1, it implies that the model does not move. Uniform stability, which is assumed anyway, makes it
# superfluous:   the mean of l^' - l^ is at most beta (Bousquet and Elisseeff, "Stability and Generalization", JMLR
# 2002, lemma 7).
# - The K inequalities of eq. 29 hold together with probability 1 - K delta only; Hoeffding's inequality for all d
#   examples at once needs no such union and is tighter.


class Terms(NamedTuple):
    """Summands of a bound on the generalization error, in the unit of the loss."""

    divergence: float  # clients unlike all together
    sampling: float  # few examples
    stability: float  # what the model owes to single examples
    drift: float  # what it moved in training; 0 in `generalization_bound`, which needs none

    @property
    def total(self) -> float:
        """Their sum, the bound."""
        return sum(self)


@checked
def generalization_bound(
    labels: ArrayLike,
    pooled: ArrayLike,
    sizes: ArrayLike,
    *,
    loss_bound: Positive = 1.0,
    stability: NotNegative = 0.0,
    delta: Probability = 0.05,
) -> Terms:
    """Return a bound on the generalization error that follows from the paper's assumptions 1, 3 and 4.

    With probability at least 1 - delta over the clients' examples,

        l - l^ <= c sum_k (d_k / d) sqrt(KL(p_g || p_k) / 2)  +  c sqrt(ln(2 / delta) / (2 d))
                    +  beta + (2 beta + c / d) sqrt(d ln(2 / delta))

    This bound is derived in FedReach, see the head of the module. Unlike the printed bound, it scales with the unit of
    the loss. A divergence is infinite if a client lacks a class. Its summand is then c, the largest possible
    difference.

    Args:
        labels: p_k, (k, c) label distributions of the k averaged clients. Under label shift they determine
            KL(p_g || p_k).
        pooled: p_g, (c,) label distribution of all clients.
        sizes: d_k, (k,) numbers of examples, positive.
        loss_bound: c, the largest possible loss, positive; the smallest is 0.
        stability: beta, the largest change of any loss after replacing one example, not negative; 0 omits the
            stability terms.
        delta: Probability of failure, in (0, 1).

    Raises:
        ConfigError: If an argument is out of range.

    Example:
        >>> bound = generalization_bound([[0.5, 0.5], [0.9, 0.1]], [0.6, 0.4], [300, 100])
        >>> [round(term, 4) for term in bound], round(bound.total, 4)
        ([0.1739, 0.0679, 0.096, 0.0], 0.3378)
    """
    shares, d = _sizes("generalization_bound", sizes)
    kl = kl_divergence(np.asarray(pooled, np.float64), np.asarray(labels, np.float64))
    log = math.log(2 / delta)
    return Terms(
        divergence=float(shares @ divergence_loss(kl, loss_bound)),
        sampling=loss_bound * math.sqrt(log / (2 * d)),
        stability=stability + (2 * stability + loss_bound / d) * math.sqrt(d * log),
        drift=0.0,
    )


def divergence_loss(kl: ArrayLike, loss_bound: float = 1.0) -> Floats:
    """Return min(c, c sqrt(KL / 2)), a bound on the difference of a mean loss in [0, c] between two distributions.

    The bound follows from Pinsker's inequality.

    Args:
        kl: Divergences of any shape in nats, not negative; may be infinite.
        loss_bound: c, the largest possible loss.

    Example:
        >>> divergence_loss([0.0, 0.02, np.inf])
        array([0. , 0.1, 1. ])
    """
    return loss_bound * np.minimum(np.sqrt(np.asarray(kl, np.float64) / 2), 1)


@checked
def printed_bound(
    labels: ArrayLike,
    pooled: ArrayLike,
    sizes: ArrayLike,
    *,
    loss_bound: Positive = 1.0,
    stability: NotNegative = 0.0,
    delta: Probability = 0.05,
    drift: NotNegative = 0.0,
) -> Terms:
    """Return the value of Theorem 1 as printed, for comparison; it is not a valid bound (see the head of the module).

        drift + c sqrt(ln(4 / delta) / 2) sum_k sqrt(d_k) / d + [sum_k KL(p_g || p_k) + c^2 / (8 d)]
          + (2 beta + c / d) sqrt(d ln(2 / delta))

    FedReach corrects two misprints. The paper's "sigma_d^2" is sum_k sqrt(d_k) / d, neither a square nor a variance. It
    is largest for equal sizes, and 1 / sqrt(d) if one client has all examples. Eq. 10 has D(p_k || p_k) instead of
    D(p_g || p_k). `printed_drift` returns the argument `drift`; `generalization_bound` explains the other arguments.

    Example:
        >>> bound = printed_bound([[0.5, 0.5]], [0.6, 0.4], [10**9])     # the loss can be 0.1 off
        >>> round(bound.divergence, 4)
        0.0201
    """
    shares, d = _sizes("printed_bound", sizes)
    kl = kl_divergence(np.asarray(pooled, np.float64), np.asarray(labels, np.float64))
    return Terms(
        divergence=float(kl.sum()) + loss_bound**2 / (8 * d),
        sampling=loss_bound * math.sqrt(math.log(4 / delta) / 2) * float(np.sqrt(shares).sum()) / math.sqrt(d),
        stability=(2 * stability + loss_bound / d) * math.sqrt(d * math.log(2 / delta)),
        drift=drift,
    )


@checked
def printed_drift(
    rates: ArrayLike, excess: ArrayLike, *, epochs: Count, smoothness: Positive, lipschitz: Positive, noise: NotNegative
) -> float:
    """Return the sum over rounds in Theorem 1, with the square root that Lemma 2 omits.

        sum_t 2 L sqrt(S_t),    S_t = 2 (E - 1) (2 eta_t^2 lambda / E Delta_t + eta_t^2 sigma^2 / E^2)

    S_t bounds a mean squared distance, because the norms in the proof of Lemma 2 have squared units. So the distance is
    at most sqrt(S_t). The paper sums 2 L S_t instead.

    Args:
        rates: eta_t, (t,) local learning rates of the rounds so far.
        excess: Delta_t, (t,) loss of the global model minus the clients' smallest losses, not negative.
        epochs: E, the number of local epochs, at least 1. With E = 1 the sum is 0, due to an error in Lemma 2.
        smoothness: lambda, the smoothness constant of the loss, positive.
        lipschitz: L, the Lipschitz constant of the loss, positive.
        noise: sigma^2, the variance of a batch gradient, not negative.

    Example:
        >>> round(printed_drift([0.1, 0.1], [0.5, 0.2], epochs=5, smoothness=1, lipschitz=1, noise=0.1), 4)
        0.4195
    """
    eta, gap = np.asarray(rates, np.float64), np.asarray(excess, np.float64)
    squared = 2 * (epochs - 1) * eta**2 * (2 * smoothness * gap / epochs + noise / epochs**2)
    return float(2 * lipschitz * np.sqrt(squared).sum())


def _sizes(function: str, sizes: ArrayLike) -> tuple[Floats, float]:
    """Return each client's share of the examples, and how many there are."""
    d_k = np.asarray(sizes, np.float64)
    if d_k.ndim != 1 or d_k.size == 0 or not (d_k > 0).all():
        raise ConfigError(f"{function}: sizes must be the positive numbers of examples of each client; got {sizes!r}.")
    d = float(d_k.sum())
    return d_k / d, d


# --- How far a client's squared loss may move when its data shifts: bounds over a ball of distributions


class Bounds(NamedTuple):
    """Lower and upper bounds on the mean squared loss, for each distance."""

    lower: Floats
    upper: Floats

    @property
    def disagreement(self) -> Floats:
        """Upper minus lower bound, sigma of eq. 18; not negative, and 0 at distance 0."""
        return self.upper - self.lower


def upper_bound(mean: ArrayLike, variance: ArrayLike, distance: ArrayLike, largest: float) -> Floats:
    """Return an upper bound on the mean squared loss under any distribution within a Hellinger distance.

    u(d) = M^2 - max(S a - C s, 0)^2 / a with a = M^2 - e, s = sqrt(v), S = 1 - d^2 and C = sqrt(1 - S^2); u = M^2
    if a = 0. The arguments are broadcast.

    Args:
        mean: e, mean of the squared losses, from 0 to M^2.
        variance: v, variance of the squared losses.
        distance: d, Hellinger distance from 0 to 1, where H^2(P, Q) = 1 - sum_z sqrt(P_z Q_z).
        largest: M, the largest possible loss.

    Beyond the radius of eq. 9 the printed bound decreases again, but this function returns M^2. Corollary 4.1 prints M
    instead of the M^2 of eq. 8.

    Reference: "Aggregation Weighting of Federated Learning via Generalization Bound Estimation" (arXiv 2311.05936),
    Theorem 3.1.

    Example:
        >>> upper_bound(0.2, 0.16, 0.1, largest=1.0).round(6)
        np.float64(0.323665)
    """
    room = np.asarray(largest**2 - np.asarray(mean, np.float64))
    return largest**2 - _shrunk(room, variance, distance)


def lower_bound(mean: ArrayLike, variance: ArrayLike, distance: ArrayLike) -> Floats:
    """Return a lower bound on the mean squared loss under any distribution within a Hellinger distance.

    l(d) = max(S e - C s, 0)^2 / e, with the symbols of `upper_bound`; l = 0 if e = 0.

    Beyond the radius of eq. 11 the printed bound increases again, even above the mean (0.2179 for e = 0.02, v = 0.015
    and d = 0.5). This function returns 0 there. The radius is only 0.1 for a 0-1 loss of 2%, so most distances exceed
    it.

    Reference: Theorem 3.2 of the paper of `upper_bound`.

    Example:
        >>> lower_bound(0.2, 0.16, np.array([0.0, 0.1, 0.5])).round(6)
        array([0.2     , 0.100215, 0.      ])
    """
    return _shrunk(np.asarray(mean, np.float64), variance, distance)


def _shrunk(mean: Floats, variance: ArrayLike, distance: ArrayLike) -> Floats:
    """Return max(S e - C s, 0)^2 / e; the upper bound is M^2 minus the lower bound of M^2 - loss^2."""
    shift = np.square(np.asarray(distance, np.float64))
    cosine, sine = 1 - shift, np.sqrt(shift * (2 - shift))
    root = np.maximum(cosine * mean - sine * np.sqrt(variance), 0)
    return np.asarray(np.divide(root**2, mean, out=np.zeros_like(root), where=mean > 0))


def radius_limits(mean: float, variance: float, largest: float) -> tuple[float, float]:
    """Return the distances from which the lower bound is 0 and the upper bound is M^2.

    d^2 = 1 - (1 + x^2 / v)^(-1/2), with x = e for the lower and x = M^2 - e for the upper bound.

    Reference: Eq. 11 and 9 of the paper of `upper_bound`.

    Example:
        >>> [round(limit, 4) for limit in radius_limits(0.02, 0.02 * 0.98, largest=1.0)]
        [0.1003, 0.9266]
    """

    def limit(x: float) -> float:
        if x <= 0:
            return 0.0
        return float(np.sqrt(1 - np.sqrt(variance) / np.hypot(x, np.sqrt(variance))))  # v = 0 gives 1

    return limit(mean), limit(largest**2 - mean)


def distances(radius: float, step: float) -> Floats:
    """Return the multiples of `step` up to `radius`.

    Example:
        >>> distances(0.1, 0.03).round(2)
        array([0.03, 0.06, 0.09])
    """
    steps = np.floor(radius / step + 1e-9)  # a quotient such as 0.3 / 0.1 may round to something below 3
    return step * np.arange(1, int(steps) + 1, dtype=np.float64)


def bounds(losses: Floats, distance: Floats, largest: float = 1.0, confidence: float | None = None) -> Bounds:
    """Return both bounds at each distance, estimated from a client's losses.

    e is the mean and v the variance of the squared losses. The variance has divisor m - 1 and is 0 for one example.

    Args:
        losses: (m,) losses from 0 to `largest`.
        distance: Distances of any shape; each bound has the same shape.
        largest: M, the largest possible loss; 1 for the losses of this module.
        confidence: delta, the probability that an estimate violates a bound, between 0 and 1, such as 0.01. The
            upper bound then uses e + M^2 sqrt(ln(2 / delta) / 2m), and the lower bound uses e minus this term. Both
            use sqrt(v) + M^2 sqrt(2 ln(2 / delta) / (m - 1)). These terms are valid for examples that the model was
            not trained on. None omits the terms.

    Reference: Corollary 4.1 and appendix C of the paper of `upper_bound`. Eq. 38 has M instead of M^2, the range of the
    squared loss, and covers the upper bound only (Hoeffding 1963; Maurer and Pontil 2009, Theorem 10).

    Example:
        >>> curves = bounds(np.array([0.02, 0.5, 0.9, 0.1]), np.array([0.1, 0.2]))
        >>> curves.lower.round(3), curves.upper.round(3)
        (array([0.167, 0.085]), array([0.384, 0.514]))
    """
    squared, m = np.square(np.asarray(losses, np.float64)), len(losses)
    mean, variance = squared.mean(), squared.var(ddof=1) if m > 1 else 0.0
    low = high = mean
    if confidence is not None and m == 1:
        low, high = 0.0, largest**2  # one example says nothing of the variance: both bounds are trivial
    elif confidence is not None:
        log, range_ = np.log(2 / confidence), largest**2
        off = range_ * np.sqrt(log / (2 * m))
        low, high = max(mean - off, 0.0), min(mean + off, range_)
        variance = (np.sqrt(variance) + range_ * np.sqrt(2 * log / (m - 1))) ** 2
    return Bounds(lower_bound(low, variance, distance), upper_bound(high, variance, distance, largest))


def total_disagreement(
    losses: Floats, distance: Floats, largest: float = 1.0, confidence: float | None = None
) -> float:
    """Return eta = sum_i sigma(d_i), which is at least M^2 sum_i d_i^2 (2 - d_i^2), even if all losses are 0.

    Reference: Eq. 19 of the paper of `upper_bound`.

    Example:
        >>> round(total_disagreement(np.array([0.02, 0.5, 0.9, 0.1]), distances(0.2, 0.02)), 6)
        2.377872
    """
    return float(bounds(losses, distance, largest, confidence).disagreement.sum())


# ---------------------------------------------------------------------------------------- losses from 0 to 1


def jsd_loss(logits: AnyArray, labels: Ints) -> Floats:
    """Return the (m,) Jensen-Shannon divergences in bits between the predictions of (m, c) logits and (m,) labels.

    JSD = 1 + (p log2 p - (1 + p) log2(1 + p)) / 2, where p is the softmax probability of the label. JSD is 0 for p = 1
    and 1 for p = 0. The JS loss of Englesson and Azizpour, intended for training, has a maximum of 2.

    Example:
        >>> jsd_loss(np.array([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0]]), np.array([0, 2])).round(6)
        array([0.191818, 0.459148])
    """
    shifted = logits - logits.max(axis=1, keepdims=True).astype(np.float64)
    log_p = shifted[np.arange(len(labels)), labels] - np.log(np.exp(shifted).sum(axis=1))
    p = np.exp(log_p)
    result: Floats = 1 + (p * log_p - (1 + p) * np.log1p(p)) / (2 * np.log(2))
    return np.clip(result, 0, 1)  # rounding


def zero_one_loss(logits: AnyArray, labels: Ints) -> Floats:
    """Return 1 for each wrong prediction and 0 for each correct one; with tied logits the lowest class is predicted.

    Example:
        >>> zero_one_loss(np.array([[2.0, 1.0], [2.0, 1.0]]), np.array([0, 1]))
        array([0., 1.])
    """
    return np.asarray((logits.argmax(axis=1) != labels).astype(np.float64))


LOSSES: Mapping[str, Callable[[AnyArray, Ints], Floats]] = MappingProxyType(
    {"jsd": jsd_loss, "zero_one": zero_one_loss}
)


# -------------------- How fast a server converges that sometimes asks clients and sometimes trains on data of its own
# Reference: "Understanding of Server-Assisted Federated Learning with Incomplete Client Participation" (SAFARI),
# Theorem
# 4 and Corollary 1. Its appendix with the proofs is not in the text at hand; what is derived here says so.


@checked
def largest_share(
    dissimilarity: Annotated[float, "[0, inf]"],
    server_gradient: NotNegative,
    client_gradient: NotNegative = 0.0,
    *,
    smoothness: Positive,
    server_lr: float,
    local_steps: Count = 1,
) -> float:
    """Return q_max, the largest share of client rounds for which Theorem 4 guarantees that SAFARI converges.

        q_max = 1 / (max(0, 4 sigma_G^2 - 4 G_2 (1 / (2 K^2) - 2 L eta_s / K^2)) / ((1 - L eta_s) G_1) + 1)

    Heterogeneous clients can increase the loss in client rounds by q (4 sigma_G^2 - ...). Server rounds decrease it by
    (1 - q) (1 - L eta_s) G_1, which must be at least as much.

    This formula differs from the paper's in two points. The paper's 2 L eta_s^2 / K^2 has inconsistent units, so the
    square is omitted. A negative numerator imposes no condition, so the function returns 1. The paper defines G_1 and
    G_2 as minima over the rounds, but a reviewer of the submission requested maxima. With minima the inequality above
    holds in every round (derived in FedReach). G_1 and G_2 are known only after the run, so q_max can check a run but
    not plan it. Near a stationary point G_1 approaches 0, and so does q_max if clients are heterogeneous.

    Args:
        dissimilarity: sigma_G^2, the largest |grad F_i - grad F|^2 of any client, not negative; may be infinite.
        server_gradient: G_1, the smallest |grad F|^2 at the beginning of a server round, not negative.
        client_gradient: G_2, the smallest |1/m sum_i sum_k grad F_i|^2 of a client round, not negative.
        smoothness: L, the smoothness constant of the loss, positive.
        server_lr: eta_s, the server's learning rate, positive and below 1 / L.
        local_steps: K, the number of local steps, at least 1.

    Reference: Theorem 4.

    Example:
        >>> round(largest_share(1, 1, smoothness=1, server_lr=0.1), 10)
        0.1836734694
        >>> round(largest_share(1, 1, 2, smoothness=1, server_lr=0.1, local_steps=3), 10)
        0.1942446043
    """
    check("largest_share", "server_lr * smoothness", server_lr * smoothness, "(0, 1)")
    helped = 4 * client_gradient * (0.5 - 2 * smoothness * server_lr) / local_steps**2
    harm = max(0.0, 4 * dissimilarity - helped)
    gain = (1 - smoothness * server_lr) * server_gradient
    if harm == 0:
        return 1.0
    return gain / (harm + gain) if math.isfinite(harm) else 0.0


@checked
def largest_server_lr(smoothness: Positive) -> float:
    """Return the largest eta_s that Theorem 4 allows, 1 / (8 sqrt(30) L), for any number of local steps.

    This follows from eta_c = 2 eta_s / K <= 1 / (4 sqrt(30) L K). In the paper the square root also covers L and K, so
    the learning rate would not have the unit 1 / L.

    Args:
        smoothness: L, the smoothness constant of the loss, positive.

    Reference: Theorem 4.

    Example:
        >>> round(largest_server_lr(1.0), 6)
        0.022822
    """
    return 1 / (8 * math.sqrt(30) * smoothness)


class Convergence(NamedTuple):
    """Summands of the bound on the mean squared gradient over the rounds, in units of a squared gradient."""

    start: float  # 2 (F(x_0) - F*) / (R eta_s)
    server_noise: float  # L eta_s (1 - q) sigma^2
    drift: float  # 80 q L^2 eta_s^2 / K (sigma^2 + 6 K sigma_G^2)
    client_noise: float  # 8 L q eta_s / (m K) sigma^2

    @property
    def total(self) -> float:
        """Their sum."""
        return sum(self)


@checked
def convergence_bound(
    excess: NotNegative,
    *,
    rounds: Count,
    server_lr: Positive,
    share: Share,
    smoothness: float,
    noise: NotNegative,
    dissimilarity: NotNegative,
    cohort_size: Count,
    local_steps: Count,
) -> Convergence:
    """Return the bound on 1/R sum_r E|grad F(x_r)|^2, where F is the mean over all clients, including unseen ones.

        2 (F(x_0) - F*) / (R eta_s) + L eta_s (1 - q) sigma^2
          + 80 q L^2 eta_s^2 / K (sigma^2 + 6 K sigma_G^2) + 8 L q eta_s / (m K) sigma^2

    The bound requires share <= `largest_share`. This condition depends on the run and is not checked. The bound also
    requires eta_c = 2 eta_s / K with eta_s <= `largest_server_lr`, which is checked. With share 0 the bound equals that
    of plain SGD.

    Args:
        excess: F(x_0) - F*, the excess loss of the initial model, not negative.
        rounds: R, the number of rounds, at least 1.
        server_lr: eta_s, the server's learning rate.
        share: q, the share of client rounds, in [0, 1].
        smoothness: L, the smoothness constant of the loss, positive.
        noise: sigma^2, the variance of a stochastic gradient, not negative.
        dissimilarity: sigma_G^2 as in `largest_share`, finite.
        cohort_size: m, the number of clients in a round, at least 1.
        local_steps: K, the number of local steps, at least 1.

    Reference: Theorem 4.

    Example:
        >>> bound = convergence_bound(1.0, rounds=1000, server_lr=0.02, share=0.5, smoothness=1.0, noise=1.0,
        ...     dissimilarity=0.1, cohort_size=5, local_steps=10)
        >>> [round(term, 4) for term in bound], round(bound.total, 4)
        ([0.1, 0.01, 0.0112, 0.0016], 0.1228)
    """
    largest = largest_server_lr(smoothness)
    if server_lr > largest * (1 + 1e-12):
        raise ConfigError(
            f"convergence_bound: server_lr must be at most 1 / (8 sqrt(30) smoothness) = {largest:.6g}; got "
            f"{server_lr}. The theorem does not cover larger rates."
        )
    K, q, step = local_steps, share, smoothness * server_lr
    return Convergence(
        start=2 * excess / (rounds * server_lr),
        server_noise=step * (1 - q) * noise,
        drift=80 * q * step**2 / K * (noise + 6 * K * dissimilarity),
        client_noise=8 * step * q / (cohort_size * K) * noise,
    )


@checked
def speedup_settings(rounds: Count, cohort_size: Count, local_steps: Count) -> tuple[float, float]:
    """Return eta_s = sqrt(m K / R) and q = 1 - 1 / (m K), for which the bound is of order 1 / sqrt(m K R).

    The summands `start`, `server_noise` and `client_noise` are then each of order 1 / sqrt(m K R). So is the sum if
    R >> (m K)^3, because the drift, of order m K / R, is then smaller. The paper requires q = Omega(1 - 1 / (m K)), but
    any constant q satisfies this, and the server noise would then be of order sqrt(m K / R). The condition that the
    paper needs is 1 - q = O(1 / (m K)). It also needs q <= `largest_share`, so sigma_G^2 must be of order G_1 / (m K).

    Args:
        rounds: R, the number of rounds. eta_s is at most `largest_server_lr` if R >= 1920 L^2 m K.
        cohort_size: m, the number of clients in a round.
        local_steps: K, the number of local steps.

    Reference: Corollary 1.

    Example:
        >>> speedup_settings(rounds=10_000, cohort_size=5, local_steps=20)
        (0.1, 0.99)
    """
    return math.sqrt(cohort_size * local_steps / rounds), 1 - 1 / (cohort_size * local_steps)


# -------------------- Learning with unseen clients: the theorems of SAFARI
# Reference: "Understanding of Server-Assisted Federated Learning with Incomplete Client Participation" (SAFARI),
# Theorems 1 to 3. How fast its algorithm converges: see `fedreach.federation.convergence`.


def worst_case_error(participants: int, clients: int) -> float:
    """Return the error (1 - omega) / 8 that no learner can rule out if only some clients participate.

    Here omega = participants / clients. For every learner there is a worst case: clients, a participation process, and
    a target that some hypothesis fits without error. In this case, the 0-1 error on all clients exceeds the returned
    value with probability above 1/20. More examples do not help. Your federation need not be the worst case. The value
    is 0 if all clients participate.

    Args:
        participants: Number of participating clients, from 1 to `clients`.
        clients: Number of all clients, including unseen clients.

    Reference: Theorem 1.

    Example:
        >>> worst_case_error(participants=7, clients=10)
        0.0375
    """
    check("worst_case_error", "participants", participants, f"[1, {clients}]")
    return (clients - participants) / clients / 8


@checked
def generalization_rate(
    vc_dimension: Positive, server_examples: Count, client_examples: NotNegative, *, noise: Share, relation: NotNegative
) -> float:
    """Return the order of the excess error after training on participants' examples and on the server's sample.

        (d / (n_T + n_S)) ** (1 / (2 - beta_Q)) + (d / (n_T + n_S)) ** (beta / (2 - beta_Q))

    The theorem omits a constant and logarithms, which are set to 1 here. So only ratios of the values are meaningful.

    Args:
        vc_dimension: d, the VC dimension of the hypotheses, positive.
        server_examples: n_T, the number of server examples, drawn from all clients together; at least 1.
        client_examples: n_S, the number of participants' examples, not negative.
        noise: beta_Q of the Bernstein condition (Assumption 1), in [0, 1]; 1 is the easiest case.
        relation: beta of Assumption 2, |eps_P(h) - eps_Q(h)| <= alpha eps_Q(h)^beta, not negative. If beta is at least
            1, the first power dominates, and the rate equals that of a single data set.

    Reference: Theorem 2, eq. 1.

    Example:
        >>> generalization_rate(10, 50, 950, noise=1, relation=1)
        0.02
    """
    ratio = vc_dimension / (server_examples + client_examples)
    return float(ratio ** (1 / (2 - noise)) + ratio ** (relation / (2 - noise)))


@checked
def least_relation(vc_dimension: float, server_examples: int, client_examples: NotNegative) -> float:
    """Return the beta above which the clients' examples improve the rate: (n_T + n_S)^beta > n_T for d = 1.

        beta = ln(n_T / d) / ln((n_T + n_S) / d)

    This threshold is derived in FedReach. The paper states that for every beta in (0, 1) the rate
    (1 / (n_T + n_S)) ** (beta / (2 - beta_Q)) is better than the rate (1 / n_T) ** (1 / (2 - beta_Q)) of the server's
    sample alone. Below the threshold this is not true.

    Args:
        vc_dimension: d, the VC dimension of the hypotheses, positive and below `server_examples`.
        server_examples: n_T, the number of server examples.
        client_examples: n_S, the number of participants' examples, not negative.

    Example:
        >>> least_relation(1, server_examples=100, client_examples=9_900)
        0.5
    """
    check("least_relation", "vc_dimension", vc_dimension, f"(0, {server_examples})")
    return math.log(server_examples / vc_dimension) / math.log((server_examples + client_examples) / vc_dimension)


@checked
def excess_allowed(vc_dimension: float, server_examples: int, delta: Probability) -> float:
    """Return A(n_T, delta), the excess error up to which the clients' examples do not harm training.

        A = d / n_T ln(n_T / d) + ln(1 / delta) / n_T

    Consider the best hypothesis on server and client examples together. If its excess error on all clients is of this
    order, training on both is at least as good as on the server's sample alone. The paper closes a parenthesis too
    late, which moves the second summand into the first logarithm. Then delta would have almost no effect.

    Args:
        vc_dimension: d, the VC dimension of the hypotheses, positive and at most `server_examples`.
        server_examples: n_T, the number of server examples.
        delta: Probability of failure, in (0, 1).

    Reference: Theorem 3; the sum is that of Hanneke and Kpotufe, "On the Value of Target Data in Transfer Learning",
    NeurIPS 2019.

    Example:
        >>> round(excess_allowed(10, 1000, delta=0.05), 4)
        0.049
    """
    check("excess_allowed", "vc_dimension", vc_dimension, f"(0, {server_examples}]")
    return (vc_dimension * math.log(server_examples / vc_dimension) - math.log(delta)) / server_examples
