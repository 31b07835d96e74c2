"""Whether a client should adapt to its own class prior, or whether its inputs look too different for that."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedreach.arrays import Floats
from fedreach.errors import require
from fedreach.federation.serving.drift import Frame, Residue, drift_deviation, logit_shift, sampling
from fedreach.federation.serving.repair import Intensity, Values, channels_to_repair, intensity
from fedreach.federation.values import Outputs, State

PASSES = 3
"""Of the repair: each takes the class prior that was estimated after the one before."""
LEAST_GONE = 2.0
"""Drift that a repair takes away at least."""
MOST_LEFT_BY_COLORS = 1.0
"""Total drift that a repair of each color of its own leaves at most: light of another color leaves hardly any."""
LARGEST_LOG = 700.0  # of which exp() is a number
LARGEST_DISTANCE = 1e9  # of which the power is a number
UNCHANGED, UNDEFINED = Intensity(), Residue(math.nan, math.nan, np.zeros((0, 0)))

Estimates = Callable[[Sequence[Outputs]], Floats]
"""A rule's own (k, C) class priors of k clients, from the model's outputs for each; asked with at least one."""
Classes = Callable[[Outputs, Floats], Floats]
"""A rule's own (n, C) probabilities of the class of each of a client's inputs, under its (C,) prior."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """The outputs that a client goes by, and what speaks for adapting to its class prior, and against.

    Later inputs are changed by `intensity` before the model sees them.
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


Steps = Generator[Outputs, Floats, Chosen]
"""What one client goes through: it yields outputs, and is sent the prior that is estimated from them."""


