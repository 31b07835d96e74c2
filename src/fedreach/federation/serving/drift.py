"""Features of a client against the class means of the participants.

Label shift moves the mean of the features within the span of the class means. What moves it out of there is drift: the
inputs look different. Everything is fitted by sums over participants' held-out examples, in two exchanges.

```
first_sums -> sum -> first_fit -> second_query -> second_sums -> sum -> second_fit: fitted
```

With h = `outputs.features` (m, H), L = S^(-1/2), S their covariance within classes, and Q an orthonormal basis of the
span of L (mu_c - mu_b): r_i = (I - QQ') L (h_i - mu) is the same for every mean mu within that span.

Numbers in float64 arrays, for H = 100 features and C = 10 classes: 6080 and 60 up, 6050 down between them. The fitted
state has C H + H (H + 1) / 2 + 8 C = 6130 numbers, 24.5 kB in float32, whose precision is enough.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.federation.serving.repair import channels_of
from fedreach.federation.serving.softmax import log_softmax
from fedreach.federation.values import NO_STATE, Outputs, State

RIDGE = 0.03
"""Of the mean eigenvalue, added to the covariance: hidden units that hardly vary are not blown up."""
WIDEST = 128
"""Wider features are projected onto so many random directions first, as S has H (H + 1) / 2 numbers. The thresholds of
the guard were chosen with 84 and 100 features; D grows with their number, and so does what few examples explain of it.
"""
LEAST_VARIANCE = 1e-12
SAME_SPAN = 1e-6  # relative to the largest singular value; above the rounding of a state in float32


class Residue(NamedTuple):
    """What of a client's features lies off the span of the class means, and where in the span they lie."""

    drift: float  # D
    size: float  # mean ||r_i||^2
    inside: Floats  # (n, q) Q' L (h_i - mu), mu the mean of the class means


class Frame(NamedTuple):
    """What drift is measured in."""

    means: Floats  # (C, H) mu_c; the mean of all examples for a class of which nobody holds any
    whiten: Floats  # (H, H) L
    span: Floats  # (H, q) Q, q = C - 1 unless class means lie in fewer dimensions
    off_span: Floats  # (H, H) L (I - QQ')

    @classmethod
    def of(cls, state: State) -> Frame:
        """Return the frame of a state after `first_fit`."""
        means, packed = state["guard_means"].astype(np.float64), state["guard_whitening"].astype(np.float64)
        whiten = _unpacked(packed, means.shape[1])
        differences = (means - means.mean(axis=0)) @ whiten
        _, sizes, rows = np.linalg.svd(differences, full_matrices=False)
        span = rows[sizes > SAME_SPAN * max(sizes[0], np.finfo(float).tiny)].T
        return cls(means, whiten, span, whiten - (whiten @ span) @ span.T)

    @property
    def dimensions(self) -> int:
        """H - q, in which drift is seen; 0 says that class means span everything, so that none can be."""
        return len(self.span) - len(self.span.T)

    def residuals(self, features: Floats) -> Floats:
        """Return the (m, H) r_i, given (m, H) features as `seen` returns them."""
        result: Floats = features @ self.off_span
        result -= self.means.mean(axis=0) @ self.off_span
        return result

    def residue(self, outputs: Outputs) -> Residue:
        """Return what is off the span of a client's n inputs, at least two."""
        features = seen(outputs)
        residuals = self.residuals(features)
        inside = (features - self.means.mean(axis=0)) @ (self.whiten @ self.span)
        return Residue(drift(residuals), float(np.vdot(residuals, residuals)) / len(residuals), inside)

    def distance(self, inside: Floats, classes: Floats) -> float:
        """Return R = mean_i sum_c q_ic ||Q' L (h_i - mu_c)||^2 / q: how far inputs lie from what they are taken for.

        About 1 for inputs like those of the participants, whatever their classes; 1 where the span has no dimension.

        Args:
            inside: (n, q) of a client's inputs, as `residue` returns them.
            classes: (n, C) probabilities q_ic, each row summing to 1.
        """
        if not self.span.shape[1]:
            return 1.0
        centres = (self.means - self.means.mean(axis=0)) @ (self.whiten @ self.span)
        apart = (inside**2).sum() + (
            (classes @ (centres**2).sum(axis=1)).sum() - 2 * np.vdot(inside, classes @ centres)
        )
        return float(apart) / inside.size

    def signal(self, prior: Floats, base: Floats) -> float:
        """Return s = ||Q' L sum_c (prior_c - base_c) mu_c||^2: how far label shift moves the mean of the features."""
        moved = ((prior - base) @ self.means) @ self.whiten @ self.span
        return float(moved @ moved)


