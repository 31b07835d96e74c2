"""Laws of metrics: of all, and of single ones."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.streams import generator
from fedreach.testing.law import Law, Subject, broken, law, must_be_close, shown
from fedreach.testing.laws.any_part import Given, Outcome, Playing, options_are_all_it_is


@dataclass(frozen=True, eq=False)
class Answers(Given):
    """What a model says of some examples, and the truth."""

    labels: Ints  # (m,)
    scores: Floats  # (m, c)


def answers() -> Iterator[Answers]:
    """Yield answers of good and bad models, to one example, to examples of one class, and of many."""
    rng = generator(0, "testing answers")
    for m, c, skill in ((1, 2, 0.0), (20, 3, 0.0), (50, 4, 3.0), (200, 10, 1.0)):
        labels = rng.integers(0, c, m)
        yield Answers(f"{m} examples of {c} classes", labels, rng.standard_normal((m, c)) + skill * np.eye(c)[labels])
    yield Answers("5 examples of one class", np.zeros(5, np.int64), rng.standard_normal((5, 3)))


@law(answers)
def one_number(subject: Subject, given: Answers) -> None:
    """A metric is one number, and may be undefined, nan, but not infinite; its name can end a column's."""
    value, name = subject.part.of(given.labels.copy(), given.scores.copy()), subject.part.name
    if not isinstance(value, float | np.floating) or np.isinf(value):
        broken(f"of() must return a number that is not infinite; got {value!r}")
    if not (isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name)):
        broken(f"its name must be small letters, digits and _; got {name!r}")


@law(answers)
def whatever_the_order(subject: Subject, given: Answers) -> None:
    """The order of the examples does not matter."""
    value = subject.part.of(given.labels, given.scores)
    turned = subject.part.of(given.labels[::-1].copy(), given.scores[::-1].copy())
    if not np.isclose(value, turned, rtol=1e-9, atol=1e-9, equal_nan=True):
        broken(f"it is {value}, and {turned} with the examples turned round")


PLAYING = Playing(
    answers,
    lambda part, given, keep=None: [
        Outcome(f"it was {(value := part.of(given.labels, given.scores))}", np.array(value, np.float64))
    ],
)

LAWS = (
    one_number,
    whatever_the_order,
    PLAYING.same_again("The same answers give the same number.", "Draw no random numbers, keep nothing in `self`."),
    PLAYING.arguments_untouched("A metric does not write to its arguments: labels and scores."),
    options_are_all_it_is,
)


@law(answers)
def share_that_is_right(subject: Subject, given: Answers) -> None:
    """Accuracy is the share of examples whose class has the largest score."""
    right = [row.tolist().index(row.max()) == label for row, label in zip(given.scores, given.labels, strict=True)]
    must_be_close("the accuracy", subject.part.of(given.labels, given.scores), sum(right) / len(right), str(given))


@law(answers)
def nats_of_the_truth(subject: Subject, given: Answers) -> None:
    """The loss is the mean of -log softmax(scores)[class], in nats."""
    odds = np.exp(given.scores)
    chance = odds[np.arange(len(given.labels)), given.labels] / odds.sum(axis=1)
    must_be_close("the loss", subject.part.of(given.labels, given.scores), -np.log(chance).mean(), shown(chance), 1e-9)


METHOD_LAWS: Mapping[str, tuple[Law, ...]] = {"accuracy": (share_that_is_right,), "loss": (nats_of_the_truth,)}
