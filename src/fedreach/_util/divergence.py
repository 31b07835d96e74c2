"""Divergence between each client's label distribution and the pooled distribution of all clients."""

from typing import Literal

import numpy as np

from fedreach._util.arrays import AnyArray, Floats

Direction = Literal["global_to_local", "local_to_global"]


def kl_divergence(p: AnyArray, q: AnyArray) -> Floats:
    """Return the Kullback-Leibler divergence KL(p || q) = sum_c p_c ln(p_c / q_c) in nats, over the last axis.

    Terms with p_c = 0 are 0. The result is inf if a class has p_c > 0 and q_c = 0.

    Args:
        p: (..., c) probabilities.
        q: (..., c) probabilities.

    Example:
        >>> float(kl_divergence(np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])).round(4))
        0.2749
    """
    has_mass = p > 0
    reached = ~has_mass | (q > 0)
    # The logarithm becomes ln 1 where the term is 0 or is replaced by inf below.
    summands = p * np.log(np.where(has_mass & reached, p, 1) / np.where(has_mass & reached, q, 1))
    total = np.where(reached.all(axis=-1), summands.sum(axis=-1), np.inf)
    return np.maximum(total, 0)  # rounding can make the sum negative if p = q


def label_divergences(counts: AnyArray, direction: Direction = "global_to_local", smoothing: float = 0.0) -> Floats:
    """Return the (n,) divergences, in nats, between each client's label distribution and the pooled distribution.

    With counts m_ic, m_i = sum_c m_ic and z classes, the divergence is KL(p || p_i) or KL(p_i || p), where

        p_i = (m_ic + kappa) / (m_i + kappa z),    p = sum_i m_ic / sum_i m_i.

    Without smoothing, KL(p || p_i) is inf for a client that lacks a class. The pooled p is never smoothed.

    Classes without any examples are ignored and do not count in z. Negative counts, which noise can cause, are replaced
    by 0. The divergence of a client without counts is inf. With smoothing, the distribution of this client is uniform.

    Args:
        counts: (n, c) label counts.
        direction: ``"global_to_local"`` for KL(p || p_i), ``"local_to_global"`` for KL(p_i || p).
        smoothing: kappa >= 0, the number of pseudo-examples added to each class (Laplace smoothing).

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", eq. 37e and
    Theorem 1, which use KL(p || p_i). Eq. 10 of the paper prints D(p_k || p_k).

    Example:
        >>> counts = np.array([[10, 10, 0], [5, 5, 10], [30, 0, 0], [8, 12, 10]])
        >>> label_divergences(counts).round(4)
        array([   inf, 0.2358,    inf, 0.1558])
        >>> label_divergences(counts, smoothing=1).round(4)
        array([0.2053, 0.2106, 0.6646, 0.148 ])
        >>> label_divergences(counts, "local_to_global").round(4)
        array([0.279 , 0.2511, 0.6349, 0.1443])
    """
    label_counts = np.maximum(np.asarray(counts, np.float64), 0)
    label_counts = label_counts[:, label_counts.sum(axis=0) > 0]
    pooled = label_counts.sum(axis=0) / max(label_counts.sum(), 1e-300)
    smoothed = label_counts + smoothing
    sizes = smoothed.sum(axis=1, keepdims=True)
    empty = sizes[:, 0] == 0
    local = smoothed / np.where(sizes > 0, sizes, 1)
    divergence = kl_divergence(pooled, local) if direction == "global_to_local" else kl_divergence(local, pooled)
    return np.where(empty, np.inf, divergence)
