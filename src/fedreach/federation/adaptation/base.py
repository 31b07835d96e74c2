"""Common functions of adaptation rules: sums over participants, class priors, and the unadapted model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedreach._util.arrays import Floats
from fedreach.federation.base import Adaptation
from fedreach.federation.types import Outputs, State

# -------------------- Log softmax


def log_softmax(z: Floats) -> Floats:
    """Return z - log sum_c exp z_c for each row, in float64.

    Example:
        >>> log_softmax(np.array([[1000.0, 1000.0]])).round(4).tolist()
        [[-0.6931, -0.6931]]
    """
    shifted: Floats = z - z.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


# -------------------- Symmetric matrices as messages hold them, and random projections


def pack(symmetric: Floats) -> Floats:
    """Return the d (d + 1) / 2 numbers in the upper triangle of a (d, d) matrix, row by row."""
    return symmetric[np.triu_indices(len(symmetric))]


def unpack(packed: Floats, d: int) -> Floats:
    """Return the symmetric (d, d) matrix with this upper triangle."""
    half = np.zeros((d, d))
    half[np.triu_indices(d)] = packed
    return np.asarray(half + np.triu(half, 1).T)


def fixed_signs(rows: int, columns: int) -> Floats:
    """Return (rows, columns) random signs from raw bits of PCG64, which are the same in all versions of numpy."""
    words = np.random.PCG64(rows).random_raw((rows, -(-columns // 64))).astype("<u8")
    return np.asarray(2.0 * np.unpackbits(words.view(np.uint8), axis=1)[:, :columns] - 1.0)


# -------------------- No adaptation


@dataclass(frozen=True)
class Unadapted(Adaptation):
    """No adaptation: log softmax of the logits, without exchanges or state.

    Use when: you need a baseline for the other prediction modes.

    Example:
        >>> import numpy as np
        >>> np.exp(Unadapted().predict({}, {}, Outputs(np.array([[0.0, 0.0]])))).tolist()
        [[0.5, 0.5]]
    """

    def predict(self, state: State, client: State, outputs: Outputs) -> Floats:
        return log_softmax(outputs.logits)


# -------------------- From evidence to a prior

TINY = float(np.finfo(np.float64).tiny)
"""Smallest positive class probability, so that its logarithm is finite."""


def weights(log_evidence: Floats, odds: float) -> Floats:
    """Return 1/(1 + odds/W) for (k,) log W, the posterior probability of a shift with prior odds `odds` against it.

    Example:
        >>> weights(np.array([0.0, 1e4, -1e4]), 9.0), weights(np.zeros(1), 0.0)
        (array([0.1, 1. , 0. ]), array([1.]))
    """
    if odds == 0:
        return np.ones_like(log_evidence)
    # exp() of what is not positive only: it cannot overflow
    rarely = np.exp(-np.abs(log_evidence))
    return np.asarray(np.where(log_evidence > 0, 1 / (1 + odds * rarely), rarely / (rarely + odds)))


def blend_priors(prior: Floats, weight: Floats, base: Floats) -> Floats:
    """Return w pi + (1 - w) base, where each probability is at least the smallest positive number."""
    return np.maximum(weight * prior + (1 - weight) * base, TINY)


# -------------------- Class priors

GRID: Floats = np.logspace(-1, 3, 41)
"""Candidate pseudo-counts A. The largest candidate means that all clients have the same prior."""
TOLERANCE = 1e-7
MAX_ITERATIONS = 200


def source_prior(held_out: Floats) -> Floats:
    """Return base_c = (n_c + ½)/(n + C/2) from the participants' (c,) counts of held-out labels.

    Example:
        >>> source_prior(np.array([4.0, 0.0]))
        array([0.9, 0.1])
    """
    return np.asarray((held_out + 0.5) / (held_out.sum() + len(held_out) / 2))


def training_shares(counts: Floats) -> Floats:
    """Return (n_c + 1)/(n + C) from the participants' (c,) counts of training labels."""
    return np.asarray((counts + 1) / (counts.sum() + len(counts)))


def spread_likelihoods(counts: Floats, shares: Floats) -> Floats:
    """Return (41,) log likelihoods of one client's label counts, one for each A of `GRID`.

    The counts follow a Dirichlet-multinomial distribution with pseudo-counts A shares_c. The multinomial coefficient is
    omitted, because it is the same for all A.

    Args:
        counts: (c,) label counts, not negative; not necessarily whole numbers.
        shares: (c,) label distribution of all participants, positive, with sum 1.

    Example:
        >>> one_class, mixed = (spread_likelihoods(np.array(n), np.full(2, 0.5)) for n in ([9.0, 0.0], [5.0, 4.0]))
        >>> int(one_class.argmax()), int(mixed.argmax())
        (0, 40)
    """
    return np.array([sum(map(_log_rise, a * shares, counts)) - _log_rise(a, counts.sum()) for a in GRID])


def _log_rise(start: float, n: float) -> float:
    """Return log Gamma(start + n) - log Gamma(start)."""
    return math.lgamma(start + n) - math.lgamma(start)


def fit_spread(likelihoods: Floats) -> float:
    """Return the A of `GRID` with the largest summed (41,) log likelihood; if two are equal, the larger A."""
    return float(GRID[::-1][likelihoods[::-1].argmax()])


def map_em(u: Floats, base: Floats, pseudo_counts: float) -> Floats:
    """Return the (c,) class prior of a client, the posterior mode, by expectation-maximization.

    The algorithm starts from pi = base. It repeats q_ic proportional to pi_c exp u_ic and pi = (sum_i q_i + A base)/(n
    + A). It stops when no probability changes by 1e-7 or more, or after 200 iterations. Each iteration increases

        sum_i log sum_c pi_c exp u_ic + A sum_c base_c log pi_c

    Args:
        u: (n, c) log likelihood ratios, up to a constant per row; n may be 0.
        base: (c,) participants' class prior, positive, with sum 1.
        pseudo_counts: A, not negative; with 0, pi maximizes the likelihood.

    This function is the readable equivalent of `inference.infer_priors`, which processes many clients at a time.

    Reference: Saerens, Latinne and Decaestecker, Neural Computation 14 (2002), for A = 0. Their algorithm also starts
    from the source prior.

    Example:
        >>> map_em(np.log([[0.9, 0.1], [0.8, 0.2], [0.9, 0.1]]), np.full(2, 0.5), 1.0).round(3)
        array([0.856, 0.144])
    """
    if len(u) == 0:
        return base
    ratios = np.exp(u - u.max(axis=1, keepdims=True))
    pulled, total = pseudo_counts * base, len(u) + pseudo_counts
    prior = base
    for _ in range(MAX_ITERATIONS):
        responsibilities = prior * ratios / (ratios @ prior)[:, None]
        after = (responsibilities.sum(axis=0) + pulled) / total
        change = np.abs(after - prior).max()
        prior = after
        if change < TOLERANCE:
            break
    return prior
