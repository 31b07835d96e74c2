"""Checks of the built-in measurements: what theory says only of one method."""

from typing import Any

import numpy as np

from fedreach._util.arrays import AnyArray, Floats
from fedreach._util.streams import generator
from fedreach.federation.types import LocalOutputs
from fedreach.testing.base import Subject, define_check, fail, must_be_close

from .running import each_method, must_pass

BATCHES = np.array([[1, -2], [0.5, 3], [2, 0], [1, 1], [4, -1]], np.float32)
IN_BATCHES = "logits [[1,-2],[.5,3]], [[2,0],[1,1]] and [[4,-1]] in batches of 2"


@define_check()
def golden_score(subject: Subject) -> None:
    """The score is the size-weighted mean over batches of E|sum of signed outputs| / (B C): .9125.

    The absolute value is taken of each draw (outside the mean over draws the score would be about 0), and all batches
    count, each by its size (the last alone gives 2, an unweighted mean 1.09375).

    Reference: specification, section 6.1
    """
    component = subject.make(outputs="logits", estimator="monte_carlo", draws=20_000, batch_size=2)
    # The standard error of a batch's score is below 0.76 / sqrt(20000) of it: five of them are 0.025.
    must_be_close("the score", _score(component, BATCHES), 0.9125, IN_BATCHES, 0.025)


@define_check()
def golden_closed_form(subject: Subject) -> None:
    """In closed form a batch's score is sqrt(2/pi) ||F|| / (B C), size-weighted over batches.

    Reference: specification, section 6.1
    """
    component = subject.make(outputs="logits", estimator="closed_form", batch_size=2)
    expected = (2 * 0.7529870416 + 2 * 0.4886025119 + 1.6448811606) / 5
    must_be_close("the score", _score(component, BATCHES), expected, IN_BATCHES, 1e-6)


@define_check()
def score_grows_with_the_outputs(subject: Subject) -> None:
    """Outputs t times as large score t times as much, and outputs of 0 score 0.

    Reference: specification, section 7
    """
    component = subject.make(outputs="logits", batch_size=2)
    one = _score(component, BATCHES)
    for t in (0.0, 3.0):
        must_be_close("the score", _score(component, t * BATCHES), t * one, f"{t:g} times the {IN_BATCHES}", 1e-6)


@define_check()
def softmax_does_not_see_shifts(subject: Subject) -> None:
    """With softmax outputs, adding a number to an example's logits changes nothing; a score is at most 1/(C sqrt B)."""
    component = subject.make(outputs="softmax", estimator="closed_form", batch_size=2)
    shifted = BATCHES + np.array([[5], [-3], [0], [100], [1]], np.float32)
    must_be_close(
        "the score", _score(component, shifted), _score(component, BATCHES), "logits shifted by example", 1e-6
    )
    certain = _score(component, np.array([[50, -50]] * 4))
    must_be_close("the score of certainty", certain, np.sqrt(2 / np.pi) / (2 * np.sqrt(2)), "4 examples, C = 2, B = 2")


@define_check()
def golden_jsd(subject: Subject) -> None:
    """JSD losses .02, .5, .9, .1 have disagreement 2.3778721899: base-2 divergence, variance with divisor m - 1.

    Reference: specification, section 3.1
    """
    wanted = np.array([0.02, 0.5, 0.9, 0.1])
    logits = np.stack([_logit_of_jsd(wanted), np.zeros(4)], axis=1)
    got = _score(subject.make(loss="jsd", radius=0.2, step=0.02, confidence=None), logits, np.zeros(4, np.int64))
    must_be_close("eta", got, 2.3778721899, "JSD losses .02, .5, .9 and .1", 1e-5)


