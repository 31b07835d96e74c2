"""The comparison table: built once as text cells and plain numbers, written as terminal, Markdown, CSV or LaTeX.

`tabulate` decides what stands where; the writers only know cells.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedreach.report.statistics import Spread
from fedreach.report.summary import POPULATION, MethodSummary, When, summarize
from fedreach.report.values import Comparison

if TYPE_CHECKING:
    from rich.table import Table as RichTable

ABSENT = "-"
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
    essential: tuple[bool, ...]  # columns that stay on a narrow terminal
    note: str


@dataclass(frozen=True)
class _Column:
    header: str
    unit: str
    text: Callable[[MethodSummary], str]
    essential: bool = False


def tabulate(comparison: Comparison, when: When = "last") -> Table:
    """Return the table of all methods, one row each, without columns that would be empty.

    Args:
        comparison: What `read` returns.
        when: At the ``"last"`` evaluated round, or at the ``"best"`` one on participants' held-out loss.
    """
    rows = summarize(comparison, when)
    columns = _columns(comparison, rows)
    cells = tuple(tuple(column.text(row) for column in columns) for row in rows)
    kept = [j for j in range(len(columns)) if j < 2 or any(row[j] != ABSENT for row in cells)]
    return Table(
        caption=CAPTION[when],
        header=tuple(columns[j].header for j in kept),
        units=tuple(columns[j].unit for j in kept),
        rows=tuple(tuple(row[j] for j in kept) for row in cells),
        essential=tuple(columns[j].essential for j in kept),
        note=_note(comparison, rows),
    )


def _columns(comparison: Comparison, rows: Sequence[MethodSummary]) -> list[_Column]:
    where = "seeds" if _gap_over_seeds(rows) else "clients"
    share = "% ± sd" if any(row.participants.sd is not None for row in rows) else "%"
    columns = [
        _Column("method", "", lambda row: row.method, True),
        _Column("seeds", "finished", lambda row: f"{row.seeds}/{row.seeds_planned}"),
        _Column("participants", share, lambda row: percent(row.participants), True),
        _Column("unseen clients", share, lambda row: percent(row.unseen), True),
        _Column("test set", share, lambda row: percent(row.test), comparison.primary == "test_accuracy"),
        _Column("gap", f"points [{where}]", lambda row: _gap(row, where == "seeds"), True),
        _Column("worst decile, unseen", share, lambda row: percent(row.unseen_worst_decile)),
        _Column("worst decile, participants", share, lambda row: percent(row.participants_worst_decile)),
        _Column("difference", "points [seeds]", lambda row: _difference(row, alone=len(rows) == 1), True),
        _Column("p", "corrected", lambda row: _p(row.corrected_p), True),
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
    reasons += [(row.method, spread.note) for row in rows for spread in _spreads(row) if "have no number" in spread.note]
    parts += [f"{method}: {reason}." for method, reason in dict.fromkeys(reasons) if reason and "one seed" not in reason]
    if comparison.target_accuracy is not None:
        parts.append(
            f"To {100 * comparison.target_accuracy:g} %: on {primary}; mean over the seeds that reached it "
            "(how many, if not all); - if none did."
        )
    return " ".join(parts)


def _spreads(row: MethodSummary) -> list[Spread]:
    return [row.participants, row.unseen, row.test, row.gap]


def as_records(comparison: Comparison) -> list[dict[str, Any]]:
    """Return one flat dictionary of plain numbers per method.

    Accuracies, gaps and differences are fractions; ``best_`` marks the best round on participants' held-out
    loss; None is what was not measured, not reached or cannot be said.
    """
    records = []
    for last, best in zip(summarize(comparison, "last"), summarize(comparison, "best"), strict=True):
        record: dict[str, Any] = {
            "method": last.method,
            "baseline": last.is_baseline,
            "seeds": last.seeds,
            "seeds_planned": last.seeds_planned,
            "primary": comparison.primary,
            **_numbers(last),
            "target_accuracy": comparison.target_accuracy,
            "seeds_reached_target": last.reached if comparison.target_accuracy is not None else None,
            "rounds_to_target": last.rounds_to_target.mean,
            "megabytes_to_target": last.megabytes_to_target.mean,
            **{f"best_{key}": value for key, value in _numbers(best).items()},
        }
        records.append(record)
    return records


def _numbers(row: MethodSummary) -> dict[str, float | None]:
    numbers: dict[str, float | None] = {"round": row.round.mean}
    for name, spread in (
        ("participants", row.participants),
        ("unseen", row.unseen),
        ("test", row.test),
        ("gap", row.gap),
        ("participants_worst_decile", row.participants_worst_decile),
        ("unseen_worst_decile", row.unseen_worst_decile),
        ("megabytes", row.megabytes),
    ):
        numbers |= {f"{name}_mean": spread.mean, f"{name}_sd_over_seeds": spread.sd}
    numbers |= {"gap_low_over_seeds": row.gap.low, "gap_high_over_seeds": row.gap.high}
    low, high = row.gap_over_clients or (None, None)
    numbers |= {"gap_low_over_clients": low, "gap_high_over_clients": high}
    difference = row.difference
    numbers |= {"difference_mean": difference.mean, "difference_low": difference.low, "difference_high": difference.high}
    return numbers | {"difference_seeds": difference.count, "p": difference.p, "p_corrected": row.corrected_p}


def to_csv(comparison: Comparison) -> str:
    """Return `as_records` as CSV: plain numbers, one row a method, empty where there is none."""
    records = as_records(comparison)
    out = io.StringIO()
    writer = csv.DictWriter(out, records[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in record.items()} for record in records)
    return out.getvalue()


def to_markdown(table: Table) -> str:
    """Return the table as GitHub-flavoured Markdown."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    heads = [_markdown(h) + (f"<br>{_markdown(u)}" if u else "") for h, u in zip(table.header, table.units, strict=True)]
    rule = ["---"] + ["---:"] * (len(heads) - 1)
    body = [line([_markdown(cell) for cell in row]) for row in table.rows]
    return "\n".join([f"**{table.caption}**", "", line(heads), line(rule), *body, "", _markdown(table.note), ""])


