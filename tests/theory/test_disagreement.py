"""How far a client's squared loss may move when its data shifts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.streams import generator
from fedreach.federation.convergence import (
    bounds,
    distances,
    jsd_loss,
    lower_bound,
    radius_limits,
    total_disagreement,
    upper_bound,
    zero_one_loss,
)

GRID = distances(0.2, 0.02)
checks = settings(deadline=None, derandomize=True)
losses = st.lists(st.floats(0, 1), min_size=1, max_size=12).map(np.array)
unit = st.floats(0, 1)


@pytest.mark.parametrize(
    ("mean", "variance", "distance", "largest", "upper", "lower"),
    [  # design/golden.json, "bounds"
        (0.2, 0.16, 0.1, 1, 0.3236653489589537, 0.10021465104104615),
        (0.05, 0.01, 0.1, 1, 0.09662686355552808, 0.02505366276026154),
        (0.3, 0.05, 0.3, 1, 0.5767822141441863, 0.10834921442724216),
        (0.0, 0.0, 0.2, 1, 0.07840000000000003, 0.0),
        (1.0, 0.0, 0.2, 1, 1.0, 0.9216),
        (0.02, 0.015, 0.5, 1, 0.5635674595237188, 0.0),  # beyond eq. 11, where the printed bound is .2179 > mean
        (0.5, 0.4, 0.15, 2, 0.9114543401298327, 0.2525369098701673),  # .8224668401 with the M of Corollary 4.1
    ],
)
def test_bounds_are_the_golden_ones(mean, variance, distance, largest, upper, lower):
    assert upper_bound(mean, variance, distance, largest) == pytest.approx(upper, rel=1e-13)
    assert lower_bound(mean, variance, distance) == pytest.approx(lower, rel=1e-13)


def test_inside_their_radius_the_bounds_are_those_of_theorems_3_1_and_3_2_as_printed():
    mean, variance, largest = 0.5, 0.4, 2.0
    inside = np.linspace(0, min(radius_limits(mean, variance, largest)), 20)
    root = np.sqrt(inside**2 * (2 - inside**2) * (1 - inside**2) ** 2)  # lambda
    ends = []
    for sign, room in ((1, largest**2 - mean), (-1, mean)):
        delta = inside**2 * (2 - inside**2) * (room - variance / room)
        ends.append(mean + sign * (2 * root * np.sqrt(variance) + sign * sign * delta))
    np.testing.assert_allclose(upper_bound(mean, variance, inside, largest), ends[0], rtol=1e-12)
    np.testing.assert_allclose(lower_bound(mean, variance, inside), ends[1], atol=1e-12)


def test_a_bound_reaches_its_end_at_its_radius_and_stays_there():
    low, high = radius_limits(0.02, 0.02 * 0.98, 1.0)  # a 0-1 loss of 2 %
    assert lower_bound(0.02, 0.0196, np.array([low, 0.5, 1.0])) == pytest.approx([0, 0, 0], abs=1e-15)
    assert lower_bound(0.02, 0.0196, 0.99 * low) > 0
    assert upper_bound(0.02, 0.0196, np.array([high, 1.0]), 1.0) == pytest.approx([1, 1])
    assert upper_bound(0.02, 0.0196, 0.99 * high, 1.0) < 1
    assert radius_limits(0.3, 0.0, 1.0) == (1.0, 1.0)
    assert radius_limits(0.0, 0.0, 1.0)[0] == radius_limits(1.0, 0.0, 1.0)[1] == 0.0


@checks
@given(losses=losses, seed=st.integers(0, 999), distance=unit)
def test_no_distribution_within_the_distance_leaves_the_bounds(losses, seed, distance):
    rng = generator(seed, "test")
    p = rng.dirichlet(np.ones(len(losses)))
    mean = p @ losses**2
    variance = p @ (losses**2 - mean) ** 2
    low, high = lower_bound(mean, variance, distance), upper_bound(mean, variance, distance, 1.0)
    # Roots of distributions are unit vectors; the Hellinger ball is a cap around sqrt(p), 1 - cosine <= distance^2.
    angle = np.arccos(1 - distance**2) * np.sqrt(rng.random((50, 1)))
    sideways = rng.normal(size=(50, len(losses)))
    sideways[0] = (losses**2 - mean) * np.sqrt(p)  # the steepest way up, and down
    sideways -= (sideways @ np.sqrt(p))[:, None] * np.sqrt(p)
    length = np.linalg.norm(sideways, axis=1, keepdims=True)
    sideways = np.divide(sideways, length, out=np.zeros_like(sideways), where=length > 1e-9)
    for way in (sideways, -sideways):
        q = (np.cos(angle) * np.sqrt(p) + np.sin(angle) * way) ** 2
        shifted = q @ losses**2 / q.sum(axis=1)  # q.sum() is 1 but where there is no way sideways
        assert (shifted >= low - 1e-9).all()
        assert (shifted <= high + 1e-9).all()


def test_the_bounds_are_reached_by_a_loss_of_two_values():
    """With losses 0 and 1, q = sin^2(a + angle) is the extreme of the ball around p = sin^2(a)."""
    p, distance = 0.2, 0.1
    a, angle = np.arcsin(np.sqrt(p)), np.arccos(1 - distance**2)
    assert upper_bound(p, p * (1 - p), distance, 1.0) == pytest.approx(np.sin(a + angle) ** 2, rel=1e-12)
    assert lower_bound(p, p * (1 - p), distance) == pytest.approx(np.sin(a - angle) ** 2, rel=1e-12)


@checks
@given(losses=losses, distance=unit)
def test_the_mean_lies_between_the_bounds_and_the_bounds_in_the_range_of_the_squared_loss(losses, distance):
    mean = (losses**2).mean()
    low, high = bounds(losses, np.array([distance]))
    assert 0 <= low[0] <= mean + 1e-15
    assert mean - 1e-15 <= high[0] <= 1
    nothing = bounds(losses, np.zeros(1)).disagreement
    assert abs(nothing[0]) < 1e-15


@checks
@given(mean=unit, small=unit, large=unit, distance=unit, farther=unit)
def test_disagreement_grows_with_distance_and_with_variance(mean, small, large, distance, farther):
    def sigma(variance, d):
        return upper_bound(mean, variance, d, 1.0) - lower_bound(mean, variance, d)

    assert sigma(small, min(distance, farther)) <= sigma(small, max(distance, farther)) + 1e-12
    assert sigma(min(small, large), distance) <= sigma(max(small, large), distance) + 1e-12


@checks
@given(mean=unit, variance=unit, distance=unit, largest=st.floats(0.1, 10))
def test_it_is_the_same_for_what_is_lost_and_for_what_is_missing_to_the_largest_loss(mean, variance, distance, largest):
    def sigma(mean):
        return upper_bound(mean, variance, distance, largest) - lower_bound(mean, variance, distance)

    whole = largest**2
    assert sigma(mean * whole) == pytest.approx(sigma(whole - mean * whole), rel=1e-9, abs=1e-9 * whole)


@checks
@given(losses=losses, factor=st.floats(0.1, 10), seed=st.integers(0, 99), confidence=st.sampled_from([None, 0.01]))
def test_losses_in_another_unit_scale_it_by_the_square_and_their_order_does_not_matter(
    losses, factor, seed, confidence
):
    total = total_disagreement(losses, GRID, confidence=confidence)
    scaled = total_disagreement(factor * losses, GRID, factor, confidence)
    assert scaled == pytest.approx(factor**2 * total, rel=1e-9)
    shuffled = generator(seed, "test").permutation(losses)
    assert total_disagreement(shuffled, GRID, confidence=confidence) == pytest.approx(total, rel=1e-9)


@checks
@given(losses=losses, confidence=st.floats(1e-9, 0.999), distance=unit)
def test_allowing_for_few_examples_widens_the_bounds_and_many_examples_undo_it(losses, confidence, distance):
    at = np.array([distance])
    plain, wide = bounds(losses, at), bounds(losses, at, confidence=confidence)
    assert wide.lower[0] <= plain.lower[0] + 1e-15
    assert wide.upper[0] >= plain.upper[0] - 1e-15
    # Neither bound moves by more than the mean or the standard deviation do, here .0026 and .0053.
    many = np.tile(losses, 100_000 // len(losses) + 1)
    assert np.abs(np.subtract(bounds(many, at, confidence=0.5), bounds(many, at))).max() < 0.01


def test_allowing_for_a_hundred_examples_gives_the_golden_numbers():
    """algorithms.md, section 3.1: mean .2 and variance .16 of a 0-1 loss, delta = .01."""
    hundred = np.repeat([1.0, 0.0], [20, 80]) + 0.0
    assert hundred.var() == pytest.approx(0.16)
    low, high = 0.0372376369, 0.3627623631
    variance = (np.sqrt(0.16) + np.sqrt(2 * np.log(200) / 99)) ** 2
    assert variance == pytest.approx(0.5287684421, abs=1e-10)
    assert upper_bound(high, variance, 0.1, 1.0) == pytest.approx(0.5620375398, abs=1e-9)
    assert lower_bound(low, variance, 0.1) == 0
    # `bounds` divides by 99 where the golden numbers divide by 100.
    unbiased = (np.sqrt(0.16 * 100 / 99) + np.sqrt(2 * np.log(200) / 99)) ** 2
    found = bounds(hundred, np.array([0.1]), confidence=0.01)
    assert found.upper[0] == pytest.approx(float(upper_bound(high, unbiased, 0.1, 1.0)), rel=1e-8)


def test_one_example_says_nothing_where_few_examples_are_allowed_for():
    assert np.array(bounds(np.array([0.3]), np.array([0.0, 0.1]), 2.0, confidence=0.9)).tolist() == [[0, 0], [4, 4]]


def test_totals_are_the_golden_ones():
    """design/golden.json, "robust_weights" (variance p (1 - p)), and algorithms.md, section 3.1 (divisor m - 1)."""
    p = np.array([[0.0], [0.05], [0.1], [0.3]])
    sigma = upper_bound(p, p * (1 - p), GRID, 1.0) - lower_bound(p, p * (1 - p), GRID)
    eta = [0.3039467199999999, 1.323346028089211, 1.815689204666272, 2.7735110729657877]
    np.testing.assert_allclose(sigma.sum(axis=1), eta, rtol=1e-13)
    np.testing.assert_allclose(
        (1 / np.array(eta)) / (1 / np.array(eta)).sum(),
        [0.663715434989935, 0.15244246417533688, 0.11110609071206277, 0.07273601012266534],
        rtol=1e-13,
    )
    assert total_disagreement(np.array([0.02, 0.5, 0.9, 0.1]), GRID) == pytest.approx(2.3778721899, abs=1e-10)


@checks
@given(losses=losses, m=st.integers(1, 5))
def test_the_total_is_never_nothing(losses, m):
    least = (GRID**2 * (2 - GRID**2)).sum()
    assert total_disagreement(losses, GRID) >= least - 1e-12
    assert total_disagreement(np.zeros(m), GRID) == pytest.approx(least)


@pytest.mark.parametrize(("radius", "step", "count"), [(0.2, 0.02, 10), (0.3, 0.1, 3), (0.1, 0.1, 1), (0.1, 0.03, 3)])
def test_distances_are_as_many_as_fit(radius, step, count):
    assert distances(radius, step).tolist() == [step * i for i in range(1, count + 1)]


# --------------------------------------------------------------------------------------------------- losses


def test_divergences_from_the_label_are_the_golden_ones():
    logits = np.array([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0], [-5.0, 5.0, 0.0]])
    expected = [0.1918175087, 0.4591479170, 0.9996419661]  # algorithms.md, section 3.1
    np.testing.assert_allclose(jsd_loss(logits, np.array([0, 2, 0])), expected, atol=1e-10)


def test_the_divergence_is_that_of_jensen_and_shannon():
    logits = generator(0, "test").normal(0, 3, (20, 4)).astype(np.float32)
    labels = np.arange(20) % 4
    p = np.exp(logits.astype(np.float64))
    p /= p.sum(axis=1, keepdims=True)
    target = np.eye(4)[labels]
    middle = (p + target) / 2

    def divergence(a):
        return (a * np.log2(np.where(a > 0, a, 1) / middle)).sum(axis=1)

    np.testing.assert_allclose(jsd_loss(logits, labels), (divergence(p) + divergence(target)) / 2, atol=1e-12)


@checks
@given(scale=st.floats(1e-3, 1e30), offset=st.floats(-1e3, 1e3), seed=st.integers(0, 99))
def test_losses_stay_between_0_and_1_and_depend_on_differences_of_logits(scale, offset, seed):
    rng = generator(seed, "test")
    logits, labels = (scale * rng.normal(size=(6, 3))).astype(np.float32), rng.integers(0, 3, 6)
    for loss in (jsd_loss, zero_one_loss):
        values = loss(logits, labels)
        assert ((values >= 0) & (values <= 1)).all()
        classes = rng.permutation(3)
        renamed = loss(logits[:, classes], np.argsort(classes)[labels])
        np.testing.assert_allclose(renamed, values, atol=1e-12)
    shifted = jsd_loss(logits.astype(np.float64) + offset, labels)
    assert scale > 1e3 or np.allclose(shifted, jsd_loss(logits, labels), atol=1e-9)


def test_a_sure_model_loses_nothing_or_everything():
    logits, labels = np.array([[1e4, 0.0], [1e4, 0.0]], np.float32), np.array([0, 1])
    assert jsd_loss(logits, labels).tolist() == zero_one_loss(logits, labels).tolist() == [0.0, 1.0]
