"""The rule as a whole: fitted by exchanges, then going by a client's inputs."""

import io
from dataclasses import replace

import numpy as np
import pytest

from fedreach._util.errors import ConfigError, DataError
from fedreach.federation.adaptation import base, calibration
from fedreach.federation.adaptation.base import log_softmax
from fedreach.federation.adaptation.fitting import HeldOut, fit
from fedreach.federation.adaptation.inference import infer_priors
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.base import Adaptation
from fedreach.federation.types import NO_STATE, Outputs

from .worlds import C, draw, exact_logits, means_of, participants, source

BASE = np.array([0.4, 0.3, 0.2, 0.1])
SHIFTED = np.array([0.02, 0.08, 0.1, 0.8])
RULES = [
    LabelShift(),
    LabelShift(online=True),
    LabelShift(odds=0.0, pseudo_counts=3.0),
    LabelShift(online=True, half_life=9.0),
]


def inputs(seed=0, m=30, prior=SHIFTED):
    x, labels = draw(np.random.default_rng(seed), m, prior, means_of())
    return Outputs(exact_logits(x, means_of(), BASE)), labels


def adapted(rule, state, *outputs):
    client = rule.start(state)
    for one in outputs:
        client = rule.update(state, client, one)
    return client


def same(one, other, atol=1e-12):
    assert list(one) == list(other)
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-12, atol=atol, err_msg=name)


@pytest.mark.parametrize("rule", RULES)
def test_it_is_an_adaptation_rule_that_can_be_told_the_prior(rule):
    assert isinstance(rule, Adaptation)
    assert rule.knows_prior


@pytest.mark.parametrize("kind", ["bias", "temperature", "none"])
@pytest.mark.parametrize("pseudo_counts", ["fitted", 5.0])
def test_what_is_fitted(kind, pseudo_counts):
    asked = participants(np.random.default_rng(0))
    fitted = fit(LabelShift(pseudo_counts=pseudo_counts, calibration=kind), asked)
    state = fitted.state
    scaled = {} if kind == "none" else {"inverse_temperature": (1,)}
    assert {name: values.shape for name, values in state.items()} == {
        **scaled,
        "base": (C,),
        "pseudo_counts": (1,),
        "a": (1,),
        "b": (C,),
        "strength": (1,),
        "correlation": (1,),
        "expected_gain": (3,),
    }
    held = np.bincount(np.concatenate([one.labels for one in asked]), minlength=C)
    np.testing.assert_allclose(state["base"], (held + 0.5) / (held.sum() + C / 2))
    assert state["pseudo_counts"][0] in (base.GRID if pseudo_counts == "fitted" else [5.0])
    assert (state["b"] != 0).any() == (kind == "bias")
    assert (state["a"][0] != 1) == (kind != "none")
    if kind == "none":
        assert fitted.exchanges == 3 + (pseudo_counts == "fitted")
    else:
        assert 0.2 < state["a"][0] < 0.5  # the model's logits are 3 times too large
        assert 5 <= fitted.exchanges <= 12


def test_the_fit_is_that_of_pooled_examples():
    asked = participants(np.random.default_rng(0))
    state = fit(LabelShift(), asked).state
    z = calibration.center_logits(np.concatenate([one.outputs.logits for one in asked]))
    labels, search = np.concatenate([one.labels for one in asked]), calibration.begin(C)
    while not calibration.is_settled(search):
        search = calibration.advance(search, calibration.likelihood(z, labels, search["candidate"]))
    np.testing.assert_allclose(np.append(state["a"], state["b"]), search["point"], atol=1e-9)
    shares = base.training_shares(sum(one.counts for one in asked))
    totals = sum(base.spread_likelihoods(one.counts, shares) for one in asked)
    assert state["pseudo_counts"][0] == base.fit_spread(totals)


