"""Checks of the built-in server steps: what theory says only of one method."""

from typing import Any

import numpy as np

from fedreach._util.arrays import Float32s, Floats
from fedreach._util.streams import generator
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.server import Average
from fedreach.federation.types import NO_STATE
from fedreach.federation.weighting import Equal
from fedreach.testing.base import Subject, define_check, fail, must_be_close, same, shown

from ..quadratics import two_quadratics  # noqa: TID252 (tests are no package that has a name)
from .running import each_method, must_pass

UPDATES = np.array([[0.5, -1.0, 0.0], [0.25, 1.0, 2.0], [0.5, 0.5, -1.0]])


@define_check()
def the_mean_of_the_local_models(subject: Subject) -> None:
    """With rate 1 and no momentum the new model is the old one plus the weighted mean update."""
    got = _models_after(subject.make(lr=1.0, momentum=0.0), UPDATES)[-1]
    must_be_close("the model", got, UPDATES.sum(axis=0), f"from 0, updates {shown(UPDATES)}")


@define_check()
def momentum_adds_up(subject: Subject) -> None:
    """With momentum m, a constant update u moves the model in round t by rate u (1 - m^t) / (1 - m)."""
    u = UPDATES[0]
    models = _models_after(subject.make(lr=0.5, momentum=0.9), np.tile(u, (6, 1)))
    moved = np.diff(np.vstack([np.zeros(3), *models]), axis=0)
    for t, step in enumerate(moved, start=1):
        must_be_close(f"the move in round {t}", step, 0.5 * u * (1 - 0.9**t) / 0.1, "rate 0.5, momentum 0.9")


@define_check()
def average_with_momentum(subject: Subject) -> None:
    """FedAvgM is the `Average` of the same rate and momentum, bit for bit; where nothing is said, with momentum 0.9.

    Reference: Hsu et al. 2019, section 4.3
    """
    for options, momentum in (({"momentum": 0.5}, 0.5), ({}, 0.9), ({"momentum": 0.0}, 0.0)):
        average = Average(lr=0.5, momentum=momentum)
        for a, b in zip(
            _models_after(subject.make(lr=0.5, **options), UPDATES), _models_after(average, UPDATES), strict=True
        ):
            if not same(a, b):
                fail(f"the model is {shown(a)}, and {shown(b)} by {average}", f"from 0, updates {shown(UPDATES)}")


@define_check()
def adam_by_hand(subject: Subject) -> None:
    """Adam moves by rate m / (sqrt(v) + tau), m and v exponential means of u and u^2, from 0 and tau^2.

    Reference: Reddi et al. 2021, Algorithm 2
    """
    _adaptive(subject, lambda v, square: 0.9 * v + 0.1 * square)


@define_check()
def yogi_by_hand(subject: Subject) -> None:
    """Yogi is Adam with v <- v - (1 - beta2) u^2 sign(v - u^2), which changes v by no more than (1 - beta2) u^2.

    Reference: Reddi et al. 2021, Algorithm 2
    """
    _adaptive(subject, lambda v, square: v - 0.1 * square * np.sign(v - square))


@define_check()
def torch_sgd_is_the_average(subject: Subject) -> None:
    """PyTorch's SGD with rate 1, handed -u as a gradient, gives the weighted mean of the local models."""
    _must_go_as(subject.make(optimizer="SGD", lr=1.0, options=None), Average())


@define_check()
def torch_momentum_lives_in_the_state(subject: Subject) -> None:
    """PyTorch's SGD with momentum is the Average with momentum: what the optimiser keeps is in the state."""
    _must_go_as(subject.make(optimizer="SGD", lr=0.5, options={"momentum": 0.9}), Average(lr=0.5, momentum=0.9))


