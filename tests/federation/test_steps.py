"""A round as a generator: what it asks, in which order, and what it makes of the answers."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import fedreach as fr
from fedreach.federation.participation import Always, Bernoulli
from fedreach.federation.selection.losses import PowerOfChoice
from fedreach.federation.selection.updates import ConvexHull
from fedreach.federation.server import Safari
from fedreach.federation.solvers import Scaffold
from fedreach.federation.steps import (
    AskLosses,
    AskServer,
    AskUpdates,
    RoundOutcome,
    finish_round,
    lost_replies,
    new_memory,
    next_request,
    next_view,
    probe_batch,
    run_round,
    run_until_cohort,
    update_client_state,
)
from fedreach.federation.types import ClientResults
from fedreach.testing.problems import tiny_simulation

from ..quadratics import two_quadratics  # noqa: TID252 (tests are no package that has a name)
from .small import D, federation, make_reports, make_view, start


def begun(simulation):
    """Return state, view and steps of round 1."""
    state = simulation.start()
    view = simulation.view(state)
    return state, view, run_round(simulation.federation, state, view, rounds=simulation.rounds)


def with_parts(**parts):
    simulation = tiny_simulation()
    return replace(simulation, federation=replace(simulation.federation, **parts))


class Scripted:
    """Answers as it is told, and keeps what it was asked."""

    def __init__(self, losses=None, reports=None):
        self.asked, self.known, self.reports = [], losses, reports

    def losses(self, request):
        self.asked.append(request)
        return self.known

    def updates(self, request):
        self.asked.append(request)
        return make_reports(request.selection.ids) if self.reports is None else self.reports(request)

    def server_steps(self, request):
        self.asked.append(request)
        return np.ones_like(request.state.models)


def test_a_round_without_a_probe_asks_the_cohort_once():
    chosen, view = federation(), make_view()
    side = Scripted()
    done = finish_round(run_round(chosen, start(chosen, view), view, rounds=5), side)
    (request,) = side.asked
    assert isinstance(request, AskUpdates)
    assert not request.probe
    assert done.result.cohort == tuple(request.selection.ids.tolist())
    assert done.update.tobytes() == make_reports(request.selection.ids).update.tobytes()


def test_losses_are_asked_first_and_stand_in_the_view_of_the_cohort():
    chosen, view = federation(PowerOfChoice(candidates=4)), make_view()
    state = start(chosen, view)
    steps = run_round(chosen, state, view, rounds=5)
    first = next_request(steps)
    assert isinstance(first, AskLosses)
    silent, *others = first.probe.ids.tolist()
    told = {client: float(client) for client in others}
    second = next_request(steps, told)
    assert isinstance(second, AskUpdates)
    assert {c: second.view.loss[c] for c in others} == told
    assert np.isnan(second.view.loss[silent])  # never heard from, and silent now
    assert second.view.probed[first.probe.ids].all()
    assert second.view.sent_update is None
    assert second.view.probe.ids.tolist() == first.probe.ids.tolist()
    assert np.isnan(view.loss).all()  # what went in stays as it is


def test_a_probe_for_updates_is_observed_and_counts_for_nothing_else():
    simulation = with_parts(selection=ConvexHull())
    state, _, steps = begun(simulation)
    first = next_request(steps)
    assert isinstance(first, AskUpdates)
    assert first.probe
    answers = simulation.updates(first)
    assert answers.probe
    second = next_request(steps, answers)
    assert not second.probe
    assert second.view.sent_update.all()
    assert second.state.selection is not state.selection
    assert second.state.models is state.models


def test_a_round_of_the_server_asks_no_client():
    simulation = two_quadratics(server=Safari(client_probability=0.0))
    _, _, steps = begun(simulation)
    request = next_request(steps)
    assert isinstance(request, AskServer)
    done = next_request(steps, simulation.learnt(request))
    assert done.result.by_server
    assert (done.result.cohort, done.update.shape) == ((), (0, 2))


@pytest.mark.parametrize("selection", [PowerOfChoice(), ConvexHull(), PowerOfChoice(loss="batch", batch_size=3)])
def test_a_round_in_pieces_is_the_round_in_one(selection):
    simulation = replace(
        with_parts(selection=selection), participation=Bernoulli(act_prob=0.9, reply_prob=0.7), drop_failing=True
    )
    state = simulation.start()
    for _ in range(4):
        steps = run_round(simulation.federation, state, simulation.view(state), rounds=simulation.rounds)
        request = run_until_cohort(steps, simulation)
        assert isinstance(request, AskUpdates)
        assert not request.probe
        in_pieces, in_one = next_request(steps, simulation.updates(request)), simulation.step(state)
        assert isinstance(in_pieces, RoundOutcome)
        assert in_pieces.result == in_one.result
        assert in_pieces.update.tobytes() == in_one.update.tobytes()
        assert in_pieces.state.models.tobytes() == in_one.state.models.tobytes()
        state = in_one.state


def test_a_round_that_is_left_changes_nothing():
    simulation = with_parts(selection=PowerOfChoice())
    state = simulation.start()
    before = state.models.tobytes()
    steps = run_round(simulation.federation, state, simulation.view(state), rounds=9)
    run_until_cohort(steps, simulation)
    steps.close()
    assert (state.round, state.models.tobytes()) == (0, before)
    assert simulation.step(state).state.round == 1


def test_an_error_of_whoever_answers_passes_through():
    def fails(request):
        raise ZeroDivisionError

    chosen, view = federation(), make_view()
    with pytest.raises(ZeroDivisionError):
        finish_round(run_round(chosen, start(chosen, view), view, rounds=5), Scripted(reports=fails))


# -------------------------------------------------------------------------------------------------- between requests


def test_the_next_view_has_the_number_the_losses_and_who_is_there_and_reached():
    chosen, known = federation(), make_view(available=np.array([True, True, False, True, True, True]))
    state = replace(start(chosen, known), round=6, loss=np.arange(6.0))
    view = next_view(chosen, known, state, Always())
    assert (view.round, view.loss.tolist(), view.available.tolist()) == (
        7,
        list(range(6)),
        [True, True, False, True, True, True],
    )
    reached = [next_view(chosen, known, replace(state, round=r), Bernoulli(0.5)).available for r in range(40)]
    assert not np.array(reached)[:, 2].any()
    assert 0.3 < np.array(reached)[:, [0, 1, 3, 4, 5]].mean() < 0.7
    again = [next_view(chosen, known, replace(state, round=r), Bernoulli(0.5)).available for r in range(40)]
    np.testing.assert_array_equal(reached, again)


def test_replies_to_a_probe_get_lost_by_a_stream_of_their_own():
    ids = np.arange(200)
    lossy = Bernoulli(1.0, reply_prob=0.5)
    of_round, of_probe = (lost_replies(lossy, ids, 0, 1, probe=probe).tolist() for probe in (False, True))
    assert of_round != of_probe
    assert 60 < len(of_round) < 140
    assert of_round == lost_replies(lossy, ids, 0, 1, probe=False).tolist()
    assert len(lost_replies(Always(), ids, 0, 1, probe=False)) == 0


def test_a_probe_batch_is_the_clients_own_of_the_round():
    samples = np.arange(100, 150)
    one = probe_batch(samples, 8, 0, 3, 2)
    assert (len(set(one.tolist())), set(one.tolist()) <= set(samples.tolist())) == (8, True)
    assert one.tolist() == probe_batch(samples, 8, 0, 3, 2).tolist()
    assert one.tolist() != probe_batch(samples, 8, 0, 4, 2).tolist()
    assert sorted(probe_batch(samples, 99, 0, 3, 2).tolist()) == samples.tolist()


def test_only_those_whose_reports_count_remember_and_tell_the_change():
    chosen = replace(federation(), solver=Scaffold())
    view = make_view()
    memory = new_memory(chosen, 6, D)
    state = replace(start(chosen, view), memory=memory)
    update = np.arange(2 * D, dtype=np.float32).reshape(2, D) + 1
    reports = replace(make_reports([1, 4], update), steps=np.array([2, 3]), trainable=D)
    after, noted = update_client_state(chosen, state, view, reports, rounds=5)
    kept = after.memory.read(np.arange(6))
    assert np.abs(kept).any(axis=1).tolist() == [False, True, False, False, True, False]
    np.testing.assert_array_equal(noted.note, kept[[1, 4]])  # from 0
    assert not memory.read(np.arange(6)).any()
    nobody = ClientResults(np.empty(0, np.int64), np.empty((0, D), np.float32), {})
    assert update_client_state(chosen, state, view, nobody, rounds=5) == (state, nobody)


def test_without_a_solver_that_keeps_something_there_is_no_memory():
    assert new_memory(federation(), 6, D) is None
    halves = new_memory(replace(federation(), solver=Scaffold(memory_dtype="float16")), 6, D)
    assert (halves.shape, halves.layout.dtype) == ((6, D), "float16")


@dataclass(frozen=True)
class Asks(fr.Selection):
    """A selection whose `select` raises StopIteration, as `next` of something empty does."""

    def init(self, view):
        return {}

    def probe(self, state, view, k, rng):
        return None

    def select(self, state, view, k, rng):
        return next(iter(()))

    def observe(self, state, reports):
        return state


def test_a_part_that_runs_out_of_something_does_not_end_the_round_silently():
    simulation = with_parts(selection=Asks())
    with pytest.raises(RuntimeError, match="StopIteration"):
        simulation.step(simulation.start())


@pytest.mark.parametrize("probe", [False, True])
def test_other_replies_get_lost_in_other_rounds(probe):
    lossy, ids = Bernoulli(1.0, 0.5), np.arange(20)
    lost = [lost_replies(lossy, ids, 0, number, probe=probe).tobytes() for number in range(1, 6)]
    assert len(set(lost)) == 5
