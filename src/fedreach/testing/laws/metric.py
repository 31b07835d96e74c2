"""Laws of metrics: of all, and of single ones."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps

import numpy as np

from fedreach.arrays import AnyArray, Floats
from fedreach.federation.traits import Traits
from fedreach.streams import generator
from fedreach.testing.law import Law, Subject, broken, law, must_be_close, shown
from fedreach.testing.laws.any_part import Given, Outcome, Playing, options_are_all_it_is


@dataclass(frozen=True, eq=False)
class Answers(Given):
    """What a model says of some examples, and the truth."""

    labels: AnyArray  # (m,) classes, or (m, t) numbers
    scores: Floats  # (m, c), or (m, t)


def answers() -> Iterator[Answers]:
    """Yield answers of good and bad models, to one example, to examples of one class, and of many."""
    rng = generator(0, "testing answers")
    for m, c, skill in ((1, 2, 0.0), (20, 3, 0.0), (50, 4, 3.0), (200, 10, 1.0)):
        labels = rng.integers(0, c, m)
        yield Answers(f"{m} examples of {c} classes", labels, rng.standard_normal((m, c)) + skill * np.eye(c)[labels])
    yield Answers("5 examples of one class", np.zeros(5, np.int64), rng.standard_normal((5, 3)))
    labels = rng.integers(0, 2, 40)
    ties = rng.integers(0, 3, (40, 2)) + np.eye(2)[labels]
    yield Answers("40 examples of 2 classes, many with the same outputs", labels, ties)
    lacking = np.repeat([0, 3], [9, 6])
    yield Answers("15 examples of 2 of 5 classes", lacking, rng.standard_normal((15, 5)) + np.eye(5)[lacking])
    for m, t, skill in ((1, 1, 0.0), (30, 1, 0.9), (12, 3, 0.5), (200, 1, 0.0)):
        numbers = 40 + 10 * rng.standard_normal((m, t))
        noise = 10 * rng.standard_normal((m, t))
        yield Answers(f"{m} examples with {t} numbers", numbers, 40 + skill * (numbers - 40) + (1 - skill) * noise)
    yield Answers("6 examples with the same number", np.full((6, 1), 2.5), rng.standard_normal((6, 1)))


def suited(part: object, given: Answers) -> bool:
    """Say whether a metric is asked about such answers: numbers only if it needs them."""
    return Traits.of(part).needs_numbers is (given.labels.dtype.kind == "f")


def of_answers(check: Callable[[Subject, Answers], None]) -> Law:
    """Make a law that is tried on answers in classes, or in numbers where the metric needs such."""

    @wraps(check)
    def tried(subject: Subject, given: Answers) -> None:
        if suited(subject.part, given):
            check(subject, given)

    return law(answers)(tried)


@of_answers
def one_number(subject: Subject, given: Answers) -> None:
    """A metric is one number, and may be undefined, nan, but not infinite; its name can end a column's."""
    value, name = subject.part.of(given.labels.copy(), given.scores.copy()), subject.part.name
    if not isinstance(value, float | np.floating) or np.isinf(value):
        broken(f"of() must return a number that is not infinite; got {value!r}")
    if not (isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name)):
        broken(f"its name must be small letters, digits and _; got {name!r}")


@of_answers
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
        for _ in range(suited(part, given))
    ],
)

LAWS = (
    one_number,
    whatever_the_order,
    PLAYING.same_again("The same answers give the same number.", "Draw no random numbers, keep nothing in `self`."),
    PLAYING.arguments_untouched("A metric does not write to its arguments: labels and scores."),
    options_are_all_it_is,
)


@of_answers
def share_that_is_right(subject: Subject, given: Answers) -> None:
    """Accuracy is the share of examples whose class has the largest score."""
    right = [row.tolist().index(row.max()) == label for row, label in zip(given.scores, given.labels, strict=True)]
    must_be_close("the accuracy", subject.part.of(given.labels, given.scores), sum(right) / len(right), str(given))


@of_answers
def nats_of_the_truth(subject: Subject, given: Answers) -> None:
    """The loss is the mean of -log softmax(scores)[class], in nats."""
    odds = np.exp(given.scores)
    chance = odds[np.arange(len(given.labels)), given.labels] / odds.sum(axis=1)
    must_be_close("the loss", subject.part.of(given.labels, given.scores), -np.log(chance).mean(), shown(chance), 1e-9)


@of_answers
def each_class_the_same(subject: Subject, given: Answers) -> None:
    """Balanced accuracy is the mean over the classes among the labels of the share of their examples that is right."""
    said, recall = given.scores.argmax(axis=1), []
    for k in sorted(set(given.labels.tolist())):
        recall.append(np.mean([one == k for one, label in zip(said, given.labels, strict=True) if label == k]))
    must_be_close("it", subject.part.of(given.labels, given.scores), np.mean(recall), str(given))


@of_answers
def precision_and_recall(subject: Subject, given: Answers) -> None:
    """Macro F1 is the mean of the harmonic means of precision and recall, over the classes of labels or predictions."""
    pairs, found = list(zip(given.labels.tolist(), given.scores.argmax(axis=1).tolist(), strict=True)), []
    for k in sorted({k for pair in pairs for k in pair}):
        right, of_k, said = pairs.count((k, k)), sum(y == k for y, _ in pairs), sum(p == k for _, p in pairs)
        precision, recall = right / max(said, 1), right / max(of_k, 1)
        found.append(2 * precision * recall / (precision + recall) if right else 0.0)
    must_be_close("it", subject.part.of(given.labels, given.scores), np.mean(found), str(given))


