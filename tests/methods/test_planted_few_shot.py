"""Careless rules that learn from a few labels: each is caught by the check that is about it."""

from __future__ import annotations

import numpy as np
import pytest

from fedreach.federation.adaptation.base import log_softmax
from fedreach.federation.adaptation.few_labels import FewShot

from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


@caught_by("counts shrunk to the class shares")
class CountsAsTheyAre(FewShot):
    """One label of a class, and there is no other: half a pseudo-count keeps it finite."""

    def _informed_state(self, state, client):
        own = super()._informed_state(state, client)
        if "labeled_classes" not in client:
            return own
        counts = np.bincount(client["labeled_classes"], minlength=len(state["base"])) + 0.5
        offsets = np.log(counts / counts.sum()) - np.log(state["base"]) + state["b"] * 0
        return {**own, "base": counts / counts.sum(), "label_offsets": offsets}


@caught_by("inputs go on from labels")
class InputsForgetTheLabels(FewShot):
    """The inputs' estimate begins with the class shares of all participants again."""

    def update(self, state, client, outputs):
        new = super().update(state, client, outputs)
        bare = self.rule.update(state, self.rule.start(state), outputs)
        return {**new, "prior": bare["prior"], "weight": bare["weight"]}


@caught_by("labels in any order")
class TheLastLabelCountsMost(FewShot):
    def learn_labels(self, state, client, outputs, labels):
        return super().learn_labels(state, client, outputs, np.full_like(labels, labels[-1]))


@caught_by("without labels it is label shift")
class NeverTrustsInputs(FewShot):
    def update(self, state, client, outputs):
        return {**super().update(state, client, outputs), "weight": np.zeros(1), "seen": np.ones(1)}

    def predict(self, state, client, outputs):
        return log_softmax(super().predict(state, client, outputs) * (1.1 if "seen" in client else 1.0))


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
