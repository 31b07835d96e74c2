"""Rademacher scores: golden numbers, expectations by enumeration, and what must hold for all outputs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedreach._util.streams import generator
from fedreach.federation.bounds import (
    all_signs,
    class_complexity,
    closed_form_score,
    cluster_scores,
    monte_carlo_score,
    random_signs,
)

# design/algorithms.md, section 6.1: outputs, exact score by enumeration, closed form
BATCHES = [
    (np.array([[1, -2], [0.5, 3]]), 0.78125, 0.7529870416),
    (np.array([[2, 0], [1, 1]]), 0.5, 0.4886025119),
    (np.array([[4, -1]]), 2.0, 1.6448811606),
]
LOSSES = np.array([[0, 0, 0], [0.2, -0.1, 0.3], [-0.4, 0.1, 0.2]])

checks = settings(deadline=None, derandomize=True)
outputs = arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(1, 3)), elements=st.floats(-9, 9))


@pytest.mark.parametrize(("batch", "exact", "closed"), BATCHES)
def test_scores_of_batches_are_the_golden_ones(batch, exact, closed):
    assert monte_carlo_score(batch, all_signs(batch.size)) == pytest.approx(exact, abs=1e-12)
    assert closed_form_score(batch) == pytest.approx(closed, abs=1e-10)


def test_the_absolute_value_is_taken_of_each_draw():
    # Section 6.1: three fixed draws on the first batch; .2916666667 with the absolute value outside the mean.
    signs = np.array([[1, 1, 1, -1], [-1, 1, 1, 1], [1, -1, -1, -1.0]])
    assert monte_carlo_score(BATCHES[0][0], signs) == pytest.approx(0.375, abs=1e-12)


@pytest.mark.parametrize(("batch", "exact", "closed"), BATCHES)
def test_random_draws_come_close_to_the_expectation(batch, exact, closed):
    draws = 4000
    signs = random_signs(draws, batch.size, generator(0, "signs"))
    assert set(np.unique(signs)) == {-1.0, 1.0}
    deviation = np.std(np.abs(all_signs(batch.size) @ batch.ravel()) / batch.size)
    assert abs(monte_carlo_score(batch, signs) - exact) < 4 * deviation / np.sqrt(draws)


@pytest.mark.parametrize("size", [50, 400])
def test_the_closed_form_is_that_of_many_similar_outputs(size):
    batch = generator(0, "outputs").uniform(0.5, 1.5, (size, 4))
    draws = 4000
    score = monte_carlo_score(batch, random_signs(draws, batch.size, generator(1, "signs")))
    # The half-normal has standard deviation sqrt(pi/2 - 1) = .756 times its mean; Berry-Esseen leaves O(1 / size).
    assert abs(score / closed_form_score(batch) - 1) < 4 * 0.756 / np.sqrt(draws) + 1 / size


@checks
@given(batch=outputs, factor=st.floats(-5, 5))
def test_a_score_is_not_negative_and_grows_with_its_outputs(batch, factor):
    signs = all_signs(batch.size)
    for score in (closed_form_score, lambda b: monte_carlo_score(b, signs)):
        assert score(batch) >= 0
        assert score(0 * batch) == 0
        assert score(factor * batch) == pytest.approx(abs(factor) * score(batch), rel=1e-9, abs=1e-12)


@checks
@given(batch=outputs)
def test_the_expectation_lies_between_khintchines_bounds(batch):
    exact = monte_carlo_score(batch, all_signs(batch.size))
    norm = np.linalg.norm(batch) / batch.size
    assert norm / np.sqrt(2) - 1e-12 <= exact <= norm + 1e-12


@checks
@given(batch=outputs, seed=st.integers(0, 99))
def test_the_order_within_a_batch_and_signs_of_outputs_do_not_matter(batch, seed):
    rng = np.random.Generator(np.random.Philox(seed))
    other = rng.permutation(batch.ravel()).reshape(batch.shape) * rng.choice([-1, 1], batch.shape)
    signs = all_signs(batch.size)
    assert monte_carlo_score(other, signs) == pytest.approx(monte_carlo_score(batch, signs), abs=1e-12)
    assert closed_form_score(other) == pytest.approx(closed_form_score(batch), abs=1e-12)


def test_larger_batches_have_smaller_scores():
    # Section 6.1: unit logits, one number an example; B = 50 against 10: .0357 and .0798 with C = 10.
    assert closed_form_score(np.ones((50, 10))) == pytest.approx(0.0357, abs=5e-5)
    assert closed_form_score(np.ones((10, 10))) == pytest.approx(0.0798, abs=5e-5)


def test_complexity_of_a_class_is_the_golden_one():
    assert class_complexity(LOSSES, all_signs(3)) == pytest.approx(0.1083333333, abs=1e-10)
    assert monte_carlo_score(LOSSES[1][:, None], all_signs(3)) == pytest.approx(0.1, abs=1e-12)  # row 2 alone


@checks
@given(values=arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 5)), elements=st.floats(-9, 9)))
def test_a_larger_class_is_more_complex_and_one_function_is_not(values):
    signs = all_signs(values.shape[1])
    nested = [class_complexity(values[:f], signs) for f in range(1, len(values) + 1)]
    assert nested[0] == pytest.approx(0, abs=1e-12)
    assert (np.diff(nested) >= -1e-12).all()
    # A function and its negative: the supremum is the absolute value of the score.
    both = np.vstack([values[:1], -values[:1]])
    assert class_complexity(both, signs) == pytest.approx(monte_carlo_score(values[0], signs), abs=1e-12)
    # Adding one function to all of them changes nothing, as its own signed sum has mean 0.
    assert class_complexity(values + values[0], signs) == pytest.approx(nested[-1], abs=1e-9)


def test_scores_of_clusters_are_the_golden_ones():
    # design/algorithms.md, section 6.2
    scores, clusters, examples = np.array([0.3, 0.1, 0.2, 0.5]), np.array([0, 0, 1, 1]), np.array([10, 30, 20, 20])
    np.testing.assert_allclose(cluster_scores(scores, clusters), [0.2, 0.35], atol=1e-12)
    np.testing.assert_allclose(cluster_scores(scores, clusters, examples), [0.15, 0.35], atol=1e-12)


@checks
@given(n=st.integers(1, 9), seed=st.integers(0, 99))
def test_the_score_of_a_cluster_lies_between_those_of_its_members(n, seed):
    rng = np.random.Generator(np.random.Philox(seed))
    scores, clusters = rng.random(n), rng.integers(0, 3, n)
    clusters = np.unique(clusters, return_inverse=True)[1]
    for examples in (None, rng.integers(1, 50, n)):
        found = cluster_scores(scores, clusters, examples)
        for number, score in enumerate(found):
            members = scores[clusters == number]
            assert members.min() - 1e-12 <= score <= members.max() + 1e-12


def test_two_clusters_with_equal_scores_keep_one_each():
    assert cluster_scores(np.array([0.2, 0.2]), np.array([0, 1])).tolist() == [0.2, 0.2]
