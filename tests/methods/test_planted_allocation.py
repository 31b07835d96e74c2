"""Mistakes where there is a radio: each is caught by the check that is about it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedreach.federation.selection.radio import CSRA, BestChannels
from fedreach.testing.problems import with_rates
from fedreach.wireless.baselines import best_frequencies, best_shares, sqrt_sort
from fedreach.wireless.exact import allocate
from fedreach.wireless.problem import Allocation
from fedreach.wireless.rules import ExactAllocation, Greedy
from fedreach.wireless.rules import Random as RandomShares

from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


# ------------------------------------------------------------------------------------------------------------ selection


@caught_by("the best channels")
class WorstChannels(BestChannels):
    def select(self, state, view, k, rng):
        return super().select(state, with_rates(view, 1 / view.radio.bits_per_second), k, rng)


@caught_by("no set is cheaper", threshold=10.0)
class TakesTheCheapestFirst(CSRA):
    def _search(self, problem, min_examples, rng):
        return allocate(problem.only(sqrt_sort(problem, min_examples))), ""


@caught_by("golden choice", threshold=10.0)
class ForgetsTheJoules(CSRA):
    def _search(self, problem, min_examples, rng):
        return super()._search(replace(problem, energy_weight=0.0), min_examples, rng)


@caught_by("the filter comes first")
class Unfiltered(CSRA):
    def admitted(self, view, k):
        return CSRA(threshold=np.inf, min_examples=self.min_examples).admitted(view, k)


@caught_by("the proof ends at the tolerance", threshold=10.0)
class ToleranceOfItsOwn(CSRA):
    def _search(self, problem, min_examples, rng):
        return CSRA(max_nodes=self.max_nodes)._search(problem, min_examples, rng)


@caught_by("golden optimum")
class AlternatesOnce(ExactAllocation):
    """Shares for given frequencies, then frequencies for these shares, as in the paper's algorithm 2."""

    def allocate(self, problem, rng):
        share = best_shares(problem, problem.max_hertz)
        return Allocation.of(problem, slice(None), share, best_frequencies(problem, share).hertz)


@caught_by("best single frequency")
class PrintedFrequency(Greedy):
    def allocate(self, problem, rng):
        return Greedy(frequency="printed").allocate(problem, rng)


@caught_by("band goes where it gains most")
class PrintedSign(Greedy):
    """The largest of the negative gains is the smallest gain."""

    def allocate(self, problem, rng):
        worth = (problem.time_weight + problem.energy_weight * problem.power_watts) * problem.upload_seconds
        share = np.where(worth == worth.min(), 1 - 0.01 * (len(problem) - 1), 0.01)
        return Allocation.of(problem, slice(None), share, super().allocate(problem, rng).hertz)


@caught_by("drawn evenly")
class DrawsThenScales(RandomShares):
    """Uniform numbers divided by their sum are not Dirichlet(1), but their mean is: frequencies tell."""

    def allocate(self, problem, rng):
        case = super().allocate(problem, rng)
        return Allocation.of(problem, slice(None), case.share, rng.uniform(0.0, 1.0, len(problem)) * problem.max_hertz)


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
