"""Laws of who can be reached."""

from __future__ import annotations

import numpy as np

from fedreach.streams import generator
from fedreach.testing.contract.any_part import options_are_all_it_is
from fedreach.testing.law import Subject, broken, law, same, told
from fedreach.testing.watching import other_global_seeds


class Size(int):
    """A number of clients that says what it is."""

    def __str__(self) -> str:
        return f"{int(self)} participants"


def sizes() -> list[Size]:
    """Return numbers of clients, none among them."""
    return [Size(1), Size(7), Size(100)]


@law(sizes)
def a_flag_for_each(subject: Subject, given: Size) -> None:
    """Each participant gets a flag from `available`, each that worked one from `replies` if there is such a method."""
    for method, count in (("available", int(given)), ("replies", int(given)), ("replies", 0)):
        if hasattr(subject.part, method):
            answer = getattr(subject.part, method)(count, generator(0, method))
            if not isinstance(answer, np.ndarray) or answer.shape != (count,) or answer.dtype != np.bool_:
                broken(f"{method} should return {count} flags; got {told(answer)}")


@law(sizes)
def same_again(subject: Subject, given: Size) -> None:
    """The same stream gives the same flags, in whatever order the rounds are asked for."""
    for method in ("available", "replies"):
        if not hasattr(subject.part, method):
            continue
        rounds = [*range(1, 6), *range(5, 0, -1)]
        answers = []
        for i, number in enumerate(rounds):
            with other_global_seeds(i):
                answers.append(getattr(subject.part, method)(int(given), generator(0, method, number)))
        for number, a, b in zip(rounds, answers, answers[::-1], strict=True):
            if not same(a, b):
                broken(f"{method} was {told(a)} in round {number} and {told(b)} when asked again")


LAWS = (a_flag_for_each, same_again, options_are_all_it_is)
