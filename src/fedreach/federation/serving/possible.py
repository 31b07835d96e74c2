"""What no honest participants contribute to the sums that a serving rule is fitted by.

Label counts are whole and sum to the examples that the participants hold, probabilities to as many, a log likelihood is
of one sign, a sum of squares at least the square of the sum by the number. All of it holds for one participant and for
the sum over several, so that under a secure sum, too, something is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fedreach.arrays import Floats
from fedreach.federation.labels.counts import are_counts
from fedreach.federation.serving.calibration import BOUND
from fedreach.federation.values import State

LARGEST_GAIN = 40.0  # nats an example, of predictions that hold 5% of a uniform distribution
LARGEST_VIEW = 6.0  # of a number by which predictions are compared
ROUNDING = 1e-6  # of sums over examples, relative to their largest term


def are_sums(sums: State, held_out: int, trained: int) -> bool:
    """Return whether participants can have contributed this, as far as a name stands for something that is known.

    Args:
        sums: By name, as `LabelShift` and `BBSE` call them.
        held_out: Examples that the participants hold out together.
        trained: Examples that they trained on.

    Example:
        >>> are_sums({"held_out": np.array([2.0, 1.0])}, held_out=3, trained=9)
        True
        >>> are_sums({"held_out": np.array([2.0, 5.0])}, held_out=3, trained=9)
        False
    """
    examples = {"trained": trained}
    return all(
        RULES[name](np.asarray(values, np.float64), sums, examples.get(name, held_out))
        for name, values in sums.items()
        if name in RULES
    )


def _counts(values: Floats, sums: State, m: int) -> bool:
    return bool(are_counts(values.reshape(1, -1)).all() and values.sum() == m)


def _same_counts(values: Floats, sums: State, m: int) -> bool:
    return _counts(values, sums, m) and np.array_equal(values, sums.get("held_out", values))


def _confusion(values: Floats, sums: State, m: int) -> bool:
    """Predictions of each label's examples: not negative, and as many as there are."""
    return _at_least(values, 0, m) and _equal(values.sum(axis=0), sums["held_out"], m)


def _predicted(values: Floats, sums: State, m: int) -> bool:
    return _at_least(values, 0, m) and _equal(values.sum(), m, m)


def _loss(values: Floats, sums: State, m: int) -> bool:
    return _at_least(values, 0, m)


def _gradient(values: Floats, sums: State, m: int) -> bool:
    """By a: residuals times logits of at most `BOUND`, and the residuals of an example add up to 2 at most, in size."""
    return bool(abs(values[0]) <= 2 * BOUND * m * (1 + ROUNDING)) and _at_least(-np.abs(values[1:]), -m, m)


def _curvature(values: Floats, sums: State, m: int) -> bool:
    """By a: a variance of numbers of at most `BOUND`; by b: variances of what is 0 or 1."""
    d = len(sums["gradient"])
    matrix = np.zeros((d, d))
    matrix[np.triu_indices(d)] = values
    diagonal = np.diag(matrix)
    small = bool(diagonal[0] <= BOUND**2 * m * (1 + ROUNDING)) and _at_least(-diagonal[1:], -m / 4, m)
    scale = np.sqrt(np.maximum(np.outer(diagonal, diagonal), 0))  # Cauchy and Schwarz, of a sum of covariances
    off = np.abs(matrix) <= scale * (1 + ROUNDING) + ROUNDING * m * np.sqrt(max(diagonal[0], 1.0))
    return small and _at_least(diagonal, 0, m) and bool(off.all())


def _spread(values: Floats, sums: State, m: int) -> bool:
    """Logarithms of probabilities."""
    return _at_least(-values, 0, m)


def _products(values: Floats, sums: State, m: int) -> bool:
    """Squares of features: at least the square of their sum by the number of examples, class by class."""
    features, counts = sums["guard_features"], sums["guard_examples"]
    h = features.shape[1]
    at = np.cumsum(np.append(0, np.arange(h, 1, -1)))  # the diagonal of the upper triangle
    return len(values) == h * (h + 1) // 2 and _squares(values[at], features.T, counts)


def _values(values: Floats, sums: State, m: int) -> bool:
    """Mean value and mean square of each example and channel: their sums by class."""
    return all(_squares_each(square, mean, sums["guard_examples"]) for mean, square in zip(*values, strict=True))


def _logits_squared(values: Floats, sums: State, m: int) -> bool:
    logits, counts = sums["guard_logits"], sums["guard_examples"]
    return all(_squares_each(values[row], logits[row], counts) for row in range(len(logits)))


def _logits(values: Floats, sums: State, m: int) -> bool:
    """The largest probability of each example: by class, at most one each."""
    counts = sums["guard_examples"]
    return _at_least(values[0], 0, m) and _at_least(counts - values[0], 0, m)


