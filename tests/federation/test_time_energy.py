"""Seconds and joules of a round: everybody who worked pays, once, and probes are part of it."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

import fedreach as fr
from fedreach._util.errors import ComponentError, ConfigError
from fedreach._util.streams import generator
from fedreach.federation.costs import round_cost, training_passes, with_radio
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD, UnevenSteps
from fedreach.federation.round import conclude_round, plan_round
from fedreach.federation.selection.losses import PowerOfChoice
from fedreach.federation.selection.random import Uniform
from fedreach.federation.server import Average
from fedreach.federation.solvers import FedAvg, Scaffold
from fedreach.federation.types import Cohort, Probe, ServerView
from fedreach.federation.weighting import ByDisagreement, ByExamples
from fedreach.testing.problems import tiny_simulation, with_rates
from fedreach.wireless.exact import allocate
from fedreach.wireless.problem import Allocation
from fedreach.wireless.radio import Radio
from fedreach.wireless.rules import EqualShares, Greedy, Random

from .small import D, make_reports, start

N = 6


def federation(selection=None, allocation=None, solver=None, local=None, weighting=None):
    parts = (selection or Uniform(), weighting or ByExamples(), solver or FedAvg(), local or LocalSGD(), Average())
    return Federation(*parts, cohort_size=2, seed=3, radio=Radio(), allocation=allocation)


def make_view(**changes):
    view = ServerView.of(np.arange(N), np.arange(1, N + 1) * 10)
    return with_rates(replace(view, **changes), np.linspace(1e6, 2e6, N))


def flags(ids):
    return np.isin(np.arange(N), ids)


def spent(chosen, ids, view=None, allocation=None):
    return round_cost(chosen, make_view() if view is None else view, Cohort(np.array(ids, np.int64), "", allocation), D)


def test_the_cohort_pays_what_its_exact_allocation_costs():
    view = make_view()
    best = allocate(view.radio.problem().only([1, 4]))
    got = spent(federation(), [1, 4], view)
    assert (got.seconds, got.joules, got.probe_seconds, got.probe_joules) == (best.seconds, best.joules, 0, 0)
    assert got.allocation.ids.tolist() == [1, 4]


@pytest.mark.parametrize("rule", [EqualShares(), Random(), Greedy()], ids=lambda rule: type(rule).__name__)
def test_no_rule_spends_less_than_the_exact_allocation(rule):
    least = spent(federation(), [0, 2, 5])
    got = spent(federation(allocation=rule), [0, 2, 5])
    assert got.seconds + got.joules > least.seconds + least.joules


def test_an_allocation_of_the_policys_own_is_used_unless_the_method_names_a_rule():
    problem = make_view().radio.problem()
    own = Allocation.of(problem, np.array([1, 4]), np.array([0.25, 0.75]), np.array([1e9, 2e9]))
    assert spent(federation(), [1, 4], allocation=own).allocation.share.tolist() == [0.25, 0.75]
    assert spent(federation(allocation=EqualShares()), [1, 4], allocation=own).allocation.share.tolist() == [0.5, 0.5]


def test_a_probe_for_losses_costs_a_third_of_a_pass_and_one_number():
    view = make_view(probe=Probe(np.array([0, 3])), probed=flags([0, 3]))
    got = spent(federation(), [1], view)
    asked = view.radio.problem(bits=32, passes=np.full(N, 1 / 3)).only([0, 3])
    assert (got.probe_seconds, got.probe_joules) == (allocate(asked).seconds, allocate(asked).joules)
    trained = allocate(view.radio.problem().only([1]))
    assert got.seconds == got.probe_seconds + trained.seconds
    assert got.joules == got.probe_joules + trained.joules


def test_a_probe_for_the_losses_of_three_models_costs_three_evaluations_and_numbers():
    view = make_view(probe=Probe(np.array([0, 3]), models=3), probed=flags([0, 3]))
    got = spent(federation(), [0, 3], view)
    asked = allocate(view.radio.problem(bits=3 * 32, passes=np.full(N, 3 / 3)).only([0, 3]))
    assert (got.probe_seconds, got.probe_joules) == pytest.approx((asked.seconds, asked.joules), rel=1e-12)


def test_a_probe_of_a_batch_looks_at_no_more_than_there_is():
    # Clients hold 10, 20, ... examples; a batch of 20 is all of the first two, and a third of client 5's 60.
    view = make_view(probe=Probe(np.array([0, 1, 5]), "batch_loss", 20), probed=flags([0, 1, 5]))
    asked = view.radio.problem(bits=32, passes=np.array([1, 1, 0, 0, 0, 1 / 3]) / 3).only([0, 1, 5])
    assert spent(federation(), [0], view).probe_joules == pytest.approx(allocate(asked).joules, rel=1e-12)


def test_a_client_that_sent_its_update_in_the_probe_does_not_pay_again():
    probe = Probe(np.array([0, 1, 3]), "update")
    view = make_view(probe=probe, probed=flags([0, 1, 3]), sent_update=flags([0, 1]))  # the reply of 3 got lost
    got = spent(federation(), [0, 3], view)
    report_bits = 32 * (D + 2)
    asked = allocate(view.radio.problem(bits=report_bits).only([0, 1, 3]))  # also 3 has spent it
    assert (got.probe_seconds, got.probe_joules) == (asked.seconds, asked.joules)
    assert got.allocation.ids.tolist() == [3]
    assert got.joules == asked.joules + allocate(view.radio.problem().only([3])).joules
    everybody = spent(federation(), [0, 1], view)
    assert everybody.allocation is None
    assert everybody.seconds == everybody.probe_seconds


def test_nobody_chosen_costs_nothing_and_lost_replies_cost_all_the_same():
    nothing = spent(federation(), [])
    assert (nothing.seconds, nothing.joules, nothing.allocation) == (0, 0, None)
    chosen, view = federation(), make_view()
    selection = Cohort(np.array([1, 4]))
    _, all_came = conclude_round(chosen, start(chosen, view), view, selection, make_reports([1, 4]))
    _, none_came = conclude_round(chosen, start(chosen, view), view, selection, make_reports([]))
    assert none_came.cost.joules == all_came.cost.joules > 0


def test_steps_measurements_and_second_messages_are_work_too():
    examples, later = (ServerView.of(np.arange(3), np.array(sizes)) for sizes in ([10, 64, 640], [10, 64, 75]))
    passes = training_passes(federation(local=LocalSGD(epochs=5)), examples)
    assert passes.tolist() == [5, 5, 5]
    # 4 steps of a batch of 32: of 10 examples a batch is all there are; of 640 it is a twentieth.
    assert training_passes(federation(local=LocalSGD(steps=4)), examples).tolist() == [4, 2, 0.2]
    # Of 75 examples, 64 are in full batches of 32.
    full = LocalSGD(epochs=2, drop_last=True)
    assert training_passes(federation(local=full), later).tolist() == [2, 2, 2 * 64 / 75]
    # Where steps are drawn, the server knows of each client how many it will take.
    uneven = LocalSGD(steps=UnevenSteps(1, 9))
    steps = uneven.steps_of(examples.num_examples, examples.ids, 3, examples.round)
    passes = training_passes(federation(local=uneven), examples)
    assert passes.tolist() == (steps * np.array([1, 1 / 2, 1 / 20])).tolist()
    looks = 1 + ByDisagreement().measures[0].wants_before
    measured = training_passes(federation(weighting=ByDisagreement()), examples)
    assert measured.tolist() == pytest.approx([1 + looks / 3] * 3)
    devices = Radio().devices(N, 3)
    bits = [
        with_radio(federation(solver=s), make_view(), devices, d=D, p=4, bits_per_example=64.0).radio.report_bits
        for s in (FedAvg(), Scaffold())
    ]
    assert bits == [32 * (D + 2), 32 * (D + 2 + 4)]


def test_channels_depend_on_seed_and_round_only():
    devices = Radio().devices(N, 3)

    def rates(round_, **changes):
        view = replace(make_view(), round=round_)
        view = with_radio(federation(**changes), view, devices, d=D, p=D, bits_per_example=64.0)
        return view.radio.bits_per_second.tolist()

    assert rates(1) == rates(1, selection=PowerOfChoice(), solver=Scaffold(), allocation=EqualShares())
    assert rates(1) != rates(2)


def test_without_a_radio_nothing_is_counted_and_what_needs_one_is_refused():
    class Needy(fr.Selection):
        needs_radio: ClassVar[bool] = True
        select = Uniform.select

    parts = (ByExamples(), FedAvg(), LocalSGD(), Average())
    assert spent(Federation(Uniform(), *parts, cohort_size=2, seed=0), [1]) is None
    with pytest.raises(ConfigError, match=r"Needy needs channels and devices.*Add a section `\[radio\]`"):
        Federation(Needy(), *parts, cohort_size=2, seed=0)
    with pytest.raises(ConfigError, match="EqualShares needs channels and devices"):
        Federation(Uniform(), *parts, cohort_size=2, seed=0, allocation=EqualShares())
    with pytest.raises(ConfigError, match="the view has no `radio`"):
        round_cost(federation(), replace(make_view(), radio=None), Cohort(np.array([1])), D)


class Given(fr.Selection):
    """Chooses clients 1 and 4, with an allocation that it is told."""

    def __init__(self, **changes):
        self.changes = changes

    def select(self, state, view, k, rng):
        right = {"ids": np.array([1, 4]), "share": np.array([0.5, 0.5]), "hertz": np.array([1e9, 1e9])}
        empty = dict.fromkeys(("upload_seconds", "compute_seconds", "upload_joules", "compute_joules"), np.zeros(2))
        return Cohort(np.array([1, 4]), "", Allocation(**{**right, **self.changes, **empty}, cost=0.0))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"share": np.array([0.7, 0.5])}, r"shares that sum to at most 1; got a sum of 1\.2"),
        ({"share": np.array([0.5, 0.0])}, r"positive shares; client 4 gets 0\.0"),
        ({"share": np.array([0.5, np.nan])}, "positive shares; client 4 gets nan"),
        ({"hertz": np.array([1e9, 3e9])}, r"CPU frequencies in \(0, max_hertz\]; client 4 gets 3"),
        ({"hertz": np.array([1e9, 0.0])}, r"CPU frequencies in \(0, max_hertz\]; client 4 gets 0"),
        ({"ids": np.array([1, 3])}, r"must allocate to the clients \[1, 4\]; got \[.*3.*\]"),
        ({"share": np.array([0.5])}, "one share and one frequency for each of the 2 clients"),
    ],
)
def test_an_allocation_that_breaks_the_rules_is_refused(changes, said):
    chosen, view = federation(Given(**changes)), make_view()
    with pytest.raises(ComponentError, match=said):
        plan_round(chosen, start(chosen, view), view)


def test_an_allocation_costs_what_it_costs_and_not_what_the_policy_says():
    chosen, view = federation(Given()), make_view()
    got = plan_round(chosen, start(chosen, view), view).allocation
    assert got.cost > 0
    assert (got.upload_seconds > 0).all()


def test_a_simulation_counts_and_is_otherwise_the_same():
    plain = tiny_simulation()
    counted = replace(plain, federation=replace(plain.federation, radio=Radio()))
    a, b, total = plain.start(), counted.start(), 0.0
    for _ in range(4):
        (a, told, _), (b, said, _) = plain.step(a), counted.step(b)
        assert told.cost is None
        assert said.cost.allocation.ids.tolist() == list(said.cohort)
        total += said.cost.seconds
    assert a.models.tobytes() == b.models.tobytes()
    assert total > 0
    # Two features in float32 are 64 bits an example.
    view = counted.view(counted.start())
    devices = counted.federation.radio.devices(4, 0)
    np.testing.assert_allclose(view.radio.cycles_per_pass, view.num_examples * 64 * devices.cycles_per_bit, rtol=1e-15)
    assert generator(0, "fading", 1).random() != generator(0, "devices").random()
