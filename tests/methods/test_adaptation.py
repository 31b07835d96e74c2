"""Checks of single adaptation rules. Each is worked out once more, plainly, from the numbers that the rule keeps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fedreach._util.arrays import Floats
from fedreach._util.streams import generator
from fedreach.federation.adaptation.base import log_softmax
from fedreach.federation.adaptation.inference import HALF_LIVES, fixed_orders, input_order
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.types import NO_STATE, Outputs, State
from fedreach.testing.adaptation import (
    AdaptationFixture,
    Holding,
    adapted_fixture,
    client_after,
    ordinary_fixtures,
    trust_inputs,
)
from fedreach.testing.base import Check, Subject, define_check, fail, must_be_close, shown

from .running import each_method, must_pass

GRID = [10 ** (i / 10 - 1) for i in range(41)]
"""A that are compared, .1 ... 1000."""
LONG, CLOSE = 200, 1e-7
"""Iterations of EM, and the change below which it stops."""


def _fitted(subject: Subject, case: AdaptationFixture) -> State:
    state: State = subject.once(f"fitted by {case}", lambda: case.fitted(subject.component).state)
    return state


def _pooled(case: AdaptationFixture) -> tuple[Outputs, Floats]:
    """Return what the model says of all that is held out, and the labels as rows of 0 and 1."""
    inputs = np.concatenate([one.inputs for one in case.participants])
    labels = np.concatenate([one.labels for one in case.participants])
    return case.model.of(inputs, all_there_is=False), np.eye(case.classes)[labels]


def _clients(case: AdaptationFixture) -> Iterator[Outputs]:
    for batches in case.clients:
        yield case.model.of(np.concatenate(batches), all_there_is=False)


@define_check(ordinary_fixtures)
def the_model_as_it_is(subject: Subject, case: AdaptationFixture) -> None:
    """Predictions are log softmax of the logits, whatever a client saw, and nobody is asked for anything."""
    component = subject.component
    if component.query(NO_STATE) is not None:
        fail("query should return None")
    for outputs in _clients(case):
        predicted = component.predict(NO_STATE, client_after(component, NO_STATE, [outputs]), outputs)
        must_be_close("the prediction", predicted, log_softmax(outputs.logits), str(case), 1e-9)


# -------------------------------------------------------------------------------------------------------- label shift


@define_check(ordinary_fixtures)
def calibrated_at_the_optimum(subject: Subject, case: AdaptationFixture) -> None:
    """At a and b the penalised loss has no slope: n (mean p_c - share_c) = -b_c.

    By a it is sum (p - y) z + log a/a. What is not fitted is 1 and 0.
    """
    state, (outputs, truth) = _fitted(subject, case), _pooled(case)
    a, b = float(state["a"][0]), state["b"]
    off = np.exp(log_softmax(a * outputs.logits + b)) - truth
    fits = subject.component.calibration
    by_a = float((off * outputs.logits).sum()) + math.log(a) / a if fits != "none" else 1 - a
    by_b = off.sum(axis=0) + b if fits == "bias" else b
    size = 1 + float(np.abs(outputs.logits).max())
    must_be_close(f"the slopes at a = {a:.6g}, b = {shown(b)}", [by_a / size, *by_b], np.zeros(len(b) + 1), "", 1e-3)


@define_check(ordinary_fixtures)
def source_prior_of_held_out_labels(subject: Subject, case: AdaptationFixture) -> None:
    """The source prior is base_c = (n_c + 1/2)/(n + C/2), of the held-out labels and no others."""
    held = _pooled(case)[1].sum(axis=0)
    rule = f"the held-out labels number {shown(held)}"
    expected = (held + 0.5) / (held.sum() + len(held) / 2)
    must_be_close("base", _fitted(subject, case)["base"], expected, str(case), 1e-9, rule)


@define_check(ordinary_fixtures)
def spread_of_training_labels(subject: Subject, case: AdaptationFixture) -> None:
    """A is that of 41 numbers from .1 to 1000 under which the participants' training labels are most likely.

    They are Dirichlet-multinomial with A share_c, share_c = (n_c + 1)/(n + C).
    """
    if subject.component.pseudo_counts != "fitted":
        return
    found = float(_fitted(subject, case)["pseudo_counts"][0])
    likelihood = [_likelihood(A, np.array([one.counts for one in case.participants])) for A in GRID]
    best = GRID[int(np.argmax(likelihood))]
    if abs(math.log(found / best)) > 1e-6:
        fail(f"A is {found:.6g}; {best:.6g} is more likely")


@define_check()
def spread_is_found_again(subject: Subject) -> None:
    """Shares drawn from Dirichlet(1.2) give an A near 1, from Dirichlet(12) near 12; equal shares the largest A."""
    if subject.component.pseudo_counts != "fitted":
        return
    for total, low, high in ((1.2, 0.6, 2.4), (12.0, 6.0, 24.0), (math.inf, 1000.0, 1000.0)):
        made = _spread_out(total)
        found = float(made.fitted(subject.component).state["pseudo_counts"][0])
        if not low / 1.001 <= found <= high * 1.001:
            fail(f"A is {found:.4g}, and should lie in {low:g} ... {high:g}", str(made))


@define_check(ordinary_fixtures)
def split_participants_fit_the_same(subject: Subject, case: AdaptationFixture) -> None:
    """A participant whose held-out examples are given to two, one of whom trained on nothing, changes nothing."""
    first, *others = case.participants
    half = len(first.labels) // 2
    two = [
        Holding(first.inputs[:half], first.labels[:half], first.counts),
        Holding(first.inputs[half:], first.labels[half:], np.zeros_like(first.counts)),
    ]
    other = replace(case, participants=[*two, *others]).fitted(subject.component).state
    for name, values in _fitted(subject, case).items():
        size = 1 + float(np.abs(values).max())
        must_be_close(f"{name} of the split", other[name] / size, values / size, str(case), 1e-5)


@define_check(ordinary_fixtures)
def inputs_that_say_nothing(subject: Subject, case: AdaptationFixture) -> None:
    """Where u = a z + b - log base is the same for all classes, W = 1 and predictions stay the calibrated model's."""
    component, state = subject.component, _fitted(subject, case)
    nothing = Outputs(np.tile((np.log(state["base"]) - state["b"]) / state["a"], (9, 1)))
    client = component.update(state, component.start(state), nothing)
    must_be_close("log W", client["log_w"], [0.0], str(case), 1e-9)
    for outputs in _clients(case):
        expected = log_softmax(state["a"] * outputs.logits + state["b"])
        for who in (component.start(state), client):
            must_be_close("the prediction", component.predict(state, who, outputs), expected, str(case), 1e-6)


