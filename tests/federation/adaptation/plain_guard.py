"""The guard a second time: one client, one step after the other, nothing skipped and nothing shared between clients."""

import math
from dataclasses import dataclass, replace

import numpy as np

from fedreach.federation.adaptation import safeguard
from fedreach.federation.adaptation.safeguard import PASSES, Guard, Intensity, channels_to_repair
from fedreach.federation.types import Outputs


@dataclass(frozen=True, eq=False)
class Decision:
    """What a client should do."""

    adapt: bool
    repaired: bool
    outputs: Outputs
    intensity: Intensity
    prior: np.ndarray
    weight: float
    signal: float = math.nan
    drift: float = math.nan
    total_drift: float = math.nan
    distance: float = math.nan

    @property
    def words(self):
        return ("repaired, " if self.repaired else "") + ("adapted" if self.adapt else "abstained")


def decisions(rule, state, many, base, prior_of):
    """What the library decides for clients that take their steps together; `prior_of` returns a prior and a weight."""

    def priors_of(asked):
        return np.stack([prior_of(outputs)[0] for outputs in asked])

    found = []
    for one in rule.choose(state, many, base, priors_of, classes):
        weight = prior_of(one.outputs)[1] if len(one.outputs.logits) else 0.0
        numbers = (one.prior, weight, one.signal, one.residue.drift, one.total_drift, one.distance)
        found.append(Decision(rule.adapts(one, weight), one.repaired, one.outputs, one.intensity, *numbers))
    return found


def decided(rule, state, outputs, base, prior_of):
    """The same for a single client."""
    return decisions(rule, state, [outputs], base, prior_of)[0]


def decided_plainly(rule: Guard, state, outputs, base, prior_of):
    """From the description of `Guard` and docs alone; every repair is tried to its end."""
    n = len(outputs.logits)
    prior, weight = prior_of(outputs) if n else (base, 0.0)
    plain = Decision(True, False, outputs, Intensity(), prior, weight)
    if outputs.features is None or "guard_means" not in state:
        return plain
    if n < 2:
        return replace(plain, adapt=False)
    frame, off = safeguard.Frame.of(state), residuals(state, outputs)
    deviation = math.sqrt(2 * frame.dimensions / (n * (n - 1)))
    chosen = replace(plain, drift=product_of_two(off))
    if rule.repair and channels_to_repair(outputs, state):
        values = outputs.inputs.astype(float)
        for _ in range(PASSES):
            means, variances = state["guard_value_mean"], state["guard_value_variance"]
            target = means[0] @ prior
            scale = math.sqrt(variances[0] @ prior + (means[0] - target) ** 2 @ prior) / values.std()
            shift = target - scale * values.mean()
            found = Intensity(np.array([scale]), np.array([shift]))
            repaired = outputs.again((scale * values + shift).astype(np.float32))
            prior, weight = prior_of(repaired)
        after = product_of_two(residuals(state, repaired))
        tried = Decision(True, True, repaired, found, prior, weight, drift=after)
        before = chosen.drift
        if before - after > max(2, before / 2) and after <= 8 + 2 * deviation:
            chosen = tried if total(rule, state, frame, tried) <= rule.most_left else chosen
    signal, d = frame.signal(chosen.prior, base), total(rule, state, frame, chosen)
    far = distance(state, chosen)
    adapt = (
        signal >= rule.k * max(far, 1.0) ** rule.power * d and chosen.weight >= rule.min_weight
    ) or d <= rule.threshold + rule.allowance * deviation
    return replace(chosen, adapt=bool(adapt), signal=signal, total_drift=d, distance=far)


def classes(outputs, prior):
    """(n, C) softmax(z + log prior)."""
    likely = np.exp(outputs.logits - outputs.logits.max(axis=1, keepdims=True)) * prior
    return likely / likely.sum(axis=1, keepdims=True)


def distance(state, chosen):
    """R: each input against each class mean, one by one."""
    frame = safeguard.Frame.of(state)
    white = safeguard.project_features(chosen.outputs) @ frame.whiten @ frame.span
    centres = frame.means @ frame.whiten @ frame.span
    found = [
        sum(q * ((h - mu) ** 2).sum() for q, mu in zip(row, centres, strict=True))
        for h, row in zip(white, classes(chosen.outputs, chosen.prior), strict=True)
    ]
    _, factor = safeguard.sampling_terms(state, frame.dimensions, chosen.prior)
    return float(np.mean(found)) / white.shape[1] / math.exp(factor) if white.shape[1] else 1 / math.exp(factor)


def residuals(state, outputs):
    """(n, H) r_i = (I - QQ') L (h_i - mu)."""
    frame = safeguard.Frame.of(state)
    white = (safeguard.project_features(outputs) - frame.means.mean(axis=0)) @ frame.whiten
    return white - white @ frame.span @ frame.span.T


def product_of_two(r):
    """D, the mean of r_i' r_j over pairs of different inputs."""
    gram = r @ r.T
    return float((gram.sum() - np.trace(gram)) / (len(r) * (len(r) - 1)))


def total(rule, state, frame, chosen):
    """Total drift d."""
    n = len(chosen.outputs.logits)
    usual, factor = safeguard.sampling_terms(state, frame.dimensions, chosen.prior)
    d = max(chosen.drift - usual, 0)
    expected = state["guard_residual"] @ chosen.prior
    if frame.dimensions and expected > 0:
        size = (residuals(state, chosen.outputs) ** 2).sum(axis=1).mean()
        off = math.log(max(size / expected, np.finfo(float).tiny))
        off = off - factor if off > factor else min(off, 0)
        d += rule.c * max(off**2 - 0.5 / n, 0)
    if not chosen.repaired:
        d += rule.c_logits * max(safeguard.logit_shift(state, chosen.outputs.logits, chosen.prior) - rule.t0, 0) / n
    return d