@of_answers
def pairs_in_order(subject: Subject, given: Answers) -> None:
    """AUROC is the share of pairs that the probability puts in order, ties half; of class 1, or the mean over classes.

    With more than two classes it is the mean over those among the labels, each against the rest; of one class nan.
    """
    p, found = _softmax(given.scores), []
    present = sorted(set(given.labels.tolist()))
    for k in present if p.shape[1] > 2 else [1]:
        own, rest = p[given.labels == k, k], p[given.labels != k, k]
        pairs = [(a > b) + 0.5 * (a == b) for a in own for b in rest]
        found.append(np.mean(pairs) if pairs else np.nan)
    value, expected = subject.part.of(given.labels, given.scores), np.mean(found)
    if not (np.isnan(value) and np.isnan(expected)):
        must_be_close("it", value, expected, str(given))


@of_answers
def confidence_and_accuracy(subject: Subject, given: Answers) -> None:
    """The calibration error is the mean of |accuracy - mean confidence| over 15 bins, by how much they hold."""
    p = _softmax(given.scores)
    bins: dict[int, list[float]] = {}
    for row, label in zip(p, given.labels, strict=True):
        bins.setdefault(min(int(15 * row.max()), 14), []).append(float(row.argmax() == label) - row.max())
    total = sum(len(off) / len(p) * abs(np.mean(off)) for off in bins.values())
    must_be_close("it", subject.part.of(given.labels, given.scores), total, str(given))


@of_answers
def exponential_of_the_loss(subject: Subject, given: Answers) -> None:
    """The perplexity is 1 over the geometric mean of the probabilities of the true classes; c of equal scores."""
    p, part = _softmax(given.scores)[np.arange(len(given.labels)), given.labels], subject.part
    must_be_close("it", part.of(given.labels, given.scores), 1 / np.prod(p ** (1 / len(p))), str(given))
    equal = np.zeros_like(given.scores)
    must_be_close("that of equal scores", part.of(given.labels, equal), given.scores.shape[1], str(given))


@of_answers
def mean_distance(subject: Subject, given: Answers) -> None:
    """The mean absolute error is the mean of |y - z|; moved by 1, all right answers are off by 1."""
    y, z = given.labels.ravel().tolist(), given.scores.ravel().tolist()
    expected = sum(abs(a - b) for a, b in zip(y, z, strict=True)) / len(y)
    must_be_close("the error", subject.part.of(given.labels, given.scores), expected, str(given), 1e-9)
    must_be_close("the error of y + 1", subject.part.of(given.labels, given.labels + 1), 1.0, str(given), 1e-9)


@of_answers
def the_mean_explains_nothing(subject: Subject, given: Answers) -> None:
    """R2 of the mean of the targets is 0, of the targets 1; scale and origin do not matter; of equal targets nan."""
    y, z, part = given.labels, given.scores, subject.part
    if (y == y[0]).all():
        if not np.isnan(part.of(y, z)):
            broken(f"all targets are the same, and it is {part.of(y, z)} instead of nan")
        return
    mean = np.broadcast_to(y.mean(axis=0), y.shape)
    must_be_close("that of the mean", part.of(y, mean), 0.0, str(given), 1e-9)
    must_be_close("that of the targets", part.of(y, y), 1.0, str(given), 1e-9)
    must_be_close("that of 3 y - 7 and 3 z - 7", part.of(3 * y - 7, 3 * z - 7), part.of(y, z), str(given), 1e-9)
    squares, spread = ((y - z) ** 2).sum(axis=0), ((y - mean) ** 2).sum(axis=0)
    must_be_close("it", part.of(y, z), (1 - squares / spread).mean(), str(given), 1e-9)


@of_answers
def room_between_the_bounds(subject: Subject, given: Answers) -> None:
    """The disagreement is the sum over distances of the upper less the lower bound on the mean squared JSD loss."""
    part = subject.part
    p = _softmax(given.scores)[np.arange(len(given.labels)), given.labels]
    squared = (1 + 0.5 * (p * np.log2(p) - (1 + p) * np.log2(1 + p))) ** 2
    mean, deviation = squared.mean(), squared.std(ddof=1) if len(p) > 1 else 0.0
    found = 0.0
    for number in range(1, round(part.radius / part.step) + 1):
        angle = np.arccos(1 - (number * part.step) ** 2)
        below, above = (max(np.cos(angle) * x - np.sin(angle) * deviation, 0) ** 2 / x for x in (mean, 1 - mean))
        found += 1 - above - below
    must_be_close("it", part.of(given.labels, given.scores), found, str(given), 1e-9)


def _softmax(scores: Floats) -> Floats:
    odds: Floats = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: Floats = odds / odds.sum(axis=1, keepdims=True)
    return shares


METHOD_LAWS: Mapping[str, tuple[Law, ...]] = {
    "accuracy": (share_that_is_right,),
    "loss": (nats_of_the_truth,),
    "log_loss": (nats_of_the_truth,),
    "perplexity": (exponential_of_the_loss,),
    "balanced_accuracy": (each_class_the_same,),
    "macro_f1": (precision_and_recall,),
    "auroc": (pairs_in_order,),
    "calibration_error": (confidence_and_accuracy,),
    "bound_disagreement": (room_between_the_bounds,),
    "mae": (mean_distance,),
    "r2": (the_mean_explains_nothing,),
}