def _residual(values: Floats, sums: State, m: int) -> bool:
    return _at_least(values, 0, m) and not values[sums["guard_examples"] == 0].any()


def _some(values: Floats, sums: State, m: int) -> bool:
    """One of each participant, which holds an example at least."""
    return len(values) == 1 and bool(1 <= values[0] <= m) and float(values[0]).is_integer()


def _views(values: Floats, sums: State, m: int) -> bool:
    """Numbers of at most 6 in size, what probabilities are after a projection: sums of so many by class."""
    return bool((np.abs(values) <= LARGEST_VIEW * sums["class_examples"][:, None] + ROUNDING * m).all())


def _view_squares(values: Floats, sums: State, m: int) -> bool:
    counts = sums["class_examples"]
    least = (sums["class_views"] ** 2).sum(axis=1) / np.where(counts > 0, counts, 1.0)
    return not values[counts == 0].any() and bool((values >= least * (1 - ROUNDING) - ROUNDING).all())


def _correlated(values: Floats, sums: State, m: int) -> bool:
    """Ratios of sums, their squares and their products: those of n participants, of which some count."""
    numerator, denominator, squares, products, denominators, used = values
    n = float(sums["miniatures"][0])
    least = np.array([numerator**2, denominator**2]) / max(used, 1.0)
    is_bounded = bool((np.array([squares, denominators]) >= least * (1 - ROUNDING) - ROUNDING).all())
    return 0 <= used <= n and is_bounded and bool(products**2 <= squares * denominators * (1 + ROUNDING) + ROUNDING)


def _gains(values: Floats, sums: State, m: int) -> bool:
    """Means over examples of a bounded loss and of what is 0 or 1, after minus before; and their squares."""
    n = float(sums["miniatures"][0])
    largest = (LARGEST_GAIN, 1.0, 1.0)
    return all(are_moments(values[2 * i], values[2 * i + 1], size, n) for i, size in enumerate(largest))


def _share_gains(values: Floats, sums: State, m: int) -> bool:
    n = float(sums["miniatures"][0])
    return len(values) == 3 and are_moments(values[:1], values[1:2], LARGEST_GAIN, n) and _at_least(values[2:], 0, n)


def _some_of(values: Floats, sums: State, m: int) -> bool:
    return len(values) == 1 and 0 <= values[0] <= sums["miniatures"][0] + ROUNDING


def _harmed(values: Floats, sums: State, m: int) -> bool:
    return bool((values >= -ROUNDING).all() and (values <= sums["large"][0] + ROUNDING).all())


def are_moments(sums: Floats, squares: Floats, largest: float, n: float) -> bool:
    """Return whether so many numbers of at most this size can have these sums and sums of squares."""
    near = 1 + ROUNDING
    return bool(
        (np.abs(sums) <= largest * n * near + ROUNDING).all()
        and (squares <= largest**2 * n * near + ROUNDING).all()
        and (squares >= sums**2 / n / near - ROUNDING).all()
    )


RULES: Mapping[str, Callable[[Floats, State, int], bool]] = {
    "held_out": _counts,
    "guard_examples": _same_counts,
    "trained": _counts,
    "confusion": _confusion,
    "predicted": _predicted,
    "loss": _loss,
    "gradient": _gradient,
    "curvature": _curvature,
    "spread": _spread,
    "guard_products": _products,
    "guard_values": _values,
    "guard_logits": _logits,
    "guard_logits_squared": _logits_squared,
    "guard_residual": _residual,
    "class_examples": _counts,
    "class_views": _views,
    "class_squares": _view_squares,
    "miniatures": _some,
    "correlation": _correlated,
    "strength_gains": _gains,
    "share_gains": _share_gains,
    "scale_losses": lambda values, sums, m: _at_least(values, 0, m),
    "large": _some_of,
    "harmed": _harmed,
}
"""Name -> whether values of it, all sums that came with it, and so many examples go together."""


def _at_least(values: Floats, least: float, scale: float) -> bool:
    return bool((values >= least - ROUNDING * max(1.0, scale)).all())


def _equal(values: Floats, others: Floats | float, scale: float) -> bool:
    return bool((np.abs(values - others) <= ROUNDING * max(1.0, scale)).all())


def _squares_each(squares: Floats, sums: Floats, counts: Floats) -> bool:
    """Return whether (C,) sums of squares are at least the squares of (C,) sums by the (C,) counts."""
    return _squares(squares, np.diag(sums), counts) if squares.shape == sums.shape == counts.shape else False


def _squares(squares: Floats, sums: Floats, counts: Floats) -> bool:
    """Return whether (H,) sums of squares are at least those of the (H, C) sums by the (C,) counts."""
    absent = counts == 0
    least = (sums**2 / np.where(absent, 1.0, counts)).sum(axis=1)
    return not sums[:, absent].any() and bool((squares >= least * (1 - ROUNDING) - ROUNDING).all())
