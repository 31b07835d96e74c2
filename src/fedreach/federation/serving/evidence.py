"""How strongly a client's inputs, one after the other, speak against its having the participants' class prior."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedreach.arrays import Floats


class Course(NamedTuple):
    """What was known before each of n inputs, and after the last, with each of k half-lives."""

    log_w: Floats  # (n + 1, k) log W_0 ... log W_n
    counts: Floats  # (n + 1, k, c) expected number of inputs seen of each class
    prior: Floats  # (n + 1, k, c)


def course(
    u: Floats,
    base: Floats,
    pseudo_counts: float,
    half_lives: Sequence[float] = (math.inf,),
    log_w: Floats | None = None,
    counts: Floats | None = None,
    correlation: float = 0.0,
) -> Course:
    """Return the evidence against "no label shift" as it grows, input by input, in their order.

    For each half-life, with pi^(0) = base and A pseudo-counts,

        r_jc proportional to pi^(j-1)_c exp u_jc
        log W_j = log W_(j-1) + log(sum_c pi^(j-1)_c exp u_jc / sum_c base_c exp u_jc)
        N^(j) = d N^(j-1) + r_j,   d = 2^(-1/half-life),   N^(0) = 0
        pi^(j) = (A base + N^(j)/e)/(A + sum_c N^(j)_c/e),   e = 1 + (sum_c N^(j)_c - 1)_+ rho

    Each input is judged by those before it only. So, without shift and with exact likelihood ratios, W is a
    nonnegative martingale that starts at 1, and it ever reaches x with a probability of 1/x at most (Ville), whatever
    the half-life; and so is the mean of W over half-lives.

    Args:
        u: (n, c) log likelihood ratios, up to a constant a row; n may be 0.
        base: (c,) positive, summing to 1.
        pseudo_counts: A, positive.
        half_lives: (k,) numbers of inputs after which one counts half, positive. Infinite: nothing is forgotten.
        log_w: (k,) of the inputs before these.
        counts: (k, c) likewise, N; None: there were none.
        correlation: rho, from 0 to 1: e is the design effect of as many inputs as are not forgotten.

    Example:
        >>> two = course(np.log([[0.9, 0.1], [0.9, 0.1]]), np.full(2, 0.5), 2.0)
        >>> two.log_w[:, 0].round(3), two.counts.round(3)[-1, 0]
        (array([0.   , 0.   , 0.193]), array([1.84, 0.16]))
    """
    k = len(half_lives)
    decay = 0.5 ** (1 / np.asarray(half_lives, np.float64))[:, None]
    logs = [np.zeros(k) if log_w is None else log_w]
    all_counts = [np.zeros((k, len(base))) if counts is None else counts]
    shares = [prequential_prior(all_counts[0], base, pseudo_counts, correlation)]
    for ratios in np.exp(u - u.max(axis=1, keepdims=True)):
        joint = shares[-1] * ratios
        total = joint.sum(axis=1, keepdims=True)
        logs.append(logs[-1] + np.log(total[:, 0] / (base @ ratios)))
        all_counts.append(decay * all_counts[-1] + joint / total)
        shares.append(prequential_prior(all_counts[-1], base, pseudo_counts, correlation))
    return Course(np.array(logs), np.array(all_counts), np.array(shares))


def prequential_prior(counts: Floats, base: Floats, pseudo_counts: float, correlation: float = 0.0) -> Floats:
    """Return (A base + N/e)/(A + n/e) of (..., c) counts N whose sum is n, with e = 1 + (n - 1)_+ rho."""
    n = counts.sum(axis=-1, keepdims=True)
    effect = 1.0 + np.maximum(n - 1.0, 0.0) * correlation
    result: Floats = (pseudo_counts * base + counts / effect) / (pseudo_counts + n / effect)
    return result


def accumulated(rows: Floats, before: Floats, half_lives: Sequence[float] = (math.inf,)) -> Floats:
    """Return (n + 1, k, c) sums of the rows before each row and after the last, a row counting half after a half-life.

    Example:
        >>> accumulated(np.eye(2), np.zeros((1, 2)))[:, 0].tolist()
        [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]
    """
    decay, sums = 0.5 ** (1 / np.asarray(half_lives, np.float64))[:, None], [before]
    for row in rows:
        sums.append(decay * sums[-1] + row)
    return np.array(sums)
