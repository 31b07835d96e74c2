"""Checks of the policies that choose by a table of updates."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from fedreach._util.arrays import AnyArray
from fedreach._util.streams import generator
from fedreach.federation.types import ClientResults, ServerView
from fedreach.testing.base import Subject, define_check, fail, shown
from fedreach.testing.problems import ToyFederation, toy_federation

from .running import choice, each_method, must_pass

G = [[1, 0, 0], [0.9, 0.1, 0], [0, 1, 0], [0.1, 0.9, 0.2], [-1, -1, 0.5], [0.8, 0.2, 0.1]]
P = [[0, 0], [4, 0], [4, 3], [0, 3], [2, 1], [1, 1], [2, 3]]


def with_updates(rows: Any, k: int) -> ToyFederation:
    """Return a federation in which client i's update is row i."""
    direction = np.array(rows, np.float64)
    return replace(toy_federation(f"updates {shown(direction)}", len(direction), k), direction=direction, noise=0.0)


def must_choose(subject: Subject, rows: Any, expected: Mapping[int, list[int]], **options: Any) -> None:
    """Fail unless these clients are chosen, for each k."""
    for k, wanted in expected.items():
        made = with_updates(rows, k)
        chosen = sorted(choice(subject.make(**options), made))
        if chosen != wanted:
            fail(f"it chose {chosen} instead of {wanted}", str(made))


@define_check()
def golden_minimax(subject: Subject) -> None:
    """The k clients whose largest cosine with another is smallest are chosen, exactly k.

    The paper's `<=` would give k + 1 clients, its set of values {2, 4, 5} for k = 2.

    Reference: specification, section 2.3
    """
    order = [4, 2, 3, 5, 0, 1]
    must_choose(subject, G, {k: sorted(order[:k]) for k in range(1, 7)})


@define_check()
def nearest_neighbours_both_stay(subject: Subject) -> None:
    """Of two clients that are nearest to each other, with exactly equal m_i, none is lost: every client keeps its own.

    Reference: specification, section 2.3, point 2
    """
    pairs = [[1, 0, 0], [1, 0.1, 0], [0, 1, 0], [0, 1, 0.4]]  # 2 and 3 are each other's nearest; so are 0 and 1
    must_choose(subject, pairs, {2: [2, 3], 4: [0, 1, 2, 3]})


@define_check()
def the_outlier_is_found(subject: Subject) -> None:
    """Among clients that all point one way, the one that points the other way is chosen first.

    Reference: specification, section 2.3
    """
    v = generator(0, "outlier").standard_normal(20)
    crowd = v + 0.1 * generator(1, "outlier").standard_normal((5, 20))
    must_choose(subject, [*crowd[:2], -v, *crowd[2:]], {1: [2]})


@define_check()
def standing_still_is_no_direction(subject: Subject) -> None:
    """A client whose update is zero counts as similar to all, and is chosen last."""
    must_choose(subject, [[0, 0], [1, 0], [0.9, 0.5], [-1, 1]], {1: [3], 3: [1, 2, 3]})


@define_check()
def lengths_do_not_count(subject: Subject) -> None:
    """Multiplying a client's update by a positive number does not change the choice.

    Reference: specification, section 7
    """
    scaled = np.array(G) * np.array([[3.0], [0.1], [7.0], [1.0], [0.01], [20.0]])
    must_choose(subject, scaled, {k: sorted(choice(subject.make(), with_updates(G, k))) for k in (1, 2, 3, 4)})


@define_check()
def no_cohort_is_less_alike(subject: Subject) -> None:
    """No other choice of k has a smaller sum of m_i; tried against every choice.

    Reference: specification, section 7
    """
    for seed in range(4):
        rows = generator(seed, "brute force").standard_normal((8, 5)).astype(np.float32)
        m = _most_alike(rows)
        for k in (2, 4, 6):
            made = with_updates(rows, k)
            chosen = choice(subject.make(), made)
            best = min(m[list(other)].sum() for other in combinations(range(8), k))
            if len(chosen) != k or m[chosen].sum() > best + 1e-6:
                fail(
                    f"it chose {sorted(chosen)} with the sum {m[chosen].sum():.6f}; the least is {best:.6f}", str(made)
                )