def drift(residuals: Floats) -> float:
    """Return D = (||sum_i r_i||^2 - sum_i ||r_i||^2) / (n (n - 1)), an unbiased estimate of ||E r||^2.

    Its mean is 0 under any label shift, whatever the prior. It needs only the sum of r_i, that of ||r_i||^2 and n, so
    a client that sees its inputs one by one need not keep them. nan for fewer than two inputs.

    Args:
        residuals: (n, H) of a client's inputs.

    Example:
        >>> drift(np.array([[1.0, 0.0], [1.0, 0.0]])), drift(np.array([[1.0, 0.0], [-1.0, 0.0]]))
        (1.0, -1.0)
    """
    n = len(residuals)
    if n < 2:
        return math.nan
    total = residuals.sum(axis=0)
    return float((total @ total - np.vdot(residuals, residuals)) / (n * (n - 1)))


def drift_deviation(dimensions: int, n: int) -> float:
    """Return the standard deviation of D under no drift, sqrt(2 dimensions / (n (n - 1))), of white residuals.

    The ridge makes residuals smaller than white ones, so this is rather too large.
    """
    return math.sqrt(2.0 * dimensions / (n * (n - 1)))


def seen(outputs: Outputs) -> Floats:
    """Return the (m, min(H, 128)) features in float64; wide ones on random directions, the same at every client.

    The directions are signs / sqrt(H) from the raw bits of PCG64 with seed H, which no version of numpy changes, so
    that nobody needs to send them. What is linear in the features stays so: D is 0 in mean under label shift as before.
    """
    if outputs.features is None:
        raise ValueError("outputs must hold features; got None. Ask for them with `reads_inputs`.")
    features = outputs.features.astype(np.float64).reshape(len(outputs.logits), -1)
    width = features.shape[1]
    if width <= WIDEST:
        return features
    words = np.random.PCG64(width).random_raw((width, WIDEST // 64)).astype("<u8")
    bits = np.unpackbits(words.view(np.uint8), axis=1)
    result: Floats = features @ ((2.0 * bits - 1.0) / math.sqrt(width))
    return result


def logit_statistics(logits: Floats) -> Floats:
    """Return (2, m): the largest probability, and log sum_c exp z_c, of (m, C) logits as they are."""
    largest = log_softmax(logits.astype(np.float64)).max(axis=1)
    return np.stack([np.exp(largest), logits.max(axis=1) - largest])


def first_sums(outputs: Outputs, labels: Ints, c: int) -> State:
    """Return what one participant contributes to the first exchange; empty without features.

    Args:
        outputs: Of the model on its m held-out examples.
        labels: (m,) of these.
        c: Number of classes C.
    """
    if outputs.features is None:
        return NO_STATE
    features, held = seen(outputs), np.eye(c)[labels]
    values = np.zeros((2, 1, len(labels)))
    if outputs.inputs is not None:
        channels = channels_of(outputs.inputs)
        inputs = outputs.inputs.astype(np.float64).reshape(len(labels), channels, -1)
        values = np.stack([inputs.mean(axis=2).T, (inputs**2).mean(axis=2).T])
    return {
        "guard_examples": held.sum(axis=0),  # (C,)
        "guard_features": held.T @ features,  # (C, H)
        "guard_products": _packed(features.T @ features),  # (H (H + 1) / 2,)
        "guard_values": values @ held,  # (2, k, C) for each channel, of each example's mean value and mean square
    }


def first_fit(sums: State, ridge: float = RIDGE) -> State:
    """Return what follows from the first exchange: mu_c, L, and the mean and variance of input values by class.

    A class of which nobody holds an example gets what holds for all examples together: it then neither adds to the span
    nor to the signal.
    """
    if not sums:
        return NO_STATE
    counts, features = sums["guard_examples"], sums["guard_features"]
    means = _by_class(features.T, counts).T
    freedom = max(counts.sum() - (counts > 0).sum(), 1.0)
    second = _unpacked(sums["guard_products"], features.shape[1])
    within = (second - features.T @ means) / freedom  # absent classes have a sum of 0
    mean, square = _by_class(sums["guard_values"], counts)
    return {
        "guard_means": means,  # (C, H)
        "guard_whitening": _packed(_inverse_root(within, ridge)),  # (H (H + 1) / 2,)
        "guard_value_mean": mean,  # (k, C)
        "guard_value_variance": np.maximum(square - mean**2, 0.0),  # (k, C)
    }


def second_query(state: State) -> State:
    """Return what participants need for `second_sums`, of the state after `first_fit`."""
    return {name: state[name] for name in ("guard_means", "guard_whitening") if name in state}


def second_sums(query: State, outputs: Outputs, labels: Ints) -> State:
    """Return what one participant contributes to the second exchange; the class prior plays no part in it.

    Args:
        query: As `second_query` returned it.
        outputs: Of the model on its m held-out examples, those of the first exchange.
        labels: (m,) of these.
    """
    if not query:
        return NO_STATE
    frame = Frame.of(query)
    held, statistics = np.eye(len(frame.means))[labels], logit_statistics(outputs.logits)
    return {
        "guard_examples": held.sum(axis=0),  # (C,)
        "guard_residual": (frame.residuals(seen(outputs)) ** 2).sum(axis=1) @ held,  # (C,)
        "guard_logits": statistics @ held,  # (2, C)
        "guard_logits_squared": statistics**2 @ held,  # (2, C)
    }


def second_fit(state: State, sums: State) -> State:
    """Return the fitted state: that of `first_fit`, with e_c and what logits look like by class."""
    if not sums:
        return state
    counts = sums["guard_examples"]
    mean, square = _by_class(sums["guard_logits"], counts), _by_class(sums["guard_logits_squared"], counts)
    return {
        **state,
        "guard_counts": counts,  # (C,)
        "guard_residual": _by_class(sums["guard_residual"], counts),  # (C,) e_c, the mean of ||r||^2
        "guard_logit_mean": mean,  # (2, C)
        "guard_logit_variance": np.maximum(square - mean**2, 0.0),  # (2, C)
    }


def sampling(state: State, dimensions: int, prior: Floats) -> tuple[float, float]:
    """Return what few held-out examples do to clients without any drift: the mean of D, and ln of the factor on E.

    With n_c examples of class c, nu = sum_c n_c - C degrees of freedom and H features, L is from a covariance that is
    too small off the sample: f = nu / (nu - H - 1) is the mean of S^-1 against that of the true covariance. So

    ```
    E D = f dimensions sum_c prior_c^2 / n_c,    E of ||r||^2 against e_c is about f (1 + sum_c prior_c / n_c)
    ```

    Both vanish as n grows. Without them a guard that was fitted on a hundred examples finds drift at every client.

    Args:
        state: Fitted.
        dimensions: H - q, see `Frame`.
        prior: (C,) of the client.
    """
    counts = np.maximum(state["guard_counts"].astype(np.float64), 1.0)
    freedom = counts.sum() - len(counts)
    factor = freedom / max(freedom - state["guard_means"].shape[1] - 1.0, 1.0) if freedom > 0 else 1.0
    factor = max(factor, 1.0)
    return factor * dimensions * float(prior**2 @ (1.0 / counts)), math.log(factor * (1.0 + prior @ (1.0 / counts)))


def logit_shift(state: State, logits: Floats, prior: Floats) -> float:
    """Return max(t^2, t_z^2), how unlikely the means of the two logit statistics are under a (C,) prior.

    t^2 = n (mean of the client - sum_c prior_c a_c)^2 / v, where v is the variance of one example drawn from the
    prior, that of the class means a_c included.
    """
    mean, variance = state["guard_logit_mean"], state["guard_logit_variance"]
    expected = mean @ prior
    spread = variance @ prior + (mean - expected[:, None]) ** 2 @ prior
    off = logit_statistics(logits).mean(axis=1) - expected
    return float((len(logits) * off**2 / np.maximum(spread, LEAST_VARIANCE)).max())


def _by_class(sums: Floats, counts: Floats) -> Floats:
    """Return (..., C) means by class, given the (..., C) sums; that of all examples where there is none."""
    overall = sums.sum(axis=-1, keepdims=True) / counts.sum()
    result: Floats = np.where(counts > 0, sums / np.maximum(counts, 1.0), overall)
    return result


def _inverse_root(within: Floats, ridge: float) -> Floats:
    """Return (S + ridge * mean eigenvalue of S)^(-1/2); the identity if no feature varies within a class."""
    eigenvalues, vectors = np.linalg.eigh(within)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    eigenvalues += ridge * eigenvalues.mean()
    if eigenvalues[0] <= 0.0:
        return np.eye(len(within))
    result: Floats = (vectors / np.sqrt(eigenvalues)) @ vectors.T
    return result


def _packed(symmetric: Floats) -> Floats:
    """Return the H (H + 1) / 2 numbers of the upper triangle."""
    return symmetric[np.triu_indices(len(symmetric))]


def _unpacked(packed: Floats, h: int) -> Floats:
    half = np.zeros((h, h))
    half[np.triu_indices(h)] = packed
    result: Floats = half + np.triu(half, 1).T
    return result
