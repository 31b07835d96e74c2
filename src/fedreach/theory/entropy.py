"""Information in what clients hold, and risks in which rare outcomes count more.

Clients are discrete sources: row i of an (n, c) array is the distribution of client i over c outcomes, such as its
class mix. Logarithms are natural. The entropy of each client is `label_entropy`, which takes distributions, too.

Reference: "Advocating for the Silent" (arXiv 2310.07171), whose Definitions and equations are meant below.
"""

import numpy as np

from fedreach.arrays import Floats
from fedreach.data.partition.statistics import label_entropy

__all__ = ["cross_entropy", "joint_risk", "label_entropy", "self_information_risk"]


def cross_entropy(p: Floats, q: Floats) -> Floats:
    """Return the (n, j) matrix H(p_i, q_j) = sum_z p_iz ln(1 / q_jz), with 0 ln(1 / 0) = 0; inf where q_j lacks a z.

    H(p, q) = H(p) + KL(p || q), so it is at least the entropy of p. The distributions are p (n, c) and q (j, c).

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
    """Return the (n,) risks sum_z p_iz loss_z ln(1 / p_iz), in which rare outcomes count more.

    Args:
        p: (n, c) distributions.
        loss: (c,) of one model, for each outcome; not negative.

    Reference: Definition 1, eq. 1.

    Example:
        >>> p = np.array([[0.5, 0.25, 0.25], [0.1, 0.6, 0.3]])
        >>> self_information_risk(p, np.array([0.2, 1.0, 0.5])).round(6)
        array([0.589175, 0.533143])
    """
    return -(p * np.log(np.where(p > 0, p, 1))) @ loss


def joint_risk(p: Floats, loss: Floats, weights: Floats | None = None) -> float:
    """Return E[sum_i w_i loss(z_i) ln(1 / P(z_1, ..., z_n))] over independent sources.

    Then ln(1 / P) is a sum over clients, which gives sum_i w_i (R_i + E[loss(z_i)] sum_{j != i} H_j), where R_i is the
    `self_information_risk` and H_j the entropy.

    Args:
        p: (n, c) distributions of all clients.
        loss: (c,) of one model, for each outcome.
        weights: (n,), 1 / n where left out.

    Reference: Definition 2, eq. 2, where the weights are equal; Theorem 3 where they are not.

    Example:
        >>> p = np.array([[0.5, 0.25, 0.25], [0.1, 0.6, 0.3]])
        >>> round(joint_risk(p, np.array([0.2, 1.0, 0.5])), 6)
        1.174714
    """
    w = np.full(len(p), 1 / len(p)) if weights is None else weights
    entropy = label_entropy(p)
    return float(w @ (self_information_risk(p, loss) + (p @ loss) * (entropy.sum() - entropy)))
