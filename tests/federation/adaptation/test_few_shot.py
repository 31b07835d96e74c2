"""Adaptation by a few labels: what participants choose, and that labels come in any order and at any time."""

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from fedreach.deploy.adapter import Adapter
from fedreach.federation.adaptation.few_labels import FEWEST_FOR_HEAD, FewShot
from fedreach.federation.adaptation.fitting import HeldOut, fit
from fedreach.federation.adaptation.label_shift import LabelShift
from fedreach.federation.types import Outputs

C, H = 4, 6
WEIGHTS = np.random.default_rng(7).standard_normal((H, C))


def household(rng, taste, m=30):
    """One that buys by prices, which the model sees, and by its own taste, which it does not: concept shift."""
    x = rng.standard_normal((m, H))
    z = x @ WEIGHTS
    p = np.exp(z + taste)
    labels = np.array([rng.choice(C, p=row / row.sum()) for row in p])
    return Outputs(z, x), labels


def households(seed, n=30, spread=2.5):
    rng = np.random.default_rng(seed)
    return [household(rng, spread * rng.standard_normal(C)) for _ in range(n)]


def fitted(people, rule):
    asked = []
    for outputs, labels in people:
        counts = np.bincount(labels[8:], minlength=C).astype(np.float64)
        asked.append(HeldOut(outputs.at(slice(8)), labels[:8], counts))
    return fit(rule, asked).state


def accuracy(log_p, labels):
    return float((log_p.argmax(axis=1) == labels).mean())


def test_where_people_differ_in_taste_labels_help_and_inputs_are_left_out():
    rule, state, gains = FewShot(), None, []
    state = fitted(households(0), rule)
    assert state["strength"].tolist() == [0.0]
    assert np.isfinite(state["label_pseudo_counts"]).all()
    for outputs, labels in households(1):
        own, others = outputs.at(slice(5)), outputs.at(slice(5, None))
        before = rule.predict(state, rule.start(state), others)
        client = rule.update(state, rule.with_labels(state, own, labels[:5]), others)
        gains.append(accuracy(rule.predict(state, client, others), labels[5:]) - accuracy(before, labels[5:]))
    assert np.mean(gains) > 0.1


def test_where_people_are_alike_labels_are_not_counted():
    """Shares differ, as inputs do; given its input, an example's class is the same everywhere: covariate shift."""
    rng, rule, people = np.random.default_rng(3), FewShot(), []
    for _ in range(40):
        x = rng.standard_normal((60, H)) + 1.5 * rng.standard_normal(H)
        p = np.exp(x @ WEIGHTS)
        people.append((Outputs(x @ WEIGHTS, x), np.array([rng.choice(C, p=row / row.sum()) for row in p])))
    state = fitted(people, rule)
    assert np.isinf(state["label_pseudo_counts"]).all()
    client = rule.with_labels(state, people[0][0].at(slice(5)), people[0][1][:5])
    np.testing.assert_array_equal(
        rule.predict(state, client, people[0][0]), rule.predict(state, rule.start(state), people[0][0])
    )


def test_with_three_participants_nothing_is_decided():
    state = fitted(households(0, n=3), FewShot())
    assert state["strength"].tolist() == [0.0]
    assert np.isinf(state["label_pseudo_counts"]).all()


def test_the_last_layer_moves_from_ten_labels_on_and_only_where_it_helps():
    rng, rule = np.random.default_rng(5), FewShot(strength=0.0)
    state = {**fitted(households(0), rule), "label_pseudo_counts": np.ones(1)}
    x = rng.standard_normal((80, H))
    turned = Outputs(x @ WEIGHTS, x), (x @ WEIGHTS[::-1]).argmax(axis=1)  # what the model knows is wrong here
    few = rule.with_labels(state, turned[0].at(slice(FEWEST_FOR_HEAD - 1)), turned[1][: FEWEST_FOR_HEAD - 1])
    many = rule.with_labels(state, turned[0].at(slice(60)), turned[1][:60])
    assert "head" not in few
    assert "head" in many
    rest = turned[0].at(slice(60, None))
    assert accuracy(rule.predict(state, many, rest), turned[1][60:]) > 0.2 + accuracy(
        rule.predict(state, few, rest), turned[1][60:]
    )
    noise = rng.integers(0, C, 60)
    assert "head" not in rule.with_labels(state, turned[0].at(slice(60)), noise)


def test_a_label_that_arrives_late_takes_the_place_of_its_input():
    rule, people = FewShot(guard=False, strength=1.0), households(2)
    state = fitted(people, rule)
    outputs, labels = people[0]
    at_once = rule.update(state, rule.with_labels(state, outputs.at(slice(6)), labels[:6]), outputs.at(slice(6, None)))
    late = rule.update(state, rule.start(state), outputs)
    assert late["n"].tolist() == [30.0]
    for row in (4, 0, 5, 2, 1, 3):
        late = rule.learn_labels(state, late, outputs.at(slice(row, row + 1)), labels[row : row + 1])
    assert late["n"].tolist() == [24.0]
    np.testing.assert_array_equal(rule.predict(state, late, outputs), rule.predict(state, at_once, outputs))


def test_a_client_without_inputs_learns_labels():
    rule, people = FewShot(), households(2)
    state = fitted(people, rule)
    outputs, labels = people[0]
    nothing = rule.update(state, rule.start(state), outputs.at(slice(0)))
    told = rule.learn_labels(state, nothing, outputs.at(slice(5)), labels[:5])
    expected = rule.with_labels(state, outputs.at(slice(5)), labels[:5])
    np.testing.assert_array_equal(rule.predict(state, told, outputs), rule.predict(state, expected, outputs))


def test_an_adapter_takes_labels_where_its_rule_learns_from_them():
    rule, people = FewShot(guard=False), households(2)
    state = fitted(people, rule)
    outputs, labels = people[0]
    known = np.where(np.arange(30) < 5, labels, -1)
    adapter = Adapter(rule, state).fit(outputs.logits, outputs.features, labels=known)
    expected = rule.update(state, rule.with_labels(state, outputs.at(slice(5)), labels[:5]), outputs.at(slice(5, None)))
    found = adapter.predict_proba(outputs.logits, outputs.features)
    np.testing.assert_array_equal(found, np.exp(rule.predict(state, expected, outputs)))
    assert (adapter.n_inputs_, adapter.n_labels_, adapter.decision_) == (25, 5, "labels, abstained")
    with pytest.raises(ConfigError, match="labels must be None, because LabelShift learns from inputs only"):
        Adapter(LabelShift(), state).fit(outputs.logits, labels=known)
    for wrong in (np.full(30, C), np.zeros(3, int), np.full(30, 0.5), np.full(30, -2)):
        with pytest.raises(ConfigError, match=r"whole numbers from 0 to 3, or -1"):
            Adapter(rule, state).fit(outputs.logits, labels=wrong)
