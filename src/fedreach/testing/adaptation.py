"""Synthetic participants and unseen clients for checks of adaptation rules, with a known uncalibrated model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from fedreach._util.arrays import AnyArray, Float32s, Floats, Ints
from fedreach._util.streams import generator
from fedreach.federation.adaptation.base import log_softmax
from fedreach.federation.adaptation.fitting import FittedRule, HeldOut, fit
from fedreach.federation.base import name_of
from fedreach.federation.types import Outputs, State
from fedreach.testing.base import Check, Outcome, RepeatedRuns, Subject, shown

INPUTS = 6  # numbers per input
EPSILON = 1e-9  # added to variances, so that equal inputs can be normalized
Shares = Callable[[np.random.Generator, int, int], AnyArray]


@dataclass(frozen=True, eq=False)
class Model:
    """A model whose logits are log likelihoods of Gaussian classes, multiplied by a scale, plus an offset.

    Calibration must find the scale and the offset. A BatchNorm layer first transforms the inputs. Its scale and shift
    cancel the effect of its running statistics.

    Args:
        means: (c, INPUTS) means of the classes, whose variance is 1.
        scale: Factor of the logits.
        offset: (c,) offset of the logits.
        changed: Function that a check applies to the logits.
        running: (2 INPUTS,) running means and variances.
        refreshes: Use the statistics from adaptation. Otherwise, ignore these statistics.
    """

    means: Floats
    scale: float
    offset: Floats
    changed: Callable[[Floats], Floats] = lambda logits: logits
    running: Float32s = field(default_factory=lambda: np.repeat(np.array([0, 1], np.float32), INPUTS))
    refreshes: bool = True

    def of(self, inputs: Float32s, *, all_there_is: bool, statistics: Float32s | None = None) -> Outputs:
        """Return the outputs for (m, INPUTS) inputs.

        Args:
            inputs: (m, INPUTS) inputs.
            all_there_is: Add features, inputs and running statistics.
            statistics: (2 INPUTS,) means and variances for the layer. None: the running statistics.
        """
        features = inputs.astype(np.float64)
        if statistics is not None and self.refreshes:
            (mean, variance), (usual, spread) = np.split(statistics, 2), np.split(self.running, 2)
            features = (features - mean) * np.sqrt((spread + EPSILON) / (variance + EPSILON)) + usual
        likelihood = features @ self.means.T - 0.5 * np.square(self.means).sum(axis=1)
        logits = self.changed(self.scale * likelihood + self.offset)
        if not all_there_is:
            return Outputs(logits)
        return Outputs(logits, features, inputs.copy(), partial(self.of, all_there_is=True), ModelStatistics(self))


@dataclass(frozen=True, eq=False)
class ModelStatistics:
    """The running statistics of a `Model`."""

    model: Model

    def refreshed(self, inputs: Float32s, strength: float) -> Float32s:
        weight = len(inputs) / (len(inputs) + strength)
        mixed: Float32s = (weight * moments(inputs) + (1 - weight) * self.model.running).astype(np.float32)
        return mixed

    def outputs(self, statistics: Float32s, inputs: Float32s) -> Outputs:
        return self.model.of(inputs, all_there_is=True, statistics=statistics)


def moments(inputs: Float32s) -> Float32s:
    """Return the (2 INPUTS,) means and variances of inputs.

    Example:
        >>> moments(np.array([[0.0, 1.0], [2.0, 1.0]], np.float32)).tolist()
        [1.0, 1.0, 1.0, 0.0]
    """
    result: Float32s = np.concatenate([inputs.mean(axis=0), inputs.var(axis=0)])
    return result


@dataclass(frozen=True, eq=False)
class Holding:
    """Held-out examples and label counts of a participant."""

    inputs: Float32s  # (m, INPUTS) held-out inputs
    labels: Ints  # (m,) their labels
    counts: Floats  # (c,) label counts of the training examples


@dataclass(frozen=True, eq=False)
class AdaptationFixture:
    """A model, participants that fit a rule, and unseen clients that adapt.

    Args:
        words: Description.
        model: Model.
        participants: Data of the participants.
        clients: Batches of inputs of each unseen client.
    """

    words: str
    model: Model
    participants: Sequence[Holding]
    clients: Sequence[Sequence[Float32s]]

    def __str__(self) -> str:
        return self.words

    def outputs(self, component: Any, inputs: Float32s) -> Outputs:
        """Return the outputs of the model that the component requires."""
        return self.model.of(inputs, all_there_is=component.reads_inputs)

    def fitted(self, component: Any) -> FittedRule:
        """Return the component after the participants have fitted it."""
        return fit(component, self.held_out(component))

    def held_out(self, component: Any) -> list[HeldOut]:
        """Return the data with which each participant fits the component."""
        return [
            HeldOut(self.outputs(component, participant.inputs), participant.labels, participant.counts)
            for participant in self.participants
        ]

    @property
    def pooled(self) -> Float32s:
        """Held-out inputs of all participants."""
        return np.concatenate([holding.inputs for holding in self.participants])

    def relabel(self, order: Ints) -> AdaptationFixture:
        """Return the federation in which class i is the former class order[i]."""
        place = np.argsort(order)
        model = replace(self.model, changed=lambda logits: np.ascontiguousarray(logits[:, order]))
        turned = [
            replace(participant, labels=place[participant.labels], counts=participant.counts[order])
            for participant in self.participants
        ]
        return replace(self, model=model, participants=turned)

    @property
    def classes(self) -> int:
        return len(self.model.means)


def client_after(component: Any, state: State, outputs: Sequence[Outputs]) -> State:
    """Return a client's state after it has adapted to these batches."""
    client: State = component.start(state)
    for batch in outputs:
        client = component.update(state, client, batch)
    return client


