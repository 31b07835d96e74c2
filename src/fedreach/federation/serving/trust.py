"""How far a client's unlabeled inputs are to be trusted: learned from participants, each an unseen client in miniature.

The rule assumes label shift: inputs of a class look alike at every client. Where clients are real, often they do not. A
participant's labels answer three questions, as sums over participants only:

- **Do inputs of a class look alike?** The intraclass correlation of predictions given the label: 0 under label shift,
  more where examples of one client have something in common besides their classes.
- **Do inputs tell the class shares?** Whether the prior that is estimated from held-out inputs predicts the counts of
  the labels that the participant trained on better than the class shares of all participants do, and how much of what
  these counts themselves would bring.
- **What would adaptation have brought?** It adapts to its own held-out inputs, at several strengths, by a calibration
  that was fitted without it, and compares with that calibration.

Two exchanges: `class_sums`, then `miniature_sums`; `fitted_trust` decides.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from fedreach.arrays import Bools, Floats, Ints
from fedreach.federation.serving.calibration import left_out, likelihood
from fedreach.federation.serving.inference import infer_priors
from fedreach.federation.serving.mixing import blended, weights
from fedreach.federation.serving.softmax import log_softmax
from fedreach.federation.values import State

STRENGTHS = np.array([0.25, 0.5, 0.75, 1.0])
CORRELATIONS = np.array([0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0])
SMOOTHING = 0.05
"""Share of a uniform distribution that predictions are mixed with where their log loss is compared: so no single
example outweighs all others, and what a participant adds to a sum is bounded."""
WIDEST = 32
"""Numbers that predictions are compared by; with more classes they are projected onto so many directions."""
LEVEL = 0.05
ALIKE = (0.02, 0.2)
"""Largest lower and upper confidence limit of the correlation with which inputs of a class count as alike."""
TOLD = 0.2
"""Share of what labels tell of class shares that inputs must tell."""
FEWEST = 4
"""Participants, fewer of which decide nothing."""
LARGEST_QUANTILE = 1e9
ROUNDING = 1e-9  # of a mean of accuracies

FITTED = ("strength", "correlation", "expected_gain")
"""What a state holds of it in the end."""
SUMS = ("class_examples", "class_views", "class_squares", "curvature")
"""What it holds in between."""


def query(state: State) -> State:
    """Return what participants are sent: the calibration, and in the second exchange what the first one brought."""
    asked = {name: state[name] for name in SUMS if name in state}
    if "class_examples" not in state:
        asked = {}
    else:
        asked["pseudo_counts"] = state["pseudo_counts"]
    return {"point": np.concatenate([state["a"], state["b"]]), **asked}


def contribution(query: State, z: Floats, labels: Ints, trained: Floats, odds: float, amplification: float) -> State:
    """Return what a participant answers; arguments as those of `miniature_sums`."""
    if "class_examples" in query:
        return miniature_sums(query, z, labels, trained, odds, amplification)
    return class_sums(z, labels, query["point"])


def without_sums(state: State) -> State:
    """Return the state without what was held in between."""
    return {name: value for name, value in state.items() if name not in SUMS}


def class_sums(z: Floats, labels: Ints, point: Floats) -> State:
    """Return what a participant contributes to the mean prediction of each class's examples, and to its variance.

    Args:
        z: (m, c) centered logits of held-out examples.
        labels: (m,) of these.
        point: (1 + c,) the calibration a and b.
    """
    held = np.eye(z.shape[1])[labels]
    views = compared(np.exp(log_softmax(point[0] * z + point[1:])))
    return {
        "class_examples": held.sum(axis=0),  # (c,)
        "class_views": held.T @ views,  # (c, w)
        "class_squares": held.T @ (views**2).sum(axis=1),  # (c,)
    }


def compared(probabilities: Floats) -> Floats:
    """Return the (m, min(c, 32)) numbers by which predictions are compared: signs of fixed random directions.

    The signs are raw bits of PCG64, which no version of numpy changes.
    """
    classes = probabilities.shape[1]
    if classes <= WIDEST:
        return probabilities
    words = np.asarray(np.random.PCG64(classes).random_raw((classes, 1))).astype("<u8")
    bits = np.unpackbits(words.view(np.uint8), axis=1)[:, :WIDEST]
    result: Floats = probabilities @ ((2.0 * bits - 1.0) / math.sqrt(WIDEST))
    return result


def miniature_sums(query: State, z: Floats, labels: Ints, trained: Floats, odds: float, amplification: float) -> State:
    """Return what a participant contributes as an unseen client in miniature.

    Args:
        query: `point`, `pseudo_counts`, the sums of `class_sums`, and `curvature` where calibration was fitted.
        z: (m, c) centered logits of held-out examples.
        labels: (m,) of these.
        trained: (c,) counts of the labels that it trained on.
        odds: Of no shift against a shift.
        amplification: See `infer_priors`.
    """
    point, base = left_out_point(query, z, labels), base_without(query, labels)
    calibrated = point[0] * z + point[1:]
    u = calibrated - np.log(base)
    found = infer_priors([u] * len(CORRELATIONS), base, query["pseudo_counts"][0], CORRELATIONS, amplification)
    weight = weights(np.array([each.log_evidence for each in found]), odds)
    mixed = blended(np.stack([each.prior for each in found]), weight[:, None], base)
    offsets = STRENGTHS[:, None] * (np.log(mixed) - np.log(base))[:, None]  # (correlations, strengths, c)
    adapted = calibrated + offsets[:, :, None]
    return {
        "miniatures": np.ones(1),
        "correlation": _correlation_sums(query, z, labels),
        "strength_gains": _gains(adapted, calibrated, labels),  # (4, correlations, strengths)
        "share_gains": _share_gains(mixed[0], base, trained),  # (3,)
    }


def left_out_point(query: State, z: Floats, labels: Ints) -> Floats:
    """Return the calibration as the other participants would have fitted it, by one step of Newton's method."""
    if "curvature" not in query:
        return query["point"]
    bias = len(query["curvature"]) > 1
    return left_out(query["point"], query["curvature"], likelihood(z, labels, query["point"], bias=bias))


