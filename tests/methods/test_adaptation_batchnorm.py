"""Checks of the adaptation rule that refreshes BatchNorm statistics: by them it becomes `label_shift`, or does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fedreach._util.arrays import Float32s, Floats
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.types import State
from fedreach.testing.adaptation import AdaptationFixture, Model, client_after, moments, ordinary_fixtures, when_trusted
from fedreach.testing.base import Subject, define_check, must_be_close

from .running import each_method, must_pass

CLOSE = 1e-4
"""Of a probability: statistics are float32, and logits are some tens."""


def _twin(component: Any) -> LabelShift:
    """Return the rule with the same options that refreshes nothing."""
    return LabelShift(
        component.odds, component.pseudo_counts, component.calibration, guard=False, strength=component.trust
    )


def _adapted(rule: Any, state: State, model: Model, inputs: Float32s) -> Floats:
    """Return the probabilities that a client predicts for its own inputs."""
    outputs = model.of(inputs, all_there_is=True)
    found: Floats = np.exp(rule.predict(state, client_after(rule, state, [outputs]), outputs))
    return found


def _clients(case: AdaptationFixture) -> Iterator[Float32s]:
    """Yield the inputs of each client that has several."""
    for batches in case.clients:
        if len(inputs := np.concatenate(batches)) > 1:
            yield inputs


@define_check(ordinary_fixtures)
def usual_inputs_are_adapted_by_label_shift(subject: Subject, case: AdaptationFixture) -> None:
    """A client whose inputs have the running statistics is adapted as `label_shift` adapts it, without guard."""
    component, state = subject.component, case.fitted(_twin(subject.component)).state
    for inputs in _clients(case):
        model = replace(case.model, running=moments(inputs))
        got, expected = (_adapted(rule, state, model, inputs) for rule in (component, _twin(component)))
        must_be_close("probabilities of inputs with the running statistics", got, expected, str(case), CLOSE)


@define_check(ordinary_fixtures)
def another_intensity_changes_nothing(subject: Subject, case: AdaptationFixture) -> None:
    """With strength 0 inputs alpha x + beta are predicted as x is, where a layer normalises them first."""
    component = subject.make(strength=0.0)
    state = case.fitted(component).state
    for inputs in _clients(case):
        expected = _adapted(component, state, case.model, inputs)
        for alpha, beta in ((0.5, 0.0), (1.0, 3.0), (2.0, -1.0)):
            got = _adapted(component, state, case.model, (alpha * inputs + beta).astype(np.float32))
            must_be_close(f"probabilities of {alpha:g} x + {beta:g}", got, expected, str(case), 10 * CLOSE)


@define_check(ordinary_fixtures)
def great_strength_refreshes_nothing(subject: Subject, case: AdaptationFixture) -> None:
    """As the strength grows, fit and predictions become those of `label_shift`, without guard."""
    strong, twin = subject.make(strength=1e12), _twin(subject.make())
    states = [case.fitted(rule).state for rule in (strong, twin)]
    for inputs in _clients(case):
        got, expected = (
            _adapted(rule, state, case.model, inputs) for rule, state in zip((strong, twin), states, strict=True)
        )
        must_be_close("probabilities with a strength of 1e12", got, expected, str(case), CLOSE)


@define_check(ordinary_fixtures)
def participants_refresh_too(subject: Subject, case: AdaptationFixture) -> None:
    """What participants fit is of the model as their own held-out inputs refresh it, with the strength of clients.

    With strength 0 a participant whose inputs are 2 x + 3 contributes what it does with x.
    """
    component = subject.make(strength=0.0)
    moved = [replace(one, inputs=(2 * one.inputs + 3).astype(np.float32)) for one in case.participants]
    states = [replace(case, participants=held).fitted(component).state for held in (case.participants, moved)]
    for inputs in _clients(case):
        got, expected = (_adapted(component, state, case.model, inputs) for state in reversed(states))
        must_be_close("probabilities, fitted on 2 x + 3 instead of x,", got, expected, str(case), 10 * CLOSE)


@define_check(ordinary_fixtures)
def strength_counts_inputs(subject: Subject, case: AdaptationFixture) -> None:
    """With n inputs the layer goes by w times their mean and variance + (1 - w) times the running ones, w = n/(n + s).

    As far as the client's prior and its weight are known, the rest is `label_shift`.
    """
    for strength in (2.0, 30.0):
        component = subject.make(strength=strength)
        state = case.fitted(component).state
        for inputs in _clients(case):
            w = len(inputs) / (len(inputs) + strength)
            mixed = (w * moments(inputs) + (1 - w) * case.model.running).astype(np.float32)
            client = client_after(component, state, [case.model.of(inputs, all_there_is=True)])
            own = case.model.of(inputs, all_there_is=True, statistics=mixed)
            got = component.predict(state, client, case.model.of(inputs, all_there_is=True))
            expected = _twin(component).predict(state, client_after(_twin(component), state, [own]), own)
            what = f"probabilities by {len(inputs)} inputs, with strength {strength:g},"
            must_be_close(what, np.exp(got), np.exp(expected), str(case), CLOSE)


METHOD_CHECKS = {
    "batchnorm": tuple(
        map(
            when_trusted,
            (
                usual_inputs_are_adapted_by_label_shift,
                another_intensity_changes_nothing,
                great_strength_refreshes_nothing,
                participants_refresh_too,
                strength_counts_inputs,
            ),
        )
    )
}


@each_method("adaptation", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
