"""Rules for shares and frequencies: all give what the round can keep, and none is cheaper than the exact one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.wireless import problem as cost
from fedreach.wireless.problem import Allocation, AllocationProblem
from fedreach.wireless.rules import (
    RULES,
    AllocationRule,
    EqualShares,
    ExactAllocation,
    Greedy,
    Random,
    bandwidth_worth,
    frequency_alone,
    hand_out_units,
    own_frequency,
    printed_frequency,
)

from .brute import drawn

EVERY = [*(rule() for rule in RULES.values()), Greedy(unit=0.3), Greedy(frequency="printed"), Random(slowest=1.0)]
UNCHANGED = [rule for rule in EVERY if not isinstance(rule, Random)]  # nothing is drawn


def rng(key=0):
    return generator(key, "rule")


def problems():
    """Return problems of several sizes and prices, one without cycles and one of equal clients."""
    for K in (1, 2, 7, 30):
        yield drawn(K, generator(K, "clients"), slow=K == 7)
    yield drawn(6, generator(1, "clients"), energy_weight=0.0)
    yield drawn(6, generator(2, "clients"), time_weight=1e3)
    yield replace(drawn(5, generator(3, "clients")), cycles=np.array([0.0, 1e8, 0.0, 2e8, 0.0]))
    yield AllocationProblem(*np.ones((4, 4)) * [[0.1], [1.0], [1e8], [1e9]], np.ones(4))


@pytest.mark.parametrize("rule", EVERY, ids=repr)
def test_every_rule_serves_everybody_within_the_band_and_the_processors(rule):
    assert isinstance(rule, AllocationRule)
    for problem in problems():
        given_out = rule.allocate(problem, rng())
        assert given_out.ids.tolist() == problem.ids.tolist()
        assert np.all(given_out.share > 0)
        assert given_out.share.sum() <= 1 + 1e-12
        assert np.all((given_out.hertz > 0) & (given_out.hertz <= problem.max_hertz))


@pytest.mark.parametrize("rule", EVERY, ids=repr)
def test_the_deadline_is_that_of_the_last_client_and_the_cost_what_it_says(rule):
    for problem in problems():
        given_out = rule.allocate(problem, rng())
        b, f = given_out.share, given_out.hertz
        seconds = max(problem.upload_seconds / b + problem.cycles / f)
        joules = sum(problem.power_watts * problem.upload_seconds / b + problem.capacitance * problem.cycles * f**2)
        assert given_out.seconds == pytest.approx(seconds, rel=1e-12)
        price = problem.time_weight * seconds + problem.energy_weight * joules
        assert given_out.cost == pytest.approx(price, rel=1e-12)


@pytest.mark.parametrize("rule", EVERY, ids=repr)
def test_no_rule_is_cheaper_than_the_exact_one(rule):
    for problem in problems():
        least = ExactAllocation().allocate(problem, rng()).cost
        assert rule.allocate(problem, rng()).cost >= least * (1 - 1e-12)


def test_on_unequal_clients_only_the_exact_rule_is_exact():
    problem = drawn(7, generator(7, "clients"))
    least = ExactAllocation().allocate(problem, rng()).cost
    assert all(rule.allocate(problem, rng()).cost > 1.001 * least for rule in EVERY if rule != ExactAllocation())


@pytest.mark.parametrize("rule", UNCHANGED, ids=repr)
def test_renaming_the_clients_renames_the_shares(rule):
    problem, order = drawn(12, generator(5, "clients")), rng(9).permutation(12)
    before = rule.allocate(problem, rng())
    after = rule.allocate(replace(problem.only(order), ids=problem.ids), rng())
    np.testing.assert_allclose(after.share, before.share[order], rtol=1e-9)
    np.testing.assert_allclose(after.hertz, before.hertz[order], rtol=1e-9)


@pytest.mark.parametrize("rule", EVERY, ids=repr)
def test_no_rule_writes_to_the_problem_and_only_random_draws(rule):
    problem = drawn(5, generator(5, "clients"))
    for name in ("upload_seconds", "power_watts", "cycles", "max_hertz", "num_examples", "ids"):
        getattr(problem, name).setflags(write=False)
    numbers = rng()
    rule.allocate(problem, numbers)
    assert (numbers.random() == rng().random()) == (not isinstance(rule, Random))


def test_equal_gives_everybody_the_same_share_and_its_own_frequency():
    problem = AllocationProblem(*np.ones((2, 2)), [1e8, 2e8], np.array([2e9, 5e8]), np.ones(2))
    given_out = EqualShares().allocate(problem, rng())
    assert given_out.share.tolist() == [0.5, 0.5]
    # (1 / (2 * 1e-27))^(1/3), design/algorithms.md 5.6
    np.testing.assert_allclose(given_out.hertz, [7.9370052598e8, 5e8], rtol=1e-10)


def test_the_frequency_alone_costs_one_client_least():
    problem = drawn(1, generator(4, "clients"), time_weight=3.0, energy_weight=0.2, capacitance=2e-27)
    f0 = frequency_alone(problem)

    def price(f):
        joules = cost.compute_joules(problem.capacitance, problem.cycles[0], f)
        return problem.time_weight * problem.cycles[0] / f + problem.energy_weight * joules

    assert price(f0) < min(price(0.99 * f0), price(1.01 * f0))


def test_where_joules_are_free_everybody_computes_at_full_speed():
    problem = drawn(4, generator(4, "clients"), energy_weight=0.0)
    for rule in (EqualShares(), Greedy(), Greedy(frequency="printed")):
        assert rule.allocate(problem, rng()).hertz.tolist() == problem.max_hertz.tolist()


def test_the_printed_frequency_divides_by_the_cycles_too():
    problem = replace(drawn(3, generator(4, "clients")), cycles=np.array([1e6, 8e6, 0.0]))
    ratio = own_frequency(problem) / printed_frequency(problem)
    np.testing.assert_allclose(ratio[:2], [100.0, 200.0], rtol=1e-12)  # the cube roots of the cycles
    assert printed_frequency(problem)[2] == problem.max_hertz[2]


def test_random_looks_at_nothing_but_how_many_clients_there_are():
    a, b = drawn(6, generator(1, "clients")), drawn(6, generator(2, "clients"), slow=True, energy_weight=5.0)
    one, other = Random().allocate(a, rng()), Random().allocate(b, rng())
    assert one.share.tolist() == other.share.tolist()
    np.testing.assert_allclose(one.hertz / a.max_hertz, other.hertz / b.max_hertz, rtol=1e-15)


def test_random_shares_are_dirichlet_and_frequencies_uniform():
    problem, numbers, draws = drawn(4, generator(1, "clients")), rng(), 4000
    drawn_out = [Random(slowest=0.2).allocate(problem, numbers) for _ in range(draws)]
    share = np.array([one.share for one in drawn_out])
    part = np.array([one.hertz for one in drawn_out]) / problem.max_hertz
    # Dirichlet(1) of 4: mean 1/4, variance 3/80; uniform on [.2, 1]: mean .6, variance .64 / 12. Five standard errors.
    assert np.abs(share.mean(axis=0) - 0.25).max() < 5 * np.sqrt(3 / 80 / draws)
    assert np.abs(share.var(axis=0) - 3 / 80).max() < 0.004
    assert np.abs(part.mean(axis=0) - 0.6).max() < 5 * np.sqrt(0.64 / 12 / draws)
    assert 0.2 <= part.min() < 0.21
    assert 0.99 < part.max() <= 1.0


def test_a_larger_concentration_makes_random_shares_more_alike():
    problem, numbers, draws = drawn(4, generator(1, "clients")), rng(), 4000
    share = np.array([Random(concentration=3.0).allocate(problem, numbers).share for _ in range(draws)])
    # Dirichlet(3) of 4, each Beta(3, 9): variance (1/4)(3/4) / 13, and 1 / b of mean 11 / 2; with 1 it has none.
    assert np.abs(share.var(axis=0) - 3 / 16 / 13).max() < 0.002
    assert np.abs((1 / share).mean(axis=0) - 5.5).max() < 0.5


def test_marginal_gains_are_positive_and_those_of_the_notes():
    # design/algorithms.md 5.6
    problem = AllocationProblem([0.06, 0.08, 0.065], [0.2, 0.5, 0.3], *np.ones((2, 3)), np.ones(3))
    np.testing.assert_allclose(
        bandwidth_worth(problem) / np.array([0.2, 0.3, 0.25]) ** 2, [1.8, 4 / 3, 1.352], rtol=1e-10
    )


def one_by_one(worth, units):
    """Return how many units each has, as the paper's steps (1) and (2) say."""
    own = np.ones(len(worth), np.int64)
    while own.sum() < units:
        own[np.argmax(worth / own**2)] += 1
    return own


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=12), st.integers(0, 150))
def test_units_handed_out_at_once_are_those_handed_out_one_by_one(worth, more):
    worth = np.array(worth)
    assert hand_out_units(worth, len(worth) + more).tolist() == one_by_one(worth, len(worth) + more).tolist()