def base_without(query: State, labels: Ints) -> Floats:
    counts = query["class_examples"] - np.bincount(labels, minlength=len(query["class_examples"]))
    result: Floats = (counts + 0.5) / (counts.sum() + len(counts) / 2)
    return result


def _correlation_sums(query: State, z: Floats, labels: Ints) -> Floats:
    """Return numerator and denominator of the intraclass correlation, their squares and product, and 1 if it counts.

    r_i is how far a prediction lies from the mean of its class at the other participants. A participant of m examples
    adds (|sum r_i|^2 - sum |r_i|^2)/(m - 1) to the numerator and sum |r_i|^2 to the denominator, each minus what the
    error of those means makes of it: examples of one class share it.
    """
    point = query["point"]
    views = compared(np.exp(log_softmax(point[0] * z + point[1:])))
    counts, sums, squares = query["class_examples"], query["class_views"], query["class_squares"]
    own = np.eye(len(counts))[labels]
    others = counts - own.sum(axis=0)
    centers = (sums - own.T @ views) / np.maximum(others, 1.0)[:, None]
    within = np.maximum(squares - (sums**2).sum(axis=1) / np.maximum(counts, 1.0), 0.0) / np.maximum(counts - 1.0, 1.0)
    known = others[labels] > 0
    m = int(known.sum())
    if m < 2:
        return np.zeros(6)
    residuals = views[known] - centers[labels[known]]
    held, error = own[known].sum(axis=0), within / np.maximum(others, 1.0)
    total, size = residuals.sum(axis=0), float((residuals**2).sum())
    numerator = (float(total @ total) - size - float((held * (held - 1.0)) @ error)) / (m - 1)
    denominator = size - float(held @ error)
    return np.array([numerator, denominator, numerator**2, numerator * denominator, denominator**2, 1.0])


def _gains(scores: Floats, before: Floats, labels: Ints) -> Floats:
    """Return (4, ...): gain in log loss and its square, gain in accuracy and its square, of (..., m, c) scores."""
    rows = np.arange(len(labels))

    def measured(scores: Floats) -> tuple[Floats, Floats]:
        p = np.exp(log_softmax(scores))[..., rows, labels]
        smooth = np.log((1 - SMOOTHING) * p + SMOOTHING / scores.shape[-1])
        return smooth.mean(axis=-1), (scores.argmax(axis=-1) == labels).mean(axis=-1)

    gain, accuracy = (after - start for after, start in zip(measured(scores), measured(before), strict=True))
    return np.stack([gain, gain**2, accuracy, accuracy**2])


def _share_gains(prior: Floats, base: Floats, trained: Floats) -> Floats:
    """Return how much better a prior predicts the labels that a participant trained on than base, in nats a label.

    And the square of that, and how much better their own shares predict them.
    """
    shares = trained / max(float(trained.sum()), 1.0)
    held = shares > 0
    gain = float(shares @ np.log((1 - SMOOTHING) * prior / base + SMOOTHING))
    return np.array([gain, gain**2, float(shares[held] @ np.log(shares[held] / base[held]))])


