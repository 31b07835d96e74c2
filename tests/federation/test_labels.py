"""What the server is told of clients' labels."""

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as losses
from scipy import stats

from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.data.assignment import label_entropy
from fedreach.federation.labels import (
    LABEL_STATISTICS,
    DiscreteGaussian,
    DiscreteLaplace,
    Exact,
    delta_of_noise,
    discrete_gaussian,
    released_entropy,
)
from fedreach.federation.secure_aggregation import SecureAggregation

EVERY = [Exact(), SecureAggregation(), DiscreteLaplace(1.0), DiscreteGaussian(1.0, 1e-5)]
NOISED = [DiscreteLaplace(0.3), DiscreteLaplace(4.0), DiscreteGaussian(0.5, 1e-6), DiscreteGaussian(4.0, 1e-3)]


def probabilities(statistics, x):
    """The chances of noise x, from the definition."""
    if isinstance(statistics, DiscreteLaplace):
        return stats.dlaplace(statistics.epsilon / 2).pmf(x)
    whole = np.arange(-2000, 2001)
    sigma = statistics.deviation
    return np.exp(-(x**2) / (2 * sigma**2)) / np.exp(-(whole**2) / (2 * sigma**2)).sum()


def p_value(noise, chances):
    """Chi-square of whole numbers against the chances of -w, ..., w, with tails gathered so that none is rare."""
    w = len(chances) // 2
    x = np.arange(-w, w + 1)
    common = x[chances * len(noise) >= 10]
    low, high = common.min(), common.max()
    observed = np.bincount(np.clip(noise, low, high) - low, minlength=high - low + 1)
    expected = chances[(x >= low) & (x <= high)] * len(noise)
    expected[0] += chances[x < low].sum() * len(noise)
    expected[-1] += chances[x > high].sum() * len(noise)
    return stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue


@pytest.mark.parametrize("statistics", EVERY, ids=repr)
def test_counts_go_in_and_one_number_for_each_comes_out(statistics):
    assert {type(s) for s in EVERY} == set(LABEL_STATISTICS.values())
    counts = np.arange(12).reshape(4, 3)
    counts.setflags(write=False)
    seen = [statistics.release(counts, generator(7, "label-statistics")) for _ in range(2)]
    assert seen[0].shape == counts.shape
    assert seen[0].dtype == np.float64
    assert seen[0].tobytes() == seen[1].tobytes()  # the same stream, the same noise
    assert statistics.only_sum == np.isnan(seen[0]).all() == isinstance(statistics, SecureAggregation)


def test_exact_counts_are_exact():
    counts = np.array([[3, 0], [10**9, 1]])
    assert Exact().release(counts, generator(0, "label-statistics")).tolist() == counts.tolist()


@pytest.mark.parametrize("statistics", NOISED, ids=repr)
def test_noise_has_the_distribution_that_is_promised(statistics):
    counts = np.full((200, 1000), 10_000)  # so far from 0 that nothing is cut
    noise = (statistics.release(counts, generator(0, "label-statistics")) - counts).astype(np.int64).ravel()
    x = np.arange(-1000, 1001)
    chances = probabilities(statistics, x)
    assert chances.sum() == pytest.approx(1, rel=1e-9)
    assert p_value(noise, chances) > 1e-3
    wrong = probabilities(
        type(statistics)(1.1 * statistics.epsilon, *([1e-6] if hasattr(statistics, "delta") else [])), x
    )
    assert p_value(noise, wrong) < 1e-6  # so the test can tell


@pytest.mark.parametrize("deviation", [0.3, 1.0, 1.5, 12.0])
def test_gaussian_numbers_are_gaussian_whatever_the_deviation(deviation):
    x = np.arange(-200, 201)
    chances = np.exp(-(x**2) / (2 * deviation**2))
    noise = discrete_gaussian(deviation, 100_000, generator(1, "label-statistics"))
    assert p_value(noise, chances / chances.sum()) > 1e-3
    assert len(discrete_gaussian(deviation, 1, generator(1, "label-statistics"))) == 1
    assert len(discrete_gaussian(deviation, 0, generator(1, "label-statistics"))) == 0


@pytest.mark.parametrize("statistics", [DiscreteLaplace(1.0), DiscreteGaussian(1.0, 1e-5)], ids=repr)
def test_noise_of_different_counts_is_independent_and_none_comes_out_below_0(statistics):
    rng = generator(0, "label-statistics")
    noise = statistics.release(np.full((20_000, 3), 1000), rng) - 1000
    assert np.abs(np.corrcoef(noise.T) - np.eye(3)).max() < 4.5 / np.sqrt(20_000)
    seen = statistics.release(np.zeros((1000, 3), np.int64), rng)
    assert seen.min() == 0
    assert 0 < (seen > 0).mean() < 0.5  # zeros are noised, too; the half below 0 is cut


# ------------------------------------------------------------------------------------------------- accounting


