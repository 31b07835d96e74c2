"""Mistakes in published ways to select and to measure error: each is caught by the check that is about it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedreach.federation.losses import FedLC, LabelSmoothing, LogitAdjusted
from fedreach.federation.measurements import LossRMS
from fedreach.federation.selection.losses import Oort
from fedreach.federation.selection.updates import DivFL, distances
from fedreach.federation.types import Cohort

from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


@caught_by("one of each group")
class Medoids(DivFL):
    """Those to which all others are nearest, whoever is chosen already."""

    def choose(self, ids, rows, k, rng):
        return Cohort(ids[np.argsort(distances(rows).sum(axis=0), kind="stable")[:k]])


@caught_by("golden representatives")
class FarthestFirst(DivFL):
    def choose(self, ids, rows, k, rng):
        apart = distances(rows)
        chosen = [int(apart.sum(axis=0).argmin())]
        while len(chosen) < k:
            chosen.append(int(apart[chosen].min(axis=0).argmax()))
        return Cohort(ids[chosen])


@caught_by("as the plain greedy")
class SquaredDistances(DivFL):
    """Of k-medoids, say; one outlier then counts more than many who are somewhat apart."""

    def choose(self, ids, rows, k, rng):
        apart, chosen = distances(rows) ** 2, []
        for _ in range(k):
            cost = [np.inf if i in chosen else apart[[*chosen, i]].min(axis=0).sum() for i in range(len(rows))]
            chosen.append(int(np.argmin(cost)))
        return Cohort(ids[chosen])


@caught_by("the best of those looked at")
class LooksAtAll(DivFL):
    def __init__(self, **options):
        super().__init__(**options | {"candidates": None})


@caught_by("the largest utility")
class ExamplesLeftOut(Oort):
    """The root mean square loss alone."""

    def init(self, view):
        return {**super().init(view), "num_examples": np.ones_like(view.num_examples)}


@caught_by("new ones at the stated rate")
class NeverFallsOff(Oort):
    def __init__(self, **options):
        super().__init__(**options | {"decay": 1.0})


@caught_by("who waited comes back")
class WaitsFromTheOtherEnd(Oort):
    """Who was heard last has waited longest."""

    def select(self, state, view, k, rng):
        heard = np.where(state["heard"] > 0, view.round + 1 - state["heard"], 0)
        return super().select({**state, "heard": heard}, view, k, rng)


@caught_by("below the cutoff is not drawn")
class AllAreDrawn(Oort):
    def __init__(self, **options):
        super().__init__(**options | {"cutoff": 0.0})


@caught_by("the slow are passed over")
class SlowAsWell(Oort):
    def __init__(self, **options):
        super().__init__(**options | {"penalty": 0.0})


@caught_by("as the plain loop")
class PaceRisesWithTheUtility(Oort):
    """The pace is relaxed while there is something to gain."""

    def observe(self, state, reports):
        return super().observe({**state, "before": -state["before"]}, reports)


@caught_by("as the plain loop")
class PaceStays(Oort):
    def observe(self, state, reports):
        return {**super().observe(state, reports), "pace": state["pace"]}


@caught_by("as the plain loop")
class ScaledByTheLargest(Oort):
    """U / max U in place of what spans from 0 to 1."""

    def _utility(self, state, view, known, seconds):
        low, heard = state["utility"], state["heard"]
        never = {**state, "utility": np.append(low, 0.0), "heard": np.append(heard, 1)}
        wide = replace(view, available=np.append(view.available, False))
        return super()._utility(never, wide, np.append(known, len(low)), np.append(seconds, 0.0))[:-1]


@caught_by("drawn in proportion")
class NewOnesAllAlike(Oort):
    def select(self, state, view, k, rng):
        new = not (state["heard"] > 0).any()
        return super().select(state, replace(view, radio=None) if new else view, k, rng)


@caught_by("drawn in proportion")
class DrawnEvenlyAboveTheBar(Oort):
    def _utility(self, state, view, known, seconds):
        utility = super()._utility(state, view, known, seconds)
        return np.where(utility > 0, 1.0, 0.0) if self.cutoff == 0 else utility


@caught_by("golden margins")
class MarginsTheOtherWay(FedLC):
    def shift(self, counts):
        return -super().shift(counts)


@caught_by("golden margins")
class AbsentAsOneExample(FedLC):
    def __init__(self, **options):
        super().__init__(**{"absent": 1.0} | options)


@caught_by("golden margins")
class AbsentWithoutAMargin(FedLC):
    def shift(self, counts):
        return np.where(counts > 0, super().shift(counts), 0.0)


@caught_by("log class shares")
class StrengthForgotten(LogitAdjusted):
    def shift(self, counts):
        return LogitAdjusted(smoothing=self.smoothing).shift(counts)


@caught_by("log class shares")
class SmoothedByOneAlways(LogitAdjusted):
    def shift(self, counts):
        return LogitAdjusted(strength=self.strength).shift(counts)


@caught_by("towards smoothed labels")
class OthersOnly(LabelSmoothing):
    """The share goes to the C - 1 other classes."""

    def per_example(self, outputs, targets):
        c = outputs.shape[1]
        return LabelSmoothing(min(1.0, self.share * c / (c - 1))).per_example(outputs, targets)


@caught_by("golden rms")
class MeanLoss(LossRMS):
    def measure(self, outputs, rng):
        rows = [replace(outputs, logits=outputs.logits[i : i + 1], labels=outputs.labels[i : i + 1]) for i in range(2)]
        each = [super().measure(replace(row, before=outputs.before[i : i + 1]), rng) for i, row in enumerate(rows)]
        return sum(each) / 2


@caught_by("golden rms")
class OfTheLocalModel(LossRMS):
    def measure(self, outputs, rng):
        return super().measure(replace(outputs, before=outputs.logits), rng)


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
