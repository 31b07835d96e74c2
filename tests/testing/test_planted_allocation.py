"""Mistakes where there is a radio: each is caught, by the law that says what is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedreach.federation.selection import (
    CSRA,
    BestChannels,
)
from fedreach.testing.worlds import with_rates
from fedreach.wireless.allocation.baselines import best_frequencies, best_shares, sqrt_sort
from fedreach.wireless.allocation.exact import allocate
from fedreach.wireless.allocation.problem import Allocation
from fedreach.wireless.allocation.rules import Equal as EqualShares
from fedreach.wireless.allocation.rules import Exact, Greedy
from fedreach.wireless.allocation.rules import Random as RandomShares

from .planted import check_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


# ------------------------------------------------------------------------------------------------------------ selection


@caught_by("the best channels")
class WorstChannels(BestChannels):
    def select(self, state, view, k, rng):
        return super().select(state, with_rates(view, 1 / view.radio.bits_per_second), k, rng)


@caught_by("no set is cheaper", threshold=10.0)
class TakesTheCheapestFirst(CSRA):
    def _searched(self, problem, min_examples, rng):
        return allocate(problem.only(sqrt_sort(problem, min_examples))), ""


@caught_by("golden choice", threshold=10.0)
class ForgetsTheJoules(CSRA):
    def _searched(self, problem, min_examples, rng):
        return super()._searched(replace(problem, joules_price=0.0), min_examples, rng)


@caught_by("the filter comes first")
class Unfiltered(CSRA):
    def admitted(self, view, k):
        return CSRA(threshold=np.inf, min_examples=self.min_examples).admitted(view, k)


@caught_by("the proof ends at the tolerance", threshold=10.0)
class ToleranceOfItsOwn(CSRA):
    def _searched(self, problem, min_examples, rng):
        return CSRA(max_nodes=self.max_nodes)._searched(problem, min_examples, rng)


# ----------------------------------------------------------------------------------------------------------- allocation


@caught_by("band and frequencies are kept")
class GivesTheBandTwice(EqualShares):
    def allocate(self, problem, rng):
        given = super().allocate(problem, rng)
        return Allocation.of(problem, slice(None), np.minimum(2 * given.share, 1), given.hertz)


@caught_by("costs are those of the formulas")
class BillsTheWholeBand(EqualShares):
    """Power is paid for the time over the whole band, and not for that over the client's share."""

    def allocate(self, problem, rng):
        given = super().allocate(problem, rng)
        return replace(given, upload_joules=given.upload_joules * given.share)


@caught_by("band and frequencies are kept")
class FasterThanTheDevice(EqualShares):
    def allocate(self, problem, rng):
        return super().allocate(replace(problem, max_hertz=10 * problem.max_hertz), rng)


@caught_by("same again")
class DividesByChance(EqualShares):
    def allocate(self, problem, rng):
        share = np.random.dirichlet(np.ones(len(problem)))  # noqa: NPY002 (that is the fault)
        return Allocation.of(problem, slice(None), share, super().allocate(problem, rng).hertz)


@caught_by("arguments untouched")
class SlowsTheDevicesDown(EqualShares):
    def allocate(self, problem, rng):
        problem.max_hertz[:] *= 0.5
        return super().allocate(problem, rng)


@caught_by("golden optimum")
class AlternatesOnce(Exact):
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
        worth = (problem.seconds_price + problem.joules_price * problem.power_watts) * problem.upload_seconds
        share = np.where(worth == worth.min(), 1 - 0.01 * (len(problem) - 1), 0.01)
        return Allocation.of(problem, slice(None), share, super().allocate(problem, rng).hertz)


@caught_by("drawn evenly")
class DrawsThenScales(RandomShares):
    """Uniform numbers divided by their sum are not Dirichlet(1), but their mean is: frequencies tell."""

    def allocate(self, problem, rng):
        given = super().allocate(problem, rng)
        return Allocation.of(problem, slice(None), given.share, rng.uniform(0.0, 1.0, len(problem)) * problem.max_hertz)


# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "cls", "options", "law"), FAULTS)
def test_a_planted_fault_is_caught_by_the_law_that_says_it(kind, cls, options, law):
    check_caught(kind, cls, options, law)