@define_check(ordinary_fixtures)
def many_pseudo_counts_never_adapt(subject: Subject, case: AdaptationFixture) -> None:
    """As A grows, predictions tend to those of the calibrated model."""
    component, state = subject.component, {**_fitted(subject, case), "pseudo_counts": np.array([1e12])}
    for outputs in _clients(case):
        found = component.predict(state, client_after(component, state, [outputs]), outputs)
        expected = log_softmax(state["a"] * outputs.logits + state["b"])
        must_be_close("the prediction with A = 1e12", found, expected, str(case), 1e-6)


@define_check(ordinary_fixtures)
def evidence_of_what_came_before(subject: Subject, case: AdaptationFixture) -> None:
    """Each input is judged by those before it: W_j = W_(j-1) sum pi^(j-1)_c e^u_jc / sum base_c e^u_jc.

    With r_jc proportional to pi^(j-1)_c e^u_jc and pi^(j) = (A base + r_1 + ... + r_j)/(A + j). The q of EM look ahead:
    by these W is large without a shift, too. Of a batch, W is the mean over fixed orders of the sorted inputs; online,
    inputs stand in their own order, each r_l counts half after a half-life, and W is the mean over the half-lives. The
    weight is w = 1/(1 + odds/W).
    """
    component, state = subject.component, _fitted(subject, case)
    for number, outputs in enumerate(_clients(case), start=1):
        log_w = _evidence(component, state, outputs)[0][-1] if component.online else _batch_evidence(state, outputs)
        client = component.update(state, component.start(state), outputs)
        must_be_close(f"log W of client {number}", client["log_w"], [log_w], str(case), 1e-7)
        weight = 1 / (1 + component.odds * math.exp(-log_w))
        must_be_close(f"w of client {number}, with log W = {log_w:.4g}", client["weight"], [weight], str(case), 1e-7)