@define_check()
def the_coin(subject: Subject) -> None:
    """Clients train in a round with probability q, decided by the stream of that round alone.

    With q = 1 always and with q = 0 never, so that these are FedAvg and SGD on the server's data.

    Reference: specification, section 4
    """
    rounds = 3000
    for q in (0.0, 0.3, 0.8, 1.0):
        component = subject.make(client_probability=q)
        share = 1 - np.mean([component.trains(generator(0, "coin", number)) for number in range(rounds)])
        if abs(share - q) > 5 * np.sqrt(q * (1 - q) / rounds):  # five standard errors; none for 0 and 1
            fail(f"clients train in {share:.1%} of {rounds} rounds, whose streams all differ", f"q = {q:g}")


@define_check()
def clients_rounds_are_those_of_inner(subject: Subject) -> None:
    """In the clients' rounds the step is that of `inner`, bit for bit."""
    inner = Average(lr=0.5, momentum=0.9)
    for a, b in zip(_models_after(subject.make(inner=inner), UPDATES), _models_after(inner, UPDATES), strict=True):
        if not same(a, b):
            fail(f"the model is {shown(a)}, and {shown(b)} by `inner`", f"from 0, updates {shown(UPDATES)}")


@define_check()
def golden_safari(subject: Subject) -> None:
    """A round of clients, one of the server and one of clients end at the known points of the two quadratics.

    Reference: specification, section 4: the server's gradient is x - (0, 1), its rate 0.2
    """
    component = subject.make(inner=Average(), lr=0.2)
    engine: Any = two_quadratics(weighting=Equal(), local=LocalSGD(lr=0.1, steps=3)).engine
    params, state = engine.initial, NO_STATE
    points = [(-0.2535, 0.38359375), (-0.2028, 0.506875), (-0.6302008, 0.3883009766)]
    for number, (server, point) in enumerate(zip((False, True, False), points, strict=True), start=1):
        if server:
            params = params + engine.server_step(params, np.arange(1), number, component.lr)
        else:
            mean = engine.train(params, np.arange(2), number, 0.1).update.mean(axis=0, dtype=np.float64)
            params, state = component.apply(params, state, mean)
        must_be_close(f"the model after round {number}", params, point, "rounds of clients, server, clients", 2e-6)


@define_check()
def the_server_alone(subject: Subject) -> None:
    """The server trains in every round."""
    for number in range(1, 50):
        if not subject.make().trains(generator(0, "coin", number)):
            fail("the server did not train", f"round {number}")


METHOD_CHECKS = {
    "average": (the_mean_of_the_local_models, momentum_adds_up),
    "fedavgm": (average_with_momentum,),
    "adam": (adam_by_hand,),
    "yogi": (yogi_by_hand,),
    "torch_optim": (torch_sgd_is_the_average, torch_momentum_lives_in_the_state),
    "safari": (the_coin, clients_rounds_are_those_of_inner, golden_safari),
    "server_only": (the_server_alone,),
    "fine_tune": (clients_rounds_are_those_of_inner,),
    "feddf": (clients_rounds_are_those_of_inner,),
}


def _models_after(component: Any, updates: Floats) -> list[Float32s]:
    params, state, models = np.zeros(updates.shape[1], np.float32), NO_STATE, []
    for update in updates:
        params, state = component.apply(params, state, update)
        models.append(params)
    return models


def _must_go_as(component: Any, average: Average) -> None:
    for a, b in zip(_models_after(component, UPDATES), _models_after(average, UPDATES), strict=True):
        must_be_close("the model", a, b, f"from 0, updates {shown(UPDATES)}", rule="that of Average")


def _adaptive(subject: Subject, second_moment: Any) -> None:
    component = subject.make(lr=0.5, beta1=0.8, beta2=0.9, tau=0.1)
    x, m, v = np.zeros(3), np.zeros(3), np.full(3, 0.01)
    for number, (u, got) in enumerate(zip(UPDATES, _models_after(component, UPDATES), strict=True), start=1):
        m, v = 0.8 * m + 0.2 * u, second_moment(v, u**2)
        x = x + 0.5 * m / (np.sqrt(v) + 0.1)
        case = f"from 0, updates {shown(UPDATES)}, rate 0.5, beta1 0.8, beta2 0.9, tau 0.1"
        must_be_close(f"the model after round {number}", got, x, case)


@each_method("server", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
