"""Checks of serving rules.

What is compared is what clients predict; of a rule's state, nothing is known but that it consists of named arrays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.federation.traits import Traits
from fedreach.federation.values import Outputs, State
from fedreach.streams import generator
from fedreach.testing.base import Subject, define_check, fail, shown
from fedreach.testing.checks.common import as_it_is, options_are_all_it_is
from fedreach.testing.served import (
    PLAYING,
    Clientele,
    Holding,
    Kept,
    alike_worlds,
    calibrated,
    labelled,
    learnt,
    lopsided_worlds,
    ordinary_worlds,
    play,
    served_worlds,
    uneven,
    when_trusted,
)

ROUNDING = 1e-5
"""Of a probability, where sums were taken in another order: a fit stops where the loss falls by less than 1e-8."""
ORDER = 0.3
"""Of class shares. Evidence counts inputs in the order in which they come: in 400 made-up cases of `label_shift` the
prior moved by .26 at most, by more than .07 in 22 of them."""
NO_SHIFT = 0.1
"""Of a probability, for a client that is all participants together: what smoothing of shares and pulls may move."""


@define_check(served_worlds)
def log_probabilities(subject: Subject, given: Clientele) -> None:
    """Predictions are (m, c) finite float64 logarithms of probabilities that sum to 1, before the first input too."""
    for said, value in PLAYING.straight(subject, given):
        if value.dtype != np.float64 or value.ndim != 2 or value.shape[1] != given.classes:
            fail(f"{said}, of shape {value.shape} and type {value.dtype}, for {given.classes} classes")
        if not np.isfinite(value).all():
            fail(f"{said}; give a class that seems absent a small probability instead of none")
        total = np.exp(value).sum(axis=1)
        if np.abs(total - 1).max() > 1e-9:
            fail(f"{said}; the probabilities of an input sum to {shown(total)}")


@define_check(served_worlds)
def sums_of_one_shape(subject: Subject, given: Clientele) -> None:
    """Every participant contributes finite float64 arrays of the same names and shapes, however little it holds."""
    part, shapes = subject.component, list[dict[str, tuple[int, ...]]]()

    class Noting(Kept):
        def contribute(self, query: State, outputs: Outputs, labels: Ints, counts: Floats) -> State:
            answer: State = part.contribute(query, outputs, labels, counts)
            shapes.append({name: np.shape(values) for name, values in answer.items()})
            return answer

    given.fitted(Noting(part, as_it_is))
    k = len(given.participants)
    for i, found in enumerate(shapes):
        if found != shapes[i - i % k]:
            fail(f"participant {i % k + 1} sent {found}, and the first one {shapes[i - i % k]}")


@define_check(served_worlds)
def contributions_are_possible(subject: Subject, given: Clientele) -> None:
    """A rule that says which contributions are impossible allows those of its own participants, and their sums."""
    part = subject.component
    if not Traits.of(part).knows_possible:
        return
    said = list[tuple[State, State, int, int]]()

    class Noting(Kept):
        def contribute(self, query: State, outputs: Outputs, labels: Ints, counts: Floats) -> State:
            answer: State = part.contribute(query, outputs, labels, counts)
            said.append((query, answer, len(labels), int(counts.sum())))
            return answer

    given.fitted(Noting(part, as_it_is))
    k = len(given.participants)
    for i, (query, answer, held_out, trained) in enumerate(said):
        if not part.possible(query, answer, held_out, trained):
            fail(f"`possible` refuses what participant {i % k + 1} contributed: {shown(answer)}")
        if i % k == k - 1:
            mine = said[i - k + 1 : i + 1]
            total = {name: sum(one[1][name] for one in mine) for name in answer}
            if not part.possible(query, total, sum(one[2] for one in mine), sum(one[3] for one in mine)):
                fail(f"`possible` refuses the sum of what all contributed: {shown(total)}")


@define_check(served_worlds)
def each_input_by_itself(subject: Subject, given: Clientele) -> None:
    """What is predicted of an input does not depend on those that are predicted with it, nor on their order.

    What a client learns from its inputs it learns in `update`.
    """
    part, state = subject.component, _state(subject, given)
    for number, batches in enumerate(given.clients, start=1):
        client = learnt(part, state, [given.outputs(part, batch) for batch in batches])
        inputs = np.concatenate(batches)
        together = part.predict(state, client, given.outputs(part, inputs))
        turned = part.predict(state, client, given.outputs(part, inputs[::-1].copy()))[::-1]
        alone = part.predict(state, client, given.outputs(part, inputs[:1]))
        _alike(f"of client {number}'s inputs turned round, it predicted", turned, together, 1e-9)
        _alike(f"of client {number}'s first input alone, it predicted", alone, together[:1], 1e-9)


@define_check(ordinary_worlds)
def whoever_stands_where(subject: Subject, given: Clientele) -> None:
    """The order of the participants changes predictions by rounding only."""
    turned = replace(given, participants=given.participants[::-1])
    _predict_alike(subject, given, turned, "with the participants turned round")


@define_check(alike_worlds)
def whoever_holds_an_example(subject: Subject, given: Clientele) -> None:
    """Which participant holds an example out does not matter, where all trained on the same counts.

    Pooled by client instead of by example, those who hold out little would count as much as those who hold out much. A
    rule that refreshes statistics is tried on a model that goes by none: whose inputs are normalised together matters.
    """
    given, held = replace(given, model=replace(given.model, refreshes=False)), given.participants
    inputs, labels = (np.concatenate([getattr(one, key) for one in held]) for key in ("inputs", "labels"))
    order = generator(0, "testing who holds what").permutation(len(labels))
    cuts = np.cumsum([len(one.labels) for one in held])[:-1]
    dealt = [
        Holding(inputs[part], labels[part], one.counts) for part, one in zip(np.split(order, cuts), held, strict=True)
    ]
    _predict_alike(subject, given, replace(given, participants=dealt), "with the held-out examples dealt out anew")


@define_check(ordinary_worlds)
def classes_by_any_name(subject: Subject, given: Clientele) -> None:
    """With the classes in another order, predictions stand in that order, and are the same but for rounding."""
    order = np.roll(np.arange(given.classes), 1)  # each gets another name, and of two the other's
    for a, b in zip(PLAYING.straight(subject, given), play(subject.component, given.relabelled(order)), strict=True):
        if "shares known" not in a.said:  # those would have to be put into the order, too
            who = a.said.partition(", it predicted")[0]
            _alike(f"with the classes in the order {order.tolist()} it predicted {who}", b.value, a.value[:, order])


@define_check(ordinary_worlds)
def a_constant_in_the_logits(subject: Subject, given: Clientele) -> None:
    """A constant added to all logits of an example changes nothing: the model's probabilities are the same.

    Where a rule reads inputs, it may look at the size of logits, too: there the constant is the same for all examples.
    """
    rows = not Traits.of(subject.component).reads_inputs

    def moved(logits: Floats) -> Floats:
        return logits + (5 * np.sin(logits[:, :1]) - 2 if rows else 3.0)

    other = replace(given, model=replace(given.model, changed=moved))
    _predict_alike(subject, given, other, "with a constant added to the logits")


@define_check(lopsided_worlds)
def no_shift_no_change(subject: Subject, given: Clientele) -> None:
    """A client that is all participants together is predicted after its inputs as before them.

    Before them, predictions are those of the calibrated model. Where calibration comes with the first input, it is
    taken for a gain of serving; where the source prior is not that of the held-out examples, everybody is corrected. A
    rule that does not correct the model's bias says so by the trait `keeps_bias`: it is held to this with a calibrated
    model.
    """
    part = subject.component
    for one in (calibrated(given), given):
        if one is given and Traits.of(part).keeps_bias:
            return
        state = one.fitted(part).state
        outputs = one.outputs(part, np.concatenate([holding.inputs for holding in one.participants]))
        before = part.predict(state, part.start(state), outputs)
        after = part.predict(state, learnt(part, state, [outputs]), outputs)
        _alike(
            f"of {one}, all their inputs were predicted before and after it had learnt from them:",
            after,
            before,
            NO_SHIFT,
        )


class Sealed(Outputs):
    """Outputs of which nothing is asked but what is there."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        fail(f"it asked for outputs.{name}; of a client that is served there are {', '.join(vars(self))}, no labels")


