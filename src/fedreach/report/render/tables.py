"""The comparison table as text cells: what stands where, in which unit, and what the spread is over.

`formats` writes it for the terminal, Markdown and LaTeX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedreach.report.analysis.statistics import Spread
from fedreach.report.analysis.summary import POPULATION, MethodSummary, When, summarize
from fedreach.report.render.units import number, unit_of
from fedreach.report.values import Comparison

ABSENT = "-"
WIDE = 150
CAPTION = {
    "last": "At the last round",
    "best": "At the best round on participants' held-out loss",
}


@dataclass(frozen=True)
class Table:
    """Text cells, ready to be written."""

    caption: str
    header: tuple[str, ...]
    units: tuple[str, ...]  # what stands below each header: the unit and what the spread is over
    rows: tuple[tuple[str, ...], ...]
    from_width: tuple[int, ...]  # terminal width from which a column is shown, if it fits
    note: str


@dataclass(frozen=True)
class _Column:
    header: str
    unit: str
    text: Callable[[MethodSummary], str]
    from_width: int = WIDE


def tabulate(comparison: Comparison, when: When = "last") -> Table:
    """Return the table of all methods, one row each, without columns that would be empty.

    Args:
        comparison: What `read` returns.
        when: At the ``"last"`` evaluated round, or at the ``"best"`` one on participants' held-out loss.
    """
    rows = summarize(comparison, when)
    columns = _columns(comparison, rows)
    cells = tuple(tuple(column.text(row) for column in columns) for row in rows)
    kept = [j for j in range(len(columns)) if j == 0 or any(row[j] != ABSENT for row in cells)]
    return Table(
        caption=CAPTION[when],
        header=tuple(columns[j].header for j in kept),
        units=tuple(columns[j].unit for j in kept),
        rows=tuple(tuple(row[j] for j in kept) for row in cells),
        from_width=tuple(columns[j].from_width for j in kept),
        note=_note(comparison, rows),
    )


def _columns(comparison: Comparison, rows: Sequence[MethodSummary]) -> list[_Column]:
    where = "seeds" if _gap_over_seeds(rows) else "clients"
    share = "% ± sd" if any(row.participants.sd is not None for row in rows) else "%"
    columns = [
        _Column("method", "", lambda row: row.method, 0),
        _Column("participants", share, lambda row: percent(row.participants), 100),
        _Column("unseen clients", share, lambda row: percent(row.unseen), 0),
        _Column("test set", share, lambda row: percent(row.test), 0 if comparison.primary == "test_accuracy" else WIDE),
        _Column("gap", f"points [{where}]", lambda row: _gap(row, where == "seeds"), 0),
        _Column("difference", "points [seeds]", lambda row: _difference(row, alone=len(rows) == 1), 0),
        _Column("p", "corrected", lambda row: p_text(row.corrected_p), 0),
        *(_radio_columns(comparison, rows) if comparison.radio else ()),
        _Column("worst decile, unseen", share, lambda row: percent(row.unseen_worst_decile)),
        _Column("worst decile, participants", share, lambda row: percent(row.participants_worst_decile)),
        _Column("seeds", "finished", lambda row: f"{row.seeds}/{row.seeds_planned}"),
        _Column("sent", "MB", lambda row: _number(row.megabytes.mean)),
        _Column("rounds", "", lambda row: _number(row.round.mean)),
    ]
    if comparison.target_accuracy is not None:
        target = f"to {100 * comparison.target_accuracy:g} %"
        columns += [
            _Column(target, "rounds", lambda row: _reached(row, row.rounds_to_target)),
            _Column(target, "MB", lambda row: _reached(row, row.megabytes_to_target)),
        ]
    return columns


def _radio_columns(comparison: Comparison, rows: Sequence[MethodSummary]) -> list[_Column]:
    def column(header: str, quantity: str, of: Callable[[MethodSummary], Spread], *, target: bool) -> _Column:
        # One unit for the whole column: its numbers are there to be compared.
        unit = unit_of(quantity, [of(row).mean for row in rows])
        show = _reached if target else _mean
        return _Column(header, unit.name, lambda row: show(row, of(row), unit.size), 110 if target else 130)

    columns = [
        column("time", "seconds", lambda row: row.seconds, target=False),
        column("energy", "joules", lambda row: row.joules, target=False),
    ]
    if comparison.target_accuracy is not None:
        header = f"to {100 * comparison.target_accuracy:g} %"
        columns += [
            column(header, "seconds", lambda row: row.seconds_to_target, target=True),
            column(header, "joules", lambda row: row.joules_to_target, target=True),
        ]
    return columns


def _gap_over_seeds(rows: Sequence[MethodSummary]) -> bool:
    # With one seed there is no spread over seeds, and the bootstrap over clients is the interval there is.
    return all(row.gap.low is not None for row in rows if row.seeds)


def _note(comparison: Comparison, rows: Sequence[MethodSummary]) -> str:
    primary = POPULATION[comparison.primary]
    tests = sum(row.difference.p is not None for row in rows)
    parts = ["Accuracy: mean over clients" + (", ± sd over seeds." if any(r.seeds > 1 for r in rows) else ".")]
    if any(row.gap.mean is not None for row in rows):
        over = "over seeds (Student t)" if _gap_over_seeds(rows) else "over clients (bootstrap)"
        parts.append(f"Gap: participants minus unseen clients, 95 % interval {over}.")
    if len(rows) > 1:
        test = f", 95 % interval over seeds, p of the paired t test, Holm-corrected for {tests}" if tests else ""
        parts.append(f"Difference: to {comparison.baseline}, on {primary}, same seeds{test}.")
    if any(row.seeds == 1 for row in rows):
        parts.append("One seed: no spread over seeds, no test.")
    reasons = [(row.method, row.difference.note) for row in rows if not row.is_baseline]
    reasons += [
        (row.method, spread.note) for row in rows for spread in _spreads(row) if "have no number" in spread.note
    ]
    parts += [
        f"{method}: {reason}." for method, reason in dict.fromkeys(reasons) if reason and "one seed" not in reason
    ]
    if comparison.radio:
        parts.append("Time and energy: simulated, of sending and computing, probes included;")
        parts.append(f"{_allocations(comparison)}.")
    if comparison.target_accuracy is not None:
        parts.append(
            f"To {100 * comparison.target_accuracy:g} %: on {primary}; mean over the seeds that reached it "
            "(how many, if not all); - if none did."
        )
    return " ".join(parts)


def _allocations(comparison: Comparison) -> str:
    """Return in words how each method shares the band; without a rule it is the policy's way, or the exact one."""
    said: dict[str, list[str]] = {}
    for run in comparison.runs:
        rule = run.config.get("method", {}).get("allocation")
        name = str(rule.get("name")) if isinstance(rule, Mapping) else ""
        if run.method not in said.setdefault(name, []):
            said[name].append(run.method)
    others = "; ".join(f"{name} for {', '.join(methods)}" for name, methods in said.items() if name)
    if not said.get(""):
        return f"bandwidth and CPU frequencies: {others}"
    first = "bandwidth and CPU frequencies as the policy allocates them, or else at the least cost"
    return f"{first}; but {others}" if others else first


