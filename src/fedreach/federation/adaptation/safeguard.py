"""Safeguard of adaptation: intensity correction, drift of features, and the decision to adapt or abstain."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import numpy as np

from fedreach._util.arrays import AnyArray, Float32s, Floats, Ints
from fedreach._util.component import Options
from fedreach.federation.adaptation.base import fixed_signs, log_softmax, pack, unpack
from fedreach.federation.types import NO_STATE, Outputs, State

# -------------------- Intensity correction

CACHED_NUMBERS = 30_000  # that are summed at a time
IMAGE_DIMENSIONS = 4
FEWEST_DIMENSIONS = 3
"""Smallest number of dimensions of an array of images or signals; columns of a table do not share an intensity."""


MOST_CHANNELS = 4
"""Largest number of color channels of an image, which light can change by different amounts."""


def channels_of(inputs: AnyArray) -> int:
    """Return the number of channels to correct separately, which is 1 except for color images."""
    return inputs.shape[1] if inputs.ndim == IMAGE_DIMENSIONS and inputs.shape[1] <= MOST_CHANNELS else 1


class Intensity(NamedTuple):
    """Intensity correction x' = scale x + shift, for each channel."""

    scale: Floats = np.ones(1)  # (k,)
    shift: Floats = np.zeros(1)  # (k,)

    def of(self, inputs: Float32s) -> Float32s:
        """Return the corrected inputs, for example later inputs of a client."""
        shape = (-1, *[1] * (inputs.ndim - 2))
        changed: Float32s = inputs * self.scale.astype(np.float32).reshape(shape)
        changed += self.shift.astype(np.float32).reshape(shape)
        return changed


class Values(NamedTuple):
    """Moments of all values in a client's inputs, from which a correction is computed."""

    mean: Floats  # (k,)
    deviation: Floats  # (k,)

    @classmethod
    def of(cls, inputs: Float32s, channels: int = 1) -> Values:
        """Return the mean and standard deviation of all values or of each channel, summed in float64.

        Example:
            >>> Values.of(np.array([[2.0, 4.0]], np.float32))
            Values(mean=array([3.]), deviation=array([1.]))
        """
        parts = [inputs] if channels == 1 else [np.ascontiguousarray(inputs[:, i]) for i in range(channels)]
        moments = [_moments(part) for part in parts]
        return cls(*np.array(moments).T)


def _moments(inputs: Float32s) -> tuple[float, float]:
    flat = inputs.reshape(-1)
    pilot = float(flat[0])  # taken off first, so that a large mean takes no digits of the variance
    total = squares = 0.0
    for begin in range(0, flat.size, CACHED_NUMBERS):
        part = flat[begin : begin + CACHED_NUMBERS].astype(np.float64)
        part -= pilot
        total, squares = total + float(part.sum()), squares + float(part @ part)
    mean = total / flat.size
    return mean + pilot, math.sqrt(max(squares / flat.size - mean**2, 0.0))


def channels_to_repair(outputs: Outputs, state: State) -> list[int]:
    """Return the possible numbers of channels for an intensity correction, in increasing order.

    The result is empty for inputs with few values, for text, for constant inputs, and for inputs with another shape
    than the participants' inputs.
    """
    inputs = outputs.inputs
    if inputs is None or outputs.again is None or not len(inputs) or inputs.ndim < FEWEST_DIMENSIONS:
        return []
    if not np.issubdtype(inputs.dtype, np.floating) or not np.ptp(inputs) > 0:
        return []
    means, variances = state["guard_value_mean"], state["guard_value_variance"]
    if not (variances > 0).any() or len(means) != channels_of(inputs):
        return []
    return sorted({1, len(means)})


