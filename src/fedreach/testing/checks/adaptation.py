"""Checks of adaptation rules.

What is compared is what clients predict; of a rule's state, nothing is known but that it consists of named arrays.
"""

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
"""Of a probability, where sums were taken in another order: a fit stops where the loss falls by less than 1e-8."""
ORDER = 0.3
"""Of class shares. Evidence counts inputs in the order in which they come: in 400 synthetic cases of `label_shift` the
prior moved by 0.26 at most, by more than 0.07 in 22 of them."""
NO_SHIFT = 0.1
"""Of a probability, for a client that is all participants together: what smoothing of shares and pulls may move."""


class Rule(NamedTuple):
    """A rule that participants have fitted."""

    component: Any
    case: AdaptationFixture
    state: State

    @classmethod
    def of(cls, subject: Subject, case: AdaptationFixture) -> Rule:
        """Return the rule, fitted once for all checks."""
        state = subject.once(f"fitted by {case}", lambda: case.fitted(subject.component).state)
        return cls(subject.component, case, state)

    def predict(self, inputs: Float32s, batches: Sequence[Float32s] = ()) -> Floats:
        """Return what is predicted of inputs for a client that has seen these batches."""
        batch_outputs = [self.case.outputs(self.component, batch) for batch in batches]
        client = client_after(self.component, self.state, batch_outputs)
        predicted: Floats = self.component.predict(self.state, client, self.case.outputs(self.component, inputs))
        return predicted


@define_check(adaptation_fixtures)
def log_probabilities(subject: Subject, case: AdaptationFixture) -> None:
    """Predictions are (m, c) finite float64 logarithms of probabilities that sum to 1, before the first input too."""
    for description, value in PLAYING.straight(subject, case):
        if value.dtype != np.float64 or value.ndim != 2 or value.shape[1] != case.classes:
            fail(f"{description}, of shape {value.shape} and type {value.dtype}, for {case.classes} classes")
        if not np.isfinite(value).all():
            fail(f"{description}; give a class that seems absent a small probability instead of none")
        total = np.exp(value).sum(axis=1)
        if np.abs(total - 1).max() > 1e-9:
            fail(f"{description}; the probabilities of an input sum to {shown(total)}")


@define_check(adaptation_fixtures)
def sums_of_one_shape(subject: Subject, case: AdaptationFixture) -> None:
    """Every participant contributes finite float64 arrays of the same names and shapes, however little it holds."""
    case.fitted(subject.component)


@define_check(adaptation_fixtures)
def each_input_by_itself(subject: Subject, case: AdaptationFixture) -> None:
    """What is predicted of an input does not depend on those that are predicted with it, nor on their order.

    What a client learns from its inputs it learns in `update`.
    """
    rule = Rule.of(subject, case)
    for number, batches in enumerate(case.clients, start=1):
        inputs = np.concatenate(batches)
        together = rule.predict(inputs, batches)
        turned = rule.predict(inputs[::-1].copy(), batches)[::-1]
        _alike(f"of client {number}'s inputs turned round, it predicted", turned, together, 1e-9)
        alone = rule.predict(inputs[:1], batches)
        _alike(f"of client {number}'s first input alone, it predicted", alone, together[:1], 1e-9)


@define_check(ordinary_fixtures)
def whoever_stands_where(subject: Subject, case: AdaptationFixture) -> None:
    """The order of the participants changes predictions by rounding only."""
    turned = replace(case, participants=case.participants[::-1])
    _predict_alike(subject, case, turned, "with the participants turned round")


@when_trusted
@define_check(alike_fixtures)
def whoever_holds_an_example(subject: Subject, case: AdaptationFixture) -> None:
    """Which participant holds an example out does not matter, where all trained on the same counts.

    Pooled by client instead of by example, those who hold out little would count as much as those who hold out much. A
    rule that refreshes statistics is checked on a model that uses none: whose inputs are normalized together matters.
    """
    case, holdings = replace(case, model=replace(case.model, refreshes=False)), case.participants
    inputs, labels = (np.concatenate([getattr(holding, key) for holding in holdings]) for key in ("inputs", "labels"))
    order = generator(0, "testing who holds what").permutation(len(labels))
    cuts = np.cumsum([len(holding.labels) for holding in holdings])[:-1]
    dealt = [
        Holding(inputs[rows], labels[rows], holding.counts)
        for rows, holding in zip(np.split(order, cuts), holdings, strict=True)
    ]
    _predict_alike(subject, case, replace(case, participants=dealt), "with the holdings-out examples dealt out anew")


