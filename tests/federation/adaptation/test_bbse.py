"""BBSE and RLLS: class shares that a confusion matrix explains."""

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from fedreach.federation.adaptation.base import log_softmax
from fedreach.federation.adaptation.fitting import HeldOut, fit
from fedreach.federation.adaptation.methods import BBSE, RLLS, solve_penalized
from fedreach.federation.base import Adaptation
from fedreach.federation.types import Outputs

from .worlds import C, draw, exact_logits, means_of, participants

RULES = [BBSE(), BBSE(hard=True), RLLS(), RLLS(strength=1.0, hard=True), RLLS(gamma=0.5)]
BASE, SHIFTED = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.02, 0.08, 0.1, 0.8])


def some(seed, m, prior):
    x, labels = draw(np.random.default_rng(seed), m, prior, means_of())
    return Outputs(exact_logits(x, means_of(), BASE)), labels


def fitted(rule):
    return fit(rule, [HeldOut(*some(0, 4000, BASE), np.zeros(C))])


@pytest.mark.parametrize("rule", RULES)
def test_it_is_fitted_in_one_exchange(rule):
    assert isinstance(rule, Adaptation)
    assert rule.knows_prior
    found = fit(rule, participants(np.random.default_rng(0)))
    assert (found.exchanges, found.bytes_down) == (1, 0)
    assert found.state["confusion"].sum() == pytest.approx(1)


@pytest.mark.parametrize("rule", RULES)
def test_before_any_input_it_is_the_plain_model(rule):
    outputs, _ = some(1, 20, BASE)
    state = fitted(rule).state
    empty = Outputs(np.zeros((0, C)))
    for client in (
        rule.start(state),
        rule.update(state, rule.start(state), empty),
        rule.with_prior(state, state["base"]),
    ):
        np.testing.assert_allclose(rule.predict(state, client, outputs), log_softmax(outputs.logits), atol=1e-12)


@pytest.mark.parametrize("rule", [BBSE(), BBSE(hard=True), RLLS(), RLLS(hard=True)])
def test_the_shares_of_a_shifted_client_are_found(rule):
    """Exactly, where its inputs are held-out examples, those of class y k_y times as often.

    So they are by RLLS while its pull is weaker than the smallest singular value of the confusion matrix.
    """
    (outputs, labels), times = some(0, 500, BASE), np.array([1, 0, 2, 9])
    state = fit(rule, [HeldOut(outputs, labels, np.zeros(C))]).state
    client = rule.update(state, rule.start(state), Outputs(outputs.logits.repeat(times[labels], axis=0)))
    expected = times * state["base"]
    np.testing.assert_allclose(client["prior"], expected / expected.sum(), atol=1e-9)


@pytest.mark.parametrize("hard", [False, True])
def test_the_participants_pooled_have_the_base(hard):
    rule, (outputs, labels) = BBSE(hard), some(0, 500, BASE)
    state = fit(rule, [HeldOut(outputs, labels, np.zeros(C))]).state
    client = rule.update(state, rule.start(state), outputs)
    np.testing.assert_allclose(client["prior"], state["base"], atol=1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_the_order_of_inputs_and_how_they_arrive_are_nothing(rule):
    state, (outputs, _) = fitted(rule).state, some(1, 30, SHIFTED)
    whole, one_by_one = rule.update(state, rule.start(state), outputs), rule.start(state)
    for row in outputs.logits[::-1]:
        one_by_one = rule.update(state, one_by_one, Outputs(row[None]))
    for name in whole:
        np.testing.assert_allclose(one_by_one[name], whole[name], atol=1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_classes_renamed_rename_shares(rule):
    order, (outputs, labels), (seen, _) = np.array([2, 0, 3, 1]), some(0, 500, BASE), some(1, 30, SHIFTED)
    state = fit(rule, [HeldOut(outputs, labels, BASE)]).state
    renamed = fit(rule, [HeldOut(Outputs(outputs.logits[:, order]), np.argsort(order)[labels], BASE)]).state
    found = rule.update(renamed, rule.start(renamed), Outputs(seen.logits[:, order]))["prior"]
    np.testing.assert_allclose(found, rule.update(state, rule.start(state), seen)["prior"][order], atol=1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_a_class_that_no_participant_holds_breaks_nothing(rule):
    outputs, labels = some(0, 200, np.array([0.5, 0.3, 0.2, 0.0]))
    state = fit(rule, [HeldOut(outputs, labels, BASE)]).state
    seen, _ = some(1, 20, SHIFTED)
    client = rule.update(state, rule.start(state), seen)
    assert client["prior"].sum() == pytest.approx(1)
    assert np.isfinite(rule.predict(state, client, seen)).all()


def test_told_its_prior_a_client_predicts_by_bayes():
    outputs, _ = some(1, 20, SHIFTED)
    state = {**fitted(BBSE()).state, "base": BASE}
    joint = np.exp(outputs.logits) / BASE * SHIFTED
    found = np.exp(BBSE().predict(state, BBSE().with_prior(state, SHIFTED), outputs))
    np.testing.assert_allclose(found, joint / joint.sum(axis=1, keepdims=True), atol=1e-12)


def test_without_pull_rlls_is_bbse_and_with_gamma_0_it_never_adapts():
    state, (outputs, _) = fitted(BBSE()).state, some(1, 30, SHIFTED)
    prior = lambda rule: rule.update(state, rule.start(state), outputs)["prior"]  # noqa: E731
    np.testing.assert_allclose(prior(RLLS(strength=0.0)), prior(BBSE()), atol=1e-9)
    np.testing.assert_allclose(prior(RLLS(gamma=0.0)), state["base"], atol=1e-12)
    np.testing.assert_allclose(prior(RLLS(strength=1e3)), state["base"], atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("delta", [0.01, 0.1, 0.4])
def test_the_pulled_solution_is_the_best(seed, delta):
    rng = np.random.default_rng(seed)
    confusion, difference = rng.dirichlet(np.ones(16)).reshape(4, 4) + np.eye(4) / 4, rng.standard_normal(4)
    value = lambda theta: np.linalg.norm(confusion @ theta - difference) + delta * np.linalg.norm(theta)  # noqa: E731
    found = solve_penalized(confusion, difference, delta)
    assert all(value(found) <= value(found + step) + 1e-12 for step in 1e-3 * rng.standard_normal((50, 4)))
    assert value(found) <= value(np.zeros(4))


@pytest.mark.parametrize("options", [{"strength": -1.0}, {"gamma": 1.5}])
def test_options_outside_their_range_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        RLLS(**options)
