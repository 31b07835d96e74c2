"""How strongly a client's inputs speak against its having the participants' class prior."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedreach.arrays import Floats


class Course(NamedTuple):
    """What was known before each of n inputs, and after the last."""

    log_w: Floats  # (n + 1,) log W_0 ... log W_n
    counts: Floats  # (n + 1, c) expected number of inputs seen of each class


def course(
    u: Floats,
    base: Floats,
    pseudo_counts: float,
    log_w: float = 0.0,
    counts: Floats | None = None,
    half_life: float = math.inf,
) -> Course:
    """Return the evidence against "no label shift" as it grows, input by input, in their order.

    pi^(0) = base and, with A pseudo-counts,

        r_jc proportional to pi^(j-1)_c exp u_jc
        log W_j = log W_(j-1) + log(sum_c pi^(j-1)_c exp u_jc / sum_c base_c exp u_jc)
        N^(j) = d N^(j-1) + r_j,   d = 2^(-1/half_life),   N^(0) = 0
        pi^(j) = (A base + N^(j))/(A + sum_c N^(j)_c)

    Each input is judged by those before it only. So, without shift and with exact likelihood ratios, W is a
    nonnegative martingale that starts at 1, and it ever reaches x with a probability of 1/x at most (Ville), whatever
    the half-life.

    Args:
        u: (n, c) log likelihood ratios, up to a constant a row; n may be 0.
        base: (c,) positive, summing to 1.
        pseudo_counts: A, positive.
        log_w: Of the inputs before these.
        counts: (c,) likewise, N; None: there were none.
        half_life: Inputs after which one counts half, positive. Infinite: nothing is forgotten.

    Example:
        >>> two = course(np.log([[0.9, 0.1], [0.9, 0.1]]), np.full(2, 0.5), 2.0)
        >>> two.log_w.round(3), two.counts.round(3)[-1]
        (array([0.   , 0.   , 0.193]), array([1.84, 0.16]))
    """
    seen = np.zeros(len(base)) if counts is None else counts
    logs, all_counts, decay = [log_w], [seen], 0.5 ** (1 / half_life)
    for ratios in np.exp(u - u.max(axis=1, keepdims=True)):
        joint = prequential_prior(seen, base, pseudo_counts) * ratios
        logs.append(logs[-1] + math.log(joint.sum() / (base @ ratios)))
        seen = decay * seen + joint / joint.sum()
        all_counts.append(seen)
    return Course(np.array(logs), np.array(all_counts))


def prequential_prior(counts: Floats, base: Floats, pseudo_counts: float) -> Floats:
    """Return (A base + counts)/(A + n) of (..., c) counts whose sum is n."""
    result: Floats = (pseudo_counts * base + counts) / (pseudo_counts + counts.sum(axis=-1, keepdims=True))
    return result


def accumulated(rows: Floats, before: Floats, half_life: float = math.inf) -> Floats:
    """Return (n + 1, c) sums of the rows before each row and after the last, a row counting half after `half_life`.

    Example:
        >>> accumulated(np.eye(2), np.zeros(2)).tolist()
        [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]
    """
    decay, sums = 0.5 ** (1 / half_life), [before]
    for row in rows:
        sums.append(decay * sums[-1] + row)
    return np.array(sums)
