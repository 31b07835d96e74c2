"""Bounds from the papers: generalization and participation gaps."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from fedreach._util.arrays import AnyArray, Floats, Ints
from fedreach._util.errors import ConfigError, Count, NotNegative, Positive, Probability, check, checked
from fedreach.data.assignment import label_entropy as label_entropy
from fedreach.federation import convergence

# -------------------- Rademacher scores of clients and clusters


def random_signs(draws: int, size: int, rng: np.random.Generator) -> Floats:
    """Return (q, s) signs, each -1 or +1 with probability 1/2."""
    return 2 * rng.integers(0, 2, (draws, size)).astype(np.float64) - 1


def all_signs(size: int) -> Floats:
    """Return all (2^s, s) sign vectors, so that a mean over them is an exact expectation, for small s.

    Example:
        >>> all_signs(2).tolist()
        [[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]]
    """
    return np.array(list(product([-1.0, 1.0], repeat=size)))


def monte_carlo_score(outputs: AnyArray, signs: Floats) -> float:
    """Return the score (1/Q) sum_q |(1/(B C)) sum_ic sigma^q_ic f_c(x_i)| of one batch.

    The score averages the absolute values of the draws. The paper's notation also allows the absolute value of the
    average. That score would approach 0 as Q increases, because each sum has mean 0.

    Args:
        outputs: (B, C) outputs of the model, C numbers for each of B examples.
        signs: (Q, B C) signs from `random_signs` or `all_signs`.

    Reference: "Client Selection with Rademacher Complexity for Federated Learning", Algorithm 1. It uses one letter for
    local iterations and for the sum, and sends a score for each batch; both mistakes are corrected.

    Example:
        >>> monte_carlo_score(np.array([[1.0, -2.0], [0.5, 3.0]]), all_signs(4))
        0.78125
    """
    values = np.asarray(outputs, np.float64).ravel()
    return float(np.abs(signs @ values).mean() / values.size)


def closed_form_score(outputs: AnyArray) -> float:
    """Return sqrt(2/pi) ||F|| / (B C), the score of a batch with (B, C) outputs F, without the noise of random signs.

    The score does not contain a supremum over functions. It is the mean absolute value of a random sum with standard
    deviation ||F|| / (B C), where ||F|| is the Frobenius norm. By the central limit theorem, the score is close to the
    returned value if many outputs have similar size. For any outputs it is between 1/sqrt(2) and 1 times ||F|| / (B C)
    (Khintchine). It decreases with 1 / sqrt(B), so compare scores only between equal batch sizes.

    Example:
        >>> round(closed_form_score(np.array([[1.0, -2.0], [0.5, 3.0]])), 10)
        0.7529870416
    """
    values = np.asarray(outputs, np.float64)
    return float(np.sqrt(2 / np.pi) * np.linalg.norm(values) / values.size)


def class_complexity(values: AnyArray, signs: Floats) -> float:
    """Return (1/Q) sum_q max_f (1/n) sum_i sigma^q_i f(x_i), the complexity of a finite class of functions.

    Pass the excess losses l(f(x_i), y_i) - l(f*(x_i), y_i) as values, including a row of zeros for f*. The result is
    then the local Rademacher complexity. The paper uses the score of `monte_carlo_score` instead.

    Args:
        values: (functions, n) values of each function on n examples.
        signs: (Q, n) signs from `random_signs` or `all_signs`.

    Reference: "Client Selection with Rademacher Complexity for Federated Learning", Definitions 1 and 3.

    Example:
        >>> losses = np.array([[0, 0, 0], [0.2, -0.1, 0.3], [-0.4, 0.1, 0.2]])
        >>> round(class_complexity(losses, all_signs(3)), 10)
        0.1083333333
    """
    return float((signs @ np.asarray(values, np.float64).T).max(axis=1).mean() / np.shape(values)[1])


def cluster_scores(scores: Floats, clusters: Ints, num_examples: AnyArray | None = None) -> Floats:
    """Return the mean score of the clients in each cluster; lower is better.

    Args:
        scores: (n,) scores of the clients.
        clusters: (n,) number 0, 1, ... of each client's cluster; no cluster is empty.
        num_examples: (n,) numbers of examples, for means weighted by examples (p_k in Definition 2).

    Reference: "Client Selection with Rademacher Complexity for Federated Learning", Algorithm 2. The paper collects the
    scores in a set, which would drop one of two equal scores.

    Example:
        >>> scores, clusters = np.array([0.3, 0.1, 0.2, 0.5]), np.array([0, 0, 1, 1])
        >>> cluster_scores(scores, clusters), cluster_scores(scores, clusters, np.array([10, 30, 20, 20]))
        (array([0.2 , 0.35]), array([0.15, 0.35]))
    """
    share = np.ones(len(scores)) if num_examples is None else np.asarray(num_examples, np.float64)
    return np.bincount(clusters, share * scores) / np.bincount(clusters, share)


# -------------------- The local Rademacher complexity of finitely many functions, made such that it has one fixed point

ENUMERATED = 12  # up to this many examples all 2^n sign vectors are taken


@dataclass(frozen=True, eq=False)
class StarHull:
    """Local Rademacher complexity of finitely many excess losses and all their multiples with 0 <= t <= 1.

        phi(r) = E max(0, max_f min(1, sqrt(r / mean_i f_i^2)) 1/n sum_i sigma_i f_i)

    phi is sub-root, because every summand is sub-root, and so are maxima and means of sub-root functions. If r is at
    least the largest mean square, phi(r) is the complexity of the whole class.

    Args:
        excess: (q, n) losses of q functions minus the losses of the best function, on the n examples of all clients
            with equal weights.
        signs: (s, n) draws of the signs sigma, each -1 or 1, to average over. None: all 2^n sign vectors, for n at most
            12.

    Raises:
        ConfigError: If shapes do not match, `signs` is empty, or n is too large for all sign vectors.

    Reference: Definition 3; Bartlett, Bousquet and Mendelson, section 3.

    Example:
        >>> hull = StarHull(np.array([[0.2, -0.1, 0.3], [-0.4, 0.1, 0.2]]))
        >>> round(hull(1.0), 10)
        0.1083333333
        >>> from fedreach.federation.bounds import fixed_point
        >>> round(fixed_point(hull), 10)
        0.1083333333
    """

    excess: Floats
    signs: Floats | None = None

    def __post_init__(self) -> None:
        f = np.asarray(self.excess)
        if f.ndim != 2 or f.shape[1] == 0 or not np.isfinite(f).all():
            raise ConfigError(f"StarHull.excess must be finite losses, functions x examples; got shape {f.shape}.")
        n = f.shape[1]
        if self.signs is None and n > ENUMERATED:
            raise ConfigError(
                f"StarHull enumerates the signs of at most {ENUMERATED} examples; got {n}. Pass `signs`, drawn as 2 * "
                "rng.integers(0, 2, (draws, examples)) - 1."
            )
        s = np.ones((1, n)) if self.signs is None else np.asarray(self.signs)
        if s.ndim != 2 or s.shape[1] != n or len(s) == 0 or not (np.abs(s) == 1).all():
            raise ConfigError(f"StarHull.signs must be -1 or 1, draws x {n} examples; got shape {s.shape}.")

    def __call__(self, radius: float) -> float:
        """Return phi at this radius."""
        # A function that is 0 everywhere agrees with nothing, whatever it is multiplied by.
        square = np.where(self._square > 0, self._square, np.inf)
        reach = np.sqrt(np.minimum(radius / square, 1))
        return float((self._agreement * reach).max(axis=1, initial=0.0).mean())

    @cached_property
    def _square(self) -> Floats:
        """The (q,) mean squared losses."""
        return np.asarray((np.asarray(self.excess, np.float64) ** 2).mean(axis=1))

    @cached_property
    def _agreement(self) -> Floats:
        """The (s, q) means of sign times loss over the examples."""
        f = np.asarray(self.excess, np.float64)
        n = f.shape[1]
        return np.asarray((all_signs(n) if self.signs is None else np.asarray(self.signs, np.float64)) @ f.T / n)


# --- How far the trained model may be from the best one, by the local Rademacher complexity of the excess losses
# Reference: "Client Selection with Rademacher Complexity for Federated Learning", Theorem 1 and Lemma 1, after Wei et
# al., "Non-IID Federated Learning with Sharper Risk Bound" (2022), and Bartlett, Bousquet and Mendelson, "Local
# Rademacher Complexities", Ann. Statist. 33 (2005), from which the form of the bound and the conditions are checked.
#
# Slips of the paper, corrected here:
#
# - Theorem 1 takes r* = WLRC(r*). A radius r is a squared loss and a complexity a loss, so it must be r* = B WLRC(r*),
#   with the loss bound B; this is c = 1 / B in Lemma 1, which leaves c open.
# - That phi(r) / sqrt(r) is bounded does not make it non-increasing, and the proof's E (f - f*)^2 <= r / L^2 turns the
#   Lipschitz inequality round. A finite class is not sub-root at all: its complexity jumps where a function enters. Its
#   star hull (all t f with 0 <= t <= 1) is: see `fedreach.federation.bounds.StarHull`.
# - The weights of Definitions 2 and 3 cancel: p_k / n_k = 1 / n, so every example counts the same.
# - A cluster of lower score has a lower r* if its whole curve phi lies lower; a comparison of the two values at the
#   two fixed points, as in the paper, compares r* with itself.

LARGEST = 1e300


class ExcessRisk(NamedTuple):
    """Summands of the bound on the excess risk, in the unit of the loss."""

    complexity: float  # 800 G / B r*
    confidence: float  # (16 G + 12) B ln(1 / delta) / n

    @property
    def total(self) -> float:
        """Their sum, the bound."""
        return self.complexity + self.confidence


@checked
def excess_risk(
    radius: NotNegative, examples: Count, *, loss_bound: Positive = 1.0, delta: Probability = 0.05, slack: float = 2.0
) -> ExcessRisk:
    """Return a bound on the empirical minimizer's expected loss minus the smallest possible expected loss.

        800 G / B r*  +  (16 G + 12) B ln(1 / delta) / n,    with probability at least 1 - delta

    With these constants, the bound is below B only for r* < B^2 / (800 G) and thousands of examples. So it is useful
    only for comparisons. The bound increases with G, so a G near 1 is best.

    Args:
        radius: r*, the result of `fixed_point` with slope 1 / B, not negative.
        examples: n, the number of examples of all clients together, at least 1.
        loss_bound: B, the largest possible loss, positive.
        delta: Probability of failure, in (0, 1).
        slack: G, a free constant above 1.

    Reference: Theorem 1.

    Example:
        >>> bound = excess_risk(1e-5, 20_000)
        >>> round(bound.complexity, 4), round(bound.confidence, 4), round(bound.total, 4)
        (0.016, 0.0066, 0.0226)
    """
    check("excess_risk", "slack", slack, "(1, inf)")
    return ExcessRisk(
        complexity=800 * slack / loss_bound * radius,
        confidence=(16 * slack + 12) * loss_bound * math.log(1 / delta) / examples,
    )


@checked
def fixed_point(complexity: Callable[[float], float], slope: Positive = 1.0) -> float:
    """Return r* = inf {r > 0: phi(r) <= c r}, to the last bits of a double.

    A sub-root phi is not negative and non-decreasing, and phi(r) / sqrt(r) is non-increasing. Then phi(r) <= c r for
    exactly the radii r >= r*, so bisection finds r*, which is 0 only if phi is 0. The function evaluates phi at a few
    points and does not check that it is sub-root. For any other phi it returns some r at which phi(r) equals or jumps
    across c r.

    Args:
        complexity: Function phi from a radius (a squared loss) to a complexity (a loss).
        slope: c, positive; 1 / B for `excess_risk`.

    Raises:
        ConfigError: If phi is negative or not finite, or if phi(r) > c r for all r.

    Reference: eq. 1 and Lemma 1.

    Example:
        >>> fixed_point(lambda r: 0.3 * r**0.5, slope=2.0)      # (0.3 / 2)^2
        0.0225...
    """

    def within(radius: float) -> bool:
        value = complexity(radius)
        if not 0 <= value < math.inf:
            raise ConfigError(
                f"fixed_point: the complexity must be finite and not negative; got {value} at radius {radius}."
            )
        return value <= slope * radius

    high = 1.0
    while not within(high):
        if high >= LARGEST:
            raise ConfigError(
                "fixed_point: the complexity stays above slope * radius, so it grows faster than a square root. Pass "
                "a sub-root function, such as the complexity of a `StarHull`."
            )
        high *= 2
    low = high / 2
    while low > 0 and within(low):
        low, high = low / 2, low
    if low == 0:  # halved away: phi is 0, or too small for a double
        return 0.0
    while low < (middle := low + (high - low) / 2) < high:
        if within(middle):
            high = middle
        else:
            low = middle
    return high


# -------------------- Information in what clients hold, and risks in which rare outcomes count more
# Clients are discrete sources: row i of an (n, c) array is the distribution of client i over c outcomes, such as its
# class mix. Logarithms are natural. The entropy of each client is `label_entropy`, which takes distributions, too.
#
# Reference: "Advocating for the Silent" (arXiv 2310.07171), whose Definitions and equations are meant below.


def cross_entropy(p: Floats, q: Floats) -> Floats:
    """Return the (n, j) matrix H(p_i, q_j) = sum_z p_iz ln(1 / q_jz), with 0 ln(1 / 0) = 0.

    An entry is infinite if q_jz = 0 for an outcome z of p_i. H(p, q) = H(p) + KL(p || q), so it is at least the entropy
    of p. The distributions are p (n, c) and q (j, c).

    Example:
        >>> p = np.array([[0.5, 0.25, 0.25], [0.1, 0.6, 0.3]])
        >>> cross_entropy(p, p).round(4)
        array([[1.0397, 1.58  ],
               [1.317 , 0.8979]])
    """
    finite = p @ -np.log(np.where(q > 0, q, 1)).T
    lacking = p @ (q == 0).astype(np.float64).T
    return np.where(lacking > 0, np.inf, finite)


def self_information_risk(p: Floats, loss: Floats) -> Floats:
    """Return the (n,) risks sum_z p_iz loss_z ln(1 / p_iz), in which rare outcomes have larger weights.

    Args:
        p: (n, c) distributions of the clients.
        loss: (c,) losses of one model for each outcome, not negative.

    Reference: Definition 1, eq. 1.

    Example:
        >>> p = np.array([[0.5, 0.25, 0.25], [0.1, 0.6, 0.3]])
        >>> self_information_risk(p, np.array([0.2, 1.0, 0.5])).round(6)
        array([0.589175, 0.533143])
    """
    return -(p * np.log(np.where(p > 0, p, 1))) @ loss


def joint_risk(p: Floats, loss: Floats, weights: Floats | None = None) -> float:
    """Return E[sum_i w_i loss(z_i) ln(1 / P(z_1, ..., z_n))] for independent clients.

    For independent clients, ln(1 / P) is a sum over clients. So the result is sum_i w_i (R_i + E[loss(z_i)] sum_{j !=
    i} H_j), where R_i is the `self_information_risk` and H_j the entropy.

    Args:
        p: (n, c) distributions of all clients.
        loss: (c,) losses of one model for each outcome.
        weights: (n,) weights of the clients. Default: 1 / n.

    Reference: Definition 2, eq. 2, for equal weights; Theorem 3 for other weights.

    Example:
        >>> p = np.array([[0.5, 0.25, 0.25], [0.1, 0.6, 0.3]])
        >>> round(joint_risk(p, np.array([0.2, 1.0, 0.5])), 6)
        1.174714
    """
    w = np.full(len(p), 1 / len(p)) if weights is None else weights
    entropy = label_entropy(p)
    return float(w @ (self_information_risk(p, loss) + (p @ loss) * (entropy.sum() - entropy)))


# -------------------- Participation gap from label entropies
# Row i of an (n, c) array is the distribution of client i over c outcomes, such as its class mix. The entropy of all
# clients together, H(all), is the sum of theirs: the sources are independent. (Dependent ones have less, and the bounds
# hold all the more.)
#
# The bounds are those of "Advocating for the Silent" (arXiv 2310.07171), corrected:
#
# - Lemma 3 claims that minimizing the plain risk costs at most 2b sum_i sum_z P_i(z)^2 of the self-information weighted
#   one. The second half of its proof bounds ln(1 / P) - 1 by P, and a counterexample is among our tests; `shift` is
#   what does hold.
# - The same lemma drops a deviation that "does not affect the bound", and Lemma 4 divides by the number of all examples
#   whatever the weights: see `sampling_error`.
# - "For any delta >= 0" must be delta between 0 and 1.


class Gap(NamedTuple):
    """Summands of a bound on the gap between a model's risk on all clients and its risk on participants."""

    overfitting: float  # L ||h - h*|| H(all): how far the trained model is from the others of its class
    participation: float  # participation, and weights
    shift: float  # plain loss minimized, self-information weighted loss meant
    sampling: float  # finite numbers of examples

    @property
    def total(self) -> float:
        """The bound."""
        return sum(self)


