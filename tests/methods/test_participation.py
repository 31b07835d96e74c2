"""Checks of the built-in participations: what theory says only of one method."""

import numpy as np

from fedreach._util.streams import generator
from fedreach.testing.base import Subject, define_check, fail

from .running import each_method, must_pass

DRAWS = 4000


@define_check()
def everybody(subject: Subject) -> None:
    """Everybody can be reached in every round."""
    for number in range(1, 20):
        if not subject.make().available(5, generator(0, "participation", number)).all():
            fail("not everybody was available", f"5 participants, round {number}")


@define_check()
def as_often_as_it_says(subject: Subject) -> None:
    """Each participant is reached with probability `act_prob`, each reply arrives with probability `reply_prob`."""
    for probability in (0.2, 0.9):
        component = subject.make(act_prob=probability, reply_prob=1 - probability)
        for method, wanted in (("available", probability), ("replies", 1 - probability)):
            flags = np.stack([getattr(component, method)(4, generator(0, method, t)) for t in range(DRAWS // 4)])
            # Five standard errors, for each client (DRAWS / 4 rounds).
            far = 5 * np.sqrt(probability * (1 - probability) / len(flags))
            if not (np.abs(flags.mean(axis=0) - wanted) < far).all():
                rates = ", ".join(f"{rate:.3f}" for rate in flags.mean(axis=0))
                fail(f"{method} was true at the rates {rates} for 4 clients", f"{len(flags)} rounds, {wanted:g}")


@define_check()
def one_does_not_tell_of_another(subject: Subject) -> None:
    """Whether one client can be reached says nothing about another."""
    component = subject.make(act_prob=0.5)
    flags = np.stack([component.available(2, generator(0, "available", t)) for t in range(DRAWS)])
    both = float(flags.all(axis=1).mean())
    if abs(both - 0.25) > 5 * np.sqrt(0.25 * 0.75 / DRAWS):
        fail(f"both were there in {both:.1%} of the rounds, instead of 25 %", f"2 clients, {DRAWS} rounds, 1/2 each")


METHOD_CHECKS = {
    "always": (everybody,),
    "bernoulli": (as_often_as_it_says, one_does_not_tell_of_another),
}


@each_method("participation", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
