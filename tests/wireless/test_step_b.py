"""The best frequencies at fixed shares, and the paper's equations for them, printed and set right."""

import doctest
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.wireless import exact
from fedreach.wireless.baselines import best_frequencies, best_shares
from fedreach.wireless.problem import Allocation, AllocationProblem, compute_seconds
from fedreach.wireless.rules import frequency_alone

from .benchmarked import dual_step
from .brute import drawn
from .test_step_a import CSRA6

WHOLE = np.ones(3)  # upload times as they are


def of_uploads(max_hertz):
    """Return the problem of the goldens step_b_*: upload times (.2, .5, .1), whose energy counts next to nothing."""
    return AllocationProblem([0.2, 0.5, 0.1], np.full(3, 1e-30), [2e8, 1e8, 3e8], max_hertz, np.ones(3))


def price(problem, share, hertz):
    return Allocation.of(problem, np.arange(len(problem)), share, hertz).cost


def seconds(problem, share, hertz):
    return Allocation.of(problem, np.arange(len(problem)), share, hertz).seconds


def multipliers(problem, share, hertz):
    """Return (K,) beta, part of a1 that each deadline is worth, and gamma, what f^max is worth, that prove the optimum.

    beta = (f / f0)^3 and gamma = 0; where the shortest deadline binds, the last client makes up for what is missing.
    """
    shortest = problem.upload_seconds / share + compute_seconds(problem.cycles, problem.max_hertz)
    beta = np.where(problem.cycles > 0, (hertz / frequency_alone(problem)) ** 3, 0.0)
    gamma, last = np.zeros(len(problem)), int(np.argmax(shortest))
    if seconds(problem, share, hertz) <= shortest.max() * (1 + 1e-15):
        beta[last] = 0.0
        beta[last] = 1.0 - beta.sum()
        if problem.cycles[last] > 0:
            W, f = problem.cycles[last], hertz[last]
            gain = beta[last] * problem.time_weight * W / f**2  # of a faster deadline, against the energy for it
            gamma[last] = gain - 2 * problem.energy_weight * problem.capacitance * W * f
    return beta, gamma


def cases():
    for seed in range(30):
        rng = generator(seed, "cases")
        problem = drawn(int(rng.integers(1, 9)), rng, slow=seed % 3 == 0, energy_weight=float(10 ** rng.uniform(-3, 2)))
        yield problem, rng.dirichlet(np.ones(len(problem)))
    yield drawn(5, generator(0, "cases"), energy_weight=0.0), np.full(5, 0.2)
    yield replace(drawn(3, generator(0, "cases")), cycles=np.array([0.0, 1e8, 0.0])), WHOLE / 3
    yield replace(drawn(3, generator(0, "cases")), cycles=np.zeros(3)), WHOLE / 3


def test_frequencies_and_prices_are_the_goldens_where_no_processor_is_at_its_limit():
    problem = of_uploads([3e9, 2e9, 5e9])  # design/golden.json, "step_b_interior"
    best = best_frequencies(problem, WHOLE)
    deadline_price, limit_price = multipliers(problem, WHOLE, best)
    assert seconds(problem, WHOLE, best) == pytest.approx(0.6567582735500852, rel=1e-13)
    np.testing.assert_allclose(best, [437868368.4162522, 637924861.8609556, 538833483.4920282], rtol=1e-12)
    np.testing.assert_allclose(deadline_price, [0.16790387315315, 0.51920465843903, 0.31289146840783], rtol=1e-12)
    assert limit_price.tolist() == [0.0, 0.0, 0.0]
    assert price(problem, WHOLE, best) == pytest.approx(0.8229012849796654, rel=1e-13)