def intensity(state: State, values: Values, prior: Floats) -> Intensity:
    """Return the correction that gives the client's values the mean and variance of participants with the same prior.

    ```
    x' = (x - m) sigma_p / sigma + m_p,   m_p = sum_c p_c m_c,   sigma_p^2 = sum_c p_c (s2_c + (m_c - m_p)^2)
    ```

    where m and sigma are over all values of all inputs of the client. For color images, they are separate for each
    channel, so the color of light does not affect the result. sigma_p^2 includes the variance between class means. So
    usual inputs do not change, except for sampling errors. Brightness and contrast do not affect the result: for alpha
    > 0, alpha x + beta has the same x'. A channel without contrast is only shifted.

    Args:
        state: Fitted state with the (k, C) arrays m_c and s2_c.
        values: Moments m and sigma of the client's inputs.
        prior: (C,) class prior p.

    Example:
        >>> state = {"guard_value_mean": np.zeros((1, 2)), "guard_value_variance": np.full((1, 2), 4.0)}
        >>> intensity(state, Values(mean=np.array([3.0]), deviation=np.array([1.0])), np.array([0.5, 0.5]))
        Intensity(scale=array([2.]), shift=array([-6.]))
    """
    means, variances = state["guard_value_mean"].astype(np.float64), state["guard_value_variance"].astype(np.float64)
    if len(values.mean) < len(means):  # of all values together
        squares = (variances + means**2).mean(axis=0, keepdims=True)
        means = means.mean(axis=0, keepdims=True)
        variances = squares - means**2
    target = means @ prior
    variance = variances @ prior + (means - target[:, None]) ** 2 @ prior
    varies = values.deviation > 0
    scale = np.where(varies, np.sqrt(variance) / np.where(varies, values.deviation, 1.0), 1.0)
    return Intensity(scale, target - scale * values.mean)


# -------------------- Drift of features
# Label shift moves the mean of the features within the span of the class means. What moves it out of there is drift:
# the inputs look different. Everything is fitted by sums over participants' held-out examples, in two exchanges.
#
# ```
# first_sums -> sum -> first_fit -> second_query -> second_sums -> sum -> second_fit: fitted
# ```
#
# With h = `outputs.features` (m, H), L = S^(-1/2), S their covariance within classes, and Q an orthonormal basis of the
# span of L (mu_c - mu_b): r_i = (I - QQ') L (h_i - mu) is the same for every mean mu within that span.
#
# Numbers in float64 arrays, for H = 100 features and C = 10 classes: 6080 and 60 up, 6050 down between them. The fitted
# state has C H + H (H + 1) / 2 + 8 C = 6130 numbers, 24.5 kB in float32, whose precision is enough.

RIDGE = 0.03
"""Share of the mean eigenvalue to add to the covariance, so that whitening does not amplify nearly constant units."""
WIDEST = 128
"""Number of random directions onto which wider features are projected, because S has H (H + 1) / 2 numbers.

The thresholds of the safeguard were chosen with 84 and 100 features. D increases with the number of features, and so
does the part of D that few examples explain.
"""
LEAST_VARIANCE = 1e-12
SAME_SPAN = 1e-6  # relative to the largest singular value; above the rounding of a state in float32


class Residue(NamedTuple):
    """Features of a client outside the span of the class means, and their position in the span."""

    drift: float  # D
    size: float  # mean ||r_i||^2
    inside: Floats  # (n, q) Q' L (h_i - mu), mu the mean of the class means


