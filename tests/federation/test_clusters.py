"""Federations in which each cluster of clients has a model of its own."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import fedreach as fr
from fedreach._util.errors import ComponentError
from fedreach._util.row_store import RowTable
from fedreach.federation.round import conclude_round
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedDyn, Scaffold
from fedreach.federation.state import initial_state
from fedreach.federation.types import NO_STATE, Cohort
from fedreach.federation.weighting import ByExamples, Clip, Equal, FedNova, Mix

from ..quadratics import two_quadratics  # noqa: TID252 (tests are no package that has a name)
from .small import D, federation, make_reports, make_view


@dataclass(frozen=True)
class Split(fr.Selection):
    """Chooses everybody and divides the clients as it is told, from its second round on."""

    after: tuple[int, ...]

    def init(self, view):
        return {"clusters": np.zeros(len(view.ids), np.int64), "rounds": np.zeros(1, np.int64)}

    def select(self, state, view, k, rng):
        return Cohort(view.ids[view.available][:k])

    def observe(self, state, reports):
        rounds = state["rounds"] + 1
        return {"clusters": np.array(self.after) if rounds[0] >= 2 else state["clusters"], "rounds": rounds}

    def clusters(self, state):
        return state["clusters"]


def two_rounds(after, **parts):
    chosen = replace(federation(Split(after), Equal(), cohort_size=6), **parts)
    view = make_view()
    state = initial_state(chosen, np.zeros(D, np.float32), view)
    for _ in range(2):
        state, _ = conclude_round(chosen, state, view, Cohort(np.arange(6)), make_reports(range(6)))
    return chosen, view, state


def test_a_new_clusters_model_starts_as_that_of_its_members():
    _, _, state = two_rounds((0, 0, 1, 1, 0, 2))
    assert state.clusters.tolist() == [0, 0, 1, 1, 0, 2]
    # Equal weights over updates 1, ..., 6, twice.
    np.testing.assert_allclose(state.models, np.full((3, D), 7.0), rtol=1e-6)
    with pytest.raises(ComponentError, match="The state has 3 models, one per cluster"):
        _ = state.params


def test_each_model_takes_the_mean_of_its_own_clients_only():
    chosen, view, state = two_rounds((0, 0, 1, 1, 0, 2))
    # Clients 0, 2 and 3 reply; client i's update is i + 1.
    state, report = conclude_round(chosen, state, view, Cohort(np.arange(6)), make_reports([0, 2, 3]))
    np.testing.assert_allclose(state.models[:, 0], [7 + 1, 7 + 3.5, 7], rtol=1e-6)
    assert report.cohort == (0, 2, 3)
    np.testing.assert_allclose(report.weights, np.full(3, 1 / 3))


class Half(Equal):
    """Weighs only clients below 3."""

    def raw(self, metrics):
        return (metrics["num_examples"] <= 30.0).astype(np.float64)


def test_a_model_whose_clients_have_no_weight_stays_and_the_others_take_their_own_mean():
    chosen, view, state = two_rounds((0, 0, 0, 1, 1, 1))
    chosen = replace(chosen, weighting=Half(), server=Average(momentum=0.5))
    after, _ = conclude_round(chosen, state, view, Cohort(np.arange(6)), make_reports(range(6)))
    np.testing.assert_allclose(after.models[:, 0], [7 + 2, 7], rtol=1e-6)
    assert [dict(one) == {} for one in after.server] == [False, True]


def loop_over_cap(sizes, cap):
    """Return weights proportional to sizes, at most cap: give the excess to the others, until none exceeds it."""
    weights = [size / sum(sizes) for size in sizes]
    cap, full = max(cap, 1 / len(sizes)), set()
    while any(weight > cap + 1e-12 for weight in weights):
        full |= {i for i, weight in enumerate(weights) if weight > cap + 1e-12}
        rest = sum(size for i, size in enumerate(sizes) if i not in full)
        weights = [cap if i in full else (1 - cap * len(full)) * size / rest for i, size in enumerate(sizes)]
    return weights


@pytest.mark.parametrize(
    ("inner", "raw"), [(ByExamples(), [10, 20, 30, 40, 50, 60]), (FedNova(), [10, 20, 30, 40 / 2, 50 / 2, 60 / 2])]
)
def test_a_cap_on_weights_holds_among_the_clients_of_each_model(inner, raw):
    after = (0, 0, 1, 0, 0, 1)
    chosen, view, state = two_rounds(after)
    chosen = replace(chosen, weighting=Clip(inner, max=0.3))
    new, report = conclude_round(chosen, state, view, Cohort(np.arange(6)), make_reports(range(6)))
    weights = np.array(report.weights)
    assert weights.sum() == pytest.approx(1)
    for model in (0, 1):
        members = [i for i in range(6) if after[i] == model]
        expected = loop_over_cap([raw[i] for i in members], 0.3)  # by size and over all six, the largest of 0 had 1/3
        np.testing.assert_allclose(weights[members] / weights[members].sum(), expected, atol=1e-9)
        mean = sum(w * (i + 1) for w, i in zip(expected, members, strict=True))  # client i's update is i + 1
        np.testing.assert_allclose(new.models[model] - state.models[model], mean, rtol=1e-6)


def test_a_mix_of_weights_is_one_of_the_weights_in_each_model():
    chosen, view, state = two_rounds((0, 0, 1, 1, 1, 1))
    chosen = replace(chosen, weighting=Mix((ByExamples(), Equal())))
    new, _ = conclude_round(chosen, state, view, Cohort(np.arange(6)), make_reports(range(6)))
    weights = (np.array([10 / 30, 20 / 30]) + 1 / 2) / 2
    np.testing.assert_allclose(new.models[0] - state.models[0], weights @ [1, 2], rtol=1e-6)


def test_weights_of_single_clients_are_the_same_bits_with_several_models():
    chosen, view, state = two_rounds((0, 0, 1, 1, 0, 2))
    reports = make_reports(range(6))
    _, report = conclude_round(replace(chosen, weighting=ByExamples()), state, view, Cohort(np.arange(6)), reports)
    assert report.weights == tuple(ByExamples().weights({}, reports)[0].tolist())


def test_a_size_is_relative_to_the_participants_that_share_the_model():
    _, view, state = two_rounds((0, 0, 1, 1, 0, 2))  # sizes 10, 20, ..., 60
    expected = [10 / (80 / 3), 20 / (80 / 3), 30 / 35, 40 / 35, 50 / (80 / 3), 1]
    np.testing.assert_allclose(state.relative_sizes(view, np.arange(6)), expected)
    np.testing.assert_allclose(state.relative_sizes(view, np.array([4, 5])), [expected[4], 1])
    never_online = replace(view, num_examples=np.array([10, 20, 30, 40, 0, 60]))
    np.testing.assert_allclose(state.relative_sizes(never_online, np.array([0, 1])), [10 / 15, 20 / 15])


def test_each_model_has_its_own_server_state_which_a_split_forgets():
    chosen, view, state = two_rounds((0, 0, 0, 1, 1, 1), server=Average(momentum=0.5))
    assert [dict(s) for s in state.server] == [{}, {}]
    state, _ = conclude_round(chosen, state, view, Cohort(np.arange(6)), make_reports(range(6)))
    assert [s["velocity"][0] for s in state.server] == pytest.approx([2.0, 5.0])
    state, _ = conclude_round(chosen, state, view, Cohort(np.arange(6)), make_reports([0, 1, 2]))
    assert [s["velocity"][0] for s in state.server] == pytest.approx([3.0, 5.0])  # 2 + 0.5 * 2; nobody of the other


def test_what_clients_of_a_changed_cluster_kept_is_forgotten():
    chosen = replace(federation(Split((0, 0, 1, 1, 0, 0)), Equal(), cohort_size=6), solver=Scaffold())
    view = make_view()
    memory = RowTable.zeros(6, D).written(np.arange(6), np.ones((6, D), np.float32))
    state = replace(initial_state(chosen, np.zeros(D, np.float32), view), memory=memory)
    reports = replace(make_reports(range(6)), note=np.ones((6, D), np.float32))
    state, _ = conclude_round(chosen, state, view, Cohort(np.arange(6)), reports)
    assert state.solver[0]["c"][0] == pytest.approx(1.0)
    assert state.memory.read(np.arange(6)).all()
    state, _ = conclude_round(chosen, state, view, Cohort(np.arange(6)), reports)
    assert state.solver == (NO_STATE, NO_STATE)
    assert not state.memory.read(np.arange(6)).any()


@pytest.mark.parametrize(
    ("after", "wrong"),
    [
        ((0, 0, 2, 2, 0, 0), r"got the numbers \[0, 2\]"),
        ((1, 1, 1, 1, 1, 1), r"got the numbers \[1\]"),
        ((0, 0, -1, 0, 0, 0), r"got the numbers \[-1, 0\]"),
        ((0, 1), "for each of the 6 participants; got shape"),
    ],
)
def test_clusters_that_break_the_contract_are_refused(after, wrong):
    with pytest.raises(ComponentError, match=wrong):
        two_rounds(after)


def test_the_strength_of_feddyn_refers_to_the_participants_of_a_model(monkeypatch):
    simulation, pulls = two_quadratics(FedDyn(0.5), Equal()), []  # the clients hold 1 and 3 examples
    simulation = replace(simulation, federation=replace(simulation.federation, selection=Split((0, 1))))
    train = type(simulation.engine).train

    def recorded(self, broadcast, ids, round_, lr, terms):
        pulls.append(terms["pull"].ravel().tolist())
        return train(self, broadcast, ids, round_, lr, terms)

    monkeypatch.setattr(type(simulation.engine), "train", recorded)
    state = simulation.start()
    for _ in range(3):
        state = simulation.step(state).state
    assert pulls[0] == pytest.approx([0.5 / (1 / 2), 0.5 / (3 / 2)])
    assert pulls[2:] == [[0.5], [0.5]]  # one participant each


@pytest.mark.parametrize("solver", [Scaffold(), FedDyn(0.5)])
@pytest.mark.sampled(2)
def test_clusters_of_one_client_each_reach_their_own_optimum(solver):
    simulation = two_quadratics(solver, Equal())
    simulation = replace(simulation, federation=replace(simulation.federation, selection=Split((0, 1))))
    state = simulation.start()
    for _ in range(600):
        state = simulation.step(state).state
    adapted = state.adapted(simulation.federation)
    np.testing.assert_allclose(adapted, simulation.engine.optimum, rtol=0, atol=1e-4)