def to_latex(table: Table) -> str:
    r"""Return the table as LaTeX; needs ``\usepackage{booktabs}``."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join(_latex(cell) for cell in cells) + r" \\"

    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{_latex(table.caption)}. {_latex(table.note)}}}",
            f"\\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
            "\\toprule",
            line(table.header),
            line(table.units),
            "\\midrule",
            *[line(row) for row in table.rows],
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}",
            "",
        ]
    )


def terminal_table(comparison: Comparison, when: When = "last", *, width: int | None = None) -> RichTable:
    """Return the table for `rich.print`.

    Args:
        comparison: What `read` returns.
        when: As in `tabulate`.
        width: Columns of the terminal; below 150 only the essential columns are kept. None keeps all.
    """
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    table = tabulate(comparison, when)
    kept = [j for j, essential in enumerate(table.essential) if essential or width is None or width >= 150]
    rich = RichTable(
        title=Text(f"{comparison.name}: {table.caption[0].lower()}{table.caption[1:]}"),
        caption=Text(table.note),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        pad_edge=False,
    )
    for j in kept:
        header = Text(table.header[j].replace(" ", "\n", 1), style="bold").append(f"\n{table.units[j]}", style="not bold dim")
        rich.add_column(header, justify="right" if j else "left", overflow="fold", no_wrap=bool(j))
    for row in table.rows:
        rich.add_row(*[Text(row[j]) for j in kept])
    return rich


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
    return points(row.gap.mean) + _interval(*limits)


def _difference(row: MethodSummary, *, alone: bool) -> str:
    difference = row.difference
    if row.is_baseline and not alone:
        return "baseline"
    if difference.mean is None:
        return ABSENT
    return points(difference.mean, sign=True) + _interval(difference.low, difference.high, sign=True)


def _interval(low: float | None, high: float | None, *, sign: bool = False) -> str:
    if low is None or high is None:
        return ""
    return f" [{points(low, sign=sign)}, {points(high, sign=sign)}]"


def _p(value: float | None) -> str:
    if value is None:
        return ABSENT
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _number(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _reached(row: MethodSummary, cost: Spread) -> str:
    if not row.reached:
        return ABSENT
    return _number(cost.mean) + ("" if row.reached == row.seeds else f" ({row.reached} of {row.seeds})")


def _markdown(text: str) -> str:
    return re.sub(r"([\\|*_`<\[\]])", r"\\\1", text).replace("\n", " ")


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "<": "$<$",
    ">": "$>$",
    "\n": " ",
} | {c: "\\" + c for c in "&%$#_{}"}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text)
