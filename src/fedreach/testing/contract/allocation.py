"""Laws of allocation rules: what every division of band and CPU must keep, good or bad."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedreach.federation.contract import checked_allocation
from fedreach.streams import generator
from fedreach.testing.contract.any_part import options_are_all_it_is
from fedreach.testing.law import Subject, broken, law, same, told
from fedreach.testing.watching import Watched, other_global_seeds
from fedreach.wireless.allocation.exact import allocate
from fedreach.wireless.allocation.problem import Allocation, AllocationProblem


@dataclass(frozen=True, eq=False)
class Cell:
    """Clients that all take part."""

    words: str
    problem: AllocationProblem

    def __str__(self) -> str:
        return self.words


def cell(words: str, k: int) -> Cell:
    """Return k clients of which no two are alike."""
    rng = generator(k, "testing cell")
    problem = AllocationProblem(
        upload_seconds=rng.uniform(0.04, 0.2, k),
        power_watts=rng.uniform(0.1, 2.0, k),
        cycles=rng.uniform(0.5e8, 3e8, k),
        max_hertz=rng.uniform(2e9, 5e9, k),
        num_examples=rng.integers(50, 200, k),
        ids=np.sort(rng.choice(100, k, replace=False)),
    )
    return Cell(words, problem)


def cells() -> Iterator[Cell]:
    """Yield clients, ordinary and inconvenient ones."""
    five = cell("5 clients, no two alike", 5)
    yield five
    yield cell("a single client", 1)
    yield Cell("5 clients that are all alike", five.problem.only(np.zeros(5, np.int64)))
    yield Cell("5 clients without work, which only send", replace(five.problem, cycles=np.zeros(5)))
    yield Cell("5 clients whose joules cost nothing", replace(five.problem, joules_price=0.0))
    yield Cell("5 clients with slow CPUs, 2 to 5 MHz", replace(five.problem, max_hertz=five.problem.max_hertz / 1e3))
    yield cell("40 clients", 40)


@law(cells)
def band_and_frequencies_are_kept(subject: Subject, given: Cell) -> None:
    """Everybody gets a positive share, all shares together at most 1, and a frequency in (0, max_hertz]."""
    checked_allocation(subject.part, "allocate", _allocate(subject.part, given), given.problem)


@law(cells)
def costs_are_those_of_the_formulas(subject: Subject, given: Cell) -> None:
    """Seconds, joules and cost are tau / b + W / f, P tau / b + eps W f^2 and a1 T + a2 E."""
    got, p = _allocate(subject.part, given), given.problem
    sending = p.upload_seconds / got.share
    computing = np.where(p.cycles > 0, p.cycles / np.where(p.cycles > 0, got.hertz, 1), 0)
    joules = float((p.power_watts * sending + p.capacitance * p.cycles * got.hertz**2).sum())
    cost = p.seconds_price * (sending + computing).max() + p.joules_price * joules
    if not np.allclose([got.seconds, got.joules, got.cost], [(sending + computing).max(), joules, cost], rtol=1e-9):
        broken(f"it says {got.seconds:.9g} s, {got.joules:.9g} J and {got.cost:.9g}, instead of {cost:.9g}")


@law(cells)
def never_below_the_optimum(subject: Subject, given: Cell) -> None:
    """No rule costs less than the exact allocation, which is proven to cost least."""
    cost, least = _allocate(subject.part, given).cost, allocate(given.problem).cost
    if cost < least * (1 - 1e-9):
        broken(f"it costs {cost:.12g}, and the optimum is {least:.12g}")


@law(cells)
def same_again(subject: Subject, given: Cell) -> None:
    """The same clients and stream give the same allocation."""
    with other_global_seeds(1):
        first = _allocate(subject.part, given)
    with other_global_seeds(2):
        second = _allocate(subject.part, given)
    if not (same(first.share, second.share) and same(first.hertz, second.hertz)):
        broken(f"shares {told(first.share)} at first, and {told(second.share)} again; draw from the `rng` handed in")


@law(cells)
def arguments_untouched(subject: Subject, given: Cell) -> None:
    """A rule does not write to the problem."""
    _allocate(Watched(subject.part), given)


@law(lambda: [cell("5 clients, no two alike", 5), cell("12 clients, no two alike", 12)])
def renaming(subject: Subject, given: Cell) -> None:
    """Clients that change places get each other's shares, unless they are drawn."""
    first = _allocate(subject.part, given)
    if not same(first.share, subject.part.allocate(given.problem, generator(1, "other")).share):
        return  # drawn
    order = np.roll(np.arange(len(given.problem)), 2)
    moved = replace(given.problem.only(order), ids=given.problem.ids)
    other = subject.part.allocate(moved, generator(0, "allocation"))
    if not np.allclose(other.share, first.share[order], rtol=1e-6):
        broken(f"shares {told(first.share)}, and {told(other.share)} with places changed by {order.tolist()}")


LAWS = (
    band_and_frequencies_are_kept,
    costs_are_those_of_the_formulas,
    never_below_the_optimum,
    same_again,
    arguments_untouched,
    renaming,
    options_are_all_it_is,
)


def _allocate(part: object, given: Cell) -> Allocation:
    allocation: Allocation = part.allocate(given.problem, generator(0, "allocation"))  # type: ignore[attr-defined]
    return allocation
