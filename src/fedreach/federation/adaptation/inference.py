"""Inference of class priors from inputs, with evidence; the order of the inputs changes no bit.

Many clients are worked on at a time, and each gets what it would get alone: rows are padded to a length that depends on
the client's own number of inputs only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fedreach._util.arrays import AnyArray, Floats, Ints
from fedreach.federation.adaptation.base import MAX_ITERATIONS, TOLERANCE

CACHED_NUMBERS = 100_000  # of clients whose iterations run together: about what a core's own cache holds
HELD_NUMBERS = 2_000_000  # while evidence is taken, 16 MB
ORDERS = 4  # of a client's inputs, in which evidence is taken
EVIDENCE_INPUTS = 5000  # in each order; more would not change what is decided
SORTED_COLUMNS = 3  # by which inputs are brought into an order, unless they tie


class ClientPrior(NamedTuple):
    """What a client infers from its inputs."""

    prior: Floats  # (c,)
    log_evidence: float  # log W against "its prior is base"
    counts: Floats  # (c,) expected number of inputs of each class


def infer_priors(
    us: Sequence[Floats],
    base: Floats,
    pseudo_counts: float,
    correlation: float | Floats = 0.0,
    amplification: float = math.inf,
) -> list[ClientPrior]:
    """Estimate the class priors of k clients by MAP-EM with a design effect.

    n inputs of one client whose predictions have the intraclass correlation rho are worth n/d independent ones, with
    the design effect d = 1 + (n - 1) rho. With q_i proportional to pi exp u_i, the prior pi is the mode of

        (1/d) sum_i log sum_c pi_c exp u_ic + A sum_c base_c log pi_c

    A model that hardly separates classes overreacts: where p(y|x) of a client is a bit larger for a class,
    repeated steps of EM can end at that class alone. So the estimate goes at most M times as far from the base prior as
    the mean prediction does: pi = base + min(1, M |m - base|/|pi - base|) (pi - base), where m is the mean prediction
    under the base prior and |.| the sum of absolute values.

    The evidence W against "no label shift" is prequential, each input judged by those before it only: pi^(0) = base and

        r_jc proportional to pi^(j-1)_c exp u_jc,  pi^(j) = (A base + r_1 + ... + r_j)/(A + j)
        log W = (1/d) sum_j log(sum_c pi^(j-1)_c exp u_jc / sum_c base_c exp u_jc)

    As a mean of W over a few orders of the inputs, the same few whatever order they came in. Without shift and with
    exact likelihood ratios the mean of W is 1 at most, so that W reaches x with probability 1/x at most (Markov).

    Args:
        us: k arrays (n, c) of log likelihood ratios, up to a constant a row; n may be 0.
        base: (c,) positive, summing to 1.
        pseudo_counts: A, positive.
        correlation: rho, from 0 to 1, of all clients or (k,) of each.
        amplification: M, positive; infinite: no limit.

    Reference: Saerens, Latinne and Decaestecker, Neural Computation 14 (2002), for EM; Kish, Survey Sampling (1965),
    for the design effect. The limit and the bound are ours.

    Example:
        >>> copies = np.log(np.tile([0.9, 0.1], (20, 1)))
        >>> infer_priors([copies], np.full(2, 0.5), 1.0)[0].prior.round(2).tolist()
        [0.97, 0.03]
        >>> [client.prior.round(2).tolist() for client in infer_priors([copies, copies[:1]], np.full(2, 0.5), 1.0, 1.0)]
        [[0.73, 0.27], [0.73, 0.27]]
    """
    sizes = np.array([len(u) for u in us], np.int64)
    correlations = np.broadcast_to(np.asarray(correlation, np.float64), len(us))
    ordered = [np.exp(u - u.max(axis=1, keepdims=True)) for u in (scores[input_order(scores)] for scores in us)]
    prior, counts = np.tile(base, (len(us), 1)), np.zeros((len(us), len(base)))
    log_w = np.zeros(len(us))
    lengths = np.array([_padded_length(int(n)) for n in sizes])
    for length in np.unique(lengths[sizes > 0]).tolist():
        for rows in _parts(np.flatnonzero((lengths == length) & (sizes > 0)), CACHED_NUMBERS // (length * len(base))):
            prior[rows], counts[rows] = _estimate(
                [ordered[i] for i in rows], length, base, pseudo_counts, correlations[rows], amplification
            )
    waiting = np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)]
    while len(waiting):
        together = max(1, HELD_NUMBERS // (min(int(sizes[waiting[0]]), EVIDENCE_INPUTS) * len(base) * ORDERS))
        rows, waiting = waiting[:together], waiting[together:]
        log_w[rows] = _log_evidence([ordered[i] for i in rows], base, pseudo_counts, correlations[rows])
    return [ClientPrior(*fields) for fields in zip(prior, log_w.tolist(), counts, strict=True)]


def _parts(rows: Ints, size: int) -> Iterator[Ints]:
    """Yield the rows in parts of at most `size`."""
    for begin in range(0, len(rows), max(1, size)):
        yield rows[begin : begin + max(1, size)]


def input_order(logits: Floats, *ties: AnyArray | None) -> Ints:
    """Return the order that rows are brought into, the same whatever order they came in, and classes have.

    Args:
        logits: (n, c), by whose largest numbers rows are ordered.
        ties: Arrays of n rows, by which inputs are ordered that have the same numbers.
    """
    sizes = np.sort(logits, axis=1)
    order = np.lexsort(sizes[:, -SORTED_COLUMNS:].T)
    firsts = sizes[order, -SORTED_COLUMNS:]
    if not (firsts[1:] == firsts[:-1]).all(axis=1).any():
        return order
    columns = [array.reshape(len(array), -1) for array in reversed(ties) if array is not None]
    return np.lexsort([column for array in (*columns, logits, sizes) for column in array.T])


def _padded_length(n: int) -> int:
    """Return n rounded up to a multiple of 8, or of an eighth of the power of two below it."""
    step = max(8, 1 << max(0, n.bit_length() - 4))
    return -(-n // step) * step


def _estimate(
    likelihoods: Sequence[Floats],
    length: int,
    base: Floats,
    pseudo_counts: float,
    correlation: Floats,
    amplification: float,
) -> tuple[Floats, Floats]:
    """Return the (k, c) priors and counts of k clients, given (n, c) likelihoods of n <= length inputs each."""
    sizes = np.array([len(likelihood) for likelihood in likelihoods])
    ratios = np.zeros((len(sizes), len(base), length))
    for row, likelihood in zip(ratios, likelihoods, strict=True):
        row[:, : len(likelihood)] = likelihood.T
    # Columns without an input are 0; 1 in place of their sums keeps them finite, and 0 they contribute.
    absent = (np.arange(length) >= sizes[:, None]).astype(np.float64)[:, None]
    start = np.tile(base, (len(sizes), 1))
    mean = start * _responsibility_sums(ratios, start[:, None] @ ratios + absent) / sizes[:, None]
    pulls = pseudo_counts * (1.0 + (sizes - 1.0) * correlation)
    prior = limit_shift(_maximize_posterior(ratios, absent, base, pulls, sizes), mean, base, amplification)
    return prior, prior * _responsibility_sums(ratios, prior[:, None] @ ratios + absent)


def _log_evidence(likelihoods: Sequence[Floats], base: Floats, pseudo_counts: float, correlation: Floats) -> Floats:
    """Return (k,) log W of k clients, those with more inputs first; no number depends on the other clients."""
    sizes = np.array([len(likelihood) for likelihood in likelihoods])
    used = np.minimum(sizes, EVIDENCE_INPUTS)
    k, steps = len(sizes), int(used[0])
    step_ratios = np.ones((steps, k, ORDERS, len(base)))  # what is seen at each step
    for i, likelihood in enumerate(likelihoods):
        step_ratios[: used[i], i] = likelihood[fixed_orders(len(likelihood))].transpose(1, 0, 2)
    under_base = (base * step_ratios).sum(axis=3)
    pulled, class_counts = pseudo_counts * base, np.zeros((k, ORDERS, len(base)))
    predicted = under_base.copy()  # the quotient is 1 without an input
    for j, active in enumerate(np.searchsorted(-used, -np.arange(steps), side="left").tolist()):
        joint = (pulled + class_counts[:active]) * step_ratios[j, :active]
        total = joint.sum(axis=2)
        predicted[j, :active] = total / (pseudo_counts + j)
        class_counts[:active] += joint / total[:, :, None]
    quotients = np.log(predicted / under_base)
    log_w = np.zeros((k, ORDERS))
    for row in quotients:  # one by one, so that the sum does not depend on how many steps others have
        log_w += row
    log_w /= (1.0 + (used - 1.0) * correlation)[:, None]
    largest = log_w.max(axis=1)
    return np.asarray(largest + np.log(np.exp(log_w - largest[:, None]).mean(axis=1)))


def _responsibility_sums(ratios: Floats, sums: Floats) -> Floats:
    """Return (k, c) sums over inputs of exp u_ic / sum_c of them, given the (k, 1, n) sums."""
    return np.asarray((ratios @ (1 / sums).transpose(0, 2, 1))[:, :, 0])


def _maximize_posterior(ratios: Floats, absent: Floats, base: Floats, pulls: Floats, sizes: Ints) -> Floats:
    """Return (k, c) priors by EM, each client leaving once no share changes by 1e-7 or more."""
    rows, priors = np.arange(len(sizes)), np.tile(base, (len(sizes), 1))
    done, total = np.empty_like(priors), (sizes + pulls)[:, None]
    pulled = pulls[:, None] * base
    for _ in range(MAX_ITERATIONS):
        after = (priors * _responsibility_sums(ratios, priors[:, None] @ ratios + absent) + pulled) / total
        going = np.abs(after - priors).max(axis=1) >= TOLERANCE
        priors = after
        if not going.all():
            done[rows[~going]] = priors[~going]
            rows, priors, ratios, absent, pulled, total = (
                x[going] for x in (rows, priors, ratios, absent, pulled, total)
            )
            if not len(rows):
                return done
    done[rows] = priors
    return done


@lru_cache(256)
def fixed_orders(n: int) -> Ints:
    """Return (ORDERS, min(n, EVIDENCE_INPUTS)) first places of permutations.

    They come from raw bits of PCG64, which no version of numpy changes.
    """
    bits = np.random.PCG64(n)
    return np.stack([np.argsort(bits.random_raw(n), kind="stable")[:EVIDENCE_INPUTS] for _ in range(ORDERS)])


def limit_shift(prior: Floats, mean: Floats, base: Floats, amplification: float) -> Floats:
    """Return (k, c) priors no further than M times as far from (c,) base as the (k, c) mean predictions are."""
    if math.isinf(amplification):
        return prior
    apart = np.abs(prior - base).sum(axis=1, keepdims=True)
    furthest = amplification * np.abs(mean - base).sum(axis=1, keepdims=True)
    is_far = apart > furthest
    share = np.where(is_far, furthest / np.where(is_far, apart, 1.0), 1.0)
    return np.where(is_far, base + share * (prior - base), prior)
