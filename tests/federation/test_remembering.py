"""Aggregations for which the server keeps what clients sent last: FedVARP and MIFA, against plain loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedreach as fr
from fedreach._util.errors import ComponentError, ConfigError
from fedreach.federation import round as round_
from fedreach.federation.aggregation import MIFA, FedVARP, Mean
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.participation import Bernoulli
from fedreach.federation.round import conclude_round
from fedreach.federation.secure_aggregation import SecureAggregation
from fedreach.federation.selection.random import Full
from fedreach.federation.state import update_clusters
from fedreach.federation.types import Cohort
from fedreach.federation.weighting import Equal, FedAU
from fedreach.testing.problems import tiny_simulation

from .small import D, federation, make_reports, make_view, start

BOTH = [FedVARP(), MIFA()]


def tiny(aggregation, **parts):
    """Four participants, two a round, some of whose replies get lost."""
    made = tiny_simulation()
    chosen = replace(made.federation, aggregation=aggregation, **{"weighting": Equal(), **parts})
    return replace(made, federation=chosen, participation=Bernoulli(0.9, 0.8))


class ById(fr.Weighting):
    """Unequal weights: all clients of the tiny federation have equally many examples."""

    def weights(self, state, reports):
        raw = reports.ids + 1.0
        return raw / raw.sum(), state


def fedvarp(table, ids, weighed):
    """Algorithm 1 of Jhunjhunwala et al. 2022: return v, and write down what was sent."""
    v = (weighed - table[ids]).mean(axis=0) + table.mean(axis=0)
    table[ids] = weighed
    return v


def mifa(table, ids, weighed):
    """Algorithm 1 of Gu et al. 2021."""
    table[ids] = weighed
    return table.mean(axis=0)


@pytest.mark.parametrize("weighting", [Equal(), ById()], ids=lambda part: type(part).__name__)
@pytest.mark.parametrize(("aggregation", "loop"), [(FedVARP(), fedvarp), (MIFA(), mifa)])
def test_a_run_goes_as_the_plain_loop(aggregation, loop, weighting):
    simulation = tiny(aggregation, weighting=weighting)
    state, lost, p = simulation.start(), 0, simulation.engine.num_trainable
    x, table = state.params.astype(np.float64), np.zeros((4, p))
    for _ in range(12):
        state, result, update = simulation.step(state)
        lost += len(result.lost)
        ids = np.array(result.cohort, np.int64)
        if len(ids):
            w = np.array(result.weights)
            x[:p] += loop(table, ids, len(ids) * w[:, None] * update[:, :p].astype(np.float64))
        np.testing.assert_allclose(state.params, x, rtol=1e-6, atol=1e-6)
    assert lost
    np.testing.assert_allclose(0.5 * np.asarray(state.sent), table, rtol=1e-6, atol=1e-7)  # kept per unit of the rate


@pytest.mark.parametrize("weighting", [Equal(), ById()], ids=lambda part: type(part).__name__)
@pytest.mark.parametrize("aggregation", BOTH, ids=lambda part: type(part).__name__)
def test_with_everybody_there_it_is_fedavg(aggregation, weighting):
    made = tiny_simulation()
    parts = {"selection": Full(), "cohort_size": 4, "weighting": weighting}
    one, other = (
        replace(made, federation=replace(made.federation, aggregation=part, **parts)) for part in (aggregation, Mean())
    )
    a, b = one.start(), other.start()
    for _ in range(6):
        a, b = one.step(a).state, other.step(b).state
        np.testing.assert_allclose(a.params, b.params, rtol=1e-6, atol=1e-6)
    assert np.abs(a.params - one.start().params).max() > 0.1


@pytest.mark.parametrize("aggregation", BOTH, ids=lambda part: type(part).__name__)
def test_old_updates_are_scaled_by_the_rate_of_the_round(aggregation):
    """What is remembered is per unit of the rate: with a schedule, an old update counts at the new rate."""
    local = LocalSGD(lr=0.4, schedule="exponential", decay=0.5)
    chosen, view = replace(federation(weighting=Equal()), aggregation=aggregation, local=local), make_view()
    state = start(chosen, view)
    for number, client in ((1, 0), (2, 1)):
        now = replace(view, round=number, rounds=9)
        state, _ = conclude_round(chosen, state, now, Cohort(np.array([client])), make_reports([client]))
    # Client 0 sent ones at rate .4, client 1 twos at rate .2; of six clients the first counts 1/6 of 1/2 in round 2.
    first, second = (1 / 6, 2 / 6 + 1 / 12) if isinstance(aggregation, MIFA) else (1.0, 2.0 + 1 / 12)
    np.testing.assert_allclose(state.params, first + second, rtol=1e-6)


def test_buffers_take_their_mean_and_are_not_remembered():
    chosen, view = replace(federation(weighting=Equal()), aggregation=MIFA()), make_view()
    reports = make_reports([0, 2], trainable=3)  # ones and threes
    state, _ = conclude_round(chosen, start(chosen, view), view, Cohort(reports.ids), reports)
    np.testing.assert_allclose(state.params, [4 / 6] * 3 + [2.0] * (D - 3), rtol=1e-6)
    assert state.sent.shape == (6, 3)


@pytest.mark.parametrize("aggregation", BOTH, ids=lambda part: type(part).__name__)
def test_rows_in_a_file_change_no_bit(aggregation, monkeypatch):
    def ran():
        simulation = tiny(aggregation)
        states = [simulation.start()]
        for _ in range(5):
            states.append(simulation.step(states[-1]).state)
        again = simulation.step(states[3]).state  # an earlier state can be gone back to
        assert again.models.tobytes() == states[4].models.tobytes()
        return states[-1]

    in_memory = ran()
    monkeypatch.setattr(round_, "LARGE", 1)
    on_disk = ran()
    assert not in_memory.sent.backing.on_disk
    assert on_disk.sent.backing.on_disk
    assert on_disk.models.tobytes() == in_memory.models.tobytes()


def test_who_changes_the_cluster_is_forgotten():
    class Splits:
        """Puts the first three into a cluster of their own."""

        def clusters(self, state):
            return np.array([1, 1, 1, 0, 0, 0])

    chosen, view = replace(federation(weighting=Equal()), aggregation=MIFA()), make_view()
    state, _ = conclude_round(chosen, start(chosen, view), view, Cohort(np.arange(6)), make_reports(np.arange(6)))
    assert np.asarray(state.sent).all()
    split = update_clusters(replace(chosen, selection=_with(chosen.selection, Splits())), state)
    assert not np.asarray(split.sent).any()  # both clusters have other members than before
    assert split.aggregation == ({}, {})


def _with(policy, clusters):
    """Return a policy with the method `clusters` of another."""

    class Both(type(policy)):
        def clusters(self, state):
            return clusters.clusters(state)

    return Both()


@pytest.mark.parametrize("aggregation", BOTH, ids=lambda part: type(part).__name__)
def test_what_cannot_go_with_it_is_refused_in_words(aggregation):
    made = tiny_simulation().federation
    with pytest.raises(ConfigError, match=r"is not a weighted sum\. Use 'mean'"):
        replace(made, aggregation=aggregation, label_statistics=SecureAggregation())
    with pytest.raises(ConfigError, match=r"both correct for absent clients\. Use one:"):
        replace(made, aggregation=aggregation, weighting=FedAU())


def test_a_promise_holds_for_the_method_that_it_was_made_for():
    class Unadapted(MIFA):
        """Says nothing of its own `combine`, and is not handed `last`."""

        def combine(self, state, weights, update, rng):
            return weights @ update.astype(np.float64), state

    class Short(MIFA):
        def combine(self, state, weights, update, rng, *, last, n):
            return super().combine(state, weights, update[:, 1:], rng, last=last[:, 1:], n=n)

        remembers_updates = True

    assert tiny(Unadapted()).step(tiny(Unadapted()).start()).state.sent is None
    with pytest.raises(ComponentError, match=r"Short\.combine must return the \d+ numbers of one update"):
        tiny(Short()).step(tiny(Short()).start())
