"""How far a client's few labels are to be trusted: learned from what labels would have done to participants.

A participant draws a few of the labels that it trained on, as an unseen client might learn them, and predicts its
held-out examples by them: at several shrinkages, with and without the bias of the calibration.
"""

from __future__ import annotations

import math

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.federation.serving import possible, trust
from fedreach.federation.serving.softmax import log_softmax
from fedreach.federation.values import State

MULTIPLES = np.array([0.5, 1.0, 2.0, 4.0, 8.0])
"""Of A, pseudo-counts that are compared."""
NUMBERS = (1, 5, 20)
"""Of labels."""
DRAWS = 4
"""Of each number."""


def label_gains(query: State, z: Floats, labels: Ints, trained: Floats) -> Floats:
    """Return (5, 2, 5): mean gain over `NUMBERS`, its square, the gain by one label; gain in accuracy and its square.

    Without and with b, for each of `MULTIPLES`.

    Args:
        query: Of the second exchange of `trust`.
        z: (m, c) centered logits of held-out examples.
        labels: (m,) of these.
        trained: (c,) counts of the labels that it trained on.
    """
    point, base = trust.left_out_point(query, z, labels), trust.base_without(query, labels)
    plain, corrected = query["inverse_temperature"] * z, point[0] * z + point[1:]
    before, right = _scored(plain, labels)
    held = np.repeat(np.arange(len(trained)), trained.astype(np.int64))
    bits, gains = np.random.PCG64(len(held)), np.zeros((2, len(NUMBERS), 2, len(MULTIPLES)))
    for _ in range(DRAWS if len(held) else 0):
        order = np.argsort(bits.random_raw(len(held)), kind="stable")
        for i, number in enumerate(NUMBERS):
            counts = np.bincount(held[order[:number]], minlength=len(trained))
            own = shrunk(counts, base, query["pseudo_counts"] * MULTIPLES)  # (5, c)
            offsets = (np.log(own) - np.log(base))[:, None]
            for bias, scores in enumerate((plain, corrected)):
                after, accuracy = _scored(scores + offsets, labels)
                gains[:, i, bias] += np.stack([before - after, accuracy - right]) / DRAWS
    mean, accurate = gains.mean(axis=1)
    return np.stack([mean, mean**2, gains[0, 0], accurate, accurate**2])


def shrunk(counts: Floats | Ints, base: Floats, pseudo_counts: Floats) -> Floats:
    """Return (..., c) class shares (n + B base)/(m + B) of (c,) label counts, given (...,) pseudo-counts B."""
    pulls = pseudo_counts[..., None]
    result: Floats = (counts + pulls * base) / (counts.sum() + pulls)
    return result


def fitted_shrinkage(sums: Floats, participants: Floats, pseudo_counts: Floats) -> State:
    """Return `label_pseudo_counts`, infinite if labels do not count, and `label_bias`, 0 or 1, that participants chose.

    Of those by which one label did no harm on average, the choice whose mean gain minus one standard error is largest,
    if its gain is decided: see `trust.fitted_trust`. `label_gain` (3,) is the gain in accuracy that it brought, in
    points, over `NUMBERS` of labels, and its 95% confidence interval.
    """
    n = float(participants[0])
    mean, error = trust.spread(sums[:2], n)
    allowed = trust.is_decided(mean, error, n, mean.size) & (sums[2] >= 0)
    if not allowed.any():
        return {"label_pseudo_counts": np.array([math.inf]), "label_bias": np.zeros(1), "label_gain": np.zeros(3)}
    best = int(np.where(allowed, mean - error, -math.inf).argmax())
    bias, row = divmod(best, len(MULTIPLES))
    return {
        "label_pseudo_counts": pseudo_counts * MULTIPLES[row],
        "label_bias": np.array([float(bias)]),
        "label_gain": trust.in_points(sums[3:, bias, row], n),
    }


def are_gains(sums: Floats, participants: Floats) -> bool:
    """Return whether so many participants can have contributed these."""
    n, (loss, loss_squares, one, accuracy, accuracy_squares) = float(participants[0]), sums
    is_bounded = possible.are_moments(loss, loss_squares, possible.LARGEST_GAIN, n)
    is_bounded &= bool((np.abs(one) <= possible.LARGEST_GAIN * n * (1 + possible.ROUNDING)).all())
    return is_bounded and possible.are_moments(accuracy, accuracy_squares, 1.0, n)


def _scored(scores: Floats, labels: Ints) -> tuple[Floats, Floats]:
    """Return (...,) mean log loss of (..., m, c) scores, see `trust.SMOOTHING`, and accuracy."""
    p = np.exp(log_softmax(scores))[..., np.arange(len(labels)), labels]
    loss: Floats = -np.log((1 - trust.SMOOTHING) * p + trust.SMOOTHING / scores.shape[-1]).mean(axis=-1)
    return loss, (scores.argmax(axis=-1) == labels).mean(axis=-1)
