"""What participants decide of unlabeled inputs, on clients whose kind of difference is known."""

import numpy as np
import pytest

from fedreach.deploy.adapter import Adapter
from fedreach.evaluation.scores import HARM_POINTS
from fedreach.federation.adaptation import trust
from fedreach.federation.adaptation.base import log_softmax
from fedreach.federation.adaptation.calibration import (
    advance,
    begin,
    center_logits,
    is_settled,
    leave_one_out_point,
    likelihood,
)
from fedreach.federation.adaptation.fitting import HeldOut, fit
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.types import Outputs

from .worlds import C, draw, exact_logits, means_of, participants

EVEN = np.full(C, 1 / C)
RULE = LabelShift(guard=False)


def label_shift(seed, n=30, m=40, alpha=0.3, effect=0.0):
    """Participants that differ in class shares, and by `effect` in how inputs of a class look."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(n):
        share = rng.dirichlet(np.full(C, alpha))
        x, labels = draw(rng, m, share, means_of(apart=2.0))
        x = x + effect * rng.standard_normal(x.shape[1])
        logits = exact_logits(x, means_of(apart=2.0), EVEN)
        found.append(HeldOut(Outputs(logits), labels, rng.multinomial(4 * m, share).astype(np.float64)))
    return found


def covariate_shift(seed, n=30, m=40):
    """Persons: age and sex are the person's, a reading is the example's, and p(y|x) is the same for all."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(n):
        score = rng.normal() + rng.integers(0, 2) - 0.5 + rng.normal(size=5 * m)
        labels = (rng.random(5 * m) < 1 / (1 + np.exp(-score))).astype(np.int64)
        logits = np.stack([-score / 2, score / 2], axis=1)
        found.append(HeldOut(Outputs(logits[:m]), labels[:m], np.bincount(labels[m:], minlength=2) * 1.0))
    return found


def decided(asked, rule=RULE):
    return fit(rule, asked).state


def correlation_of(asked, classes=C):
    """Return the intraclass correlation and its standard error by the two exchanges, calibration as it is."""
    z = [center_logits(one.outputs.logits) for one in asked]
    point = np.append(1.0, np.zeros(classes))
    parts = [trust.class_sums(each, one.labels, point) for each, one in zip(z, asked, strict=True)]
    query = {"point": point, **{name: sum(part[name] for part in parts) for name in parts[0]}}
    sums = sum(trust._correlation_sums(query, each, one.labels) for each, one in zip(z, asked, strict=True))
    return trust._correlation(sums)


# ---------------------------------------------------------------------------------------------------- the correlation


@pytest.mark.parametrize("m", [3, 20])
def test_under_label_shift_the_correlation_is_zero_in_mean_however_few_the_examples(m):
    """The error of class means is shared by examples of a class: left in, three each give 0.03 to 0.1."""
    found = np.array([correlation_of(label_shift(seed, n=20, m=m))[0] for seed in range(60)])
    assert abs(found.mean()) < 3 * found.std(ddof=1) / np.sqrt(60) + 0.01


def test_its_standard_error_is_its_spread_over_federations():
    found = np.array([correlation_of(label_shift(seed, n=40, effect=0.5))[:2] for seed in range(60)])
    assert 0.7 < found[:, 1].mean() / found[:, 0].std(ddof=1) < 1.3


def test_effects_of_clients_are_found_and_grow_with_their_size():
    """Two classes whose predictions are all but linear in x: rho = effect^2/(1 + effect^2)."""
    for effect in (0.5, 1.0, 2.0):
        rng, found = np.random.default_rng(3), []
        for _ in range(200):
            labels = rng.integers(0, 2, 20)
            score = 0.2 * (rng.standard_normal(20) + effect * rng.standard_normal())
            found.append(HeldOut(Outputs(np.stack([-score / 2, score / 2], axis=1)), labels, np.ones(2)))
        rho = correlation_of(found, 2)[0]
        assert rho == pytest.approx(effect**2 / (1 + effect**2), abs=0.05)


