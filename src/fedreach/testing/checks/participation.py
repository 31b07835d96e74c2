"""Checks of participation models."""

import numpy as np

from fedreach._util.streams import generator
from fedreach.testing.base import Subject, define_check, fail, other_global_seeds, same, shown

SIZES = 1, 7, 100


@define_check(lambda: SIZES)
def one_flag_per_client(subject: Subject, case: int) -> None:
    """The methods return Booleans: `available` one per participant, and `replies` one per client that trained."""
    for method, count in (("available", case), ("replies", case), ("replies", 0)):
        if method == "available" or subject.component.loses_replies:
            answer = getattr(subject.component, method)(count, generator(0, method))
            if not isinstance(answer, np.ndarray) or answer.shape != (count,) or answer.dtype != np.bool_:
                fail(f"{method} should return {count} Booleans; got {shown(answer)}", f"{case} participants")


@define_check(lambda: SIZES)
def reproducible(subject: Subject, case: int) -> None:
    """The same stream gives the same result, for any order of the rounds."""
    words = f"{case} participants"
    for method in ("available", "replies"):
        if method == "replies" and not subject.component.loses_replies:
            continue
        rounds = [*range(1, 6), *range(5, 0, -1)]
        answers = []
        for i, number in enumerate(rounds):
            with other_global_seeds(i):
                answers.append(getattr(subject.component, method)(case, generator(0, method, number)))
        for number, a, b in zip(rounds, answers, answers[::-1], strict=True):
            if not same(a, b):
                fail(f"{method} was {shown(a)} in round {number} and {shown(b)} when repeated", words)
