"""Mistakes in allocation rules: each fails the check that is about it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedreach.wireless.problem import Allocation
from fedreach.wireless.rules import EqualShares

from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


# ----------------------------------------------------------------------------------------------------------- allocation


@caught_by("bandwidth and frequencies in range")
class GivesTheBandTwice(EqualShares):
    def allocate(self, problem, rng):
        given = super().allocate(problem, rng)
        return Allocation.of(problem, slice(None), np.minimum(2 * given.share, 1), given.hertz)


@caught_by("costs follow the formulas")
class BillsTheWholeBand(EqualShares):
    """Power is paid for the time over the whole band, and not for that over the client's share."""

    def allocate(self, problem, rng):
        given = super().allocate(problem, rng)
        return replace(given, upload_joules=given.upload_joules * given.share)


@caught_by("bandwidth and frequencies in range")
class FasterThanTheDevice(EqualShares):
    def allocate(self, problem, rng):
        return super().allocate(replace(problem, max_hertz=10 * problem.max_hertz), rng)


@caught_by("reproducible")
class DividesByChance(EqualShares):
    def allocate(self, problem, rng):
        share = np.random.dirichlet(np.ones(len(problem)))  # noqa: NPY002 (that is the fault)
        return Allocation.of(problem, slice(None), share, super().allocate(problem, rng).hertz)


@caught_by("arguments untouched")
class SlowsTheDevicesDown(EqualShares):
    def allocate(self, problem, rng):
        problem.max_hertz[:] *= 0.5
        return super().allocate(problem, rng)


@caught_by("never below the optimum")
class BillsHalf(EqualShares):
    def allocate(self, problem, rng):
        allocation = super().allocate(problem, rng)
        return replace(allocation, cost=allocation.cost / 2)


@caught_by("renaming")
class TheFirstGetsMore(EqualShares):
    def allocate(self, problem, rng):
        allocation = super().allocate(problem, rng)
        weights = 1.0 / np.arange(1, len(problem) + 1)
        return Allocation.of(problem, slice(None), weights / weights.sum(), allocation.hertz)


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
