"""Other rules that adapt a model to a client's inputs, in plain numpy, for comparison with `label_shift`.

Each rule's options are chosen on the participants, which adapt to their own held-out inputs and are scored by their
labels. A function makes a rule from the participants and the model's last layer, and returns its prediction function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from fedreach._util.arrays import Floats
from fedreach.federation.adaptation.base import log_softmax
from fedreach.federation.adaptation.fitting import HeldOut, fit
from fedreach.federation.adaptation.label_shift import LabelShift, corrected_logits, scores
from fedreach.federation.types import Outputs

Predict = Callable[[Outputs, Outputs], Floats]
"""Returns (m, c) log probabilities of some inputs, from the outputs of those that were seen and of these."""
STEPS = 10


class Head(NamedTuple):
    """The model's last layer: logits = features @ weight.T + bias."""

    weight: Floats  # (c, h)
    bias: Floats  # (c,)


def of_fedreach(rule: LabelShift, participants: Sequence[HeldOut]) -> Predict:
    """Return how a rule of FedReach predicts, without its safeguard."""
    state = fit(rule, participants).state

    def predict(seen: Outputs, asked: Outputs) -> Floats:
        return rule.predict(state, rule.update(state, rule.start(state), Outputs(seen.logits)), Outputs(asked.logits))

    return predict


def before(participants: Sequence[HeldOut], head: Head) -> Predict:
    """Return the rule that FedReach had before participants decided: MAP-EM and its evidence, trusted in full."""
    return of_fedreach(LabelShift(guard=False, strength=1.0, amplification=1e9), participants)


def design_effect(participants: Sequence[HeldOut], head: Head) -> Predict:
    """Return MAP-EM whose inputs count as the fitted intraclass correlation says (Kish, 1965), trusted in full."""
    found = fit(LabelShift(guard=False), participants).state["correlation"]
    return of_fedreach(
        LabelShift(guard=False, strength=1.0, correlation=float(found[0]), amplification=1e9), participants
    )


def mixture(participants: Sequence[HeldOut], head: Head) -> Predict:
    """Return the posterior mean of class shares, where those of participants are what a client's may be."""
    state = fit(LabelShift(guard=False, strength=1.0), participants).state
    counts, pull = np.stack([one.counts for one in participants]), state["pseudo_counts"][0]
    shares = (counts + pull * state["base"]) / (counts.sum(axis=1, keepdims=True) + pull)  # (k, c)

    def predict(seen: Outputs, asked: Outputs) -> Floats:
        u = scores(state, seen)
        likelihoods = np.exp(u - u.max(axis=1, keepdims=True))
        log_weight = np.log(likelihoods @ shares.T).sum(axis=0)
        weight = np.exp(log_weight - log_weight.max())
        prior = weight @ shares / weight.sum()
        return log_softmax(corrected_logits(state, asked) + np.log(prior) - np.log(state["base"]))

    return predict


def t3a(participants: Sequence[HeldOut], head: Head) -> Predict:
    """Return T3A (Iwasawa and Matsuo, NeurIPS 2021): class centers of features, by the model's own predictions.

    Of each class the M features of least entropy are kept, beside the weights of the last layer; M is chosen.
    """
    unit = head.weight / np.linalg.norm(head.weight, axis=1, keepdims=True)

    def adapted(most: int) -> Predict:
        def predict(seen: Outputs, asked: Outputs) -> Floats:
            x, log_p = _unit(seen.features), log_softmax(seen.logits)
            entropy, taken_for = -(np.exp(log_p) * log_p).sum(axis=1), log_p.argmax(axis=1)
            centers = []
            for c, own in enumerate(unit):
                rows = np.flatnonzero(taken_for == c)
                kept = rows[np.argsort(entropy[rows], kind="stable")][:most]
                centers.append(np.concatenate([own[None], x[kept]]).mean(axis=0))
            return log_softmax(_flat(asked.features) @ np.stack(centers).T)

        return predict

    return _best([adapted(most) for most in (1, 5, 20, 50, 10**6)], participants)