def gap_of_weights(
    p: Floats,
    participants: Ints,
    weights: Floats,
    num_examples: Ints | Floats,
    *,
    bound: float = 1.0,
    drift: float = 1.0,
    complexity: float = 1.0,
    delta: float = 0.05,
) -> Gap:
    """Return the bound that motivates weighting clients by entropy.

    L ||h - h*|| H(all) + [3b H(all) - b sum_i w_i H_i] + `shift` + `sampling_error`

    The participation term (Lemma 2) decreases with larger weights of clients with large entropy. It is never below 2b
    H(all). But the gap that it bounds is at most b H(all), because both risks are between 0 and b H(all). So only
    changes of the term are informative, not its size.

    Args:
        p: (n, c) distributions of all clients.
        participants: (r,) rows of the participants in `p`.
        weights: (r,) weights of the participants.
        num_examples: (r,) numbers of examples of the participants.
        bound: b, the largest possible loss.
        drift: L ||h - h*||, Lipschitz constant times distance of models. The value is unknown; 1 shows the trend.
        complexity: c sqrt(VC) of the class of losses. The value is unknown; 1 shows the trend.
        delta: Probability that the bound fails, between 0 and 1.

    Reference: Theorem 1, with the corrections listed in the module.

    Example:
        >>> p, rows, sizes = np.array([[1.0, 0.0], [0.5, 0.5], [0.9, 0.1]]), np.array([0, 1]), np.array([50, 50])
        >>> for weights in ([0.5, 0.5], [0.0, 1.0]):
        ...     round(gap_of_weights(p, rows, np.array(weights), sizes).participation, 4)
        2.7081
        2.3615
    """
    everybody = float(label_entropy(p).sum())
    return Gap(
        overfitting=drift * everybody,
        participation=bound * (3 * everybody - float(weights @ label_entropy(p[participants]))),
        shift=shift(p[participants], weights, bound),
        sampling=sampling_error(weights, num_examples, bound=bound, complexity=complexity, delta=delta),
    )