@define_check(ordinary_worlds)
def no_labels_of_those_served(subject: Subject, given: Clientele) -> None:
    """Of an input that is served, nothing is asked but logits, and features, inputs and the model where it says so.

    Whatever else the outputs carry, such as labels, changes no prediction.
    """
    part, state = subject.component, _state(subject, given)
    outputs = given.outputs(part, np.concatenate(given.clients[0]))
    sealed = Sealed(outputs.logits, outputs.features, outputs.inputs, outputs.again, outputs.statistics)
    part.predict(state, part.update(state, part.start(state), sealed), sealed)
    if hasattr(part, "predict_online"):
        part.predict_online(state, part.start(state), sealed)


@define_check(ordinary_worlds)
def known_shares_stay_with_their_client(subject: Subject, given: Clientele) -> None:
    """What `with_prior` was told of one client is not remembered for another."""
    part = subject.component
    if not Traits.of(part).knows_prior:
        return
    state = given.fitted(part).state
    outputs = given.outputs(part, np.concatenate(given.clients[0]))
    clients = [[], [outputs]]
    before = [part.predict(state, learnt(part, state, batches), outputs) for batches in clients]
    part.predict(state, part.with_prior(state, uneven(given.classes)), outputs)
    for a, batches in zip(before, clients, strict=True):
        after = part.predict(state, learnt(part, state, batches), outputs)
        _alike("after `with_prior` for another client, it predicted", after, a, 0.0)


