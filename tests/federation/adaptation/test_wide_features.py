"""Features of more than 128 numbers: random directions see drift as all of them do, for a fifteenth of the bytes."""

import math

import numpy as np
import pytest

from fedreach.federation.adaptation import safeguard
from fedreach.federation.types import Outputs

C, H = 5, 512
BASE, SHIFTED = np.full(C, 0.2), np.array([0.9, 0.04, 0.03, 0.02, 0.01])
_rng = np.random.default_rng(50)
PATTERNS, MIXED = _rng.standard_normal((C, 60)), _rng.standard_normal((60, H)) / 8
DELTA = 0.1 * _rng.standard_normal(H)


def draw(m, prior, rng):
    """Rectified random features of Gaussian classes: (m, H), labels."""
    labels = rng.choice(C, m, p=prior)
    return np.maximum((PATTERNS[labels] + rng.standard_normal((m, 60))) @ MIXED, 0), labels


def fitted(features, labels):
    outputs = Outputs(np.zeros((len(labels), C)), features)
    sums = safeguard.first_sums(outputs, labels, C)
    state = safeguard.first_fit(sums)
    state = safeguard.second_fit(state, safeguard.second_sums(safeguard.second_query(state), outputs, labels))
    return sums, state, safeguard.Frame.of(state)


SUMS, STATE, FRAME = fitted(*draw(3000, BASE, np.random.default_rng(51)))


def drifts(prior, moved, times=200):
    rng, found = np.random.default_rng(52), []
    for _ in range(times):
        features = draw(20, prior, rng)[0] + moved
        found.append(FRAME.residue(Outputs(np.zeros((20, C)), features)).drift)
    return np.array(found)


@pytest.mark.parametrize("prior", [BASE, SHIFTED])
def test_label_shift_is_no_drift_in_mean_but_for_what_few_examples_explain(prior):
    found, (usual, _) = drifts(prior, 0.0), safeguard.sampling_terms(STATE, FRAME.dimensions, prior)
    # Rectified classes do not all have the covariance S, so that what is explained is right to a half.
    assert abs(found.mean() - usual) < 0.5 * usual + 4 * found.std() / math.sqrt(len(found))
    assert usual < 0.5


def test_drift_grows_with_the_square_of_a_constant_shift():
    at_rest = drifts(SHIFTED, 0.0).mean()
    once, twice = (drifts(SHIFTED, factor * DELTA).mean() - at_rest for factor in (2.0, 4.0))
    moved = safeguard.project_features(Outputs(np.zeros((1, C)), 2.0 * DELTA[None])) @ FRAME.off_span
    assert once == pytest.approx(float((moved**2).sum()), rel=0.2)
    assert twice == pytest.approx(4 * once, rel=0.2)
    assert once > 1


def test_a_participant_sends_a_fifteenth_of_what_all_features_take():
    sent = 8 * sum(values.size for values in SUMS.values())
    every = 8 * (C + C * H + H * (H + 1) // 2 + 2 * C)
    assert sent == 8 * (C + C * 128 + 128 * 129 // 2 + 2 * C) == 71_288
    assert every > 14 * sent


def test_the_directions_are_the_same_for_all_and_nobody_sends_them():
    rng = np.random.default_rng(11)
    features = rng.standard_normal((50, 300))
    outputs = Outputs(np.zeros((50, 2)), features)
    projected = safeguard.project_features(outputs)
    assert projected.shape == (50, 128)
    np.testing.assert_allclose(
        projected[:3], safeguard.project_features(Outputs(np.zeros((3, 2)), features[:3])), rtol=1e-12
    )
    # Each direction keeps 1 / 300 of the squared length on average; the first signs are the same on any machine.
    assert (projected**2).sum() / (features**2).sum() == pytest.approx(128 / 300, rel=0.1)
    signs = safeguard.project_features(Outputs(np.zeros((1, 2)), np.eye(1, 300)))[0, :8] * math.sqrt(300)
    assert signs.round(9).tolist() == [-1, -1, -1, 1, 1, 1, -1, -1]
    assert safeguard.project_features(Outputs(np.zeros((50, 2)), features[:, :128])).shape == (50, 128)
    np.testing.assert_array_equal(
        safeguard.project_features(Outputs(np.zeros((50, 2)), features[:, :128])), features[:, :128]
    )
