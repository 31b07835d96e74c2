"""How a round is planned and concluded, and what it leaves behind."""

from dataclasses import fields, replace

import numpy as np
import pytest

import fedreach as fr
from fedreach._util.arrays import weighted_sum
from fedreach._util.streams import generator
from fedreach.federation.aggregation import Mean
from fedreach.federation.round import conclude_round, conclude_server_round, plan_probe, plan_round
from fedreach.federation.selection import SELECTIONS
from fedreach.federation.selection.losses import PowerOfChoice
from fedreach.federation.selection.random import Full, Uniform
from fedreach.federation.server import Average
from fedreach.federation.state import FederationState
from fedreach.federation.types import Cohort, Probe, RoundCost
from fedreach.federation.weighting import WEIGHTINGS, ByDisagreement, Equal
from fedreach.wireless.radio import Radio

from .small import D, conclude, federation, make_reports, make_view, observe_probe, part, start


def test_the_cohort_shrinks_to_those_available_and_ids_come_out_increasing():
    chosen, view = federation(cohort_size=4), make_view(available=np.array([True, False, True, False, False, True]))
    assert plan_round(chosen, start(chosen, view), view).ids.tolist() == [0, 2, 5]


def test_nobody_available_means_nobody_asked_and_nobody_chosen():
    chosen, view = federation(PowerOfChoice()), make_view(available=np.zeros(6, np.bool_))
    assert plan_probe(chosen, start(chosen, view), view) is None
    assert len(plan_round(chosen, start(chosen, view), view).ids) == 0


class Asking(Uniform):
    """Choose at random, after a probe of one client that is drawn."""

    def probe(self, state, view, k, rng):
        return Probe(rng.choice(view.ids, 1))


class Around(fr.Selection):
    """A policy around another, which answers every call."""

    def __init__(self, inner):
        self.inner = inner

    def probe(self, state, view, k, rng):
        return self.inner.probe(state, view, k, rng)

    def select(self, state, view, k, rng):
        return self.inner.select(state, view, k, rng)


def test_whoever_writes_a_probe_is_asked_with_the_stream_of_the_round():
    view, asking, around, silent = make_view(), *map(federation, (Asking(), Around(Asking()), Around(Uniform())))
    for number in range(5):
        state = replace(start(asking, view), round=number)
        drawn = generator(asking.seed, "probe", number + 1).choice(view.ids, 1)
        assert plan_probe(asking, state, view).ids == plan_probe(around, state, view).ids == drawn
        assert plan_probe(silent, state, view) is None


def test_full_may_choose_more_than_the_cohort():
    chosen, view = federation(Full(), cohort_size=1), make_view()
    assert plan_round(chosen, start(chosen, view), view).ids.tolist() == list(range(6))


def test_the_plan_depends_on_seed_and_round_only():
    chosen, view = federation(), make_view()
    state = start(chosen, view)
    plans = [plan_round(chosen, replace(state, round=t), view).ids.tolist() for t in range(30)]
    assert plans == [plan_round(chosen, replace(state, round=t), view).ids.tolist() for t in range(30)]
    assert len(set(map(tuple, plans))) > 1
    other = replace(chosen, seed=4)
    assert plans != [plan_round(other, replace(state, round=t), view).ids.tolist() for t in range(30)]


def test_the_new_model_is_the_old_one_plus_the_weighted_mean_update():
    # Clients 1 and 4 hold 20 and 50 examples and move by 2 and 5: (20 * 2 + 50 * 5) / 70 = 29 / 7.
    state, report = conclude(federation(), [1, 4])
    np.testing.assert_allclose(state.params, np.full(D, 29 / 7), rtol=1e-6)
    assert report.cohort == (1, 4)
    assert report.weights == (20 / 70, 50 / 70)
    assert report.train_loss == pytest.approx((20 * 0.5 + 50 * 2.0) / 70)
    assert state.round == 1


def test_the_server_remembers_the_last_loss_heard_from_each_client():
    chosen = federation()
    state, _ = conclude(chosen, [1, 4])
    np.testing.assert_array_equal(state.loss, [np.nan, 0.5, np.nan, np.nan, 2.0, np.nan])
    # A probe is heard as well; the loss of training, which comes later, replaces it.
    view = replace(make_view(), loss=np.full(6, 7.0), probed=np.array([True, True, False, False, False, False]))
    state, _ = conclude(chosen, [1], view, state)
    np.testing.assert_array_equal(state.loss, [7.0, 0.5, np.nan, np.nan, 2.0, np.nan])


def test_losses_told_in_a_probe_are_remembered_also_where_nobody_reports():
    chosen, view = federation(), replace(make_view(), loss=np.full(6, 7.0), probed=np.arange(6) < 2)
    state, _ = conclude(chosen, [], view, start(chosen, make_view()))
    np.testing.assert_array_equal(state.loss, [7.0, 7.0, *[np.nan] * 4])


def test_a_round_without_reports_keeps_the_model_and_sends_no_model():
    chosen, view = federation(server=Average(momentum=0.9)), make_view()
    before, _ = conclude(chosen, [1, 4])
    after, report = conclude(chosen, [], view, before)
    assert after.params.tobytes() == before.params.tobytes()
    assert after.server is before.server
    assert after.round == 2
    assert report == type(report)((), (), {}, None, 0, 0, 0)


