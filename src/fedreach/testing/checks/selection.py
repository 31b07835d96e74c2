"""Checks of selection policies."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fedreach.federation.types import State
from fedreach.testing.base import Outcome, RepeatedRuns, Subject, define_check, fail
from fedreach.testing.problems import (
    PlayedRound,
    ToyFederation,
    distinct_federations,
    frequencies,
    play_rounds,
    toy_federations,
)

DRAWS = 60
FAR = 5 * (0.5 / DRAWS) ** 0.5  # five times the largest standard error of the difference between two frequencies


def _play(policy: Any, case: ToyFederation, keep: Callable[[State], State] = lambda state: state) -> list[Outcome]:
    return [Outcome(str(turn), turn) for turn in play_rounds(policy, case, keep)]


PLAYING = RepeatedRuns(toy_federations, _play)


def _straight(subject: Subject, case: ToyFederation) -> list[PlayedRound]:
    return [turn for _, turn in PLAYING.straight(subject, case)]


@define_check(toy_federations)
def valid_choice(subject: Subject, case: ToyFederation) -> None:
    """In every round, a policy returns a `Cohort` of available participants, each at most once."""
    _straight(subject, case)


@define_check(toy_federations, lambda policy, _: not policy.ignores_cohort)
def cohort_size(subject: Subject, case: ToyFederation) -> None:
    """The cohort has k clients, or all available clients if there are fewer; a remark explains a smaller cohort.

    A client that is drawn several times counts several times. A policy with `ignores_cohort` can select any number.
    """
    for turn in _straight(subject, case):
        expected_size = min(case.cohort_size, turn.reachable)
        if turn.places != expected_size and not (turn.remark and turn.places < expected_size):
            fail(f"{turn}: {turn.places} instead of {expected_size} clients; `Cohort.remark` is {turn.remark!r}")


@define_check(distinct_federations)
def renaming(subject: Subject, case: ToyFederation) -> None:
    """If clients exchange their ids, the policy selects the same clients, or with the same probabilities."""
    n = len(case.ids)
    before = frequencies(subject.component, case, DRAWS) if _draws(subject, case) else None
    for order in (np.arange(n)[::-1], np.roll(np.arange(n), 2)):
        changed = case.renamed(order)
        if before is not None:
            after = frequencies(subject.component, changed, DRAWS)
            worst = int(np.argmax(np.abs(after - before[order])))
            if abs(after[worst] - before[order][worst]) > FAR:
                fail(
                    f"client {case.ids[order][worst]} is selected in {before[order][worst]:.0%} of {DRAWS} rounds, and "
                    f"in {after[worst]:.0%} if its id is {case.ids[worst]}"
                )
            continue
        for a, b in zip(_straight(subject, case), play_rounds(subject.component, changed), strict=True):
            was = np.sort(case.ids[order][np.searchsorted(case.ids, b.chosen)]).tolist()
            if was != sorted(a.chosen):
                names = dict(zip(case.ids[order].tolist(), case.ids.tolist(), strict=True))
                fail(f"{a}; with the ids exchanged, {names}, it selected the clients with the former ids {was}")


@define_check(distinct_federations, lambda policy, _: not policy.reads_updates)
def declares_reads_updates(subject: Subject, case: ToyFederation) -> None:
    """A policy that depends on the updates of single clients declares `reads_updates = True`.

    FedReach rejects a policy that reads updates in a federation with secure aggregation.
    """
    if not PLAYING.repeats(subject, case):
        return  # `reproducible` reports it
    changed = replace(case, direction=-np.roll(case.direction, 1, axis=0))
    for a, b in zip(_straight(subject, case), play_rounds(subject.component, changed), strict=True):
        if a != b:
            fail(f"{a}, and {list(b.chosen)} for other updates; set `reads_updates = True`")


def _draws(subject: Subject, case: ToyFederation) -> bool:
    """Return whether the policy's selections depend on the random stream."""
    return any(play_rounds(subject.component, case, seed=seed) != _straight(subject, case) for seed in range(1, 6))
