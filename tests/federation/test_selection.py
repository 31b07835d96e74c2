"""Who is chosen: exactly k, only whom it may be, and with the probabilities that are promised."""

from dataclasses import fields, replace
from itertools import combinations

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.data.assignment import label_entropy
from fedreach.federation.selection import SELECTIONS
from fedreach.federation.selection.labels import EntropyTopK
from fedreach.federation.selection.losses import PowerOfChoice
from fedreach.federation.selection.random import Full, FunctionSelection, Uniform
from fedreach.federation.types import ServerView
from fedreach.testing.problems import with_rates

N = 8


def make_view(loss=None, num_examples=None, entropy=None, available=None, n=N):
    """Return a view in which everybody answered a probe, with ids that are not positions."""
    values = generator(0, "view").random((3, n))
    view = ServerView.of(
        np.arange(n) * 3 + 1,
        np.arange(1, n + 1) * 10 if num_examples is None else np.asarray(num_examples),
        available=None if available is None else np.asarray(available),
        loss=values[0] if loss is None else np.asarray(loss),
    )
    view = replace(
        view,
        probed=view.available.copy(),
        label_entropy=values[1] if entropy is None else np.asarray(entropy),
        label_counts=(values[2][:, None] * [3, 5] + 1).astype(np.int64),
    )
    return with_rates(view, values[2] * 1e6 + 1)


def read_only(view):
    for field in fields(view):
        value = getattr(view, field.name)
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    return view


def permuted(view, order):
    """Return the view in which position i holds what position order[i] held; the ids stay increasing."""
    arrays = {f.name: getattr(view, f.name) for f in fields(view) if f.name != "ids"}
    return replace(view, **{name: value[order] for name, value in arrays.items() if isinstance(value, np.ndarray)})


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("k", [1, 3, 5])
def test_every_policy_fills_exactly_k_places_with_available_clients(name, k):
    view = read_only(make_view(available=[True, True, False, True, True, False, True, False]))
    policy = SELECTIONS[name]()
    selection = policy.select(policy.init(view), view, k, generator(0, "select", 1))
    ids = selection.ids
    if not policy.ignores_cohort:
        assert selection.places == k
    assert len(ids) == len(set(ids.tolist()))
    assert len(ids) > 0 or policy.may_be_empty
    assert set(ids.tolist()) <= set(view.ids[view.available].tolist())


@pytest.mark.parametrize("policy", [Full(), EntropyTopK(), PowerOfChoice()], ids=repr)
def test_renaming_the_clients_renames_the_choice(policy):
    view, order = make_view(), generator(1, "order").permutation(N)
    for k in range(1, N + 1):
        before = view.rows(policy.select({}, view, k, generator(0, "select")).ids)
        after = view.rows(policy.select({}, permuted(view, order), k, generator(0, "select")).ids)
        assert sorted(order[after]) == sorted(before)


def test_uniform_looks_at_nothing_but_who_is_available():
    a, b = make_view(), make_view(loss=np.arange(N) * 1.0, num_examples=np.arange(1, N + 1) ** 3, entropy=np.zeros(N))
    for t in range(20):
        chosen = [Uniform().select({}, view, 3, generator(0, "select", t)).ids.tolist() for view in (a, b)]
        assert chosen[0] == chosen[1]


def test_uniform_gives_every_set_of_k_the_same_chance():
    view, draws = make_view(n=5), 5000
    count = dict.fromkeys(combinations(view.ids.tolist(), 2), 0)
    rng = generator(0, "select")
    for _ in range(draws):
        count[tuple(sorted(Uniform().select({}, view, 2, rng).ids.tolist()))] += 1
    # Ten sets: each occurs draws / 10 times, give or take the binomial standard deviation.
    assert all(abs(c - draws / 10) < 4.5 * np.sqrt(draws * 0.1 * 0.9) for c in count.values())


def test_full_takes_everybody_who_is_available_whatever_the_cohort():
    view = make_view(available=[True, False] * 4)
    for k in (1, 4):
        assert Full().select({}, view, k, generator(0, "select")).ids.tolist() == [1, 7, 13, 19]


