"""The paper's algorithm: never better than the optimum, and as weak or as good as the notes found it."""

import sys
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from fedreach._util.errors import ConfigError, InfeasibleError
from fedreach._util.streams import generator
from fedreach.wireless import exact
from fedreach.wireless.baselines import DC, best_shares
from fedreach.wireless.problem import Allocation, AllocationProblem

from .brute import brute, drawn, scaled
from .instances import gigahertz
from .test_step_a import CSRA6

pytest.importorskip("clarabel", reason="the DC algorithm needs fedreach[oracles]")

PAPER = DC("rlt", (1.0,), shares="relaxed", allocation="paper")
OPTIONS = [
    DC(),
    PAPER,
    DC("rlt"),
    DC("rlt", smallest_share=0.05, start=1.0),
    DC(allocation="paper"),
]


def some_problems(K=8, count=6):
    for seed in range(count):
        rng = generator(seed, "dc")
        problem = drawn(K, rng, slow=seed % 3 == 0, energy_weight=float(10 ** rng.uniform(-1, 1)))
        yield problem, int(rng.uniform(0.2, 0.7) * problem.num_examples.sum())


@pytest.mark.parametrize("dc", OPTIONS, ids=repr)
def test_it_covers_keeps_the_band_and_never_beats_the_optimum(dc):
    for problem, min_examples in some_problems():
        result = dc.solve(problem, min_examples)
        allocation = result.allocation
        rows = problem.rows(allocation.ids)
        assert problem.num_examples[rows].sum() >= min_examples
        assert allocation.share.sum() <= 1 + 1e-12
        assert np.all(allocation.hertz <= problem.max_hertz[rows])
        assert allocation.cost >= brute(problem, min_examples)[0][0] * (1 - 1e-9)
        assert np.all((result.part >= 0) & (result.part <= 1))


@pytest.mark.parametrize("relaxation", ["rlt", "perspective"])
def test_joint_is_at_most_a_then_b_is_at_most_a(relaxation):
    better = 0
    for problem, min_examples in some_problems():
        for rho in (0.1, 1.0):
            result = DC(relaxation, (rho,)).solve(problem, min_examples)
            assert result.allocation.cost <= result.after_frequencies * (1 + 1e-12)
            assert result.after_frequencies <= result.after_shares * (1 + 1e-12)
            better += result.allocation.cost < result.after_frequencies * (1 - 1e-4)
    assert better > 0


@pytest.mark.parametrize("relaxation", ["rlt", "perspective"])
def test_step_a_never_beats_the_best_set_at_its_frequencies(relaxation):
    for problem, min_examples in some_problems(K=6):
        hertz = problem.max_hertz / 3
        best = np.inf
        for n in range(1, 7):
            for rows in combinations(range(6), n):
                some, f = problem.only(list(rows)), hertz[list(rows)]
                if some.num_examples.sum() >= min_examples:
                    best = min(best, Allocation.of(some, np.arange(n), best_shares(some, f), f).cost)
        result = DC(relaxation, first_speed=1 / 3).solve(problem, min_examples)
        assert result.after_shares >= best * (1 - 1e-9)


@pytest.mark.parametrize("rho", [0.1, 0.3, 1.0])
def test_the_perspective_finds_the_golden_set(rho):
    # design/algorithms.md 5.4 and golden.json, "csra6"
    result = DC(penalties=(rho,), first_speed=0.25).solve(CSRA6, 2000)
    assert result.allocation.ids.tolist() == [0, 1, 5]
    assert result.after_shares == pytest.approx(0.9673298619485904, rel=1e-7)
    assert result.after_frequencies == pytest.approx(0.920897294790147, rel=1e-7)
    assert result.allocation.cost == pytest.approx(0.8971829796919605, rel=1e-9)
    assert not result.coverage_failed


@pytest.mark.parametrize(("rho", "start"), [(0.01, 0.5), (10.0, 0.5), (1.0, 1.0)])
def test_with_other_penalties_or_starts_the_perspective_does_not_find_it(rho, start):
    # ibid.: "not for rho = .01 or 10, nor from a = 1 with rho >= 1"
    result = DC(penalties=(rho,), start=start, first_speed=0.25).solve(CSRA6, 2000)
    assert result.after_shares > 0.9673298619485904 * 1.1


def test_the_relaxation_of_the_paper_is_nearly_blind_to_the_channel():
    # ibid.: most rho give {0, 1, 3, 5} with parts just below 1, and rho = 1 rounds to a set that does not cover
    for rho in (0.01, 0.1, 0.3):
        result = DC("rlt", (rho,), first_speed=0.25, allocation="paper").solve(CSRA6, 2000)
        assert result.allocation.ids.tolist() == [0, 1, 3, 5]
        assert result.after_shares == pytest.approx(1.2594130299, rel=1e-9)
    result = DC("rlt", (1.0,), first_speed=0.25, allocation="paper").solve(CSRA6, 2000)
    assert result.coverage_failed
    assert 0.99 < result.part.max() < 0.999