def test_so_are_those_of_clients_that_need_about_the_same():
    numbers = rng()
    for _ in range(300):
        worth = numbers.uniform(0.1, 1.0, numbers.integers(2, 8))
        units = len(worth) + int(numbers.integers(0, 200))
        assert hand_out_units(worth, units).tolist() == one_by_one(worth, units).tolist()


def test_with_fine_units_greedy_shares_are_in_proportion_to_the_square_root_of_need():
    # All gains are equal where b ~ sqrt((a1 + a2 P) tau); a unit is how far off a share may be.
    problem = drawn(8, generator(8, "clients"), energy_weight=2.0)
    root = np.sqrt((1.0 + 2.0 * problem.power_watts) * problem.upload_seconds)
    share = Greedy(unit=1e-5).allocate(problem, rng()).share
    np.testing.assert_allclose(share, root / root.sum(), atol=1e-5)


def test_a_unit_is_a_whole_part_of_the_band_and_everybody_gets_one():
    problem = drawn(5, generator(8, "clients"))
    share = Greedy(unit=0.13).allocate(problem, rng()).share  # 7 units of 1/7
    np.testing.assert_allclose(share * 7, np.round(share * 7), atol=1e-12)
    assert share.sum() == pytest.approx(1.0, rel=1e-12)
    assert Greedy(unit=0.5).allocate(problem, rng()).share.tolist() == [0.2] * 5


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Greedy(unit=0.0), r"Greedy\.unit must be in \[1e-9, 1\]; got 0\.0"),
        (lambda: Greedy(unit=float("nan")), "Greedy.unit"),
        (lambda: Greedy(frequency="corected"), "Did you mean 'corrected'"),
        (lambda: Random(slowest=0.0), r"Random\.slowest must be in \(0, 1\]; got 0\.0"),
        (lambda: Random(slowest=1.5), "Random.slowest"),
    ],
)
def test_an_option_out_of_its_range_is_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_exact_is_what_exact_allocation_gives():
    # G1 with all clients, golden G3 of design/allocation.md
    problem = AllocationProblem(
        [0.10, 0.08, 0.12, 0.20, 0.06],
        [0.5, 1.0, 0.25, 0.1, 2.0],
        [1e8, 2e8, 5e7, 1.5e8, 3e8],
        np.array([2, 3, 2.5, 1, 4]) * 1e9,
        np.ones(5),
    )
    best = ExactAllocation().allocate(problem, rng())
    assert isinstance(best, Allocation)
    assert best.cost == pytest.approx(2.649697293704, rel=1e-12)
