"""Careless rules that refresh BatchNorm statistics: each is caught by the check that is about it."""

from __future__ import annotations

import numpy as np
import pytest

from fedreach.federation.adaptation.methods import BatchNormRefresh

from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


@caught_by("usual inputs are adapted by label shift")
class PriorForgotten(BatchNormRefresh):
    """A client refreshes, and goes on with the participants' class shares."""

    def update(self, state, client, outputs):
        return {**super().update(state, client, outputs), "weight": np.zeros(1)}


@caught_by("another intensity changes nothing")
class VariancesLeft(BatchNormRefresh):
    """Means are refreshed only."""

    def update(self, state, client, outputs):
        kept = dict(super().update(state, client, outputs))
        usual = outputs.statistics.refreshed(outputs.inputs, 1e12)
        half = len(usual) // 2
        return {**kept, "statistics": np.concatenate([kept["statistics"][:half], usual[half:]])}


@caught_by("great strength refreshes nothing")
class StrengthIgnored(BatchNormRefresh):
    """Running statistics are forgotten, whatever the strength."""

    def update(self, state, client, outputs):
        return BatchNormRefresh(strength=0.0).update(state, client, outputs)


@caught_by("participants refresh too")
class ClientsOnly(BatchNormRefresh):
    """Participants fit the model as it is."""

    def contribute(self, query, outputs, labels, counts):
        return self._rule.contribute(query, outputs, labels, counts)


@caught_by("strength counts inputs")
class Halved(BatchNormRefresh):
    """The strength counts half."""

    def update(self, state, client, outputs):
        return BatchNormRefresh(strength=self.strength / 2).update(state, client, outputs)


@caught_by("strength counts inputs")
class LearntUnrefreshed(BatchNormRefresh):
    """The class prior is estimated before statistics are refreshed."""

    def update(self, state, client, outputs):
        refreshed = super().update(state, client, outputs)
        return {**refreshed, **self._rule.update(state, self.start(state), outputs)}


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