@define_check()
def the_latest_updates_count(subject: Subject) -> None:
    """Who is chosen follows from each client's latest update, whatever it and others sent in earlier rounds.

    Who was nearest to a client that has moved is nearest to another now.
    """
    n = 12
    view, metrics = ServerView.of(np.arange(n), np.full(n, 10)), {"num_examples": np.full(n, 10.0), "loss": np.ones(n)}
    for seed in range(4):
        rng, policy = generator(seed, "latest updates"), subject.make()
        rows = rng.standard_normal((n, 3)).astype(np.float32)
        state = policy.observe(policy.init(view), ClientResults(view.ids, rows, metrics, round=1))
        for number in range(2, 8):
            who = np.sort(rng.choice(n, size=2, replace=False))
            rows[who] = rng.standard_normal((2, 3))
            some = {name: values[who] for name, values in metrics.items()}
            state = policy.observe(state, ClientResults(who, rows[who], some, round=number))
            anew = policy.observe(policy.init(view), ClientResults(view.ids, rows.copy(), metrics, round=number))
            for there in (np.ones(n, np.bool_), rng.random(n) < 0.7):
                now = replace(view, available=there, round=number + 1)
                got, wanted = (
                    sorted(policy.select(kept, now, 4, generator(0, "select")).ids.tolist()) for kept in (state, anew)
                )
                if got != wanted:
                    fail(
                        f"it chose {got}, and {wanted} where it was told the latest updates only",
                        f"{n} clients, of which two send a new update in each of {number - 1} rounds; "
                        f"available: {np.flatnonzero(there).tolist()}",
                    )


@define_check()
def golden_max_similarity(subject: Subject) -> None:
    """The k clients whose largest cosine with another is largest are chosen.

    Reference: specification, section 2.3
    """
    must_choose(subject, G, {2: [0, 1], 3: [0, 1, 5], 5: [0, 1, 2, 3, 5]})


@define_check()
def golden_hull(subject: Subject) -> None:
    """The vertices of the hull are chosen; of more than k, those farthest apart, after fewer, the next layer's.

    Reference: specification, section 2.4
    """
    expected = {2: [1, 3], 3: [0, 1, 3], 4: [0, 1, 2, 3], 5: [0, 1, 2, 3, 4], 6: [0, 1, 2, 3, 4, 6]}
    must_choose(subject, P, expected)
    must_choose(subject, G, {3: [0, 2, 4]})


@define_check()
def the_literal_hull(subject: Subject) -> None:
    """With exact = False all vertices are chosen, whatever k; a point on an edge is none.

    Reference: specification, section 2.4
    """
    must_choose(subject, P, {1: [0, 1, 2, 3], 6: [0, 1, 2, 3]}, exact=False)


@define_check()
def turning_and_shifting(subject: Subject) -> None:
    """Turning, shifting and stretching all updates alike does not change the choice.

    Reference: specification, section 7
    """
    rng = generator(0, "turning")
    rows = rng.standard_normal((9, 2))
    turn, _ = np.linalg.qr(rng.standard_normal((2, 2)))
    for k in (3, 5, 7):
        wanted = sorted(choice(subject.make(), with_updates(rows, k)))
        must_choose(subject, 3 * rows @ turn + np.array([10.0, -5.0]), {k: wanted})


@define_check()
def copies_are_not_chosen_before_others(subject: Subject) -> None:
    """Of two clients with the same update, the second is chosen only after all that differ."""
    must_choose(subject, [[0, 0], [4, 0], [4, 0], [0, 3], [1, 1]], {3: [0, 1, 3]})


@define_check()
def the_farthest_from_the_mean_is_first(subject: Subject) -> None:
    """Of too many vertices the first is the one farthest from their mean, the next the one farthest from it.

    Of a kite about (2, 0) that is its tip at 8, then the opposite corner, then one of the two at the sides.
    """
    must_choose(subject, [[0, 1], [0, -1], [10, 0], [-2, 0], [1, 0]], {1: [2], 2: [2, 3], 3: [0, 2, 3]})


@define_check()
def golden_hull_distances(subject: Subject) -> None:
    """The clients farthest from the hull of all others are chosen: 2.12, 1.66, 1.66, 1.41 and 0 for the others.

    Reference: specification, section 2.4
    """
    must_choose(subject, P, {1: [1], 3: [1, 2, 3], 4: [0, 1, 2, 3]})
    must_choose(subject, G, {1: [4], 2: [2, 4], 3: [2, 3, 4], 4: [0, 2, 3, 4], 5: [0, 2, 3, 4, 5]})


