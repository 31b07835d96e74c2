"""Laws of aggregators: of all, and of single methods."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedreach.arrays import Float32s, Floats, Ints
from fedreach.federation.traits import Traits
from fedreach.federation.values import NO_STATE, State
from fedreach.streams import generator
from fedreach.testing.law import Law, Subject, broken, law, must_be_close, same, shown
from fedreach.testing.laws.any_part import Given, Outcome, Playing, as_it_is, options_are_all_it_is

ROUNDS = 3


@dataclass(frozen=True, eq=False)
class Updates(Given):
    """What some clients sent, and how much each counts; twice as many share the model."""

    weights: Floats  # (r,)
    updates: Float32s  # (rounds, r, d)


def updates() -> Iterator[Updates]:
    """Yield the reports of one client and of more, of models of several sizes, some that count for nothing."""
    rng = generator(0, "testing updates")
    for r, d in ((1, 3), (2, 1), (5, 40), (9, 200)):
        weights = rng.dirichlet(np.ones(r))
        yield Updates(f"{r} updates of {d} numbers", weights, rng.standard_normal((ROUNDS, r, d)).astype(np.float32))
    same_update = np.tile(rng.standard_normal((ROUNDS, 1, 4)), (1, 3, 1)).astype(np.float32)
    yield Updates("3 clients that send the same, one of which counts for nothing", np.array([0.5, 0.5, 0]), same_update)


@law(updates)
def one_update_of_many(subject: Subject, given: Updates) -> None:
    """An aggregator returns (d,) finite float64 numbers, and the new state.

    One that says `remembers_updates = True` is handed what the clients sent last and how many share the model.
    """
    _combined(subject.part, given)


@law(updates)
def whatever_the_order(subject: Subject, given: Updates) -> None:
    """Which client stands in which row changes the result by rounding only."""
    turned = Updates(given.words, given.weights[::-1], given.updates[:, ::-1])
    for a, b in zip(_combined(subject.part, turned), _combined(subject.part, given), strict=True):
        must_be_close("the update, with the rows turned round", a, b, str(given), 1e-5)


@law(updates)
def linear_is_the_weighted_sum(subject: Subject, given: Updates) -> None:
    """One that says `linear = True` gives sum_i w_i u_i, so that a secure sum may stand in for it."""
    if not Traits.of(subject.part).linear:
        return
    for combined, sent in zip(_combined(subject.part, given), given.updates, strict=True):
        must_be_close("the update", combined, given.weights @ sent.astype(np.float64), str(given), 1e-9)


def _play(part: Any, given: Updates, keep: Any = as_it_is) -> list[Outcome]:
    found = _combined(part, given, keep)
    return [Outcome(f"in round {t} the update was {shown(update)}", update) for t, update in enumerate(found, start=1)]


PLAYING = Playing(updates, _play)

LAWS = (
    one_update_of_many,
    whatever_the_order,
    PLAYING.same_again(
        "The same updates, state and stream give the same update.",
        "Draw from the `rng` that is handed in, and keep nothing in `self`.",
    ),
    PLAYING.arguments_untouched("An aggregator does not write to its arguments: state, weights and updates."),
    PLAYING.going_on_from_a_file(),
    linear_is_the_weighted_sum,
    options_are_all_it_is,
)


@law(updates)
def the_weighted_mean(subject: Subject, given: Updates) -> None:
    """The mean is sum_i w_i u_i, in float64, row by row: the same bits as adding the rows up in their order."""
    for combined, sent in zip(_combined(subject.part, given), given.updates, strict=True):
        total = np.zeros(sent.shape[1])
        for weight, row in zip(given.weights, sent, strict=True):
            total += weight * row.astype(np.float64)
        if not same(combined, total):
            broken(f"the update is {shown(combined)} instead of {shown(total)}")


def cohorts(n: int, d: int, rounds: int = 12) -> Iterator[tuple[Ints, Float32s]]:
    """Yield who is there in a few rounds, (r,) of n clients, and the (r, d) that they send."""
    rng = generator(0, "testing cohorts")
    for _ in range(rounds):
        ids = np.sort(rng.choice(n, rng.integers(1, n), replace=False))
        yield ids, rng.standard_normal((len(ids), d)).astype(np.float32)


@law()
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


@law()
def as_the_papers_loop_of_mifa(subject: Subject) -> None:
    """MIFA's step is (1/n) sum_j y_j over all n participants, after y_i <- u_i for those that are there.

    Reference: Gu et al. 2021, Algorithm 1
    """
    table = np.zeros((5, 3), np.float32)
    for number, found, ids, sent in _followed(subject.make(), table):
        table[ids] = sent
        wanted = table.mean(axis=0, dtype=np.float64)
        must_be_close(f"the update in round {number}", found, wanted, f"5 clients, of which {ids} are there", 1e-9)


@law()
def the_mean_where_all_are_there(subject: Subject) -> None:
    """With all clients in every round the step is the mean of their updates, whatever they sent before."""
    part, state, last = subject.make(), NO_STATE, np.zeros((4, 3), np.float32)
    for number, sent in enumerate(generator(0, "testing all").standard_normal((5, 4, 3)).astype(np.float32), start=1):
        found, state = part.combine(state, EQUAL, sent, generator(0, "aggregate", number), last=last, n=4)
        must_be_close(f"the update in round {number}", found, sent.mean(axis=0, dtype=np.float64), "4 clients", 1e-9)
        last = sent


EQUAL = np.full(4, 0.25)

METHOD_LAWS: Mapping[str, tuple[Law, ...]] = {
    "mean": (the_weighted_mean,),
    "fedvarp": (as_the_papers_loop_of_fedvarp, the_mean_where_all_are_there),
    "mifa": (as_the_papers_loop_of_mifa, the_mean_where_all_are_there),
}


def _followed(part: Any, table: Float32s) -> Iterator[tuple[int, Floats, Ints, Float32s]]:
    """Yield of each round what the aggregator returns, who is there, and what they send; `table` is what was sent."""
    state: State = NO_STATE
    for number, (ids, sent) in enumerate(cohorts(*table.shape), start=1):
        weights, rng = np.full(len(ids), 1 / len(ids)), generator(0, "aggregate", number)
        found, state = part.combine(state, weights, sent.copy(), rng, last=table[ids], n=len(table))
        yield number, found, ids, sent


def _combined(part: Any, given: Updates, keep: Any = as_it_is) -> list[Floats]:
    """Return the update of each round."""
    state: State = NO_STATE
    found, remembers, last = [], Traits.of(part).remembers_updates, np.zeros_like(given.updates[0])
    for number, sent in enumerate(given.updates, start=1):
        handed = {"last": last, "n": 2 * len(sent)} if remembers else {}
        answer = part.combine(state, given.weights.copy(), sent.copy(), generator(0, "aggregate", number), **handed)
        if not (isinstance(answer, tuple) and len(answer) == 2):
            broken(f"combine must return a pair, the update and the state; got {type(answer).__name__}")
        combined, state = answer
        good = isinstance(combined, np.ndarray) and combined.shape == sent.shape[1:] and combined.dtype == np.float64
        if not good or not np.isfinite(combined).all():
            broken(f"in round {number} the update should be {sent.shape[1]} finite float64 numbers; got {combined!r}")
        state, last = keep(state), sent
        found.append(combined)
    return found
