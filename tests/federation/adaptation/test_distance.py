"""How far inputs lie, within the span of the class means, from the classes that they are taken for."""

import math

import numpy as np
import pytest

from fedreach.federation.adaptation.safeguard import Guard
from fedreach.federation.types import Outputs

from .plain_guard import decided
from .test_guard import BASE, FRAME, SHIFTED, STATE, C, draw, model, prior_of

BEFORE = Guard(k=1.3, power=0.0, repair=False)
RULE = Guard(repair=False)


def moved(outputs, features):
    """The same inputs with other features; their logits stay."""
    return Outputs(outputs.logits, features)


def off_the_span(length):
    """A change of features whose whitened form has this length and is orthogonal to the span."""
    rng = np.random.default_rng(60)
    direction = rng.standard_normal(len(FRAME.span))
    direction -= FRAME.span @ (FRAME.span.T @ direction)
    return np.linalg.solve(FRAME.whiten, length * direction / np.linalg.norm(direction))


@pytest.mark.parametrize("prior", [BASE, SHIFTED])
def test_under_label_shift_it_is_about_one(prior):
    inputs, labels = draw(20_000, prior, np.random.default_rng(61))
    inside = FRAME.residue(model(inputs)).inside
    # The whitening is by the participants' covariance and a ridge of .03 of its mean eigenvalue, which makes it less.
    assert FRAME.distance(inside, np.eye(C)[labels]) == pytest.approx(1, abs=0.05)


def test_a_shift_within_the_span_adds_its_squared_length():
    inputs, labels = draw(50, SHIFTED, np.random.default_rng(62))
    inside, classes, delta = FRAME.residue(model(inputs)).inside, np.eye(C)[labels], np.array([2.0, -1.0, 0.5])
    there, back, still = (FRAME.distance(inside + by, classes) for by in (delta, -delta, 0.0))
    assert (there + back) / 2 - still == pytest.approx(delta @ delta / 3, rel=1e-9)  # the span has C - 1 = 3 dimensions


def test_inputs_taken_for_another_class_are_that_much_further_off():
    centres = (FRAME.means - FRAME.means.mean(axis=0)) @ FRAME.whiten @ FRAME.span
    right, wrong = (FRAME.distance(centres, np.eye(C)[order]) for order in ([0, 1, 2, 3], [1, 0, 2, 3]))
    assert right == pytest.approx(0, abs=1e-9)
    assert wrong == pytest.approx(2 * ((centres[0] - centres[1]) ** 2).sum() / (4 * 3), rel=1e-9)


def test_drift_off_the_span_leaves_it_as_it_is_and_clients_adapt_where_they_abstained():
    outputs = model(draw(60, SHIFTED, np.random.default_rng(63))[0])
    changed = moved(outputs, outputs.features + off_the_span(1.4))
    found, before = (decided(rule, STATE, changed, BASE, prior_of) for rule in (RULE, BEFORE))
    still = decided(RULE, STATE, moved(outputs, outputs.features), BASE, prior_of)
    assert found.distance == pytest.approx(still.distance, rel=1e-9)
    assert found.total_drift == before.total_drift > 1.8 > 2 * still.total_drift
    assert (found.words, before.words) == ("adapted", "abstained")


def test_inputs_beyond_the_classes_are_not_adapted_to_however_little_drift_there_is_off_the_span():
    """Moved within the span, and a little off it."""
    outputs = model(draw(60, SHIFTED, np.random.default_rng(64))[0])
    within = np.linalg.solve(FRAME.whiten, FRAME.span @ np.array([3.0, 3.0, 3.0]))
    changed = moved(outputs, outputs.features + within + off_the_span(1.0))
    found = decided(RULE, STATE, changed, BASE, prior_of)
    assert found.distance > 5
    assert found.words == "abstained"
    assert decided(Guard(power=0.0, repair=False), STATE, changed, BASE, prior_of).words == "adapted"


def test_with_a_power_of_0_it_plays_no_part():
    outputs = model(draw(60, SHIFTED, np.random.default_rng(65))[0])
    far = moved(outputs, outputs.features * 1e6)
    for rule, words in ((Guard(k=0.0, power=0.0, repair=False), "adapted"), (Guard(k=1e-9, repair=False), "abstained")):
        found = decided(rule, STATE, far, BASE, prior_of)
        assert math.isfinite(found.distance)
        assert found.words == words
