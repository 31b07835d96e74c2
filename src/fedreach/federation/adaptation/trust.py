"""Trust in adaptation, which participants derive from the benefit on their own labels."""

from __future__ import annotations

import math

import numpy as np

from fedreach._util.arrays import Bools, Floats, Ints
from fedreach._util.student_t import t_quantile
from fedreach.federation.adaptation.base import blend_priors, fixed_signs, log_softmax, source_prior, weights
from fedreach.federation.adaptation.calibration import leave_one_out_point, likelihood
from fedreach.federation.adaptation.inference import infer_priors
from fedreach.federation.types import State

WIDEST = 32
"""Largest width of predictions for comparisons; predictions of more classes are projected onto this width."""

# -------------------- How far unlabeled inputs are trusted
# The rule assumes label shift: inputs of a class look alike at every client. At real clients they often do not. A
# participant's labels answer three questions, as sums over participants only:
#
# - **Do inputs of a class look alike?** The intraclass correlation of predictions given the label: 0 under label shift,
#   more where examples of one client have something in common besides their classes.
# - **Do inputs reveal the class prior?** Whether the prior that is estimated from held-out inputs predicts the counts
# of   the labels that the participant trained on better than the class prior of all participants does, and how much of
# what   these counts themselves would bring.
# - **What would adaptation have brought?** It adapts to its own held-out inputs, at several strengths, by a calibration
#   that was fitted without it, and compares with that calibration; and whether one that holds many examples would have
#   lost more than 5 points of accuracy.
#
# Two exchanges: `class_sums`, then `miniature_sums`; `fit_trust` decides.

STRENGTHS = np.array([0.25, 0.5, 0.75, 1.0])
CORRELATIONS = np.array([0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0])
SMOOTHING = 0.05
"""Share of a uniform distribution in predictions for comparisons of log loss.

It limits the influence of a single example, and bounds a participant's contribution to a sum."""
LEVEL = 0.05
ALIKE = (0.02, 0.25)
"""Largest lower and upper confidence limits of the correlation for which inputs of a class are considered similar."""
LEAST_INFORMATION_SHARE = 0.2
"""Smallest information of inputs on the class prior, as a share of the information of labels."""
MANY_EXAMPLES = 50
"""Number of held-out examples from which a participant's accuracy is precise enough to detect harm."""
HARM = 0.05
"""Loss of accuracy that counts as harm, equal to `fedreach.evaluation.scores.HARM_POINTS`."""
MAX_HARMED_SHARE = 0.025
"""Largest share of participants with `MANY_EXAMPLES` that may lose more than `HARM`."""
FEWEST = 4
"""Smallest number of participants for a decision, and of participants with `MANY_EXAMPLES` for a test of the gain."""
LARGEST_QUANTILE = 1e9
ROUNDING = 1e-9  # of a mean of accuracies

FITTED = ("strength", "correlation", "expected_gain")
"""Names in the fitted state."""
SUMS = ("class_examples", "class_views", "class_squares", "curvature")
"""Names in the state between the two exchanges."""


def query(state: State) -> State:
    """Return the query to participants: the calibration, and in the second exchange also the sums of the first."""
    point = {"point": np.concatenate([state["a"], state["b"]])}
    if "class_examples" not in state:
        return point
    sums = {name: state[name] for name in SUMS if name in state}
    scale = state.get("inverse_temperature", state["a"])
    return {**point, **sums, "pseudo_counts": state["pseudo_counts"], "inverse_temperature": scale}


def class_sums(z: Floats, labels: Ints, point: Floats) -> State:
    """Return a participant's contribution to the mean and variance of predictions for each class.

    Args:
        z: (m, c) centered logits of held-out examples.
        labels: (m,) labels of these examples.
        point: (1 + c,) calibration a and b.
    """
    one_hot = np.eye(z.shape[1])[labels]
    views = comparison_views(np.exp(log_softmax(point[0] * z + point[1:])))
    return {
        "class_examples": one_hot.sum(axis=0),  # (c,)
        "class_views": one_hot.T @ views,  # (c, w)
        "class_squares": one_hot.T @ (views**2).sum(axis=1),  # (c,)
    }


