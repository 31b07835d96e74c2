"""Which method reaches the target accuracy in the least simulated time and energy, in words."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedreach.report.analysis.quantities import POPULATION, QUANTITIES, RADIO
from fedreach.report.analysis.rows import target_row
from fedreach.report.analysis.summary import MethodSummary
from fedreach.report.numbers import with_unit
from fedreach.report.values import Comparison

SAME = 1e-9  # relative difference up to which two sums over the same rounds are one number


@dataclass(frozen=True)
class Least:
    """Who needs the least of a quantity to the target, on average, among methods all of whose seeds reach it."""

    quantity: str
    value: float
    methods: tuple[str, ...]  # several if they need the same
    next: MethodSummary | None  # the first of the others
    next_value: float

    @property
    def text(self) -> str:
        """The value with its unit."""
        return with_unit(self.quantity, self.value)


def leasts(rows: Sequence[MethodSummary]) -> list[Least]:
    """Return who needs the least seconds and who the least joules; empty if no method has all its seeds there."""
    found = []
    for quantity in (each.name for each in RADIO):
        means = [(row.to_target[quantity].mean, row) for row in rows if row.reached == row.seeds]
        costs = [(cost, row) for cost, row in means if cost is not None]
        if costs:
            least = min(cost for cost, _ in costs)
            tied = tuple(row.method for cost, row in costs if cost <= least * (1 + SAME))
            others = [(cost, row) for cost, row in costs if row.method not in tied]
            value, after = min(others, key=lambda pair: pair[0]) if others else (least, None)
            found.append(Least(quantity, least, tied, after, value))
    return found


def target_sentences(comparison: Comparison, rows: Sequence[MethodSummary]) -> list[str]:
    """Return what it takes to reach the target; nothing without radio or target. `rows` must all have a result."""
    rows = [row for row in rows if row.at["seconds"].mean is not None]
    if not rows or comparison.target_accuracy is None:
        return []
    goal = f"{100 * comparison.target_accuracy:g} % on {POPULATION[comparison.primary].words}"
    if len(comparison.methods) == 1:
        return [_alone(rows[0], goal)]
    if not any(row.reached for row in rows):
        return [f"No run reaches {goal}, so time and energy to it cannot be compared."]
    missed = [row for row in rows if row.reached < row.seeds]
    reason = f"as not every seed got there: {', '.join(f'{row.method} ({_count(row)})' for row in missed)}"
    found = leasts(rows)
    if not found:
        return [f"No method is ranked by time and energy to {goal}, {reason}."]
    if missed and len(rows) - len(missed) == 1:
        time, energy = (least.text for least in found)
        only = f"Only {found[0].methods[0]} reaches {goal} in every seed: in {time} of simulated time, with {energy}."
        return [f"{only} The others are not ranked, {reason}."]
    ending = "Means over seeds, not tested." if max(row.seeds for row in rows) > 1 else "One seed, not tested."
    ending += f" Not ranked, {reason}." if missed else ""
    sentences = (_sentence(comparison, least, place) for least, place in zip(found, (goal, "it"), strict=False))
    return [" ".join([*sentences, ending])]


def _alone(row: MethodSummary, goal: str) -> str:
    time, energy = row.to_target["seconds"].mean, row.to_target["joules"].mean
    if time is None or energy is None:
        return f"It does not reach {goal}" + (" in any seed." if row.seeds > 1 else ".")
    seeds = "" if row.seeds == 1 else f", mean over the {_count(row)} seeds that got there"
    spent = f"{with_unit('seconds', time)} of simulated time, with {with_unit('joules', energy)}"
    return f"It reaches {goal} in {spent}{seeds}."


def _count(row: MethodSummary) -> str:
    return f"{row.reached or 'none'} of {row.seeds}"


def _sentence(comparison: Comparison, least: Least, goal: str) -> str:
    verb = "takes" if len(least.methods) == 1 else "take"
    text = f"{' and '.join(least.methods)} {verb} the least {QUANTITIES[least.quantity].words} to {goal}, {least.text}"
    if least.next is None:
        return f"{text}."
    pairs = _pairs(comparison, least.methods[0], least.next.method, QUANTITIES[least.quantity].column)
    more = sum(one < other for one, other in pairs)
    seeds = f", more in {more} of {len(pairs)} shared seeds" if len(pairs) > 1 else ""
    return f"{text}; next comes {least.next.method} with {with_unit(least.quantity, least.next_value)}{seeds}."


def _pairs(comparison: Comparison, one: str, other: str, column: str) -> list[tuple[float, float]]:
    """Return what both methods had spent when they reached the target, seed by seed."""
    spent = [
        {
            run.seed: float(run.column(column)[row])
            for run in comparison.counted(method)
            if (row := target_row(run, comparison)) is not None
        }
        for method in (one, other)
    ]
    return [(spent[0][seed], spent[1][seed]) for seed in spent[0] if seed in spent[1]]