def _spreads(row: MethodSummary) -> list[Spread]:
    return [row.participants, row.unseen, row.test, row.gap]


def percent(spread: Spread) -> str:
    """Return a fraction's spread in per cent, such as ``"71.3 ± 0.8"``.

    Example:
        >>> percent(Spread(5, 0.7134, 0.0081, 0.70, 0.73))
        '71.3 ± 0.8'
    """
    if spread.mean is None:
        return ABSENT
    return f"{100 * spread.mean:.1f}" + (f" ± {100 * spread.sd:.1f}" if spread.sd is not None else "")


def points(value: float, *, sign: bool = False) -> str:
    """Return a difference of fractions in percentage points, with a true minus sign.

    Example:
        >>> points(-0.021), points(0.021, sign=True), points(-0.0001, sign=True)
        ('−2.1', '+2.1', '0.0')
    """
    text = f"{100 * value:{'+' if sign else ''}.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def _gap(row: MethodSummary, over_seeds: bool) -> str:
    if row.gap.mean is None:
        return ABSENT
    limits = (row.gap.low, row.gap.high) if over_seeds else (row.gap_over_clients or (None, None))
    return points(row.gap.mean) + interval(*limits)


def _difference(row: MethodSummary, *, alone: bool) -> str:
    difference = row.difference
    if row.is_baseline and not alone:
        return "baseline"
    if difference.mean is None:
        return ABSENT
    return points(difference.mean, sign=True) + interval(difference.low, difference.high, sign=True)


def interval(low: float | None, high: float | None, *, sign: bool = False) -> str:
    """Return `` [low, high]`` in percentage points; nothing if there is no interval."""
    if low is None or high is None:
        return ""
    return f" [{points(low, sign=sign)}, {points(high, sign=sign)}]"


def p_text(value: float | None) -> str:
    """Return a p-value for a table cell."""
    if value is None:
        return ABSENT
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _number(value: float | None) -> str:
    return ABSENT if value is None else number(value)


def _mean(_: MethodSummary, cost: Spread, unit: float = 1.0) -> str:
    return _number(None if cost.mean is None else cost.mean / unit)


def _reached(row: MethodSummary, cost: Spread, unit: float = 1.0) -> str:
    counted = "" if row.reached == row.seeds or cost.mean is None else f" ({row.reached} of {row.seeds})"
    return _mean(row, cost, unit) + counted
