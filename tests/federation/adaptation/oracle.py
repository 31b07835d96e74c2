"""The rule `label_shift` a second time: plain, slow, and written from its description alone, not from the library.

Inputs are taken one by one in Python loops, but for the fit, which would take a minute. Nothing here is handed from
exchange to exchange; all participants' examples lie in one array.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize, root
from scipy.special import gammaln, logsumexp, softmax

from fedreach.federation.adaptation.inference import fixed_orders, input_order

GRID = [10 ** (-1 + 4 * i / 40) for i in range(41)]  # .1 ... 1000
MOST_STEPS, CLOSE = 200, 1e-7  # of EM
ODDS = 9


def objective(a, b, logits, labels):
    """Return -sum log softmax(a z + b)_y + |b|^2 / 2 + (log a)^2 / 2."""
    scores = a * logits + b
    right = scores[np.arange(len(labels)), labels]
    return (logsumexp(scores, axis=1) - right).sum() + 0.5 * (b @ b) + 0.5 * math.log(a) ** 2


def gradient(a, b, logits, labels):
    """Return the derivatives by a and by each b_c: for an example, (p - 1[y]) z and p - 1[y]."""
    off = softmax(a * logits + b, axis=1) - np.eye(logits.shape[1])[labels]
    return np.array([(off * logits).sum() + math.log(a) / a, *(off.sum(axis=0) + b)])


def calibrate(logits, labels):
    """Return the (a, b) with the smallest objective, a positive.

    From several starting points, since (log a)^2 is not convex; then the gradient is brought to zero, to 1e-10 of what
    it may be with these logits.
    """
    logits, labels = np.asarray(logits, float), np.asarray(labels)
    c = logits.shape[1]

    def value(x):
        return objective(math.exp(x[0]), x[1:], logits, labels)

    def slope(x):  # by log a, so that a stays positive
        by = gradient(math.exp(x[0]), x[1:], logits, labels)
        return np.array([by[0] * math.exp(x[0]), *by[1:]])

    found = [minimize(value, [start, *[0] * c], jac=slope, method="BFGS") for start in (-2.0, 0.0, 2.0)]
    best = min(found, key=lambda result: result.fun)
    exact = root(slope, best.x, tol=1e-13)
    assert np.abs(slope(exact.x)).max() <= 1e-10 * max(1.0, len(labels) * np.abs(logits).max())
    assert value(exact.x) <= best.fun + 1e-9 * (1 + abs(best.fun))
    return math.exp(exact.x[0]), exact.x[1:]


def base(labels, c):
    """Return (n_c + 1/2) / (n + C/2) of held-out labels."""
    return np.array([(sum(int(y) == k for y in labels) + 0.5) / (len(labels) + c / 2) for k in range(c)])


def spread_likelihoods(counts):
    """Return sum_k log DirichletMultinomial(counts_k | A share) at the 41 points A, of (K, C) training counts."""
    counts = np.asarray(counts, float)
    share = (counts.sum(axis=0) + 1) / (counts.sum() + counts.shape[1])
    found = []
    for A in GRID:
        total = 0.0
        for row in counts:
            n = row.sum()
            total += gammaln(n + 1) + gammaln(A) - gammaln(n + A)
            for n_c, s_c in zip(row, share, strict=True):
                total += gammaln(n_c + A * s_c) - gammaln(A * s_c) - gammaln(n_c + 1)
        found.append(total)
    return found


def spread(counts):
    """Return the A of the largest likelihood."""
    return GRID[int(np.argmax(spread_likelihoods(counts)))]


def log_ratios(logits, a, b, base):
    """Return u_i = a z_i + b - log base."""
    return np.array([a * np.asarray(z, float) + b - np.log(base) for z in logits]).reshape(-1, len(base))


def map_em(logits, a, b, base, A):
    """Return pi, from base, until its largest change is below 1e-7 or after 200 steps."""
    u, pi = log_ratios(logits, a, b, base), np.array(base)
    for _ in range(MOST_STEPS):
        total = A * base
        for row in u:
            scores = np.log(pi) + row
            total = total + np.exp(scores - logsumexp(scores))
        new = total / (len(u) + A)
        change, pi = np.abs(new - pi).max(), new
        if change < CLOSE:
            break
    return pi


def evidence(logits, a, b, base, A, half_life=math.inf):
    """Return log W_0 ... log W_n and pi^(0) ... pi^(n): each input is judged by what came before it only."""
    log_w, pi, learnt = [0.0], [np.array(base)], np.zeros(len(base))
    for u in log_ratios(logits, a, b, base):
        before = pi[-1]
        log_w.append(log_w[-1] + logsumexp(np.log(before) + u) - logsumexp(np.log(base) + u))
        scores = np.log(before) + u
        learnt = 0.5 ** (1 / half_life) * learnt + np.exp(scores - logsumexp(scores))
        pi.append((A * base + learnt) / (A + learnt.sum()))
    return np.array(log_w), np.array(pi)


def weight(log_w, odds=ODDS):
    """Return 1 / (1 + odds / W)."""
    return 1 / (1 + odds * math.exp(-log_w)) if log_w > -700 else 0.0


def mixed(pi, log_w, base, odds=ODDS):
    """Return the adapted prior, w pi + (1 - w) base."""
    w = weight(log_w, odds)
    return w * pi + (1 - w) * base


def predicted(logits, a, b, base, prior):
    """Return log softmax(u + log prior) of each input."""
    scores = log_ratios(logits, a, b, base) + np.log(prior)
    return np.array([row - logsumexp(row) for row in scores]).reshape(-1, len(base))


def calibrated(logits, a, b):
    """Return log softmax(a z + b) of each input."""
    scores = [a * np.asarray(z, float) + b for z in logits]
    return np.array([row - logsumexp(row) for row in scores])


def learned(u, base, A, correlation=0.0, amplification=math.inf):
    """Return the prior and log W of a batch of inputs, given u: each step by itself, in loops over inputs.

    n inputs are worth n / d, d = 1 + (n - 1) correlation. The orders in which evidence is taken are the library's own.
    """
    u = np.asarray(u)[input_order(np.asarray(u))]
    n, d = len(u), 1 + (len(u) - 1) * correlation
    pi = np.array(base)
    for _ in range(MOST_STEPS):
        total = A * d * base
        for row in u:
            scores = np.log(pi) + row
            total = total + np.exp(scores - logsumexp(scores))
        new = total / (n + A * d)
        change, pi = np.abs(new - pi).max(), new
        if change < CLOSE:
            break
    mean = np.mean([softmax(np.log(base) + row) for row in u], axis=0)
    furthest = amplification * np.abs(mean - base).sum()
    if np.abs(pi - base).sum() > furthest:
        pi = base + furthest / np.abs(pi - base).sum() * (pi - base)
    found = []
    for order in fixed_orders(n):
        log_w, seen = 0.0, np.zeros(len(base))
        for j, row in enumerate(u[order]):
            before = (A * base + seen) / (A + j)
            log_w += logsumexp(np.log(before) + row) - logsumexp(np.log(base) + row)
            seen = seen + softmax(np.log(before) + row)
        found.append(log_w / d)
    return pi, logsumexp(found) - math.log(len(found))


def adapted(logits, a, b, base, A, odds=ODDS):
    """Return the log-probabilities of all of a client's inputs, once all of them were learnt from."""
    centered = np.asarray(logits, float)
    centered = centered - centered.mean(axis=1, keepdims=True)
    pi, log_w = learned(log_ratios(centered, a, b, base), base, A)
    return predicted(logits, a, b, base, mixed(pi, log_w, base, odds))


def adapted_online(logits, a, b, base, A, odds=ODDS):
    """Return the log-probabilities of each input before it is learnt from.

    Bayes's rule over four that predict the inputs: base, of the prior odds, and half-lives of 32, 128, infinity.
    """
    found = [evidence(logits, a, b, base, A, life) for life in (32, 128, math.inf)]
    rows = []
    for j, z in enumerate(logits):
        likely = [odds] + [math.exp(log_w[j]) / 3 for log_w, _ in found]
        shares = np.average([base] + [pi[j] for _, pi in found], axis=0, weights=likely)
        rows.append(predicted([z], a, b, base, shares)[0])
    return np.array(rows).reshape(-1, len(base))


def fitted(participants):
    """Return (a, b, base, A) of participants' (logits, labels, training counts)."""
    logits = np.concatenate([np.asarray(z, float) for z, _, _ in participants])
    labels = np.concatenate([y for _, y, _ in participants])
    a, b = calibrate(logits, labels)
    return a, b, base(labels, logits.shape[1]), spread([counts for _, _, counts in participants])
