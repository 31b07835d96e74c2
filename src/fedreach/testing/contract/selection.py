"""Laws of selection policies, tried through the functions of a real round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedreach.testing.contract.any_part import options_are_all_it_is
from fedreach.testing.inputs import World, distinct_worlds, worlds
from fedreach.testing.law import Subject, broken, law
from fedreach.testing.playing import Turn, frequencies, play
from fedreach.testing.watching import Watched, other_global_seeds, through_a_file

DRAWS = 60
FAR = 5 * (0.5 / DRAWS) ** 0.5
"""Five standard errors of the difference between two frequencies, at their largest."""


@law(worlds)
def valid_choice(subject: Subject, given: World) -> None:
    """In every round a policy chooses participants that can be reached, each once, and says so in a `Selection`."""
    _straight(subject, given)


@law(worlds)
def cohort_size(subject: Subject, given: World) -> None:
    """The cohort has k clients, or all that can be reached if they are fewer, or the remark says why it is smaller.

    A policy with `ignores_cohort` may choose as many as it likes.
    """
    if getattr(subject.part, "ignores_cohort", False):
        return
    for turn in _straight(subject, given):
        wanted = min(given.cohort, turn.reachable)
        if len(turn.chosen) != wanted and not (turn.remark and len(turn.chosen) < wanted):
            broken(f"{turn}, which makes {len(turn.chosen)} instead of {wanted}; `Selection.remark` is {turn.remark!r}")


@law(worlds)
def same_again(subject: Subject, given: World) -> None:
    """The same state, view and stream give the same choice, whatever was done with the policy before."""
    for seed in (1, 2):
        with other_global_seeds(seed):
            again = play(subject.part, given)
        for a, b in zip(_straight(subject, given), again, strict=True):
            if a != b:
                broken(
                    f"{a} at first, and {list(b.chosen)} again; draw from the `rng` that is handed in, and keep "
                    "nothing in `self`"
                )


@law(worlds)
def arguments_untouched(subject: Subject, given: World) -> None:
    """A policy does not write to its arguments: view, state and reports."""
    play(Watched(subject.part), given)


@law(worlds)
def going_on_from_a_file(subject: Subject, given: World) -> None:
    """The state consists of named arrays; a run that is stored after each round and read again goes on alike."""
    for a, b in zip(_straight(subject, given), play(subject.part, given, keep=through_a_file), strict=True):
        if a != b:
            broken(f"{a}, and {list(b.chosen)} with the state read from a file")


@law(distinct_worlds)
def renaming(subject: Subject, given: World) -> None:
    """Giving the clients each other's ids gives the choice the other ids; who is drawn at random stays as likely."""
    n = len(given.ids)
    before = frequencies(subject.part, given, DRAWS) if _draws(subject, given) else None
    for order in (np.arange(n)[::-1], np.roll(np.arange(n), 2)):
        other = given.renamed(order)
        if before is not None:
            after = frequencies(subject.part, other, DRAWS)
            worst = int(np.argmax(np.abs(after - before[order])))
            if abs(after[worst] - before[order][worst]) > FAR:
                broken(
                    f"the client that was called {given.ids[order][worst]} is chosen in {before[order][worst]:.0%} of "
                    f"{DRAWS} rounds, and in {after[worst]:.0%} once it is called {given.ids[worst]}"
                )
            continue
        for a, b in zip(_straight(subject, given), play(subject.part, other), strict=True):
            was = np.sort(given.ids[order][np.searchsorted(given.ids, b.chosen)]).tolist()
            if was != sorted(a.chosen):
                names = dict(zip(given.ids[order].tolist(), given.ids.tolist(), strict=True))
                broken(f"{a}; with the clients renamed {names} it chose those that were called {was} before")


@law(distinct_worlds)
def open_about_updates(subject: Subject, given: World) -> None:
    """A policy whose choice depends on single clients' updates says so: `reads_updates = True`.

    Otherwise it would be let into a federation in which the server must see sums only.
    """
    if getattr(subject.part, "reads_updates", False):
        return
    other = replace(given, direction=-np.roll(given.direction, 1, axis=0))
    for a, b in zip(_straight(subject, given), play(subject.part, other), strict=True):
        if a != b:
            broken(f"{a}, and {list(b.chosen)} where the updates were others; `reads_updates` is not set")


LAWS = (
    valid_choice,
    cohort_size,
    same_again,
    arguments_untouched,
    going_on_from_a_file,
    renaming,
    open_about_updates,
    options_are_all_it_is,
)


def _straight(subject: Subject, given: World) -> list[Turn]:
    """Return what the policy does in this federation, played once for all laws."""
    turns: list[Turn] = subject.once(str(given), lambda: play(subject.part, given))
    return turns


def _draws(subject: Subject, given: World) -> bool:
    """Say whether what the policy does depends on the stream."""
    return any(play(subject.part, given, seed=seed) != _straight(subject, given) for seed in range(1, 6))