def test_its_raw_shares_are_several_times_the_band_and_those_of_the_perspective_are_not():
    for seed in range(4):
        problem, min_examples = gigahertz(20, seed)
        rlt = DC("rlt", (1.0,)).solve(problem, min_examples)
        assert rlt.raw_share_sum > 2  # design/allocation.md section 2: 5 at K = 20
        assert rlt.not_binary > 0
        assert DC(penalties=(1.0,)).solve(problem, min_examples).raw_share_sum < 1.3


def test_relaxed_shares_are_scaled_into_the_band_and_cost_at_least_the_best():
    for problem, min_examples in some_problems():
        relaxed, best = (DC("rlt", (1.0,), shares=s, allocation="paper").solve(problem, min_examples)
                         for s in ("relaxed", "best"))  # fmt: skip
        assert relaxed.allocation.ids.tolist() == best.allocation.ids.tolist()
        assert relaxed.after_shares >= best.after_shares * (1 - 1e-9)


def test_relaxed_shares_below_the_band_are_left_there():
    # rho of 1000 freezes the first choice, with binary parts and some of the band unused
    result = replace(PAPER, penalties=(1000.0,), first_speed=0.25).solve(CSRA6, 2000)
    assert result.not_binary == 0
    assert 0.99 < result.raw_share_sum < 0.999
    assert result.allocation.share.sum() == pytest.approx(result.raw_share_sum, rel=1e-12)


def test_scaling_prices_or_time_scales_the_cost_and_nothing_else():
    problem, min_examples = gigahertz(12)
    cost = DC().solve(problem, min_examples).allocation.cost
    for factors, result in (
        ({"time_weight": 1e4, "energy_weight": 1e4}, 1e4),
        ({"upload_seconds": 1e3, "max_hertz": 1e-3, "capacitance": 1e9}, 1e3),
    ):
        other = DC().solve(scaled(problem, **factors), min_examples)
        assert other.allocation.cost == pytest.approx(result * cost, rel=1e-9)


def test_edge_cases_are_solved():
    base = drawn(4, generator(0, "dc"))
    for problem, min_examples in (
        (replace(base, energy_weight=0.0), 150),
        (replace(base, cycles=np.zeros(4)), 150),
        (base, int(base.num_examples.sum())),
        (base.only([0]), 1),
        (replace(base, num_examples=np.array([0, 5, 5, 5])), 10),
        (replace(base, time_weight=1e4), 150),
        (AllocationProblem(*np.ones((4, 6)) * [[0.1], [1.0], [1e8], [1e9]], np.full(6, 10)), 25),
    ):
        for dc in (DC(), PAPER):
            result = dc.solve(problem, min_examples)
            least = brute(problem, min_examples)[0][0]
            assert least * (1 - 1e-9) <= result.allocation.cost < np.inf
            assert problem.num_examples[problem.rows(result.allocation.ids)].sum() >= min_examples


def test_joint_is_the_exact_allocation_of_its_clients():
    problem, min_examples = gigahertz(12)
    allocation = DC().solve(problem, min_examples).allocation
    assert allocation.cost == exact.allocate(problem.only(problem.rows(allocation.ids))).cost
    assert allocation.band_price is not None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"relaxation": "perspectiv"}, "Did you mean 'perspective'"),
        ({"shares": "exact"}, "DC.shares must be 'best' or 'relaxed'; got 'exact'"),
        ({"allocation": "both"}, "DC.allocation must be 'joint' or 'paper'"),
        ({"penalties": ()}, "DC.penalties must be positive numbers, at least one"),
        ({"penalties": (0.0,)}, "DC.penalties"),
        ({"smallest_share": 0.0}, r"DC\.smallest_share must be in \(0, 1\]; got 0\.0"),
        ({"first_speed": 1.1}, "DC.first_speed"),
        ({"start": -0.1}, r"DC\.start must be in \[0, 1\]"),
        ({"iterations": 0}, "DC.iterations must be at least 1; got 0"),
    ],
)
def test_an_option_out_of_its_range_is_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        DC(**options)


def test_what_nobody_holds_is_refused():
    with pytest.raises(InfeasibleError):
        DC().solve(CSRA6, 100_000)


def test_without_its_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "clarabel", None)
    with pytest.raises(ConfigError, match=r"fedreach\[reproduce\]"):
        DC().solve(CSRA6, 2000)
