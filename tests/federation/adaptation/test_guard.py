"""The guard against features that drift, on Gaussian classes whose exact likelihoods are known.

Inputs are 8 by 8 "images" of C classes: a background, a pattern for each class, and white noise. The model is linear,
features h = x W, and its logits are the exact log likelihoods of h, so that EM finds the true class shares.
"""

import dataclasses
import math
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from fedreach.federation.adaptation import safeguard
from fedreach.federation.adaptation.safeguard import (
    Guard,
    GuardedOutputs,
    Intensity,
    Values,
    channels_to_repair,
    drift_deviation,
    intensity,
    least_gone_by_colors,
)
from fedreach.federation.types import Outputs

from .plain_guard import classes, decided

C, H, V, NOISE = 4, 12, 64, 1.0
BASE = np.full(C, 1 / C)
_rng = np.random.default_rng(0)
PATTERNS = _rng.uniform(0, 2, V) + 0.8 * _rng.standard_normal((C, V))
W = _rng.standard_normal((V, H))
PRECISION = np.linalg.inv(NOISE**2 * W.T @ W)


def model(inputs):
    """What the model says of (m, 8, 8) inputs."""
    features = inputs.reshape(len(inputs), V).astype(float) @ W
    means = PATTERNS @ W
    logits = features @ PRECISION @ means.T - 0.5 * np.einsum("ch,hk,ck->c", means, PRECISION, means)
    return Outputs(logits, features, inputs, model)


def draw(n, prior, rng):
    labels = rng.choice(C, n, p=prior)
    inputs = PATTERNS[labels] + NOISE * rng.standard_normal((n, V))
    return inputs.reshape(n, 8, 8).astype(np.float32), labels


def added(parts):
    return {name: sum(part[name] for part in parts) for name in parts[0]}


def fitted(parts, ridge=safeguard.RIDGE, c=C):
    """The state after both exchanges with participants, (outputs, labels) each."""
    state = safeguard.first_fit(added([safeguard.first_sums(*part, c) for part in parts]), ridge)
    query = safeguard.second_query(state)
    return safeguard.second_fit(state, added([safeguard.second_sums(query, *part) for part in parts]))


def participants(n=40_000, seed=1):
    inputs, labels = draw(n, BASE, np.random.default_rng(seed))
    return model(inputs), labels


STATE = fitted([participants()])
FRAME = safeguard.Frame.of(STATE)


def prior_of(outputs):
    """EM for the class shares, with four pseudo-counts; w is 1."""
    likelihood = np.exp(outputs.logits - outputs.logits.max(axis=1, keepdims=True))
    prior = BASE
    for _ in range(100):
        q = likelihood * prior
        prior = ((q / q.sum(axis=1, keepdims=True)).sum(axis=0) + 4 * BASE) / (len(q) + 4)
    return prior, 1.0


def decide(inputs, rule=None, state=STATE):
    return decided(rule or Guard(), state, model(inputs.astype(np.float32)), BASE, prior_of)


SHIFTED = np.array([0.85, 0.05, 0.05, 0.05])


# Drift


@pytest.mark.parametrize("prior", [BASE, SHIFTED, np.array([0.0, 0.0, 1.0, 0.0])])
def test_label_shift_is_no_drift_in_mean(prior):
    rng = np.random.default_rng(2)
    draws = [safeguard.drift(FRAME.residuals(model(draw(10, prior, rng)[0]).features)) for _ in range(2000)]
    deviation = safeguard.drift_deviation(FRAME.dimensions, 10)
    assert abs(np.mean(draws)) < 4 * deviation / math.sqrt(2000)
    # The ridge of 3 % makes residuals smaller than white ones by as much on average.
    assert 0.85 * deviation < np.std(draws) < 1.1 * deviation