class Frame(NamedTuple):
    """Class means, whitening and span, which define the measurement of drift."""

    means: Floats  # (C, H) mu_c; the mean of all examples for a class without examples
    whiten: Floats  # (H, H) L
    span: Floats  # (H, q) Q, q = C - 1 unless class means lie in fewer dimensions
    off_span: Floats  # (H, H) L (I - QQ')

    @classmethod
    def of(cls, state: State) -> Frame:
        """Return the frame for a state after `first_fit`."""
        means, packed = state["guard_means"].astype(np.float64), state["guard_whitening"].astype(np.float64)
        whiten = unpack(packed, means.shape[1])
        differences = (means - means.mean(axis=0)) @ whiten
        _, sizes, rows = np.linalg.svd(differences, full_matrices=False)
        span = rows[sizes > SAME_SPAN * max(sizes[0], np.finfo(float).tiny)].T
        return cls(means, whiten, span, whiten - (whiten @ span) @ span.T)

    @property
    def dimensions(self) -> int:
        """Number of dimensions H - q in which drift can be measured; 0 if the class means span all dimensions."""
        return len(self.span) - len(self.span.T)

    def residuals(self, features: Floats) -> Floats:
        """Return the (m, H) residuals r_i, given (m, H) features from `project_features`."""
        result: Floats = features @ self.off_span
        result -= self.means.mean(axis=0) @ self.off_span
        return result

    def residue(self, outputs: Outputs) -> Residue:
        """Return the residue of a client's n inputs, at least two."""
        features = project_features(outputs)
        residuals = self.residuals(features)
        inside = (features - self.means.mean(axis=0)) @ (self.whiten @ self.span)
        return Residue(drift(residuals), float(np.vdot(residuals, residuals)) / len(residuals), inside)

    def distance(self, inside: Floats, classes: Floats) -> float:
        """Return R, the distance of inputs from their estimated classes.

        R = mean_i sum_c q_ic ||Q' L (h_i - mu_c)||^2 / q. It is about 1 for inputs that are similar to participants'
        inputs, regardless of their classes. It is 1 if the span has no dimension.

        Args:
            inside: (n, q) positions in the span, as returned by `residue`.
            classes: (n, C) probabilities q_ic; the sum of each row is 1.
        """
        if not self.span.shape[1]:
            return 1.0
        centres = (self.means - self.means.mean(axis=0)) @ (self.whiten @ self.span)
        apart = (inside**2).sum() + (
            (classes @ (centres**2).sum(axis=1)).sum() - 2 * np.vdot(inside, classes @ centres)
        )
        return float(apart) / inside.size

    def signal(self, prior: Floats, base: Floats) -> float:
        """Return s = ||Q' L sum_c (prior_c - base_c) mu_c||^2, the squared shift of mean features by label shift."""
        moved = ((prior - base) @ self.means) @ self.whiten @ self.span
        return float(moved @ moved)


