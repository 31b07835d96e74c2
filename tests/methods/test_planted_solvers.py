"""Mistakes in how clients train: each is caught by the check that is about it."""

from __future__ import annotations

import numpy as np
import pytest

from fedreach.federation.losses import CrossEntropy
from fedreach.federation.solvers import FedDyn, FedProx, Scaffold

from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


# -------------------------------------------------------------------------------------------------------------- solvers


@caught_by("golden scaffold")
class ScaffoldWithTheWrongSign(Scaffold):
    def prepare(self, memory, state, share):
        return {"drift": -super().prepare(memory, state, share)["drift"]}


@caught_by("clients keep their control variates")
class ScaffoldThatNeverStores(Scaffold):
    def remember(self, memory, state, update, steps, rate):
        return memory


@caught_by("c is the mean of all c i")
class ScaffoldWithoutTheShareOfReplies(Scaffold):
    def conclude(self, state, reports, mean_update, n):
        return super().conclude(state, reports, mean_update, len(reports.ids))


@caught_by("golden scaffold")
class ScaffoldStartedFromTheWeights(Scaffold):
    """The server's control variate begins as the model, here (.5, .5), and not as 0."""

    def prepare(self, memory, state, share):
        return super().prepare(memory, {"c": 0.5, **state}, share)


@caught_by("clients keep their control variates")
class ScaffoldThatCountsOneStep(Scaffold):
    def remember(self, memory, state, update, steps, rate):
        return super().remember(memory, state, update, np.ones_like(steps), rate)


@caught_by("the rate of the round divides")
class ScaffoldWithTheRateOfRoundOne(Scaffold):
    """The rate falls, and what the memory is divided by does not."""

    def remember(self, memory, state, update, steps, rate):
        return super().remember(memory, state, update, steps, 0.1)


@caught_by("h is the mean over all participants")
class FedDynOverThoseWhoReplied(FedDyn):
    def conclude(self, state, reports, mean_update, n):
        return super().conclude(state, reports, mean_update, len(reports.ids))


@caught_by("feddyn finds the optimum")
class FedDynWithoutMemory(FedDyn):
    def correct(self, gradient, params, broadcast, pull, memory):
        return gradient + pull * (params - broadcast)


@caught_by("golden fedprox")
class FedProxWithTheWrongSign(FedProx):
    def correct(self, gradient, params, broadcast):
        return gradient - self.mu * (params - broadcast)


@caught_by("golden fedprox")
class FedProxWithTheNormNotSquared(FedProx):
    def correct(self, gradient, params, broadcast):
        away = params - broadcast
        return gradient + self.mu * away / (1e-12 + (away * away).sum() ** 0.5)


@caught_by("nats of the right class", kind="loss")
class LossInBits(CrossEntropy):
    def per_example(self, outputs, targets):
        return super().per_example(outputs, targets) / np.log(2)


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