def test_the_highest_entropies_are_chosen_and_ties_go_to_the_lower_id():
    view = make_view(entropy=[0.5, 1.0, 0.7, 1.0, 0.7, 0.1, 0.7, 0.0])
    expected = [4, 10, 7, 13, 19, 1, 16, 22]  # ids are 3 i + 1
    for k in range(1, N + 1):
        assert EntropyTopK().select({}, view, k, generator(0, "select")).ids.tolist() == expected[:k]


def test_the_order_of_classes_does_not_decide_a_tie():
    lower, higher = [3, 1, 6, 19, 27, 24], [3, 1, 6, 24, 19, 27]
    counts = np.array([lower, lower, higher, higher])
    entropy = label_entropy(counts)
    assert entropy[0] < entropy[2]  # by rounding only
    view = make_view(n=4, entropy=entropy)
    assert EntropyTopK().select({}, view, 2, generator(0, "select")).ids.tolist() == [1, 4]


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [([0, 1, 2, 3, 4], [1, 3]), ([0, 2, 4], [0, 4])],  # design/algorithms.md, section 1.5
)
def test_power_of_choice_takes_the_largest_losses_of_its_candidates(candidates, chosen):
    view = ServerView.of(np.arange(5), np.full(5, 10), loss=np.array([0.3, 0.9, 0.1, 0.9, 0.5]))
    view = replace(view, probed=np.isin(view.ids, candidates))
    assert sorted(PowerOfChoice().select({}, view, 2, generator(0, "select")).ids) == chosen


def test_power_of_choice_ignores_losses_of_clients_that_did_not_answer_in_this_round():
    view = ServerView.of(np.arange(3), np.full(3, 10), loss=np.array([9.0, 0.1, 0.2]))
    view = replace(view, probed=np.array([False, True, True]))
    assert PowerOfChoice().select({}, view, 1, generator(0, "select")).ids.tolist() == [2]


def test_power_of_choice_draws_candidates_in_proportion_to_their_examples():
    sizes, draws = np.array([1, 2, 3, 4]), 5000
    view, rng = ServerView.of(np.arange(4), sizes), generator(0, "probe")
    drawn = np.array([np.isin(view.ids, PowerOfChoice(2).probe({}, view, 1, rng).ids) for _ in range(draws)])
    assert (drawn.sum(axis=1) == 2).all()
    # One after the other without replacement: P(i) = p_i + sum_{j != i} p_j p_i / (1 - p_j).
    p = sizes / sizes.sum()
    expected = p + np.array([sum(p[j] * p[i] / (1 - p[j]) for j in range(4) if j != i) for i in range(4)])
    assert expected.sum() == pytest.approx(2)
    assert (abs(drawn.mean(axis=0) - expected) < 4.5 * np.sqrt(expected * (1 - expected) / draws)).all()


@pytest.mark.parametrize(
    ("candidates", "k", "asked"), [(None, 2, 5), (3, 2, 3), (1, 2, 2), (5, 2, 5), (99, 2, 5), (3, 5, 5)]
)
def test_power_of_choice_asks_as_many_as_it_says_and_never_fewer_than_the_cohort(candidates, k, asked):
    view = make_view(available=[True, True, False, True, True, False, True, False])
    ids = PowerOfChoice(candidates).probe({}, view, k, generator(0, "probe")).ids
    assert len(set(ids.tolist())) == len(ids) == asked
    assert set(ids.tolist()) <= set(view.ids[view.available].tolist())


def test_power_of_choice_needs_a_candidate():
    with pytest.raises(ConfigError, match=r"PowerOfChoice\.candidates must be at least 1; got 0"):
        PowerOfChoice(0)


def test_a_function_is_a_policy():
    def lowest_loss(view, k, rng):
        return view.ids[np.argsort(view.loss)[:k]]

    lowest_loss.needs = ("label_counts",)
    policy, view = FunctionSelection(lowest_loss), make_view(loss=np.arange(N)[::-1] * 1.0)
    assert policy.select({}, view, 2, generator(0, "select")).ids.tolist() == [22, 19]
    assert (policy.name, policy.needs) == ("lowest_loss", ("label_counts",))
    assert policy.probe({}, view, 2, generator(0, "probe")) is None


def test_who_can_be_reached_is_not_copied_where_all_can():
    everybody, some = make_view(), make_view(available=np.arange(N) % 3 == 1)
    assert everybody.available_ids is everybody.ids
    assert some.available_ids.tolist() == [4, 13, 22]
