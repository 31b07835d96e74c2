"""How far a model may be off for those who never train: what is known from the entropies of all clients.

Row i of an (n, c) array is the distribution of client i over c outcomes, such as its class mix. The entropy of all
clients together, H(all), is the sum of theirs: the sources are independent. (Dependent ones have less, and the bounds
hold all the more.)

The bounds are those of "Advocating for the Silent" (arXiv 2310.07171), corrected:

- Lemma 3 claims that minimising the plain risk costs at most 2b sum_i sum_z P_i(z)^2 of the self-information weighted
  one. The second half of its proof bounds ln(1 / P) - 1 by P, and a counterexample is among our tests; `shift` is
  what does hold.
- The same lemma drops a deviation that "does not affect the bound", and Lemma 4 divides by the number of all examples
  whatever the weights: see `sampling_error`.
- "For any delta >= 0" must be delta between 0 and 1.
"""

from typing import NamedTuple

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.theory.entropy import cross_entropy, label_entropy


class Gap(NamedTuple):
    """Terms that add up to a bound on the gap between a model's risk for all clients and for those that trained it."""

    overfitting: float  # L ||h - h*|| H(all): how far the trained model is from the others of its class
    participation: float  # who took part, and with what weight
    shift: float  # plain loss minimised, self-information weighted loss meant
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
    """Return the bound that suggests weighing clients by entropy.

    L ||h - h*|| H(all) + [3b H(all) - b sum_i w_i H_i] + `shift` + `sampling_error`

    The participation term (Lemma 2) falls as the weights move to clients of large entropy. It is never below 2b H(all),
    although the gap it bounds cannot exceed b H(all), between 0 and which both risks lie: read its course, not its
    size.

    Args:
        p: (n, c) distributions of all clients.
        participants: (r,) rows of those that train.
        weights: (r,) their weights.
        num_examples: (r,) their numbers of examples.
        bound: b, what no loss exceeds.
        drift: L ||h - h*||, Lipschitz constant times distance of models; unknown, 1 shows its course.
        complexity: c sqrt(VC), of the class of losses; unknown, 1 shows its course.
        delta: Probability that the bound fails, between 0 and 1.

    Reference: Theorem 1, corrected as the module says.

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
    """Return the bound that suggests whom to choose, for k clients of equal weight among r participants.

    The participation term is

        b (3 - 2r / n) H(all) + b (2 - 2k / r - 1 / k) H(participants) + b / k sum_{i not chosen} H_i,

    least for the k clients of largest entropy. The paper goes on from H_i to the larger H(P_i, P_j), any other j, which
    motivates choosing clients unlike all others; `relaxed` does so with the nearest participant j, and is inf where
    every other participant lacks one of i's outcomes.

    Args:
        p: (n, c) distributions of all clients.
        participants: (r,) rows of those that may be chosen.
        cohort: (k,) rows of those chosen, all of them participants.
        num_examples: (k,) numbers of examples of those chosen.
        relaxed: Whether cross-entropies stand for entropies.
        bound: As of `gap_of_weights`, like `drift`, `complexity` and `delta`.

    Reference: Theorem 2, eq. 7, and the step before the last in appendix A.2; corrected as the module says. The printed
    "P^2 . H(P_i, P_j)" is the end of one formula and the start of the next.

    Example:
        >>> p, rows = np.array([[1.0, 0.0], [0.5, 0.5], [0.9, 0.1]]), np.array([0, 1, 2])
        >>> [round(gap_of_cohort(p, rows, np.array([i]), np.array([9])).participation, 4) for i in rows]
        [2.3759, 1.6827, 2.0508]
    """
    n, r, k = len(p), len(participants), len(cohort)
    entropy = label_entropy(p)
    everybody, taking_part = float(entropy.sum()), float(entropy[participants].sum())
    rest = participants[~np.isin(participants, cohort)]
    left_out = _nearest_cross_entropy(p, rest, participants) if relaxed else entropy[rest]
    weights = np.full(k, 1 / k)
    return Gap(
        overfitting=drift * everybody,
        participation=bound
        * ((3 - 2 * r / n) * everybody + (2 - 2 * k / r - 1 / k) * taking_part + float(left_out.sum()) / k),
        shift=shift(p[cohort], weights, bound),
        sampling=sampling_error(weights, num_examples, bound=bound, complexity=complexity, delta=delta),
    )


def _nearest_cross_entropy(p: Floats, rows: Ints, others: Ints) -> Floats:
    """Return min over j in others, j != i, of H(P_i, P_j) for each i in rows."""
    found = np.where(rows[:, None] == others[None, :], np.inf, cross_entropy(p[rows], p[others]))
    return np.asarray(found.min(axis=1))


def in_distribution_gap(p: Floats, weights: Floats, bound: float = 1.0) -> float:
    """Return b (H(all) - sum_i w_i H_i), the most that training apart may differ from training together.

    With equal weights it is at most b (n - 1) ln c (Corollary 1), and divided by n it is below b times the mean entropy
    of the clients, which it tends to as n grows (Theorem 4).

    Args:
        p: (n, c) distributions of the clients, all of which train.
        weights: (n,) their weights.
        bound: b, what no loss exceeds.

    Reference: Theorem 3, eq. 14.

    Example:
        >>> round(in_distribution_gap(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([0.5, 0.5])), 4)
        0.3466
    """
    entropy = label_entropy(p)
    return bound * float(entropy.sum() - weights @ entropy)


def shift(p: Floats, weights: Floats, bound: float = 1.0) -> float:
    """Return b sum_i w_i sum_z P_i(z) |ln(1 / P_i(z)) - 1|.

    The self-information weighted risk of the model that minimises the plain risk exceeds the smallest one by at most
    this. The two risks of a model differ by D(h) = sum_i w_i sum_z P_i loss (ln(1 / P_i) - 1), and what is lost is at
    most D(plain minimiser) - D(weighted minimiser), each summand of which lies between 0 and b times its factor.

    Args:
        p: (r, c) distributions of those that train.
        weights: (r,) their weights.
        bound: b, what no loss exceeds.

    Reference: stands for E_p in Lemma 3 and E_t in Theorem 2, which do not hold.
    """
    surprise = np.abs(np.log(np.where(p > 0, p, 1)) + 1)
    return bound * float(weights @ (p * surprise).sum(axis=1))


def sampling_error(
    weights: Floats, num_examples: Ints | Floats, *, bound: float, complexity: float, delta: float
) -> float:
    """Return b (C + 2 sqrt(ln(2 / delta) / 2)) / sqrt(m), with m = 1 / sum_i (w_i^2 / m_i) effective examples.

    With weights proportional to the numbers of examples m is their sum; otherwise it is less, down to the m_i of a
    client that has all the weight.

    Args:
        weights: (r,) summing to 1.
        num_examples: (r,) m_i, positive.
        bound: b, what no loss exceeds.
        complexity: C = c sqrt(VC).
        delta: Probability that the bound fails, between 0 and 1.

    Reference: Lemmas 3 and 4, whose sum of all m_i is right for weights proportional to them only (McDiarmid's
    inequality has sum_i m_i (w_i / m_i)^2). The term that Lemma 3 drops doubles the second summand, and two events
    share delta.

    Example:
        >>> sizes = np.array([30, 10])
        >>> [round(sampling_error(np.array(w), sizes, bound=1, complexity=1, delta=0.05), 4)
        ...  for w in ([0.75, 0.25], [0.5, 0.5])]
        [0.5876, 0.6785]
    """
    effective = 1 / float((weights**2 / num_examples).sum())
    return bound * (complexity + 2 * float(np.sqrt(np.log(2 / delta) / 2))) / float(np.sqrt(effective))