def test_copies_of_one_example_have_the_correlation_one():
    found = []
    for one in label_shift(0, n=20, m=1):
        copies = Outputs(np.repeat(one.outputs.logits, 8, axis=0))
        found.append(HeldOut(copies, np.repeat(one.labels, 8), one.counts))
    assert correlation_of(found)[0] > 0.9


def test_many_classes_are_compared_on_few_directions_with_their_distances_kept():
    p = np.random.default_rng(0).dirichlet(np.full(200, 0.05), 300)
    views = trust.comparison_views(p)
    assert views.shape == (300, 32)
    apart, seen = (np.square(one[:150] - one[150:]).sum(axis=1) for one in (p, views))
    assert seen.mean() == pytest.approx(apart.mean(), rel=0.15)
    assert trust.comparison_views(p[:, :32]) is not p
    np.testing.assert_array_equal(trust.comparison_views(p[:, :20]), p[:, :20])


# -------------------------------------------------------------------------------------------------------- the decision


@pytest.mark.parametrize("seed", range(4))
def test_label_shift_is_trusted_in_full(seed):
    state = decided(label_shift(seed))
    assert (state["strength"].tolist(), state["correlation"].tolist()) == ([1.0], [0.0])
    mean, low, high = state["expected_gain"]
    assert 0 < mean <= high
    assert low < mean


@pytest.mark.parametrize("seed", range(4))
def test_covariate_shift_is_never_trusted(seed):
    state = decided(covariate_shift(seed))
    assert state["strength"].tolist() == [0.0]
    assert state["expected_gain"].tolist() == [0.0] * 3
    assert state["correlation"][0] >= 0.2


@pytest.mark.parametrize("seed", range(4))
def test_clients_whose_inputs_of_a_class_differ_much_are_not_trusted_in_full(seed):
    assert decided(label_shift(seed, alpha=5.0, effect=1.5))["strength"][0] == 0.0


def test_clients_that_are_alike_are_left_as_they_are():
    rng, asked = np.random.default_rng(0), []
    for _ in range(30):
        x, labels = draw(rng, 40, EVEN, means_of())
        asked.append(HeldOut(Outputs(exact_logits(x, means_of(), EVEN)), labels, np.full(C, 40.0)))
    assert decided(asked)["strength"].tolist() == [0.0]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_fewer_than_four_participants_decide_nothing(n):
    assert decided(label_shift(0, n=n))["strength"].tolist() == [0.0]


def test_participants_that_gain_in_log_loss_and_lose_accuracy_are_no_support():
    sums = dict(good_sums())
    assert trust.fit_trust(sums)["strength"].tolist() == [1.0]
    gains = sums["strength_gains"].copy()
    gains[2] = -0.01 * 30
    assert trust.fit_trust({**sums, "strength_gains": gains})["strength"].tolist() == [0.0]


def test_each_question_has_a_say():
    sums = good_sums()
    changed = {
        "inputs look unlike": {"correlation": np.array([30 * 0.5, 30.0, 30 * 0.26, 30 * 0.5, 30.0, 30.0])},
        "it is not known how alike": {"correlation": np.array([0.0, 30.0, 30 * 1.5, 0.0, 30.0, 30.0])},
        "inputs tell nothing": {"share_gains": np.array([0.0, 3.0, 30.0])},
        "inputs tell too little": {"share_gains": np.array([0.1 * 30, 0.02 * 30, 30.0])},
        "participants lost": {
            "strength_gains": -np.abs(sums["strength_gains"]) * np.array([1, -1, 1, -1, 1, -1])[:, None, None]
        },
        "two of 30 were harmed": {"harmed": np.full_like(sums["harmed"], 2.0)},
        "accuracy fell against the model as it is": {
            "strength_gains": np.concatenate(
                [sums["strength_gains"][:4], -sums["strength_gains"][2:3], sums["strength_gains"][3:4]]
            )
        },
    }
    for why, other in changed.items():
        assert trust.fit_trust({**sums, **other})["strength"].tolist() == [0.0], why


def test_participants_of_few_examples_need_not_decide_that_they_gained():
    sums = dict(good_sums())
    gains = sums["strength_gains"].copy()
    gains[1] = 0.3 * 30
    for many, strength in ((30, 0.0), (4, 0.0), (3, 1.0)):
        state = trust.fit_trust({**sums, "strength_gains": gains, "large": np.full(1, float(many))})
        assert state["strength"].tolist() == [strength], many


