"""Checks of the adaptation rule that learns from a few labels: its prior is worked out once more, plainly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedreach._util.arrays import Ints
from fedreach._util.streams import generator
from fedreach.federation.adaptation.base import log_softmax
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.types import Outputs
from fedreach.testing.adaptation import AdaptationFixture, ordinary_fixtures, when_trusted
from fedreach.testing.base import Subject, define_check, must_be_close

from .running import each_method, must_pass

CLOSE = 1e-6
FEW = 9
"""Labels, with which the last layer stays as it is."""


class _Labeled(NamedTuple):
    who: str
    outputs: Outputs
    labels: Ints
    inputs: Outputs


def _labeled(case: AdaptationFixture, most: int = FEW) -> Iterator[_Labeled]:
    """Yield clients with up to nine labeled examples, and their other inputs, at least one of each."""
    for number, one in enumerate(case.participants, start=1):
        m = min(len(one.labels) - 1, most)
        if m > 0:
            outputs = case.model.of(one.inputs, all_there_is=True)
            yield _Labeled(f"client {number}", outputs.at(slice(m)), one.labels[:m], outputs.at(slice(m, None)))


@define_check(ordinary_fixtures)
def counts_shrunk_to_the_class_shares(subject: Subject, case: AdaptationFixture) -> None:
    """With counts n of m labels, log p = a z + b + log((n + A base)/(m + A)) - log base but for a constant."""
    component = subject.component
    state = case.fitted(component).state
    base, A = state["base"], state["pseudo_counts"]
    for who, outputs, labels, inputs in _labeled(case):
        counts = np.bincount(labels, minlength=case.classes)
        own = (counts + A * base) / (len(labels) + A)
        expected = log_softmax(state["a"] * inputs.logits + state["b"] + np.log(own) - np.log(base))
        found = component.predict(state, component.with_labels(state, outputs, labels), inputs)
        must_be_close(f"the prediction of {who}", found, expected, str(case), CLOSE)


@define_check(ordinary_fixtures)
def inputs_go_on_from_labels(subject: Subject, case: AdaptationFixture) -> None:
    """With inputs, too, it is `label_shift` with (n + A base)/(m + A) in place of base, and m + A in place of A."""
    component = replace(subject.component, guard=False)
    state = case.fitted(component).state
    base, A = state["base"], state["pseudo_counts"]
    for who, outputs, labels, inputs in _labeled(case):
        own = (np.bincount(labels, minlength=case.classes) + A * base) / (len(labels) + A)
        moved = {**state, "base": own, "pseudo_counts": A + len(labels), "b": state["b"] + np.log(own) - np.log(base)}
        rule = LabelShift(component.odds, guard=False, strength=1.0)
        expected = rule.predict(moved, rule.update(moved, rule.start(moved), inputs), inputs)
        told = component.learn_labels(state, component.start(state), outputs, labels)
        found = component.predict(state, component.update(state, told, inputs), inputs)
        must_be_close(f"the prediction of {who}", np.exp(found), np.exp(expected), str(case), CLOSE)


@define_check(ordinary_fixtures)
def labels_in_any_order(subject: Subject, case: AdaptationFixture) -> None:
    """Labels and inputs in another order, in pieces, or labels of inputs that were seen before: the same bits."""
    component, state = subject.component, case.fitted(subject.component).state
    for who, outputs, labels, inputs in _labeled(case, 40):
        told = component.learn_labels(state, component.start(state), outputs, labels)
        expected = component.predict(state, component.update(state, told, inputs), inputs)
        order = generator(0, "testing an order of labels").permutation(len(labels))
        turned = Outputs(outputs.logits[order], np.asarray(outputs.features)[order])
        late = component.update(state, component.update(state, component.start(state), inputs), outputs)
        for m in range(len(labels)):
            row = slice(m, m + 1)
            late = component.learn_labels(state, late, turned.at(row), labels[order][row])
        must_be_close(f"the prediction of {who}", component.predict(state, late, inputs), expected, str(case), 0.0)


@define_check(ordinary_fixtures)
def without_labels_it_is_label_shift(subject: Subject, case: AdaptationFixture) -> None:
    """A client that knows no label is adapted by `label_shift`, to the bit."""
    component, state = subject.component, case.fitted(subject.component).state
    rule = LabelShift(
        component.odds, component.pseudo_counts, guard=component.guard, repairs=False, strength=component.strength
    )
    for batches in case.clients:
        outputs = case.model.of(np.concatenate(batches), all_there_is=True)
        expected = rule.predict(state, rule.update(state, rule.start(state), outputs), outputs)
        found = component.predict(state, component.update(state, component.start(state), outputs), outputs)
        must_be_close("the prediction", found, expected, str(case), 0.0)


METHOD_CHECKS = {
    "few_shot": (
        when_trusted(counts_shrunk_to_the_class_shares),
        when_trusted(inputs_go_on_from_labels),
        when_trusted(labels_in_any_order),
        without_labels_it_is_label_shift,
    )
}


@each_method("adaptation", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