def test_the_weighted_sum_is_the_matrix_product_in_double_precision():
    rng = generator(0, "sum")
    weights, update = rng.random(7), rng.standard_normal((7, 50)).astype(np.float32)
    np.testing.assert_allclose(weighted_sum(weights, update), weights @ update.astype(np.float64), rtol=1e-13)


def test_rate_and_momentum_of_the_server_move_parameters_only_and_leave_buffers_a_plain_mean():
    # Column 4 is a buffer, such as a running variance: 1 at first, and every client reports -0.9 once, then 0.
    chosen = federation(weighting=Equal(), server=Average(lr=0.5, momentum=0.9))
    view = make_view()
    state = replace(start(chosen, view), models=np.ones((1, D), np.float32))
    for buffer in (-0.9, 0.0, 0.0):
        update = np.full((2, D), 1.0, np.float32)
        update[:, 4] = buffer
        reports = make_reports([0, 1], update, trainable=4)
        state, _ = conclude_round(chosen, state, view, Cohort(reports.ids), reports)
    # Velocities 1, 1.9 and 2.71 for the parameters, half of each is added; with these the variance would be .4305 or,
    # by the rate alone, .55.
    np.testing.assert_allclose(state.params, [3.805] * 4 + [0.1], rtol=1e-6)
    assert state.params.dtype == np.float32


class Remarking(Uniform):
    def select(self, state, view, k, rng):
        return Cohort(view.ids[1:3], "the second and the third")


def test_a_remark_of_the_policy_stands_in_the_row_also_where_nobody_replies():
    chosen, view = federation(Remarking()), make_view()
    state = start(chosen, view)
    selection = plan_round(chosen, state, view)
    assert selection.ids.tolist() == [1, 2]
    for ids in ([1, 2], []):
        _, row = conclude_round(chosen, state, view, selection, make_reports(ids))
        assert row.remark == "the second and the third"


def test_a_row_says_who_was_lost_why_and_what_those_that_replied_measured():
    chosen, view = federation(weighting=ByDisagreement()), make_view()
    reports = replace(make_reports([1, 4]), lost={3: "late"})
    _, row = conclude_round(chosen, start(chosen, view), view, Cohort(np.array([1, 3, 4])), reports)
    assert row.metrics == {"loss": (0.5, 2.0), "disagreement": (0.6, 0.9)}  # and nothing that nobody asked for
    assert row.lost == {3: "late"}
    assert conclude_round(
        chosen, start(chosen, view), view, Cohort(np.array([3])), replace(make_reports([]), lost={3: "late"})
    )[1].lost == {3: "late"}


def test_a_round_of_the_server_ends_with_what_it_learnt_and_leaves_all_else():
    chosen, view = federation(PowerOfChoice(), server=Average(momentum=0.9)), make_view()
    before, _ = conclude(chosen, [1, 4])
    learnt = replace(before, models=before.models + 1, server=({"at": np.zeros(1)},))
    after, row = conclude_server_round(chosen, before, view, learnt)
    assert after.round == 2
    kept = {f.name for f in fields(after)} - {"round"}
    assert all(getattr(after, name) is getattr(learnt, name) for name in kept)
    assert row == type(row)((), (), {}, None, 0, 0, 0, by_server=True)
    _, row = conclude_server_round(replace(chosen, radio=Radio()), before, view, learnt)
    assert vars(row.cost) == vars(RoundCost(0.0, 0.0, 0.0, 0.0, None))


class Twice(Mean):
    def combine(self, state, weights, update, rng):
        return 2 * weighted_sum(weights, update), state


def test_a_faster_sum_is_taken_for_what_says_that_it_is_one_and_for_nothing_else():
    def faster(weights, update):
        return 100 * weighted_sum(weights, update)

    view, reports = make_view(), make_reports([1, 4])
    for aggregation, factor in ((Mean(), 100), (Twice(), 2)):
        chosen = replace(federation(), aggregation=aggregation)
        state, _ = conclude_round(chosen, start(chosen, view), view, Cohort(reports.ids), reports, faster)
        np.testing.assert_allclose(state.params, np.full(D, factor * 29 / 7), rtol=1e-6)


def frozen(value):
    """Make every array inside a value read-only."""
    if isinstance(value, np.ndarray):
        value.setflags(write=False)
    elif isinstance(value, dict):
        for inner in value.values():
            frozen(inner)
    elif hasattr(value, "__dataclass_fields__"):
        for f in fields(value):
            frozen(getattr(value, f.name))
    return value


@pytest.mark.sampled(4)
@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_no_part_writes_to_what_it_is_given(selection, weighting):
    chosen = federation(part(SELECTIONS, selection), part(WEIGHTINGS, weighting), Average(momentum=0.5))
    view = frozen(make_view(facts=("label_entropy", "label_counts")))
    state = start(chosen, view)
    for number in (1, 2, 3):
        state = frozen(state)
        seen = replace(view, loss=np.where(np.isnan(state.loss), 1.0, state.loss), round=number)
        probe = plan_probe(chosen, state, seen)
        if probe is not None:
            seen = replace(seen, probed=np.isin(view.ids, probe.ids))
            if probe.asks == "update":
                seen = replace(seen, sent_update=seen.probed)
                answers = replace(make_reports(probe.ids), round=number, probe=True)
                state = frozen(observe_probe(chosen, state, frozen(answers)))
        cohort = plan_round(chosen, state, frozen(seen))
        state, _ = conclude_round(chosen, state, seen, cohort, frozen(make_reports(cohort.ids)))
    assert state.round == 3
    assert isinstance(state, FederationState)