@pytest.mark.parametrize("examples", [60, 120, 1000])
def test_few_held_out_examples_make_drift_of_none_by_as_much_as_is_taken_off(examples):
    """Over many fits: D, and the residuals' size against the participants', of clients that do not differ."""
    rng = np.random.default_rng(30)
    found, said = [], []
    for seed in range(60):
        state = fitted([participants(examples, seed)], ridge=0.0)
        frame = safeguard.Frame.of(state)
        r = frame.residuals(model(draw(400, SHIFTED, rng)[0]).features)
        usual, log_factor = safeguard.sampling_terms(state, frame.dimensions, SHIFTED)
        found.append((safeguard.drift(r), (r**2).sum(axis=1).mean() / (state["guard_residual"] @ SHIFTED)))
        said.append((usual, math.exp(log_factor)))
    (drifts, factors), (usual, expected) = np.mean(found, axis=0), np.mean(said, axis=0)
    assert drifts == pytest.approx(usual, rel=0.5, abs=0.02)
    assert factors == pytest.approx(expected, rel=0.25)


def test_a_constant_shift_has_its_squared_length_off_the_span_as_drift():
    rng = np.random.default_rng(3)
    delta = 6.0 * rng.standard_normal(H)
    moved = FRAME.whiten @ delta
    expected = ((moved - FRAME.span @ (FRAME.span.T @ moved)) ** 2).sum()
    draws = [safeguard.drift(FRAME.residuals(model(draw(10, SHIFTED, rng)[0]).features + delta)) for _ in range(2000)]
    assert np.mean(draws) == pytest.approx(expected, abs=4 * np.std(draws) / math.sqrt(2000))
    assert expected > 1


def test_drift_is_the_mean_of_products_of_two_different_inputs():
    r = np.random.default_rng(4).standard_normal((5, 3))
    products = [r[i] @ r[j] for i in range(5) for j in range(5) if i != j]
    assert safeguard.drift(r) == pytest.approx(np.mean(products))
    assert safeguard.drift(r[::-1]) == pytest.approx(safeguard.drift(r))
    assert math.isnan(safeguard.drift(r[:1]))


@pytest.mark.parametrize("ridge", [0.0, safeguard.RIDGE])
def test_linear_maps_of_the_features_change_nothing(ridge):
    """Any that can be undone without a ridge; with it, those that keep ratios of lengths."""
    rng = np.random.default_rng(5)
    a = rng.standard_normal((H, H)) if ridge == 0 else 3 * np.linalg.qr(rng.standard_normal((H, H)))[0]
    outputs, labels = participants(2000)
    client = model(draw(20, SHIFTED, rng)[0] + 0.2)
    found = []
    for mapped in (np.eye(H), a):
        state = fitted([(dataclasses.replace(outputs, features=outputs.features @ mapped + 1.0), labels)], ridge)
        frame = safeguard.Frame.of(state)
        r = frame.residuals(client.features @ mapped + 1.0)
        found.append([safeguard.drift(r), frame.signal(SHIFTED, BASE), *state["guard_residual"]])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


def test_renumbered_classes_are_decided_alike():
    order = np.array([2, 0, 3, 1])
    outputs, labels = participants(2000)
    renumbered = fitted([(dataclasses.replace(outputs, logits=outputs.logits[:, order]), np.argsort(order)[labels])])
    client = model(draw(20, SHIFTED, np.random.default_rng(6))[0] * 0.5)
    client = dataclasses.replace(client, again=None)
    one = decided(Guard(), fitted([(outputs, labels)]), client, BASE, prior_of)
    other = decided(Guard(), renumbered, dataclasses.replace(client, logits=client.logits[:, order]), BASE, prior_of)
    for name in ("drift", "total_drift", "signal"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-6), name


# What participants contribute


def test_it_does_not_matter_who_holds_which_example():
    outputs, labels = participants(1200)
    parts = []
    for rows in np.split(np.random.default_rng(7).permutation(1200), [1, 300, 301, 900]):
        part = Outputs(outputs.logits[rows], outputs.features[rows], outputs.inputs[rows])
        parts.append((part, labels[rows]))
    one, many = fitted([(outputs, labels)]), fitted(parts)
    assert list(one) == list(many)
    for name, values in one.items():
        np.testing.assert_allclose(values, many[name], rtol=1e-8, atol=1e-10, err_msg=name)


