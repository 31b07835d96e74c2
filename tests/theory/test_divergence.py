"""How far a client's labels are from everybody's: golden numbers, and what must hold for all histograms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedreach._util.divergence import kl_divergence, label_divergences

COUNTS = np.array([[10, 10, 0], [5, 5, 10], [30, 0, 0], [8, 12, 10]])

# design/golden.json, "kl"; the row of smoothing 0.5 stands in design/algorithms.md, section 5.2
GOLDEN = [
    ("global_to_local", 0, [np.inf, 0.2357718617344019, np.inf, 0.1557584872567735]),
    ("global_to_local", 1, [0.20528493441695353, 0.21061452271353193, 0.6646012798158532, 0.14797009113049536]),
    ("global_to_local", 0.5, [0.3136891022, 0.2220863466, 0.9524785151, 0.1516376305]),
    ("local_to_global", 0, [0.27895861564992047, 0.2510510834820652, 0.6348782724359694, 0.14432489182014646]),
]

checks = settings(deadline=None, derandomize=True)
histograms = st.integers(2, 5).flatmap(
    lambda c: arrays(np.int64, st.tuples(st.integers(1, 6), st.just(c)), elements=st.integers(0, 40)).map(
        lambda counts: counts + (counts.sum(axis=1, keepdims=True) == 0)
    )
)
directions = st.sampled_from(["global_to_local", "local_to_global"])
smoothings = st.sampled_from([0.0, 0.5, 1.0, 7.0])


@pytest.mark.parametrize(("direction", "smoothing", "expected"), GOLDEN)
def test_divergences_are_the_golden_ones(direction, smoothing, expected):
    np.testing.assert_allclose(label_divergences(COUNTS, direction, smoothing), expected, rtol=0, atol=1e-10)


def test_kl_of_two_distributions_is_the_golden_one():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    assert float(kl_divergence(p, q)) == pytest.approx(0.2748872196, abs=1e-10)  # design/algorithms.md, section 5.2


@checks
@given(counts=histograms, direction=directions, smoothing=smoothings)
def test_a_divergence_is_never_negative_and_is_zero_for_clients_like_the_whole(counts, direction, smoothing):
    assert (label_divergences(counts, direction, smoothing) >= 0).all()
    alike = np.outer(np.arange(1, 4), counts.sum(axis=0))  # everybody has the same mix
    np.testing.assert_allclose(label_divergences(alike, direction), 0, atol=1e-12)


@checks
@given(counts=histograms)
def test_only_a_client_of_the_mix_of_the_whole_is_at_distance_zero(counts):
    pooled = counts.sum(axis=0) / counts.sum()
    local = counts / counts.sum(axis=1, keepdims=True)
    other = abs(local - pooled).sum(axis=1) > 1e-6
    # Pinsker: KL >= |p - q|_1^2 / 2.
    for direction in ("global_to_local", "local_to_global"):
        distance = label_divergences(counts, direction)
        assert (distance[other] >= (abs(local - pooled).sum(axis=1) ** 2 / 2 * (1 - 1e-9))[other]).all()


@checks
@given(counts=histograms, direction=directions, smoothing=smoothings, seed=st.integers(0, 99))
def test_names_of_clients_and_classes_and_empty_classes_change_nothing(counts, direction, smoothing, seed):
    rng = np.random.Generator(np.random.Philox(seed))
    before = label_divergences(counts, direction, smoothing)
    order, classes = rng.permutation(len(counts)), rng.permutation(counts.shape[1])
    np.testing.assert_allclose(
        label_divergences(counts[order][:, classes], direction, smoothing), before[order], atol=1e-12
    )
    wider = np.insert(counts, 1, 0, axis=1)
    assert label_divergences(wider, direction, smoothing).tobytes() == before.tobytes()


@checks
@given(counts=histograms, direction=directions)
def test_smoothing_that_goes_to_zero_is_no_smoothing(counts, direction):
    exact, nearly = (label_divergences(counts, direction, kappa) for kappa in (0, 1e-9))
    finite = np.isfinite(exact)
    np.testing.assert_allclose(nearly[finite], exact[finite], atol=1e-6)
    assert np.isfinite(nearly).all()  # the pooled distribution has mass wherever a client has
    if direction == "global_to_local":
        lacks = ((counts == 0) & (counts.sum(axis=0) > 0)).any(axis=1)
        assert (finite == ~lacks).all()


def test_noise_below_zero_counts_as_zero():
    noised = np.array([[10.4, -2.0], [3.0, 5.0]])
    clipped = label_divergences(np.maximum(noised, 0), smoothing=1)
    assert label_divergences(noised, smoothing=1).tolist() == clipped.tolist()


def test_a_client_without_counts_is_infinitely_far_or_counts_as_uniform():
    counts = np.array([[0, 0], [6, 2]])
    for direction in ("global_to_local", "local_to_global"):
        assert label_divergences(counts, direction)[0] == np.inf
    # KL((3/4, 1/4) || (1/2, 1/2)) = ln 2 - H(3/4, 1/4)
    expected = np.log(2) + 0.75 * np.log(0.75) + 0.25 * np.log(0.25)
    assert label_divergences(counts, smoothing=1)[0] == pytest.approx(expected, rel=1e-12)