def drift(residuals: Floats) -> float:
    """Return D = (||sum_i r_i||^2 - sum_i ||r_i||^2) / (n (n - 1)), an unbiased estimate of ||E r||^2.

    The expectation of D is 0 under any label shift. D depends only on n and on the sums of r_i and ||r_i||^2, so a
    client can process inputs one by one without storing them. The result is nan for fewer than two inputs.

    Args:
        residuals: (n, H) residuals of a client's inputs.

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
    """Return the standard deviation of D without drift, sqrt(2 dimensions / (n (n - 1))), for white residuals.

    The ridge makes residuals smaller than white residuals, so the result is slightly too large.
    """
    return math.sqrt(2.0 * dimensions / (n * (n - 1)))


def project_features(outputs: Outputs) -> Floats:
    """Return the (m, min(H, 128)) features in float64, projected on random directions if they are wider.

    The directions are signs / sqrt(H) from the raw bits of PCG64 with seed H. They are the same in all versions of
    numpy and at all clients, so they are not sent. The projection preserves linear relations, so D still has
    expectation 0 under label shift.
    """
    if outputs.features is None:
        raise ValueError("outputs must contain features; got None. Set `reads_inputs = True` on the rule.")
    features = outputs.features.astype(np.float64).reshape(len(outputs.logits), -1)
    width = features.shape[1]
    if width <= WIDEST:
        return features
    return np.asarray(features @ (fixed_signs(width, WIDEST) / math.sqrt(width)))


def logit_statistics(logits: Floats) -> Floats:
    """Return (2, m) the largest probabilities and log sum_c exp z_c of uncalibrated (m, C) logits."""
    largest = log_softmax(logits.astype(np.float64)).max(axis=1)
    return np.stack([np.exp(largest), logits.max(axis=1) - largest])


def first_sums(outputs: Outputs, labels: Ints, c: int) -> State:
    """Return the contribution of one participant to the first exchange; empty without features.

    Args:
        outputs: Model outputs on the participant's m held-out examples.
        labels: (m,) labels of these examples.
        c: Number of classes C.
    """
    if outputs.features is None:
        return NO_STATE
    features, one_hot = project_features(outputs), np.eye(c)[labels]
    values = np.zeros((2, 1, len(labels)))
    if outputs.inputs is not None:
        channels = channels_of(outputs.inputs)
        inputs = outputs.inputs.astype(np.float64).reshape(len(labels), channels, -1)
        values = np.stack([inputs.mean(axis=2).T, (inputs**2).mean(axis=2).T])
    return {
        "guard_examples": one_hot.sum(axis=0),  # (C,)
        "guard_features": one_hot.T @ features,  # (C, H)
        "guard_products": pack(features.T @ features),  # (H (H + 1) / 2,)
        "guard_values": values @ one_hot,  # (2, k, C) for each channel, of each example's mean value and mean square
    }


def first_fit(sums: State, ridge: float = RIDGE) -> State:
    """Return the results of the first exchange: mu_c, L, and the mean and variance of input values for each class.

    A class without examples has the values of all examples together. So it contributes neither to the span nor to the
    signal.
    """
    if not sums:
        return NO_STATE
    counts, features = sums["guard_examples"], sums["guard_features"]
    means = _by_class(features.T, counts).T
    freedom = max(counts.sum() - (counts > 0).sum(), 1.0)
    second = unpack(sums["guard_products"], features.shape[1])
    within = (second - features.T @ means) / freedom  # absent classes have a sum of 0
    mean, square = _by_class(sums["guard_values"], counts)
    return {
        "guard_means": means,  # (C, H)
        "guard_whitening": pack(_inverse_root(within, ridge)),  # (H (H + 1) / 2,)
        "guard_value_mean": mean,  # (k, C)
        "guard_value_variance": np.maximum(square - mean**2, 0.0),  # (k, C)
    }


def second_query(state: State) -> State:
    """Return the query for `second_sums`, from the state after `first_fit`."""
    return {name: state[name] for name in ("guard_means", "guard_whitening") if name in state}


def second_sums(query: State, outputs: Outputs, labels: Ints) -> State:
    """Return the contribution of one participant to the second exchange; it does not depend on the class prior.

    Args:
        query: Result of `second_query`.
        outputs: Model outputs on the participant's m held-out examples, the same as in the first exchange.
        labels: (m,) labels of these examples.
    """
    if not query:
        return NO_STATE
    frame = Frame.of(query)
    one_hot, statistics = np.eye(len(frame.means))[labels], logit_statistics(outputs.logits)
    return {
        "guard_examples": one_hot.sum(axis=0),  # (C,)
        "guard_residual": (frame.residuals(project_features(outputs)) ** 2).sum(axis=1) @ one_hot,  # (C,)
        "guard_logits": statistics @ one_hot,  # (2, C)
        "guard_logits_squared": statistics**2 @ one_hot,  # (2, C)
    }


def second_fit(state: State, sums: State) -> State:
    """Return the fitted state: the state of `first_fit` with e_c and statistics of logits for each class."""
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


def sampling_terms(state: State, dimensions: int, prior: Floats) -> tuple[float, float]:
    """Return the effect of few held-out examples without drift: the expectation of D, and ln of the factor on E.

    There are n_c examples of class c, nu = sum_c n_c - C degrees of freedom and H features. The covariance behind L is
    too small for new examples: f = nu / (nu - H - 1) is the expectation of S^-1 relative to the inverse of the true
    covariance. So

    ```
    E D = f dimensions sum_c prior_c^2 / n_c,    E of ||r||^2 against e_c is about f (1 + sum_c prior_c / n_c)
    ```

    Both effects vanish for large n_c. If they were ignored, a safeguard that was fitted on a hundred examples would
    find drift at every client.

    Args:
        state: Fitted state.
        dimensions: H - q, see `Frame`.
        prior: (C,) class prior of the client.
    """
    counts = np.maximum(state["guard_counts"].astype(np.float64), 1.0)
    freedom = counts.sum() - len(counts)
    factor = freedom / max(freedom - state["guard_means"].shape[1] - 1.0, 1.0) if freedom > 0 else 1.0
    factor = max(factor, 1.0)
    return factor * dimensions * float(prior**2 @ (1.0 / counts)), math.log(factor * (1.0 + prior @ (1.0 / counts)))


def logit_shift(state: State, logits: Floats, prior: Floats) -> float:
    """Return max(t^2, t_z^2), the squared deviation of the two mean logit statistics under a (C,) prior.

    t^2 = n (mean of the client - sum_c prior_c a_c)^2 / v. Here v is the variance of an example drawn from the prior,
    including the variance of the class means a_c.
    """
    mean, variance = state["guard_logit_mean"], state["guard_logit_variance"]
    expected = mean @ prior
    spread = variance @ prior + (mean - expected[:, None]) ** 2 @ prior
    off = logit_statistics(logits).mean(axis=1) - expected
    return float((len(logits) * off**2 / np.maximum(spread, LEAST_VARIANCE)).max())


def _by_class(sums: Floats, counts: Floats) -> Floats:
    """Return (..., C) means by class, given (..., C) sums; the mean of all examples for a class without examples."""
    overall = sums.sum(axis=-1, keepdims=True) / counts.sum()
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1.0), overall))


def _inverse_root(within: Floats, ridge: float) -> Floats:
    """Return (S + ridge * mean eigenvalue of S)^(-1/2); the identity if no feature varies within a class."""
    eigenvalues, vectors = np.linalg.eigh(within)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    eigenvalues += ridge * eigenvalues.mean()
    if eigenvalues[0] <= 0.0:
        return np.eye(len(within))
    return np.asarray((vectors / np.sqrt(eigenvalues)) @ vectors.T)


# -------------------- The decision to adapt or abstain

PASSES = 3
"""Number of passes of the intensity correction; each uses the class prior estimated after the pass before."""
LEAST_GONE = 2.0
"""Smallest reduction of drift for which a correction is accepted."""
MOST_LEFT_BY_COLORS = 1.0
"""Largest total drift after a correction per color channel; a change in the color of light leaves hardly any drift."""
LARGEST_LOG = 700.0  # of which exp() is a number
LARGEST_DISTANCE = 1e9  # of which the power is a number
UNCHANGED, UNDEFINED = Intensity(), Residue(math.nan, math.nan, np.zeros((0, 0)))

Estimates = Callable[[Sequence[Outputs]], Floats]
"""Function that returns a rule's (k, C) class priors of k >= 1 clients, given the model outputs for each client."""
Classes = Callable[[Outputs, Floats], Floats]
"""Function that returns a rule's (n, C) class probabilities for a client's inputs, under its (C,) prior."""


