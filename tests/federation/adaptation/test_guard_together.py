"""Clients that are guarded together: as the plain guard decides for each, and with no question that changes nothing."""

import dataclasses
import math

import numpy as np
import pytest

from fedreach.federation.adaptation import safeguard
from fedreach.federation.adaptation.base import log_softmax, weights
from fedreach.federation.adaptation.fitting import HeldOut, fit
from fedreach.federation.adaptation.inference import infer_priors, input_order
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.adaptation.safeguard import Guard, Values
from fedreach.federation.types import Outputs

from .plain_guard import decided_plainly, decisions
from .test_guard import BASE, SHIFTED, STATE, C, draw, model, participants, prior_of

RULES = [Guard(), Guard(most_left=math.inf), Guard(k=math.inf, allowance=1.0), Guard(c=0.0), Guard(repair=False)]
RULES.append(Guard(k=1.3, power=0.0))


def many():
    """Clients of many lengths whose inputs need nothing, are darker or brighter, mirrored, noisy, or a little off."""
    rng, found = np.random.default_rng(40), []
    for n in (0, 1, 2, 7, 40, 150):
        inputs = draw(n, SHIFTED, rng)[0]
        noisy = (inputs + rng.standard_normal(inputs.shape)).astype(np.float32)
        found += [inputs, 0.4 * inputs, inputs + 1, inputs[:, :, ::-1], noisy, inputs + np.float32(0.1)]
    return [model(inputs) for inputs in found]


def states():
    """Fitted by many examples, and by so few that they say little of how large residuals are."""
    rule = LabelShift(calibration="none", pseudo_counts=4.0, strength=1.0)
    for outputs, labels in (participants(2000), participants(60)):
        yield fit(rule, [HeldOut(outputs, labels, np.ones(C))]).state


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rule", RULES)
def test_together_clients_do_what_each_does_alone_step_by_step(rule):
    words = set()
    for state in states():
        clients = many()
        for one, outputs in zip(decisions(rule, state, clients, BASE, prior_of), clients, strict=True):
            plain = decided_plainly(rule, state, outputs, BASE, prior_of)
            assert one.words == plain.words
            np.testing.assert_allclose(one.prior, plain.prior, atol=1e-5)  # repaired inputs are rounded to float32
            np.testing.assert_allclose(one.intensity, plain.intensity, rtol=1e-6, atol=1e-6)
            tolerance = {"rtol": 1e-4, "atol": 1e-5} if one.repaired else {"rtol": 1e-9, "atol": 1e-9}
            for name in ("drift", "total_drift", "signal", "distance"):
                np.testing.assert_allclose(getattr(one, name), getattr(plain, name), err_msg=name, **tolerance)
            words.add(one.words)
    if rule == Guard():
        assert words >= {"adapted", "abstained", "repaired, adapted"}


def test_the_model_is_not_asked_again_where_no_repair_could_be_accepted():
    asked = []

    def again(inputs):
        asked.append(len(inputs))
        return dataclasses.replace(model(inputs), again=again)

    rng = np.random.default_rng(41)
    for change, times in ((0.0, 0), (1.0, safeguard.PASSES)):
        outputs = dataclasses.replace(model((draw(300, SHIFTED, rng)[0] + change).astype(np.float32)), again=again)
        decisions(Guard(), STATE, [outputs], BASE, prior_of)
        assert asked == [300] * times


@pytest.mark.parametrize("state", [*states()])
def test_guarded_clients_at_once_are_each_client_alone(state):
    rule, outputs = LabelShift(), many()
    clients = [rule.start(state)] * len(outputs)
    for _ in range(2):  # a second time, from what they then are
        together = rule.update_many(state, clients, outputs)
        for client, one, found in zip(clients, outputs, together, strict=True):
            alone = rule.update(state, client, one)
            assert list(alone) == list(found)
            for name in alone:
                np.testing.assert_array_equal(found[name], alone[name], err_msg=name)
        clients = together
    assert {float(client["repaired"][0]) for client in clients} == {0.0, 1.0}


def test_clients_with_and_without_features_keep_their_places():
    rule, (state, _) = LabelShift(), states()
    rng = np.random.default_rng(42)
    guarded = [model(draw(n, SHIFTED, rng)[0]) for n in (9, 4, 30)]
    mixed = [guarded[0], Outputs(guarded[1].logits), guarded[2]]
    found = rule.update_many(state, [rule.start(state)] * 3, mixed)
    assert [("adapted" in one, one["n"].tolist()) for one in found] == [(True, [9.0]), (False, [4.0]), (True, [30.0])]


