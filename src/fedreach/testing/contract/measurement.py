"""Laws of what clients measure on their own data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedreach.federation.values import LocalOutputs
from fedreach.streams import generator
from fedreach.testing.contract.any_part import options_are_all_it_is
from fedreach.testing.law import Subject, broken, law
from fedreach.testing.watching import Watched, other_global_seeds


@dataclass(frozen=True, eq=False)
class Said:
    """What a client's model says about its examples."""

    words: str
    outputs: LocalOutputs

    def __str__(self) -> str:
        return self.words


def outputs() -> Iterator[Said]:
    """Yield outputs of models that are unsure, certain, wrong, and of a single example."""
    rng = generator(0, "testing outputs")
    for m, c in ((1, 2), (5, 3), (100, 10)):
        logits, before = (rng.standard_normal((m, c)).astype(np.float32) for _ in range(2))
        said = LocalOutputs(logits, rng.integers(c, size=m), before)
        yield Said(f"{m} examples of {c} classes, random logits", said)
    zero = np.zeros_like(said.logits)
    yield Said("100 examples, all logits 0", replace(said, logits=zero, before=zero))
    certain = np.where(np.arange(10) == said.labels[:, None], 1e4, -1e4).astype(np.float32)
    yield Said("100 examples, the model certain and right", replace(said, logits=certain))
    yield Said("100 examples, the model certain and wrong", replace(said, logits=-certain))
    yield Said("100 examples, all of class 3", replace(said, labels=np.full(100, 3)))


@law()
def has_a_name(subject: Subject) -> None:
    """A measurement has a name, the key of its number in the reports, and says whether it wants the outputs before."""
    name, wants = subject.part.name, subject.part.wants_before
    if not (isinstance(name, str) and name and isinstance(wants, bool)):
        broken(f"name should be a word and wants_before a flag; got {name!r} and {wants!r}")


@law(outputs)
def a_finite_number(subject: Subject, given: Said) -> None:
    """A measurement is one finite number, whatever the model says."""
    number = _measure(subject.part, given.outputs)
    if np.ndim(number) != 0 or not np.isfinite(number):
        broken(f"it measured {number!r}")


@law(outputs)
def same_again(subject: Subject, given: Said) -> None:
    """The same outputs and stream give the same number, whatever was measured before."""
    with other_global_seeds(1):
        first = _measure(subject.part, given.outputs)
    with other_global_seeds(2):
        second = _measure(subject.part, given.outputs)
    if first != second:
        broken(f"it measured {first!r}, and {second!r} again; draw from the `rng` that is handed in")


@law(outputs)
def arguments_untouched(subject: Subject, given: Said) -> None:
    """A measurement does not write to the outputs."""
    _measure(Watched(subject.part), given.outputs)


LAWS = (has_a_name, a_finite_number, same_again, arguments_untouched, options_are_all_it_is)


def _measure(part: Any, said: LocalOutputs) -> Any:
    if not part.wants_before:
        said = replace(said, before=None)
    return part.measure(said, generator(0, "testing measure"))