@define_check(ordinary_fixtures)
def adapted_by_its_prior(subject: Subject, case: AdaptationFixture) -> None:
    """Predictions are u + log(w pi + (1 - w) base) but for a constant, pi by EM from base with A base pseudo-counts.

    Online, each input goes by w of W_(j-1) and pi^(j-1), those of the half-lives weighed by their W_(j-1); with the
    option `online` pi is pi^(n).
    """
    component, state = subject.component, _fitted(subject, case)
    base = state["base"]
    for number, outputs in enumerate(_clients(case), start=1):
        u, (log_w, shares) = _ratios(state, outputs), _evidence(component, state, outputs)
        weights = 1 / (1 + component.odds * np.exp(-log_w))[:, None]
        weight = (
            weights[-1] if component.online else 1 / (1 + component.odds * math.exp(-_batch_evidence(state, outputs)))
        )
        prior = shares[-1] if component.online else _em(u, base, float(state["pseudo_counts"][0]))
        expected = log_softmax(u + np.log(weight * prior + (1 - weight) * base))
        found = component.predict(state, component.update(state, component.start(state), outputs), outputs)
        must_be_close(f"the prediction of client {number}", found, expected, str(case), 1e-6)
        expected = log_softmax(u + np.log(weights[:-1] * shares[:-1] + (1 - weights[:-1]) * base))
        online, client = component.predict_online(state, component.start(state), outputs)
        must_be_close(f"the prediction of client {number}, input by input,", online, expected, str(case), 1e-6)
        must_be_close("its prediction after them", component.predict(state, client, outputs), found, str(case), 1e-6)


@define_check(ordinary_fixtures)
def any_order_to_the_bit(subject: Subject, case: AdaptationFixture) -> None:
    """A client predicts the same bits whatever order its inputs came in, unless it learns input by input."""
    component, state = subject.component, _fitted(subject, case)
    if component.online:
        return
    for number, outputs in enumerate(_clients(case), start=1):
        expected = component.predict(state, client_after(component, state, [outputs]), outputs)
        order = generator(number, "testing an order").permutation(len(outputs.logits))
        client = client_after(component, state, [Outputs(outputs.logits[order])])
        must_be_close(
            f"the prediction of client {number}", component.predict(state, client, outputs), expected, "", 0.0
        )


@define_check(ordinary_fixtures)
def no_further_than_the_mean_prediction(subject: Subject, case: AdaptationFixture) -> None:
    """The prior lies at most M times as far from base as the mean prediction, with the option `amplification` = M."""
    component = replace(subject.component, amplification=1.5)
    state = _fitted(subject, case)
    base = state["base"]
    for number, outputs in enumerate(_clients(case), start=1):
        mean = np.exp(log_softmax(_ratios(state, outputs) + np.log(base))).mean(axis=0)
        client = component.update(state, component.start(state), outputs)
        apart, most = np.abs(client["prior"] - base).sum(), 1.5 * np.abs(mean - base).sum()
        if apart > most + 1e-9 and not component.online:
            fail(f"the prior of client {number} is {apart:.4g} from base, 1.5 times the mean prediction {most:.4g}")


