"""Inference of class priors from inputs, and of the evidence for label shift.

The results do not depend on the order of the inputs, bit for bit. The functions process many clients at a time, but
each client's result is the same as for this client alone. For this purpose, rows are padded to a length that depends
only on the client's own number of inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fedreach._util.arrays import AnyArray, Floats, Ints
from fedreach.federation.adaptation.base import MAX_ITERATIONS, TOLERANCE, log_softmax, weights
from fedreach.federation.types import Outputs, State

CACHED_NUMBERS = 100_000  # of clients whose iterations run together: about what a core's own cache holds
HELD_NUMBERS = 2_000_000  # while evidence is taken, 16 MB
ORDERS = 4  # of a client's inputs, in which evidence is taken
EVIDENCE_INPUTS = 5000  # in each order; more would not change what is decided
SORTED_COLUMNS = 3  # by which inputs are brought into an order, unless they tie


class ClientPrior(NamedTuple):
    """Class prior and evidence that a client infers from its inputs."""

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

    With intraclass correlation rho of the predictions, n inputs of a client count as n/d independent inputs, with the
    design effect d = 1 + (n - 1) rho. The prior pi is the mode of

        (1/d) sum_i log sum_c pi_c exp u_ic + A sum_c base_c log pi_c

    If a model hardly separates classes, EM amplifies a small bias of its predictions until a single class remains. So
    the distance of the estimate from the base prior is limited. It is at most M times the distance of m, the mean
    prediction under the base prior: pi = base + min(1, M |m - base|/|pi - base|) (pi - base), where |.| is the sum of
    absolute values.

    The evidence W against "no label shift" is prequential: each input is predicted from the inputs before it. With
    pi^(0) = base,

        r_jc proportional to pi^(j-1)_c exp u_jc,  pi^(j) = (A base + r_1 + ... + r_j)/(A + j)
        log W = (1/d) sum_j log(sum_c pi^(j-1)_c exp u_jc / sum_c base_c exp u_jc)

    W is averaged over a few fixed orders of the inputs, so it does not depend on the order of arrival. Without shift
    and with exact likelihood ratios, the expectation of W is at most 1. So W reaches x with probability at most 1/x
    (Markov).

    Args:
        us: k arrays (n, c) of log likelihood ratios, up to a constant per row; n may be 0.
        base: (c,) participants' class prior, positive, with sum 1.
        pseudo_counts: A, positive.
        correlation: rho, from 0 to 1; one number for all clients, or (k,) numbers for single clients.
        amplification: Limit M, positive; infinity: no limit.

    Reference: Saerens, Latinne and Decaestecker, Neural Computation 14 (2002), for EM; Kish, Survey Sampling (1965),
    for the design effect. The limit M and the evidence W are extensions.

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
    """Yield the rows in parts of at most `size` rows."""
    for begin in range(0, len(rows), max(1, size)):
        yield rows[begin : begin + max(1, size)]


def input_order(logits: Floats, *ties: AnyArray | None) -> Ints:
    """Return an order of the rows that is independent of their order of arrival, and an order of the classes.

    Args:
        logits: (n, c) logits; rows are sorted by their largest values.
        ties: Arrays of n rows that determine the order of inputs with equal logits.
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
    """Return (k,) log W of k clients that are sorted by number of inputs; no value depends on other clients."""
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
    """Return (k, c) sums of exp u_ic / sum_c exp u_ic over inputs, given the (k, 1, n) denominators."""
    return np.asarray((ratios @ (1 / sums).transpose(0, 2, 1))[:, :, 0])


def _maximize_posterior(ratios: Floats, absent: Floats, base: Floats, pulls: Floats, sizes: Ints) -> Floats:
    """Return (k, c) priors by EM; each client stops when no probability changes by 1e-7 or more."""
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
    """Return the (ORDERS, min(n, EVIDENCE_INPUTS)) first elements of random permutations.

    The permutations use raw bits of PCG64, which are the same in all versions of numpy.
    """
    bits = np.random.PCG64(n)
    return np.stack([np.argsort(bits.random_raw(n), kind="stable")[:EVIDENCE_INPUTS] for _ in range(ORDERS)])


def limit_shift(prior: Floats, mean: Floats, base: Floats, amplification: float) -> Floats:
    """Return (k, c) priors whose distance from the (c,) base is at most M times that of the (k, c) mean predictions."""
    if math.isinf(amplification):
        return prior
    apart = np.abs(prior - base).sum(axis=1, keepdims=True)
    furthest = amplification * np.abs(mean - base).sum(axis=1, keepdims=True)
    is_far = apart > furthest
    share = np.where(is_far, furthest / np.where(is_far, apart, 1.0), 1.0)
    return np.where(is_far, base + share * (prior - base), prior)


# -------------------- Evidence of label shift, input by input