def test_frequencies_and_prices_are_the_goldens_where_the_shortest_deadline_binds():
    problem = of_uploads([3e8, 4e8, 5e8])  # design/golden.json, "step_b_Tmin"
    best = best_frequencies(problem, WHOLE)
    deadline_price, limit_price = multipliers(problem, WHOLE, best)
    assert seconds(problem, WHOLE, best) == pytest.approx(0.8666666666666667, rel=1e-14)
    np.testing.assert_allclose(best, [3e8, 272727272.7272727, 391304347.82608694], rtol=1e-12)
    np.testing.assert_allclose(deadline_price, [0.839596667390585, 0.04057099924869, 0.11983233336073], rtol=1e-12)
    np.testing.assert_allclose(limit_price, [1.7457703719790785e-09, 0.0, 0.0], rtol=1e-12)
    assert price(problem, WHOLE, best) == pytest.approx(0.938040410983872, rel=1e-13)


def test_after_step_a_step_b_and_then_the_joint_optimum_cost_what_the_notes_say():
    some = CSRA6.only([0, 1, 5])  # design/golden.json, "csra6"
    share = best_shares(some, some.max_hertz / 4)
    after_b = best_frequencies(some, share)
    assert price(some, share, after_b) == pytest.approx(0.920897294790147, rel=1e-7)
    assert exact.allocate(some).cost == pytest.approx(0.8971829796919605, rel=1e-9)
    # Twelve more alternations stay where they are: neither step alone can leave.
    for _ in range(12):
        share = best_shares(some, after_b)
        after_b = best_frequencies(some, share)
    assert price(some, share, after_b) == pytest.approx(0.920897294790147, rel=1e-7)


def test_no_frequency_is_above_its_limit_and_no_client_late():
    for problem, share in cases():
        best = best_frequencies(problem, share)
        assert np.all((best > 0) & (best <= problem.max_hertz))
        ready = problem.upload_seconds / share + compute_seconds(problem.cycles, best)
        work = problem.cycles > 0
        assert np.all(best[~work] == problem.max_hertz[~work])
        np.testing.assert_allclose(ready[work & (best < problem.max_hertz)], seconds(problem, share, best), rtol=1e-12)


def test_slower_or_faster_processors_never_pay():
    for problem, share in cases():
        best = best_frequencies(problem, share)
        least = price(problem, share, best)
        numbers = generator(0, "frequencies")
        for size in (1e-3, 1e-2, 0.3):
            for _ in range(50):
                other = best * np.exp(size * numbers.standard_normal(len(problem)))
                assert price(problem, share, np.minimum(other, problem.max_hertz)) >= least * (1 - 1e-12)


def test_the_prices_prove_the_optimum():
    for problem, share in cases():
        best = best_frequencies(problem, share)
        a1, a2, eps, W, f = (
            problem.time_weight, problem.energy_weight, problem.capacitance, problem.cycles, best,
        )  # fmt: skip
        beta, gamma = multipliers(problem, share, best)
        assert beta.sum() == pytest.approx(1.0, rel=1e-9) or not W.any()  # stationary in T
        assert np.all(beta > -1e-12)
        assert np.all(gamma * f >= -1e-12 * price(problem, share, f))
        assert not np.any(gamma * (problem.max_hertz - f))  # only where f is at its limit
        work = W > 0
        slope = 2 * a2 * eps * W * f + gamma - beta * a1 * W / f**2  # eq. 57
        scale = 2 * a2 * eps * W * f + beta * a1 * W / f**2 + 1e-300
        np.testing.assert_allclose((slope / scale)[work], 0.0, atol=1e-9)


def test_where_no_limit_binds_the_cubes_of_the_frequencies_sum_to_a_constant():
    problem = of_uploads([3e9, 2e9, 5e9])
    total = np.sum(best_frequencies(problem, WHOLE) ** 3)
    assert total == pytest.approx(frequency_alone(problem) ** 3, rel=1e-12)  # a1 / (2 a2 eps)


# design/golden.json, "cubic58"
CUBIC = [
    (0.4, 0.0, 584803547.642573225),
    (0.4, 1e-10, 380609457.6725636),
    (0.4, 1e-8, 44711365.136168964),
    (1e-6, 1e-8, 70710.65311867684),
]


