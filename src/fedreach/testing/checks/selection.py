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
FAR = 5 * (0.5 / DRAWS) ** 0.5  # five standard errors of the difference between two frequencies, at their largest


def _play(policy: Any, case: ToyFederation, keep: Callable[[State], State] = lambda state: state) -> list[Outcome]:
    return [Outcome(str(turn), turn) for turn in play_rounds(policy, case, keep)]


PLAYING = RepeatedRuns(toy_federations, _play)


def _straight(subject: Subject, case: ToyFederation) -> list[PlayedRound]:
    return [turn for _, turn in PLAYING.straight(subject, case)]


@define_check(toy_federations)
def valid_choice(subject: Subject, case: ToyFederation) -> None:
    """In every round a policy chooses participants that can be reached, each once, and says so in a `Cohort`."""
    _straight(subject, case)


@define_check(toy_federations, lambda policy, _: not policy.ignores_cohort)
def cohort_size(subject: Subject, case: ToyFederation) -> None:
    """The cohort has k clients, or all that can be reached if they are fewer, or the remark says why it is smaller.

    A client that was drawn several times counts as often. A policy with `ignores_cohort` may choose any number.
    """
    for turn in _straight(subject, case):
        expected_size = min(case.cohort_size, turn.reachable)
        if turn.places != expected_size and not (turn.remark and turn.places < expected_size):
            fail(f"{turn}, which makes {turn.places} instead of {expected_size}; `Cohort.remark` is {turn.remark!r}")


@define_check(distinct_federations)
def renaming(subject: Subject, case: ToyFederation) -> None:
    """Giving the clients each other's ids gives the choice the other ids; who is drawn at random stays as likely."""
    n = len(case.ids)
    before = frequencies(subject.component, case, DRAWS) if _draws(subject, case) else None
    for order in (np.arange(n)[::-1], np.roll(np.arange(n), 2)):
        changed = case.renamed(order)
        if before is not None:
            after = frequencies(subject.component, changed, DRAWS)
            worst = int(np.argmax(np.abs(after - before[order])))
            if abs(after[worst] - before[order][worst]) > FAR:
                fail(
                    f"the client that was called {case.ids[order][worst]} is chosen in {before[order][worst]:.0%} of "
                    f"{DRAWS} rounds, and in {after[worst]:.0%} once it is called {case.ids[worst]}"
                )
            continue
        for a, b in zip(_straight(subject, case), play_rounds(subject.component, changed), strict=True):
            was = np.sort(case.ids[order][np.searchsorted(case.ids, b.chosen)]).tolist()
            if was != sorted(a.chosen):
                names = dict(zip(case.ids[order].tolist(), case.ids.tolist(), strict=True))
                fail(f"{a}; with the clients renamed {names} it chose those that were called {was} before")


@define_check(distinct_federations, lambda policy, _: not policy.reads_updates)
def open_about_updates(subject: Subject, case: ToyFederation) -> None:
    """A policy whose choice depends on single clients' updates says so: `reads_updates = True`.

    Otherwise it would be let into a federation in which the server must see sums only.
    """
    changed = replace(case, direction=-np.roll(case.direction, 1, axis=0))
    for a, b in zip(_straight(subject, case), play_rounds(subject.component, changed), strict=True):
        if a != b:
            fail(f"{a}, and {list(b.chosen)} where the updates were others; `reads_updates` is not set")


def _draws(subject: Subject, case: ToyFederation) -> bool:
    """Say whether what the policy does depends on the stream."""
    return any(play_rounds(subject.component, case, seed=seed) != _straight(subject, case) for seed in range(1, 6))
