"""Rounds in which the server trains: arXiv 2405.02745, Algorithm 1."""

from dataclasses import replace

import numpy as np
import pytest

from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.federation.base import ServerOptimizer
from fedreach.federation.round import conclude_server_round, server_trains
from fedreach.federation.server import (
    SERVERS,
    Average,
    FedAdam,
    FedDF,
    FedYogi,
    FineTune,
    Safari,
    ServerOnly,
    TorchOptimizer,
)

from .small import conclude, federation, make_view, start

INNER = [Average(), Average(lr=0.5, momentum=0.9), FedAdam(), FedYogi(), TorchOptimizer("Adam")]


class OneStep:
    """Data of the server by which each step adds 1."""

    def __init__(self, examples):
        self.examples, self.rng = examples, generator(0, "server-batches", 1)

    def step(self, params, index, rate):
        return params + np.float32(1)


def by_server(step, rounds):
    """Return in which rounds the server trains."""
    chosen = federation(server=step)
    state = start(chosen, make_view())
    return [server_trains(chosen, replace(state, round=number)) for number in range(rounds)]


def test_the_share_of_the_clients_rounds_tends_to_their_probability():
    # 2000 independent coins: 4.5 standard deviations are 4.5 sqrt(.7 * .3 / 2000) = .046.
    share = 1 - np.mean(by_server(Safari(client_probability=0.7), 2000))
    assert abs(share - 0.7) < 0.046


def test_the_ends_of_the_range_are_certain():
    assert not any(by_server(Safari(client_probability=1.0), 300))
    assert all(by_server(Safari(client_probability=0.0), 300))
    assert all(by_server(ServerOnly(), 300))
    assert not any(by_server(Average(), 3))


def test_the_coins_of_a_larger_probability_include_those_of_a_smaller():
    # One coin a round, from a stream of its own: raising q only turns rounds of the server into rounds of clients.
    few, many = by_server(Safari(client_probability=0.3), 200), by_server(Safari(client_probability=0.6), 200)
    assert all(small or not large for small, large in zip(few, many, strict=True))
    assert few != many


def test_the_coin_does_not_depend_on_what_the_server_does_else():
    other = Safari(inner=FedAdam(), client_probability=0.8, lr=3.0, batch_size=1)
    assert by_server(other, 100) == by_server(Safari(client_probability=0.8), 100)


@pytest.mark.parametrize("inner", INNER, ids=repr)
def test_a_round_of_clients_is_a_round_of_the_inner_step_bit_by_bit(inner):
    plain, wrapped = federation(server=inner), federation(server=Safari(inner))
    ours, theirs = start(wrapped, make_view()), start(plain, make_view())
    for ids in ([0, 1], [2, 5], [1, 3]):
        (ours, _), (theirs, _) = conclude(wrapped, ids, state=ours), conclude(plain, ids, state=theirs)
        assert ours.params.tobytes() == theirs.params.tobytes()
        assert ours.server[0].keys() == theirs.server[0].keys()
        for key, value in ours.server[0].items():
            assert value.tobytes() == theirs.server[0][key].tobytes()


def test_a_round_of_the_server_rests_the_state_of_the_inner_step():
    chosen = federation(server=Safari(Average(momentum=0.5)))
    state, _ = conclude(chosen, [0, 1])
    params, kept = chosen.server.learn(state.params, state.server[0], OneStep(10))
    learnt = replace(state, models=params[None], server=(kept,))
    after, report = conclude_server_round(chosen, state, make_view(), learnt)
    assert after.params.tolist() == (state.params + 1).tolist()
    assert after.server[0]["velocity"].tobytes() == state.server[0]["velocity"].tobytes()
    assert report.by_server
    assert (report.cohort, report.bytes_down, report.bytes_up) == ((), 0, 0)


def test_only_what_trains_says_so():
    training = {name for name, kind in SERVERS.items() if kind.trains_server}
    tuning = {name for name, kind in SERVERS.items() if kind.tunes_server}
    assert (training, tuning) == ({"safari", "server_only"}, {"fine_tune", "feddf"})
    assert all(isinstance(kind(), ServerOptimizer) for kind in SERVERS.values())


def test_the_control_leaves_clients_updates_alone():
    params, state = ServerOnly().apply(np.ones(2, np.float32), {}, np.full(2, 9.0))
    assert params.tolist() == [1.0, 1.0]
    assert state == {}


@pytest.mark.parametrize("inner", [Safari(), ServerOnly(), FineTune(), FedDF()])
@pytest.mark.parametrize("kind", [Safari, FineTune, FedDF])
def test_a_step_that_trains_itself_is_no_step_of_the_clients_rounds(kind, inner):
    rule = rf"{kind.__name__}\.inner must be .*got {type(inner).__name__}"
    with pytest.raises(ConfigError, match=rule):
        kind(inner)


@pytest.mark.parametrize("kind", [Safari, ServerOnly, FineTune, FedDF])
@pytest.mark.parametrize(("option", "value"), [("lr", 0.0), ("lr", np.inf), ("lr", np.nan), ("batch_size", 0)])
def test_an_option_outside_its_range_is_refused_by_name(kind, option, value):
    with pytest.raises(ConfigError, match=rf"{kind.__name__}\.{option} must be .*got {value}"):
        kind(**{option: value})


@pytest.mark.parametrize("value", [-0.1, 1.1, np.nan])
def test_a_probability_that_is_none_is_refused(value):
    with pytest.raises(ConfigError, match=rf"Safari\.client_probability must be in \[0, 1\]; got {value}"):
        Safari(client_probability=value)


def test_a_coin_that_shows_exactly_the_probability_falls_to_the_server():
    class Fixed:  # a uniform draw of [0, 1) may be 0 and is never 1
        def random(self):
            return 0.0

    assert Safari(client_probability=0.0).trains(Fixed())
    assert not Safari(client_probability=1.0).trains(Fixed())
    assert Safari(client_probability=0.5).trains(generator(0, "coin")) in (True, False)