@pytest.mark.parametrize(("beta", "gamma", "f"), CUBIC)
def test_the_corrected_eq_58_gives_the_goldens(beta, gamma, f):
    problem = AllocationProblem([1.0], [1.0], [5e7], [1e9], [1])
    assert dual_step.stationary_hertz(problem, np.array([beta]), np.array([gamma]))[0] == pytest.approx(f, rel=1e-13)


@settings(max_examples=300, deadline=None)
@given(st.floats(-30, 3), st.floats(-40, 3), st.floats(3, 12), st.floats(-4, 4), st.floats(-4, 4))
def test_the_corrected_eq_58_always_solves_eq_57(beta, gamma, W, a1, a2):
    beta, gamma, W, a1, a2 = 10.0 ** np.array([beta, gamma, W, a1, a2])
    problem = AllocationProblem([1.0], [1.0], [W], [1e9], [1], time_weight=a1, energy_weight=a2)
    f = dual_step.stationary_hertz(problem, np.array([beta]), np.array([gamma]))[0]
    gains, costs = beta * a1 * W / f**2, 2 * a2 * problem.capacitance * W * f + gamma
    assert f > 0
    assert gains == pytest.approx(costs, rel=1e-10)


def test_both_branches_of_the_closed_form_are_roots_before_any_polish():
    c = np.array([0.0, 0.5, 1.5, 1.889, 1.8899, 2.0, 10.0, 100.0])  # they meet at c^3 = 27 / 4
    x = dual_step._closed_form(c)
    np.testing.assert_allclose(x**3 + c * x**2, 1.0, rtol=1e-6)


def test_the_printed_eq_58_is_a_thousand_times_too_high_where_nothing_binds():
    problem = AllocationProblem([1.0], [1.0], [5e7], [1e9], [1])
    printed = [dual_step.printed_hertz(problem, np.array([beta]), np.array([gamma]))[0] for beta, gamma, _ in CUBIC]
    assert printed[0] == pytest.approx(5.3e11, rel=0.01)  # design/algorithms.md 5.3
    # its cosine is right, but bare: 7.0710889e4, four digits lost (ibid.)
    assert printed[2] == pytest.approx(CUBIC[2][2], rel=1e-8)
    assert printed[3] == pytest.approx(7.0710889e4, rel=1e-7)


@pytest.mark.parametrize("max_hertz", [[3e9, 2e9, 5e9], [3e8, 4e8, 5e8]])
def test_the_corrected_loop_ends_where_step_b_is_at_once_and_the_printed_one_does_not(max_hertz):
    problem = of_uploads(max_hertz)
    least = price(problem, WHOLE, best_frequencies(problem, WHOLE))
    right = dual_step.subgradient_frequencies(problem, WHOLE, steps=3000)
    assert least <= price(problem, WHOLE, right.hertz) * (1 + 1e-12)
    assert price(problem, WHOLE, right.hertz) == pytest.approx(least, rel=1e-5)
    assert right.deadline_price.sum() == pytest.approx(1.0, rel=1e-12)
    wrong = dual_step.subgradient_frequencies(problem, WHOLE, steps=3000, version="printed")
    assert price(problem, WHOLE, wrong.hertz) > 1.03 * least
    assert wrong.deadline_price.max() == 0.0  # eq. 60 without the upload time only lets them fall


def test_the_loop_refuses_what_its_equations_divide_by():
    problem = of_uploads([3e9, 2e9, 5e9])
    with pytest.raises(ConfigError, match="both must be positive"):
        dual_step.subgradient_frequencies(replace(problem, energy_weight=0.0), WHOLE)
    with pytest.raises(ConfigError, match="Did you mean 'printed'"):
        dual_step.subgradient_frequencies(problem, WHOLE, version="print")
    with pytest.raises(ConfigError, match="steps must be at least 1; got 0"):
        dual_step.subgradient_frequencies(problem, WHOLE, steps=0)
    with pytest.raises(ConfigError, match="step_size must be positive"):
        dual_step.subgradient_frequencies(problem, WHOLE, step_size=0.0)


def test_what_the_loop_shows_in_its_examples_runs():
    assert doctest.testmod(dual_step) == (0, 7)