@define_check(ordinary_fixtures)
def off_without_support(subject: Subject, case: AdaptationFixture) -> None:
    """Where participants do not support adaptation, s = 0, clients predict softmax(t z), whatever they saw.

    t has the least log loss of participants' held-out examples plus ln(t)^2/2, to 5%.
    """
    component = replace(subject.component, strength="fitted")
    state = {**_fitted(subject, case), "strength": np.zeros(1)}
    for outputs in _clients(case):
        found = component.predict(state, client_after(component, state, [outputs]), outputs)
        (t,) = state.get("inverse_temperature", state["a"])
        must_be_close("the prediction", found, log_softmax(t * outputs.logits), str(case), 1e-6)
    if "inverse_temperature" in state:
        outputs, held = _pooled(case)

        def loss(scale: float) -> float:
            return float(-(held * log_softmax(scale * outputs.logits)).sum() + math.log(scale) ** 2 / 2)

        if loss(float(t)) > min(loss(0.95 * float(t)), loss(1.05 * float(t))):
            fail(f"the temperature is no optimum: a scale of {float(t):.4g}, or 5% beside it, is better", str(case))


# ------------------------------------------------------------------------------------------------------- true shares


@define_check(ordinary_fixtures)
def shares_as_they_are_told(subject: Subject, case: AdaptationFixture) -> None:
    """Predictions are a z + b - log base + log pi but for a constant, pi what it was told; inputs teach it nothing."""
    component, state = subject.component, _fitted(subject, case)
    prior = generator(0, "testing true shares").dirichlet(np.ones(case.classes))
    for outputs in _clients(case):
        for client in (told := component.with_prior(state, prior), component.update(state, told, outputs)):
            found = component.predict(state, client, outputs)
            must_be_close("the prediction", found, log_softmax(_ratios(state, outputs) + np.log(prior)), "", 1e-6)


# -------------------------------------------------------------------------------------------------- confusion matrix


@define_check(ordinary_fixtures)
def shares_that_explain_the_predictions(subject: Subject, case: AdaptationFixture) -> None:
    """C w = mu, w clipped at 0, pi proportional to w base; log p = log softmax z + log(pi/base) but for a constant."""
    component, state, (held, truth) = subject.component, _fitted(subject, case), _pooled(case)
    base = (truth.sum(axis=0) + 0.5) / (len(truth) + case.classes / 2)
    confusion = _judged(component, held).T @ truth / len(truth)
    if np.linalg.cond(confusion) > 1e6:
        return  # there is more than one w
    for number, outputs in enumerate(_clients(case), start=1):
        w = np.linalg.solve(confusion, _judged(component, outputs).mean(axis=0))
        shares = np.maximum(w, 0) * base
        prior = shares / shares.sum()
        client = component.update(state, component.start(state), outputs)
        must_be_close(f"the shares of client {number}", client["prior"], prior, str(case), 1e-6)
        found = np.exp(component.predict(state, client, outputs))
        expected = np.exp(log_softmax(outputs.logits)) * prior / base
        expected /= expected.sum(axis=1, keepdims=True)
        must_be_close(f"the probabilities of client {number}", found, expected, str(case), 1e-6)


@define_check(ordinary_fixtures)
def between_bbse_and_nothing(subject: Subject, case: AdaptationFixture) -> None:
    """With strength 0 and gamma 1 it is BBSE; with gamma 0, or a large strength, predictions do not change."""
    made, hard = subject.make, subject.component.hard
    state, (held, truth) = _fitted(subject, case), _pooled(case)
    confusion = _judged(subject.component, held).T @ truth / len(truth)
    for number, outputs in enumerate(_clients(case), start=1):
        for still in (made(gamma=0.0, hard=hard), made(strength=1e9, hard=hard)):
            client = still.update(state, still.start(state), outputs)
            expected = log_softmax(outputs.logits)
            must_be_close(f"{still}: prediction", still.predict(state, client, outputs), expected, str(case), 1e-6)
        if np.linalg.cond(confusion) < 1e6:
            free = made(strength=0.0, gamma=1.0, hard=hard)
            w = np.linalg.solve(confusion, _judged(subject.component, outputs).mean(axis=0))
            shares = np.maximum(w, 0) * state["base"]
            prior = free.update(state, free.start(state), outputs)["prior"]
            must_be_close(f"{free}: shares of client {number}", prior, shares / shares.sum(), str(case), 1e-6)