def test_who_holds_which_example_changes_neither_calibration_nor_base():  # law 2
    asked, rng = participants(np.random.default_rng(0)), np.random.default_rng(1)
    logits = np.concatenate([one.outputs.logits for one in asked])
    labels, order = np.concatenate([one.labels for one in asked]), rng.permutation(400)
    cuts = np.split(order, [1, 30, 250])
    other = [HeldOut(Outputs(logits[cut]), labels[cut], asked[0].counts) for cut in cuts]
    one, two = (fit(LabelShift(pseudo_counts=1.0, strength=1.0), who).state for who in (asked, other))
    same(one, two, atol=1e-9)


def test_a_newton_step_costs_what_the_design_says():
    """1 + 11 + 66 numbers of 8 bytes: 0.6 kB for 10 classes; 33 for the temperature, and 41 for the spread."""
    asked = participants(np.random.default_rng(0), c=10)
    rule, answers, state = LabelShift(), [], NO_STATE
    for _ in range(3):
        query = rule.query(state)
        parts = [rule.contribute(query, *one) for one in asked]
        answers.append({name: values.size for name, values in parts[0].items()})
        state = rule.fold(state, {name: sum(part[name] for part in parts) for name in parts[0]})
    newton = {"loss": 1, "gradient": 11, "curvature": 66}
    assert answers == [{"held_out": 10, "scale_losses": 33, "trained": 10, **newton}, {"spread": 41, **newton}, newton]


def test_with_many_classes_no_exchange_has_more_than_a_few_numbers_a_class():
    """101 classes: three numbers a step for a, and c for each of three rounds; Newton's method would send 5,253."""
    asked = participants(np.random.default_rng(0), n=5, c=101)
    rule, state, sizes = LabelShift(), NO_STATE, []
    while (query := rule.query(state)) is not None:
        parts = [rule.contribute(query, *one) for one in asked]
        state = rule.fold(state, {name: sum(part[name] for part in parts) for name in parts[0]})
        sizes.append(sum(values.size for values in parts[0].values()))
    assert sizes[0] == 2 * 101 + 33 + 3
    assert sizes[1] == 41 + 3
    assert sizes[2:-2] == [3] * (len(sizes) - 7) + [101] * 3
    assert sizes[-2] == 101 * (1 + 32 + 1)  # predictions by class, on 32 directions
    assert sizes[-1] == 1 + 6 + 6 * 7 * 4 + 3 + 1 + 7 * 4
    held = np.bincount(np.concatenate([one.labels for one in asked]), minlength=101)
    logits = np.concatenate([one.outputs.logits for one in asked])
    mean = np.exp(log_softmax(state["a"] * logits + state["b"])).mean(axis=0)
    assert np.abs(mean - (held + 0.5) / (held.sum() + 101 / 2)).sum() / 2 < 0.03


def test_a_fit_that_was_stored_goes_on_to_the_same_bits():
    rule, asked = LabelShift(), participants(np.random.default_rng(0))
    state = NO_STATE
    while (query := rule.query(state)) is not None:
        parts = [rule.contribute(query, *one) for one in asked]
        state = rule.fold(
            state, {name: sum((part[name] for part in parts[1:]), start=parts[0][name]) for name in parts[0]}
        )
        stored = io.BytesIO()
        np.savez(stored, **state)
        stored.seek(0)
        state = dict(np.load(stored))
    whole = fit(rule, asked).state
    assert {name: values.tolist() for name, values in state.items()} == {n: v.tolist() for n, v in whole.items()}


def test_what_needs_no_calibration_costs_no_byte_of_it():
    rule, asked = LabelShift(calibration="none"), participants(np.random.default_rng(0))
    first = rule.contribute(NO_STATE, *asked[0])
    assert set(first) == {"held_out", "trained"}
    state = rule.fold(NO_STATE, {name: sum(rule.contribute(NO_STATE, *one)[name] for one in asked) for name in first})
    assert set(rule.contribute(rule.query(state), *asked[0])) == {"spread"}