def gap_of_cohort(
    p: Floats,
    participants: Ints,
    cohort: Ints,
    num_examples: Ints | Floats,
    *,
    relaxed: bool = False,
    bound: float = 1.0,
    drift: float = 1.0,
    complexity: float = 1.0,
    delta: float = 0.05,
) -> Gap:
    """Return the bound that motivates a selection of k clients with equal weights among r participants.

    The participation term is

        b (3 - 2r / n) H(all) + b (2 - 2k / r - 1 / k) H(participants) + b / k sum_{i not chosen} H_i,

    It is smallest for the k clients with the largest entropy. The paper then replaces H_i by the larger H(P_i, P_j) for
    any other j, which motivates the selection of clients that differ from all others. `relaxed` uses the participant j
    nearest to i. The bound is then infinite if every other participant lacks one of i's outcomes.

    Args:
        p: (n, c) distributions of all clients.
        participants: (r,) rows of the participants in `p`.
        cohort: (k,) rows of the selected participants.
        num_examples: (k,) numbers of examples of the selected participants.
        relaxed: Use cross-entropies instead of entropies.
        bound: Option of `gap_of_weights`, as are `drift`, `complexity` and `delta`.

    Reference: Theorem 2, eq. 7, and the step before the last in appendix A.2, with the corrections listed in the
    module. The printed "P^2 . H(P_i, P_j)" is the end of one formula and the start of the next.

    Example:
        >>> p, rows = np.array([[1.0, 0.0], [0.5, 0.5], [0.9, 0.1]]), np.array([0, 1, 2])
        >>> [round(gap_of_cohort(p, rows, np.array([i]), np.array([9])).participation, 4) for i in rows]
        [2.3759, 1.6827, 2.0508]
    """
    n, r, k = len(p), len(participants), len(cohort)
    entropy = label_entropy(p)
    everybody, taking_part = float(entropy.sum()), float(entropy[participants].sum())
    unchosen = participants[~np.isin(participants, cohort)]
    left_out = _nearest_cross_entropy(p, unchosen, participants) if relaxed else entropy[unchosen]
    weights = np.full(k, 1 / k)
    return Gap(
        overfitting=drift * everybody,
        participation=bound
        * ((3 - 2 * r / n) * everybody + (2 - 2 * k / r - 1 / k) * taking_part + float(left_out.sum()) / k),
        shift=shift(p[cohort], weights, bound),
        sampling=sampling_error(weights, num_examples, bound=bound, complexity=complexity, delta=delta),
    )


