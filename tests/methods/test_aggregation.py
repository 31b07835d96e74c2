"""Checks of the built-in aggregators: what theory says only of one method."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedreach._util.arrays import Float32s, Floats, Ints
from fedreach._util.streams import generator
from fedreach.federation.types import NO_STATE, State
from fedreach.testing.base import Subject, define_check, fail, must_be_close, same, shown
from fedreach.testing.checks.aggregation import Updates, combined_updates, updates

from .running import each_method, must_pass


@define_check(updates)
def the_weighted_mean(subject: Subject, case: Updates) -> None:
    """The mean is sum_i w_i u_i, in float64, row by row: the same bits as adding the rows up in their order."""
    for combined, sent in zip(combined_updates(subject.component, case), case.updates, strict=True):
        total = np.zeros(sent.shape[1])
        for weight, row in zip(case.weights, sent, strict=True):
            total += weight * row.astype(np.float64)
        if not same(combined, total):
            fail(f"the update is {shown(combined)} instead of {shown(total)}")


def cohorts(n: int, d: int, rounds: int = 12) -> Iterator[tuple[Ints, Float32s]]:
    """Yield who is there in a few rounds, (r,) of n clients, and the (r, d) that they send."""
    rng = generator(0, "testing cohorts")
    for _ in range(rounds):
        ids = np.sort(rng.choice(n, rng.integers(1, n), replace=False))
        yield ids, rng.standard_normal((len(ids), d)).astype(np.float32)


@define_check()
def as_the_papers_loop_of_fedvarp(subject: Subject) -> None:
    """FedVARP's step is (1/r) sum_i (u_i - y_i) + (1/n) sum_j y_j, all n participants' y_j; then y_i <- u_i.

    Reference: Jhunjhunwala et al. 2022, Algorithm 1
    """
    table = np.zeros((5, 3), np.float32)
    for number, found, ids, sent in _followed(subject.make(), table):
        step = np.zeros(3)
        for i, u in zip(ids, sent.astype(np.float64), strict=True):
            step += (u - table[i]) / len(ids)
        for y in table.astype(np.float64):
            step += y / 5
        must_be_close(f"the update in round {number}", found, step, f"5 clients, of which {ids} are there", 1e-9)
        table[ids] = sent


@define_check()
def as_the_papers_loop_of_mifa(subject: Subject) -> None:
    """MIFA's step is (1/n) sum_j y_j over all n participants, after y_i <- u_i for those that are there.

    Reference: Gu et al. 2021, Algorithm 1
    """
    table = np.zeros((5, 3), np.float32)
    for number, found, ids, sent in _followed(subject.make(), table):
        table[ids] = sent
        wanted = table.mean(axis=0, dtype=np.float64)
        must_be_close(f"the update in round {number}", found, wanted, f"5 clients, of which {ids} are there", 1e-9)


@define_check()
def the_mean_where_all_are_there(subject: Subject) -> None:
    """With all clients in every round the step is the mean of their updates, whatever they sent before."""
    component, state, last = subject.make(), NO_STATE, np.zeros((4, 3), np.float32)
    for number, sent in enumerate(generator(0, "testing all").standard_normal((5, 4, 3)).astype(np.float32), start=1):
        found, state = component.combine(state, EQUAL, sent, generator(0, "aggregate", number), last=last, n=4)
        must_be_close(f"the update in round {number}", found, sent.mean(axis=0, dtype=np.float64), "4 clients", 1e-9)
        last = sent


EQUAL = np.full(4, 0.25)

METHOD_CHECKS = {
    "mean": (the_weighted_mean,),
    "fedvarp": (as_the_papers_loop_of_fedvarp, the_mean_where_all_are_there),
    "mifa": (as_the_papers_loop_of_mifa, the_mean_where_all_are_there),
}


def _followed(component: Any, table: Float32s) -> Iterator[tuple[int, Floats, Ints, Float32s]]:
    """Yield of each round what the aggregator returns, who is there, and what they send; `table` is what was sent."""
    state: State = NO_STATE
    for number, (ids, sent) in enumerate(cohorts(*table.shape), start=1):
        weights, rng = np.full(len(ids), 1 / len(ids)), generator(0, "aggregate", number)
        found, state = component.combine(state, weights, sent.copy(), rng, last=table[ids], n=len(table))
        yield number, found, ids, sent


@each_method("aggregation", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