def test_the_state_of_100_features_and_10_classes_has_24_5_kilobytes_in_float32():
    rng = np.random.default_rng(8)
    outputs = Outputs(rng.standard_normal((400, 10)), rng.standard_normal((400, 100)), np.ones((400, 4), np.float32))
    labels = np.arange(400) % 10
    first = safeguard.first_sums(outputs, labels, 10)
    state = safeguard.first_fit(first)
    second = safeguard.second_sums(safeguard.second_query(state), outputs, labels)
    sizes = [sum(a.size for a in part.values()) for part in (first, second, safeguard.second_fit(state, second))]
    assert sizes == [6080, 60, 6130]
    assert sum(a.size for a in safeguard.second_query(state).values()) == 6050
    assert all(values.dtype == np.float64 for part in (first, second) for values in part.values())


def test_a_state_in_float32_decides_alike():
    state = {name: values.astype(np.float32) for name, values in STATE.items()}
    inputs = draw(30, SHIFTED, np.random.default_rng(9))[0] * 0.5 + 1
    one, other = decide(inputs), decide(inputs, state=state)
    assert one.words == other.words == "repaired, adapted"
    assert one.total_drift == pytest.approx(other.total_drift, abs=1e-3)


def test_a_class_that_nobody_holds_adds_nothing():
    outputs, labels = participants(2000)
    held = labels != 3
    part = Outputs(outputs.logits[held], outputs.features[held], outputs.inputs[held])
    state = fitted([(part, labels[held])])
    assert safeguard.Frame.of(state).span.shape == (H, C - 2)
    np.testing.assert_allclose(state["guard_means"][3], part.features.mean(axis=0))
    assert all(np.isfinite(values).all() for values in state.values())
    # Its share may be anything: what signal there is comes from the others.
    frame = safeguard.Frame.of(state)
    assert frame.signal(np.array([0, 0, 0, 1.0]), np.bincount(labels[held], minlength=C) / held.sum()) < 1e-20


def test_one_class_or_one_example_is_enough_to_fit():
    outputs, labels = participants(50)
    for rows in (labels == 0, np.arange(50) == 0):
        part = Outputs(outputs.logits[rows], outputs.features[rows], outputs.inputs[rows])
        state = fitted([(part, labels[rows])])
        assert safeguard.Frame.of(state).dimensions == H
        assert all(np.isfinite(values).all() for values in state.values())
        decide(draw(5, BASE, np.random.default_rng(10))[0], state=state)


def test_where_class_means_span_everything_no_drift_is_seen():
    outputs, labels = participants(2000)
    narrow = dataclasses.replace(outputs, features=outputs.features[:, : C - 1])
    state = fitted([(narrow, labels)])
    frame = safeguard.Frame.of(state)
    assert frame.dimensions == 0
    few = Outputs(narrow.logits[:9], narrow.features[:9] + 50)
    assert decided(Guard(), state, few, BASE, prior_of).total_drift < 1e-9


# Repair


def test_brightness_and_contrast_make_no_difference_to_a_repair():
    inputs, _ = draw(7, SHIFTED, np.random.default_rng(12))
    plain = intensity(STATE, Values.of(inputs), SHIFTED).of(inputs)
    for scale, shift in ((0.3, 0.0), (1.0, -2.0), (5.0, 1.0)):
        changed = (scale * inputs + shift).astype(np.float32)
        np.testing.assert_allclose(intensity(STATE, Values.of(changed), SHIFTED).of(changed), plain, atol=1e-5)


def test_a_repair_of_repaired_inputs_changes_nothing():
    inputs, _ = draw(7, SHIFTED, np.random.default_rng(13))
    changed = 4 * inputs + 1
    repaired = intensity(STATE, Values.of(changed), SHIFTED).of(changed)
    scale, shift = intensity(STATE, Values.of(repaired), SHIFTED)
    assert (scale, shift) == (pytest.approx([1], abs=1e-5), pytest.approx([0], abs=1e-5))


@pytest.mark.parametrize("prior", [BASE, SHIFTED])
def test_inputs_that_need_no_repair_are_left_as_they_are(prior):
    inputs, _ = draw(4000, prior, np.random.default_rng(14))  # 256,000 values: a standard error of .002
    scale, shift = intensity(STATE, Values.of(inputs), prior)
    assert (scale, shift) == (pytest.approx([1], abs=0.01), pytest.approx([0], abs=0.01))