def test_a_gain_that_is_decided_needs_no_assumption():
    """By the strength whose gain minus one standard error is largest, with the correlation that was found."""
    sums = dict(good_sums())
    gains = sums["strength_gains"].copy()
    gains[1], gains[3] = 0.02 * 30, 0.006 * 30
    gains[0, :, 1], gains[1, :, 1] = 0.12 * 30, 0.02 * 30
    unlike = np.array([30 * 0.09, 30.0, 30 * 0.0087, 30 * 0.09, 30.0, 30.0])
    state = trust.fit_trust({**sums, "strength_gains": gains, "correlation": unlike})
    assert (state["strength"].tolist(), state["correlation"].tolist()) == ([0.5], [0.1])
    gains[2] = 0.0
    state = trust.fit_trust({**sums, "strength_gains": gains, "correlation": unlike})
    assert state["strength"].tolist() == [0.0], "in log loss alone it is not enough"
    gains[2] = sums["strength_gains"][2]
    harmed = np.full((len(trust.CORRELATIONS), len(trust.STRENGTHS)), 2.0)
    state = trust.fit_trust({**sums, "strength_gains": gains, "correlation": unlike, "harmed": harmed})
    assert state["strength"].tolist() == [0.0], "two of 30 were harmed"


def good_sums():
    """30 participants that answer the questions as label shift would have it, with no decided gain in accuracy."""
    gains = np.zeros((6, len(trust.CORRELATIONS), len(trust.STRENGTHS)))
    gains[0], gains[1] = 0.1 * 30, 0.05 * 30
    gains[2], gains[3] = 0.05 * 30, 0.1 * 30
    gains[4:] = gains[2:4]
    return {
        "miniatures": np.array([30.0]),
        "correlation": np.array([0.0, 30.0, 0.01, 0.0, 30.0, 30.0]),
        "share_gains": np.array([0.5 * 30, 0.3 * 30, 30.0]),
        "strength_gains": gains,
        "large": np.full(1, 30.0),
        "harmed": np.zeros(gains.shape[1:]),
    }


def test_the_order_of_participants_changes_no_decision():
    asked = label_shift(1)
    one, other = decided(asked), decided(asked[::-1])
    for name in trust.FITTED:
        np.testing.assert_allclose(one[name], other[name], atol=1e-6, err_msg=name)


def test_what_a_participant_sends_is_bounded_whatever_its_logits_are():
    asked = label_shift(2, n=8)
    wild = [HeldOut(Outputs(1e5 * one.outputs.logits), one.labels, one.counts) for one in asked]
    state = decided(wild)
    assert all(np.isfinite(values).all() for values in state.values())


# -------------------------------------------------------------------------------------------------- what it is made of


def test_the_calibration_without_a_participant_is_that_of_the_others():
    asked = participants(np.random.default_rng(0), n=12, m=60)
    z, labels = [center_logits(one.outputs.logits) for one in asked], [one.labels for one in asked]

    def optimum(which):
        search = begin(C)
        while not is_settled(search):
            parts = [likelihood(z[i], labels[i], search["candidate"]) for i in which]
            search = advance(search, {name: sum(part[name] for part in parts) for name in parts[0]})
        return search["point"]

    point = optimum(range(12))
    curvature = sum(likelihood(z[i], labels[i], point)["curvature"] for i in range(12))
    for i in range(12):
        exact = optimum([j for j in range(12) if j != i])
        found = leave_one_out_point(point, curvature, likelihood(z[i], labels[i], point))
        assert np.abs(found - exact).max() < 0.1 * np.abs(point - exact).max() + 1e-6


# ------------------------------------------------------------------------------------------------ nobody is flipped


