"""Laws of Oort: who has the largest utility, who is tried, who is too slow."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedreach.federation.values import ClientView, Reports, State
from fedreach.streams import generator
from fedreach.testing.law import Law, Subject, broken, law
from fedreach.testing.worlds import with_rates

RMS = [0.5, 2.0, 1.0, 0.1, 1.5]
KNOWN: Mapping[str, float] = {"exploration": 0.0, "least_exploration": 0.0}


@law()
def the_largest_utility(subject: Subject) -> None:
    """With a cutoff of 1 and nobody new the k clients are chosen whose n_i times root mean square loss is largest.

    Reference: Lai et al. 2021, eq. (2)
    """
    for examples, expected in (([10] * 5, [1, 4, 2]), ([10, 10, 30, 500, 10], [3, 2, 1])):
        for k in (1, 2, 3):
            policy = subject.make(**KNOWN, cutoff=1.0)
            chosen = _chosen(policy, _heard(policy, RMS, examples), _view(examples), k)
            if set(chosen) != set(expected[:k]):
                broken(f"it chose {chosen} instead of {expected[:k]}", f"losses {RMS}, {examples} examples, k = {k}")


@law()
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
            broken(
                f"{new} of {chosen} are new instead of {expected}", f"round {round_}, 5 of 10 known, k = 4, {options}"
            )


@law()
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
        broken(f"it chose {chosen} instead of [1]", "three clients of one utility, heard in rounds 40, 2 and 30")


@law()
def below_the_cutoff_is_not_drawn(subject: Subject) -> None:
    """Who has less than the cutoff of the last place's utility is never drawn; who has more is drawn at times.

    Reference: Lai et al. 2021, Algorithm 1
    """
    losses = [0.0, 1.0, 0.97, 0.5]
    policy = subject.make(**KNOWN, cutoff=0.9, penalty=0.0)
    state = _heard(policy, losses, [10] * 4)
    found = {client for seed in range(60) for client in _chosen(policy, state, _view([10] * 4), 1, seed)}
    if found != {1, 2}:
        broken(f"it drew {sorted(found)} in 60 rounds instead of 1 and 2", f"losses {losses}, cutoff 0.9, k = 1")


@law()
def the_slow_are_passed_over(subject: Subject) -> None:
    """Where there is a radio, a client that takes far longer than the others has to be worth it; with penalty 0 not.

    Reference: Lai et al. 2021, eq. (3)
    """
    for penalty, expected in ((2.0, [2]), (0.0, [1])):
        policy = subject.make(**KNOWN, cutoff=1.0, penalty=penalty, pace=0.5)
        view = with_rates(_view([10] * 5), np.array([9e6, 1e3, 9e6, 9e6, 9e6]))
        chosen = _chosen(policy, _heard(policy, [0.1, 1.0, 0.8, 0.1, 0.1], [10] * 5), view, 1)
        if chosen != expected:
            broken(f"it chose {chosen} instead of {expected}", f"client 1 sends at 1 kbit/s, penalty = {penalty}")


METHOD_LAWS: Mapping[str, tuple[Law, ...]] = {
    "oort": (
        the_largest_utility,
        new_ones_at_the_stated_rate,
        who_waited_comes_back,
        below_the_cutoff_is_not_drawn,
        the_slow_are_passed_over,
    ),
}


def _view(examples: list[int]) -> ClientView:
    return ClientView.of(np.arange(len(examples)), np.array(examples))


def _heard(policy: Any, losses: list[float], examples: list[int]) -> State:
    """Return the state after the first clients were heard in round 1."""
    return _told(policy, policy.init(_view(examples)), list(range(len(losses))), losses, 1)


def _told(policy: Any, state: State, ids: list[int], losses: list[float], round_: int) -> State:
    metrics = {"loss_rms": np.array(losses)}
    told: State = policy.observe(
        state, Reports(np.array(ids), np.zeros((len(ids), 2), np.float32), metrics, round=round_)
    )
    return told


def _chosen(policy: Any, state: State, view: ClientView, k: int, seed: int = 0) -> list[int]:
    return sorted(policy.select(state, view, k, generator(seed, "select")).ids.tolist())