def tent(participants: Sequence[HeldOut], head: Head) -> Predict:
    """Return Tent (Wang et al., ICLR 2021), for models without BatchNorm: scale and shift of features minimize entropy.

    The rate of the ten steps is chosen.
    """

    def adapted(rate: float) -> Predict:
        def predict(seen: Outputs, asked: Outputs) -> Floats:
            x = _flat(seen.features)
            scale, shift = np.ones(x.shape[1]), np.zeros(x.shape[1])
            for _ in range(STEPS):
                slope = _entropy_slope((scale * x + shift) @ head.weight.T + head.bias) @ head.weight
                scale, shift = scale - rate * (slope * x).mean(axis=0), shift - rate * slope.mean(axis=0)
            return log_softmax((scale * _flat(asked.features) + shift) @ head.weight.T + head.bias)

        return predict

    return _best([adapted(rate) for rate in (0.01, 0.1, 1.0)], participants)


def atp(participants: Sequence[HeldOut], head: Head) -> Predict:
    """Return ATP (Bao et al., NeurIPS 2023) on the last layer: a step of entropy, by rates that participants learn.

    One rate for the weights, one for the bias, and one for how far the mean of a client's features is moved to that of
    the participants', in the place of BatchNorm's statistics.
    """
    mean = np.concatenate([_flat(one.outputs.features) for one in participants]).mean(axis=0)

    def adapted(rates: Floats) -> Predict:
        def predict(seen: Outputs, asked: Outputs) -> Floats:
            x = _flat(seen.features)
            moved = rates[2] * (mean - x.mean(axis=0))
            slope = _entropy_slope((x + moved) @ head.weight.T + head.bias)
            weight = head.weight - rates[0] * slope.T @ (x + moved) / len(x)
            return log_softmax((_flat(asked.features) + moved) @ weight.T + head.bias - rates[1] * slope.mean(axis=0))

        return predict

    def loss(rates: Floats) -> float:
        return -float(np.mean([_log_p(adapted(rates), one).mean() for one in participants]))

    found = minimize(loss, np.zeros(3), method="Nelder-Mead", options={"maxiter": 120, "initial_simplex": SIMPLEX})
    return adapted(found.x)


SIMPLEX = np.vstack([np.zeros(3), np.diag([0.1, 0.5, 0.3])])
OTHERS: Mapping[str, Callable[[Sequence[HeldOut], Head], Predict]] = {
    "before": before,
    "design effect": design_effect,
    "mixture": mixture,
    "T3A": t3a,
    "Tent": tent,
    "ATP": atp,
}


def _best(many: Sequence[Predict], participants: Sequence[HeldOut]) -> Predict:
    """Return the one by which participants are right most often; of equal ones, the one of least log loss."""

    def score(predict: Predict) -> tuple[float, float]:
        right = [(predict(one.outputs, one.outputs).argmax(axis=1) == one.labels).mean() for one in participants]
        return float(np.mean(right)), float(np.mean([_log_p(predict, one).mean() for one in participants]))

    return max(many, key=score)


def _log_p(predict: Predict, one: HeldOut) -> Floats:
    log_p = predict(one.outputs, one.outputs)[np.arange(len(one.labels)), one.labels]
    return np.maximum(log_p, -30.0)


def _entropy_slope(logits: Floats) -> Floats:
    """Return the derivative of each row's entropy by its logits."""
    log_p = log_softmax(logits)
    p = np.exp(log_p)
    slope: Floats = -p * (log_p - (p * log_p).sum(axis=1, keepdims=True))
    return slope


def _flat(features: Floats | None) -> Floats:
    assert features is not None
    return features.reshape(len(features), -1).astype(np.float64)


def _unit(features: Floats | None) -> Floats:
    x = _flat(features)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