@define_check(ordinary_fixtures)
def no_order_of_inputs(subject: Subject, case: AdaptationFixture) -> None:
    """The order in which inputs come changes predictions by rounding only."""
    component, state = subject.component, _fitted(subject, case)
    for outputs in _clients(case):
        turned = Outputs(outputs.logits[::-1].copy())
        a, b = (
            np.exp(component.predict(state, client_after(component, state, [one]), outputs))
            for one in (outputs, turned)
        )
        must_be_close("the probabilities, with the inputs turned round,", b, a, str(case), 1e-9)


def without_guard(one: Check) -> Check:
    """Return the check, run without a guard and with inputs that are trusted: it is about what these let through."""

    def test(subject: Subject, *case: AdaptationFixture) -> None:
        subject = trust_inputs(subject)
        bare = subject.component
        if isinstance(bare, LabelShift) and bare.guard:
            subject = subject.once(
                "no guard", lambda: replace(subject, component=replace(bare, guard=False), results={})
            )
        one.test(subject, *case)

    return replace(one, test=test)


MANY_CLASSES = 120


@define_check()
def many_classes_are_matched(subject: Subject) -> None:
    """With 120 classes the mean calibrated prediction lies within .1 of base in total variation.

    Base is of the held-out labels. The training labels have other shares.
    """
    if subject.component.calibration != "bias":
        return
    counts = np.arange(1.0, MANY_CLASSES + 1)
    case = adapted_fixture(
        f"5 participants, {MANY_CLASSES} classes", MANY_CLASSES, (200,) * 5, counts=lambda rng, c, k: counts
    )
    state = case.fitted(subject.component).state
    outputs = [case.model.of(one.inputs, all_there_is=False) for one in case.participants]
    predicted = [np.exp(log_softmax(state["a"] * one.logits + state["b"])) for one in outputs]
    held = np.bincount(np.concatenate([one.labels for one in case.participants]), minlength=MANY_CLASSES) + 0.5
    off = float(np.abs(np.concatenate(predicted).mean(axis=0) - held / held.sum()).sum() / 2)
    if off > 0.1:
        fail(f"the mean calibrated prediction lies {off:.3g} from base in total variation", str(case))


LABEL_SHIFT_CHECKS = (
    calibrated_at_the_optimum,
    many_classes_are_matched,
    source_prior_of_held_out_labels,
    spread_of_training_labels,
    spread_is_found_again,
    split_participants_fit_the_same,
    inputs_that_say_nothing,
    many_pseudo_counts_never_adapt,
    evidence_of_what_came_before,
    adapted_by_its_prior,
    any_order_to_the_bit,
    no_further_than_the_mean_prediction,
    off_without_support,
)
METHOD_CHECKS = {
    "none": (the_model_as_it_is,),
    "label_shift": tuple(map(without_guard, LABEL_SHIFT_CHECKS)),
    "few_labels": (the_model_as_it_is,),
    "oracle_prior": (
        calibrated_at_the_optimum,
        source_prior_of_held_out_labels,
        shares_as_they_are_told,
        no_order_of_inputs,
    ),
    "bbse": (source_prior_of_held_out_labels, shares_that_explain_the_predictions, no_order_of_inputs),
    "rlls": (source_prior_of_held_out_labels, between_bbse_and_nothing, no_order_of_inputs),
}


def _ratios(state: State, outputs: Outputs) -> Floats:
    centered = outputs.logits - outputs.logits.mean(axis=1, keepdims=True)
    u: Floats = state["a"] * centered + state["b"] - np.log(state["base"])
    return u


