"""Careless rules that refresh BatchNorm statistics: each is caught, by the law that says what is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from fedreach.federation.serving.batchnorm import BatchNormRefresh
from fedreach.testing import trial
from fedreach.testing.law import Subject, judge

FAULTS = []


def caught_by(law):
    """Note a faulty class, and the law that it must break."""

    def note(cls):
        FAULTS.append(pytest.param(cls, law, id=cls.__name__))
        return cls

    return note


@caught_by("usual inputs are served by label shift")
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


@caught_by("one or many at a time")
class LastBatch(BatchNormRefresh):
    """Statistics are those of the latest inputs, which forget the ones before."""

    def update(self, state, client, outputs):
        return super().update(state, {}, outputs)


@caught_by("each input by itself")
class RefreshedWhenPredicting(BatchNormRefresh):
    """What is predicted together is normalised together."""

    def predict(self, state, client, outputs):
        statistics = outputs.statistics.refreshed(outputs.inputs, self.strength)
        return super().predict(state, {**client, "statistics": statistics}, outputs)


@pytest.mark.parametrize(("cls", "law"), FAULTS)
def test_a_planted_fault_is_caught_by_the_law_that_says_it(cls, law):
    laws = {law.name: law for law in trial.laws_of("serving", trial.like("serving", cls()))}
    found = judge(Subject.of("serving", cls()), [laws[law]])
    assert found.broken, f"it keeps {law!r}"
    assert found.broken[0].happened
    assert "Traceback" not in str(found.broken[0])