@define_check(ordinary_worlds)
def known_shares_weigh(subject: Subject, given: Clientele) -> None:
    """With the shares pi, p is proportional to the calibrated model's p times pi_c / base_c, base the same for all.

    So with base itself for shares a client is predicted as before its first input.
    """
    part, c = subject.component, given.classes
    if not Traits.of(part).knows_prior:
        return
    state = _state(subject, given)
    outputs = given.outputs(part, np.concatenate([np.concatenate(batches) for batches in given.clients]))
    plain = part.predict(state, part.start(state), outputs)
    ratios = []
    for prior in (np.full(c, 1 / c), uneven(c)):
        ratio = part.predict(state, part.with_prior(state, prior), outputs) - plain - np.log(prior)
        ratios.append(ratio - ratio.mean(axis=1, keepdims=True))  # minus log base, but for a constant a row
    far = float(np.abs(np.concatenate(ratios) - ratios[0][0]).max())
    if far > 1e-6 * (1 + np.abs(plain).max()):
        fail(f"log p - log pi - log p of the calibrated model differs by {far:.3g} between inputs or shares")
    base = np.exp(-ratios[0][0])
    again = part.predict(state, part.with_prior(state, base / base.sum()), outputs)
    _alike(f"with the shares {shown(base / base.sum())}, which are base, it predicted", again, plain)


@define_check(ordinary_worlds)
def known_labels_stay_with_their_client(subject: Subject, given: Clientele) -> None:
    """What `with_labels` was told of one client is not remembered for another. `labels` is how many it may be told."""
    part = subject.component
    if not Traits.of(part).learns_labels:
        return
    if not isinstance(part.labels, int) or part.labels < 0:
        fail(f"`labels` must be a whole number, 0 or more; it is {part.labels!r}")
    state, outputs = given.fitted(part).state, given.outputs(part, np.concatenate(given.clients[0]))
    before = part.predict(state, part.start(state), outputs)
    part.predict(state, part.with_labels(state, *labelled(outputs)), outputs)
    _alike(
        "after `with_labels` for another client, it predicted",
        part.predict(state, part.start(state), outputs),
        before,
        0.0,
    )


@define_check(ordinary_worlds)
def no_labels_no_change(subject: Subject, given: Clientele) -> None:
    """A client that is told no label by `with_labels` is predicted as before, to the bit."""
    part = subject.component
    if not Traits.of(part).learns_labels:
        return
    state, outputs = _state(subject, given), given.outputs(part, np.concatenate(given.clients[0]))
    told = part.with_labels(state, outputs.rows(slice(0)), np.zeros(0, np.int64))
    _alike(
        "told no label, it predicted",
        part.predict(state, told, outputs),
        part.predict(state, part.start(state), outputs),
        0.0,
    )


@define_check(ordinary_worlds)
def one_or_many_at_a_time(subject: Subject, given: Clientele) -> None:
    """How many of its inputs come at once does not matter to a client, nor how many clients learn at once.

    `update_many(state, clients, outputs)`, where there is one, returns what `update` returns for each client.
    """
    part, state = subject.component, _state(subject, given)
    everything = [given.outputs(part, np.concatenate(batches)) for batches in given.clients]
    for number, (batches, outputs) in enumerate(zip(given.clients, everything, strict=True), start=1):
        at_once = part.predict(state, learnt(part, state, [outputs]), outputs)
        for inputs in (batches, np.split(np.concatenate(batches), len(outputs.logits))):
            client = learnt(part, state, [given.outputs(part, one) for one in inputs])
            what = f"client {number}, whose inputs came in {len(inputs)} pieces, predicted"
            _alike(what, part.predict(state, client, outputs), at_once)
    if not hasattr(part, "update_many"):
        return
    clients = [part.start(state) for _ in everything]
    for _ in range(2):
        alone = [part.update(state, client, one) for client, one in zip(clients, everything, strict=True)]
        clients = part.update_many(state, clients, everything)
        for number, (a, b, outputs) in enumerate(zip(clients, alone, everything, strict=True), start=1):
            what = f"after `update_many`, client {number} predicted"
            _alike(what, part.predict(state, a, outputs), part.predict(state, b, outputs))