def comparison_views(probabilities: Floats) -> Floats:
    """Return (m, min(c, 32)) projections of the predictions on fixed random directions, for comparisons.

    The directions are signs from the raw bits of PCG64, which are the same in all versions of numpy.
    """
    classes = probabilities.shape[1]
    if classes <= WIDEST:
        return probabilities
    return np.asarray(probabilities @ (fixed_signs(classes, WIDEST) / math.sqrt(WIDEST)))


def miniature_sums(query: State, z: Floats, labels: Ints, trained: Floats, odds: float, amplification: float) -> State:
    """Return the contribution of a participant that simulates a small unseen client.

    Args:
        query: `point`, `pseudo_counts`, the sums of `class_sums`, and `curvature` if the calibration was fitted.
        z: (m, c) centered logits of held-out examples.
        labels: (m,) labels of these examples.
        trained: (c,) counts of the participant's training labels.
        odds: Prior odds of no shift against a shift.
        amplification: Limit M of `infer_priors`.
    """
    point, base = left_out_point(query, z, labels), base_without(query, labels)
    calibrated = point[0] * z + point[1:]
    u = calibrated - np.log(base)
    inferred = infer_priors([u] * len(CORRELATIONS), base, query["pseudo_counts"][0], CORRELATIONS, amplification)
    weight = weights(np.array([client_prior.log_evidence for client_prior in inferred]), odds)
    mixed = blend_priors(np.stack([client_prior.prior for client_prior in inferred]), weight[:, None], base)
    offsets = STRENGTHS[:, None] * (np.log(mixed) - np.log(base))[:, None]  # (correlations, strengths, c)
    gains = _gains(calibrated + offsets[:, :, None], calibrated, point[0] * z, labels)
    is_large = len(labels) >= MANY_EXAMPLES
    return {
        "miniatures": np.ones(1),
        "correlation": _correlation_sums(query, z, labels),
        "strength_gains": gains,  # (6, correlations, strengths)
        "large": np.full(1, float(is_large)),
        "harmed": np.where(is_large & (gains[2] < -HARM), 1.0, 0.0),  # (correlations, strengths)
        "share_gains": _share_gains(mixed[0], base, trained),  # (3,)
    }


def left_out_point(query: State, z: Floats, labels: Ints) -> Floats:
    """Return the approximate calibration without this participant, by one step of Newton's method."""
    if "curvature" not in query:
        return query["point"]
    bias = len(query["curvature"]) > 1
    return leave_one_out_point(query["point"], query["curvature"], likelihood(z, labels, query["point"], bias=bias))


def base_without(query: State, labels: Ints) -> Floats:
    return source_prior(query["class_examples"] - np.bincount(labels, minlength=len(query["class_examples"])))


def _correlation_sums(query: State, z: Floats, labels: Ints) -> Floats:
    """Return numerator and denominator of the intraclass correlation, their squares and product, and 1 if valid.

    r_i is the deviation of a prediction from the mean of its class at the other participants. A participant with m
    examples adds (|sum r_i|^2 - sum |r_i|^2)/(m - 1) to the numerator and sum |r_i|^2 to the denominator. The effect of
    errors in the class means is subtracted from both.
    """
    point = query["point"]
    views = comparison_views(np.exp(log_softmax(point[0] * z + point[1:])))
    counts, sums, squares = query["class_examples"], query["class_views"], query["class_squares"]
    one_hot = np.eye(len(counts))[labels]
    other_counts = counts - one_hot.sum(axis=0)
    centers = (sums - one_hot.T @ views) / np.maximum(other_counts, 1.0)[:, None]
    within = np.maximum(squares - (sums**2).sum(axis=1) / np.maximum(counts, 1.0), 0.0) / np.maximum(counts - 1.0, 1.0)
    has_center = other_counts[labels] > 0
    m = int(has_center.sum())
    if m < 2:
        return np.zeros(6)
    residuals = views[has_center] - centers[labels[has_center]]
    own_counts, error = one_hot[has_center].sum(axis=0), within / np.maximum(other_counts, 1.0)
    total, size = residuals.sum(axis=0), float((residuals**2).sum())
    numerator = (float(total @ total) - size - float((own_counts * (own_counts - 1.0)) @ error)) / (m - 1)
    denominator = size - float(own_counts @ error)
    return np.array([numerator, denominator, numerator**2, numerator * denominator, denominator**2, 1.0])


