"""Checks of adaptation rules, which compare clients' predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import numpy as np

from fedreach._util.arrays import Float32s, Floats
from fedreach._util.streams import generator
from fedreach.federation.types import Outputs, State
from fedreach.testing.adaptation import (
    PLAYING,
    AdaptationFixture,
    Holding,
    adaptation_fixtures,
    adaptation_outcomes,
    alike_fixtures,
    calibrate,
    client_after,
    label_half,
    lopsided_fixtures,
    ordinary_fixtures,
    uneven_shares,
    when_trusted,
)
from fedreach.testing.base import Subject, define_check, fail, shown

ROUNDING = 1e-5
"""Maximum difference of probabilities if sums have another order; fits stop at a loss decrease below 1e-8."""
ORDER = 0.3
"""Maximum difference of class priors if inputs arrive in another order.

In 400 synthetic cases of `label_shift`, the prior changed by at most 0.26, and by more than 0.07 in 22 of them."""
NO_SHIFT = 0.1
"""Maximum change of a probability without a shift, which the smoothing of the prior can cause."""


class Rule(NamedTuple):
    """A rule after the participants have fitted it."""

    component: Any
    case: AdaptationFixture
    state: State

    @classmethod
    def of(cls, subject: Subject, case: AdaptationFixture) -> Rule:
        """Return the rule, which is fitted once for all checks."""
        state = subject.once(f"fitted by {case}", lambda: case.fitted(subject.component).state)
        return cls(subject.component, case, state)

    def predict(self, inputs: Float32s, batches: Sequence[Float32s] = ()) -> Floats:
        """Return the predictions for inputs of a client that has adapted to these batches."""
        batch_outputs = [self.case.outputs(self.component, batch) for batch in batches]
        client = client_after(self.component, self.state, batch_outputs)
        predicted: Floats = self.component.predict(self.state, client, self.case.outputs(self.component, inputs))
        return predicted


@define_check(adaptation_fixtures)
def log_probabilities(subject: Subject, case: AdaptationFixture) -> None:
    """Predictions are (m, c) finite float64 log probabilities that sum to 1, also before the first input."""
    for description, value in PLAYING.straight(subject, case):
        if value.dtype != np.float64 or value.ndim != 2 or value.shape[1] != case.classes:
            fail(f"{description}, of shape {value.shape} and type {value.dtype}, for {case.classes} classes")
        if not np.isfinite(value).all():
            fail(f"{description}; absent classes must have a small probability instead of 0")
        total = np.exp(value).sum(axis=1)
        if np.abs(total - 1).max() > 1e-9:
            fail(f"{description}; the probabilities of an input sum to {shown(total)}")


@define_check(adaptation_fixtures)
def sums_of_one_shape(subject: Subject, case: AdaptationFixture) -> None:
    """Every participant contributes finite float64 arrays with the same names and shapes, even with few examples."""
    case.fitted(subject.component)


@define_check(adaptation_fixtures)
def inputs_are_independent(subject: Subject, case: AdaptationFixture) -> None:
    """The prediction for an input does not depend on the other inputs that are predicted with it, nor on their order.

    Only `update` learns from inputs.
    """
    rule = Rule.of(subject, case)
    for number, batches in enumerate(case.clients, start=1):
        inputs = np.concatenate(batches)
        together = rule.predict(inputs, batches)
        turned = rule.predict(inputs[::-1].copy(), batches)[::-1]
        _alike(f"for client {number}'s inputs in reverse order, it predicted", turned, together, 1e-9)
        alone = rule.predict(inputs[:1], batches)
        _alike(f"for client {number}'s first input alone, it predicted", alone, together[:1], 1e-9)


@define_check(ordinary_fixtures)
def participants_in_any_order(subject: Subject, case: AdaptationFixture) -> None:
    """The order of the participants changes predictions by rounding only."""
    turned = replace(case, participants=case.participants[::-1])
    _predict_alike(subject, case, turned, "with the participants in reverse order")


@when_trusted
@define_check(alike_fixtures)
def examples_have_equal_weight(subject: Subject, case: AdaptationFixture) -> None:
    """If all participants have equal label counts, predictions do not depend on which one holds out an example.

    All held-out examples must have the same weight, independent of the number of examples of their participant. The
    model of this check uses no refreshed statistics, because these depend on the inputs that are normalized together.
    """
    case, holdings = replace(case, model=replace(case.model, refreshes=False)), case.participants
    inputs, labels = (np.concatenate([getattr(holding, key) for holding in holdings]) for key in ("inputs", "labels"))
    order = generator(0, "testing who holds what").permutation(len(labels))
    cuts = np.cumsum([len(holding.labels) for holding in holdings])[:-1]
    dealt = [
        Holding(inputs[rows], labels[rows], holding.counts)
        for rows, holding in zip(np.split(order, cuts), holdings, strict=True)
    ]
    _predict_alike(subject, case, replace(case, participants=dealt), "with the held-out examples redistributed")


@define_check(ordinary_fixtures)
def classes_in_any_order(subject: Subject, case: AdaptationFixture) -> None:
    """With the classes in another order, predictions have that order and change by rounding only."""
    order = np.roll(np.arange(case.classes), 1)
    for a, b in zip(
        PLAYING.straight(subject, case), adaptation_outcomes(subject.component, case.relabel(order)), strict=True
    ):
        if "known prior" not in a.description:  # the known prior would need the same order
            who = a.description.partition(", it predicted")[0]
            _alike(f"with the classes in the order {order.tolist()} it predicted {who}", b.value, a.value[:, order])


@define_check(ordinary_fixtures)
def a_constant_in_the_logits(subject: Subject, case: AdaptationFixture) -> None:
    """A constant added to all logits of an example does not change predictions, because probabilities stay the same.

    A rule that reads inputs may use the size of the logits. For such a rule, the constant is the same for all examples.
    """
    same = subject.component.reads_inputs
    model = replace(case.model, changed=lambda logits: logits + (3.0 if same else 5 * np.sin(logits[:, :1]) - 2))
    changed = replace(case, model=model)
    _predict_alike(subject, case, changed, "with a constant added to the logits")


@when_trusted
@define_check(lopsided_fixtures)
def no_shift_no_change(subject: Subject, case: AdaptationFixture) -> None:
    """For a client with the pooled data of all participants, adaptation hardly changes predictions.

    Predictions before the first input must equal the predictions of the calibrated model. Otherwise, calibration would
    count as a gain of adaptation. A rule that does not correct the model's bias declares the attribute `keeps_bias`,
    and is checked with a calibrated model.
    """
    component = subject.component
    for federation in (calibrate(case), case)[: 1 if component.keeps_bias else 2]:
        rule, inputs = Rule(component, federation, federation.fitted(component).state), federation.pooled
        before, after = rule.predict(inputs), rule.predict(inputs, [inputs])
        what = f"for {federation}, predictions for all held-out inputs before and after adaptation to them:"
        _alike(what, after, before, NO_SHIFT)


class Sealed(Outputs):
    """Outputs that fail the check on access to other fields."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        fail(f"it read outputs.{name}; the outputs of unseen clients have {', '.join(vars(self))}, but no labels")