def test_only_inputs_with_an_intensity_are_repaired():
    images = draw(3, BASE, np.random.default_rng(15))[0]
    assert channels_to_repair(model(images), STATE) == [1]
    words = Outputs(np.zeros((3, C)), None, np.arange(192).reshape(3, 64), model)
    table = Outputs(np.zeros((3, C)), None, images.reshape(3, V)[:, :20], model)
    for outputs in (words, table, model(0 * images + 1), dataclasses.replace(model(images), again=None)):
        assert not channels_to_repair(outputs, STATE)


def in_color(inputs):
    """The same values as images of 4 by 4 in four colors."""
    return inputs.reshape(-1, 4, 4, 4)


@cache
def state_in_color():
    outputs, labels = participants(2000)
    return fitted([(dataclasses.replace(outputs, inputs=in_color(outputs.inputs)), labels)])


LIGHT = np.array([1.8, 1.0, 0.6, 0.3], np.float32)[:, None, None]


def test_light_of_another_color_is_repaired_color_by_color():
    inputs = in_color(draw(200, SHIFTED, np.random.default_rng(31))[0])
    plain, lit = decide(inputs, state=state_in_color()), decide(LIGHT * inputs, state=state_in_color())
    assert (plain.repaired, lit.repaired) == (False, True)
    np.testing.assert_allclose(lit.intensity.scale, 1 / LIGHT.ravel(), rtol=0.1)
    np.testing.assert_allclose(lit.intensity.of(LIGHT * inputs), inputs, atol=0.4)


def test_a_repair_by_colors_that_leaves_some_drift_is_refused(monkeypatch):
    inputs = LIGHT * in_color(draw(200, SHIFTED, np.random.default_rng(31))[0])
    whole = Guard._total
    left = 1.1  # beside 1 that may be left

    def total(self, state, frame, chosen):
        return left if len(chosen.intensity.scale) > 1 else whole(self, state, frame, chosen)

    monkeypatch.setattr(Guard, "_total", total)
    assert len(decide(inputs, state=state_in_color()).intensity.scale) == 1
    left = 0.9
    assert len(decide(inputs, state=state_in_color()).intensity.scale) == 4


def test_brightness_that_all_colors_share_is_repaired_by_two_numbers():
    inputs = in_color(draw(200, SHIFTED, np.random.default_rng(32))[0])
    dark = decide(0.4 * inputs + 1, state=state_in_color())
    assert dark.repaired
    assert dark.intensity.scale == pytest.approx([1 / 0.4], rel=0.05)


def test_a_color_without_contrast_is_moved_and_others_are_repaired():
    inputs = in_color(draw(50, BASE, np.random.default_rng(33))[0])
    inputs[:, 2] = 7.0
    scale, shift = intensity(state_in_color(), Values.of(inputs, 4), BASE)
    assert scale[2] == 1
    assert np.isfinite(shift).all()
    moved = Intensity(scale, shift).of(inputs)
    assert moved[:, 2].mean() == pytest.approx(state_in_color()["guard_value_mean"][2] @ BASE, abs=1e-4)


def test_inputs_of_other_colors_than_the_participants_are_not_repaired():
    inputs = draw(3, BASE, np.random.default_rng(34))[0]
    two = dataclasses.replace(model(inputs), inputs=inputs.reshape(3, 2, 4, 8))
    assert channels_to_repair(two, state_in_color()) == []
    assert channels_to_repair(model(in_color(inputs)), state_in_color()) == [1, 4]


@pytest.mark.parametrize(("n", "least"), [(5, 2.0), (20, 2.0), (200, 0.5)])
def test_many_inputs_need_less_drift_to_be_repaired_color_by_color(n, least):
    assert least_gone_by_colors(drift_deviation(60, n)) == pytest.approx(least, abs=0.3)


# Decisions


