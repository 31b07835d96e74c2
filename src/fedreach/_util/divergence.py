"""Divergence of each client's label distribution from that of all clients."""

from typing import Literal

import numpy as np

from fedreach._util.arrays import AnyArray, Floats

Direction = Literal["global_to_local", "local_to_global"]


def kl_divergence(p: AnyArray, q: AnyArray) -> Floats:
    """Return KL(p || q) = sum_c p_c ln(p_c / q_c) in nats of distributions (..., c), over the last axis.

    0 ln 0 is 0; the result is inf if p has mass on a class on which q has none.

    Example:
        >>> float(kl_divergence(np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])).round(4))
        0.2749
    """
    has_mass = p > 0
    reached = ~has_mass | (q > 0)
    # ln 1 replaces the logarithm if the summand is 0 or will be replaced by inf.
    summands = p * np.log(np.where(has_mass & reached, p, 1) / np.where(has_mass & reached, q, 1))
    total = np.where(reached.all(axis=-1), summands.sum(axis=-1), np.inf)
    return np.maximum(total, 0)  # for p = q, rounding may leave a sum below 0


def label_divergences(counts: AnyArray, direction: Direction = "global_to_local", smoothing: float = 0.0) -> Floats:
    """Return the (n,) divergences, in nats, between each client's label distribution and that of all n together.

    With counts m_ic, m_i = sum_c m_ic and z classes,

        p_i = (m_ic + kappa) / (m_i + kappa z),    p = sum_i m_ic / sum_i m_i,

    this is KL(p || p_i), which the bound of the paper below uses, or KL(p_i || p). The former is inf for a client
    that lacks a class, unless kappa > 0. The pooled p is not smoothed: it has mass wherever a client has.

    A class without examples is left out, so that declaring more classes changes nothing. (Otherwise z would count
    them, and KL(p_i || p) would be inf for all clients.) Noisy counts below 0 count as 0. A client without counts has
    the divergence inf without smoothing; with smoothing it counts as uniform.

    Args:
        counts: (n, c) label counts.
        direction: ``"global_to_local"`` for KL(p || p_i), ``"local_to_global"`` for KL(p_i || p).
        smoothing: kappa >= 0, the pseudo-examples added to each class (Laplace).

    Reference: "Data Heterogeneity-Aware Client Selection for Federated Learning in Wireless Networks", eq. 37e and
    Theorem 1. Its eq. 10 prints D(p_k || p_k).

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