def _nearest_cross_entropy(p: Floats, rows: Ints, candidates: Ints) -> Floats:
    """Return min over j in others, j != i, of H(P_i, P_j) for each i in rows."""
    entropies = np.where(rows[:, None] == candidates[None, :], np.inf, cross_entropy(p[rows], p[candidates]))
    return np.asarray(entropies.min(axis=1))


def in_distribution_gap(p: Floats, weights: Floats, bound: float = 1.0) -> float:
    """Return b (H(all) - sum_i w_i H_i), a bound on the difference between separate and joint training.

    With equal weights it is at most b (n - 1) ln c (Corollary 1). Divided by n it is below b times the mean entropy of
    the clients, and approaches this value as n increases (Theorem 4).

    Args:
        p: (n, c) distributions of the clients, which all train.
        weights: (n,) weights of the clients.
        bound: b, the largest possible loss.

    Reference: Theorem 3, eq. 14.

    Example:
        >>> round(in_distribution_gap(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([0.5, 0.5])), 4)
        0.3466
    """
    entropy = label_entropy(p)
    return bound * float(entropy.sum() - weights @ entropy)


def shift(p: Floats, weights: Floats, bound: float = 1.0) -> float:
    """Return b sum_i w_i sum_z P_i(z) |ln(1 / P_i(z)) - 1|.

    Consider the model that minimizes the unweighted risk. Its self-information weighted risk exceeds the smallest
    possible one by at most the returned value. For a model h the two risks differ by D(h) = sum_i w_i sum_z P_i loss
    (ln(1 / P_i) - 1). So the excess is at most D(unweighted minimizer) - D(weighted minimizer), and in each summand of
    D the loss is between 0 and b.

    Args:
        p: (r, c) distributions of the participants.
        weights: (r,) weights of the participants.
        bound: b, the largest possible loss.

    Reference: This term replaces E_p in Lemma 3 and E_t in Theorem 2, which do not hold.
    """
    surprise = np.abs(np.log(np.where(p > 0, p, 1)) + 1)
    return bound * float(weights @ (p * surprise).sum(axis=1))