@define_check()
def none_but_inner_ones(subject: Subject) -> None:
    """Only clients that are no vertices are chosen, at random; all of them where they are fewer than k.

    Reference: specification, sections 2.3 and 2.4
    """
    must_choose(subject, P, {3: [4, 5, 6], 5: [4, 5, 6]})
    seen = set()
    for seed in range(60):
        seen.update(choice(subject.make(), with_updates(P, 1), seed))
    if seen != {4, 5, 6}:
        fail(f"in 60 rounds it chose {sorted(seen)}, instead of each of 4, 5 and 6 at some time", f"updates {P}, k = 1")


LINE = [[0.0], [1.5], [10], [11], [13]]


@define_check()
def golden_representatives(subject: Subject) -> None:
    """On a line at 0, 1.5, 10, 11 and 13 the greedy choice is 10, then 1.5 (0 is as good, but farther off), then 13."""
    must_choose(subject, LINE, {1: [2], 2: [1, 2], 3: [1, 2, 4]})


@define_check()
def one_of_each_group(subject: Subject) -> None:
    """Where clients form k groups that are far apart, each has one of its own among the k, however small it is."""
    rng = generator(0, "groups")
    centres = 100 * np.eye(4)
    rows = np.concatenate([centre + rng.normal(size=(n, 4)) for centre, n in zip(centres, (9, 4, 2, 1), strict=True)])
    chosen = choice(subject.make(), with_updates(rows, 4))
    groups = sorted(int(rows[client].argmax()) for client in chosen)
    if groups != [0, 1, 2, 3]:
        fail(f"it chose {sorted(chosen)}, of the groups {groups}", "groups of 9, 4, 2 and 1 clients far apart, k = 4")


@define_check()
def as_the_plain_greedy(subject: Subject) -> None:
    """Each further client is the one that lowers the sum of distances to the nearest of those chosen most.

    Reference: Balakrishnan et al. 2022, Algorithm 1
    """
    for seed in range(3):
        rows = generator(seed, "rows").normal(size=(9, 3)).astype(np.float32)
        apart = np.linalg.norm(rows[:, None].astype(np.float64) - rows, axis=2)
        before: set[int] = set()
        for k in range(1, 7):
            made = with_updates(rows, k)
            chosen = set(choice(subject.make(), made))
            further = [before | {i} for i in range(9) if i not in before]
            least = min(apart[list(each)].min(axis=0).sum() for each in further)
            found = apart[list(chosen)].min(axis=0).sum()
            if not before < chosen or found > least + 1e-9:  # two may lower it as much
                fail(f"after {sorted(before)} it chose {sorted(chosen)}: {found:.6g} instead of {least:.6g}", str(made))
            before = chosen


@define_check()
def the_best_of_those_looked_at(subject: Subject) -> None:
    """With two candidates the better one is chosen: of five clients the best in 4 of 10 pairs, the next in 3, ...

    On the line of `golden_representatives` the sums of distances are 35.5, 31, 22.5, 23.5 and 29.5.

    Reference: Balakrishnan et al. 2022, section 3.2, stochastic greedy
    """
    rounds, wanted = 500, np.array([0, 0.1, 0.4, 0.3, 0.2])
    made, count = with_updates(LINE, 1), np.zeros(5)
    for seed in range(rounds):
        count[choice(subject.make(candidates=2), made, seed)] += 1
    if (np.abs(count / rounds - wanted) > 5 * np.sqrt(wanted * (1 - wanted) / rounds)).any():  # five standard errors
        fail(f"in {rounds} rounds the rates are {shown(count / rounds)} instead of {shown(wanted)}", str(made))


METHOD_CHECKS = {
    "minimax": (
        golden_minimax,
        nearest_neighbours_both_stay,
        the_outlier_is_found,
        standing_still_is_no_direction,
        lengths_do_not_count,
        no_cohort_is_less_alike,
        the_latest_updates_count,
    ),
    "max_similarity": (golden_max_similarity, lengths_do_not_count, the_latest_updates_count),
    "convex_hull": (
        golden_hull,
        the_literal_hull,
        the_farthest_from_the_mean_is_first,
        turning_and_shifting,
        copies_are_not_chosen_before_others,
    ),
    "hull_distance": (golden_hull_distances, turning_and_shifting),
    "interior": (none_but_inner_ones,),
    "divfl": (golden_representatives, one_of_each_group, as_the_plain_greedy, the_best_of_those_looked_at),
}


def _most_alike(rows: AnyArray) -> AnyArray:
    """Return (n,) the largest cosine of each row with another."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosine = unit @ unit.T
    np.fill_diagonal(cosine, -np.inf)
    return np.asarray(cosine.max(axis=1))


@each_method("selection", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