def fitted_trust(sums: State) -> State:
    """Return what participants decide, given the sums of `miniature_sums`.

    Adaptation is trusted in full where its assumptions hold: the correlation is small (its one-sided 95% confidence
    limits are at most 0.02 and 0.2), inputs predict the class shares (decided, and at least a fifth of what labels
    tell), and participants gained in log loss and lost no accuracy, on average. Elsewhere it is off, unless it is
    decided at some strength that participants gained in log loss and in accuracy. Then the strength whose gain minus
    one standard error is largest is taken, with the correlation that was found. "Decided" is a one-sided t test over
    participants at the 5% level, with Bonferroni's correction for the number of strengths.

    Returns:
        `strength` and `correlation`, (1,) each; `expected_gain` (3,): the participants' mean gain in accuracy as it was
        decided and its 95% confidence interval, in points.
    """
    n = float(sums["miniatures"][0])
    correlation, error, participants = _correlation(sums["correlation"])
    margin = _t_quantile(1 - LEVEL, participants - 1) * error
    is_alike = correlation - margin <= ALIKE[0] and correlation + margin <= ALIKE[1]
    shares = sums["share_gains"]
    is_told = bool(is_decided(*spread(shares[:2], n), n, 1)) and shares[0] >= TOLD * shares[2]
    mean, standard = spread(sums["strength_gains"][:2], n)
    right = spread(sums["strength_gains"][2:, 0], n)[0]
    if is_alike and is_told and mean[0, -1] > 0 and right[-1] >= -ROUNDING:
        return _trusted(sums, 0, len(STRENGTHS) - 1, n)
    row = int(np.searchsorted(CORRELATIONS, min(max(correlation, 0.0), 1.0)))
    accuracy, accuracy_error = spread(sums["strength_gains"][2:, row], n)
    is_better = is_decided(mean[row], standard[row], n, len(STRENGTHS))
    is_better &= is_decided(accuracy, accuracy_error, n, len(STRENGTHS))
    if not is_better.any():
        return {"strength": np.zeros(1), "correlation": CORRELATIONS[row : row + 1], "expected_gain": np.zeros(3)}
    return _trusted(sums, row, int(np.where(is_better, mean[row] - standard[row], -math.inf).argmax()), n)


def _trusted(sums: State, row: int, column: int, n: float) -> State:
    """Return what is decided where a correlation and a strength, by their places, are taken."""
    gain, error = spread(sums["strength_gains"][2:, row, column], n)
    reach = _t_quantile(0.975, n - 1) * error
    return {
        "strength": STRENGTHS[column : column + 1],
        "correlation": CORRELATIONS[row : row + 1],
        "expected_gain": 100 * np.clip(np.array([gain, gain - reach, gain + reach]), -1, 1),
    }


def _correlation(sums: Floats) -> tuple[float, float, float]:
    """Return the intraclass correlation, its standard error over participants, and of how many it is."""
    numerator, denominator, squares, products, denominators, used = sums.tolist()
    if used < FEWEST or denominator <= 0:
        return 1.0, 1.0, used
    found = numerator / denominator
    variance = (squares - 2 * found * products + found**2 * denominators) * used / (used - 1)
    return found, math.sqrt(max(variance, 0.0)) / denominator, used


def spread(sums: Floats, n: float) -> tuple[Floats, Floats]:
    """Return mean and standard error over n participants, given (2, ...) sums and sums of squares."""
    mean = sums[0] / n
    variance = np.maximum(sums[1] - n * mean**2, 0.0) / max(n - 1, 1.0)
    return mean, np.sqrt(variance / n)


def is_decided(mean: Floats, error: Floats, n: float, tests: int) -> Bools:
    """Return whether a mean over n participants is above 0, as one of so many tests."""
    result: Bools = np.asarray(mean > _t_quantile(1 - LEVEL / tests, n - 1) * error) & np.asarray(mean > 0)
    return result


def _t_quantile(level: float, freedom: float) -> float:
    """Return a quantile of Student's t distribution, to a hundredth from three degrees of freedom on.

    Reference: the expansion of Cornish and Fisher (1938); Abramowitz and Stegun, 26.7.5.

    Example:
        >>> round(_t_quantile(0.95, 3), 2), round(_t_quantile(0.975, 19), 3)
        (2.35, 2.093)
    """
    if freedom < FEWEST - 1:
        return LARGEST_QUANTILE
    z = NormalDist().inv_cdf(level)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))
