"""Mistakes in how clients train: each is caught, by the law that says what is wrong."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from fedreach.federation.losses import CrossEntropy
from fedreach.federation.solvers import FedDyn, FedProx, Scaffold

from .planted import check_caught, noting

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


@caught_by("own memory")
class FedDynByPosition(FedDyn):
    """Memory is looked up by place in the cohort and not by client."""

    def prepare(self, memory, state, share):
        rows = state.get("rows", np.zeros((0, memory.shape[1])))
        found = np.zeros_like(memory)
        found[: len(rows)] = rows[: len(memory)]
        return super().prepare(found, state, share)

    def conclude(self, state, reports, mean_update, n):
        step, new = super().conclude(state, reports, mean_update, n)
        rows = np.zeros((n, reports.trained.shape[1]))
        before = state.get("rows", rows[:0])
        rows[: len(before)] = before
        rows[: len(reports.ids)] += reports.trained
        return step, {**new, "rows": rows}


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


@caught_by("number by number")
@caught_by("golden fedprox")
class FedProxWithTheNormNotSquared(FedProx):
    def correct(self, gradient, params, broadcast):
        away = params - broadcast
        return gradient + self.mu * away / (1e-12 + (away * away).sum() ** 0.5)


@caught_by("affine if it says so")
class FedProxThatSaysToBeAffine(FedProx):
    affine: ClassVar[bool] = True

    def correct(self, gradient, params, broadcast):
        away = params - broadcast
        return gradient + self.mu * away * away * away


@caught_by("the same in torch")
@caught_by("arguments untouched")
class FedProxInPlace(FedProx):
    def correct(self, gradient, params, broadcast):
        gradient += self.mu * (params - broadcast)
        return gradient


@caught_by("stops where the clients balance")
class MemoryThatHelpsNobody(Scaffold):
    def correct(self, gradient, params, broadcast, drift):
        return gradient


@caught_by("stops where the clients balance")
class OwnMemoryTheWrongWay:
    """Control variates that are added where they must be subtracted, of no built-in part's family."""

    sends_note, sends_state = True, True

    def correct(self, gradient, params, broadcast, drift):
        return gradient - drift

    def prepare(self, memory, state, share):
        return {"drift": (state.get("c", 0.0) - memory).astype(np.float32)}

    def remember(self, memory, state, update, steps, rate):
        followed = update / (-rate * steps[:, None])
        return (memory - state.get("c", 0.0) + followed).astype(np.float32)

    def conclude(self, state, reports, mean_update, n):
        return mean_update, {"c": state.get("c", 0.0) + reports.note.sum(axis=0, dtype=np.float64) / n}

    def served(self, params, state):
        return params


@caught_by("arguments untouched")
class RemembersInPlace(FedDyn):
    def remember(self, memory, state, update, steps, rate):
        memory += update
        return memory


@caught_by("going on from a file")
class CountsRoundsInAList(FedDyn):
    def conclude(self, state, reports, mean_update, n):
        step, new = super().conclude(state, reports, mean_update, n)
        return step, {**new, "rounds": [*state.get("rounds", []), n]}


# --------------------------------------------------------------------------------------------------------------- losses


@caught_by("one number an example", kind="loss")
class LossOfTheBatch(CrossEntropy):
    def per_example(self, outputs, targets):
        return super().per_example(outputs, targets).mean()


@caught_by("losses in their range", kind="loss")
class LossAboveChance(CrossEntropy):
    minimum: ClassVar[float] = 0.0

    def per_example(self, outputs, targets):
        return super().per_example(outputs, targets) - np.log(outputs.shape[1])


@caught_by("downhill", kind="loss")
class GradientTheWrongWay(CrossEntropy):
    def per_example(self, outputs, targets):
        loss = super().per_example(outputs, targets)
        return 2 * loss.detach() - loss


@caught_by("each example by itself", kind="loss")
class LossRelativeToTheBatch(CrossEntropy):
    def per_example(self, outputs, targets):
        loss = super().per_example(outputs, targets)
        return loss / loss.sum()


@caught_by("nats of the right class", kind="loss")
class LossInBits(CrossEntropy):
    def per_example(self, outputs, targets):
        return super().per_example(outputs, targets) / np.log(2)


# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "cls", "options", "law"), FAULTS)
def test_a_planted_fault_is_caught_by_the_law_that_says_it(kind, cls, options, law):
    check_caught(kind, cls, options, law)
