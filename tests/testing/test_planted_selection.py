"""Mistakes in selection policies: each fails the check that is about it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import fedreach as fr
from fedreach.federation.selection.losses import Minimax
from fedreach.federation.selection.updates import ConvexHull
from fedreach.federation.types import Cohort, Probe, ServerView

from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


@caught_by("valid choice")
class MinimaxWithOneMore(Minimax):
    """The paper's loop ``while |chosen| <= k``."""

    def choose(self, ids, rows, k, rng, nearest=None):
        return super().choose(ids, rows, min(k + 1, len(ids)), rng, nearest)


@caught_by("valid choice")
class HullWithDuplicates(ConvexHull):
    def choose(self, ids, rows, k, rng):
        found = super().choose(ids, rows, k, rng).ids
        return Cohort(np.r_[found[:1], found[:-1]] if len(found) > 1 else found)


@caught_by("valid choice")
class PositionsForIds(fr.Selection):
    def select(self, state, view, k, rng):
        return Cohort(np.flatnonzero(view.available)[:k])


@caught_by("valid choice")
class DeafToAvailability(fr.Selection):
    def select(self, state, view, k, rng):
        return Cohort(view.ids[:k])


@caught_by("arguments untouched")
class WritesToTheView(fr.Selection):
    def select(self, state, view, k, rng):
        view.loss[np.isnan(view.loss)] = np.inf
        order = np.argsort(-view.loss[view.available], kind="stable")
        return Cohort(view.ids[view.available][order[:k]])


@caught_by("arguments untouched")
class WritesToItsState(fr.Selection):
    """Longest waiting first; the count goes up in place."""

    def init(self, view):
        return {"ids": view.ids, "waited": np.arange(len(view.ids))}

    def select(self, state, view, k, rng):
        order = np.argsort(-state["waited"][view.available], kind="stable")
        return Cohort(view.ids[view.available][order[:k]])

    def observe(self, state, reports):
        state["waited"][:] += 1
        state["waited"][np.searchsorted(state["ids"], reports.ids)] = 0
        return state


@caught_by("reproducible")
class GlobalGenerator(fr.Selection):
    def select(self, state, view, k, rng):
        ids = np.random.permutation(view.ids[view.available])  # noqa: NPY002 (that is the fault)
        return Cohort(ids[:k])


@caught_by("reproducible")
class CountsInItself(fr.Selection):
    def __init__(self):
        self.rounds = 0

    def select(self, state, view, k, rng):
        self.rounds += 1
        return Cohort(np.roll(view.ids[view.available], self.rounds)[:k])


@caught_by("renaming")
class LowIdsFirst(fr.Selection):
    def select(self, state, view, k, rng):
        return Cohort(view.ids[view.available][:k])


@caught_by("renaming")
class LowIdsMoreOften(fr.Selection):
    def select(self, state, view, k, rng):
        ids = view.ids[view.available]
        p = 10.0 ** -np.arange(len(ids))
        return Cohort(rng.choice(ids, size=k, replace=False, p=p / p.sum()))


@caught_by("declares reads updates")
class QuietlyByUpdates(fr.Selection):
    def init(self, view: ServerView):
        return {"ids": view.ids, "length": np.zeros(len(view.ids))}

    def probe(self, state, view, k, rng):
        return Probe(view.ids[view.available], asks="update")

    def select(self, state, view, k, rng):
        order = np.argsort(-state["length"][view.available], kind="stable")
        return Cohort(view.ids[view.available][order[:k]])

    def observe(self, state, reports):
        length = state["length"].copy()
        length[np.searchsorted(state["ids"], reports.ids)] = reports.trained[:, 0]
        return {**state, "length": length}


@caught_by("resuming from a file")
class StateOfLists(fr.Selection):
    def init(self, view):
        return {"seen": []}

    def select(self, state, view, k, rng):
        return Cohort(rng.choice(view.ids[view.available], size=k, replace=False))


@caught_by("cohort size")
class StopsHalfWay(fr.Selection):
    def select(self, state, view, k, rng):
        return Cohort(rng.choice(view.ids[view.available], size=-(-k // 2), replace=False))


@caught_by("valid choice")
class NeedsWhatItDidNotAskFor(fr.Selection):
    def select(self, state, view, k, rng):
        return Cohort(view.ids[view.available][np.argsort(view.label_entropy[view.available])[:k]])


@dataclass
class Changeable(fr.Selection):
    lr: float = 1.0

    def select(self, state, view, k, rng):
        return Cohort(rng.choice(view.ids[view.available], size=k, replace=False))


caught_by("options define the component")(Changeable)


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
