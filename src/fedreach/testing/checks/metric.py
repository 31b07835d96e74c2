"""Checks of metrics."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedreach._util.arrays import AnyArray, Floats
from fedreach._util.streams import generator
from fedreach.evaluation.metrics import Metric
from fedreach.testing.base import Case, Outcome, RepeatedRuns, Subject, define_check, fail


@dataclass(frozen=True, eq=False)
class Answers(Case):
    """Outputs of a model for some examples, and the true targets."""

    labels: AnyArray  # (m,) classes, or (m, t) numbers
    scores: Floats  # (m, c), or (m, t)


def answers() -> Iterator[Answers]:
    """Yield outputs of good and bad models, for one or more examples of one or more classes."""
    rng = generator(0, "testing answers")
    for m, c, skill in ((1, 2, 0.0), (20, 3, 0.0), (50, 4, 3.0), (200, 10, 1.0)):
        labels = rng.integers(0, c, m)
        yield Answers(f"{m} examples of {c} classes", labels, rng.standard_normal((m, c)) + skill * np.eye(c)[labels])
    yield Answers("5 examples of one class", np.zeros(5, np.int64), rng.standard_normal((5, 3)))
    labels = rng.integers(0, 2, 40)
    ties = rng.integers(0, 3, (40, 2)) + np.eye(2)[labels]
    yield Answers("40 examples of 2 classes, many with equal outputs", labels, ties)
    lacking = np.repeat([0, 3], [9, 6])
    yield Answers("15 examples of 2 of 5 classes", lacking, rng.standard_normal((15, 5)) + np.eye(5)[lacking])
    for m, t, skill in ((1, 1, 0.0), (30, 1, 0.9), (12, 3, 0.5), (200, 1, 0.0)):
        numbers = 40 + 10 * rng.standard_normal((m, t))
        noise = 10 * rng.standard_normal((m, t))
        yield Answers(f"{m} examples with {t} numbers", numbers, 40 + skill * (numbers - 40) + (1 - skill) * noise)
    yield Answers("6 examples with equal numbers", np.full((6, 1), 2.5), rng.standard_normal((6, 1)))


def is_suitable(component: Metric, case: Answers) -> bool:
    """Return whether a metric supports the targets: classes, or numbers."""
    return component.needs_numbers is (case.labels.dtype.kind == "f")


of_answers = define_check(answers, is_suitable)


@of_answers
def one_number(subject: Subject, case: Answers) -> None:
    """A metric returns one number, which can be NaN but not infinite, and its name can be part of a column's name."""
    value, name = subject.component.of(case.labels.copy(), case.scores.copy()), subject.component.name
    if not isinstance(value, float | np.floating) or np.isinf(value):
        fail(f"of() must return a finite number or NaN; got {value!r}")
    if not (isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name)):
        fail(f"its name must consist of lowercase letters, digits and _; got {name!r}")


@of_answers
def order_does_not_matter(subject: Subject, case: Answers) -> None:
    """The order of the examples does not change the metric."""
    value = subject.component.of(case.labels, case.scores)
    turned = subject.component.of(case.labels[::-1].copy(), case.scores[::-1].copy())
    if not np.isclose(value, turned, rtol=1e-9, atol=1e-9, equal_nan=True):
        fail(f"it is {value}, and {turned} with the examples in reverse order")


def _play(component: Metric, case: Answers) -> list[Outcome]:
    value = component.of(case.labels, case.scores) if is_suitable(component, case) else np.nan
    return [Outcome(f"it was {value}", np.array(value, np.float64))]


PLAYING = RepeatedRuns(answers, _play, has_state=False)
