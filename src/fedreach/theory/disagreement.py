"""How far a client's squared loss may move when its data shifts: bounds over a ball of distributions."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedreach.arrays import AnyArray, Floats, Ints


class Bounds(NamedTuple):
    """What the mean squared loss lies between, for each distance."""

    lower: Floats
    upper: Floats

    @property
    def disagreement(self) -> Floats:
        """Upper minus lower bound, sigma of eq. 18: not negative, 0 at distance 0."""
        return self.upper - self.lower


def upper_bound(mean: ArrayLike, variance: ArrayLike, distance: ArrayLike, largest: float) -> Floats:
    """Return the most that the mean squared loss can be under any distribution within a Hellinger distance.

    u(d) = M^2 - max(S a - C s, 0)^2 / a with a = M^2 - e, s = sqrt(v), S = 1 - d^2 and C = sqrt(1 - S^2); u = M^2
    where a = 0. The arguments are broadcast.

    Args:
        mean: e, mean of the squared losses, from 0 to M^2.
        variance: v, variance of the squared losses.
        distance: d, Hellinger distance from 0 to 1, H^2(P, Q) = 1 - sum_z sqrt(P_z Q_z).
        largest: M, what no loss exceeds.

    Beyond the radius of eq. 9 the printed bound falls again; it stays at M^2 here. Corollary 4.1 prints M for the M^2
    of eq. 8.

    Reference: "Aggregation Weighting of Federated Learning via Generalization Bound Estimation" (arXiv 2311.05936),
    Theorem 3.1.

    Example:
        >>> upper_bound(0.2, 0.16, 0.1, largest=1.0).round(6)
        np.float64(0.323665)
    """
    room = np.asarray(largest**2 - np.asarray(mean, np.float64))
    return largest**2 - _shrunk(room, variance, distance)


def lower_bound(mean: ArrayLike, variance: ArrayLike, distance: ArrayLike) -> Floats:
    """Return the least that the mean squared loss can be under any distribution within a Hellinger distance.

    l(d) = max(S e - C s, 0)^2 / e, in the letters of `upper_bound`; l = 0 where e = 0.

    Beyond the radius of eq. 11 the printed bound rises again, even above the mean (.2179 for e = .02, v = .015 and
    d = .5); it stays at 0 here. That radius is 0.1 for a 0-1 loss of 2 %, so it is passed all the time.

    Reference: as of `upper_bound`, Theorem 3.2.

    Example:
        >>> lower_bound(0.2, 0.16, np.array([0.0, 0.1, 0.5])).round(6)
        array([0.2     , 0.100215, 0.      ])
    """
    return _shrunk(np.asarray(mean, np.float64), variance, distance)


def _shrunk(mean: Floats, variance: ArrayLike, distance: ArrayLike) -> Floats:
    """Return max(S e - C s, 0)^2 / e; the upper bound is M^2 less the lower one of M^2 - loss^2."""
    shift = np.square(np.asarray(distance, np.float64))
    cosine, sine = 1 - shift, np.sqrt(shift * (2 - shift))
    root = np.maximum(cosine * mean - sine * np.sqrt(variance), 0)
    return np.asarray(np.divide(root**2, mean, out=np.zeros_like(root), where=mean > 0))


def radius_limits(mean: float, variance: float, largest: float) -> tuple[float, float]:
    """Return the distances from which the lower bound is 0 and the upper one is M^2.

    d^2 = 1 - (1 + x^2 / v)^(-1/2), with x = e for the lower and x = M^2 - e for the upper bound.

    Reference: as of `upper_bound`, eq. 11 and 9.

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
    """Return step, 2 step, ... as far as they fit into the radius.

    Example:
        >>> distances(0.1, 0.03).round(2)
        array([0.03, 0.06, 0.09])
    """
    steps = np.floor(radius / step + 1e-9)  # a quotient such as 0.3 / 0.1 may round to something below 3
    return step * np.arange(1, int(steps) + 1, dtype=np.float64)


def bounds(losses: Floats, distance: Floats, largest: float = 1.0, confidence: float | None = None) -> Bounds:
    """Return the curves of both bounds, estimated from a client's losses.

    e is the mean of the squared losses, v their variance with divisor m - 1 (0 for a single example).

    Args:
        losses: (m,) from 0 to `largest`.
        distance: Any shape; the curves have the same.
        largest: M, what no loss exceeds: 1 for the losses of this module.
        confidence: delta, the probability that an estimate may mislead a bound, between 0 and 1, such as 0.01. The
            upper bound is then that of e + M^2 sqrt(ln(2 / delta) / 2m), the lower one that of e less as much,
            both with sqrt(v) + M^2 sqrt(2 ln(2 / delta) / (m - 1)). None leaves these terms out. They hold for
            examples that the model was not trained on.

    Reference: as of `upper_bound`, Corollary 4.1 and appendix C, whose eq. 38 has M where the range of the squared loss
    is M^2 and is about the upper bound only (Hoeffding 1963; Maurer and Pontil 2009, Theorem 10).

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
    """Return eta = sum_i sigma(d_i), positive: at least M^2 sum_i d_i^2 (2 - d_i^2), even for losses of 0.

    Reference: as of `upper_bound`, eq. 19.

    Example:
        >>> round(total_disagreement(np.array([0.02, 0.5, 0.9, 0.1]), distances(0.2, 0.02)), 6)
        2.377872
    """
    return float(bounds(losses, distance, largest, confidence).disagreement.sum())


# ---------------------------------------------------------------------------------------- losses from 0 to 1


def jsd_loss(logits: AnyArray, labels: Ints) -> Floats:
    """Return the (m,) Jensen-Shannon divergences, to base 2, between predictions, logits (m, c), and labels (m,).

    JSD = 1 + (p log2 p - (1 + p) log2(1 + p)) / 2, where p is the softmax probability of the label: 0 if it is 1 and
    1 if it is 0. (The JS loss of Englesson and Azizpour, made for training, goes up to 2.)

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
    """Return 1 where the largest logit (ties: the lowest class) is not that of the label, else 0.

    Example:
        >>> zero_one_loss(np.array([[2.0, 1.0], [2.0, 1.0]]), np.array([0, 1]))
        array([0., 1.])
    """
    return np.asarray((logits.argmax(axis=1) != labels).astype(np.float64))


LOSSES: Mapping[str, Callable[[AnyArray, Ints], Floats]] = MappingProxyType(
    {"jsd": jsd_loss, "zero_one": zero_one_loss}
)
