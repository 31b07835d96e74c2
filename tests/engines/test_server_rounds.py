"""Rounds in which the server trains on its own data: SAFARI between FedAvg and SGD."""

from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedreach._util.errors import ConfigError
from fedreach._util.streams import generator
from fedreach.data.datasets import ServerData
from fedreach.data.federated import federate
from fedreach.data.partition import iid
from fedreach.engines.sequential import Sequential
from fedreach.engines.vmap import Vmap
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.selection.random import Uniform
from fedreach.federation.server import Average, FedAdam, Safari, ServerOnly, batches
from fedreach.federation.solvers import FedAvg
from fedreach.federation.steps import server_batches
from fedreach.federation.weighting import ByExamples, Equal
from fedreach.runs.simulation import simulate
from fedreach.testing.problems import tiny_data

from ..quadratics import two_quadratics  # noqa: TID252 (tests are no package that has a name)
from .tiny import changed, run


@dataclass(frozen=True)
class Coins(Safari):
    """SAFARI whose coin is known: clients train where it is below q."""

    coins: ClassVar[list[float]] = []

    def trains(self, rng):
        return self.coins.pop(0) >= self.client_probability


def test_safari_gives_the_golden_numbers():
    # design/algorithms.md, section 4: uniform mean, K = 3 steps of 0.1, server gradient x - (0, 1), server learning
    # rate 0.2, coins (.3, .9, .6) and q = .7: clients, server, clients.
    server = Coins(client_probability=0.7, lr=0.2)
    simulation = two_quadratics(FedAvg(), Equal(), server)
    Coins.coins[:] = [0.3, 0.9, 0.6]
    state = simulation.start()
    expected = [(-0.2535, 0.38359375), (-0.2028, 0.506875), (-0.6302008, 0.3883009766)]
    for number, params in enumerate(expected):
        done = simulation.step(state)
        state = done.state
        np.testing.assert_allclose(state.params, params, rtol=0, atol=1e-6)
        assert done.result.by_server == (number == 1)
    assert Coins.coins == []


def with_server(server, kind=Sequential, **options):
    data = tiny_data()
    x, y = data.dataset.train_x[:10] + 1, data.dataset.train_y[:10]
    data = replace(data, server=ServerData(x, y))
    federation = Federation(Uniform(), ByExamples(), FedAvg(), LocalSGD(lr=0.5), server, cohort_size=2, seed=0)
    name = {Sequential: "sequential", Vmap: "vmap"}[kind]
    return simulate(data, "linear", federation, rounds=10, engine=name, **options)


@pytest.mark.parametrize("inner", [Average(), Average(0.5, 0.9), FedAdam()])
def test_with_probability_1_it_is_its_inner_step_bit_for_bit(inner):
    one, other = (run(with_server(s), 6) for s in (Safari(inner, client_probability=1.0), inner))
    assert one[0].models.tobytes() == other[0].models.tobytes()
    assert one[1] == other[1]


@pytest.mark.parametrize("kind", [Sequential, Vmap])
def test_with_probability_0_it_is_sgd_on_the_servers_data_and_asks_nobody(kind):
    safari, only = (with_server(s, kind) for s in (Safari(client_probability=0.0), ServerOnly()))
    (state, reports), (control, _) = run(safari, 5), run(only, 5)
    assert state.models.tobytes() == control.models.tobytes()
    for report in reports:
        assert (report.cohort, report.bytes_down, report.bytes_up, report.by_server) == ((), 0, 0, True)
    # By hand: 10 examples are one batch, in whatever order.
    x, y = (torch.from_numpy(array) for array in (safari.data.server.x, safari.data.server.y))
    w = torch.from_numpy(safari.start().params[:4].reshape(2, 2).copy()).requires_grad_()
    b = torch.from_numpy(safari.start().params[4:].copy()).requires_grad_()
    for _ in range(5):
        loss = F.cross_entropy(F.linear(x, w, b), y)
        for tensor, gradient in zip((w, b), torch.autograd.grad(loss, (w, b)), strict=True):
            tensor.data -= 0.1 * gradient
    np.testing.assert_allclose(state.params, torch.cat([w.reshape(-1), b]).detach().numpy(), rtol=0, atol=1e-6)


def test_the_coin_changes_neither_cohorts_nor_client_batches():
    """A clients' round is the same round whether or not the server trained before it."""
    plain = run(with_server(Average()), 8)[1]
    mixed = run(with_server(Safari(client_probability=0.5)), 8)[1]
    assert {report.by_server for report in mixed} == {True, False}
    for one, other in zip(mixed, plain, strict=True):
        assert one.by_server or one.cohort == other.cohort


def test_a_smaller_batch_is_drawn_anew_in_every_round():
    server = Safari(client_probability=0.0, batch_size=3)
    drawn = [*chain.from_iterable(batches(server_batches(0, n), np.arange(10), 3, steps=1) for n in range(1, 13))]
    assert len({batch.tobytes() for batch in drawn}) > 8  # of 120 possible ones
    assert set(np.concatenate(drawn)) == set(range(10))
    simulation = with_server(server)
    state, (x, y) = simulation.start(), (simulation.data.server.x, simulation.data.server.y)
    for batch in drawn[:4]:  # and each round takes its own
        w, b = (torch.from_numpy(part.copy()).requires_grad_() for part in np.split(state.params, [4]))
        loss = F.cross_entropy(F.linear(torch.from_numpy(x[batch]), w.view(2, 2), b), torch.from_numpy(y[batch]))
        moved = torch.cat(torch.autograd.grad(loss, (w, b))).numpy()
        after = simulation.step(state).state
        np.testing.assert_allclose(after.params, state.params - server.lr * moved, rtol=0, atol=1e-6)
        state = after


def test_the_servers_batches_are_the_same_each_time_and_hang_on_their_size():
    server = ServerOnly(batch_size=3)
    one, again, other = (
        run(with_server(s), 4)[0].models.tobytes() for s in (server, server, ServerOnly(batch_size=10))
    )
    assert one == again != other


def test_a_server_that_trains_needs_data():
    with pytest.raises(ConfigError, match=r"Safari trains on server data; got none"):
        changed(replace(with_server(Average()), data=tiny_data()), server=Safari())


def test_what_the_server_holds_nobody_trains_or_is_tested_on():
    dataset = tiny_data().dataset
    partition = iid(dataset.train_y, 6, generator(0, "partition"))
    data = federate(dataset, partition, participants=4, server_examples=12, seed=0)
    left = np.concatenate([data.train.order, data.held_out.order])
    assert len(left) == len(np.unique(left)) == len(dataset.train_y) - 12
    gone = np.setdiff1d(np.arange(len(dataset.train_y)), left)
    order = np.lexsort(data.server.x.T)
    np.testing.assert_array_equal(data.server.x[order], dataset.train_x[gone][np.lexsort(dataset.train_x[gone].T)])
