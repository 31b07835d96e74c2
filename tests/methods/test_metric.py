"""Checks of the built-in metrics: what theory says only of one method."""

import numpy as np

from fedreach._util.arrays import Floats
from fedreach.testing.base import Subject, fail, must_be_close, shown
from fedreach.testing.checks.metric import Answers, of_answers

from .running import each_method, must_pass


@of_answers
def share_that_is_right(subject: Subject, case: Answers) -> None:
    """Accuracy is the share of examples whose class has the largest score."""
    right = [row.tolist().index(row.max()) == label for row, label in zip(case.scores, case.labels, strict=True)]
    must_be_close("the accuracy", subject.component.of(case.labels, case.scores), sum(right) / len(right), str(case))


@of_answers
def nats_of_the_truth(subject: Subject, case: Answers) -> None:
    """The loss is the mean of -log softmax(scores)[class], in nats."""
    odds = np.exp(case.scores)
    chance = odds[np.arange(len(case.labels)), case.labels] / odds.sum(axis=1)
    must_be_close(
        "the loss", subject.component.of(case.labels, case.scores), -np.log(chance).mean(), shown(chance), 1e-9
    )


@of_answers
def each_class_the_same(subject: Subject, case: Answers) -> None:
    """Balanced accuracy is the mean over the classes among the labels of the share of their examples that is right."""
    said, recall = case.scores.argmax(axis=1), []
    for k in sorted(set(case.labels.tolist())):
        recall.append(np.mean([one == k for one, label in zip(said, case.labels, strict=True) if label == k]))
    must_be_close("it", subject.component.of(case.labels, case.scores), np.mean(recall), str(case))


@of_answers
def precision_and_recall(subject: Subject, case: Answers) -> None:
    """Macro F1 is the mean of the harmonic means of precision and recall, over the classes of labels or predictions."""
    pairs, found = list(zip(case.labels.tolist(), case.scores.argmax(axis=1).tolist(), strict=True)), []
    for k in sorted({k for pair in pairs for k in pair}):
        right, of_k, said = pairs.count((k, k)), sum(y == k for y, _ in pairs), sum(p == k for _, p in pairs)
        precision, recall = right / max(said, 1), right / max(of_k, 1)
        found.append(2 * precision * recall / (precision + recall) if right else 0.0)
    must_be_close("it", subject.component.of(case.labels, case.scores), np.mean(found), str(case))


@of_answers
def pairs_in_order(subject: Subject, case: Answers) -> None:
    """AUROC is the share of pairs that the probability puts in order, ties half; of class 1, or the mean over classes.

    With more than two classes it is the mean over those among the labels, each against the rest; of one class nan.
    """
    p, found = _softmax(case.scores), []
    present = sorted(set(case.labels.tolist()))
    for k in present if p.shape[1] > 2 else [1]:
        own, rest = p[case.labels == k, k], p[case.labels != k, k]
        pairs = [(a > b) + 0.5 * (a == b) for a in own for b in rest]
        found.append(np.mean(pairs) if pairs else np.nan)
    value, expected = subject.component.of(case.labels, case.scores), np.mean(found)
    if not (np.isnan(value) and np.isnan(expected)):
        must_be_close("it", value, expected, str(case))


@of_answers
def confidence_and_accuracy(subject: Subject, case: Answers) -> None:
    """The calibration error is the mean of |accuracy - mean confidence| over 15 bins, by how much they hold."""
    p = _softmax(case.scores)
    bins: dict[int, list[float]] = {}
    for row, label in zip(p, case.labels, strict=True):
        bins.setdefault(min(int(15 * row.max()), 14), []).append(float(row.argmax() == label) - row.max())
    total = sum(len(off) / len(p) * abs(np.mean(off)) for off in bins.values())
    must_be_close("it", subject.component.of(case.labels, case.scores), total, str(case))


@of_answers
def exponential_of_the_loss(subject: Subject, case: Answers) -> None:
    """The perplexity is 1 over the geometric mean of the probabilities of the true classes; c of equal scores."""
    p = _softmax(case.scores)[np.arange(len(case.labels)), case.labels]
    must_be_close("it", subject.component.of(case.labels, case.scores), 1 / np.prod(p ** (1 / len(p))), str(case))
    equal = np.zeros_like(case.scores)
    must_be_close("that of equal scores", subject.component.of(case.labels, equal), case.scores.shape[1], str(case))


@of_answers
def mean_distance(subject: Subject, case: Answers) -> None:
    """The mean absolute error is the mean of |y - z|; moved by 1, all right answers are off by 1."""
    y, z = case.labels.ravel().tolist(), case.scores.ravel().tolist()
    expected = sum(abs(a - b) for a, b in zip(y, z, strict=True)) / len(y)
    must_be_close("the error", subject.component.of(case.labels, case.scores), expected, str(case), 1e-9)
    must_be_close("the error of y + 1", subject.component.of(case.labels, case.labels + 1), 1.0, str(case), 1e-9)


@of_answers
def the_mean_explains_nothing(subject: Subject, case: Answers) -> None:
    """R2 of the mean of the targets is 0, of the targets 1; scale and origin do not matter; of equal targets nan."""
    y, z, component = case.labels, case.scores, subject.component
    if (y == y[0]).all():
        if not np.isnan(component.of(y, z)):
            fail(f"all targets are the same, and it is {component.of(y, z)} instead of nan")
        return
    mean = np.broadcast_to(y.mean(axis=0), y.shape)
    must_be_close("that of the mean", component.of(y, mean), 0.0, str(case), 1e-9)
    must_be_close("that of the targets", component.of(y, y), 1.0, str(case), 1e-9)
    must_be_close(
        "that of 3 y - 7 and 3 z - 7", component.of(3 * y - 7, 3 * z - 7), component.of(y, z), str(case), 1e-9
    )
    squares, spread = ((y - z) ** 2).sum(axis=0), ((y - mean) ** 2).sum(axis=0)
    must_be_close("it", component.of(y, z), (1 - squares / spread).mean(), str(case), 1e-9)


@of_answers
def room_between_the_bounds(subject: Subject, case: Answers) -> None:
    """The disagreement is the sum over distances of the upper less the lower bound on the mean squared JSD loss."""
    component = subject.component
    p = _softmax(case.scores)[np.arange(len(case.labels)), case.labels]
    squared = (1 + 0.5 * (p * np.log2(p) - (1 + p) * np.log2(1 + p))) ** 2
    mean, deviation = squared.mean(), squared.std(ddof=1) if len(p) > 1 else 0.0
    found = 0.0
    for number in range(1, round(component.radius / component.step) + 1):
        angle = np.arccos(1 - (number * component.step) ** 2)
        below, above = (max(np.cos(angle) * x - np.sin(angle) * deviation, 0) ** 2 / x for x in (mean, 1 - mean))
        found += 1 - above - below
    must_be_close("it", component.of(case.labels, case.scores), found, str(case), 1e-9)


def _softmax(scores: Floats) -> Floats:
    odds: Floats = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: Floats = odds / odds.sum(axis=1, keepdims=True)
    return shares


METHOD_CHECKS = {
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


@each_method("metric", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
