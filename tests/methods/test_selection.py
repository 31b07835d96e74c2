"""Checks of the built-in selection policies: what theory says only of one method."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from fedreach._util.streams import generator
from fedreach.federation.types import ServerView
from fedreach.testing.base import Subject, define_check, fail
from fedreach.testing.problems import ToyFederation, frequencies, toy_federation

from .running import choice, each_method, must_pass

LOSSES = np.array([0.3, 0.9, 0.1, 0.9, 0.5])


@define_check()
def every_set_equally_often(subject: Subject) -> None:
    """Each set of k clients is equally likely."""
    draws, made = 2000, toy_federation("5 clients", 5, 2)
    found: dict[tuple[int, ...], int] = {}
    for seed in range(draws):
        chosen = tuple(sorted(choice(subject.make(), made, seed)))
        found[chosen] = found.get(chosen, 0) + 1
    for pair in combinations(range(5), 2):
        share = found.get(pair, 0) / draws
        if abs(share - 0.1) > 5 * np.sqrt(0.09 / draws):  # five standard errors
            fail(f"{list(pair)} was chosen in {share:.1%} of {draws} rounds, instead of 10 %", "5 clients, k = 2")


@define_check()
def everybody_who_is_there(subject: Subject) -> None:
    """All available participants are chosen, whatever the cohort size."""
    made = replace(toy_federation("6 clients", 6, 2), away={1: [1, 4]})
    chosen = sorted(choice(subject.make(), made))
    if chosen != [0, 2, 3, 5]:
        fail(f"it chose {chosen}", "6 clients of which 1 and 4 are away, k = 2")


@define_check()
def the_largest_losses(subject: Subject) -> None:
    """Of all candidates the k with the largest loss are chosen, ties by id.

    Reference: specification, section 1.5
    """
    for k, expected in ((1, [1]), (2, [1, 3]), (3, [1, 3, 4])):
        chosen = sorted(choice(subject.make(), _with_losses(k)))
        if chosen != expected:
            fail(
                f"it chose {chosen} instead of {expected}", f"losses {LOSSES.tolist()}, everybody a candidate, k = {k}"
            )


@define_check()
def only_candidates(subject: Subject) -> None:
    """Clients that were not asked are not chosen: of the candidates {0, 2, 4}, {0, 4} have the largest losses.

    Reference: specification, section 1.5
    """
    asked = np.array([True, False, True, False, True])
    view = replace(_with_losses(2).view(), loss=np.where(asked, LOSSES, np.nan), probed=asked)
    policy = subject.make(candidates=3)
    chosen = sorted(policy.select(policy.init(view), view, 2, generator(0, "select")).ids.tolist())
    if chosen != [0, 4]:
        fail(f"it chose {chosen}", f"losses {LOSSES.tolist()}, of which those of 0, 2 and 4 were asked for, k = 2")


@define_check()
def candidates_in_proportion_to_examples(subject: Subject) -> None:
    """Candidates are drawn with probability proportional to their number of examples, not uniformly.

    Reference: specification, section 1.5 (Cho et al. 2022, section 4)
    """
    draws, examples = 2000, np.array([10, 20, 30, 40])
    made = replace(toy_federation("4 clients", 4, 1), num_examples=examples)
    share, wanted = frequencies(subject.make(candidates=1), made, draws), examples / 100
    if (np.abs(share - wanted) > 5 * np.sqrt(wanted * (1 - wanted) / draws)).any():  # five standard errors
        rates = ", ".join(f"{rate:.1%}" for rate in share)
        fail(f"the single candidate was each of them in {rates} of {draws} rounds", "10, 20, 30 and 40 examples")


@define_check()
def never_heard_goes_first(subject: Subject) -> None:
    """With the last known loss, a client never heard from counts as the largest, and nobody is asked."""
    policy, loss = subject.make(loss="last"), np.array([0.3, 0.9, np.nan, 0.9, 0.5])
    view = ServerView.of(np.arange(5), np.full(5, 10), loss=loss)
    if policy.probe(policy.init(view), view, 2, generator(0, "probe")) is not None:
        fail("it asked somebody", "loss = 'last'")
    chosen = sorted(policy.select(policy.init(view), view, 2, generator(0, "select")).ids.tolist())
    if chosen != [1, 2]:
        fail(f"it chose {chosen} instead of [1, 2]", f"losses {loss.tolist()}, k = 2")


@define_check()
def the_most_varied_labels(subject: Subject) -> None:
    """The k clients with the highest label entropy are chosen, ties by id.

    Reference: specification, sections 2.1 and 2.5
    """
    counts = np.array([[10, 0, 0, 0], [5, 5, 0, 0], [1, 2, 3, 4], [25, 25, 25, 25], [1, 1, 1, 1]], np.float64)
    for k, expected in ((1, [3]), (2, [3, 4]), (3, [2, 3, 4])):
        chosen = sorted(choice(subject.make(), replace(toy_federation("5 clients", 5, k), label_counts=counts)))
        if chosen != expected:
            fail(f"it chose {chosen} instead of {expected}", f"label counts {counts.tolist()}, k = {k}")


@define_check()
def golden_divergences(subject: Subject) -> None:
    """A client is admitted if KL(all || client), the direction of Theorem 1, is within the threshold.

    Unsmoothed, the divergences are inf, .2358, inf and .1558; with one pseudo-example a class, .2053, .2106, .6646
    and .1480.

    Reference: specification, section 5.2
    """
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({"threshold": 0.2, "smoothing": 0.0}, [3]),
        ({"threshold": 0.24, "smoothing": 0.0}, [1, 3]),
        ({"threshold": 100.0, "smoothing": 0.0}, [1, 3]),
        ({"threshold": 0.2, "smoothing": 1.0}, [3]),
        ({"threshold": 0.207, "smoothing": 1.0}, [0, 3]),
        ({"threshold": 0.22, "smoothing": 1.0}, [0, 1, 3]),
        ({"threshold": 0.67, "smoothing": 1.0}, [0, 1, 2, 3]),
    ]
    _must_admit(subject, "global_to_local", cases)


@define_check()
def golden_reverse_divergences(subject: Subject) -> None:
    """With the direction reversed, KL(client || all) is .2790, .2511, .6349 and .1443, finite without smoothing.

    Reference: specification, section 5.2
    """
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({"threshold": 0.25, "smoothing": 0.0}, [3]),
        ({"threshold": 0.26, "smoothing": 0.0}, [1, 3]),
        ({"threshold": 0.28, "smoothing": 0.0}, [0, 1, 3]),
        ({"threshold": 0.64, "smoothing": 0.0}, [0, 1, 2, 3]),
    ]
    _must_admit(subject, "local_to_global", cases)


@define_check()
def who_is_away_counts_in_the_pool(subject: Subject) -> None:
    """A client is compared with all participants together, those that cannot be reached included.

    Of (15, 5), (10, 10) and (5, 15) examples, the third client away, the pool is even and the divergences are .1438 and
    0; of the first two alone it would be (25, 15), the divergences .0381 and .0316.
    """
    counts = np.array([[15, 5], [10, 10], [5, 15]], np.float64)
    made = replace(toy_federation("3 clients", 3, 2), label_counts=counts, num_examples=np.full(3, 20), away={1: [2]})
    chosen = sorted(choice(subject.make(threshold=0.1, smoothing=0.0, min_examples=1), made))
    if chosen != [1]:
        fail(f"it admitted {chosen} instead of [1]", f"label counts {counts.tolist()}, 2 is away, threshold 0.1")


METHOD_CHECKS = {
    "uniform": (every_set_equally_often,),
    "full": (everybody_who_is_there,),
    "power_of_choice": (
        the_largest_losses,
        only_candidates,
        candidates_in_proportion_to_examples,
        never_heard_goes_first,
    ),
    "entropy_topk": (the_most_varied_labels,),
    "kl_filter": (golden_divergences, golden_reverse_divergences, who_is_away_counts_in_the_pool),
}


def _with_losses(k: int) -> ToyFederation:
    return replace(toy_federation("5 clients", 5, k), loss=LOSSES)


def _must_admit(subject: Subject, direction: str, cases: list[tuple[dict[str, Any], list[int]]]) -> None:
    counts = np.array([[10, 10, 0], [5, 5, 10], [30, 0, 0], [8, 12, 10]], np.float64)
    made = replace(
        toy_federation("4 clients", 4, 4), label_counts=counts, num_examples=counts.sum(axis=1).astype(np.int64)
    )
    for options, expected in cases:
        chosen = sorted(choice(subject.make(direction=direction, **options), made))
        if chosen != expected:
            fail(f"it admitted {chosen} instead of {expected}", f"label counts {counts.tolist()}, {options}")


@each_method("selection", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