@define_check(ordinary_worlds)
def the_order_of_inputs_counts_little(subject: Subject, given: Clientele) -> None:
    """In which order a client's inputs come changes the class shares that it predicts by .3 at most."""
    part, state = subject.component, _state(subject, given)
    for number, batches in enumerate(given.clients, start=1):
        inputs = np.concatenate(batches)
        outputs = given.outputs(part, inputs)
        shares = [
            np.exp(part.predict(state, learnt(part, state, [given.outputs(part, x)]), outputs)).mean(axis=0)
            for x in (inputs, inputs[::-1].copy())
        ]
        if np.abs(shares[1] - shares[0]).max() > ORDER:
            fail(f"client {number} predicts the shares {shown(shares[0])}, and {shown(shares[1])} turned round")


@define_check(served_worlds)
def nothing_that_comes_later(subject: Subject, given: Clientele) -> None:
    """Where inputs are predicted one after the other, none is predicted by those that come after it.

    `predict_online(state, client, outputs)` returns predictions and the client, which goes on from there.
    """
    part = subject.component
    if not hasattr(part, "predict_online"):
        return
    state = _state(subject, given)
    for batches in given.clients:
        inputs = np.concatenate(batches)
        whole, _ = part.predict_online(state, part.start(state), given.outputs(part, inputs))
        for j in sorted({1, len(inputs) // 2, len(inputs) - 1} - {0, len(inputs)}):
            first, client = part.predict_online(state, part.start(state), given.outputs(part, inputs[:j]))
            rest, _ = part.predict_online(state, client, given.outputs(part, inputs[j:]))
            _alike(f"without those after it, input {j} is predicted", first, whole[:j], 1e-9)
            _alike(f"going on after input {j}, the others are predicted", rest, whole[j:], 1e-9)


CHECKS = (
    log_probabilities,
    sums_of_one_shape,
    contributions_are_possible,
    each_input_by_itself,
    whoever_stands_where,
    when_trusted(whoever_holds_an_example),
    classes_by_any_name,
    a_constant_in_the_logits,
    when_trusted(no_shift_no_change),
    no_labels_of_those_served,
    known_shares_stay_with_their_client,
    known_shares_weigh,
    known_labels_stay_with_their_client,
    no_labels_no_change,
    one_or_many_at_a_time,
    the_order_of_inputs_counts_little,
    nothing_that_comes_later,
    PLAYING.same_again(
        "The same participants and inputs give the same predictions.",
        "A serving rule draws no random numbers, and keeps nothing in `self`.",
    ),
    PLAYING.arguments_untouched(
        "A serving rule does not write to its arguments: state, query, outputs, labels, counts, sums and what a client "
        "keeps."
    ),
    PLAYING.going_on_from_a_file(
        "State, query, contributions and what a client keeps consist of named arrays; stored after each exchange and "
        "each update, and read again, they give the same predictions."
    ),
    options_are_all_it_is,
)


def _state(subject: Subject, given: Clientele) -> State:
    state: State = subject.once(f"fitted by {given}", lambda: given.fitted(subject.component).state)
    return state


def _predict_alike(subject: Subject, given: Clientele, other: Clientele, how: str) -> None:
    for a, b in zip(PLAYING.straight(subject, given), play(subject.component, other), strict=True):
        _alike(f"{how}, it predicted {a.said.partition(', it predicted')[0]}", b.value, a.value)


def _alike(what: str, got: Floats, expected: Floats, within: float = ROUNDING) -> None:
    """Compare probabilities."""
    far = float(np.abs(np.exp(got) - np.exp(expected)).max()) if got.shape == expected.shape else np.inf
    if not far <= within:
        if got.shape == expected.shape:
            row = int(np.abs(np.exp(got) - np.exp(expected)).max(axis=1).argmax())
            got, expected, what = got[row], expected[row], f"{what} in row {row}"
        fail(f"{what} {shown(got)} instead of {shown(expected)}, a probability {far:.2g} apart")
