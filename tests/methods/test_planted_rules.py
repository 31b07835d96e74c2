"""Mistakes in single adaptation rules: each is caught by the check that is about it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedreach.federation.adaptation.base import Unadapted, log_softmax, map_em, training_shares
from fedreach.federation.adaptation.label_shift import LabelShift, scores
from fedreach.federation.adaptation.methods import BBSE, RLLS, OraclePrior

from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


@caught_by("source prior of held out labels")
class SourcePriorOfTrainingLabels(LabelShift):
    def contribute(self, query, outputs, labels, counts):
        sums = super().contribute(query, outputs, labels, counts)
        return {**sums, "held_out": counts} if "held_out" in sums else sums


@caught_by("many classes are matched")
class MatchedToTrainingShares(LabelShift):
    def fold(self, state, sums):
        told = state["told"] if state else training_shares(sums["trained"])
        new = super().fold({**state, "base": told} if "predicted" in sums else state, sums)
        return {**new, "base": (state or new)["base"], "told": told}


@caught_by("spread of training labels")
@caught_by("spread is found again")
class SpreadOfHeldOutLabels(LabelShift):
    """A handful of examples instead of all that it trained on: they say little of how far clients lie apart."""

    def contribute(self, query, outputs, labels, counts):
        held = np.bincount(labels, minlength=len(counts)).astype(np.float64)
        return super().contribute(query, outputs, labels, held)


@caught_by("calibrated at the optimum")
@caught_by("split participants fit the same")
class CalibratedByClient(LabelShift):
    def contribute(self, query, outputs, labels, counts):
        sums = super().contribute(query, outputs, labels, counts)
        pooled = ("loss", "gradient", "curvature")
        return {name: values / len(labels) if name in pooled else values for name, values in sums.items()}


@caught_by("evidence of what came before")
class EvidenceByTheSharesOfAll(LabelShift):
    """W by the prior that EM found, in which each input has its part: P(sup W >= 20) is .10 instead of .035."""

    def update(self, state, client, outputs):
        new = super().update(state, client, outputs)
        u = scores(state, outputs)
        log_w = (log_softmax(u + np.log(state["base"]))[:, 0] - log_softmax(u + np.log(new["prior"]))[:, 0]).sum()
        log_w += len(u) * (np.log(new["prior"]) - np.log(state["base"]))[0]
        return {**new, "log_w": np.array([log_w]), "weight": np.array([1 / (1 + self.odds * np.exp(-log_w))])}


@caught_by("evidence of what came before")
class OddsTheOtherWayRound(LabelShift):
    def update(self, state, client, outputs):
        new = super().update(state, client, outputs)
        return {**new, "weight": 1 / (1 + np.exp(-new["log_w"]) / self.odds)}


@caught_by("adapted by its prior")
class AlwaysAdapts(LabelShift):
    """The weight is worked out, and not used."""

    def predict(self, state, client, outputs):
        seen = client["n"][0] > 0
        return super().predict(state, {**client, "weight": np.ones(1)} if seen else client, outputs)


@caught_by("inputs that say nothing")
class BeginsWithEvenShares(LabelShift):
    def start(self, state):
        return {**super().start(state), "prior": np.full_like(state["base"], 1 / len(state["base"]))}


@caught_by("many pseudo counts never adapt")
class WithoutPseudoCounts(LabelShift):
    """EM finds the maximum of the likelihood."""

    def update(self, state, client, outputs):
        new = super().update(state, client, outputs)
        return {**new, "prior": map_em(new["u"], state["base"], 0.0), "weight": np.ones(1)}


@caught_by("any order to the bit")
class TheFirstInputWeighs(LabelShift):
    """The first input decides by how much the estimate counts."""

    def update(self, state, client, outputs):
        new = super().update(state, client, outputs)
        return {**new, "weight": new["weight"] * (0.9 if outputs.logits[0].argmax() else 1.0)}


@caught_by("no further than the mean prediction")
class WithoutALimit(LabelShift):
    def update(self, state, client, outputs):
        return replace(self, amplification=1e9)._plain_update(state, client, outputs)

    def _plain_update(self, state, client, outputs):
        return super().update(state, client, outputs)


@caught_by("off without support")
class AdaptsAnyway(LabelShift):
    def strength_of(self, state):
        return 1.0


@caught_by("shares as they are told")
class SourcePriorIsLeftIn(OraclePrior):
    def with_prior(self, state, prior):
        shares = prior * state["base"]
        return super().with_prior(state, shares / shares.sum())


@caught_by("shares that explain the predictions")
class ConfusionByRow(BBSE):
    """Rows of labels where columns were meant."""

    def contribute(self, query, outputs, labels, counts):
        sums = super().contribute(query, outputs, labels, counts)
        return {**sums, "confusion": sums["confusion"].T}


@caught_by("between bbse and nothing")
class PulledOneWayOnly(RLLS):
    """gamma is read and then forgotten."""

    def update(self, state, client, outputs):
        return RLLS(self.strength, 1.0, self.hard).update(state, client, outputs)


@caught_by("no order of inputs")
class TheFirstCountsTwice(BBSE):
    def update(self, state, client, outputs):
        twice = np.concatenate([outputs.logits[:1], outputs.logits])
        return super().update(state, client, replace(outputs, logits=twice))


@caught_by("the model as it is")
class Sharpened(Unadapted):
    def predict(self, state, client, outputs):
        return log_softmax(1.5 * outputs.logits)


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