class EvidencePath(NamedTuple):
    """Evidence, counts and priors before each of n inputs and after the last input, for k half-lives."""

    log_w: Floats  # (n + 1, k) log W_0 ... log W_n
    counts: Floats  # (n + 1, k, c) expected number of inputs seen of each class
    prior: Floats  # (n + 1, k, c)


def evidence_path(
    u: Floats,
    base: Floats,
    pseudo_counts: float,
    half_lives: Sequence[float] = (math.inf,),
    log_w: Floats | None = None,
    counts: Floats | None = None,
    correlation: float = 0.0,
) -> EvidencePath:
    """Return the evidence against "no label shift" before each input and after the last, in the inputs' order.

    For each half-life, with pi^(0) = base and A pseudo-counts,

        r_jc proportional to pi^(j-1)_c exp u_jc
        log W_j = log W_(j-1) + log(sum_c pi^(j-1)_c exp u_jc / sum_c base_c exp u_jc)
        N^(j) = d N^(j-1) + r_j,   d = 2^(-1/half-life),   N^(0) = 0
        pi^(j) = (A base + N^(j)/e)/(A + sum_c N^(j)_c/e),   e = 1 + (sum_c N^(j)_c - 1)_+ rho

    Each input is predicted from the inputs before it. So without shift and with exact likelihood ratios, W is a
    nonnegative martingale that starts at 1. For any half-life, it reaches x with probability at most 1/x (Ville). This
    is also true for the mean of W over half-lives.

    Args:
        u: (n, c) log likelihood ratios, up to a constant per row; n may be 0.
        base: (c,) participants' class prior, positive, with sum 1.
        pseudo_counts: A, positive.
        half_lives: (k,) numbers of inputs after which an input's weight is halved, positive. Infinity: never.
        log_w: (k,) log evidence of earlier inputs.
        counts: (k, c) counts N of earlier inputs. None: no earlier inputs.
        correlation: rho, from 0 to 1, which determines the design effect e of the decayed counts.

    Example:
        >>> two = evidence_path(np.log([[0.9, 0.1], [0.9, 0.1]]), np.full(2, 0.5), 2.0)
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
    return EvidencePath(np.array(logs), np.array(all_counts), np.array(shares))


def prequential_prior(counts: Floats, base: Floats, pseudo_counts: float, correlation: float = 0.0) -> Floats:
    """Return (A base + N/e)/(A + n/e) for (..., c) counts N with sum n, where e = 1 + (n - 1)_+ rho."""
    n = counts.sum(axis=-1, keepdims=True)
    effect = 1.0 + np.maximum(n - 1.0, 0.0) * correlation
    return np.asarray((pseudo_counts * base + counts / effect) / (pseudo_counts + n / effect))


def decayed_sums(rows: Floats, before: Floats, half_lives: Sequence[float] = (math.inf,)) -> Floats:
    """Return (n + 1, k, c) decayed sums of the rows before each row and after the last row, for each half-life.

    Example:
        >>> decayed_sums(np.eye(2), np.zeros((1, 2)))[:, 0].tolist()
        [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]
    """
    decay, sums = 0.5 ** (1 / np.asarray(half_lives, np.float64))[:, None], [before]
    for row in rows:
        sums.append(decay * sums[-1] + row)
    return np.array(sums)


# -------------------- Streams of inputs
# Inputs that come sorted by class, in bursts of near copies or at other times of day are not exchangeable. What a
# client should remember then depends on the stream. So several half-lives are followed in parallel, and each counts in
# proportion to the likelihood of the inputs so far (`evidence_path`).

HALF_LIVES = (32.0, 128.0, math.inf)
"""Half-lives that a client combines, in numbers of inputs.