@pytest.mark.parametrize(("base", "seen"), [(0.025, 0.035), (0.05, 0.07), (0.01, 0.015), (0.2, 0.25)])
@pytest.mark.parametrize("n", [20, 300, 10_000])
def test_a_small_common_shift_flips_nobody_even_if_inputs_are_trusted(n, base, seen):
    """300 patients of 3.5% each, where 2.5% is usual, once ended at a prior of 1 and a prediction of 100%."""
    state = {"a": np.ones(1), "b": np.zeros(2), "base": np.array([1 - base, base]), "pseudo_counts": np.ones(1)}
    patients = np.tile(np.log([1 - seen, seen]), (n, 1))
    p = Adapter(LabelShift(), state).fit(patients).predict_proba(patients[:1])[0, 1]
    assert p < max(0.1, 2.5 * seen)
    assert p < 0.5


def test_no_airline_is_predicted_to_cancel_everything():
    """16 airlines, 2.4% cancelled, with effects of the airline; once one fell from 95% to 5%."""
    rng, asked, unseen = np.random.default_rng(0), [], []
    for i in range(16):
        score = -3.7 + 0.5 * rng.standard_normal() + 0.5 * rng.standard_normal(2500)
        labels = (rng.random(2500) < 1 / (1 + np.exp(-score))).astype(np.int64)
        outputs = Outputs(np.stack([-score / 2, score / 2], axis=1))
        if i < 8:
            asked.append(HeldOut(outputs.at(slice(500)), labels[:500], np.bincount(labels[500:], minlength=2) * 1.0))
        else:
            unseen.append((outputs, labels))
    for rule in (LabelShift(guard=False), LabelShift(guard=False, strength=1.0)):
        state = decided(asked, rule)
        for outputs, labels in unseen:
            log_p = rule.predict(state, rule.update(state, rule.start(state), outputs), outputs)
            right = [(found.argmax(axis=1) == labels).mean() for found in (log_p, log_softmax(outputs.logits))]
            assert right[0] >= right[1] - 0.02


def test_gains_in_predicting_labels_are_in_nats():
    trained, base = np.array([3.0, 1.0]), np.array([0.5, 0.5])
    expected = 0.75 * np.log(1.5) + 0.25 * np.log(0.5)
    assert trust._share_gains(base, base, trained) == pytest.approx([0.0, 0.0, expected])


def test_who_holds_many_examples_and_loses_more_than_five_points_is_counted_as_harmed():
    """40 of 100 examples lie at the border, and adapting moves it past them: a loss of 40 points; 49 decide nothing."""
    z = np.repeat([[-3.0, 3.0], [0.1, -0.1]], [60, 40], axis=0)
    labels = np.repeat([1, 0], [60, 40])
    for m, large in ((100, 1.0), (49, 0.0)):
        rows = np.random.default_rng(0).permutation(100)[:m]
        asked = {
            "point": np.array([1.0, 0.0, 0.0]),
            "class_examples": np.array([500.0, 500.0]) + np.bincount(labels[rows], minlength=2),
            "class_views": np.full((2, 2), 250.0),
            "class_squares": np.full(2, 300.0),
            "pseudo_counts": np.ones(1),
        }
        sums = trust.miniature_sums(asked, z[rows], labels[rows], np.array([6.0, 4.0]), 0.0, 1e9)
        assert sums["large"].tolist() == [large]
        change = sums["strength_gains"][2]
        assert np.array_equal(sums["harmed"], large * (change < -0.05))
        assert (change < -0.05).any()
    assert 100 * trust.HARM == HARM_POINTS


def test_a_participant_is_judged_by_a_calibration_and_class_shares_that_it_had_no_part_in():
    """Its own examples are all of one class: without them that class is rarer, and its bias lower."""
    labels, z = np.zeros(8, np.int64), np.tile([0.2, -0.2], (8, 1))
    others, theirs = np.repeat([0, 1], 10), np.repeat([[0.2, -0.2], [-0.2, 0.2]], 10, axis=0)
    point = np.array([1.0, 0.3, -0.3])
    both = likelihood(np.concatenate([z, theirs]), np.concatenate([labels, others]), point)
    asked = {"point": point, "curvature": both["curvature"], "class_examples": np.array([18.0, 10.0])}
    without = trust.left_out_point(asked, z, labels)
    assert without[1] - without[2] < point[1] - point[2] - 0.1
    assert trust.base_without(asked, labels).tolist() == [0.5, 0.5]
