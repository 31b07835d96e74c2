"""Laws of allocation rules: of all, and of single methods."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedreach.federation.answers import checked_allocation
from fedreach.streams import generator
from fedreach.testing.law import Law, Subject, broken, law, must_be_close, same, shown
from fedreach.testing.laws.any_part import Given, Outcome, Playing, options_are_all_it_is
from fedreach.wireless.allocation.exact import allocate
from fedreach.wireless.allocation.problem import Allocation, AllocationProblem


@dataclass(frozen=True, eq=False)
class Cell(Given):
    """Clients that all take part."""

    problem: AllocationProblem


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


def _allocate(part: Any, given: Cell) -> Allocation:
    allocation: Allocation = part.allocate(given.problem, generator(0, "allocation"))
    return allocation


def _play(part: Any, given: Cell) -> list[Outcome]:
    got = _allocate(part, given)
    return [Outcome(f"the shares were {shown(got.share)}, the hertz {shown(got.hertz)}", (got.share, got.hertz))]


PLAYING = Playing(cells, _play)


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
        broken(f"shares {shown(first.share)}, and {shown(other.share)} with places changed by {order.tolist()}")


LAWS = (
    band_and_frequencies_are_kept,
    costs_are_those_of_the_formulas,
    never_below_the_optimum,
    PLAYING.same_again(
        "The same clients and stream give the same allocation.", "Draw from the `rng` that is handed in."
    ),
    PLAYING.arguments_untouched("A rule does not write to the problem."),
    renaming,
    options_are_all_it_is,
)


DRAWS = 2000


def golden_problem() -> AllocationProblem:
    """Return the five clients of golden G1."""
    return AllocationProblem(
        upload_seconds=np.array([0.10, 0.08, 0.12, 0.20, 0.06]),
        power_watts=np.array([0.5, 1.0, 0.25, 0.1, 2.0]),
        cycles=np.array([1e8, 2e8, 5e7, 1.5e8, 3e8]),
        max_hertz=np.array([2e9, 3e9, 2.5e9, 1e9, 4e9]),
        num_examples=np.array([100, 150, 80, 120, 200]),
    )


@law()
def golden_optimum(subject: Subject) -> None:
    """Five clients with a known optimum: cost 2.6497, deadline 0.98848 s, shares .158, .199, .140, .260 and .242.

    Reference: specification of the allocation, golden G3
    """
    got = subject.make().allocate(golden_problem(), generator(0, "allocation"))
    must_be_close("the cost", got.cost, 2.649697293704, within=1e-11)
    must_be_close("the deadline", got.seconds, 0.9884802917, within=1e-9)
    must_be_close("the energy", got.joules, 1.6612170020, within=1e-9)
    must_be_close("the price of the band", got.band_price, 2.1776535079, within=1e-8)
    shares = [0.158102614, 0.199116183, 0.140231432, 0.260139995, 0.242409775]
    must_be_close("the shares", got.share, shares, within=1e-8)


@law()
def everybody_alike(subject: Subject) -> None:
    """All get the same share, 1 / k."""
    got = subject.make().allocate(cell("", 7).problem, generator(0, "allocation"))
    must_be_close("the shares", got.share, np.full(7, 1 / 7), "7 clients", within=1e-12)


@law()
def best_single_frequency(subject: Subject) -> None:
    """The frequency is (a1 / (2 a2 eps))^(1/3), 0.7937 GHz, or the highest of the device, if that is lower.

    Reference: specification, section 5.6, with its printed units mended
    """
    got = subject.make().allocate(golden_problem(), generator(0, "allocation"))
    must_be_close("the frequencies in GHz", got.hertz / 1e9, np.full(5, 0.79370052598), within=1e-9)


@law()
def drawn_evenly(subject: Subject) -> None:
    """Shares are Dirichlet(1), so that each is 1 / k on average, and frequencies uniform in [0.1, 1] of the highest.

    Reference: specification, section 5.6
    """
    problem, rng = golden_problem(), generator(0, "allocation")
    drawn = [subject.make().allocate(problem, rng) for _ in range(DRAWS)]
    share = np.mean([got.share for got in drawn], axis=0)
    hertz = np.mean([got.hertz / problem.max_hertz for got in drawn], axis=0)
    # Five standard errors: the variance of a share is 4 / (25 * 6), that of a frequency 0.9^2 / 12.
    if not (np.abs(share - 0.2) < 5 * np.sqrt(4 / 150 / DRAWS)).all():
        broken(f"the mean shares are {share.round(4).tolist()}", f"5 clients, {DRAWS} draws")
    if not (np.abs(hertz - 0.55) < 5 * np.sqrt(0.81 / 12 / DRAWS)).all():
        broken(f"the mean frequencies are {hertz.round(4).tolist()} of the highest", f"5 clients, {DRAWS} draws")


@law()
def band_goes_where_it_gains_most(subject: Subject) -> None:
    """With fine steps, the gains (a1 + a2 P) tau / b^2 of all clients end up equal, and the band is used up.

    Reference: specification, section 5.6: the printed gain has the wrong sign
    """
    problem = golden_problem()
    got = subject.make().allocate(problem, generator(0, "allocation"))
    if abs(got.share.sum() - 1) > 1e-9:
        broken(f"the shares sum to {got.share.sum():.9g}", "golden G1")
    wanted = np.sqrt((1 + problem.power_watts) * problem.upload_seconds)
    must_be_close("the shares", got.share, wanted / wanted.sum(), "golden G1", within=0.011)


METHOD_LAWS: Mapping[str, tuple[Law, ...]] = {
    "exact": (golden_optimum,),
    "equal": (everybody_alike, best_single_frequency),
    "random": (drawn_evenly,),
    "greedy": (band_goes_where_it_gains_most, best_single_frequency),
}
