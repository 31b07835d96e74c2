"""A client may be drawn several times: it trains once, and counts as often as it was drawn."""

from dataclasses import replace

import numpy as np
import pytest

import fedreach as fr
from fedreach._util.errors import ComponentError, ConfigError
from fedreach.federation.participation import Bernoulli
from fedreach.federation.round import conclude_round, plan_round
from fedreach.federation.secure_aggregation import SecureAggregation
from fedreach.federation.selection.random import Multinomial, Uniform, fill_urns, groups_within
from fedreach.federation.selection.updates import UrnsBySimilarity
from fedreach.federation.types import Cohort
from fedreach.federation.weighting import ByDraws, ByExamples, Equal, FedAU, Product
from fedreach.runs.simulation import Simulation
from fedreach.testing.problems import tiny_federation, tiny_simulation

from .small import D, federation, make_reports, make_view, start


class Says(fr.Selection):
    """Choose what it was told."""

    def __init__(self, selection):
        self.selection = selection

    def select(self, state, view, k, rng):
        return self.selection


def planned(selection, cohort_size=4):
    chosen, view = federation(Says(selection), cohort_size=cohort_size), make_view()
    return plan_round(chosen, start(chosen, view), view)


def test_draws_follow_their_clients_when_ids_are_put_in_order():
    selection = planned(Cohort(np.array([4, 1, 2]), draws=np.array([2, 1, 1])))
    assert selection.ids.tolist() == [1, 2, 4]
    assert selection.draws.tolist() == [1, 1, 2]
    assert selection.places == 4


@pytest.mark.parametrize("draws", [[1, 2], [0, 1, 1], [1.0, 1.0, 1.0], [-1, 2, 1]])
def test_draws_that_are_none_are_refused(draws):
    with pytest.raises(ComponentError, match=r"Says.select must return at least one draw"):
        planned(Cohort(np.array([1, 2, 4]), draws=np.array(draws)))


def test_more_draws_than_places_are_refused():
    with pytest.raises(ComponentError, match=r"at most k = 3 clients; got 4\."):
        planned(Cohort.drawn(np.array([1, 1, 1, 2])), cohort_size=3)


def test_whoever_was_drawn_twice_counts_twice_and_trains_once():
    chosen, view = federation(weighting=ByDraws(), cohort_size=4), make_view()
    selection, state = Cohort.drawn(np.array([1, 2, 1, 5])), start(chosen, view)
    new, result = conclude_round(chosen, state, view, selection, make_reports([1, 2, 5]))
    assert result.weights == (0.5, 0.25, 0.25)
    assert result.metrics["draws"] == (2, 1, 1)
    np.testing.assert_allclose(new.params, np.full(D, (2 + 2 + 3 + 6) / 4))  # updates are id + 1
    once = conclude_round(chosen, state, view, Cohort(selection.ids), make_reports([1, 2, 5]))[1]
    assert (result.bytes_down, result.bytes_up) == (once.bytes_down, once.bytes_up)
    assert once.weights == (1 / 3, 1 / 3, 1 / 3)
    assert "draws" not in once.metrics


def test_lost_replies_take_their_draws_along():
    chosen, view = federation(weighting=ByDraws(), cohort_size=4), make_view()
    selection = Cohort.drawn(np.array([1, 2, 1, 5]))
    _, result = conclude_round(chosen, start(chosen, view), view, selection, make_reports([2, 5]))
    assert result.weights == (0.5, 0.5)


def test_draws_are_a_factor_of_other_weightings():
    chosen = federation(weighting=Product((ByDraws(), ByExamples())), cohort_size=3)
    view, selection = make_view(), Cohort.drawn(np.array([0, 0, 1]))
    _, result = conclude_round(chosen, start(chosen, view), view, selection, make_reports([0, 1]))
    assert result.weights == (0.5, 0.5)  # 2 x 10 and 1 x 20 examples


def trajectory(federation):
    """Return the model after three rounds, and their results."""
    tiny = tiny_simulation()
    simulation = Simulation(federation, tiny.data, tiny.engine, 3, Bernoulli(act_prob=0.9, reply_prob=0.9))
    state, results = simulation.start(), []
    for _ in range(3):
        state, result, _ = simulation.step(state)
        results.append(result)
    return state.params, results


def test_secure_aggregation_counts_draws_as_the_open_one_does():
    plain = replace(tiny_federation(), selection=Multinomial(), weighting=ByDraws(), cohort_size=4)
    params, results = trajectory(plain)
    hidden, same = trajectory(replace(plain, label_statistics=SecureAggregation()))
    np.testing.assert_allclose(hidden, params, rtol=0, atol=1e-6)
    assert [r.metrics["draws"] for r in same if r.cohort] == [r.metrics["draws"] for r in results if r.cohort]
    assert max(max(r.metrics["draws"]) for r in results if r.cohort) > 1


def test_secure_aggregation_refuses_what_it_cannot_weigh_by_name():
    with pytest.raises(ConfigError, match="UrnsBySimilarity reads labels"):
        replace(tiny_federation(), selection=UrnsBySimilarity(), label_statistics=SecureAggregation())
    with pytest.raises(ConfigError, match="FedAU"):
        replace(tiny_federation(), weighting=FedAU(), label_statistics=SecureAggregation())


def test_under_a_selection_without_draws_each_counts_once():
    both = [replace(tiny_federation(), selection=Uniform(), weighting=w, cohort_size=3) for w in (ByDraws(), Equal())]
    (a, _), (b, _) = map(trajectory, both)
    assert a.tobytes() == b.tobytes()


def test_urns_of_any_groups_hold_each_clients_balls():
    rng = np.random.Generator(np.random.Philox(0))
    for _ in range(200):
        a, k = int(rng.integers(2, 9)), int(rng.integers(1, 6))
        balls = k * rng.integers(1, 50, a)
        full = int(balls.sum()) // k
        merges, alive = [], list(range(a))
        while len(alive) > 1:  # any tree
            left, right = rng.choice(alive, 2, replace=False).tolist()
            alive = [node for node in alive if node not in (left, right)] + [a + len(merges)]
            merges.append((left, right, 0, 0))
        groups = groups_within(np.array(merges), balls, full)
        assert sorted(client for group in groups for client in group) == list(range(a))
        assert all(len(group) == 1 or balls[group].sum() <= full for group in groups)
        urns = fill_urns(balls, groups, k)
        assert (urns >= 0).all()
        assert urns.sum(axis=0).tolist() == balls.tolist()
        assert urns.sum(axis=1).tolist() == [full] * k