def _gains(scores: Floats, before: Floats, unadapted: Floats, labels: Ints) -> Floats:
    """Return (6, ...): gains of (..., m, c) scores in log loss, in accuracy, and in accuracy over the unadapted model.

    Each gain is followed by its square.
    """
    after, start = smoothed_scores(scores, labels), smoothed_scores(before, labels)
    gains = (after[0] - start[0], after[1] - start[1], after[1] - smoothed_scores(unadapted, labels)[1])
    return np.stack([gain**power for gain in gains for power in (1, 2)])


def smoothed_scores(scores: Floats, labels: Ints) -> tuple[Floats, Floats]:
    """Return smoothed mean log probabilities of the labels, and accuracies, for (..., m, c) scores."""
    p = np.exp(log_softmax(scores))[..., np.arange(len(labels)), labels]
    smooth = np.log((1 - SMOOTHING) * p + SMOOTHING / scores.shape[-1])
    return smooth.mean(axis=-1), (scores.argmax(axis=-1) == labels).mean(axis=-1)


def _share_gains(prior: Floats, base: Floats, trained: Floats) -> Floats:
    """Return the gain of a prior over base in predicting a participant's training labels, in nats per label.

    The result also contains the square of this gain, and the gain of the participant's own label distribution.
    """
    shares = trained / max(float(trained.sum()), 1.0)
    is_present = shares > 0
    gain = float(shares @ np.log((1 - SMOOTHING) * prior / base + SMOOTHING))
    return np.array([gain, gain**2, float(shares[is_present] @ np.log(shares[is_present] / base[is_present]))])


def fit_trust(sums: State) -> State:
    """Return the decision of the participants, given the sums of `miniature_sums`.

    Adaptation is fully trusted if its assumptions hold. The correlation must be small: its one-sided 95% confidence
    limits are at most 0.02 and 0.25. Inputs must predict the class prior, with at least a fifth of the information of
    labels. On average, log loss must improve at participants, and accuracy must not decrease. If at least four
    participants have 50 examples, the gain in log loss must also be significant.

    Otherwise adaptation is off, unless participants gain significantly in log loss and in accuracy at some strength.
    Then the function chooses the strength with the largest gain minus one standard error, and the estimated
    correlation. A one-sided t test over participants at the 5% level determines significance, with Bonferroni's
    correction for the number of strengths. In both cases adaptation must be harmless: of the participants with at least
    50 examples, at most 2.5% may lose more than 5 points.

    Returns:
        `strength` and `correlation`, (1,) each, and `expected_gain` (3,), the participants' mean gain in accuracy and
        its 95% confidence interval, in points.
    """
    n = float(sums["miniatures"][0])
    correlation, error, participants = _correlation(sums["correlation"])
    margin = _critical_value(1 - LEVEL, participants) * error
    is_alike = correlation - margin <= ALIKE[0] and correlation + margin <= ALIKE[1]
    shares = sums["share_gains"]
    is_told = bool(is_decided(*spread(shares[:2], n), n, 1)) and shares[0] >= LEAST_INFORMATION_SHARE * shares[2]
    mean, standard = spread(sums["strength_gains"][:2], n)
    right = sums["strength_gains"][2::2, 0, -1] / n
    is_harmless = sums["harmed"] <= MAX_HARMED_SHARE * sums["large"]
    is_gain = bool(is_decided(mean[0, -1], standard[0, -1], n, 1)) or (mean[0, -1] > 0 and sums["large"][0] < FEWEST)
    if is_alike and is_told and is_gain and (right >= -ROUNDING).all() and is_harmless[0, -1]:
        return _trust_at(sums, 0, len(STRENGTHS) - 1, n)
    row = int(np.searchsorted(CORRELATIONS, min(max(correlation, 0.0), 1.0)))
    accuracy, accuracy_error = spread(sums["strength_gains"][2:4, row], n)
    is_better = is_decided(mean[row], standard[row], n, len(STRENGTHS))
    is_better &= is_decided(accuracy, accuracy_error, n, len(STRENGTHS)) & is_harmless[row]
    if not is_better.any():
        return {"strength": np.zeros(1), "correlation": CORRELATIONS[row : row + 1], "expected_gain": np.zeros(3)}
    return _trust_at(sums, row, int(np.where(is_better, mean[row] - standard[row], -math.inf).argmax()), n)