def adapted_fixture(
    words: str,
    c: int,
    held_out_counts: Sequence[int],
    *,
    scale: float = 2.0,
    apart: float = 0.6,
    shares: Shares | None = None,
    counts: Shares | None = None,
) -> AdaptationFixture:
    """Return participants and four unseen clients.

    The first client has 13 inputs of mixed classes, the second 30 inputs of the last class, and the third one input.
    The fourth has 12 inputs of the first class, followed by 12 of the last.

    Args:
        words: Description.
        c: Number of classes.
        held_out_counts: Number of held-out examples of each participant.
        scale: Factor of the logits.
        apart: Standard deviation of the classes' means.
        shares: Function that returns the class prior of a participant, given a generator, c and the participant's
            index. Default: a Dirichlet distribution.
        counts: Function that returns the training label counts of a participant, given the same arguments. Default:
            drawn from the class prior.
    """
    rng = generator(c, "testing adaptation", len(held_out_counts))
    model = Model(apart * rng.standard_normal((c, INPUTS)), scale, scale * rng.standard_normal(c))

    def drawn(labels: Ints) -> Float32s:
        noise = rng.standard_normal((len(labels), INPUTS))
        return (model.means[labels] + noise).astype(np.float32)

    participants = []
    for k, m in enumerate(held_out_counts):
        share = rng.dirichlet(np.full(c, 0.5)) if shares is None else shares(rng, c, k)
        labels = rng.choice(c, m, p=share)
        trained = rng.multinomial(10 * m, share) if counts is None else counts(rng, c, k)
        participants.append(Holding(drawn(labels), labels, np.asarray(trained, np.float64)))
    mixed = drawn(rng.choice(c, 13, p=rng.dirichlet(np.ones(c))))
    one_class, alone = drawn(np.full(30, c - 1)), drawn(np.zeros(1, np.int64))
    sorted_ = drawn(np.repeat([0, c - 1], 12))
    clients = [[mixed[:1], mixed[1:2], mixed[2:]], [one_class[:5], one_class[5:]], [alone], [sorted_]]
    fixture = AdaptationFixture(words, model, participants, clients)
    return replace(fixture, model=replace(model, running=moments(fixture.pooled)))


def adaptation_fixtures() -> Iterator[AdaptationFixture]:
    """Yield ordinary federations and edge cases."""
    yield from ordinary_fixtures()
    yield adapted_fixture("4 participants, 3 classes, logits of several hundred", 3, (40, 25, 60, 12), scale=60.0)
    yield adapted_fixture("3 participants, 3 classes that are far apart", 3, (30, 20, 25), apart=8.0)
    yield adapted_fixture("1 participant with 1 example, 3 classes", 3, (1,))
    yield adapted_fixture(
        "3 participants with one class each, 4 classes, the last without examples",
        4,
        (20, 30, 10),
        shares=lambda rng, c, k: np.eye(c)[k],
    )


def ordinary_fixtures() -> Iterator[AdaptationFixture]:
    """Yield federations in which rounding does not change predictions."""
    yield adapted_fixture("4 participants, 3 classes", 3, (40, 25, 60, 12))
    yield adapted_fixture("3 participants, one of them with 1 example, 2 classes", 2, (30, 1, 20))
    yield adapted_fixture("6 participants, 10 classes", 10, (50, 20, 30, 60, 40, 9))
    yield adapted_fixture("4 participants, 3 classes, logits twice as large", 3, (40, 25, 60, 12), scale=4.0)


def alike_fixtures() -> Iterator[AdaptationFixture]:
    """Yield federations whose participants have equal label counts, and few or many held-out examples."""
    for c, held_out_counts in ((3, (5, 80, 2, 40)), (10, (60, 8, 90))):
        words = f"{len(held_out_counts)} participants with equal label counts, {c} classes"
        yield adapted_fixture(words, c, held_out_counts, counts=lambda rng, c, k: np.arange(1, c + 1) * 5)


