"""Class priors: that of the participants together, how far theirs lie apart, and an unseen client's from its inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedreach.arrays import Floats

GRID: Floats = np.logspace(-1, 3, 41)
"""Pseudo-counts A that are compared. The last says that all clients have one prior."""
TOLERANCE = 1e-7
MAX_ITERATIONS = 200
CACHED_NUMBERS = 100_000  # of clients whose iterations run together: about what a core's own cache holds


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

    Reference: Saerens, Latinne and Decaestecker, Neural Computation 14 (2002), which is A = 0. They start from the
    source prior, too.

    Example:
        >>> map_em(np.log([[0.9, 0.1], [0.8, 0.2], [0.9, 0.1]]), np.full(2, 0.5), 1.0).round(3)
        array([0.856, 0.144])
    """
    if len(u) == 0:
        return base
    ratios = _ratios(u)  # (c, n): long rows make both products fast
    pulled, total = pseudo_counts * base, len(u) + pseudo_counts
    prior = base
    for _ in range(MAX_ITERATIONS):
        after = (prior * (ratios @ (1 / (prior @ ratios))) + pulled) / total
        change = np.abs(after - prior).max()
        prior = after
        if change < TOLERANCE:
            break
    return prior


def map_em_many(us: Sequence[Floats], base: Floats, pseudo_counts: float) -> Floats:
    """Return the (k, c) priors of k clients, what `map_em` returns for each, several at a time.

    Clients of like length run together, as many as fit into cache, and leave when they are done.
    """
    priors = np.tile(base, (len(us), 1))
    lengths = np.array([len(u) for u in us], np.int64)
    waiting = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]  # without inputs it stays at base
    while len(waiting):
        together = max(1, CACHED_NUMBERS // (int(lengths[waiting[0]]) * len(base)))
        chosen, waiting = waiting[:together], waiting[together:]
        priors[chosen] = _together([us[i] for i in chosen], base, pseudo_counts)
    return priors


def _together(us: Sequence[Floats], base: Floats, pseudo_counts: float) -> Floats:
    lengths = np.array([len(u) for u in us])
    ratios = np.zeros((len(us), len(base), lengths.max()))
    for row, u in zip(ratios, us, strict=True):
        row[:, : len(u)] = _ratios(u)
    # Columns without an input are 0; 1 in place of their sums keeps them finite, and 0 they contribute.
    absent = (np.arange(lengths.max()) >= lengths[:, None]).astype(np.float64)[:, None]
    is_padded = bool(absent.any())
    pulled, total = pseudo_counts * base, (lengths + pseudo_counts)[:, None]
    priors, done = np.tile(base, (len(us), 1)), np.empty((len(us), len(base)))
    rows = np.arange(len(us))
    for _ in range(MAX_ITERATIONS):
        sums = priors[:, None] @ ratios  # (k, 1, n)
        if is_padded:
            sums += absent
        np.divide(1, sums, out=sums)
        after = (priors * (ratios @ sums.transpose(0, 2, 1))[:, :, 0] + pulled) / total
        going = np.abs(after - priors).max(axis=1) >= TOLERANCE
        priors = after
        if not going.all():
            done[rows[~going]] = priors[~going]
            rows, priors, ratios, absent, total = (x[going] for x in (rows, priors, ratios, absent, total))
            if not len(rows):
                break
    done[rows] = priors
    return done


def _ratios(u: Floats) -> Floats:
    """Return (c, n) exp of u, the largest of each input being 1."""
    shifted = np.ascontiguousarray(u.T)
    result: Floats = np.exp(shifted - shifted.max(axis=0))
    return result
