"""Checks of measurements."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedreach._util.streams import generator
from fedreach.federation.types import LocalOutputs
from fedreach.testing.base import Case, Outcome, RepeatedRuns, Subject, define_check, fail


@dataclass(frozen=True, eq=False)
class OutputsCase(Case):
    """Outputs of a client's model on its examples."""

    outputs: LocalOutputs


def outputs() -> Iterator[OutputsCase]:
    """Yield outputs of uncertain, certain and wrong models, also for one example."""
    rng = generator(0, "testing outputs")
    for m, c in ((1, 2), (5, 3), (100, 10)):
        logits, before = (rng.standard_normal((m, c)).astype(np.float32) for _ in range(2))
        ordinary = LocalOutputs(logits, rng.integers(c, size=m), before)
        yield OutputsCase(f"{m} examples of {c} classes, random logits", ordinary)
    zero = np.zeros_like(ordinary.logits)
    yield OutputsCase("100 examples, all logits 0", replace(ordinary, logits=zero, before=zero))
    certain = np.where(np.arange(10) == ordinary.labels[:, None], 1e4, -1e4).astype(np.float32)
    yield OutputsCase("100 examples, all predictions certain and correct", replace(ordinary, logits=certain))
    yield OutputsCase("100 examples, all predictions certain and wrong", replace(ordinary, logits=-certain))
    yield OutputsCase("100 examples, all of class 3", replace(ordinary, labels=np.full(100, 3)))


def _play(component: Any, case: OutputsCase) -> list[Outcome]:
    outputs = case.outputs if component.wants_before else replace(case.outputs, before=None)
    number = component.measure(outputs, generator(0, "testing measure"))
    return [Outcome(f"it measured {number!r}", number)]


PLAYING = RepeatedRuns(outputs, _play, has_state=False)


@define_check()
def has_a_name(subject: Subject) -> None:
    """A measurement has a name, which is its key in the replies, and a Boolean `wants_before`."""
    name, wants = subject.component.name, subject.component.wants_before
    if not (isinstance(name, str) and name and isinstance(wants, bool)):
        fail(f"name should be a string and wants_before a Boolean; got {name!r} and {wants!r}")


@define_check(outputs)
def a_finite_number(subject: Subject, case: OutputsCase) -> None:
    """A measurement is one finite number for all outputs of the model."""
    ((description, number),) = PLAYING.straight(subject, case)
    if np.ndim(number) != 0 or not np.isfinite(number):
        fail(description)
