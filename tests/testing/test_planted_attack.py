"""Mistakes in attacks: each fails the check that is about it."""

from __future__ import annotations

import numpy as np
import pytest

from fedreach.federation.attacks import ALIE, FalseLabels, LabelFlip, SignFlip

from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


@caught_by("changes something")
class DoesNothing(SignFlip):
    def update(self, update, rng):
        return update


@caught_by("valid shapes")
class SendsTheMeanOfItsNumbers(ALIE):
    def collude(self, honest):
        return honest.mean()


@caught_by("valid shapes")
class FlipsBeyondTheLastClass(LabelFlip):
    def labels(self, labels, num_classes):
        return num_classes - labels


@caught_by("valid shapes")
class ClaimsFewerThanNone(FalseLabels):
    def label_counts(self, counts):
        return counts - 5


@caught_by("reproducible")
class DrawsFromTheGlobalGenerator(SignFlip):
    def update(self, update, rng):
        return super().update(update, rng) * np.random.random()  # noqa: NPY002


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
