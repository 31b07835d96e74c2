"""Mistakes in local solvers: each fails the check that is about it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

import fedreach as fr
from fedreach.federation.solvers import FedDyn, FedProx, Scaffold

from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


@caught_by("client memory is independent")
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


@caught_by("numbers are independent")
class FedProxWithTheNormNotSquared(FedProx):
    def correct(self, gradient, params, broadcast):
        away = params - broadcast
        return gradient + self.mu * away / (1e-12 + (away * away).sum() ** 0.5)


@caught_by("affine as declared")
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
class OwnMemoryTheWrongWay(fr.LocalSolver):
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

    def adapted(self, params, state):
        return params


@caught_by("arguments untouched")
class RemembersInPlace(FedDyn):
    def remember(self, memory, state, update, steps, rate):
        memory += update
        return memory


@caught_by("resuming from a file")
class CountsRoundsInAList(FedDyn):
    def conclude(self, state, reports, mean_update, n):
        step, new = super().conclude(state, reports, mean_update, n)
        return step, {**new, "rounds": [*state.get("rounds", []), n]}


@caught_by("the same in both engines")
class PulledOnlyInAStack(FedProx):
    def correct(self, gradient, params, broadcast):
        pulled = super().correct(gradient, params, broadcast)
        return pulled + 0.1 if len(gradient.shape) == 2 and len(gradient) > 1 else pulled


@caught_by("reproducible")
class PulledByChance(FedProx):
    def correct(self, gradient, params, broadcast):
        return super().correct(gradient, params, broadcast) + np.random.random()  # noqa: NPY002 (that is the fault)


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
