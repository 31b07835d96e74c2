"""Checks of allocation rules."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedreach._util.streams import generator
from fedreach.federation.checks import check_allocation
from fedreach.testing.base import Case, Outcome, RepeatedRuns, Subject, define_check, fail, same, shown
from fedreach.wireless.exact import allocate
from fedreach.wireless.problem import Allocation, AllocationProblem


@dataclass(frozen=True, eq=False)
class RadioCell(Case):
    """An allocation problem, in which all clients participate."""

    problem: AllocationProblem


def cell(words: str, k: int) -> RadioCell:
    """Return a cell with k different clients."""
    rng = generator(k, "testing cell")
    problem = AllocationProblem(
        upload_seconds=rng.uniform(0.04, 0.2, k),
        power_watts=rng.uniform(0.1, 2.0, k),
        cycles=rng.uniform(0.5e8, 3e8, k),
        max_hertz=rng.uniform(2e9, 5e9, k),
        num_examples=rng.integers(50, 200, k),
        ids=np.sort(rng.choice(100, k, replace=False)),
    )
    return RadioCell(words, problem)


def cells() -> Iterator[RadioCell]:
    """Yield ordinary cells and edge cases."""
    five = cell("5 different clients", 5)
    yield five
    yield cell("1 client", 1)
    yield RadioCell("5 equal clients", five.problem.only(np.zeros(5, np.int64)))
    yield RadioCell("5 clients that send without computing", replace(five.problem, cycles=np.zeros(5)))
    yield RadioCell("5 clients, with energy weight 0", replace(five.problem, energy_weight=0.0))
    yield RadioCell(
        "5 clients with slow CPUs, 2 to 5 MHz", replace(five.problem, max_hertz=five.problem.max_hertz / 1e3)
    )
    yield cell("40 clients", 40)


def _allocate(component: Any, case: RadioCell) -> Allocation:
    allocation: Allocation = component.allocate(case.problem, generator(0, "allocation"))
    return allocation


def _play(component: Any, case: RadioCell) -> list[Outcome]:
    got = _allocate(component, case)
    text = f"the bandwidth shares were {shown(got.share)}, the CPU frequencies {shown(got.hertz)} Hz"
    return [Outcome(text, (got.share, got.hertz))]


PLAYING = RepeatedRuns(cells, _play, has_state=False)


@define_check(cells)
def bandwidth_and_frequencies_in_range(subject: Subject, case: RadioCell) -> None:
    """Bandwidth shares are positive with a sum of at most 1, and CPU frequencies are in (0, max_hertz]."""
    check_allocation(subject.component, "allocate", _allocate(subject.component, case), case.problem)


@define_check(cells)
def costs_follow_the_formulas(subject: Subject, case: RadioCell) -> None:
    """Seconds, joules and cost follow tau / b + W / f, P tau / b + eps W f^2, and a1 T + a2 E."""
    got = _allocate(subject.component, case)
    right = Allocation.of(case.problem, slice(None), got.share, got.hertz)
    if not np.allclose([got.seconds, got.joules, got.cost], [right.seconds, right.joules, right.cost], rtol=1e-9):
        fail(
            f"it returned {got.seconds:.9g} s, {got.joules:.9g} J and cost {got.cost:.9g} instead of "
            f"{right.seconds:.9g} s, {right.joules:.9g} J and cost {right.cost:.9g}"
        )


@define_check(cells)
def never_below_the_optimum(subject: Subject, case: RadioCell) -> None:
    """The cost is at least the cost of the exact allocation, which is optimal."""
    cost, optimum = _allocate(subject.component, case).cost, allocate(case.problem).cost
    if cost < optimum * (1 - 1e-9):
        fail(f"its cost is {cost:.12g}, and the optimum is {optimum:.12g}")


@define_check(lambda: [cell("5 different clients", 5), cell("12 different clients", 12)])
def renaming(subject: Subject, case: RadioCell) -> None:
    """In another order, clients receive the same bandwidth shares, unless the rule draws random numbers."""
    first = _allocate(subject.component, case)
    if not same(first.share, subject.component.allocate(case.problem, generator(1, "other")).share):
        return  # the rule draws random numbers
    order = np.roll(np.arange(len(case.problem)), 2)
    moved = replace(case.problem.only(order), ids=case.problem.ids)
    renamed = subject.component.allocate(moved, generator(0, "allocation"))
    if not np.allclose(renamed.share, first.share[order], rtol=1e-6):
        fail(f"shares {shown(first.share)}, and {shown(renamed.share)} for clients in the order {order.tolist()}")
