"""Tables as text for the terminal and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from fedreach._util.tables import count_noun, markdown_lines, visible
from fedreach._util.text_tables import folded, text_table
from fedreach.report.adaptation import tabulate_adaptation
from fedreach.report.findings import find
from fedreach.report.overview import Analysis
from fedreach.report.tables import Table, tabulate, tabulate_contrasts, tabulate_metrics, tabulate_tuning
from fedreach.report.theory import tabulate_theory

LONG_NAME = 24  # letters; longer names of methods are wrapped


def tables_of(analysis: Analysis) -> list[Table]:
    """Return all tables of a comparison that contain numbers, in the order of the report."""
    tables = [
        tabulate(analysis, "last"),
        tabulate_contrasts(analysis),
        *tabulate_adaptation(analysis),
        tabulate(analysis, "best"),
        tabulate_tuning(analysis.comparison),
        tabulate_metrics(analysis),
        tabulate_theory(analysis),
    ]
    return [table for table in tables if table is not None]


def summary_text(analysis: Analysis, width: int, hidden: Collection[str] = ()) -> str:
    """Return the result for the terminal: the main table, its note, and the first findings.

    Args:
        analysis: Analysis of the comparison.
        width: Width of the terminal in characters.
        hidden: Warnings to omit.
    """
    table = tabulate(analysis, "last")
    methods = table.rows[: len(analysis.last)]  # baselines are in the report
    return "\n\n".join([_text(table, table.main, width, methods), findings_text(analysis, width, hidden=hidden)])


def findings_text(analysis: Analysis, width: int, limit: int | None = 2, hidden: Collection[str] = ()) -> str:
    """Return the warnings and the first `limit` findings of the report for the terminal; None: all findings."""
    findings = find(analysis)
    texts = [f"Warning: {text}" for text in findings.warnings if text not in hidden]
    texts += [f"{place}. {text}" for place, text in enumerate(findings.bullets[:limit], 1)]
    return "\n".join(line for text in texts for line in folded(text, width))


def full_text(table: Table, width: int) -> str:
    """Return a table for the terminal with its notes and all columns, in groups that fit into the width."""
    groups = [_text(table, columns, width, table.rows) for columns in group_columns(table, width)]
    return "\n\n".join([*groups, *filter(None, ["\n".join(folded(table.details, width))])])


def to_text(table: Table, width: int, max_rows: int | None = None) -> str:
    """Return the title, the main columns and the note of a table for the terminal."""
    hidden = 0 if max_rows is None else len(table.rows) - max_rows
    more = f"\n{count_noun(hidden, 'more row')}: --verbose" if hidden > 0 else ""
    return _text(table, table.main, width, table.rows[:max_rows]) + more


def to_markdown(table: Table) -> str:
    """Return the table as GitHub-flavored Markdown."""
    heads = [
        _escape_markdown(h) + (f"<br>{_escape_markdown(u)}" if u else "")
        for h, u in zip(table.header, table.units, strict=True)
    ]
    lines = markdown_lines(heads, [[_escape_markdown(cell) for cell in row] for row in table.rows], right=True)
    note = _escape_markdown(f"{table.note} {table.details}".strip())
    return "\n".join([f"**{_escape_markdown(table.caption)}**", "", *lines, "", note, ""])


def _text(table: Table, columns: Sequence[int], width: int, rows: Sequence[Sequence[str]]) -> str:
    heads = ["\n".join(head_lines(table, j)) for j in columns]
    text = text_table(heads, [[row[j] for j in columns] for row in rows], width, left=len(_keys(table)))
    if tuple(columns) == table.main:
        text = "\n".join([*folded(table.caption, width), text, *(folded(table.note, width) if table.note else [])])
    return text


def group_columns(table: Table, width: int) -> list[list[int]]:
    """Return the columns of the main view, then the other columns in groups that each fit into the width.

    Every group begins with the first one or two columns, which identify a row.

    Args:
        table: Table whose columns are grouped.
        width: Width of a group in characters.

    Example:
        >>> rows = (("ours", "7.2", "9", "60"),)
        >>> group_columns(Table("", ("method", "gap", "MB", "rounds"), ("",) * 4, rows, (0, 1), ""), 24)
        [[0, 1], [0, 2, 3]]
    """
    keys, groups = _keys(table), [[*table.main]]
    for j in (j for j in range(len(table.header)) if j not in table.main):
        if len(groups) > 1 and width_of(table, [*groups[-1], j]) <= width:
            groups[-1].append(j)
        else:
            groups.append([*keys, j])
    return groups


def _keys(table: Table) -> list[int]:
    """Return the columns that identify a row."""
    return [0] if len({row[0] for row in table.rows}) == len(table.rows) else [0, 1]


def width_of(table: Table, columns: Sequence[int]) -> int:
    """Return the number of characters in a row of these columns, including separators."""
    return sum(_letters(table, j) for j in columns) + 3 * len(columns) - 1


def _letters(table: Table, j: int) -> int:
    if j == 0:
        return min(max(len(row[0]) for row in table.rows), LONG_NAME)
    return max(len(line) for line in [*head_lines(table, j), *(row[j] for row in table.rows)])


def head_lines(table: Table, j: int) -> list[str]:
    """Return the heading of a column on one or two lines: with its unit, or split between words."""
    head, unit = table.header[j], table.units[j]
    return [head, unit] if unit else head.replace(", ", ",\n").split("\n") if "," in head else head.split(" ", 1)


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\|*_`<>&~$\[\]])", r"\\\1", visible(text.replace("\n", " ")))
