"""Checks of participations."""

import numpy as np

from fedreach._util.streams import generator
from fedreach.testing.base import Subject, define_check, fail, same, shown
from fedreach.testing.checks.common import options_are_all_it_is, other_global_seeds


class Size(int):
    """A number of clients that describes itself."""

    def __str__(self) -> str:
        return f"{int(self)} participants"


def sizes() -> list[Size]:
    """Return numbers of clients, none among them."""
    return [Size(1), Size(7), Size(100)]


@define_check(sizes)
def a_flag_for_each(subject: Subject, case: Size) -> None:
    """Each participant gets a flag from `available`, each that worked one from `replies` if there is such a method."""
    for method, count in (("available", int(case)), ("replies", int(case)), ("replies", 0)):
        if method == "available" or subject.component.loses_replies:
            answer = getattr(subject.component, method)(count, generator(0, method))
            if not isinstance(answer, np.ndarray) or answer.shape != (count,) or answer.dtype != np.bool_:
                fail(f"{method} should return {count} flags; got {shown(answer)}")


@define_check(sizes)
def same_again(subject: Subject, case: Size) -> None:
    """The same stream gives the same flags, in whatever order the rounds are asked for."""
    for method in ("available", "replies"):
        if method == "replies" and not subject.component.loses_replies:
            continue
        rounds = [*range(1, 6), *range(5, 0, -1)]
        answers = []
        for i, number in enumerate(rounds):
            with other_global_seeds(i):
                answers.append(getattr(subject.component, method)(int(case), generator(0, method, number)))
        for number, a, b in zip(rounds, answers, answers[::-1], strict=True):
            if not same(a, b):
                fail(f"{method} was {shown(a)} in round {number} and {shown(b)} when asked again")


CHECKS = (a_flag_for_each, same_again, options_are_all_it_is)
