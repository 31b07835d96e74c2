"""The intervals cover as often as they say."""

import numpy as np
import pytest

from fedreach.evaluation.confidence import LARGE, RESAMPLES, bootstrap_means, interval
from fedreach.streams import generator


@pytest.mark.parametrize("shape", ["even", "skewed"])
def test_an_interval_of_95_percent_covers_the_mean_about_as_often(shape):
    # Accuracies of 30 clients, drawn from a Beta distribution. The percentile bootstrap of n = 30 values covers a
    # little less than 95 %; of 300 repeats 90 to 99 % allows for that and for chance (standard error 1.3 %).
    a, b = {"even": (4, 4), "skewed": (6, 1.5)}[shape]
    covered = 0
    for repeat in range(300):
        rng = generator(0, "coverage", repeat)
        low, high = interval(bootstrap_means(rng.beta(a, b, 30), rng))
        covered += low <= a / (a + b) <= high
    assert 0.90 <= covered / 300 <= 0.99


def test_the_difference_of_two_groups_is_covered_as_well():
    covered = 0
    for repeat in range(300):
        rng = generator(1, "coverage", repeat)
        one, other = rng.beta(4, 2, 30), rng.beta(2, 2, 40)
        low, high = interval(bootstrap_means(one, rng) - bootstrap_means(other, rng))
        covered += low <= 4 / 6 - 1 / 2 <= high
    assert 0.90 <= covered / 300 <= 0.99


@pytest.mark.parametrize("n", [30, LARGE - 1, LARGE, 3 * LARGE])
def test_the_means_are_spread_by_the_standard_error_whatever_the_number_of_clients(n):
    # 1000 draws tell a standard deviation to 2.2 % (1 / sqrt(2 * 1000)), and a mean to 3.2 % of it.
    rng = generator(0, "large", n)
    values = rng.beta(6, 1.5, n)
    means, error = bootstrap_means(values, rng), values.std() / np.sqrt(n)
    assert means.shape == (RESAMPLES,)
    assert means.std() == pytest.approx(error, rel=0.09)
    assert abs(means.mean() - values.mean()) < 4 * error / np.sqrt(RESAMPLES)


def test_the_interval_does_not_jump_where_resampling_ends():
    rng = generator(0, "jump")
    values = rng.random(LARGE)
    below, above = (interval(bootstrap_means(v, rng)) for v in (values[:-1], values))
    width = above[1] - above[0]
    assert abs(np.array(below) - above).max() < 0.15 * width


def test_one_client_or_equal_clients_give_an_interval_of_no_width():
    for values in (np.array([0.25]), np.full(9, 0.25), np.full(LARGE, 0.25)):
        assert interval(bootstrap_means(values, generator(0, "point"))) == (0.25, 0.25)


def test_the_same_generator_gives_the_same_interval_and_values_are_left_alone():
    values = generator(0, "values").random(20)
    values.setflags(write=False)
    a, b = (interval(bootstrap_means(values, generator(0, "bootstrap", 3))) for _ in range(2))
    assert a == b
    assert values.min() <= a[0] <= values.mean() <= a[1] <= values.max()