def _trust_at(sums: State, row: int, column: int, n: float) -> State:
    """Return the decision for a correlation and a strength, given their positions."""
    return {
        "strength": STRENGTHS[column : column + 1],
        "correlation": CORRELATIONS[row : row + 1],
        "expected_gain": in_points(sums["strength_gains"][4:, row, column], n),
    }


def in_points(sums: Floats, n: float) -> Floats:
    """Return (3,) mean gain in accuracy and its 95% confidence interval, in points, given sums of gains and squares."""
    gain, error = spread(sums, n)
    reach = _critical_value(0.975, n) * error
    return np.asarray(100 * np.clip(np.array([gain, gain - reach, gain + reach]), -1, 1))


def _correlation(sums: Floats) -> tuple[float, float, float]:
    """Return the intraclass correlation, its standard error over participants, and their number."""
    numerator, denominator, squares, products, denominators, used = sums.tolist()
    if used < FEWEST or denominator <= 0:
        return 1.0, 1.0, used
    ratio = numerator / denominator
    variance = (squares - 2 * ratio * products + ratio**2 * denominators) * used / (used - 1)
    return ratio, math.sqrt(max(variance, 0.0)) / denominator, used


def is_supported(state: State) -> bool:
    """Return whether participants support adaptation; True if they did not test it."""
    if "expected_gain" not in state:
        return True
    return bool(state["strength"][0] > 0) or math.isfinite(
        state.get("label_pseudo_counts", np.full(1, math.inf)).item()
    )


def expected_gain(state: State) -> Floats | None:
    """Return (3,) the participants' gain in accuracy in points, and its 95% confidence interval.

    The gain is due to inputs if inputs are trusted; otherwise it is due to labels if labels are used. The result is
    None if participants did not test adaptation.
    """
    if "expected_gain" not in state or state["strength"][0] > 0:
        return state.get("expected_gain")
    return state.get("label_gain", state["expected_gain"])


def spread(sums: Floats, n: float) -> tuple[Floats, Floats]:
    """Return the mean and its standard error over n participants, given (2, ...) sums and sums of squares."""
    mean = sums[0] / n
    variance = np.maximum(sums[1] - n * mean**2, 0.0) / max(n - 1, 1.0)
    return mean, np.sqrt(variance / n)


def is_decided(mean: Floats, error: Floats, n: float, tests: int) -> Bools:
    """Return whether a mean over n participants is significantly above 0, corrected for `tests` tests."""
    return np.asarray(mean > _critical_value(1 - LEVEL / tests, n) * error) & np.asarray(mean > 0)


def _critical_value(level: float, n: float) -> float:
    """Return the smallest significant number of standard errors above 0 for n participants."""
    return t_quantile(level, round(n) - 1) if n >= FEWEST else LARGEST_QUANTILE
