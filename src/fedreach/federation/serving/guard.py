"""Whether a client should adapt to its own class prior, or whether its inputs look too different for that."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedreach.arrays import Floats
from fedreach.errors import require
from fedreach.federation.serving.drift import Frame, drift, drift_deviation, logit_shift, sampling, seen
from fedreach.federation.serving.repair import Intensity, can_repair, intensity
from fedreach.federation.values import Outputs, State

PASSES = 3
"""Of the repair: each takes the class prior that was estimated after the one before."""

Estimate = Callable[[Outputs], tuple[Floats, float]]
"""A rule's own (C,) class prior of a client, and its weight w against no shift, 0 to 1, from the model's outputs."""


@dataclass(frozen=True, eq=False)
class Decision:
    """What a client should do with its n inputs; later ones are changed by `intensity` before the model sees them."""

    adapt: bool  # by `prior` and `weight`; else the largest raw logit of `outputs` stands
    repaired: bool
    outputs: Outputs  # to go on with: on repaired inputs where the repair was accepted
    intensity: Intensity  # of the accepted repair; scale 1 and shift 0 without one
    prior: Floats  # (C,) estimated on `outputs`
    weight: float  # w, likewise
    signal: float = math.nan  # s
    drift: float = math.nan  # D of `outputs`
    total_drift: float = math.nan  # d

    @property
    def words(self) -> str:
        """What was decided, as a row of a table says it."""
        return ("repaired, " if self.repaired else "") + ("adapted" if self.adapt else "abstained")


@dataclass(frozen=True)
class Guard:
    """Repair the inputs' intensity first, then weigh the signal of label shift against the drift of features.

    A client adapts if (s >= k d and w >= min_weight) or d <= threshold + allowance sd(D), where

    ```
    s = ||Q' L sum_c (p_c - base_c) mu_c||^2                                    signal, p: estimated prior
    D = (||sum_i r_i||^2 - sum_i ||r_i||^2) / (n (n - 1))                       drift, see `drift.drift`
    d = max(D, 0) + c (ln^2 E - .5 / n)_+ + c_logits (max(t^2, t_z^2) - t0)_+ / n,   E = mean ||r||^2 / sum_c p_c e_c
    ```

    It is the size of the drift against that of the signal that counts, not whether the drift is significant. The last
    term is left out after a repair. A repair is accepted if D - D' > max(2, D / 2), D' <= 8 + 2 sd(D') and what is left
    of d is at most `most_left`.

    D is not defined for a single input: a client with one abstains. Without features the guard is off, and clients
    always adapt; without inputs, or with those of a table or of words, nothing is repaired. Where class means span all
    H dimensions no drift can be seen, and only the logits speak.

    Args:
        k: Drift that a unit of signal may outweigh is 1 / k. 0 without thresholds and repair: always adapt; infinite:
            adapt where there is hardly any drift, only.
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
        >>> Guard().decide({}, outputs, np.array([0.5, 0.5]), lambda outputs: (np.array([0.9, 0.1]), 0.7)).words
        'adapted'
    """

    k: float = 1.3
    c: float = 20.0
    c_logits: float = 20.0
    t0: float = 4.0
    threshold: float = 0.5
    allowance: float = 0.0
    min_weight: float = 0.05
    repair: bool = True
    most_left: float = 4.0

    def __post_init__(self) -> None:
        require(self, k="[0, inf]", c="[0, inf)", c_logits="[0, inf)", t0="[0, inf)", threshold="[-inf, inf]")
        require(self, allowance="[0, inf)", min_weight="[0, 1]", most_left="[0, inf]")

    def decide(self, state: State, outputs: Outputs, base: Floats, prior_of: Estimate) -> Decision:
        """Return what a client should do, given its outputs alone.

        Args:
            state: Fitted, see `drift.second_fit`.
            outputs: Of the model on the client's n inputs.
            base: (C,) class shares among the participants.
            prior_of: The rule's estimate from outputs; asked at most four times.
        """
        prior, weight = prior_of(outputs) if len(outputs.logits) else (base, 0.0)
        plain = Decision(True, False, outputs, Intensity(), prior, weight)
        if outputs.features is None or "guard_means" not in state:
            return plain
        if len(outputs.logits) < 2:
            return replace(plain, adapt=False)
        frame = Frame.of(state)
        chosen = replace(plain, drift=drift(frame.residuals(seen(outputs))))
        if self.repair and can_repair(outputs, state):
            tried = _repaired(state, frame, chosen, prior_of)
            if tried is not None and self._total(state, frame, tried) <= self.most_left:
                chosen = tried
        signal, total = frame.signal(chosen.prior, base), self._total(state, frame, chosen)
        deviation = drift_deviation(frame.dimensions, len(outputs.logits))
        outweighs = signal >= self.k * total and chosen.weight >= self.min_weight
        adapt = outweighs or total <= self.threshold + self.allowance * deviation
        return replace(chosen, adapt=bool(adapt), signal=signal, total_drift=total)

    def _total(self, state: State, frame: Frame, chosen: Decision) -> float:
        """Return d."""
        n = len(chosen.outputs.logits)
        usual, log_factor = sampling(state, frame.dimensions, chosen.prior)
        total = max(chosen.drift - usual, 0.0)
        log_size = _log_size(state, frame, chosen.outputs, chosen.prior)
        log_size -= min(max(log_size, 0.0), log_factor)  # what few held-out examples explain
        total += self.c * max(log_size**2 - 0.5 / n, 0.0)
        if not chosen.repaired:
            shift = logit_shift(state, chosen.outputs.logits, chosen.prior)
            total += self.c_logits * max(shift - self.t0, 0.0) / n
        return total


def _repaired(state: State, frame: Frame, before: Decision, prior_of: Estimate) -> Decision | None:
    """Return the decision with repaired inputs if that takes away most of the drift."""
    inputs, again = before.outputs.inputs, before.outputs.again
    assert inputs is not None  # can_repair says so, and the next
    assert again is not None
    prior = before.prior
    for number in range(1, PASSES + 1):
        # From the inputs as they came: a repair of repaired inputs is the repair of these.
        found = intensity(state, inputs, prior)
        outputs = again(found.of(inputs))
        if number < PASSES:
            prior, _ = prior_of(outputs)
    after = drift(frame.residuals(seen(outputs)))
    gone = before.drift - after > max(2.0, before.drift / 2.0)
    if not (gone and after <= 8.0 + 2.0 * drift_deviation(frame.dimensions, len(inputs))):
        return None
    prior, weight = prior_of(outputs)
    return Decision(True, True, outputs, found, prior, weight, drift=after)


def _log_size(state: State, frame: Frame, outputs: Outputs, prior: Floats) -> float:
    """Return ln E, the residuals' size against that of participants with this (C,) prior; 0 where neither has any."""
    usual = float(state["guard_residual"] @ prior)
    if frame.dimensions == 0 or usual <= 0.0:
        return 0.0
    size = float((frame.residuals(seen(outputs)) ** 2).sum(axis=1).mean())
    return math.log(max(size / usual, float(np.finfo(float).tiny)))