@pytest.mark.parametrize("n", [20, 200])
def test_clients_with_label_shift_only_adapt(n):
    rng = np.random.default_rng(16)
    found = [decide(draw(n, SHIFTED, rng)[0]).words for _ in range(50)]
    assert found.count("adapted") >= 48


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 1.0), (1.0, -2.0), (0.3, 0.0), (0.5, 0.8), (2.0, -0.5)])
def test_brightness_and_contrast_are_repaired_and_later_inputs_alike(scale, shift):
    rng = np.random.default_rng(17)
    inputs, _ = draw(100, SHIFTED, rng)
    plain, changed = decide(inputs), decide(scale * inputs + shift)
    assert (plain.words, changed.words) == ("adapted", "repaired, adapted")
    np.testing.assert_allclose(changed.prior, plain.prior, atol=0.05)
    # 1 / scale and -shift / scale undo the change; what remains is the error of 6400 values, and of the prior.
    assert changed.intensity.scale == pytest.approx([1 / scale], rel=0.05)
    assert changed.intensity.shift == pytest.approx([-shift / scale], abs=0.05)
    np.testing.assert_allclose(changed.outputs.inputs, inputs, atol=0.25)
    later, labels = draw(1000, SHIFTED, rng)
    seen = [model(x).logits.argmax(axis=1) for x in (later, changed.intensity.of(scale * later + shift))]
    assert (seen[1] == labels).mean() > (seen[0] == labels).mean() - 0.02


@pytest.mark.parametrize("n", [5, 20, 200])
def test_mirrored_images_have_the_same_intensity_and_are_left_alone(n):
    inputs = draw(n, BASE, np.random.default_rng(18))[0][:, :, ::-1]
    decision = decide(inputs)
    assert decision.words == "abstained"
    assert decision.intensity == Intensity(1.0, 0.0)
    np.testing.assert_array_equal(decision.outputs.inputs, inputs)
    # What a mirror moves the mean of the features by, off the span.
    delta = (PATTERNS.reshape(C, 8, 8)[:, :, ::-1].reshape(C, V) - PATTERNS).mean(axis=0) @ W @ FRAME.whiten
    expected = delta @ delta - ((delta @ FRAME.span) ** 2).sum()
    assert decision.drift == pytest.approx(expected, rel=0.5)
    assert expected > 4


def test_a_repair_that_leaves_much_drift_may_be_refused():
    """Each image has a brightness of its own: a repair moves the mean and pales the rest."""
    rng = np.random.default_rng(0)
    own = 2 + 2 * rng.standard_normal((20, 1, 1))
    for change, found, strict in (
        (own, "repaired, abstained", "abstained"),
        (2.0, "repaired, adapted", "repaired, adapted"),
    ):
        inputs = draw(20, SHIFTED, rng)[0] + change
        assert (decide(inputs, Guard(most_left=math.inf)).words, decide(inputs).words) == (found, strict)


def test_without_thresholds_and_repair_and_with_k_0_clients_always_adapt():
    rule = Guard(k=0, threshold=-math.inf, min_weight=0, repair=False)
    rng = np.random.default_rng(19)
    for change in (0.0, 1.0, 30.0):
        inputs = draw(20, BASE, rng)[0] + change
        decision = decide(inputs, rule)
        assert decision.words == "adapted"
        np.testing.assert_array_equal(decision.prior, prior_of(model(inputs.astype(np.float32)))[0])


def test_with_infinite_k_clients_adapt_only_where_there_is_hardly_any_drift():
    rng, words = np.random.default_rng(20), set()
    for change in np.linspace(0, 0.3, 40):
        decision = decide(draw(50, SHIFTED, rng)[0] + change, Guard(k=math.inf, repair=False))
        assert decision.adapt == (decision.total_drift <= 0.5)
        words.add(decision.words)
    assert words == {"adapted", "abstained"}


def test_an_allowance_adds_standard_deviations_of_drift_to_the_threshold():
    rng = np.random.default_rng(21)
    deviation = safeguard.drift_deviation(FRAME.dimensions, 5)
    for _ in range(40):
        decision = decide(draw(5, SHIFTED, rng)[0], Guard(k=math.inf, allowance=1.0, repair=False))
        assert decision.adapt == (decision.total_drift <= 0.5 + deviation)


