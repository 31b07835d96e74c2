"""How strongly a client's inputs speak against its having the participants' class prior."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedreach.arrays import Floats

PADDED_NUMBERS = 2_000_000  # at once, 16 MB


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


def prequential(
    u: Floats,
    base: Floats,
    pseudo_counts: float,
    log_w: float = 0.0,
    counts: Floats | None = None,
    half_life: float = math.inf,
) -> tuple[float, Floats]:
    """Return log W and the (c,) counts after all inputs, see `course`."""
    whole = course(u, base, pseudo_counts, log_w, counts, half_life)
    return float(whole.log_w[-1]), whole.counts[-1]


def prequential_prior(counts: Floats, base: Floats, pseudo_counts: float) -> Floats:
    """Return (A base + counts)/(A + n) of (..., c) counts whose sum is n."""
    result: Floats = (pseudo_counts * base + counts) / (pseudo_counts + counts.sum(axis=-1, keepdims=True))
    return result


def weight(log_w: float, odds: float) -> float:
    """Return 1/(1 + odds/W): how probable a shift is if it was `odds` times less probable than none.

    Example:
        >>> weight(0.0, 9.0), weight(1e4, 9.0), weight(-1e4, 9.0), weight(-1e4, 0.0)
        (0.1, 1.0, 0.0, 1.0)
    """
    if odds == 0:
        return 1.0
    if log_w > 0:  # exp() of what is not positive only: it cannot overflow
        return 1 / (1 + odds * math.exp(-log_w))
    return math.exp(log_w) / (math.exp(log_w) + odds)


def prequential_many(
    us: Sequence[Floats],
    base: Floats,
    pseudo_counts: float,
    log_w: Floats,
    counts: Floats,
    half_life: float = math.inf,
) -> tuple[Floats, Floats]:
    """Return the (k,) log W and (k, c) counts of k clients, what `prequential` returns for each, many at a time.

    The loop goes over inputs; clients stand by falling length, so that those that still have one come first.

    Args:
        us: k arrays (n_i, c).
        base: (c,)
        pseudo_counts: A, positive.
        log_w: (k,) before these inputs.
        counts: (k, c) likewise.
        half_life: Of an input, see `course`.
    """
    log_w, counts = log_w.copy(), counts.copy()
    lengths = np.array([len(u) for u in us], np.int64)
    waiting = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
    while len(waiting):
        together = max(1, PADDED_NUMBERS // (int(lengths[waiting[0]]) * len(base)))
        chosen, waiting = waiting[:together], waiting[together:]
        log_w[chosen], counts[chosen] = _together(
            [us[i] for i in chosen], base, pseudo_counts, log_w[chosen], counts[chosen], half_life
        )
    return log_w, counts


def _together(
    us: Sequence[Floats],
    base: Floats,
    pseudo_counts: float,
    log_w: Floats,
    counts: Floats,
    half_life: float,
) -> tuple[Floats, Floats]:
    lengths = np.array([len(u) for u in us])
    counts = counts.copy()
    steps, ones = int(lengths[0]), np.ones(len(base))
    ratios = np.ones((steps, len(us), len(base)))
    for i, u in enumerate(us):
        ratios[: len(u), i] = np.exp(u - u.max(axis=1, keepdims=True))
    predicted = ratios @ base  # (steps, k), of which the quotient is 1 where there is no input
    unshifted = predicted.copy()
    pulled, total, decay = pseudo_counts * base, pseudo_counts + counts @ ones, 0.5 ** (1 / half_life)
    for j, active in enumerate(np.searchsorted(-lengths, -np.arange(steps), side="left")):
        joint = (pulled + counts[:active]) * ratios[j, :active]
        sums = joint @ ones
        joint /= sums[:, None]
        if decay == 1.0:
            predicted[j, :active] = sums / (total[:active] + j)
        else:
            predicted[j, :active] = sums / (pseudo_counts + counts[:active] @ ones)
            counts[:active] *= decay
        counts[:active] += joint
    return log_w + np.log(predicted / unshifted).sum(axis=0), counts
