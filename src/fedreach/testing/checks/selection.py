"""Checks of selection policies."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fedreach.federation.traits import Traits
from fedreach.federation.values import State
from fedreach.testing.base import Subject, define_check, fail
from fedreach.testing.checks.common import Outcome, Playing, as_it_is, options_are_all_it_is
from fedreach.testing.rounds import PlayedRound, frequencies, played
from fedreach.testing.worlds import World, distinct_worlds, worlds

DRAWS = 60
FAR = 5 * (0.5 / DRAWS) ** 0.5  # five standard errors of the difference between two frequencies, at their largest


def _play(policy: Any, given: World, keep: Callable[[State], State] = as_it_is) -> list[Outcome]:
    return [Outcome(str(turn), turn) for turn in played(policy, given, keep)]


PLAYING = Playing(worlds, _play)


def _straight(subject: Subject, given: World) -> list[PlayedRound]:
    return [turn for _, turn in PLAYING.straight(subject, given)]


@define_check(worlds)
def valid_choice(subject: Subject, given: World) -> None:
    """In every round a policy chooses participants that can be reached, each once, and says so in a `Selection`."""
    _straight(subject, given)


@define_check(worlds)
def cohort_size(subject: Subject, given: World) -> None:
    """The cohort has k clients, or all that can be reached if they are fewer, or the remark says why it is smaller.

    A client that was drawn several times counts as often. A policy with `ignores_cohort` may choose any number.
    """
    if Traits.of(subject.component).ignores_cohort:
        return
    for turn in _straight(subject, given):
        wanted = min(given.cohort, turn.reachable)
        if turn.places != wanted and not (turn.remark and turn.places < wanted):
            fail(f"{turn}, which makes {turn.places} instead of {wanted}; `Selection.remark` is {turn.remark!r}")


@define_check(distinct_worlds)
def renaming(subject: Subject, given: World) -> None:
    """Giving the clients each other's ids gives the choice the other ids; who is drawn at random stays as likely."""
    n = len(given.ids)
    before = frequencies(subject.component, given, DRAWS) if _draws(subject, given) else None
    for order in (np.arange(n)[::-1], np.roll(np.arange(n), 2)):
        other = given.renamed(order)
        if before is not None:
            after = frequencies(subject.component, other, DRAWS)
            worst = int(np.argmax(np.abs(after - before[order])))
            if abs(after[worst] - before[order][worst]) > FAR:
                fail(
                    f"the client that was called {given.ids[order][worst]} is chosen in {before[order][worst]:.0%} of "
                    f"{DRAWS} rounds, and in {after[worst]:.0%} once it is called {given.ids[worst]}"
                )
            continue
        for a, b in zip(_straight(subject, given), played(subject.component, other), strict=True):
            was = np.sort(given.ids[order][np.searchsorted(given.ids, b.chosen)]).tolist()
            if was != sorted(a.chosen):
                names = dict(zip(given.ids[order].tolist(), given.ids.tolist(), strict=True))
                fail(f"{a}; with the clients renamed {names} it chose those that were called {was} before")


@define_check(distinct_worlds)
def open_about_updates(subject: Subject, given: World) -> None:
    """A policy whose choice depends on single clients' updates says so: `reads_updates = True`.

    Otherwise it would be let into a federation in which the server must see sums only.
    """
    if Traits.of(subject.component).reads_updates:
        return
    other = replace(given, direction=-np.roll(given.direction, 1, axis=0))
    for a, b in zip(_straight(subject, given), played(subject.component, other), strict=True):
        if a != b:
            fail(f"{a}, and {list(b.chosen)} where the updates were others; `reads_updates` is not set")


CHECKS = (
    valid_choice,
    cohort_size,
    PLAYING.same_again(
        "The same state, view and stream give the same choice, whatever was done with the policy before.",
        "Draw from the `rng` that is handed in, and keep nothing in `self`.",
    ),
    PLAYING.arguments_untouched("A policy does not write to its arguments: view, state and reports."),
    PLAYING.going_on_from_a_file(),
    renaming,
    open_about_updates,
    options_are_all_it_is,
)


def _draws(subject: Subject, given: World) -> bool:
    """Say whether what the policy does depends on the stream."""
    return any(played(subject.component, given, seed=seed) != _straight(subject, given) for seed in range(1, 6))
