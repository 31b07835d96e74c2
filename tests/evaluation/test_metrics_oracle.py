"""Metrics beside scikit-learn's of the same name, on random answers and on degenerate ones."""

import warnings

import numpy as np
import pytest
from sklearn import metrics as sk

from fedreach.evaluation.metrics import (
    AUROC,
    METRICS,
    BalancedAccuracy,
    FunctionMetric,
    MacroF1,
    MeanLoss,
    Miscalibration,
)
from fedreach.evaluation.modes import score
from fedreach.federation.adaptation.base import log_softmax

RNG = np.random.default_rng(7)


def case(name, labels, scores):
    return pytest.param(np.asarray(labels), np.asarray(scores, np.float64), id=name)


def random(m, c, skill, *, ties=False):
    labels = RNG.integers(0, c, m)
    scores = RNG.integers(-1, 2, (m, c)) if ties else RNG.standard_normal((m, c))
    return labels, scores + skill * np.eye(c)[labels]


CASES = [
    *(
        case(f"{m} of {c}, skill {skill}, ties {ties}", *random(m, c, skill, ties=ties))
        for m, c in ((7, 2), (60, 2), (30, 3), (300, 10))
        for skill in (0, 2)
        for ties in (False, True)
    ),
    case("a class without a label", RNG.integers(0, 3, 40), RNG.standard_normal((40, 5))),
    case("a class that is never predicted", [0, 1, 2, 2, 1], RNG.standard_normal((5, 3)) - np.array([9, 0, 0])),
    case("one class among labels", np.full(9, 1), RNG.standard_normal((9, 3))),
    case("one of two classes", np.zeros(9, int), RNG.standard_normal((9, 2))),
    case("one class predicted", [0, 1, 1, 2], RNG.standard_normal((4, 3)) + np.array([0, 30, 0])),
    case("one example, right", [1], [[0.0, 2.0, 1.0]]),
    case("one example, wrong", [0], [[0.0, 2.0, 1.0]]),
    case("all outputs the same", [0, 1, 1, 0], np.zeros((4, 2))),
    case("two examples, in order", [0, 1], [[1.0, 0.0], [0.0, 1.0]]),
    case("sure", [0, 1, 0, 1], [[900.0, 0.0], [0.0, 900.0], [800.0, 0.0], [900.0, 0.0]]),
]


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn says what is degenerate
        yield


def probabilities(scores):
    return np.exp(log_softmax(scores))


@pytest.mark.parametrize(("labels", "scores"), CASES)
def test_balanced_accuracy(labels, scores):
    expected = sk.balanced_accuracy_score(labels, scores.argmax(axis=1))
    assert BalancedAccuracy().of(labels, scores) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("labels", "scores"), CASES)
def test_macro_f1(labels, scores):
    expected = sk.f1_score(labels, scores.argmax(axis=1), average="macro")
    assert MacroF1().of(labels, scores) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("labels", "scores"), CASES)
def test_auroc(labels, scores):
    p, there = probabilities(scores), np.unique(labels)
    if len(there) == 1:
        expected = np.nan
    elif scores.shape[1] == 2:
        expected = sk.roc_auc_score(labels, p[:, 1])
    else:
        expected = np.mean([sk.roc_auc_score(labels == k, p[:, k]) for k in there])
        if len(there) == scores.shape[1]:
            assert expected == pytest.approx(sk.roc_auc_score(labels, p, multi_class="ovr"), abs=1e-12)
    assert AUROC().of(labels, scores) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(("labels", "scores"), CASES)
def test_log_loss(labels, scores):
    assert METRICS["log_loss"] is MeanLoss
    shallow = np.clip(scores, -20, 20)  # scikit-learn raises probabilities below 2e-16
    expected = sk.log_loss(labels, probabilities(shallow), labels=np.arange(scores.shape[1]))
    assert MeanLoss().of(labels, shallow) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("labels", "scores"), CASES)
def test_calibration_error(labels, scores):
    """There is none in scikit-learn: by its definition, bin by bin, and as `modes` has it for who is adapted."""
    p = probabilities(scores)
    confidence, right = np.minimum(p.max(axis=1), 1.0), p.argmax(axis=1) == labels
    bins = np.minimum(np.floor(confidence * 15).astype(int), 14)
    expected = sum(abs((right[bins == b] - confidence[bins == b]).sum()) for b in range(15)) / len(labels)
    assert Miscalibration().of(labels, scores) == pytest.approx(expected, abs=1e-12)
    assert score(log_softmax(scores), labels).calibration_error == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(("labels", "scores"), CASES)
def test_functions_of_scikit_learn_can_be_called_as_they_are(labels, scores):
    def top_two(y_true, scores):
        return sk.top_k_accuracy_score(y_true, scores, k=2, labels=np.arange(scores.shape[1]))

    if scores.shape[1] > 2:
        order = np.argsort(scores, axis=1, kind="stable")[:, ::-1][:, :2]
        expected = np.mean([label in best for label, best in zip(labels, order, strict=True)])
        if len(np.unique(probabilities(scores))) == scores.size:  # else which is second is anybody's choice
            assert FunctionMetric(top_two).of(labels, scores) == pytest.approx(expected)
    if len(np.unique(labels)) == scores.shape[1]:
        shallow = np.clip(scores, -20, 20)
        assert FunctionMetric(sk.log_loss).of(labels, shallow) == pytest.approx(MeanLoss().of(labels, shallow))
    assert FunctionMetric(sk.log_loss).lower_is_better
    assert FunctionMetric(sk.log_loss).name == "log_loss"
