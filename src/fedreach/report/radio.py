"""Simulated time and energy in the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fedreach._util.errors import RunFolderError
from fedreach.report.analysis import POPULATION, QUANTITIES, RADIO, MethodSummary
from fedreach.report.numbers import Columns, RunSet, with_unit

# ---- Time that chosen clients spent in each round

PARTS = ("compute_seconds", "upload_seconds")


def airtime(rows: Sequence[Mapping[str, Any]], path: Path) -> Columns:
    """Return the (t,) mean seconds that selected clients spent on computing and sending in each of t rounds.

    Clients whose reply was lost count, because they also computed and sent. In rounds without an allocation, values are
    nan. Runs without radio have no columns.

    Raises:
        RunFolderError: If a round does not contain one number per client.
    """
    allocations: list[Mapping[str, list[float]]] = [row.get("allocation") or {} for row in rows]
    if not any(allocations):
        return {}
    counts = np.array([len(allocation.get("ids") or []) for allocation in allocations])
    row = np.repeat(np.arange(len(rows)), counts)
    columns = {}
    for name in PARTS:
        lists = [allocation.get(name) or [] for allocation in allocations]
        for line, (values, count) in enumerate(zip(lists, counts, strict=True), 1):
            if len(values) != count:
                raise RunFolderError(
                    f"{path}, line {line}: allocation must have one {name} per client; got {len(values)} for {count} "
                    "clients. Rerun the command."
                )
        total = np.bincount(row, np.array(list(chain.from_iterable(lists)), np.float64), minlength=len(rows))
        columns[name] = np.divide(total, counts, out=np.full(len(rows), np.nan), where=counts > 0)
    return columns


# ---- Methods that reach the target accuracy with the least time and energy

SAME_COST = 1e-9  # relative difference up to which two sums over the same rounds are equal


@dataclass(frozen=True)
class CheapestMethods:
    """The methods with the lowest mean cost to the target, among methods that reach it with all seeds."""

    quantity: str
    value: float
    methods: tuple[str, ...]  # several if they need the same
    next: MethodSummary | None  # the first of the others
    next_value: float

    @property
    def text(self) -> str:
        """The lowest cost with its unit."""
        return with_unit(self.quantity, self.value)


def cheapest_methods(rows: Sequence[MethodSummary]) -> list[CheapestMethods]:
    """Return the methods with the lowest seconds and joules; empty if no method reaches the target with all seeds."""
    cheapest = []
    for quantity in (radio_quantity.name for radio_quantity in RADIO):
        means = [(row.to_target[quantity].mean, row) for row in rows if row.reached == row.seeds]
        costs = [(cost, row) for cost, row in means if cost is not None]
        if costs:
            lowest = min(cost for cost, _ in costs)
            tied = tuple(row.method for cost, row in costs if cost <= lowest * (1 + SAME_COST))
            costlier = [(cost, row) for cost, row in costs if row.method not in tied]
            value, after = min(costlier, key=lambda pair: pair[0]) if costlier else (lowest, None)
            cheapest.append(CheapestMethods(quantity, lowest, tied, after, value))
    return cheapest


def target_sentences(comparison: RunSet, rows: Sequence[MethodSummary]) -> list[str]:
    """Return sentences on the cost of the target; empty without radio or target. All `rows` must have a result."""
    rows = [row for row in rows if row.at["seconds"].mean is not None]
    if not rows or comparison.target_accuracy is None:
        return []
    goal = f"{100 * comparison.target_accuracy:g}% on {POPULATION[comparison.primary].words}"
    if len(comparison.methods) == 1:
        return [_alone(rows[0], goal)]
    missed = [f"{row.method} ({_count(row)})" for row in rows if row.reached < row.seeds]
    unranked = f" Methods that did not reach it with every seed are not ranked: {', '.join(missed)}." if missed else ""
    cheapest = cheapest_methods(rows)
    if not cheapest:
        return [f"No method is ranked by time and energy to reach {goal}.{unranked}"]
    tested = "These means are not tested." if max(row.seeds for row in rows) > 1 else "One seed allows no test."
    sentences = (_sentence(entry, place) for entry, place in zip(cheapest, (goal, "it"), strict=False))
    return [f"{' '.join(sentences)} {tested}{unranked}"]


def _alone(row: MethodSummary, goal: str) -> str:
    time, energy = row.to_target["seconds"].mean, row.to_target["joules"].mean
    if time is None or energy is None:
        return f"{row.method} does not reach {goal}" + (" in any seed." if row.seeds > 1 else ".")
    seeds = "" if row.seeds == 1 else f", mean over the {_count(row)} seeds that reached it"
    spent = f"{with_unit('seconds', time)} of simulated time and {with_unit('joules', energy)}"
    return f"{row.method} reaches {goal} with {spent}{seeds}."


def _count(row: MethodSummary) -> str:
    return f"{row.reached or 'none'} of {row.seeds}"


def _sentence(cheapest: CheapestMethods, goal: str) -> str:
    verb = "needs" if len(cheapest.methods) == 1 else "need"
    words = QUANTITIES[cheapest.quantity].words
    text = f"{' and '.join(cheapest.methods)} {verb} the least {words} to reach {goal}, {cheapest.text}"
    if cheapest.next is None:
        return f"{text}."
    return f"{text}; {cheapest.next.method} follows with {with_unit(cheapest.quantity, cheapest.next_value)}."