def sampling_error(
    weights: Floats, num_examples: Ints | Floats, *, bound: float, complexity: float, delta: float
) -> float:
    """Return b (C + 2 sqrt(ln(2 / delta) / 2)) / sqrt(m), with m = 1 / sum_i (w_i^2 / m_i) effective examples.

    If weights are proportional to the numbers of examples, m is the sum of these numbers. Otherwise m is smaller. If
    one client has all the weight, m equals its m_i.

    Args:
        weights: (r,) weights with sum 1.
        num_examples: (r,) numbers of examples m_i, positive.
        bound: b, the largest possible loss.
        complexity: C = c sqrt(VC).
        delta: Probability that the bound fails, between 0 and 1.

    Reference: Lemmas 3 and 4. Their sum of all m_i is correct only for weights proportional to m_i, because McDiarmid's
    inequality contains sum_i m_i (w_i / m_i)^2. The term that Lemma 3 omits doubles the second summand, and two events
    share delta.

    Example:
        >>> sizes = np.array([30, 10])
        >>> [round(sampling_error(np.array(w), sizes, bound=1, complexity=1, delta=0.05), 4)
        ...  for w in ([0.75, 0.25], [0.5, 0.5])]
        [0.5876, 0.6785]
    """
    effective = 1 / float((weights**2 / num_examples).sum())
    return bound * (complexity + 2 * float(np.sqrt(np.log(2 / delta) / 2))) / float(np.sqrt(effective))


# -------------------- The theorems of the five papers

THEOREMS: Mapping[str, Callable[..., object]] = MappingProxyType(
    {
        "entropy_theorem_1": gap_of_weights,
        "entropy_theorem_2": gap_of_cohort,
        "entropy_theorem_3": in_distribution_gap,
        "disagreement_theorem_3_1": convergence.upper_bound,
        "disagreement_theorem_3_2": convergence.lower_bound,
        "disagreement_eq_19": convergence.total_disagreement,
        "safari_theorem_1": convergence.worst_case_error,
        "safari_theorem_2": convergence.generalization_rate,
        "safari_theorem_3": convergence.excess_allowed,
        "safari_theorem_4": convergence.convergence_bound,
        "safari_theorem_4_share": convergence.largest_share,
        "safari_theorem_4_lr": convergence.largest_server_lr,
        "safari_corollary_1": convergence.speedup_settings,
        "csra_theorem_1": convergence.generalization_bound,
        "csra_theorem_1_printed": convergence.printed_bound,
        "rademacher_theorem_1": excess_risk,
        "rademacher_lemma_1": fixed_point,
    }
)
"""Number in its paper -> function."""
