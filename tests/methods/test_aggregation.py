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


# ---- Robust rules, each beside a plain loop


def crowds() -> Iterator[tuple[int, Float32s]]:
    """Yield f and the (r, d) updates of honest clients, of which the last f are replaced by long ones."""
    rng = generator(0, "testing crowds")
    for r, f, d in ((4, 1, 2), (5, 1, 3), (9, 2, 4), (10, 2, 1)):
        sent = rng.standard_normal((r, d)).astype(np.float32)
        sent[r - f :] = 1e4 * rng.standard_normal((f, d))
        yield f, sent


def _center(subject: Subject, sent: Float32s) -> Floats:
    found, _ = subject.make().combine(NO_STATE, np.full(len(sent), 1 / len(sent)), sent, generator(0, "center"))
    return found


@define_check()
def a_liar_moves_it_little(subject: Subject) -> None:
    """The center is no longer than three times the longest honest update, however long malicious updates are."""
    for f, sent in crowds():
        longest = np.linalg.norm(sent[: len(sent) - f], axis=1).max()
        length = float(np.linalg.norm(_center(subject, sent)))
        if length > 3 * longest:
            fail(f"with {f} malicious of {len(sent)} updates, the center has length {length:.3g}, honest {longest:.3g}")


@define_check()
def the_median_of_each_number(subject: Subject) -> None:
    """Half of the clients' numbers are at most that of the median, and half at least, for each coordinate."""
    for _, sent in crowds():
        wanted = [sorted(column) for column in sent.astype(np.float64).T]
        middle, odd = len(sent) // 2, len(sent) % 2
        medians = [row[middle] if odd else (row[middle - 1] + row[middle]) / 2 for row in wanted]
        must_be_close("the center", _center(subject, sent), np.array(medians), f"{len(sent)} updates", 1e-9)


@define_check()
def the_mean_without_the_ends(subject: Subject) -> None:
    """The f smallest and the f largest numbers of each coordinate do not count."""
    for f, sent in crowds():
        wanted = [np.mean(sorted(column)[f : len(sent) - f]) for column in sent.astype(np.float64).T]
        must_be_close("the center", _center(subject, sent), np.array(wanted), f"{len(sent)} updates", 1e-9)


@define_check()
def the_iterations_of_weiszfeld(subject: Subject) -> None:
    """z <- sum_i c_i u_i / sum_i c_i with c_i = 1 / max(smoothing, ||u_i - z||), from z = 0."""
    for _, sent in crowds():
        rule, z = subject.make(), np.zeros(sent.shape[1])
        for _ in range(rule.iterations):
            inverse = [1 / max(rule.smoothing, float(np.linalg.norm(u - z))) for u in sent.astype(np.float64)]
            z = sum(c * u for c, u in zip(inverse, sent.astype(np.float64), strict=True)) / sum(inverse)
        must_be_close("the center", _center(subject, sent), z, f"{len(sent)} updates", 1e-6)


def _krum_order(f: int, sent: Float32s) -> list[int]:
    scores = []
    for i, u in enumerate(sent.astype(np.float64)):
        apart = sorted(float(((u - v) ** 2).sum()) for j, v in enumerate(sent.astype(np.float64)) if j != i)
        scores.append(sum(apart[: len(sent) - f - 1]))
    return sorted(range(len(sent)), key=scores.__getitem__)


@define_check()
def the_mean_of_the_nearest(subject: Subject) -> None:
    """The r - f updates with the smallest sums of squared distances to their r - f - 1 nearest others are averaged."""
    for f, sent in crowds():
        kept = _krum_order(f, sent)[: len(sent) - f]
        must_be_close("the center", _center(subject, sent), sent[kept].astype(np.float64).mean(axis=0), str(kept), 1e-6)


@define_check()
def the_nearest_update(subject: Subject) -> None:
    """The update with the smallest sum of squared distances to its r - f - 1 nearest others is returned."""
    for f, sent in crowds():
        first = _krum_order(f, sent)[0]
        must_be_close("the center", _center(subject, sent), sent[first].astype(np.float64), str(first), 1e-6)


@define_check()
def clipped_around_the_last_center(subject: Subject) -> None:
    """v <- v + (1/r) sum_i (u_i - v) min(1, radius / ||u_i - v||), from the v of the last round, 0 at first."""
    rule, state, v = subject.make(), NO_STATE, np.zeros(3)
    for number in range(3):
        sent = (20 * generator(number, "testing clipping").standard_normal((5, 3))).astype(np.float32)
        found, state = rule.combine(state, np.full(5, 0.2), sent, generator(0, "center"))
        for _ in range(rule.iterations):
            v = v + sum((u - v) * min(1, rule.radius / np.linalg.norm(u - v)) for u in sent.astype(np.float64)) / 5
        must_be_close(f"the center in round {number + 1}", found, v, "5 updates", 1e-6)


@define_check()
def shortened_to_the_median_length(subject: Subject) -> None:
    """Updates longer than the round's median length are shortened to it; then the weights count."""
    for _, sent in crowds():
        weights = generator(0, "testing weights").dirichlet(np.ones(len(sent)))
        lengths = [float(np.linalg.norm(u)) for u in sent.astype(np.float64)]
        shortened = [u * min(1, np.median(lengths) / n) for u, n in zip(sent.astype(np.float64), lengths, strict=True)]
        found, _ = subject.make().combine(NO_STATE, weights, sent, generator(0, "center"))
        must_be_close("the update", found, weights @ np.array(shortened), f"{len(sent)} updates", 1e-6)


METHOD_CHECKS = {
    "mean": (the_weighted_mean,),
    "fedvarp": (as_the_papers_loop_of_fedvarp, the_mean_where_all_are_there),
    "mifa": (as_the_papers_loop_of_mifa, the_mean_where_all_are_there),
    "median": (the_median_of_each_number, a_liar_moves_it_little),
    "trimmed_mean": (the_mean_without_the_ends, a_liar_moves_it_little),
    "geometric_median": (the_iterations_of_weiszfeld, a_liar_moves_it_little),
    "multi_krum": (the_mean_of_the_nearest, a_liar_moves_it_little),
    "krum": (the_nearest_update, a_liar_moves_it_little),
    "centered_clipping": (clipped_around_the_last_center,),
    "norm_bound": (shortened_to_the_median_length, a_liar_moves_it_little),
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
