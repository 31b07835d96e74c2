"""Class priors: that of the participants together, how far theirs lie apart, and an unseen client's from its inputs."""

from __future__ import annotations

import math

import numpy as np

from fedreach.arrays import Floats

GRID: Floats = np.logspace(-1, 3, 41)
"""Pseudo-counts A that are compared. The last says that all clients have one prior."""
TOLERANCE = 1e-7
MAX_ITERATIONS = 200


def source_prior(held_out: Floats) -> Floats:
    """Return base_c = (n_c + ½)/(n + C/2) from the participants' (c,) counts of held-out labels.

    Example:
        >>> source_prior(np.array([4.0, 0.0]))
        array([0.9, 0.1])
    """
    result: Floats = (held_out + 0.5) / (held_out.sum() + len(held_out) / 2)
    return result


def training_shares(counts: Floats) -> Floats:
    """Return (n_c + 1)/(n + C) from the participants' (c,) counts of training labels."""
    result: Floats = (counts + 1) / (counts.sum() + len(counts))
    return result


def spread_likelihoods(counts: Floats, shares: Floats) -> Floats:
    """Return (41,) log likelihoods of one client's label counts, one for each A of `GRID`.

    The counts are Dirichlet-multinomial with pseudo-counts A shares_c. The multinomial coefficient is left out: it is
    the same for all A.

    Args:
        counts: (c,) not negative, whole or not.
        shares: (c,) positive, summing to 1.

    Example:
        >>> one_class, mixed = (spread_likelihoods(np.array(n), np.full(2, 0.5)) for n in ([9.0, 0.0], [5.0, 4.0]))
        >>> int(one_class.argmax()), int(mixed.argmax())
        (0, 40)
    """
    return np.array([sum(map(_log_rise, a * shares, counts)) - _log_rise(a, counts.sum()) for a in GRID])


def _log_rise(start: float, n: float) -> float:
    """Return log Gamma(start + n) - log Gamma(start)."""
    return math.lgamma(start + n) - math.lgamma(start)


def fitted_spread(likelihoods: Floats) -> float:
    """Return the A of `GRID` whose summed (41,) log likelihood is largest; the larger one where two are equal."""
    return float(GRID[::-1][likelihoods[::-1].argmax()])


def map_em(u: Floats, base: Floats, pseudo_counts: float) -> Floats:
    """Return the (c,) class prior of a client, the mode of its posterior, by expectation-maximisation.

    From pi = base, q_ic proportional to pi_c exp u_ic, then pi = (sum_i q_i + A base)/(n + A), until no share
    changes by 1e-7 or more, or 200 times. Each iteration increases

        sum_i log sum_c pi_c exp u_ic + A sum_c base_c log pi_c

    Args:
        u: (n, c) log likelihood ratios, up to a constant a row; n may be 0.
        base: (c,) positive, summing to 1.
        pseudo_counts: A, not negative; with 0, the maximum of the likelihood.

    This is the readable twin of `inference.infer_priors`, which does so for many clients at a time.

    Reference: Saerens, Latinne and Decaestecker, Neural Computation 14 (2002), which is A = 0. They start from the
    source prior, too.

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
