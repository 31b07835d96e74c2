"""Checks of Oort: who has the largest utility, who is tried, who is too slow."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedreach._util.arrays import Floats, Ints
from fedreach._util.streams import generator
from fedreach.federation.types import ClientResults, ServerView, State
from fedreach.testing.base import Subject, define_check, fail, shown
from fedreach.testing.problems import with_rates

from .running import each_method, must_pass

RMS = [0.5, 2.0, 1.0, 0.1, 1.5]
KNOWN: Mapping[str, float] = {"exploration": 0.0, "least_exploration": 0.0}


@define_check()
def the_largest_utility(subject: Subject) -> None:
    """With a cutoff of 1 and nobody new the k clients are chosen whose n_i times root mean square loss is largest.

    Reference: Lai et al. 2021, eq. (2)
    """
    for examples, expected in (([10] * 5, [1, 4, 2]), ([10, 10, 30, 500, 10], [3, 2, 1])):
        for k in (1, 2, 3):
            policy = subject.make(**KNOWN, cutoff=1.0)
            chosen = _chosen(policy, _heard(policy, RMS, examples), _view(examples), k)
            if set(chosen) != set(expected[:k]):
                fail(f"it chose {chosen} instead of {expected[:k]}", f"losses {RMS}, {examples} examples, k = {k}")


@define_check()
def new_ones_at_the_stated_rate(subject: Subject) -> None:
    """In round t max(least, exploration decay^(t-1)) of the cohort are clients never heard from, as far as there are.

    Reference: Lai et al. 2021, Algorithm 1
    """
    options = {"exploration": 0.5, "decay": 0.5, "least_exploration": 0.25}
    for round_, expected in ((1, 2), (2, 1), (3, 1), (9, 1)):
        policy = subject.make(**options)
        state = _heard(policy, RMS, [10] * 10)
        chosen = _chosen(policy, state, replace(_view([10] * 10), round=round_), 4)
        new = sum(client >= 5 for client in chosen)
        if new != expected:
            fail(f"{new} of {chosen} are new instead of {expected}", f"round {round_}, 5 of 10 known, k = 4, {options}")


@define_check()
def who_waited_comes_back(subject: Subject) -> None:
    """Of clients with the same utility the one that was heard longest ago is chosen first.

    Reference: Lai et al. 2021, section 4.3
    """
    policy = subject.make(**KNOWN, cutoff=1.0)
    state = policy.init(_view([10] * 3))
    for round_, client in ((40, 0), (2, 1), (30, 2)):
        state = _told(policy, state, [client], [1.0], round_)
    chosen = _chosen(policy, state, replace(_view([10] * 3), round=50), 1)
    if chosen != [1]:
        fail(f"it chose {chosen} instead of [1]", "three clients of one utility, heard in rounds 40, 2 and 30")


@define_check()
def below_the_cutoff_is_not_drawn(subject: Subject) -> None:
    """Who has less than the cutoff of the last place's utility is never drawn; who has more is drawn at times.

    Reference: Lai et al. 2021, Algorithm 1
    """
    losses = [0.0, 1.0, 0.97, 0.5]
    policy = subject.make(**KNOWN, cutoff=0.9, penalty=0.0)
    state = _heard(policy, losses, [10] * 4)
    found = {client for seed in range(60) for client in _chosen(policy, state, _view([10] * 4), 1, seed)}
    if found != {1, 2}:
        fail(f"it drew {sorted(found)} in 60 rounds instead of 1 and 2", f"losses {losses}, cutoff 0.9, k = 1")


@define_check()
def the_slow_are_passed_over(subject: Subject) -> None:
    """Where there is a radio, a client that takes far longer than the others has to be worth it; with penalty 0 not.

    Reference: Lai et al. 2021, eq. (3)
    """
    for penalty, expected in ((2.0, [2]), (0.0, [1])):
        policy = subject.make(**KNOWN, cutoff=1.0, penalty=penalty, pace=0.5)
        view = with_rates(_view([10] * 5), np.array([9e6, 1e3, 9e6, 9e6, 9e6]))
        chosen = _chosen(policy, _heard(policy, [0.1, 1.0, 0.8, 0.1, 0.1], [10] * 5), view, 1)
        if chosen != expected:
            fail(f"it chose {chosen} instead of {expected}", f"client 1 sends at 1 kbit/s, penalty = {penalty}")


@define_check()
def as_the_plain_loop(subject: Subject) -> None:
    """With a cutoff of 1 who is chosen is as a plain loop says: 60 rounds, clients away, channels that change.

    How many are new, and which of those known: by utility cut off, scaled, by how long ago, by seconds, and by a pace
    that rises where utilities fall.

    Reference: Lai et al. 2021, Algorithm 1
    """
    n, k, rng = 14, 3, generator(0, "testing oort")
    examples = rng.integers(5, 300, n)
    some: dict[str, Any] = {"penalty": 0.5, "pace": 0.5, "pace_step": 0.2, "window": 3}
    for options in ({}, some):
        policy, plain = subject.make(**options, cutoff=1.0), _Plain(examples, **options)
        state = policy.init(_view(examples.tolist()))
        for round_ in range(1, 61):
            there = np.sort(rng.choice(n, rng.integers(5, n), replace=False))
            view = replace(_view(examples.tolist()), available=np.isin(np.arange(n), there), round=round_)
            view = with_rates(view, 10 ** rng.uniform(5, 7, n))
            chosen = _chosen(policy, state, view, k, round_)
            new, best = plain.wanted(view, k)
            found = [client for client in chosen if client in plain.told]
            if len(chosen) - len(found) != new or set(found) != best:
                wanted = f"{new} new ones and {sorted(best)}"
                fail(f"it chose {chosen} instead of {wanted} in round {round_}", f"{n} clients, k = {k}, {options}")
            losses = np.exp(-round_ / 40) * rng.uniform(0.1, 2.0, len(chosen))
            state = _told(policy, state, chosen, losses.tolist(), round_)
            plain.hear(chosen, losses, round_)


@define_check()
def drawn_in_proportion(subject: Subject) -> None:
    """Those above the bar are drawn in proportion to their utility, new ones in proportion to 1 / seconds.

    In round 1 utilities are (U - min U) / (max U - min U). Of five clients none is alone above the 95 % quantile but
    the largest, which is cut off at 0.8 + 0.8 x (1 - 0.8) of it.

    Reference: Lai et al. 2021, Algorithm 1
    """
    losses, rounds = [0.0, 0.2, 0.4, 0.8, 1.0], 600
    policy = subject.make(**KNOWN, cutoff=0.0)
    told = _heard(policy, losses, [10] * 5)
    _must_be_drawn(policy, told, _view([10] * 5), np.array([0.0, 0.2, 0.4, 0.8, 0.96]), rounds, f"losses {losses}")
    view = with_rates(_view([1, 1, 1]), np.array([1e6, 5e5, 2.5e5]))  # 10^6 bits: about 1, 2 and 4 seconds
    policy = subject.make(exploration=1.0)
    _must_be_drawn(policy, policy.init(view), view, np.array([4.0, 2.0, 1.0]), rounds, "rates 1, 0.5, 0.25 Mbit/s")


METHOD_CHECKS = {
    "oort": (
        as_the_plain_loop,
        drawn_in_proportion,
        the_largest_utility,
        new_ones_at_the_stated_rate,
        who_waited_comes_back,
        below_the_cutoff_is_not_drawn,
        the_slow_are_passed_over,
    ),
}


class _Plain:
    """Oort in plain loops, client by client."""

    def __init__(
        self, examples: Ints, penalty: float = 2.0, pace: float = 0.3, pace_step: float = 0.05, window: int = 20
    ) -> None:
        self.examples, self.penalty, self.pace, self.pace_step, self.window = examples, penalty, pace, pace_step, window
        self.told: dict[int, tuple[float, int]] = {}  # utility and round of each client that was heard
        self.gained: list[float] = []  # of each round

    def wanted(self, view: ServerView, k: int) -> tuple[int, set[int]]:
        """Return how many new ones are to be chosen, and who of those known."""
        there = view.available_ids.tolist()
        known = [i for i in there if i in self.told]
        unheard, share = len(there) - len(known), max(0.2, 0.9 * 0.98 ** (view.round - 1))
        new = min(unheard, math.ceil(share * k))
        new = max(new, k - len(known))
        if new == k:
            return k, set()
        cut = float(np.quantile([self.told[i][0] for i in known], 0.95))
        utility = {i: min(self.told[i][0], cut) for i in known}
        low, high = min(utility.values()), max(utility.values())
        assert view.radio is not None
        seconds = [
            k * 1e6 / float(rate) + float(cycles) / 2e9
            for rate, cycles in zip(view.radio.bits_per_second, view.radio.cycles_per_pass, strict=True)
        ]
        preferred = float(np.quantile([seconds[i] for i in there], self.pace))
        score = {}
        for i in known:
            score[i] = (utility[i] - low) / (high - low) if high > low else 0.0
            score[i] += math.sqrt(0.1 * math.log(view.round) / self.told[i][1])
            if seconds[i] > preferred:
                score[i] *= (preferred / seconds[i]) ** self.penalty
        return new, set(sorted(known, key=lambda i: -score[i])[: k - new])

    def hear(self, ids: list[int], losses: Floats, round_: int) -> None:
        for i, loss in zip(ids, losses, strict=True):
            self.told[i] = (float(self.examples[i] * loss), round_)
        self.gained.append(sum(self.told[i][0] for i in ids))
        if len(self.gained) % self.window == 0:
            before, now = self.gained[-2 * self.window : -self.window], self.gained[-self.window :]
            if before and sum(now) < sum(before):
                self.pace = min(1.0, self.pace + self.pace_step)


def _must_be_drawn(policy: Any, state: State, view: ServerView, wanted: Floats, rounds: int, case: str) -> None:
    """Check how often each client gets the one place."""
    chance, found = wanted / wanted.sum(), np.zeros(len(wanted))
    for seed in range(rounds):
        found[_chosen(policy, state, view, 1, seed)] += 1 / rounds
    if (np.abs(found - chance) > 5 * np.sqrt(chance * (1 - chance) / rounds) + 1e-3).any():  # five standard errors
        fail(f"in {rounds} rounds the rates are {shown(found)} instead of {shown(chance)}", case)


def _view(examples: list[int]) -> ServerView:
    return ServerView.of(np.arange(len(examples)), np.array(examples))


def _heard(policy: Any, losses: list[float], examples: list[int]) -> State:
    """Return the state after the first clients were heard in round 1."""
    return _told(policy, policy.init(_view(examples)), list(range(len(losses))), losses, 1)


def _told(policy: Any, state: State, ids: list[int], losses: list[float], round_: int) -> State:
    metrics = {"loss_rms": np.array(losses)}
    told: State = policy.observe(
        state, ClientResults(np.array(ids), np.zeros((len(ids), 2), np.float32), metrics, round=round_)
    )
    return told


def _chosen(policy: Any, state: State, view: ServerView, k: int, seed: int = 0) -> list[int]:
    return sorted(policy.select(state, view, k, generator(seed, "select")).ids.tolist())


@each_method("selection", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
