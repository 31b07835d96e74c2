"""Checks of the adaptation rule that fine-tunes the last layer on a client's labelled examples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedreach._util.arrays import Floats, Ints
from fedreach._util.streams import generator
from fedreach.federation.adaptation.base import log_softmax
from fedreach.federation.types import NO_STATE, Outputs
from fedreach.testing.adaptation import AdaptationFixture, ordinary_fixtures
from fedreach.testing.base import Subject, define_check, fail, must_be_close

from .running import each_method, must_pass

CLOSE = 1e-6
"""Of a slope as a share of the largest feature, and of a probability."""


class _Labelled(NamedTuple):
    who: str
    known: Outputs
    labels: Ints  # of these
    others: Outputs


def _labelled(case: AdaptationFixture) -> Iterator[_Labelled]:
    """Yield who has labelled examples: half of what each participant holds out, and 12 at most."""
    for number, one in enumerate(case.participants, start=1):
        m = min((len(one.labels) + 1) // 2, 12)
        outputs = case.model.of(one.inputs, all_there_is=True)
        yield _Labelled(f"client {number}", outputs.at(slice(m)), one.labels[:m], outputs.at(slice(m // 2, None)))


def _with_one(outputs: Outputs) -> Floats:
    return np.column_stack([np.asarray(outputs.features), np.ones(len(outputs.logits))])


def _objective(known: Outputs, labels: Ints, head: Floats, pull: float) -> float:
    log_p = log_softmax(known.logits + _with_one(known) @ head)
    return float(-log_p[np.arange(len(labels)), labels].mean() + pull / 2 * np.square(head).sum())


@define_check(ordinary_fixtures)
def the_smallest_objective(subject: Subject, case: AdaptationFixture) -> None:
    """The head minimises (1/m) sum -log p_y + strength/(2 m) |head|^2: no slope there, and any other gives more.

    The objective is convex, so that there is one such head.
    """
    component, rng = subject.component, generator(0, "testing few labels")
    for who, known, labels, _ in _labelled(case):
        x, truth, m = _with_one(known), np.eye(case.classes)[labels], len(labels)
        pull = component.strength / m
        head = component.with_labels(NO_STATE, known, labels)["head"]
        p = np.exp(log_softmax(known.logits + x @ head))
        slope = (x.T @ (p - truth) / m + pull * head) / np.abs(x).max()
        must_be_close(f"the slope at the head of {who}", slope, np.zeros_like(head), str(case), CLOSE)
        least = _objective(known, labels, head, pull)
        for size in (0.01, 1.0):
            if _objective(known, labels, head + size * rng.standard_normal(head.shape), pull) < least:
                fail(f"the objective of {who} is {least:.6g}, and smaller at another head", str(case))


@define_check(ordinary_fixtures)
def predicted_by_the_head(subject: Subject, case: AdaptationFixture) -> None:
    """Predictions are log softmax(z + D h + d), D and d the rows of the head but the last, and the last."""
    component = subject.component
    for who, known, labels, others in _labelled(case):
        client = component.with_labels(NO_STATE, known, labels)
        expected = log_softmax(others.logits + _with_one(others) @ client["head"])
        must_be_close(
            f"the prediction of {who}", component.predict(NO_STATE, client, others), expected, str(case), 1e-9
        )


@define_check(ordinary_fixtures)
def no_order_of_labelled_examples(subject: Subject, case: AdaptationFixture) -> None:
    """The order of the labelled examples changes predictions by rounding only."""
    component = subject.component
    for who, known, labels, others in _labelled(case):
        turned = Outputs(known.logits[::-1].copy(), np.asarray(known.features)[::-1].copy())
        one, other = (
            component.with_labels(NO_STATE, known, labels),
            component.with_labels(NO_STATE, turned, labels[::-1].copy()),
        )
        a, b = (np.exp(component.predict(NO_STATE, client, others)) for client in (one, other))
        must_be_close(f"the probabilities of {who}, its examples turned round,", b, a, str(case), CLOSE)


@define_check(ordinary_fixtures)
def great_strength_is_the_model(subject: Subject, case: AdaptationFixture) -> None:
    """As the strength grows, predictions become those of the model as it is."""
    component = subject.make(strength=1e12)
    for who, known, labels, others in _labelled(case):
        found = component.predict(NO_STATE, component.with_labels(NO_STATE, known, labels), others)
        expected = np.exp(log_softmax(others.logits))
        must_be_close(f"the probabilities of {who} with strength 1e12", np.exp(found), expected, str(case), CLOSE)


METHOD_CHECKS = {
    "few_labels": (
        the_smallest_objective,
        predicted_by_the_head,
        no_order_of_labelled_examples,
        great_strength_is_the_model,
    )
}


@each_method("adaptation", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