@pytest.mark.parametrize("statistics", NOISED, ids=repr)
def test_replacing_one_example_is_hidden_as_promised(statistics):
    """Two counts change by 1: all pairs of answers, with the one example and with the other."""
    x = np.arange(-150, 151)
    here, up, down = (probabilities(statistics, x + shift) for shift in (0, -1, 1))
    one, other = np.outer(here, here), np.outer(up, down)
    excess = np.maximum(one - np.exp(statistics.epsilon) * other, 0).sum()
    assert excess <= getattr(statistics, "delta", 1e-12)
    barely = np.maximum(one - np.exp(0.9 * statistics.epsilon) * other, 0).sum()
    assert barely > getattr(statistics, "delta", 1e-12)  # with a tenth less it would not hold


def epsilon_of_two_counts(one_count, delta):
    """Replacing an example lowers one count by 1 and raises another by 1, whose noises are independent."""
    return one_count.self_compose(2).get_epsilon_for_delta(delta)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 1.23456, 8.0])
def test_the_library_finds_the_epsilon_of_laplace_noise(epsilon):
    a = epsilon / 2
    grid = a / 1000 * (1 + 1e-12)  # to which losses are rounded up: that of one count, a, by next to nothing
    one_count = losses.from_discrete_laplace_mechanism(a, value_discretization_interval=grid)
    assert epsilon_of_two_counts(one_count, 0.0) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 1e-6), (0.5, 1e-3), (1.0, 1e-5), (8.0, 1e-9), (2.0, 0.3)])
def test_the_library_finds_the_epsilon_of_gaussian_noise(epsilon, delta):
    statistics = DiscreteGaussian(epsilon, delta)
    one_count = losses.from_discrete_gaussian_mechanism(
        statistics.deviation, value_discretization_interval=epsilon / 2000
    )
    found = epsilon_of_two_counts(one_count, delta)
    assert epsilon * (1 - 1e-9) <= found <= 1.001 * epsilon  # it rounds up
    less = delta_of_noise(epsilon, 0.99 * statistics.deviation)
    assert delta_of_noise(epsilon, statistics.deviation) <= delta < less  # so no smaller deviation will do


@pytest.mark.parametrize("deviation", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_the_delta_of_gaussian_noise_is_the_sum_over_all_answers(deviation, epsilon):
    x = np.arange(-100, 101)
    chances = np.exp(-(x**2) / (2 * deviation**2))
    here, up, down = (np.exp(-((x + shift) ** 2) / (2 * deviation**2)) / chances.sum() for shift in (0, -1, 1))
    summed = np.maximum(np.outer(here, here) - np.exp(epsilon) * np.outer(up, down), 0).sum()
    assert delta_of_noise(epsilon, deviation) == pytest.approx(summed, rel=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DiscreteLaplace(0.0), r"DiscreteLaplace\.epsilon must be at least 0\.001; got 0\.0"),
        (lambda: DiscreteLaplace(np.inf), r"DiscreteLaplace\.epsilon must be at least 0\.001 and finite; got inf"),
        (lambda: DiscreteGaussian(np.nan, 1e-5), r"DiscreteGaussian\.epsilon must be at least 0\.001; got nan"),
        (lambda: DiscreteGaussian(1.0, 0.0), r"DiscreteGaussian\.delta must be in \[1e-12, 1\); got 0\.0"),
        (lambda: DiscreteGaussian(1.0, 1.0), r"DiscreteGaussian\.delta must be in \[1e-12, 1\); got 1\.0"),
    ],
)
def test_a_budget_out_of_range_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


# --------------------------------------------------------------------------------------------------- entropies


def test_entropies_of_exact_counts_are_those_of_the_labels_bit_for_bit():
    counts = generator(0, "test").integers(0, 9, (50, 4)) + 1
    released = Exact().release(counts, generator(0, "label-statistics"))
    assert released_entropy(released).tobytes() == label_entropy(counts).tobytes()


def test_counts_below_0_are_0_and_nothing_left_is_a_uniform_mix():
    counts = np.array([[-3.0, 5.0, 5.0], [0.0, 0.0, 0.0], [-1.0, -2.0, 0.0], [np.nan] * 3])
    expected = [np.log(2), np.log(3), np.log(3), np.nan]
    np.testing.assert_allclose(released_entropy(counts), expected, rtol=1e-12)


def test_more_privacy_blurs_the_entropies_more():
    counts = generator(3, "test").multinomial(200, [0.8, 0.1, 0.05, 0.05], 2000)
    off = [
        np.abs(
            released_entropy(DiscreteLaplace(e).release(counts, generator(0, "noise"))) - label_entropy(counts)
        ).mean()
        for e in (0.01, 0.1, 1.0, 10.0)
    ]
    assert off == sorted(off, reverse=True)
    assert off[0] > 0.1 > 0.01 > off[-1]
