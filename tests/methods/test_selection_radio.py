"""Checks of the selection policies that look at channels and devices."""

from dataclasses import replace
from itertools import combinations

import numpy as np

from fedreach._util.arrays import Bools
from fedreach._util.streams import generator
from fedreach.federation.types import Cohort, ServerView
from fedreach.testing.base import Subject, define_check, fail, must_be_close
from fedreach.testing.problems import REPORT_BITS, toy_federation, with_rates
from fedreach.wireless.exact import allocate_batch

from .running import each_method, must_pass
from .test_allocation import golden_problem

RATES = np.array([3e6, 9e6, 1e6, 9e6, 5e6])


@define_check()
def the_best_channels(subject: Subject) -> None:
    """The k available clients with the highest rates are chosen, ties by id."""
    for k, away, expected in ((1, [], [1]), (2, [], [1, 3]), (3, [], [1, 3, 4]), (2, [1], [3, 4])):
        view = with_rates(ServerView.of(np.arange(5), np.full(5, 10), available=~np.isin(np.arange(5), away)), RATES)
        chosen = sorted(_select(subject, view, k).ids.tolist())
        if chosen != expected:
            fail(f"it chose {chosen} instead of {expected}", f"rates {RATES.tolist()}, {away} away, k = {k}")


@define_check()
def golden_choice(subject: Subject) -> None:
    """Five clients of which {0, 4} cost least, 1.00896, where 300 examples are needed, with shares .382 and .618.

    Reference: specification of the allocation, golden G1
    """
    chosen = _select(subject, _golden_view(), 2, threshold=10.0, min_examples=300)
    if sorted(chosen.ids.tolist()) != [0, 4]:
        fail(f"it chose {chosen.ids.tolist()}", "golden G1")
    allocation = chosen.allocation
    if allocation is None:
        fail("the selection has no allocation", "golden G1")
    must_be_close("the cost", allocation.cost, 1.008962065383, "golden G1", within=1e-9)
    must_be_close("the shares", allocation.share, [0.382247909, 0.617752091], "golden G1", within=1e-7)


@define_check()
def no_set_is_cheaper(subject: Subject) -> None:
    """Of all sets within the filter that hold enough examples, the cheapest is chosen, up to the tolerance."""
    for n in (4, 6, 8):
        made = toy_federation(f"{n} clients", n, 2)
        view = replace(made.with_radio(made.view(("label_counts",))), round=1)
        assert view.radio is not None
        chosen = _select(subject, view, 2, threshold=10.0)
        problem, needed = view.radio.problem(), 2 * view.num_examples.mean()
        sets = [
            s for m in range(1, n + 1) for s in combinations(range(n), m) if view.num_examples[list(s)].sum() >= needed
        ]
        rows = np.array([[*s, *[0] * (n - len(s))] for s in sets])
        counted: Bools = np.arange(n) < np.array([len(s) for s in sets])[:, None]
        least = float(allocate_batch(problem, rows, counted)[0].min())
        cost = np.inf if chosen.allocation is None else chosen.allocation.cost
        if not cost <= least * (1 + 1.01 * subject.make().tolerance):
            fail(f"it chose {chosen.ids.tolist()} at {cost:.9g}; the cheapest set costs {least:.9g}", str(made))


@define_check()
def the_filter_comes_first(subject: Subject) -> None:
    """A client beyond the threshold is not chosen, however cheap, unless too few examples are left without it."""
    counts = np.array([[10.0, 10.0], [10, 10], [19, 1], [10, 10]])
    view = ServerView.of(np.arange(4), np.full(4, 20))
    view = with_rates(replace(view, label_counts=counts), np.array([1e6, 2e6, 9e6, 3e6]))
    for needed, expected, said in ((40, [1, 3], ""), (60, [0, 1, 3], ""), (80, [0, 1, 2, 3], "admitted 4")):
        chosen = _select(subject, view, 2, threshold=0.2, min_examples=needed)
        if sorted(chosen.ids.tolist()) != expected or said not in chosen.remark:
            fail(
                f"it chose {chosen.ids.tolist()} instead of {expected}, remark {chosen.remark!r}",
                f"label counts {counts.tolist()}, the third has the best channel, min_examples = {needed}",
            )


@define_check()
def the_proof_ends_at_the_tolerance(subject: Subject) -> None:
    """Within `tolerance` a set counts as the cheapest; where the nodes end before, the remark says what gap is left."""
    rng = generator(0, "clients")
    counts = np.repeat(rng.integers(20, 200, 60), 2).reshape(-1, 2).astype(np.float64)
    view = replace(ServerView.of(np.arange(60), counts.sum(axis=1)), label_counts=counts)
    view = with_rates(view, rng.uniform(1e6, 2e7, 60))
    for tolerance, expected in ((0.5, ""), (1e-9, "the allocation's gap is ")):
        options = {"min_examples": int(0.3 * counts.sum()), "tolerance": tolerance, "max_nodes": 1}
        remark = _select(subject, view, 5, **options).remark
        if not remark.startswith(expected) or bool(remark) != bool(expected):
            fail(f"the remark is {remark!r} instead of {expected!r}", f"60 clients, {options}")


METHOD_CHECKS = {
    "best_channels": (the_best_channels,),
    "csra": (golden_choice, no_set_is_cheaper, the_filter_comes_first, the_proof_ends_at_the_tolerance),
}


def _select(subject: Subject, view: ServerView, k: int, **options: object) -> Cohort:
    policy = subject.make(**options)
    selection: Cohort = policy.select(policy.init(view), view, k, generator(0, "select"))
    return selection


def _golden_view() -> ServerView:
    golden = golden_problem()
    view = ServerView.of(golden.ids, golden.num_examples)
    radio = with_rates(view, REPORT_BITS / golden.upload_seconds).radio
    assert radio is not None
    radio = replace(radio, power_watts=golden.power_watts, max_hertz=golden.max_hertz, cycles_per_pass=golden.cycles)
    return replace(view, radio=radio, label_counts=np.ones((5, 3)))


@each_method("selection", METHOD_CHECKS)
def test_a_method_passes_its_checks(kind, name, check):
    must_pass(kind, name, check)
