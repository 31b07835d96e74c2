"""Selection by a genetic algorithm always covers, and is good at what it is bred for."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from fedreach._util.errors import ConfigError, InfeasibleError
from fedreach._util.streams import generator
from fedreach.federation.selection.radio import CSRA
from fedreach.federation.types import ServerView
from fedreach.testing.problems import with_rates
from fedreach.wireless import exact
from fedreach.wireless.baselines import (
    equal_share_costs,
    genetic_search,
    genetic_selection,
    penalty_terms,
    repair_genetic,
)
from fedreach.wireless.problem import Allocation
from fedreach.wireless.rules import own_frequency

from .brute import brute, drawn
from .instances import gigahertz

# design/algorithms.md 5.6
D, d, CHOSEN = np.array([0.1, 0.35, 0.15, 0.6]), np.array([700, 650, 900, 400]), np.array([[1, 1, 0, 0]], bool)


def rng(key=0):
    return generator(key, "genetic")


def all_sets(K):
    return np.array(list(product([False, True], repeat=K)))


def printed_penalty_terms(sets, divergence, max_divergence, num_examples, min_examples):
    """Return c1 and c2 as the paper prints them, eq. 61.

    c1 = max(0, sum_k (a_k D_k - e1)) is nearly always 0, as each client left out counts -e1; and
    c2 = max(0, sum_k a_k d_k - 1 / e2) grows with the examples that a set holds.
    """
    inside = sets.astype(np.float64)
    c1 = np.maximum(inside @ divergence - len(divergence) * max_divergence, 0.0)
    return c1, np.maximum(inside @ num_examples - 1 / min_examples, 0.0)


def test_penalties_are_those_of_the_notes():
    c1, c2 = penalty_terms(CHOSEN, D, 0.2, d, 2000)
    np.testing.assert_allclose([*c1, *c2], [0.15, 650.0], rtol=1e-12)
    c1, c2 = printed_penalty_terms(CHOSEN, D, 0.2, d, 2000)
    np.testing.assert_allclose([*c1, *c2], [0.0, 1349.9995], rtol=1e-12)


def test_nothing_is_charged_to_a_set_that_breaks_nothing():
    c1, c2 = penalty_terms(np.array([[1, 0, 1, 0], [0, 1, 1, 0]], bool), D, 0.2, d, 1600)
    assert c1.tolist() == [0.0, pytest.approx(0.15)]
    assert c2.tolist() == [0.0, 50.0]


@pytest.mark.parametrize("slow", [False, True])
def test_costs_of_many_sets_at_once_are_those_of_each(slow):
    problem = drawn(5, rng(), slow=slow, energy_weight=0.7)
    sets, hertz = all_sets(5), problem.max_hertz * 0.6
    costs = equal_share_costs(problem, sets, hertz)
    assert costs[0] == 0.0
    for chosen, cost in zip(sets[1:], costs[1:], strict=True):
        rows = np.flatnonzero(chosen)
        each = Allocation.of(problem, rows, np.full(len(rows), 1 / len(rows)), hertz[rows])
        assert cost == pytest.approx(each.cost, rel=1e-12)


def test_one_missing_example_costs_more_than_any_set():
    problem = drawn(8, rng())
    costs = equal_share_costs(problem, all_sets(8), own_frequency(problem))
    assert costs.argmax() == 2**8 - 1  # all together, which is the penalty of one


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("generations", [0, 5, 60])
def test_the_set_covers_and_nobody_is_in_it_twice(seed, generations):
    problem, min_examples = gigahertz(25, seed)
    rows = genetic_selection(problem, min_examples, rng(seed), generations=generations)
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert problem.num_examples[rows].sum() >= min_examples


def test_it_depends_on_the_generator_alone():
    problem, min_examples = gigahertz(40)
    one, same, other = (genetic_selection(problem, min_examples, rng(key), generations=3).tolist() for key in (0, 0, 1))
    assert one == same
    assert one != other


def test_on_few_clients_it_finds_the_best_set_with_equal_shares():
    for seed in range(8):
        problem = drawn(9, rng(seed))
        min_examples = int(0.4 * problem.num_examples.sum())
        sets = all_sets(9)
        sets = sets[sets @ problem.num_examples >= min_examples]
        best = sets[equal_share_costs(problem, sets, problem.max_hertz).argmin()]
        rows = genetic_selection(problem, min_examples, rng(seed), frequency="maximum")
        assert rows.tolist() == np.flatnonzero(best).tolist()


def test_it_never_beats_the_optimum_and_breeding_helps():
    excess = {0: [], 60: []}
    for seed in range(8):
        problem = drawn(10, rng(seed))
        min_examples = int(0.4 * problem.num_examples.sum())
        least = brute(problem, min_examples)[0][0]
        for generations, found in excess.items():
            rows = genetic_selection(problem, min_examples, rng(seed), generations=generations)
            found.append(exact.allocate(problem.only(rows)).cost / least)
    assert min(excess[0] + excess[60]) >= 1 - 1e-12
    assert np.mean(excess[60]) < 1.05
    assert np.mean(excess[60]) < np.mean(excess[0])


def test_clients_beyond_the_divergence_are_left_out():
    problem, min_examples = gigahertz(30)
    divergence = np.where(np.arange(30) % 2 == 0, 0.1, np.inf)
    rows = genetic_selection(problem, min_examples, rng(), divergence=divergence, max_divergence=0.2)
    assert np.all(rows % 2 == 0)
    assert problem.num_examples[rows].sum() >= min_examples
    with pytest.raises(InfeasibleError):
        genetic_selection(problem, min_examples, rng(), divergence=divergence, max_divergence=0.0)


def test_a_search_over_all_clients_pays_for_divergence_and_still_may_break_it():
    """Eq. 61 charges c1 = 0.1 nats only M / 100, so that with a small M a client beyond e1 stays in the best set."""
    problem, min_examples = gigahertz(30)
    divergence = np.where(np.arange(30) % 2 == 0, 0.1, 0.3)
    limits = {"divergence": divergence, "max_divergence": 0.2}
    beyond = {}
    for penalty in (1e-3, None):
        best = genetic_search(problem, min_examples, rng(), penalty=penalty, **limits)
        beyond[penalty] = int(np.count_nonzero(divergence[best] > 0.2))
    assert beyond[1e-3] > beyond[None] == 0


def test_a_repair_keeps_what_is_allowed_and_covers():
    problem, min_examples = gigahertz(12)
    within = np.arange(12) % 3 > 0
    rows = repair_genetic(problem, min_examples, np.array([0, 1, 3]), within)
    assert within[rows].all()
    assert 1 in rows
    assert problem.num_examples[rows].sum() >= min_examples


def test_one_client_and_a_client_without_examples():
    assert genetic_selection(drawn(1, rng()), 1, rng()).tolist() == [0]
    problem = replace(drawn(3, rng()), num_examples=np.array([0, 5, 5]))
    assert genetic_selection(problem, 10, rng()).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"population": 1}, r"population must be in \[2, inf\); got 1"),
        ({"generations": -1}, "generations must be in"),
        ({"crossover": 1.5}, r"crossover must be in \[0, 1\]; got 1.5"),
        ({"mutations": 9}, r"mutations must be in \[0, 4\]; got 9"),
        ({"penalty": 0.0}, "penalty must be in"),
        ({"frequency": "onw"}, "Did you mean 'own'"),
        ({"divergence": np.zeros(4)}, "must be given together"),
    ],
)
def test_an_option_out_of_its_range_is_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        genetic_selection(drawn(4, rng()), 10, rng(), **options)


def round_of_the_paper(seed):
    """Return a view of 80 clients: 8 balanced ones, and 72 whose labels follow Dirichlet(0.5)."""
    draw = rng(seed)
    skewed = draw.multinomial(600, draw.dirichlet(np.full(10, 0.5), 72))
    counts = np.concatenate([np.full((8, 10), 60), skewed])
    view = replace(ServerView.of(np.arange(80), counts.sum(axis=1)), label_counts=counts.astype(np.float64))
    return with_rates(view, draw.uniform(1e6, 3e7, 80))


def test_a_search_over_all_clients_costs_more_and_reports_what_its_penalty_did_not_exclude():
    """In the paper's setting, it costs about a quarter more than the optimum, and the filtered search almost nothing.

    The issue measured ratios of 1.258 and 1.005.
    """
    cost, remarks = {}, []
    for seed in range(12):
        view = round_of_the_paper(seed)
        for name, options in {
            "best": {},
            "filtered": {"search": "genetic"},
            "all": {"search": "genetic", "candidates": "all"},
        }.items():
            policy = CSRA(threshold=0.2, min_examples=2000, **options)
            cohort, admitted = policy.select({}, view, 4, rng(seed)), policy.admitted(view, 4)
            assert admitted.kept
            assert np.isin(cohort.ids, admitted.ids).all()
            assert view.num_examples[cohort.ids].sum() >= 2000
            cost.setdefault(name, []).append(cohort.allocation.cost)
        best = genetic_search(
            view.radio.problem(),
            2000,
            rng(seed),
            divergence=admitted.divergence,
            max_divergence=admitted.max_divergence,
        )
        is_allowed = np.isin(best, admitted.ids).all() and view.num_examples[best].sum() >= 2000
        assert ("nats removed" in cohort.remark) == (not is_allowed)
        remarks.append(cohort.remark)
    ratio = {name: np.mean(np.divide(costs, cost["best"])) for name, costs in cost.items()}
    assert 1 <= ratio["filtered"] < 1.03 < 1.08 < ratio["all"] < 1.6
    assert any(remarks)
    assert not all(remarks)


def test_only_the_genetic_search_has_a_penalty():
    with pytest.raises(ConfigError, match=r"CSRA\.candidates must be 'filtered' with search = 'sorted'"):
        CSRA(search="sorted", candidates="all")
