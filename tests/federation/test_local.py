"""The numbers of the local loop, and the solvers' line of difference."""

import math

import numpy as np
import pytest

from fedreach.errors import ConfigError
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.solvers import FedAvg, FedProx


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("rate", 0.0),
        ("rate", -0.1),
        ("rate", math.nan),
        ("rate", math.inf),
        ("batch_size", 0),
        ("epochs", 0),
        ("steps", 0),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("weight_decay", -1e-9),
        ("weight_decay", math.nan),
        ("clip_norm", 0.0),
        ("clip_norm", math.nan),
        ("decay", 0.0),
        ("decay", 1.1),
    ],
)
def test_an_option_outside_its_range_is_refused_by_name(option, value):
    with pytest.raises(ConfigError, match=rf"LocalSGD\.{option} must be .*got {value}"):
        LocalSGD(**{option: value})


def test_a_misspelt_schedule_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"LocalSGD\.schedule must be .*; got 'cosin'\. Did you mean 'cosine'\?"):
        LocalSGD(schedule="cosin")


@pytest.mark.parametrize("schedule", ["exponential", "cosine"])
def test_a_schedule_that_would_change_no_rate_is_refused(schedule):
    with pytest.raises(ConfigError, match=rf"LocalSGD\.decay must be below 1 for the schedule '{schedule}'; got 1"):
        LocalSGD(schedule=schedule)


def test_a_constant_rate_stays():
    assert {LocalSGD(rate=0.3).rate_at(t, 10) for t in range(1, 11)} == {0.3}


def test_an_exponential_rate_falls_by_the_same_factor_each_round():
    local = LocalSGD(rate=0.2, schedule="exponential", decay=0.9)
    assert local.rate_at(1, 50) == 0.2
    for t in range(1, 50):
        assert local.rate_at(t + 1, 50) / local.rate_at(t, 50) == pytest.approx(0.9)


def test_a_cosine_rate_begins_at_the_rate_and_ends_at_its_share():
    local = LocalSGD(rate=0.2, schedule="cosine", decay=0.1)
    rates = [local.rate_at(t, 11) for t in range(1, 12)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[5] == pytest.approx(0.11)  # half-way: the mean of both ends
    assert rates[-1] == pytest.approx(0.02)
    assert rates == sorted(rates, reverse=True)
    assert local.rate_at(1, 1) == pytest.approx(0.2)  # a run of one round


def test_fedavg_follows_the_gradient_and_fedprox_adds_the_pull():
    rng = np.random.Generator(np.random.Philox(0))
    g, w, x = rng.standard_normal((3, 4))
    assert FedAvg().correct(g, w, x) is g
    assert FedProx(mu=0.0).correct(g, w, x) is g
    np.testing.assert_array_equal(FedProx(mu=2.0).correct(g, w, x), g + 2.0 * (w - x))
    # It is the gradient of mu / 2 |w - x|^2: a central difference of a quadratic is exact up to rounding.
    h, e = 1e-3, np.eye(4)
    penalty = lambda w: 2.0 / 2 * ((w - x) ** 2).sum()  # noqa: E731
    slope = [(penalty(w + h * e[i]) - penalty(w - h * e[i])) / (2 * h) for i in range(4)]
    np.testing.assert_allclose(FedProx(mu=2.0).correct(g, w, x) - g, slope, atol=1e-9)


@pytest.mark.parametrize("mu", [-1.0, math.inf, math.nan])
def test_fedprox_refuses_a_mu_that_is_no_strength(mu):
    with pytest.raises(ConfigError, match=r"FedProx\.mu"):
        FedProx(mu=mu)