@define_check(ordinary_fixtures)
def classes_by_any_name(subject: Subject, case: AdaptationFixture) -> None:
    """With the classes in another order, predictions are in that order, and are the same but for rounding."""
    order = np.roll(np.arange(case.classes), 1)  # each gets another name, and of two the other's
    for a, b in zip(
        PLAYING.straight(subject, case), adaptation_outcomes(subject.component, case.relabelled(order)), strict=True
    ):
        if "shares known" not in a.description:  # those would have to be put into the order, too
            who = a.description.partition(", it predicted")[0]
            _alike(f"with the classes in the order {order.tolist()} it predicted {who}", b.value, a.value[:, order])


@define_check(ordinary_fixtures)
def a_constant_in_the_logits(subject: Subject, case: AdaptationFixture) -> None:
    """A constant added to all logits of an example changes nothing: the model's probabilities are the same.

    Where a rule reads inputs, it may look at the size of logits, too: there the constant is the same for all examples.
    """
    same = subject.component.reads_inputs
    model = replace(case.model, changed=lambda logits: logits + (3.0 if same else 5 * np.sin(logits[:, :1]) - 2))
    changed = replace(case, model=model)
    _predict_alike(subject, case, changed, "with a constant added to the logits")


@when_trusted
@define_check(lopsided_fixtures)
def no_shift_no_change(subject: Subject, case: AdaptationFixture) -> None:
    """A client that is all participants together is predicted after its inputs as before them.

    Before them, predictions are those of the calibrated model. Where calibration comes with the first input, it is
    taken for a gain of adaptation; where the source prior is not that of the held-out examples, all clients are
    corrected. A rule that does not correct the model's bias says so by the trait `keeps_bias`: it is held to this with
    a calibrated model.
    """
    component = subject.component
    for federation in (calibrate(case), case)[: 1 if component.keeps_bias else 2]:
        rule, inputs = Rule(component, federation, federation.fitted(component).state), federation.pooled
        before, after = rule.predict(inputs), rule.predict(inputs, [inputs])
        what = f"of {federation}, all their inputs were predicted before and after it had learnt from them:"
        _alike(what, after, before, NO_SHIFT)