@pytest.mark.parametrize("calibration", ["bias", "temperature"])
def test_what_the_guard_fits_is_kept_in_float32_whatever_is_calibrated_beside_it(calibration):
    outputs, labels = participants(300)
    asked = [HeldOut(outputs, labels, np.ones(C))]
    plain, calibrated = (fit(LabelShift(calibration=kind), asked).state for kind in ("none", calibration))
    kept = {name for name in plain if name.startswith("guard_")}
    assert "guard_residual" in kept
    assert {name for name in calibrated if name.startswith("guard_")} == kept
    for name in kept:
        assert (calibrated[name].dtype, calibrated[name].tolist()) == (np.float32, plain[name].tolist())


@pytest.mark.parametrize("with_inputs", [True, False])
@pytest.mark.parametrize("change", [0.0, 1.0])
def test_a_guarded_client_decides_on_all_that_it_has_seen_however_that_came(change, with_inputs):
    rule, state = LabelShift(), next(states())
    whole = model((draw(60, SHIFTED, np.random.default_rng(43))[0] + change).astype(np.float32))
    if not with_inputs:
        whole = dataclasses.replace(whole, inputs=None, again=None)
    at_once = rule.update(state, rule.start(state), whole)
    assert at_once["repaired"][0] == (change != 0 and with_inputs)
    first, second, third = (whole.at(part) for part in (slice(9), slice(9, 30), slice(30, None)))
    _, online = rule.predict_online(state, rule.update(state, rule.start(state), first), second)
    in_parts = rule.update(state, online, third)
    assert set(in_parts) == set(at_once)
    for name, values in at_once.items():
        np.testing.assert_allclose(in_parts[name], values, rtol=1e-9, atol=1e-9, err_msg=name)
    order = input_order(whole.logits, whole.features, whole.inputs)
    for name in ("logits", "features", "inputs"):  # what it needs for that, in an order of its own
        kept = getattr(whole, name)
        assert (name in at_once) == (kept is not None)
        if kept is not None:
            np.testing.assert_array_equal(in_parts[name], kept[order])


def test_a_client_keeps_what_was_decided_and_predicts_later_inputs_by_it():
    rule, state, words = LabelShift(), next(states()), set()
    base, spread = state["base"], float(state["pseudo_counts"][0])
    later = draw(20, SHIFTED, np.random.default_rng(44))[0]

    def prior_of(outputs):
        u = outputs.logits - np.log(base)  # calibration is "none"
        (found,) = infer_priors([u - u.mean(axis=1, keepdims=True)], base, spread, 0.0, rule.amplification)
        return found.prior, weights(np.array([found.log_evidence]), rule.odds)[0]

    for outputs in many():
        if len(outputs.logits) < 2:
            continue
        client, plain = (
            rule.update(state, rule.start(state), outputs),
            decided_plainly(Guard(), state, outputs, base, prior_of),
        )
        words.add(plain.words)
        assert (client["adapted"][0], client["repaired"][0]) == (plain.adapt, plain.repaired)
        for name in ("signal", "drift", "total_drift"):
            np.testing.assert_allclose(client[name][0], getattr(plain, name), rtol=1e-4, atol=1e-4, err_msg=name)
        assert client["distance"][0] == pytest.approx(plain.distance, rel=0.05)  # there by raw logits
        found = np.concatenate([client["scale"], client["shift"]])
        np.testing.assert_allclose(found, np.concatenate(plain.intensity), rtol=1e-5, atol=1e-5)
        # Later inputs are repaired as these were, and go by the client's prior, or as they are.
        logits = model((plain.intensity.scale * later + plain.intensity.shift).astype(np.float32)).logits
        w = plain.weight
        told = np.log(w * plain.prior + (1 - w) * base) - np.log(base) if plain.adapt else 0.0
        expected = log_softmax(logits + told)
        np.testing.assert_allclose(rule.predict(state, client, model(later)), expected, rtol=1e-3, atol=1e-3)
    assert words >= {"adapted", "abstained", "repaired, adapted"}


@pytest.mark.parametrize("values", [[3.0, 3.0, 4.0], [1e6, 1e6 + 1, 1e6 + 3], [-2.0] * 50 + [7.0]])
def test_values_are_numpys_mean_and_deviation_however_large_the_mean(values):
    inputs = np.tile(np.array(values, np.float32), (20_000, 1))  # more than are summed at a time
    found = Values.of(inputs)
    np.testing.assert_allclose(found, [[inputs.mean(dtype=float)], [inputs.std(dtype=float)]], rtol=1e-12)
