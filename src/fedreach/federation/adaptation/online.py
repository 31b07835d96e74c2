"""Adaptation to streams of inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedreach._util.arrays import Floats
from fedreach.federation.adaptation.base import log_softmax, weights
from fedreach.federation.adaptation.inference import limit_shift
from fedreach.federation.types import Outputs, State

# -------------------- Evidence of label shift, input by input


class EvidencePath(NamedTuple):
    """Evidence, counts and priors before each of n inputs and after the last, for k half-lives."""

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
    """Return (A base + N/e)/(A + n/e) of (..., c) counts N whose sum is n, with e = 1 + (n - 1)_+ rho."""
    n = counts.sum(axis=-1, keepdims=True)
    effect = 1.0 + np.maximum(n - 1.0, 0.0) * correlation
    return np.asarray((pseudo_counts * base + counts / effect) / (pseudo_counts + n / effect))


def decayed_sums(rows: Floats, before: Floats, half_lives: Sequence[float] = (math.inf,)) -> Floats:
    """Return (n + 1, k, c) sums of the rows before each row and after the last, a row counting half after a half-life.

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
"""Inputs after which one counts half, where the client is to find out.

A shorter one (8) gains up to 8 points more where inputs come sorted by class, and loses up to 7 in bursts of near
copies, see `benchmarks/online.py`.
"""
WINDOW = 256
"""Inputs, the last ones, by which a safeguard decides."""
DECISION_INTERVAL = 128
"""Inputs after which it decides again, once it has decided after 1, 2, 4 ... 128."""


class OnlinePriors(NamedTuple):
    """Prior and weight of a client before each of m inputs, and after the last."""

    prior: Floats  # (m + 1, c)
    weight: Floats  # (m + 1,)
    log_w: Floats  # (m + 1,)


class Stream(NamedTuple):
    """What a client keeps of its stream of inputs."""

    n: float
    log_w: Floats  # (k,) evidence with each half-life
    counts: Floats  # (k, c) expected number of inputs of each class
    predicted: Floats  # (k, c) sums of probabilities under the base prior

    @classmethod
    def of(cls, client: State, half_lives: Sequence[float]) -> Stream:
        """Return what a client has followed, or what its batch of inputs would have left, had it come in any order."""
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
    *,
    odds: float,
    correlation: float = 0.0,
    amplification: float = math.inf,
) -> tuple[OnlinePriors, Stream]:
    """Return prior and weight of a client before each further input and after the last, and its new stream.

    With W_k and pi_k of `evidence.course` for each of K half-lives, a design effect and a limit (`infer_priors`):

        W = mean_k W_k,   pi = sum_k W_k pi_k / sum_k W_k,   w = 1/(1 + odds/W)

    So a client mixes base, of the probability odds before any input is seen, and the half-lives, alike among
    themselves, as Bayes's rule has it for one that judges each input by those before it.

    Args:
        before: What was kept of earlier inputs.
        u: (m, c) log likelihood ratios of the inputs, in their order.
        base: (c,) positive, summing to 1.
        pseudo_counts: A, positive.
        half_lives: (K,) positive, may be infinite.
        odds: Of no shift against a shift.
        correlation: rho, from 0 to 1.
        amplification: M, positive.

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
    """Return after how many inputs, from first to last, a safeguard decides: 1, 2, 4 ... 128, 256, 384 ...

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
    """Return the last inputs, or the last of the first ones, by which a safeguard decides."""
    end = len(outputs.logits) if end is None else end
    return outputs.at(slice(max(0, end - WINDOW), end))