class Sealed(Outputs):
    """Outputs that fail on access to missing fields."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        fail(f"it asked for outputs.{name}; of a client that is adapted there are {', '.join(vars(self))}, no labels")


@define_check(ordinary_fixtures)
def no_labels_of_those_adapted(subject: Subject, case: AdaptationFixture) -> None:
    """Adaptation reads logits of inputs only, and features, inputs and the model where it declares that.

    Whatever else the outputs carry, such as labels, changes no prediction.
    """
    component, _, state = Rule.of(subject, case)
    outputs = case.outputs(component, np.concatenate(case.clients[0]))
    sealed = Sealed(outputs.logits, outputs.features, outputs.inputs, outputs.again, outputs.statistics)
    component.predict(state, component.update(state, component.start(state), sealed), sealed)
    if component.adapts_online:
        component.predict_online(state, component.start(state), sealed)


@define_check(ordinary_fixtures, lambda rule, _: rule.knows_prior)
def known_shares_stay_with_their_client(subject: Subject, case: AdaptationFixture) -> None:
    """What `with_prior` learns of one client does not affect another."""
    component = subject.component
    _stays(subject, case, "with_prior", lambda state, _: component.with_prior(state, uneven_shares(case.classes)))


@define_check(ordinary_fixtures, lambda rule, _: rule.learns_labels)
def known_labels_stay_with_their_client(subject: Subject, case: AdaptationFixture) -> None:
    """What `with_labels` learns of one client does not affect another. `labels` is a whole number, 0 or more."""
    component = subject.component
    if component.labels < 0:
        fail(f"`labels` must be a whole number, 0 or more; it is {component.labels!r}")
    _stays(subject, case, "with_labels", lambda state, outputs: component.with_labels(state, *label_half(outputs)))


@define_check(ordinary_fixtures, lambda rule, _: rule.knows_prior)
def known_shares_weigh(subject: Subject, case: AdaptationFixture) -> None:
    """With the shares pi, p is proportional to the calibrated model's p times pi_c / base_c, base the same for all.

    So with base itself for shares a client is predicted as before its first input.
    """
    component, c = subject.component, case.classes
    state = Rule.of(subject, case).state
    outputs = case.outputs(component, np.concatenate([np.concatenate(batches) for batches in case.clients]))
    plain = component.predict(state, component.start(state), outputs)
    ratios = []
    for prior in (np.full(c, 1 / c), uneven_shares(c)):
        ratio = component.predict(state, component.with_prior(state, prior), outputs) - plain - np.log(prior)
        ratios.append(ratio - ratio.mean(axis=1, keepdims=True))  # minus log base, but for a constant a row
    far = float(np.abs(np.concatenate(ratios) - ratios[0][0]).max())
    if far > 1e-6 * (1 + np.abs(plain).max()):
        fail(f"log p - log pi - log p of the calibrated model differs by {far:.3g} between inputs or shares")
    base = np.exp(-ratios[0][0])
    repeated = component.predict(state, component.with_prior(state, base / base.sum()), outputs)
    _alike(f"with the shares {shown(base / base.sum())}, which are base, it predicted", repeated, plain)


@define_check(ordinary_fixtures, lambda rule, _: rule.learns_labels)
def no_labels_no_change(subject: Subject, case: AdaptationFixture) -> None:
    """Without any label, `with_labels` leaves predictions as before, to the bit."""
    component, rule, inputs = subject.component, Rule.of(subject, case), np.concatenate(case.clients[0])
    outputs = case.outputs(component, inputs)
    client = component.with_labels(rule.state, outputs.at(slice(0)), np.zeros(0, np.int64))
    predicted = component.predict(rule.state, client, outputs)
    _alike("told no label, it predicted", predicted, rule.predict(inputs), 0.0)


@define_check(ordinary_fixtures)
def one_or_many_at_a_time(subject: Subject, case: AdaptationFixture) -> None:
    """How many of its inputs come at once does not matter to a client, nor how many clients learn at once.

    `update_many(state, clients, outputs)`, where there is one, returns what `update` returns for each client.
    """
    rule = Rule.of(subject, case)
    component, _, state = rule
    for number, batches in enumerate(case.clients, start=1):
        inputs = np.concatenate(batches)
        at_once = rule.predict(inputs, [inputs])
        for pieces in (batches, np.split(inputs, len(inputs))):
            what = f"client {number}, whose inputs came in {len(pieces)} pieces, predicted"
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
def the_order_of_inputs_counts_little(subject: Subject, case: AdaptationFixture) -> None:
    """In which order a client's inputs come changes the class shares that it predicts by 0.3 at most."""
    rule = Rule.of(subject, case)
    for number, batches in enumerate(case.clients, start=1):
        inputs = np.concatenate(batches)
        orders = inputs, inputs[::-1].copy()
        shares = [np.exp(rule.predict(inputs, [order])).mean(axis=0) for order in orders]
        if np.abs(shares[1] - shares[0]).max() > ORDER:
            fail(f"client {number} predicts the shares {shown(shares[0])}, and {shown(shares[1])} turned round")


@define_check(adaptation_fixtures, lambda rule, _: rule.adapts_online)
def nothing_that_comes_later(subject: Subject, case: AdaptationFixture) -> None:
    """Where inputs are predicted one after the other, none is predicted by those that come after it.

    `predict_online(state, client, outputs)` returns predictions and the client, which continues from there.
    """
    component = subject.component
    state = Rule.of(subject, case).state
    for batches in case.clients:
        inputs = np.concatenate(batches)
        together, _ = component.predict_online(state, component.start(state), case.outputs(component, inputs))
        for j in sorted({1, len(inputs) // 2, len(inputs) - 1} - {0, len(inputs)}):
            first, client = component.predict_online(state, component.start(state), case.outputs(component, inputs[:j]))
            later, _ = component.predict_online(state, client, case.outputs(component, inputs[j:]))
            _alike(f"without those after it, input {j} is predicted", first, together[:j], 1e-9)
            _alike(f"going on after input {j}, the others are predicted", later, together[j:], 1e-9)


def _stays(subject: Subject, case: AdaptationFixture, method: str, learn: Callable[[State, Outputs], State]) -> None:
    """Fail if what is learnt of one client changes what is predicted for others."""
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
    """Compare probabilities."""
    far = float(np.abs(np.exp(got) - np.exp(expected)).max()) if got.shape == expected.shape else np.inf
    if not far <= within:
        if got.shape == expected.shape:
            row = int(np.abs(np.exp(got) - np.exp(expected)).max(axis=1).argmax())
            got, expected, what = got[row], expected[row], f"{what} in row {row}"
        fail(f"{what} {shown(got)} instead of {shown(expected)}, a probability {far:.2g} apart")
