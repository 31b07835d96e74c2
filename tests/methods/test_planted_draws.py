"""Mistakes in drawing from urns and in counting rounds: each is caught by the check that is about it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedreach.federation.selection.labels import HiCS
from fedreach.federation.selection.random import Multinomial, UrnsBySize, fill_urns_in_order
from fedreach.federation.selection.updates import UrnsBySimilarity
from fedreach.federation.types import Cohort
from fedreach.federation.weighting import ByDraws, FedAU

from .planted import must_be_caught, noting

FAULTS = []
caught_by = noting(FAULTS)


@caught_by("balls are examples")
@caught_by("on average all together")
class EveryClientAlike(Multinomial):
    def urns(self, state, view, k):
        return np.ones_like(super().urns(state, view, k))


@caught_by("balls are examples")
class AloneForGood(UrnsBySimilarity):
    """Whoever fills an urn alone goes no further with what is left, as in the authors' code."""

    def urns(self, state, view, k):
        urns = super().urns(state, view, k)
        alone = urns.max(axis=0) == urns.sum(axis=1)[0]
        urns[:, alone] *= urns[:, alone] == urns.max(axis=0)[alone]
        return urns


@caught_by("on average all together")
class OneUrnTwice(UrnsBySize):
    def urns(self, state, view, k):
        urns = super().urns(state, view, k)
        return np.concatenate([urns[:1], urns[:-1]])


@caught_by("never varies more than multinomial")
class OneDrawForAll(Multinomial):
    """Unbiased, and as if the cohort had one client."""

    def select(self, state, view, k, rng):
        once = super().select(state, view, 1, rng)
        return replace(once, draws=k * once.draws)


@caught_by("never varies more than multinomial")
class ForgetsHowOften(UrnsBySize):
    def select(self, state, view, k, rng):
        return Cohort(super().select(state, view, k, rng).ids)


@caught_by("every place alike")
class OneClientAnUrn(Multinomial):
    def urns(self, state, view, k):
        return fill_urns_in_order(k * view.num_examples[view.available], k)


@caught_by("the largest is poured first")
class InTheOrderOfIds(UrnsBySize):
    """As unbiased, with urns that depend on what clients are called."""

    def urns(self, state, view, k):
        balls = k * view.num_examples[view.available]
        before, begin = np.concatenate([[0], balls.cumsum()]), balls.sum() // k * np.arange(k)[:, None]
        return np.diff(np.clip(before, begin, begin + balls.sum() // k), axis=1)


@caught_by("one of each kind")
class KindsDoNotCount(UrnsBySimilarity):
    def urns(self, state, view, k):
        return fill_urns_in_order(k * view.num_examples[view.available], k)


@caught_by("by the latest updates")
class HearsEachOnce(UrnsBySimilarity):
    def observe(self, state, reports):
        return state if (state["heard"] > 0).all() else super().observe(state, reports)


@caught_by("by its own measure")
class AlwaysAngles(UrnsBySimilarity):
    def __init__(self, **options):
        super().__init__(**options | {"measure": "angle"})


@caught_by("everybody is heard first")
class LetsThemWait(HiCS):
    """Those never heard from are drawn like others, with a bias of zeros."""

    def select(self, state, view, k, rng):
        return super().select({**state, "heard": np.ones_like(state["heard"])}, view, k, rng)


@caught_by("more varied labels more often")
class NeverAnneals(HiCS):
    def select(self, state, view, k, rng):
        return super().select(state, replace(view, rounds=None), k, rng)


@caught_by("more varied labels more often")
class AnnealsARoundLate(HiCS):
    def select(self, state, view, k, rng):
        late = view if view.rounds is None else replace(view, round=view.round - 1)
        return super().select(state, late, k, rng)


@caught_by("as many groups as places")
class AlwaysTwoGroups(HiCS):
    def __init__(self, **options):
        super().__init__(**{"groups": 2} | options)


@caught_by("more varied labels more often")
class TemperatureLeftOut(HiCS):
    def __init__(self, **options):
        super().__init__(**options | {"temperature": 1.0})


@caught_by("by examples within a group")
class AllAlikeWithin(HiCS):
    def select(self, state, view, k, rng):
        return super().select(state, replace(view, num_examples=np.ones_like(view.num_examples)), k, rng)


@caught_by("groups by entropy and angle")
class EntropyLeftOut(HiCS):
    def __init__(self, **options):
        super().__init__(**options | {"entropy_weight": 0.0})


@caught_by("a second place is drawn again")
class AllPlacesAlike(HiCS):
    """The group is drawn as said, and everybody in it is as likely."""

    def _log_chance(self, bias, num_examples, view, k):
        return np.zeros(len(bias))


@caught_by("each draw has the same say")
class OnceEach(ByDraws):
    def raw(self, metrics):
        return np.ones(len(metrics["num_examples"]))


@caught_by("once where nobody says")
class ExamplesForDraws(ByDraws):
    def raw(self, metrics):
        return metrics["draws"] if "draws" in metrics else metrics["num_examples"]


@caught_by("golden intervals")
@caught_by("as the plain loop")
class CountsThisRoundToo(FedAU):
    """The interval that ends in this round is in the mean already: whoever comes has always come."""

    def _mean_lengths(self, state, reports):
        _, intervals = super()._mean_lengths(state, reports)
        return reports.round / (intervals + 1), intervals


@caught_by("as the plain loop")
class NeverCutsOff(FedAU):
    def __init__(self, **options):
        super().__init__(cutoff=10**6)


@caught_by("as the plain loop")
class SumsToOne(FedAU):
    """As a plain weighting: the ratios are right, and the step is not."""

    def mean_scale(self, state, reports, n):
        return 1.0


@pytest.mark.parametrize(("kind", "cls", "options", "check"), FAULTS)
def test_a_planted_fault_is_caught(kind, cls, options, check):
    must_be_caught(kind, cls, options, check)
