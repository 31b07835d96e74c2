"""What unlike labels and few examples may cost on everybody's data: a generalisation bound, printed and put right.

Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks" (CSRA), Theorem 1.

The generalisation error l - l^ (loss on the distribution p_g of all clients minus loss on the clients' examples) is
split in three: l - l_bar, because clients are unlike p_g (`Terms.divergence`); l_bar - l^', because they hold few
examples (`Terms.sampling`); l^' - l^, because the model has seen these examples (`Terms.stability`, `Terms.drift`).

What is wrong in Theorem 1 and its proof, besides the misprints that `printed_bound` names:

- Eq. 9 takes a client's whole data set for a single sample: with d_k samples the divergence is d_k KL(p_g || p_k).
  The printed c^2 / (8 d) + sum_k KL(p_g || p_k) is no bound: one client with a fair coin for p_k, 0.6 : 0.4 for p_g and
  the 0-1 loss is 0.1 off, while the sum tends to 0.0204 as d grows. Pinsker's inequality gives one that holds.
- Lemma 2 bounds how far local steps lead away from the broadcast, not how far the global model moves: for one local
  step, E = 1, it says that the model stands still. Uniform stability, which is assumed anyway, makes it superfluous:
  the mean of l^' - l^ is at most beta (Bousquet and Elisseeff, "Stability and Generalization", JMLR 2002, lemma 7).
- The K inequalities of eq. 29 hold together with probability 1 - K delta only; Hoeffding's inequality for all d
  examples at once needs no such union and is tighter.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedreach.arrays import Floats
from fedreach.errors import ConfigError, check
from fedreach.theory.divergence import kl_divergence


class Terms(NamedTuple):
    """The summands of a bound on the generalisation error, in the unit of the loss."""

    divergence: float  # clients unlike the whole
    sampling: float  # few examples
    stability: float  # what the model owes to single examples
    drift: float  # what it moved in training; 0 in `generalization_bound`, which needs none

    @property
    def total(self) -> float:
        """Their sum, the bound."""
        return sum(self)


def generalization_bound(
    labels: ArrayLike,
    whole: ArrayLike,
    sizes: ArrayLike,
    *,
    loss_bound: float = 1.0,
    stability: float = 0.0,
    delta: float = 0.05,
) -> Terms:
    """Return a bound on the generalisation error that follows from the paper's assumptions 1, 3 and 4.

    With probability at least 1 - delta over the clients' examples,

        l - l^ <= c sum_k (d_k / d) sqrt(KL(p_g || p_k) / 2)  +  c sqrt(ln(2 / delta) / (2 d))
                    +  beta + (2 beta + c / d) sqrt(d ln(2 / delta))

    (derived here, see the head of the module). It grows in proportion when the loss is measured in another unit, as
    the printed one does not. Where a divergence is inf (a client lacks a class) the loss bound c stands for its root,
    which no distance exceeds.

    Args:
        labels: p_k, (k, c) distributions of the k clients that are averaged; where clients differ in how often they
            see a class but not in how a class looks, labels tell all of KL(p_g || p_k).
        whole: p_g, (c,), the distribution of all clients.
        sizes: d_k, (k,) examples, positive.
        loss_bound: c, the loss lies in [0, c]; positive.
        stability: beta, by how much one example replaced changes any loss; not negative. 0 leaves it out.
        delta: Probability of failure, in (0, 1).

    Raises:
        ConfigError: If an argument is out of its range.

    Example:
        >>> bound = generalization_bound([[0.5, 0.5], [0.9, 0.1]], [0.6, 0.4], [300, 100])
        >>> [round(term, 4) for term in bound], round(bound.total, 4)
        ([0.1739, 0.0679, 0.096, 0.0], 0.3378)
    """
    shares, d = _sizes("generalization_bound", sizes, loss_bound, stability, delta)
    kl = kl_divergence(np.asarray(whole, np.float64), np.asarray(labels, np.float64))
    log = math.log(2 / delta)
    return Terms(
        divergence=float(shares @ divergence_loss(kl, loss_bound)),
        sampling=loss_bound * math.sqrt(log / (2 * d)),
        stability=stability + (2 * stability + loss_bound / d) * math.sqrt(d * log),
        drift=0.0,
    )


def divergence_loss(kl: ArrayLike, loss_bound: float = 1.0) -> Floats:
    """Return min(c, c sqrt(KL / 2)): how much a loss in [0, c] can differ between two distributions, by Pinsker.

    Args:
        kl: Divergences in nats, not negative, of any shape; inf allowed.
        loss_bound: c.

    Example:
        >>> divergence_loss([0.0, 0.02, np.inf])
        array([0. , 0.1, 1. ])
    """
    return loss_bound * np.minimum(np.sqrt(np.asarray(kl, np.float64) / 2), 1)


def printed_bound(
    labels: ArrayLike,
    whole: ArrayLike,
    sizes: ArrayLike,
    *,
    loss_bound: float = 1.0,
    stability: float = 0.0,
    delta: float = 0.05,
    drift: float = 0.0,
) -> Terms:
    """Return Theorem 1 as it is printed, for comparison; it is not a bound (see the head of the module).

        drift + c sqrt(ln(4 / delta) / 2) sum_k sqrt(d_k) / d + [sum_k KL(p_g || p_k) + c^2 / (8 d)]
          + (2 beta + c / d) sqrt(d ln(2 / delta))

    Misprints, read as they are meant: "sigma_d^2" is sum_k sqrt(d_k) / d, neither a square nor a variance, and largest
    where sizes are equal (1 / sqrt(d) where one client holds all); eq. 10 has D(p_k || p_k) for D(p_g || p_k). All
    arguments but `drift`, which `printed_drift` returns, are as in `generalization_bound`.

    Example:
        >>> bound = printed_bound([[0.5, 0.5]], [0.6, 0.4], [10**9])     # the loss can be 0.1 off
        >>> round(bound.divergence, 4)
        0.0201
    """
    shares, d = _sizes("printed_bound", sizes, loss_bound, stability, delta)
    check("printed_bound", "drift", drift, "[0, inf)")
    kl = kl_divergence(np.asarray(whole, np.float64), np.asarray(labels, np.float64))
    return Terms(
        divergence=float(kl.sum()) + loss_bound**2 / (8 * d),
        sampling=loss_bound * math.sqrt(math.log(4 / delta) / 2) * float(np.sqrt(shares).sum()) / math.sqrt(d),
        stability=(2 * stability + loss_bound / d) * math.sqrt(d * math.log(2 / delta)),
        drift=drift,
    )


def printed_drift(
    rates: ArrayLike, excess: ArrayLike, *, epochs: int, smoothness: float, lipschitz: float, noise: float
) -> float:
    """Return the sum over rounds of Theorem 1, with the root that Lemma 2 leaves out.

        sum_t 2 L sqrt(S_t),    S_t = 2 (E - 1) (2 eta_t^2 lambda / E Delta_t + eta_t^2 sigma^2 / E^2)

    S_t bounds a mean squared distance (the norms in the proof of Lemma 2 are of squared units), so the distance is at
    most its root; the paper adds up 2 L S_t.

    Args:
        rates: eta_t, (t,) local rates of the rounds so far.
        excess: Delta_t, (t,) loss of the global model minus the clients' least losses, not negative.
        epochs: E, at least 1; with 1 the sum is 0, which is the lemma's error.
        smoothness: lambda, of the loss; positive.
        lipschitz: L, of the loss; positive.
        noise: sigma^2, variance of a batch gradient, not negative.

    Example:
        >>> round(printed_drift([0.1, 0.1], [0.5, 0.2], epochs=5, smoothness=1, lipschitz=1, noise=0.1), 4)
        0.4195
    """
    check("printed_drift", "epochs", epochs, "[1, inf)")
    check("printed_drift", "smoothness", smoothness, "(0, inf)")
    check("printed_drift", "lipschitz", lipschitz, "(0, inf)")
    check("printed_drift", "noise", noise, "[0, inf)")
    eta, gap = np.asarray(rates, np.float64), np.asarray(excess, np.float64)
    squared = 2 * (epochs - 1) * eta**2 * (2 * smoothness * gap / epochs + noise / epochs**2)
    return float(2 * lipschitz * np.sqrt(squared).sum())


def _sizes(function: str, sizes: ArrayLike, loss_bound: float, stability: float, delta: float) -> tuple[Floats, float]:
    """Return each client's share of the examples, and how many there are."""
    d_k = np.asarray(sizes, np.float64)
    if d_k.ndim != 1 or d_k.size == 0 or not (d_k > 0).all():
        raise ConfigError(f"{function}: sizes must be the positive numbers of examples of each client; got {sizes!r}.")
    check(function, "loss_bound", loss_bound, "(0, inf)")
    check(function, "stability", stability, "[0, inf)")
    check(function, "delta", delta, "(0, 1)")
    d = float(d_k.sum())
    return d_k / d, d