def _evidence(component: Any, state: State, outputs: Outputs) -> tuple[Floats, Floats]:
    """Return log W_0 ... log W_n and pi^(0) ... pi^(n), of half-lives that count by their evidence."""
    lives = HALF_LIVES if component.half_life == "fitted" else (component.half_life,)
    each = [_with_half_life(life, state, outputs) for life in lives]
    log_w, shares = (np.array([found[i] for found in each]) for i in (0, 1))
    top = log_w.max(axis=0)
    w = np.exp(log_w - top)
    return top + np.log(w.mean(axis=0)), (w[:, :, None] * shares).sum(axis=0) / w.sum(axis=0)[:, None]


def _with_half_life(half_life: float, state: State, outputs: Outputs) -> tuple[Floats, Floats]:
    base, A = state["base"], float(state["pseudo_counts"][0])
    log_w, shares, learnt = [0.0], [base], np.zeros(len(base))
    for u in _ratios(state, outputs):
        likelihood = np.exp(u - u.max())
        joint = shares[-1] * likelihood
        log_w.append(log_w[-1] + math.log(joint.sum() / (base * likelihood).sum()))
        learnt = 2 ** (-1 / half_life) * learnt + joint / joint.sum()
        shares.append((A * base + learnt) / (A + learnt.sum()))
    return np.array(log_w), np.array(shares)


def _batch_evidence(state: State, outputs: Outputs) -> float:
    """Return log of the mean W over the fixed orders of the sorted inputs."""
    base, A = state["base"], float(state["pseudo_counts"][0])
    u = _ratios(state, outputs)
    u, found = u[input_order(u)], []
    for order in fixed_orders(len(u)):
        log_w, learnt = 0.0, np.zeros(len(base))
        for j, row in enumerate(u[order]):
            likelihood = np.exp(row - row.max())
            joint = (A * base + learnt) / (A + j) * likelihood
            log_w += math.log(joint.sum() / (base * likelihood).sum())
            learnt = learnt + joint / joint.sum()
        found.append(log_w)
    return float(np.log(np.mean(np.exp(found))))


def _em(u: Floats, base: Floats, A: float) -> Floats:
    prior = base
    for _ in range(LONG):
        q = np.exp(log_softmax(u + np.log(prior)))
        before, prior = prior, (q.sum(axis=0) + A * base) / (len(u) + A)
        if np.abs(prior - before).max() < CLOSE:
            break
    return prior


def _likelihood(A: float, counts: Floats) -> float:
    share = (counts.sum(axis=0) + 1) / (counts.sum() + counts.shape[1])
    total = 0.0
    for row in counts:
        total += math.lgamma(A) - math.lgamma(A + row.sum())
        total += sum(math.lgamma(A * s + n) - math.lgamma(A * s) for s, n in zip(share, row, strict=True))
    return total


def _spread_out(total: float) -> AdaptationFixture:
    """Return 40 participants of 400 training examples, their shares drawn from a Dirichlet distribution."""
    c = 5

    def counts(rng: np.random.Generator, c: int, k: int) -> Floats:
        share = np.full(c, 1 / c) if math.isinf(total) else rng.dirichlet(np.full(c, total / c))
        drawn: Floats = rng.multinomial(400, share).astype(np.float64)
        return drawn

    return adapted_fixture(f"40 participants, shares drawn from Dirichlet({total:g})", c, (1,) * 40, counts=counts)


def _judged(component: Any, outputs: Outputs) -> Floats:
    """Return what a rule takes for the model's predictions: probabilities, or 1 for the largest."""
    if component.hard:
        ones: Floats = np.eye(outputs.logits.shape[1])[outputs.logits.argmax(axis=1)]
        return ones
    probabilities: Floats = np.exp(log_softmax(outputs.logits))
    return probabilities


@each_method("adaptation", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