A shorter half-life (8) increases the gain by up to 8 points for inputs sorted by class. But it costs up to 7 points for
bursts of near copies, see `benchmarks/online.py`.
"""
WINDOW = 256
"""Number of most recent inputs on which a safeguard bases its decision."""
DECISION_INTERVAL = 128
"""Number of inputs between decisions of a safeguard, after the decisions at 1, 2, 4 ... 128 inputs."""


class OnlinePriors(NamedTuple):
    """Prior and weight of a client before each of m inputs, and after the last input."""

    prior: Floats  # (m + 1, c)
    weight: Floats  # (m + 1,)
    log_w: Floats  # (m + 1,)


class Stream(NamedTuple):
    """State of a client that processes a stream of inputs."""

    n: float
    log_w: Floats  # (k,) evidence with each half-life
    counts: Floats  # (k, c) expected number of inputs of each class
    predicted: Floats  # (k, c) sums of probabilities under the base prior

    @classmethod
    def of(cls, client: State, half_lives: Sequence[float]) -> Stream:
        """Return the stream of a client, or for a batch of inputs the equivalent stream in an arbitrary order."""
        if "stream_n" in client:
            fields = (client[f"stream_{name}"] for name in ("log_w", "counts", "predicted"))
            return cls(float(client["stream_n"][0]), *fields)
        n = float(client["n"][0])
        decay = 0.5 ** (1 / np.asarray(half_lives, np.float64))
        forgets = decay < 1
        retained = np.where(forgets, (1 - decay**n) / np.where(forgets, 1 - decay, 1.0), n) / max(n, 1.0)
        log_w = np.repeat(client["log_w"], len(half_lives))
        return cls(n, log_w, retained[:, None] * client["counts"], retained[:, None] * client["predicted"])

    def state(self) -> State:
        """Return the stream as arrays by name."""
        arrays = {"n": np.array([self.n]), "log_w": self.log_w, "counts": self.counts, "predicted": self.predicted}
        return {f"stream_{name}": value for name, value in arrays.items()}


def follow_stream(
    before: Stream,
    u: Floats,
    base: Floats,
    pseudo_counts: float,
    half_lives: Sequence[float],
    odds: float,
    correlation: float = 0.0,
    amplification: float = math.inf,
) -> tuple[OnlinePriors, Stream]:
    """Return a client's prior and weight before each further input and after the last input, and its new stream.

    With W_k and pi_k of `evidence_path` for each of K half-lives, a design effect and a limit (`infer_priors`):

        W = mean_k W_k,   pi = sum_k W_k pi_k / sum_k W_k,   w = 1/(1 + odds/W)

    This is a Bayesian average of base, with prior odds `odds`, and of the half-lives, with equal prior probabilities.

    Args:
        before: State after earlier inputs.
        u: (m, c) log likelihood ratios of the inputs, in their order.
        base: (c,) participants' class prior, positive, with sum 1.
        pseudo_counts: A, positive.
        half_lives: (K,) half-lives, positive; may be infinite.
        odds: Prior odds of no shift against a shift.
        correlation: rho, from 0 to 1.
        amplification: Limit M, positive.

    Example:
        >>> nothing = Stream(0.0, np.zeros(2), np.zeros((2, 2)), np.zeros((2, 2)))
        >>> u = np.log([[0.9, 0.1]] * 40 + [[0.1, 0.9]] * 40)
        >>> known, _ = follow_stream(nothing, u, np.full(2, 0.5), 2.0, (8.0, math.inf), odds=1.0)
        >>> known.prior[[40, 80], 0].round(2).tolist()  # the half-life of 8 fits better
        [0.95, 0.13]
    """
    by_half_life = evidence_path(u, base, pseudo_counts, half_lives, before.log_w, before.counts, correlation)
    predicted = decayed_sums(np.exp(log_softmax(u + np.log(base))), before.predicted, half_lives)
    predicted_counts = predicted.sum(axis=2, keepdims=True)
    mean = np.where(predicted_counts > 0, predicted / np.where(predicted_counts > 0, predicted_counts, 1.0), base)
    rows, classes = by_half_life.prior.shape, len(base)
    prior = limit_shift(
        by_half_life.prior.reshape(-1, classes), mean.reshape(-1, classes), base, amplification
    ).reshape(rows)
    numbers = before.n + np.arange(len(u) + 1)
    log_w = by_half_life.log_w / (1.0 + np.maximum(numbers - 1.0, 0.0) * correlation)[:, None]
    largest = log_w.max(axis=1, keepdims=True)
    shares = np.exp(log_w - largest)
    total = shares.sum(axis=1, keepdims=True)
    mixed = ((shares / total)[:, :, None] * prior).sum(axis=1)
    evidence = (largest + np.log(total / len(half_lives)))[:, 0]
    after = Stream(float(numbers[-1]), by_half_life.log_w[-1], by_half_life.counts[-1], predicted[-1])
    return OnlinePriors(mixed, weights(evidence, odds), evidence), after


def decision_times(first: int, last: int) -> list[int]:
    """Return the numbers of inputs, from `first` to `last`, after which a safeguard decides.

    A safeguard decides after 1, 2, 4 ... 128, 256, 384 ... inputs.

    Example:
        >>> decision_times(2, 400)
        [2, 4, 8, 16, 32, 64, 128, 256, 384]
    """
    doubling = [1 << i for i in range(DECISION_INTERVAL.bit_length())]
    later = range(2 * DECISION_INTERVAL, last + 1, DECISION_INTERVAL)
    return [n for n in (*doubling, *later) if first <= n <= last]


def empty_stream(classes: int, half_lives: Sequence[float]) -> Stream:
    """Return the stream of a client before its first input."""
    k = len(half_lives)
    return Stream(0.0, np.zeros(k), np.zeros((k, classes)), np.zeros((k, classes)))


def window(outputs: Outputs, end: int | None = None) -> Outputs:
    """Return the inputs on which a safeguard bases its decision: the last inputs, or the last inputs before `end`."""
    end = len(outputs.logits) if end is None else end
    return outputs.at(slice(max(0, end - WINDOW), end))
