"""A client whose inputs come one after the other: how much of them it forgets is decided by what it sees.

Inputs that come sorted by class, in bursts of near copies or at other times of day are not exchangeable. What a client
should remember then depends on the stream, so several half-lives are followed side by side, and each counts as much as
the inputs so far were more likely under it (`evidence.course`), none of them against the class shares of participants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedreach.arrays import Floats
from fedreach.federation.serving.evidence import accumulated, course
from fedreach.federation.serving.inference import limited
from fedreach.federation.serving.mixing import weights
from fedreach.federation.serving.softmax import log_softmax
from fedreach.federation.values import Outputs, State

HALF_LIVES = (32.0, 128.0, math.inf)
"""Inputs after which one counts half, where the client is to find out.

A shorter one (8) gains up to 8 points more where inputs come sorted by class, and loses up to 7 in bursts of near
copies, see `benchmarks/online.py`.
"""
WINDOW = 256
"""Inputs, the last ones, by which a safeguard decides."""
EVERY = 128
"""Inputs after which it decides again, once it has decided after 1, 2, 4 ... so many."""


class Followed(NamedTuple):
    """What a client goes by before each of m inputs, and after the last."""

    prior: Floats  # (m + 1, c)
    weight: Floats  # (m + 1,)
    log_w: Floats  # (m + 1,)


class Stream(NamedTuple):
    """What a client keeps of the inputs that it followed."""

    n: float
    log_w: Floats  # (k,) evidence with each half-life
    counts: Floats  # (k, c) expected number of inputs of each class
    predicted: Floats  # (k, c) sums of probabilities under the base prior

    @classmethod
    def of(cls, client: State, half_lives: Sequence[float]) -> Stream:
        """Return what a client has followed, or what its batch of inputs would have left, had it come in any order."""
        if "stream_n" in client:
            kept = (client[f"stream_{name}"] for name in ("log_w", "counts", "predicted"))
            return cls(float(client["stream_n"][0]), *kept)
        n = float(client["n"][0])
        decay = 0.5 ** (1 / np.asarray(half_lives, np.float64))
        forgets = decay < 1
        left = np.where(forgets, (1 - decay**n) / np.where(forgets, 1 - decay, 1.0), n) / max(n, 1.0)
        log_w = np.repeat(client["log_w"], len(half_lives))
        return cls(n, log_w, left[:, None] * client["counts"], left[:, None] * client["predicted"])

    def state(self) -> State:
        """Return it as arrays by their names."""
        arrays = {"n": np.array([self.n]), "log_w": self.log_w, "counts": self.counts, "predicted": self.predicted}
        return {f"stream_{name}": value for name, value in arrays.items()}


def follow(
    before: Stream,
    u: Floats,
    base: Floats,
    pseudo_counts: float,
    half_lives: Sequence[float],
    *,
    odds: float,
    correlation: float = 0.0,
    amplification: float = math.inf,
) -> tuple[Followed, Stream]:
    """Return what a client goes by before each further input and after the last, and what it keeps.

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
        >>> known, _ = follow(nothing, u, np.full(2, 0.5), 2.0, (8.0, math.inf), odds=1.0)
        >>> known.prior[[40, 80], 0].round(2).tolist()  # the half-life of 8 fits better
        [0.95, 0.13]
    """
    known = course(u, base, pseudo_counts, half_lives, before.log_w, before.counts, correlation)
    predicted = accumulated(np.exp(log_softmax(u + np.log(base))), before.predicted, half_lives)
    seen = predicted.sum(axis=2, keepdims=True)
    mean = np.where(seen > 0, predicted / np.where(seen > 0, seen, 1.0), base)
    rows, classes = known.prior.shape, len(base)
    prior = limited(known.prior.reshape(-1, classes), mean.reshape(-1, classes), base, amplification).reshape(rows)
    numbers = before.n + np.arange(len(u) + 1)
    log_w = known.log_w / (1.0 + np.maximum(numbers - 1.0, 0.0) * correlation)[:, None]
    largest = log_w.max(axis=1, keepdims=True)
    shares = np.exp(log_w - largest)
    total = shares.sum(axis=1, keepdims=True)
    mixed = ((shares / total)[:, :, None] * prior).sum(axis=1)
    evidence = (largest + np.log(total / len(half_lives)))[:, 0]
    kept = Stream(float(numbers[-1]), known.log_w[-1], known.counts[-1], predicted[-1])
    return Followed(mixed, weights(evidence, odds), evidence), kept


def decides_after(first: int, last: int) -> list[int]:
    """Return after how many inputs, from first to last, a safeguard decides: 1, 2, 4 ... 128, 256, 384 ...

    Example:
        >>> decides_after(2, 400)
        [2, 4, 8, 16, 32, 64, 128, 256, 384]
    """
    doubling = [1 << i for i in range(EVERY.bit_length())]
    later = range(2 * EVERY, last + 1, EVERY)
    return [n for n in (*doubling, *later) if first <= n <= last]


def nothing(classes: int, half_lives: Sequence[float]) -> Stream:
    """Return what a client keeps that has seen no input yet."""
    k = len(half_lives)
    return Stream(0.0, np.zeros(k), np.zeros((k, classes)), np.zeros((k, classes)))


def seen(client: State, outputs: Outputs) -> Outputs:
    """Return what the model says of the inputs that the client has kept, and of further ones."""
    before = "stream_" if "stream_n" in client else ""
    if f"{before}logits" not in client or outputs.features is None:
        return Outputs(outputs.logits, outputs.features)
    kept = client[f"{before}logits"], client[f"{before}features"]
    return Outputs(np.concatenate([kept[0], outputs.logits]), np.concatenate([kept[1], outputs.features]))


def window(outputs: Outputs, end: int | None = None) -> Outputs:
    """Return the last inputs, or the last of the first ones, by which a safeguard decides."""
    end = len(outputs.logits) if end is None else end
    return outputs.rows(slice(max(0, end - WINDOW), end))