@dataclass(frozen=True, eq=False)
class GuardedOutputs:
    """Outputs that a client uses, and the evidence for and against adaptation to its class prior.

    `intensity` corrects later inputs before the model processes them.
    """

    outputs: Outputs  # on repaired inputs where the repair was accepted
    prior: Floats  # (C,) estimated from `outputs`
    guarded: bool = False  # without features nothing speaks against it
    repaired: bool = False
    intensity: Intensity = UNCHANGED  # of the accepted repair; scale 1 and shift 0 without one
    residue: Residue = UNDEFINED  # of `outputs`; nan for fewer than two inputs, as are the next four
    signal: float = math.nan  # s
    distance: float = math.nan  # R
    total_drift: float = math.nan  # d
    deviation: float = math.nan  # sd(D) under no drift


Steps = Generator[Outputs, Floats, GuardedOutputs]
"""Computation for one client, which yields outputs and receives the prior that is estimated from them."""


@dataclass(frozen=True)
class Guard(Options):
    """Safeguard that corrects the intensity of inputs, and compares the signal of label shift with the drift.

    A client adapts if (s >= k max(R, 1)^power d and w >= min_weight) or d <= threshold + allowance sd(D), where

    ```
    s = ||Q' L sum_c (p_c - base_c) mu_c||^2                                    signal, p: estimated prior
    D = (||sum_i r_i||^2 - sum_i ||r_i||^2) / (n (n - 1))                       drift, see `drift`
    d = max(D, 0) + c (ln^2 E - 0.5 / n)_+ + c_logits (max(t^2, t_z^2) - t0)_+ / n,  E = mean ||r||^2 / sum_c p_c e_c
    R = mean_i sum_c q_ic ||Q' L (h_i - mu_c)||^2 / (dimensions of the span)    distance, q_ic: estimated classes
    ```

    The rule compares the sizes of drift and signal. It does not test whether the drift is significant. Drift outside
    the span of the class means shows that inputs look different, and R shows whether this matters. R is about 1 if
    inputs are close to their estimated classes. Then drift does little harm (a vignette, blurred or bold strokes). If
    inputs are between or beyond the classes (low contrast, inverted, shifted by some pixels), R is 2 to 13, and the
    estimated classes are unreliable. R is divided by its expected value for few held-out examples. After a correction,
    the last term of d is omitted.

    A correction is accepted if D - D' > max(2, D / 2), D' <= 8 + 2 sd(D'), and the remaining d is at most `most_left`.
    For color images, each channel may then be corrected separately. This is accepted if it reduces the remaining drift
    by D - D' > max(min(0.5 + 4 sd(D), 2), D / 2) and the new d is at most 1.

    D is undefined for a single input, so a client with one input abstains. Without features the safeguard is off, and
    clients always adapt. Without inputs, or with tables and text, nothing is corrected. If the class means span all H
    dimensions, drift cannot be measured, and the decision depends on the logits alone.

    Args:
        k: Required ratio of signal to drift, for R = 1. With 0 and without thresholds and correction, clients always
            adapt. With infinity, they adapt only if there is hardly any drift.
        power: Exponent of R. 0: ignore R.
        c: Weight of the logarithm of the residuals' size, in units of D.
        c_logits: Weight of the logits' shift, in units of D.
        t0: Squared deviation of the logits' means that does not count as drift, in variances of the mean.
        threshold: Drift d below which a client always adapts.
        allowance: Number of standard deviations of D to add to the threshold. With 1, clients with few inputs abstain
            less often.
        min_weight: Smallest weight w of the client's own prior for which the client adapts because of the signal.
        repair: Correct inputs.
        most_left: Largest total drift d after a correction. Without this limit, noise of standard deviation 1 on pixels
            in [0, 1] cost up to 14, 38 and 60 points with 5, 20 and 200 inputs. With a limit of 4 it cost at most 1.6
            points (13 seeds, two data sets). But the limit mostly rejects corrections of clipped noise and of uneven
            brightness. Infinity: only D' decides.

    Raises:
        ConfigError: If an option is out of range.

    Example:
        >>> outputs = Outputs(np.array([[2.0, 1.0]]))  # no features
        >>> (chosen,) = Guard().choose(
        ...     {}, [outputs], np.full(2, 0.5), lambda asked: np.array([[0.9, 0.1]]), lambda outputs, prior: prior[None]
        ... )
        >>> Guard().adapts(chosen, weight=0.7)
        True
    """

    k: Annotated[float, "[0, inf]"] = 0.5
    power: Annotated[float, "[0, 10]"] = 4.0
    c: Annotated[float, "[0, inf)"] = 20.0
    c_logits: Annotated[float, "[0, inf)"] = 20.0
    t0: Annotated[float, "[0, inf)"] = 4.0
    threshold: Annotated[float, "[-inf, inf]"] = 0.5
    allowance: Annotated[float, "[0, inf)"] = 0.0
    min_weight: Annotated[float, "[0, 1]"] = 0.05
    repair: bool = True
    most_left: Annotated[float, "[0, inf]"] = 4.0

    def choose(
        self, state: State, client_outputs: Sequence[Outputs], base: Floats, priors_of: Estimates, classes_of: Classes
    ) -> list[GuardedOutputs]:
        """Return the outputs that each client uses, after an accepted correction if there is one.

        All clients advance together, so that the rule estimates the priors of all clients at once.

        Args:
            state: Fitted state from `second_fit`.
            client_outputs: Model outputs on each client's unchanged inputs.
            base: (C,) class prior of the participants.
            priors_of: Function for the rule's class priors, called at most four times per client.
            classes_of: Function for the class probabilities of inputs, called once per client.
        """
        frame = Frame.of(state) if "guard_means" in state else None
        return _run_together(
            [self._steps(state, frame, outputs, base, classes_of) for outputs in client_outputs], priors_of
        )

    def adapts(self, chosen: GuardedOutputs, weight: float) -> bool:
        """Return whether the client adapts, given its weight w; otherwise the calibrated model predicts."""
        if not chosen.guarded:
            return True
        # What is not defined is nan, which is neither above nor below anything: a single input abstains.
        against = self.k * max(chosen.distance, 1.0) ** self.power * chosen.total_drift
        outweighs = chosen.signal >= against and weight >= self.min_weight
        return outweighs or chosen.total_drift <= self.threshold + self.allowance * chosen.deviation

    def _steps(self, state: State, frame: Frame | None, outputs: Outputs, base: Floats, classes_of: Classes) -> Steps:
        n = len(outputs.logits)
        plain = GuardedOutputs(outputs, (yield outputs) if n else base)
        if outputs.features is None or frame is None:
            return plain
        if n < 2:
            return replace(plain, guarded=True)
        deviation = drift_deviation(frame.dimensions, n)
        plain = chosen = replace(plain, guarded=True, residue=frame.residue(outputs), deviation=deviation)
        for channels in channels_to_repair(outputs, state) if self.repair else ():
            least_gone = LEAST_GONE if channels == 1 else least_gone_by_colors(deviation)
            most_left = self.most_left if channels == 1 else min(self.most_left, MOST_LEFT_BY_COLORS)
            if self._may_accept(state, frame, chosen, least_gone, most_left):
                tried = yield from _try_repair(state, frame, plain, chosen, channels, least_gone)
                if tried is not None and self._total(state, frame, tried) <= most_left:
                    chosen = tried
        return replace(
            chosen,
            signal=frame.signal(chosen.prior, base),
            distance=_distance(state, frame, chosen, classes_of(chosen.outputs, chosen.prior)),
            total_drift=self._total(state, frame, chosen),
        )

    def _may_accept(
        self, state: State, frame: Frame, plain: GuardedOutputs, least_gone: float, most_left: float
    ) -> bool:
        """Return whether a correction could be accepted for any outputs; otherwise the model does not run again.

        The drift must decrease by `least`, and D' >= -mean ||r'||^2 / (n - 1). After an accepted correction, d is at
        most `most_left`. So ln E exceeds its expected value by at most sqrt(most_left / c + 0.5 / n), for the prior
        that allows the largest residuals.
        """
        usual, n = state["guard_residual"].astype(np.float64), len(plain.outputs.logits)
        if frame.dimensions == 0:
            return False  # D and D' are 0
        if self.c == 0 or math.isinf(most_left) or not (usual > 0).all():
            return True  # residuals of any size are accepted
        rarest = np.eye(len(usual))[state["guard_counts"].argmin()]
        _, explained = sampling_terms(state, frame.dimensions, rarest)
        log_largest = math.log(usual.max()) + explained + math.sqrt(most_left / self.c + 0.5 / n)
        return plain.residue.drift + math.exp(min(log_largest, LARGEST_LOG)) / (n - 1) > least_gone

    def _total(self, state: State, frame: Frame, chosen: GuardedOutputs) -> float:
        """Return d."""
        n = len(chosen.outputs.logits)
        usual, log_factor = sampling_terms(state, frame.dimensions, chosen.prior)
        total = max(chosen.residue.drift - usual, 0.0)
        log_size = _log_size(state, frame, chosen)
        log_size -= min(max(log_size, 0.0), log_factor)  # what few held-out examples explain
        total += self.c * max(log_size**2 - 0.5 / n, 0.0)
        if not chosen.repaired:
            shift = logit_shift(state, chosen.outputs.logits, chosen.prior)
            total += self.c_logits * max(shift - self.t0, 0.0) / n
        return total


