"""Checks of HiCS: how varied labels seem, who is grouped, and which group is drawn how often."""

from dataclasses import replace
from typing import Any

import numpy as np

from fedreach._util.arrays import AnyArray, Floats, Ints
from fedreach._util.streams import generator
from fedreach.federation.types import ClientResults, ServerView, State
from fedreach.testing.base import Subject, define_check, fail, shown
from fedreach.testing.problems import play_rounds, toy_federation

from .running import each_method, must_pass

DRAWS = 400
T = 0.01  # temperature
SHARES = np.array([[0.25, 0.25, 0.25, 0.25], [0.4, 0.3, 0.2, 0.1], [0.02, 0.94, 0.02, 0.02], [0.9, 0.05, 0.03, 0.02]])


@define_check()
def everybody_is_heard_first(subject: Subject) -> None:
    """In the first n / k rounds each client is chosen once, at random, and nobody is asked before.

    Reference: Chen and Vikalo 2024, Algorithm 1, line 4
    """
    orders = set()
    for seed in range(5):
        turns = play_rounds(subject.make(), replace(toy_federation("6 clients", 6, 2), rounds=3), seed=seed)
        chosen = [client for turn in turns for client in turn.chosen]
        orders.add(tuple(chosen))
        if sorted(chosen) != [0, 1, 2, 3, 4, 5] or any(turn.probed for turn in turns):
            fail("; ".join(map(str, turns)), "6 clients, k = 2")
    if len(orders) == 1:
        fail(f"it chose them in the order {list(orders.pop())} in each of 5 runs", "6 clients, k = 2")


@define_check()
def more_varied_labels_more_often(subject: Subject) -> None:
    """In round t of R a client alone in its group is drawn in proportion to exp(gamma (1 - t / R) H), H the entropy.

    The updates of the bias are T log D, whose softmax at temperature T is D.

    Reference: Chen and Vikalo 2024, eq. (7) and (10)
    """
    entropy = -(SHARES * np.log(SHARES)).sum(axis=1)
    for round_, rounds, left in ((5, 20, 0.75), (15, 20, 0.25), (20, 20, 0.0), (3, None, 1.0)):
        policy, wanted = subject.make(temperature=T, gamma=3.0, groups=4), np.exp(3 * left * entropy)
        found = _frequencies(policy, T * np.log(SHARES), np.full(4, 10), round_, rounds)
        _must_be(found, wanted / wanted.sum(), f"label shares {SHARES.tolist()}, gamma = 3, round {round_} of {rounds}")
    policy = subject.make(temperature=T, gamma=200.0, groups=4)  # so that a round too early or late is seen
    found = _frequencies(policy, T * np.log(SHARES), np.full(4, 10), 20, 20)
    _must_be(found, np.full(4, 0.25), f"label shares {SHARES.tolist()}, gamma = 200, round 20 of 20")


@define_check()
def by_examples_within_a_group(subject: Subject) -> None:
    """Within a group clients are drawn in proportion to their examples; groups of one entropy are drawn alike.

    Clients 0 and 1 move one way, 2 and 3 another, and their labels are equally varied.

    Reference: Chen and Vikalo 2024, eq. (10)
    """
    bias, num_examples = np.array([[1, 0], [1, 0], [0, 1], [0, 1]]), np.array([10, 30, 200, 200])
    policy = subject.make(temperature=1.0, groups=2)
    wanted = np.array([0.125, 0.375, 0.25, 0.25])
    found = _frequencies(policy, bias, num_examples, 1, 10)
    _must_be(found, wanted, f"biases {bias.tolist()}, {num_examples.tolist()} examples")


@define_check()
def groups_by_entropy_and_angle(subject: Subject) -> None:
    """Without the weight of the entropy clients are grouped by angle; with a large one by how varied their labels are.

    Client 3 pulls the other way, and client 0 alone has labels of few classes. Who is alone in one of two groups is
    drawn half of the time where gamma is 0.

    Reference: Chen and Vikalo 2024, eq. (9)
    """
    bias = np.array([[9, 1, 0], [0.9, 0.1, 0], [0.8, 0.12, 0], [-0.9, -0.1, 0]])
    for weight, alone in ((0.0, 3), (100.0, 0)):
        policy = subject.make(temperature=1.0, gamma=0.0, groups=2, entropy_weight=weight)
        wanted = np.where(np.arange(4) == alone, 1 / 2, 1 / 6)
        found = _frequencies(policy, bias, np.full(4, 10), 1, 10)
        _must_be(found, wanted, f"biases {bias.tolist()}, entropy_weight = {weight}")


@define_check()
def as_many_groups_as_places(subject: Subject) -> None:
    """Unless `groups` says otherwise there are k: one for one place, in which examples alone count.

    Reference: Chen and Vikalo 2024, appendix A.1.2
    """
    bias, num_examples = np.array([[1, 0], [1, 0], [0, 1], [0, 1]]), np.array([10, 30, 200, 200])
    found = _frequencies(subject.make(temperature=1.0), bias, num_examples, 1, 10)
    _must_be(found, num_examples / 440, f"biases {bias.tolist()}, {num_examples.tolist()} examples, k = 1")


@define_check()
def a_second_place_is_drawn_again(subject: Subject) -> None:
    """Who has a place gets no other: of clients a, b, c drawn with 1/2, 1/4, 1/4, two places leave a out in 1 of 6.

    1/4 x 1/3 + 1/4 x 1/3, b and c being drawn in either order.

    Reference: Chen and Vikalo 2024, Algorithm 1, lines 8 to 12
    """
    policy, view = subject.make(groups=1), ServerView.of(np.arange(3), np.array([20, 10, 10]))
    state, without = _heard(policy, view, np.eye(3)), 0
    for seed in range(DRAWS):
        without += 0 not in policy.select(state, view, 2, generator(seed, "select")).ids
    _must_be(np.array([without / DRAWS]), np.array([1 / 6]), "one group, 20, 10 and 10 examples, k = 2")


METHOD_CHECKS = {
    "hics": (
        everybody_is_heard_first,
        more_varied_labels_more_often,
        by_examples_within_a_group,
        groups_by_entropy_and_angle,
        as_many_groups_as_places,
        a_second_place_is_drawn_again,
    ),
}


def _heard(policy: Any, view: ServerView, bias: AnyArray) -> State:
    """Return the state after all have sent these biases, which other parameters come before."""
    metrics = {"num_examples": view.num_examples.astype(np.float64), "loss": np.ones(len(bias))}
    update = np.concatenate([np.full((len(bias), 3), 7.0), bias], axis=1).astype(np.float32)
    state: State = policy.observe(
        policy.init(view), ClientResults(view.ids, update, metrics, output_bias=bias.shape[1])
    )
    return state


def _frequencies(policy: Any, bias: AnyArray, num_examples: Ints, round_: int, rounds: int | None) -> Floats:
    """Return (n,) how often each client gets the one place of a round."""
    view = replace(ServerView.of(np.arange(len(bias)), num_examples), round=round_, rounds=rounds)
    state, count = _heard(policy, view, bias), np.zeros(len(bias))
    for seed in range(DRAWS):
        count[policy.select(state, view, 1, generator(seed, "select")).ids] += 1
    return count / DRAWS


def _must_be(found: Floats, wanted: Floats, case: str) -> None:
    if (np.abs(found - wanted) > 5 * np.sqrt(wanted * (1 - wanted) / DRAWS)).any():  # five standard errors
        fail(f"in {DRAWS} rounds the rates are {shown(found)} instead of {shown(wanted)}", case)


@each_method("selection", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