@define_check()
def bounds_are_clamped(subject: Subject) -> None:
    """Beyond its radius the lower bound stays at 0 and the upper one at 1; the printed formulas turn back there.

    Reference: specification, section 3.1
    """
    for wrong, of, radius in ((1, 50, 0.5), (1, 50, 1.0), (45, 50, 1.0), (10, 40, 0.2)):
        right = np.where(np.arange(of)[:, None] < wrong, [-5.0, 5.0], [5.0, -5.0])
        got = _score(subject.make(loss="zero_one", radius=radius, step=radius / 10), right, np.zeros(of, np.int64))
        case = f"{wrong} of {of} examples wrong, 0-1 loss, radius {radius:g}"
        p, d = wrong / of, radius / 10 * np.arange(1, 11, dtype=np.float64)
        must_be_close("eta", got, _disagreement(p, p * (1 - p) * of / (of - 1), d).sum(), case, 1e-6)


@define_check()
def golden_error_rates(subject: Subject) -> None:
    """A client without error has eta = sum of d^2 (2 - d^2), and more errors, up to a half, give a larger one.

    Reference: specification, section 3.1 (.3039467200 without error)
    """
    etas = []
    for wrong in (0, 10, 20, 60):
        logits = np.where(np.arange(200)[:, None] < wrong, [-5.0, 5.0], [5.0, -5.0])
        etas.append(_score(subject.make(loss="zero_one"), logits, np.zeros(200, np.int64)))
    must_be_close("eta without error", etas[0], 0.30394672, "200 examples, all right", 1e-8)
    # The golden numbers for errors of 0, .05, .1 and .3 have the divisor m in the variance, so 1 % of room.
    golden = np.array([0.30394672, 1.3233460281, 1.8156892047, 2.773511073])
    if not np.allclose(etas, golden, rtol=0.01):
        fail(f"eta is {np.round(etas, 4).tolist()}, about {golden.round(4).tolist()}", "0, 5, 10 and 30 % wrong")


@define_check()
def golden_rms(subject: Subject) -> None:
    """Losses log 2 and log 4 of the broadcast model have a root mean square of 1.0960, whatever the local one says.

    Reference: Lai et al. 2021, eq. (2)
    """
    before = np.log(np.array([[0.5, 0.5, 1e-9, 1e-9], [0.25, 0.25, 0.25, 0.25]], np.float32))
    for local in (before, -before):
        outputs = LocalOutputs(local, np.array([0, 3]), before=before)
        found = subject.make().measure(outputs, generator(0, "golden"))
        must_be_close(
            "the root mean square", found, np.sqrt((np.log(2) ** 2 + np.log(4) ** 2) / 2), "log 2, log 4", 1e-6
        )


METHOD_CHECKS = {
    "wlrc": (golden_score, golden_closed_form, score_grows_with_the_outputs, softmax_does_not_see_shifts),
    "loss_rms": (golden_rms,),
    "disagreement": (golden_jsd, bounds_are_clamped, golden_error_rates),
}


def _score(component: Any, logits: AnyArray, labels: AnyArray | None = None) -> float:
    labels = np.zeros(len(logits), np.int64) if labels is None else labels
    return float(component.measure(LocalOutputs(logits.astype(np.float32), labels), generator(0, "golden")))


def _disagreement(m: float, v: float, d: Floats) -> Floats:
    """Return u - l with M = 1."""
    cosine, sine = 1 - d**2, d * np.sqrt(2 - d**2)
    high = 1 - np.maximum(cosine * (1 - m) - sine * np.sqrt(v), 0) ** 2 / (1 - m)
    low = np.maximum(cosine * m - sine * np.sqrt(v), 0) ** 2 / m
    return np.asarray(high - low)


def _logit_of_jsd(wanted: Floats) -> Floats:
    """Return the lead of the right class's logit, of two, that gives these JSD losses; by bisection, as they fall."""
    low, high = np.full(len(wanted), -40.0), np.full(len(wanted), 40.0)
    for _ in range(100):
        middle = (low + high) / 2
        p = 1 / (1 + np.exp(-middle))
        loss = 1 + 0.5 * (p * np.log2(p) - (1 + p) * np.log2(1 + p))
        low, high = np.where(loss > wanted, middle, low), np.where(loss > wanted, high, middle)
    return low


@each_method("measurement", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