def test_noised_counts_below_zero_count_as_zero():
    outputs, labels = inputs()
    counts = np.array([3.0, -2.0, 0.5, 0.0])
    assert LabelShift().contribute(NO_STATE, outputs, labels, counts)["trained"].tolist() == [3.0, 0.0, 0.5, 0.0]


@pytest.mark.parametrize("rule", RULES)
def test_before_any_input_it_is_the_calibrated_model(rule):
    state, (outputs, _) = source(BASE, a=0.3, b=np.array([0.1, -0.4, 0.0, 0.3])), inputs()
    expected = log_softmax(0.3 * calibration.center_logits(outputs.logits) + state["b"])
    np.testing.assert_allclose(rule.predict(state, rule.start(state), outputs), expected, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", ["constant u", "A without end", "prior is base"])
def test_where_nothing_is_learnt_it_is_the_calibrated_model(rule, case):  # law 6
    state, (outputs, _) = source(BASE, pseudo_counts=1e13 if case == "A without end" else 2.0), inputs()
    if case == "prior is base":
        client = rule.with_prior(state, BASE)
    else:
        client = adapted(rule, state, Outputs(np.log(np.tile(BASE, (9, 1)))) if case == "constant u" else outputs)
    calibrated = rule.predict(state, rule.start(state), outputs)
    np.testing.assert_allclose(rule.predict(state, client, outputs), calibrated, atol=1e-9)


def test_it_predicts_by_the_formula():
    rule, state, (outputs, _) = LabelShift(), source(BASE), inputs()
    client = adapted(rule, state, outputs)
    u = calibration.center_logits(outputs.logits) - np.log(BASE)
    (inferred,) = infer_priors([u], BASE, 2.0)
    w = 1 / (1 + 9 / np.exp(inferred.log_evidence))
    joint = np.exp(u) * (w * base.map_em(u, BASE, 2.0) + (1 - w) * BASE)
    expected = joint / joint.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(np.exp(rule.predict(state, client, outputs)), expected, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_inputs_one_by_one_are_inputs_at_once(rule):
    state, (outputs, _) = source(BASE), inputs()
    one_by_one = adapted(rule, state, *(Outputs(row[None]) for row in outputs.logits))
    same(one_by_one, adapted(rule, state, outputs))
    assert one_by_one["n"].tolist() == [30.0]


@pytest.mark.parametrize("rule", RULES)
def test_no_input_at_all_changes_nothing(rule):
    state, (outputs, _) = source(BASE), inputs()
    for client in (rule.start(state), adapted(rule, state, outputs)):
        same(rule.update(state, client, Outputs(np.zeros((0, C)))), client)


@pytest.mark.parametrize("rule", RULES)
def test_many_clients_at_once_are_each_client_alone(rule):
    state, many = source(BASE), [inputs(seed, m)[0] for seed, m in enumerate([30, 1, 0, 200, 7, 30])]
    clients = [rule.start(state)] * len(many)
    for _ in range(2):  # a second time, from what they then are
        alone = [rule.update(state, client, one) for client, one in zip(clients, many, strict=True)]
        together = rule.update_many(state, clients, many)
        for one, other in zip(together, alone, strict=True):
            same(one, other)
        clients = together
    assert rule.update_many(state, [], []) == []


@pytest.mark.parametrize("rule", RULES)
def test_classes_renamed_rename_predictions(rule):  # law 5
    order, (outputs, _) = np.array([2, 0, 3, 1]), inputs()
    b = np.array([0.1, -0.4, 0.0, 0.3])
    state, renamed = source(BASE, b=b), source(BASE[order], b=b[order])
    other = Outputs(outputs.logits[:, order])
    found = rule.predict(renamed, adapted(rule, renamed, other), other)
    np.testing.assert_allclose(found, rule.predict(state, adapted(rule, state, outputs), outputs)[:, order], atol=1e-9)


def test_the_order_of_inputs_changes_no_bit():
    """Nor do pieces; a tie is no exception, and equal inputs are not."""
    rule, state, (outputs, _) = LabelShift(), source(BASE), inputs(m=30)
    z = np.concatenate([outputs.logits, outputs.logits[:5], outputs.logits[:4, [1, 0, 2, 3]]])
    expected = adapted(rule, state, Outputs(z))
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(z))
        found = adapted(rule, state, *(Outputs(part) for part in np.array_split(z[order], seed + 1)))
        assert {name: values.tolist() for name, values in found.items()} == {
            name: values.tolist() for name, values in expected.items()
        }


def test_online_a_client_keeps_no_input_and_the_prequential_prior():
    rule, state, (outputs, _) = LabelShift(online=True, half_life="never"), source(BASE), inputs()
    client = adapted(rule, state, outputs)
    assert sum(values.size for values in client.values()) == 3 * C + 6
    np.testing.assert_allclose(client["prior"], (2 * BASE + client["stream_counts"][0]) / 32)


@pytest.mark.parametrize("rule", RULES)
def test_predicting_online_is_to_predict_and_then_to_learn(rule):
    state, (outputs, _) = source(BASE), inputs()
    stepwise, client = replace(rule, online=True), rule.start(state)
    predicted, after = rule.predict_online(state, client, outputs)
    learned = rule.update(state, client, outputs)
    same({name: after[name] for name in learned}, learned)
    client = stepwise.start(state)
    for row, found in zip(outputs.logits, predicted, strict=True):
        np.testing.assert_allclose(found, stepwise.predict(state, client, Outputs(row[None]))[0], atol=1e-12)
        client = stepwise.update(state, client, Outputs(row[None]))


def test_a_shifted_client_gains_and_one_alike_keeps_what_it_had():
    rule, state, gains = LabelShift(), source(BASE), {}
    for name, prior in (("shifted", SHIFTED), ("alike", BASE)):
        right = []
        for seed in range(40):
            outputs, labels = inputs(seed, 100, prior)
            client = adapted(rule, state, outputs)
            right.append(
                [(p.argmax(axis=1) == labels).mean() for p in (rule.predict(state, client, outputs), outputs.logits)]
            )
        gains[name] = float(np.diff(np.mean(right, axis=0)[::-1])[0])
    assert gains["shifted"] > 0.1
    assert abs(gains["alike"]) < 0.01


def test_told_its_prior_a_client_predicts_by_bayes():
    rule, state, (outputs, _) = LabelShift(), source(BASE), inputs()
    joint = np.exp(outputs.logits) / BASE * SHIFTED
    found = np.exp(rule.predict(state, rule.with_prior(state, SHIFTED), outputs))
    np.testing.assert_allclose(found, joint / joint.sum(axis=1, keepdims=True), atol=1e-12)


def test_no_argument_is_written_to():
    rule, state, (outputs, _) = LabelShift(), source(BASE), inputs()
    client = adapted(rule, state, outputs)
    for values in (*state.values(), *client.values(), outputs.logits):
        values.flags.writeable = False
    rule.update(state, client, outputs)
    rule.update_many(state, [client], [outputs])
    rule.predict_online(state, client, outputs)
    for one in participants(np.random.default_rng(0), n=1):
        one.outputs.logits.flags.writeable = False
        fit(rule, [one])


@pytest.mark.parametrize(
    "options",
    [
        {"odds": -1.0},
        {"pseudo_counts": 0.0},
        {"pseudo_counts": float("nan")},
        {"pseudo_counts": "fit"},
        {"calibration": "b"},
        {"half_life": 0.0},
    ],
)
def test_options_outside_their_range_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        LabelShift(**options)


def test_without_anybody_to_fit_by_it_says_so():
    with pytest.raises(DataError, match="LabelShift is fitted to held-out examples of participants; got none"):
        fit(LabelShift(), [])
