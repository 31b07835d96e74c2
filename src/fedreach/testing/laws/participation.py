"""Laws of participations: of all, and of single methods."""

from collections.abc import Mapping

import numpy as np

from fedreach.federation.participation import replies_of
from fedreach.streams import generator
from fedreach.testing.law import Law, Subject, broken, law, same, shown
from fedreach.testing.laws.any_part import options_are_all_it_is
from fedreach.testing.purity import other_global_seeds


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
        if method == "available" or replies_of(subject.part):
            answer = getattr(subject.part, method)(count, generator(0, method))
            if not isinstance(answer, np.ndarray) or answer.shape != (count,) or answer.dtype != np.bool_:
                broken(f"{method} should return {count} flags; got {shown(answer)}")


@law(sizes)
def same_again(subject: Subject, given: Size) -> None:
    """The same stream gives the same flags, in whatever order the rounds are asked for."""
    for method in ("available", "replies"):
        if method == "replies" and replies_of(subject.part) is None:
            continue
        rounds = [*range(1, 6), *range(5, 0, -1)]
        answers = []
        for i, number in enumerate(rounds):
            with other_global_seeds(i):
                answers.append(getattr(subject.part, method)(int(given), generator(0, method, number)))
        for number, a, b in zip(rounds, answers, answers[::-1], strict=True):
            if not same(a, b):
                broken(f"{method} was {shown(a)} in round {number} and {shown(b)} when asked again")


LAWS = (a_flag_for_each, same_again, options_are_all_it_is)
DRAWS = 4000


@law()
def everybody(subject: Subject) -> None:
    """Everybody can be reached in every round."""
    for number in range(1, 20):
        if not subject.make().available(5, generator(0, "participation", number)).all():
            broken("not everybody was available", f"5 participants, round {number}")


@law()
def as_often_as_it_says(subject: Subject) -> None:
    """Each participant is reached with probability `act_prob`, each reply arrives with probability `reply_prob`."""
    for probability in (0.2, 0.9):
        part = subject.make(act_prob=probability, reply_prob=1 - probability)
        for method, wanted in (("available", probability), ("replies", 1 - probability)):
            flags = np.stack([getattr(part, method)(4, generator(0, method, t)) for t in range(DRAWS // 4)])
            # Five standard errors, for each client (DRAWS / 4 rounds).
            far = 5 * np.sqrt(probability * (1 - probability) / len(flags))
            if not (np.abs(flags.mean(axis=0) - wanted) < far).all():
                rates = ", ".join(f"{rate:.3f}" for rate in flags.mean(axis=0))
                broken(f"{method} was true at the rates {rates} for 4 clients", f"{len(flags)} rounds, {wanted:g}")


@law()
def one_does_not_tell_of_another(subject: Subject) -> None:
    """Whether one client can be reached says nothing about another."""
    part = subject.make(act_prob=0.5)
    flags = np.stack([part.available(2, generator(0, "available", t)) for t in range(DRAWS)])
    both = float(flags.all(axis=1).mean())
    if abs(both - 0.25) > 5 * np.sqrt(0.25 * 0.75 / DRAWS):
        broken(f"both were there in {both:.1%} of the rounds, instead of 25 %", f"2 clients, {DRAWS} rounds, 1/2 each")


METHOD_LAWS: Mapping[str, tuple[Law, ...]] = {
    "always": (everybody,),
    "bernoulli": (as_often_as_it_says, one_does_not_tell_of_another),
}