@define_check(ordinary_fixtures)
def no_labels_of_unseen_clients(subject: Subject, case: AdaptationFixture) -> None:
    """Adaptation reads only logits and, if it declares them, features, inputs and the model.

    Labels and other fields of the outputs are not available for unseen clients.
    """
    component, _, state = Rule.of(subject, case)
    outputs = case.outputs(component, np.concatenate(case.clients[0]))
    sealed = Sealed(outputs.logits, outputs.features, outputs.inputs, outputs.again, outputs.statistics)
    component.predict(state, component.update(state, component.start(state), sealed), sealed)
    if component.adapts_online:
        component.predict_online(state, component.start(state), sealed)


@define_check(ordinary_fixtures, lambda rule, _: rule.knows_prior)
def known_prior_affects_one_client(subject: Subject, case: AdaptationFixture) -> None:
    """A prior passed to `with_prior` for one client does not affect other clients."""
    component = subject.component
    _stays(subject, case, "with_prior", lambda state, _: component.with_prior(state, uneven_shares(case.classes)))


@define_check(ordinary_fixtures, lambda rule, _: rule.learns_labels)
def known_labels_affect_one_client(subject: Subject, case: AdaptationFixture) -> None:
    """Labels passed to `with_labels` for one client do not affect other clients; `labels` is at least 0."""
    component = subject.component
    if component.labels < 0:
        fail(f"`labels` must be a whole number of at least 0; got {component.labels!r}")
    _stays(subject, case, "with_labels", lambda state, outputs: component.with_labels(state, *label_half(outputs)))


@define_check(ordinary_fixtures, lambda rule, _: rule.knows_prior)
def known_prior_reweights(subject: Subject, case: AdaptationFixture) -> None:
    """With a known prior pi, p_c is proportional to the calibrated model's p_c times pi_c / base_c.

    The base is the same for all clients. With the base as known prior, predictions therefore equal the predictions
    before the first input.
    """
    component, c = subject.component, case.classes
    state = Rule.of(subject, case).state
    outputs = case.outputs(component, np.concatenate([np.concatenate(batches) for batches in case.clients]))
    plain = component.predict(state, component.start(state), outputs)
    ratios = []
    for prior in (np.full(c, 1 / c), uneven_shares(c)):
        ratio = component.predict(state, component.with_prior(state, prior), outputs) - plain - np.log(prior)
        ratios.append(ratio - ratio.mean(axis=1, keepdims=True))  # minus log base, up to a constant per row
    far = float(np.abs(np.concatenate(ratios) - ratios[0][0]).max())
    if far > 1e-6 * (1 + np.abs(plain).max()):
        fail(f"log p - log pi - log p of the calibrated model differs by {far:.3g} between inputs or priors")
    base = np.exp(-ratios[0][0])
    repeated = component.predict(state, component.with_prior(state, base / base.sum()), outputs)
    _alike(f"with the base as known prior, {shown(base / base.sum())}, it predicted", repeated, plain)