@dataclass(frozen=True)
class Guard:
    """Repair the inputs' intensity first, then weigh the signal of label shift against the drift of features.

    A client adapts if (s >= k max(R, 1)^power d and w >= min_weight) or d <= threshold + allowance sd(D), where

    ```
    s = ||Q' L sum_c (p_c - base_c) mu_c||^2                                    signal, p: estimated prior
    D = (||sum_i r_i||^2 - sum_i ||r_i||^2) / (n (n - 1))                       drift, see `drift.drift`
    d = max(D, 0) + c (ln^2 E - .5 / n)_+ + c_logits (max(t^2, t_z^2) - t0)_+ / n,   E = mean ||r||^2 / sum_c p_c e_c
    R = mean_i sum_c q_ic ||Q' L (h_i - mu_c)||^2 / (dimensions of the span)    distance, q_ic: estimated classes
    ```

    It is the size of the drift against that of the signal that counts, not whether the drift is significant. Drift off
    the span of the class means says that inputs look different; R says whether that matters. It is about 1 while inputs
    lie, in the span, where the classes lie that they are taken for, and then drift does little harm (a vignette,
    blurred or bold strokes). Where they lie between or beyond the classes (low contrast, black for white, moved by some
    pixels) it is 2 to 13, and what they are taken for means little. R is divided by what few held-out examples make of
    it. The last term of d is left out after a repair.

    A repair is accepted if D - D' > max(2, D / 2), D' <= 8 + 2 sd(D') and what is left of d is at most `most_left`. Of
    images in color each color may then get a repair of its own: if it takes away more of what the first one left,
    D - D' > max(min(0.5 + 4 sd(D), 2), D / 2), and leaves a d of at most 1.

    D is not defined for a single input: a client with one abstains. Without features the guard is off, and clients
    always adapt; without inputs, or with those of a table or of words, nothing is repaired. Where class means span all
    H dimensions no drift can be seen, and only the logits speak.

    Args:
        k: Drift that a unit of signal may outweigh is 1 / (k R^power). 0 without thresholds and repair: always adapt;
            infinite: adapt where there is hardly any drift, only.
        power: Of R. 0: where inputs lie in the span does not matter.
        c: Of the logarithm of the residuals' size, in units of D.
        c_logits: Of the logits' shift, likewise.
        t0: Squared deviation of the logits' means that is no drift, in variances of the mean.
        threshold: Drift d below which a client adapts in any case.
        allowance: Standard deviations of D that are added to the threshold. With 1 few inputs abstain less.
        min_weight: Weight w of its own prior below which a client does not adapt for the signal's sake.
        repair: Whether inputs are repaired.
        most_left: Total drift d after a repair above which it is not accepted after all. Strong noise is only paled by
            a repair, and with it the image: noise of standard deviation 1 on pixels in 0..1 cost up to 14, 38 and 60
            points with 5, 20 and 200 inputs, and at most 1.6 with 4, on 13 fresh seeds of two data sets. The price is
            that repairs of clipped noise and of uneven brightness are mostly refused. Infinite: D' alone decides.

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

    k: float = 0.5
    power: float = 4.0
    c: float = 20.0
    c_logits: float = 20.0
    t0: float = 4.0
    threshold: float = 0.5
    allowance: float = 0.0
    min_weight: float = 0.05
    repair: bool = True
    most_left: float = 4.0

    def __post_init__(self) -> None:
        require(self, k="[0, inf]", power="[0, 10]", c="[0, inf)", c_logits="[0, inf)", t0="[0, inf)")
        require(self, threshold="[-inf, inf]")
        require(self, allowance="[0, inf)", min_weight="[0, 1]", most_left="[0, inf]")

    def choose(
        self, state: State, many: Sequence[Outputs], base: Floats, priors_of: Estimates, classes_of: Classes
    ) -> list[Chosen]:
        """Return what each of some clients goes by, repaired where that is accepted, in the order of the clients.

        They take their steps together, so that priors are estimated for all of them at once.

        Args:
            state: Fitted, see `drift.second_fit`.
            many: Of the model on each client's inputs, as they came.
            base: (C,) class shares among the participants.
            priors_of: The rule's estimates; for each client at most four times.
            classes_of: What the rule takes inputs for; for each client once.
        """
        frame = Frame.of(state) if "guard_means" in state else None
        return _in_step([self._steps(state, frame, outputs, base, classes_of) for outputs in many], priors_of)

    def adapts(self, chosen: Chosen, weight: float) -> bool:
        """Return whether the client adapts, given its weight w; if not, the calibrated model predicts."""
        if not chosen.guarded:
            return True
        # What is not defined is nan, which is neither above nor below anything: a single input abstains.
        against = self.k * max(chosen.distance, 1.0) ** self.power * chosen.total_drift
        outweighs = chosen.signal >= against and weight >= self.min_weight
        return outweighs or chosen.total_drift <= self.threshold + self.allowance * chosen.deviation

    def _steps(self, state: State, frame: Frame | None, outputs: Outputs, base: Floats, classes_of: Classes) -> Steps:
        n = len(outputs.logits)
        plain = Chosen(outputs, (yield outputs) if n else base)
        if outputs.features is None or frame is None:
            return plain
        if n < 2:
            return replace(plain, guarded=True)
        deviation = drift_deviation(frame.dimensions, n)
        plain = chosen = replace(plain, guarded=True, residue=frame.residue(outputs), deviation=deviation)
        for channels in channels_to_repair(outputs, state) if self.repair else ():
            least = LEAST_GONE if channels == 1 else least_gone_by_colors(deviation)
            most_left = self.most_left if channels == 1 else min(self.most_left, MOST_LEFT_BY_COLORS)
            if self._may_accept(state, frame, chosen, least, most_left):
                tried = yield from _repaired(state, frame, plain, chosen, channels, least)
                if tried is not None and self._total(state, frame, tried) <= most_left:
                    chosen = tried
        return replace(
            chosen,
            signal=frame.signal(chosen.prior, base),
            distance=_distance(state, frame, chosen, classes_of(chosen.outputs, chosen.prior)),
            total_drift=self._total(state, frame, chosen),
        )

    def _may_accept(self, state: State, frame: Frame, plain: Chosen, least: float, most_left: float) -> bool:
        """Return whether there are outputs on which a repair would be accepted: if not, the model need not be asked.

        A repair takes away `least`, and D' >= -mean ||r'||^2 / (n - 1). An accepted one leaves d <= `most_left`,
        so that ln E exceeds what few examples explain by sqrt(most_left / c + .5 / n) at most, under the prior that
        allows for the largest residuals.
        """
        usual, n = state["guard_residual"].astype(np.float64), len(plain.outputs.logits)
        if frame.dimensions == 0:
            return False  # D and D' are 0
        if self.c == 0 or math.isinf(most_left) or not (usual > 0).all():
            return True  # residuals of any size are accepted
        rarest = np.eye(len(usual))[state["guard_counts"].argmin()]
        _, explained = sampling(state, frame.dimensions, rarest)
        log_largest = math.log(usual.max()) + explained + math.sqrt(most_left / self.c + 0.5 / n)
        return plain.residue.drift + math.exp(min(log_largest, LARGEST_LOG)) / (n - 1) > least

    def _total(self, state: State, frame: Frame, chosen: Chosen) -> float:
        """Return d."""
        n = len(chosen.outputs.logits)
        usual, log_factor = sampling(state, frame.dimensions, chosen.prior)
        total = max(chosen.residue.drift - usual, 0.0)
        log_size = _log_size(state, frame, chosen)
        log_size -= min(max(log_size, 0.0), log_factor)  # what few held-out examples explain
        total += self.c * max(log_size**2 - 0.5 / n, 0.0)
        if not chosen.repaired:
            shift = logit_shift(state, chosen.outputs.logits, chosen.prior)
            total += self.c_logits * max(shift - self.t0, 0.0) / n
        return total


def least_gone_by_colors(deviation: float) -> float:
    """Return the drift that a repair of each color takes away at least, given sd(D) without drift: less where known."""
    return min(0.5 + 4.0 * deviation, LEAST_GONE)


def _in_step(clients: Sequence[Steps], priors_of: Estimates) -> list[Chosen]:
    """Return what each client ends with; at each step all priors that are waited for are estimated together."""
    found: dict[int, Chosen] = {}
    sent: dict[int, Floats | None] = dict.fromkeys(range(len(clients)))
    while sent:
        asked: dict[int, Outputs] = {}
        for i, prior in sent.items():
            try:
                asked[i] = next(clients[i]) if prior is None else clients[i].send(prior)
            except StopIteration as end:
                found[i] = end.value
        sent = dict(zip(asked, priors_of(list(asked.values())), strict=True)) if asked else {}
    return [found[i] for i in range(len(clients))]


def _repaired(
    state: State, frame: Frame, plain: Chosen, before: Chosen, channels: int, least: float
) -> Generator[Outputs, Floats, Chosen | None]:
    """Return what the client would go by on repaired inputs, if that takes away most of the drift and leaves little."""
    inputs, again, prior = plain.outputs.inputs, plain.outputs.again, plain.prior
    assert inputs is not None  # channels_to_repair says so, and the next
    assert again is not None
    values = Values.of(inputs, channels)
    for number in range(1, PASSES + 1):
        # From the inputs as they came: a repair of repaired inputs is the repair of these.
        found = intensity(state, values, prior)
        outputs = again(found.of(inputs))
        if number < PASSES:
            prior = yield outputs
    residue, drift = frame.residue(outputs), before.residue.drift
    is_gone = drift - residue.drift > max(least, drift / 2.0)
    if not (is_gone and residue.drift <= 8.0 + 2.0 * plain.deviation):
        return None
    prior = yield outputs
    return replace(plain, outputs=outputs, prior=prior, repaired=True, intensity=found, residue=residue)


def _log_size(state: State, frame: Frame, chosen: Chosen) -> float:
    """Return ln E, the residuals' size against that of participants with this (C,) prior; 0 where neither has any."""
    usual = float(state["guard_residual"] @ chosen.prior)
    if frame.dimensions == 0 or usual <= 0.0:
        return 0.0
    return math.log(max(chosen.residue.size / usual, float(np.finfo(float).tiny)))


def _distance(state: State, frame: Frame, chosen: Chosen, classes: Floats) -> float:
    """Return R, over what few held-out examples make of it, which is what they make of E, too."""
    _, log_factor = sampling(state, frame.dimensions, chosen.prior)
    return min(frame.distance(chosen.residue.inside, classes), LARGEST_DISTANCE) / math.exp(log_factor)