def test_with_little_weight_a_client_adapts_only_where_there_is_hardly_any_drift():
    inputs = draw(50, SHIFTED, np.random.default_rng(22))[0] + 0.3
    for weight, words in ((0.04, "abstained"), (0.06, "adapted")):
        found = decided(
            Guard(k=1.3, power=0, repair=False, c_logits=0),
            STATE,
            model(inputs),
            BASE,
            lambda o, w=weight: (prior_of(o)[0], w),
        )
        assert found.signal > 1.3 * found.total_drift > 1.3 * 0.5
        assert found.words == words


def test_a_single_input_is_left_alone_and_none_are_too():
    for n in (0, 1):
        inputs = draw(n, BASE, np.random.default_rng(23))[0]
        decision = decide(inputs)
        assert decision.words == "abstained"
        assert math.isnan(decision.drift)


def test_two_inputs_are_enough_to_decide():
    decision = decide(draw(2, BASE, np.random.default_rng(24))[0])
    assert math.isfinite(decision.total_drift)


def test_without_features_the_guard_is_off():
    outputs = Outputs(np.zeros((5, C)))
    assert safeguard.first_sums(outputs, np.zeros(5, np.int64), C) == {}
    assert fitted([(outputs, np.zeros(5, np.int64))]) == {}
    for state in ({}, STATE):
        decision = decided(Guard(), state, outputs, BASE, prior_of)
        assert decision.words == "adapted"
        assert np.isnan([decision.signal, decision.drift, decision.total_drift]).all()


def test_without_inputs_nothing_is_repaired_but_drift_is_seen():
    parts = participants(2000)
    state = fitted([(Outputs(parts[0].logits, parts[0].features), parts[1])])
    client = model(draw(20, BASE, np.random.default_rng(25))[0] + 3)
    assert decided(Guard(), state, client, BASE, prior_of).words == "abstained"
    bare = Outputs(client.logits, client.features)
    assert decided(Guard(), STATE, bare, BASE, prior_of).words == "abstained"


def test_the_estimate_is_asked_for_at_most_four_times():
    asked = []
    outputs = model(draw(30, SHIFTED, np.random.default_rng(26))[0] * 0.3)

    def priors_of(some):
        asked.extend(some)
        return np.stack([prior_of(one)[0] for one in some])

    Guard().choose(STATE, [outputs], BASE, priors_of, classes)
    assert len(asked) == 4 == safeguard.PASSES + 1


@pytest.mark.parametrize(
    "wrong",
    [{"k": -1}, {"min_weight": 1.5}, {"c": math.inf}, {"t0": -1}, {"allowance": -1}, {"most_left": -1}, {"power": -1}],
)
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Guard(**wrong)


def test_of_all_values_together_the_colors_differ_too():
    state = {"guard_value_mean": np.array([[0.0], [2.0]]), "guard_value_variance": np.array([[1.0], [3.0]])}
    pooled = Values(np.ones(1), np.sqrt([3.0]))  # mean of 0 and 2, variance 2 within and 1 between
    np.testing.assert_allclose(intensity(state, pooled, np.ones(1)), [[1.0], [0.0]], atol=1e-12)


@pytest.mark.parametrize(
    ("before", "after", "is_accepted"),
    [
        (10.0, 4.9, True),
        (10.0, 5.1, False),  # less than half is gone
        (3.0, 0.9, True),
        (3.0, 1.1, False),  # more than half is gone, but less than 2
        (30.0, 8.9, True),
        (30.0, 9.1, False),  # more than 8 + 2 sd(D) is left
    ],
)
def test_a_repair_must_take_away_most_of_the_drift_and_leave_little(before, after, is_accepted, monkeypatch):
    monkeypatch.setattr(safeguard, "intensity", lambda *arguments: Intensity())
    inputs, _ = draw(5, BASE, np.random.default_rng(0))
    frame = SimpleNamespace(residue=lambda outputs: SimpleNamespace(drift=after))
    plain = GuardedOutputs(model(inputs), BASE, deviation=0.5)
    earlier = SimpleNamespace(residue=SimpleNamespace(drift=before))
    steps = safeguard._try_repair({}, frame, plain, earlier, 1, safeguard.LEAST_GONE)
    (repaired,) = safeguard._run_together([steps], lambda outputs: np.tile(BASE, (len(outputs), 1)))
    assert (repaired is not None) == is_accepted