def least_gone_by_colors(deviation: float) -> float:
    """Return the smallest reduction of drift for an accepted correction per channel, given sd(D) without drift."""
    return min(0.5 + 4.0 * deviation, LEAST_GONE)


def _run_together(clients: Sequence[Steps], priors_of: Estimates) -> list[GuardedOutputs]:
    """Run all clients in parallel, and estimate the priors that they need together at each step."""
    choices: dict[int, GuardedOutputs] = {}
    sent: dict[int, Floats | None] = dict.fromkeys(range(len(clients)))
    while sent:
        pending: dict[int, Outputs] = {}
        for i, prior in sent.items():
            try:
                pending[i] = next(clients[i]) if prior is None else clients[i].send(prior)
            except StopIteration as end:
                choices[i] = end.value
        sent = dict(zip(pending, priors_of(list(pending.values())), strict=True)) if pending else {}
    return [choices[i] for i in range(len(clients))]


def _try_repair(
    state: State, frame: Frame, plain: GuardedOutputs, before: GuardedOutputs, channels: int, least_gone: float
) -> Generator[Outputs, Floats, GuardedOutputs | None]:
    """Return the outputs on corrected inputs, if the correction removes most of the drift."""
    inputs, rerun_model, prior = plain.outputs.inputs, plain.outputs.again, plain.prior
    assert inputs is not None  # channels_to_repair ensures it, and the next
    assert rerun_model is not None
    values = Values.of(inputs, channels)
    for number in range(1, PASSES + 1):
        # From the inputs as they came: a repair of repaired inputs is the repair of these.
        repair = intensity(state, values, prior)
        outputs = rerun_model(repair.of(inputs))
        if number < PASSES:
            prior = yield outputs
    residue, drift = frame.residue(outputs), before.residue.drift
    is_gone = drift - residue.drift > max(least_gone, drift / 2.0)
    if not (is_gone and residue.drift <= 8.0 + 2.0 * plain.deviation):
        return None
    prior = yield outputs
    return replace(plain, outputs=outputs, prior=prior, repaired=True, intensity=repair, residue=residue)


def _log_size(state: State, frame: Frame, chosen: GuardedOutputs) -> float:
    """Return ln E, the log size of the residuals relative to participants with this (C,) prior; 0 if both are 0."""
    usual = float(state["guard_residual"] @ chosen.prior)
    if frame.dimensions == 0 or usual <= 0.0:
        return 0.0
    return math.log(max(chosen.residue.size / usual, float(np.finfo(float).tiny)))


def _distance(state: State, frame: Frame, chosen: GuardedOutputs, classes: Floats) -> float:
    """Return R, divided by its expected value for few held-out examples."""
    _, log_factor = sampling_terms(state, frame.dimensions, chosen.prior)
    return min(frame.distance(chosen.residue.inside, classes), LARGEST_DISTANCE) / math.exp(log_factor)