@define_check(ordinary_fixtures, lambda rule, _: rule.learns_labels)
def no_labels_no_change(subject: Subject, case: AdaptationFixture) -> None:
    """Without any labels, `with_labels` does not change any bit of a prediction."""
    component, rule, inputs = subject.component, Rule.of(subject, case), np.concatenate(case.clients[0])
    outputs = case.outputs(component, inputs)
    client = component.with_labels(rule.state, outputs.at(slice(0)), np.zeros(0, np.int64))
    predicted = component.predict(rule.state, client, outputs)
    _alike("with no known labels, it predicted", predicted, rule.predict(inputs), 0.0)


@define_check(ordinary_fixtures)
def batches_do_not_matter(subject: Subject, case: AdaptationFixture) -> None:
    """Neither the sizes of a client's batches nor the number of clients that adapt at once changes predictions.

    `update_many(state, clients, outputs)` returns the result of `update` for each client.
    """
    rule = Rule.of(subject, case)
    component, _, state = rule
    for number, batches in enumerate(case.clients, start=1):
        inputs = np.concatenate(batches)
        at_once = rule.predict(inputs, [inputs])
        for pieces in (batches, np.split(inputs, len(inputs))):
            what = f"client {number}, whose inputs arrived in {len(pieces)} batches, predicted"
            _alike(what, rule.predict(inputs, pieces), at_once)
    everything = [case.outputs(component, np.concatenate(batches)) for batches in case.clients]
    clients = [component.start(state) for _ in everything]
    for _ in range(2):
        alone = [component.update(state, client, batch) for client, batch in zip(clients, everything, strict=True)]
        clients = component.update_many(state, clients, everything)
        for number, (a, b, outputs) in enumerate(zip(clients, alone, everything, strict=True), start=1):
            what = f"after `update_many`, client {number} predicted"
            _alike(what, component.predict(state, a, outputs), component.predict(state, b, outputs))


@define_check(ordinary_fixtures)
def order_of_inputs_matters_little(subject: Subject, case: AdaptationFixture) -> None:
    """The order of a client's inputs changes its mean predicted probabilities by at most 0.3."""
    rule = Rule.of(subject, case)
    for number, batches in enumerate(case.clients, start=1):
        inputs = np.concatenate(batches)
        orders = inputs, inputs[::-1].copy()
        shares = [np.exp(rule.predict(inputs, [order])).mean(axis=0) for order in orders]
        if np.abs(shares[1] - shares[0]).max() > ORDER:
            fail(f"client {number} predicts the means {shown(shares[0])}, and {shown(shares[1])} in reverse order")


@define_check(adaptation_fixtures, lambda rule, _: rule.adapts_online)
def later_inputs_change_nothing(subject: Subject, case: AdaptationFixture) -> None:
    """In online prediction, later inputs do not change the prediction for an input.

    `predict_online(state, client, outputs)` returns the predictions and the client's new state.
    """
    component = subject.component
    state = Rule.of(subject, case).state
    for batches in case.clients:
        inputs = np.concatenate(batches)
        together, _ = component.predict_online(state, component.start(state), case.outputs(component, inputs))
        for j in sorted({1, len(inputs) // 2, len(inputs) - 1} - {0, len(inputs)}):
            first, client = component.predict_online(state, component.start(state), case.outputs(component, inputs[:j]))
            later, _ = component.predict_online(state, client, case.outputs(component, inputs[j:]))
            _alike(f"without the later inputs, the first {j} inputs are predicted", first, together[:j], 1e-9)
            _alike(f"continued after input {j}, the later inputs are predicted", later, together[j:], 1e-9)


def _stays(subject: Subject, case: AdaptationFixture, method: str, learn: Callable[[State, Outputs], State]) -> None:
    """Fail if learning about one client changes predictions for others."""
    rule, inputs = Rule.of(subject, case), np.concatenate(case.clients[0])
    outputs = case.outputs(subject.component, inputs)
    before = [rule.predict(inputs), rule.predict(inputs, [inputs])]
    subject.component.predict(rule.state, learn(rule.state, outputs), outputs)
    after = [rule.predict(inputs), rule.predict(inputs, [inputs])]
    for a, b in zip(before, after, strict=True):
        _alike(f"after `{method}` for another client, it predicted", b, a, 0.0)


def _predict_alike(subject: Subject, case: AdaptationFixture, changed: AdaptationFixture, how: str) -> None:
    for a, b in zip(PLAYING.straight(subject, case), adaptation_outcomes(subject.component, changed), strict=True):
        _alike(f"{how}, it predicted {a.description.partition(', it predicted')[0]}", b.value, a.value)


def _alike(what: str, got: Floats, expected: Floats, within: float = ROUNDING) -> None:
    """Fail unless the probabilities agree."""
    far = float(np.abs(np.exp(got) - np.exp(expected)).max()) if got.shape == expected.shape else np.inf
    if not far <= within:
        if got.shape == expected.shape:
            row = int(np.abs(np.exp(got) - np.exp(expected)).max(axis=1).argmax())
            got, expected, what = got[row], expected[row], f"{what} in row {row}"
        fail(f"{what} {shown(got)} instead of {shown(expected)}, with probabilities that differ by {far:.2g}")
