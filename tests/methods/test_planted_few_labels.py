"""Careless rules that learn from labels: each is caught by the check that is about it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedreach.federation.adaptation.few_labels import FewLabels, fit_head

from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


@caught_by("the smallest objective")
class StoppedEarly(FewLabels):
    """Ten gradient steps, as fine-tuning is often done."""

    def with_labels(self, state, outputs, labels):
        x, truth = np.column_stack([outputs.features, np.ones(len(labels))]), np.eye(outputs.logits.shape[1])[labels]
        head = np.zeros((x.shape[1], truth.shape[1]))
        for _ in range(10):
            p = np.exp(outputs.logits + x @ head)
            slope = x.T @ (p / p.sum(axis=1, keepdims=True) - truth) + self.strength * head
            head = head - 0.01 * slope / len(labels)
        return {"head": head}


@caught_by("the smallest objective")
class PulledAnExampleAtATime(FewLabels):
    """The pull does not fade with the number of examples."""

    def with_labels(self, state, outputs, labels):
        return {"head": fit_head(outputs.features, outputs.logits, labels, self.strength)} if len(labels) else {}


@caught_by("the smallest objective")
class AHeadFromNothing(FewLabels):
    """The last layer is learnt anew, and added to the model's."""

    def with_labels(self, state, outputs, labels):
        return super().with_labels(state, replace(outputs, logits=np.zeros_like(outputs.logits)), labels)


@caught_by("no order of labelled examples")
class TheFirstCountsTwice(FewLabels):
    def with_labels(self, state, outputs, labels):
        rows = np.r_[0, np.arange(len(labels))] if len(labels) else np.arange(0)
        twice = replace(outputs, logits=outputs.logits[rows], features=outputs.features[rows])
        return super().with_labels(state, twice, labels[rows])


@caught_by("great strength is the model")
class StrengthForgotten(FewLabels):
    def with_labels(self, state, outputs, labels):
        return FewLabels(self.labels, 1.0).with_labels(state, outputs, labels)


@caught_by("predicted by the head")
class BiasForgotten(FewLabels):
    def predict(self, state, client, outputs):
        if "head" in client:
            client = {"head": np.concatenate([client["head"][:-1], np.zeros((1, client["head"].shape[1]))])}
        return super().predict(state, client, outputs)


@caught_by("the model as it is")
class SureOfItself(FewLabels):
    def predict(self, state, client, outputs):
        return super().predict(state, client, replace(outputs, logits=2 * outputs.logits))


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
