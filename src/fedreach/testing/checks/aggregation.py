"""Checks of aggregators."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedreach._util.arrays import Float32s, Floats
from fedreach._util.streams import generator
from fedreach.federation.checks import check_update
from fedreach.federation.types import NO_STATE
from fedreach.testing.base import Case, Outcome, RepeatedRuns, Subject, define_check, fail, must_be_close, shown

ROUNDS = 3


@dataclass(frozen=True, eq=False)
class Updates(Case):
    """Updates of some clients and their weights; half of all clients reply."""

    weights: Floats  # (r,)
    updates: Float32s  # (rounds, r, d)


def updates() -> Iterator[Updates]:
    """Yield updates of one or more clients, for models of several sizes, some with weight 0."""
    rng = generator(0, "testing updates")
    for r, d in ((1, 3), (2, 1), (5, 40), (9, 200)):
        weights = rng.dirichlet(np.ones(r))
        yield Updates(f"{r} updates of {d} numbers", weights, rng.standard_normal((ROUNDS, r, d)).astype(np.float32))
    same_update = np.tile(rng.standard_normal((ROUNDS, 1, 4)), (1, 3, 1)).astype(np.float32)
    yield Updates("3 clients with equal updates, one of them with weight 0", np.array([0.5, 0.5, 0]), same_update)


@define_check(updates)
def one_update_of_many(subject: Subject, case: Updates) -> None:
    """An aggregator returns (d,) finite float64 numbers and the new state.

    With `remembers_updates = True`, it also receives the clients' last updates and the number of clients.
    """
    PLAYING.straight(subject, case)


@define_check(updates)
def order_does_not_matter(subject: Subject, case: Updates) -> None:
    """The order of the clients changes the result by rounding only."""
    turned = Updates(case.words, case.weights[::-1], case.updates[:, ::-1])
    for a, (_, b) in zip(combined_updates(subject.component, turned), PLAYING.straight(subject, case), strict=True):
        must_be_close("the update, with the rows in reverse order,", a, b, str(case), 1e-5)


@define_check(updates, lambda component, _: component.linear)
def linear_is_the_weighted_sum(subject: Subject, case: Updates) -> None:
    """An aggregator with `linear = True` returns sum_i w_i u_i, so that secure aggregation can replace it."""
    for (_, combined), sent in zip(PLAYING.straight(subject, case), case.updates, strict=True):
        must_be_close("the update", combined, case.weights @ sent.astype(np.float64), str(case), 1e-9)


@define_check(updates, lambda component, _: component.ignores_weights)
def ignores_weights_as_declared(subject: Subject, case: Updates) -> None:
    """With `ignores_weights = True`, other positive weights do not change the update."""
    count = len(case.weights)
    equal = Updates(case.words, np.full(count, 1 / count), case.updates)
    unequal = Updates(case.words, generator(0, "votes").dirichlet(np.ones(count)), case.updates)
    pairs = zip(combined_updates(subject.component, equal), combined_updates(subject.component, unequal), strict=True)
    for expected, found_update in pairs:
        must_be_close("the update, with other weights,", found_update, expected, str(case), 1e-12)


def _play(component: Any, case: Updates, keep: Any = lambda state: state) -> list[Outcome]:
    results = combined_updates(component, case, keep)
    return [
        Outcome(f"in round {t} the update was {shown(update)}", update) for t, update in enumerate(results, start=1)
    ]


PLAYING = RepeatedRuns(updates, _play)


def combined_updates(component: Any, case: Updates, keep: Any = lambda state: state) -> list[Floats]:
    """Return the aggregated update of each round."""
    state, results, last = NO_STATE, [], np.zeros_like(case.updates[0])
    for number, sent in enumerate(case.updates, start=1):
        handed = {"last": last, "n": 2 * len(sent)} if component.remembers_updates else {}
        answer = component.combine(state, case.weights.copy(), sent.copy(), generator(0, "aggregate", number), **handed)
        combined, state = check_update(component, answer, sent.shape[1])
        if answer[0].dtype != np.float64 or not np.isfinite(combined).all():
            fail(f"in round {number} the update should be finite float64 numbers; got {answer[0]!r}")
        state, last = keep(state), sent
        results.append(combined)
    return results
