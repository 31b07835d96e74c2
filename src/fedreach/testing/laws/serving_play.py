"""What the laws of serving rules have played: a rule is fitted, and clients are served batch by batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.federation.traits import Traits, name_of
from fedreach.federation.values import Outputs, State
from fedreach.testing.law import Law, Subject, shown
from fedreach.testing.laws.any_part import Outcome, Playing, as_it_is
from fedreach.testing.served import Clientele, served_worlds


@dataclass(frozen=True)
class Kept:
    """A rule whose every state, query and contribution goes through `keep`, such as a file."""

    part: Any
    keep: Callable[[State], State]

    @property
    def name(self) -> str:
        """What messages call it."""
        return name_of(self.part)

    def query(self, state: State) -> State | None:
        query = self.part.query(state)
        return None if query is None else self.keep(query)

    def contribute(self, query: State, outputs: Outputs, labels: Ints, counts: Floats) -> State:
        answer = self.part.contribute(query, outputs, labels, counts)
        kept = self.keep(answer)
        return {name: kept[name] for name in answer}  # a file has an order of its own

    def fold(self, state: State, sums: State) -> State:
        return self.keep(self.part.fold(state, sums))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.part, name)


def play(part: Any, given: Clientele, keep: Callable[[State], State] = as_it_is) -> list[Outcome]:
    """Fit the rule and serve each client, batch by batch."""
    state = given.fitted(Kept(part, keep)).state
    outcomes = []
    for number, batches in enumerate(given.clients, start=1):
        everything = given.outputs(part, np.concatenate(batches))
        client, seen = keep(part.start(state)), 0
        outcomes.append(_outcome(f"client {number}, before its first input", part.predict(state, client, everything)))
        for batch in batches:
            client, seen = keep(part.update(state, client, given.outputs(part, batch))), seen + len(batch)
            outcomes.append(_outcome(f"client {number}, after {seen}", part.predict(state, client, everything)))
        if Traits.of(part).knows_prior:
            client = keep(part.with_prior(state, uneven(given.classes)))
            outcomes.append(_outcome(f"client {number}, its shares known", part.predict(state, client, everything)))
        if Traits.of(part).learns_labels:
            client = keep(part.with_labels(state, *labelled(everything)))
            outcomes.append(_outcome(f"client {number}, some labels known", part.predict(state, client, everything)))
        if Traits.of(part).serves_online:
            online, _ = part.predict_online(state, part.start(state), everything)
            outcomes.append(_outcome(f"client {number}, each input before it counts", online))
    return outcomes


def _outcome(who: str, predicted: Any) -> Outcome:
    return Outcome(f"of {who}, it predicted {shown(predicted)}", np.asarray(predicted))


def labelled(outputs: Outputs) -> tuple[Outputs, Ints]:
    """Return the first half of a client's inputs, labelled with the classes that the model finds second likeliest."""
    half = outputs.rows(slice((len(outputs.logits) + 1) // 2))
    return half, half.logits.argsort(axis=1)[:, -2]


def uneven(c: int) -> Floats:
    """Return class shares of which no two are alike."""
    shares: Floats = np.arange(1.0, c + 1) / (c * (c + 1) / 2)
    return shares


def trusted(subject: Subject) -> Subject:
    """Return the subject with inputs trusted in full, where it is participants who decide on that.

    Few participants decide nothing, and what they decide depends on who holds what: a law about what trusted inputs do
    would try nothing, or something else.
    """
    part = subject.part
    option = next((name for name in ("trust", "strength") if getattr(part, name, None) == "fitted"), None)
    if option is None or not is_dataclass(part) or isinstance(part, type):
        return subject
    given: dict[str, Any] = {option: 1.0}
    if hasattr(part, "amplification"):
        given |= {"amplification": math.inf, "correlation": 0.0}
    changed, make = replace(part, **given), partial(subject.make, **given)
    return cast(Subject, subject.once("trusted", lambda: replace(subject, part=changed, make=make, noted={})))


def when_trusted(one: Law) -> Law:
    """Return the law, tried with inputs that are trusted in full."""
    return replace(one, check=lambda subject, *given: one.check(trusted(subject), *given))


PLAYING = Playing(served_worlds, play)