def lopsided_fixtures() -> Iterator[AdaptationFixture]:
    """Yield federations whose held-out examples are mostly of the first classes, and training examples of the last."""

    def counts(rng: np.random.Generator, c: int, k: int) -> AnyArray:
        return rng.multinomial(1000, rng.dirichlet(10 * uneven_shares(c)))

    for c, scale in ((3, 3.0), (2, 0.3), (10, 1.5)):
        words = f"3 participants with held-out classes unlike the training classes, {c} classes, logits times {scale:g}"
        yield adapted_fixture(
            words, c, (150, 200, 150), scale=scale, shares=lambda rng, c, k: uneven_shares(c)[::-1], counts=counts
        )


def calibrate(case: AdaptationFixture) -> AdaptationFixture:
    """Return the federation with offsets for which the mean prediction is the base (n_c + 1/2)/(n + C/2)."""
    labels = np.concatenate([holding.labels for holding in case.participants])
    label_counts = np.bincount(labels, minlength=case.classes) + 0.5
    base = label_counts / label_counts.sum()
    model = replace(case.model, scale=1.0, offset=np.log(base))
    for _ in range(100):
        predicted = np.exp(log_softmax(model.of(case.pooled, all_there_is=False).logits)).mean(axis=0)
        model = replace(model, offset=model.offset + np.log(base / predicted))
    return replace(case, words=f"{case.words}, then calibrated", model=model)


@dataclass(frozen=True)
class StoredRule:
    """A rule that applies `keep`, such as `through_a_file`, to all its states, queries and contributions."""

    component: Any
    keep: Callable[[State], State]

    @property
    def name(self) -> str:
        """Name of the rule in messages."""
        return name_of(self.component)

    def query(self, state: State) -> State | None:
        query = self.component.query(state)
        return None if query is None else self.keep(query)

    def contribute(self, query: State, outputs: Outputs, labels: Ints, counts: Floats) -> State:
        answer = self.component.contribute(query, outputs, labels, counts)
        stored = self.keep(answer)
        return {name: stored[name] for name in answer}  # a file changes the order

    def fold(self, state: State, sums: State) -> State:
        return self.keep(self.component.fold(state, sums))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.component, name)


def adaptation_outcomes(
    component: Any, case: AdaptationFixture, keep: Callable[[State], State] = lambda state: state
) -> list[Outcome]:
    """Return the predictions of a fitted rule for each client, before and after each batch."""
    state, outcomes = case.fitted(StoredRule(component, keep)).state, []
    for number, batches in enumerate(case.clients, start=1):
        everything = case.outputs(component, np.concatenate(batches))
        client, number_seen = keep(component.start(state)), 0
        clients = {"before its first input": client}
        for batch in batches:
            client = keep(component.update(state, client, case.outputs(component, batch)))
            number_seen += len(batch)
            clients[f"after {number_seen}"] = client
        if component.knows_prior:
            clients["with a known prior"] = keep(component.with_prior(state, uneven_shares(case.classes)))
        if component.learns_labels:
            clients["with some known labels"] = keep(component.with_labels(state, *label_half(everything)))
        predicted = {when: component.predict(state, client, everything) for when, client in clients.items()}
        if component.adapts_online:
            online, _ = component.predict_online(state, component.start(state), everything)
            predicted["online"] = online
        outcomes += [
            Outcome(f"for client {number}, {when}, it predicted {shown(values)}", np.asarray(values))
            for when, values in predicted.items()
        ]
    return outcomes


def label_half(outputs: Outputs) -> tuple[Outputs, Ints]:
    """Return the first half of a client's inputs, labeled with the model's second most likely classes."""
    half = outputs.at(slice((len(outputs.logits) + 1) // 2))
    return half, half.logits.argsort(axis=1)[:, -2]


def uneven_shares(c: int) -> Floats:
    """Return a (c,) class prior with unequal entries."""
    shares: Floats = np.arange(1.0, c + 1) / (c * (c + 1) / 2)
    return shares


def trust_inputs(subject: Subject) -> Subject:
    """Return the subject with full trust in inputs, if participants fit its trust.

    With the few participants of a check, the fitted trust would depend on their data. The check would then not test the
    effect of trusted inputs.
    """
    component = subject.component
    option = next((name for name in ("trust", "strength") if getattr(component, name, None) == "fitted"), None)
    if option is None or not is_dataclass(component) or isinstance(component, type):
        return subject
    case: dict[str, Any] = {option: 1.0}
    if hasattr(component, "amplification"):
        case |= {"amplification": math.inf, "correlation": 0.0}
    changed, make = replace(component, **case), partial(subject.make, **case)
    return cast(Subject, subject.once("trusted", lambda: replace(subject, component=changed, make=make, results={})))


def when_trusted(check: Check) -> Check:
    """Return the check with full trust in inputs (see `trust_inputs`)."""
    return replace(check, test=lambda subject, *case: check.test(trust_inputs(subject), *case))


PLAYING = RepeatedRuns(adaptation_fixtures, adaptation_outcomes)
