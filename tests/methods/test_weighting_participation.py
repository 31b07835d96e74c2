"""Checks of the weightings that count how often clients were drawn, or took part."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedreach._util.arrays import Floats, Ints
from fedreach._util.streams import generator
from fedreach.federation.types import NO_STATE, ClientResults
from fedreach.testing.base import Subject, define_check, must_be_close

from .running import each_method, must_pass


@define_check()
def each_draw_has_the_same_say(subject: Subject) -> None:
    """A client that was drawn t times weighs t over the sum of all: 1, 2 and 5 draws weigh 1/8, 2/8 and 5/8.

    Reference: Fraboni et al. 2021, section 2
    """
    got = subject.make().weights(NO_STATE, _reports(np.arange(3), 1, draws=np.array([1.0, 2.0, 5.0])))[0]
    must_be_close("the weights", got, [0.125, 0.25, 0.625], "1, 2 and 5 draws; 3, 2 and 1 examples", 1e-12)


@define_check()
def once_where_nobody_says(subject: Subject) -> None:
    """Under a selection that draws each client once, all weigh the same."""
    got = subject.make().weights(NO_STATE, _reports(np.arange(3), 1))[0]
    must_be_close("the weights", got, np.full(3, 1 / 3), "3, 2 and 1 examples, no draws", 1e-12)


@define_check()
def golden_intervals(subject: Subject) -> None:
    """A client's number is the mean length of its intervals before the round, cut off at K; 1 where there was none.

    K = 3. Client 0 is there in the rounds 1, 2, 4 and 8: before round 4 its intervals are 1 and 1, before round 8 they
    are 1, 1, 2 and 3, the last one cut off in round 7. Client 1 is there in round 8 only, after 3 and 3. Client 2 is
    there in round 2 only, before its first interval ends.

    Reference: Wang and Ji 2024, Algorithm 2
    """
    component, n = subject.make(cutoff=3), 3
    wanted = {1: [1.0], 2: [1.0, 1.0], 4: [1.0], 8: [7 / 4, 3.0]}
    case = {1: [0], 2: [0, 2], 4: [0], 8: [0, 1]}
    for number, found in _numbers(component, case, n):
        must_be_close(f"the numbers of {case[number]} in round {number}", found, wanted[number], "K = 3", 1e-12)


@define_check()
def as_the_plain_loop(subject: Subject) -> None:
    """The step is (1 / n) sum_i a_i u_i, with the a_i of a plain loop over all clients and rounds.

    Reference: Wang and Ji 2024, Algorithms 1 and 2
    """
    n, rounds = 7, 60
    rate = np.linspace(0.02, 0.9, n)
    for cutoff in (1, 4, 50):
        there = {number: _there(number, rate) for number in range(1, rounds + 1)}
        wanted = dict(_plain(there, n, cutoff))
        for number, found in _numbers(subject.make(cutoff=cutoff), there, n):
            case = f"clients there in {rate.round(2).tolist()} of the rounds, K = {cutoff}"
            must_be_close(f"the numbers in round {number}", found, wanted[number], case, 1e-9)


METHOD_CHECKS = {
    "by_draws": (each_draw_has_the_same_say, once_where_nobody_says),
    "fedau": (golden_intervals, as_the_plain_loop),
}


def _reports(ids: Any, number: int, **metrics: Floats) -> ClientResults:
    r = len(ids)
    known = {"num_examples": np.arange(r, 0, -1.0), "loss": np.ones(r), **metrics}
    return ClientResults(np.asarray(ids, np.int64), np.ones((r, 2), np.float32), known, round=number)


def _there(number: int, rate: Floats) -> Ints:
    return np.flatnonzero(generator(0, "there", number).random(len(rate)) < rate)


def _numbers(component: Any, there: Mapping[int, Any], n: int) -> Iterator[tuple[int, Floats]]:
    """Yield each round and what n w_i times the scale of the mean is, of those who are there."""
    state = NO_STATE
    for number, ids in there.items():
        if len(ids):
            reports = _reports(ids, number)
            scale = component.mean_scale(state, reports, n)
            weights, state = component.weights(state, reports)
            yield number, n * scale * weights


def _plain(there: Mapping[int, Ints], n: int, cutoff: int) -> Iterator[tuple[int, list[float]]]:
    """Yield each round and the mean length of the intervals so far of those who are there."""
    waited, ended = [0] * n, [list[int]() for _ in range(n)]
    for number, ids in there.items():
        yield number, [sum(ended[i]) / len(ended[i]) if ended[i] else 1.0 for i in ids]
        for i in range(n):
            waited[i] += 1
            if i in ids or waited[i] == cutoff:
                ended[i].append(waited[i])
                waited[i] = 0


@each_method("weighting", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
