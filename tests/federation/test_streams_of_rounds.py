"""All that is drawn in a round is drawn by (seed, purpose, round, client or model), as stored runs were drawn."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

import fedreach as fr
from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.federation.aggregation import Mean
from fedreach.federation.participation import Bernoulli
from fedreach.federation.round import conclude_round, plan_probe, plan_round, server_trains
from fedreach.federation.selection.random import Uniform
from fedreach.federation.server import Safari, batches
from fedreach.federation.steps import (
    lost_replies,
    measure_outputs,
    next_view,
    probe_batch,
    server_batches,
    server_split,
)
from fedreach.federation.types import Cohort, Probe

from .small import federation, make_reports, make_view, start
from .test_clusters import two_rounds

ROUND, SEED = 7, 3  # of `small.federation`


def number(rng):
    return int(rng.integers(2**62))


def is_of(rng_number, purpose, *key, seed=SEED):
    return rng_number == number(generator(seed, purpose, *key))


@dataclass(frozen=True)
class Noting(Uniform):
    """Notes what it would draw."""

    drawn: dict = field(default_factory=dict)

    def probe(self, state, view, k, rng):
        self.drawn["probe"] = number(rng)
        return Probe(view.ids[:1])

    def select(self, state, view, k, rng):
        self.drawn["select"] = number(rng)
        return Cohort(view.ids[:1])


@dataclass(frozen=True)
class NotingServer(Safari):
    drawn: dict = field(default_factory=dict)

    def trains(self, rng):
        self.drawn["coin"] = number(rng)
        return False


@dataclass(frozen=True)
class NotingMean(Mean):
    drawn: list = field(default_factory=list)

    def combine(self, state, weights, update, rng):
        self.drawn.append(number(rng))
        return super().combine(state, weights, update, rng)


def test_a_rounds_decisions_have_a_stream_each():
    policy, server, view = Noting(), NotingServer(), make_view()
    chosen = federation(policy, server=server)
    state = replace(start(chosen, view), round=ROUND - 1)
    plan_probe(chosen, state, view)
    plan_round(chosen, state, view)
    server_trains(chosen, state)
    for purpose, drawn in (policy.drawn | server.drawn).items():
        assert is_of(drawn, purpose, ROUND), purpose


def test_an_aggregator_has_a_stream_for_each_round_and_model():
    chosen, view, state = two_rounds((0, 0, 1, 1, 0, 1))
    noting = NotingMean()
    conclude_round(replace(chosen, aggregation=noting), state, view, Cohort(np.arange(6)), make_reports(range(6)))
    assert [is_of(drawn, "aggregate", 3, model) for model, drawn in enumerate(noting.drawn)] == [True, True]


def test_who_is_there_and_whose_reply_is_lost_are_streams_of_their_own():
    lossy, chosen, known = Bernoulli(0.5, reply_prob=0.5), federation(), make_view()
    state = replace(start(chosen, known), round=ROUND - 1)
    there = lossy.available(6, generator(SEED, "participation", ROUND))
    assert next_view(chosen, known, state, lossy).available.tolist() == there.tolist()
    for probe, purpose in ((False, "replies"), (True, "probe-replies")):
        ids = np.arange(40)
        kept = lossy.replies(len(ids), generator(SEED, purpose, ROUND))
        assert lost_replies(lossy, ids, SEED, ROUND, probe=probe).tolist() == ids[~kept].tolist()


def test_batches_of_a_probe_are_a_clients_own_and_those_of_the_server_come_in_order():
    samples = np.arange(100, 150)
    expected = generator(SEED, "probe-batches", ROUND, 11).choice(samples, 8, replace=False)
    assert probe_batch(samples, 8, SEED, ROUND, 11).tolist() == expected.tolist()
    for size in (8, 99):
        wanted = generator(SEED, "server-batches", ROUND).choice(50, min(size, 50), replace=False)
        (got,) = batches(server_batches(SEED, ROUND), np.arange(50), size, steps=1)
        assert got.tolist() == sorted(wanted.tolist())


def test_what_the_server_holds_out_is_a_stream_of_its_own_and_the_same_in_all_rounds():
    order = generator(SEED, "server-held-out").permutation(10)
    train, held_out = server_split(np.zeros(10, int), 0.3, SEED)
    chosen = [3, 6, 9]  # positions where i * 3 // 10 is about to rise
    assert held_out.tolist() == sorted(order[chosen].tolist())
    assert sorted([*train, *held_out]) == list(range(10))
    assert [len(part) for share in (1e-9, 1 - 1e-9) for part in server_split(np.zeros(10, int), share, SEED)] == [
        9,
        1,
        1,
        9,
    ]
    with pytest.raises(ConfigError, match=r"must have at least 2 examples; got 1\. Raise server_data\.examples"):
        server_split(np.zeros(1, int), 0.5, SEED)


def test_the_server_holds_out_its_share_of_each_class():
    labels = generator(0, "labels").permutation(np.repeat([0, 1, 2, 3], [40, 20, 30, 10]))
    train, held_out = server_split(labels, 0.3, SEED)
    assert np.bincount(labels[held_out]).tolist() == [12, 6, 9, 3]
    assert np.bincount(labels[train]).tolist() == [28, 14, 21, 7]


@pytest.mark.parametrize("client", [0, 11])
def test_what_a_client_measures_draws_from_its_own_stream_by_the_measurements_name(client):
    class Draw(fr.Measurement):
        name = "luck"

        def measure(self, outputs, rng):
            return float(number(rng) % 2**40)

    (drawn,) = measure_outputs([Draw()], None, SEED, ROUND, client).items()
    assert drawn == ("luck", float(number(generator(SEED, "measure luck", ROUND, client)) % 2**40))
