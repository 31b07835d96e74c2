"""c(T, mu) of one client, against bisection, the worked example and what must be true of any such cost."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from .brute import G1, client_cost, drawn, scaled, upload_seconds


def cases():
    """Yield problems with deadlines and band prices, from hardly kept to never felt, from cheap to dear."""
    rng = np.random.default_rng(4)
    for i in range(60):
        prices = {"time_weight": 10 ** rng.uniform(-4, 4), "energy_weight": 10 ** rng.uniform(-4, 4)}
        problem = drawn(7, rng, slow=i % 2 == 0, **prices)
        if i % 3 == 0:
            problem = scaled(problem, cycles=np.arange(7) % 2)
        least = (problem.cycles / problem.max_hertz).max()
        yield problem, least * (1 + 10 ** rng.uniform(-4, 2)) + 1e-3, 10 ** rng.uniform(-8, 8)


def test_the_worked_example_at_two_deadlines():
    """Goldens of the design notes: G1 at (T, mu) = (1, 1) and (0.3, 0.05)."""
    cost, seconds, _ = client_cost(G1, 1.0, 1.0)
    assert_allclose(seconds, [0.442148788, 0.277038303, 0.682266951, 0.714910974, 0.169265149], atol=6e-10)
    assert_allclose(cost, [0.450455993, 0.581112956, 0.347689156, 0.39277151, 0.732127349], atol=6e-10)
    cost, seconds, _ = client_cost(G1, 0.3, 0.05)
    assert_allclose(seconds, [0.08452134, 0.045104915, 0.13911433, 0.101737725, 0.025507307], atol=6e-10)
    assert_allclose(cost, [0.122954638, 0.256917949, 0.082737776, 0.194326267, 0.526973663], atol=6e-10)


def test_newton_finds_what_bisection_finds():
    for problem, T, mu in cases():
        assert_allclose(client_cost(problem, T, mu).upload_seconds, upload_seconds(problem, T, mu), rtol=1e-11)


def test_no_other_upload_time_is_cheaper():
    for problem, T, mu in cases():
        cost, _, _ = client_cost(problem, T, mu)
        longest = T - problem.cycles / problem.max_hertz
        for part in np.linspace(0.01, 1.0, 50):
            u = part * longest
            left = np.maximum(T - u, problem.cycles / problem.max_hertz)
            work = np.divide(problem.cycles**3, left**2, out=np.zeros(7), where=problem.cycles > 0)
            joules = problem.power_watts * u + problem.capacitance * work
            assert (cost <= (problem.energy_weight * joules + mu * problem.upload_seconds / u) * (1 + 1e-12)).all()


def test_the_slope_is_that_of_the_cost():
    """Central differences of a smooth function, h = 1e-5: their error is of order h^2 = 1e-10, and of 1e-16 / h."""
    h = 1e-5
    cost, _, slope = client_cost(G1, 1.0, 1.0)
    up, down = client_cost(G1, 1.0 + h, 1.0).cost, client_cost(G1, 1.0 - h, 1.0).cost
    assert_allclose((up - down) / (2 * h), slope, atol=1e-8)
    price = (client_cost(G1, 1.0, 1.0 + h).cost - client_cost(G1, 1.0, 1.0 - h).cost) / (2 * h)
    assert_allclose(price, G1.upload_seconds / client_cost(G1, 1.0, 1.0).upload_seconds, atol=1e-8)
    assert (slope < 0).all()
    assert (cost > 0).all()


def test_it_is_convex_and_falls_in_the_deadline_and_is_concave_in_the_price():
    for problem, T, mu in cases():
        costs = [client_cost(problem, T * factor, mu).cost for factor in (1.0, 1.25, 1.5)]
        assert (np.diff(costs, axis=0) <= 1e-13 * costs[0]).all()
        assert (costs[0] + costs[2] - 2 * costs[1] >= -1e-13 * costs[0]).all()
        costs = [client_cost(problem, T, mu * factor).cost for factor in (1.0, 1.5, 2.0)]
        assert (costs[0] + costs[2] - 2 * costs[1] <= 1e-13 * costs[2]).all()


def test_a_deadline_shorter_than_the_fastest_training_costs_infinitely_much():
    cost, seconds, slope = client_cost(G1, 0.1, 1.0)  # W / f^max is .05, .067, .02, .15 and .075 s
    assert np.isinf(cost).tolist() == np.isnan(seconds).tolist() == np.isnan(slope).tolist()
    assert np.isinf(cost).tolist() == [False, False, False, True, False]
    assert np.isinf(client_cost(G1, 0.15, 1.0).cost[3])  # equal: no time to send is left


def test_many_deadlines_and_prices_at_once_are_each_alone():
    T, mu = np.array([[0.1], [0.4], [2.0]]), np.array([[1.0], [0.0], [30.0]])
    for row, many in enumerate(zip(*client_cost(G1, T, mu), strict=True)):
        for one, of_many in zip(client_cost(G1, T[row, 0], mu[row, 0]), many, strict=True):
            assert_allclose(one, of_many, rtol=1e-13)


def test_a_client_without_work_sends_for_sqrt_of_mu_tau_over_price_times_power():
    """Q = 0: A u + mu tau / u is least, 2 sqrt(A mu tau), at u = sqrt(mu tau / A), or at u = T if that is less."""
    idle = scaled(G1, cycles=0.0)
    free = np.sqrt(0.25 * idle.upload_seconds / idle.power_watts)
    cost, seconds, slope = client_cost(idle, 0.3, 0.25)
    assert_allclose(seconds, np.minimum(free, 0.3), rtol=1e-14)
    inside = free < 0.3
    assert inside.any()
    assert not inside.all()
    assert_allclose(cost[inside], 2 * np.sqrt(0.25 * idle.upload_seconds * idle.power_watts)[inside], rtol=1e-14)
    assert (slope[inside] == 0).all()
    assert (slope[~inside] < 0).all()


@pytest.mark.parametrize("cycles", [0.0, 1.0])
def test_where_joules_are_free_everyone_sends_as_long_as_it_can(cycles):
    free = scaled(G1, cycles=cycles, energy_weight=0.0)
    longest = 0.5 - free.cycles / free.max_hertz
    cost, seconds, slope = client_cost(free, 0.5, 2.0)
    assert_allclose(seconds, longest, rtol=1e-15)
    assert_allclose(cost, 2.0 * free.upload_seconds / longest, rtol=1e-15)
    assert_allclose(slope, -2.0 * free.upload_seconds / longest**2, rtol=1e-14)


def test_where_the_band_is_free_nobody_waits_to_send():
    """mu = 0: the best is u -> 0, and only computing costs, Q / (2 T^2)."""
    cost, _, slope = client_cost(G1, 0.5, 0.0)
    Q = 2 * 1e-27 * G1.cycles**3
    assert_allclose(cost, Q / 2 / 0.5**2, rtol=1e-14)
    assert_allclose(slope, -Q / 0.5**3, rtol=1e-14)


@pytest.mark.parametrize("unit", [1e-6, 1e-3, 1e3, 1e6])
def test_another_unit_of_time_changes_no_cost(unit):
    """Seconds, and 1 / hertz, times l; watts / l; capacitance and 1 / (a second's price) to match."""
    there = scaled(G1, upload_seconds=unit, max_hertz=1 / unit, capacitance=unit**2, power_watts=1 / unit)
    here, far = client_cost(G1, 0.4, 2.0), client_cost(there, 0.4 * unit, 2.0)
    assert_allclose(far.cost, here.cost, rtol=1e-13)
    assert_allclose(far.upload_seconds, here.upload_seconds * unit, rtol=1e-12)


def test_nothing_is_written_to():
    before = G1.cycles.copy()
    client_cost(G1, 0.1, 1.0)
    np.testing.assert_array_equal(G1.cycles, before)
