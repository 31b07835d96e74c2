"""Tables as text, as Markdown and on the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedreach._util.tables import markdown_lines
from fedreach._util.text_tables import text_table
from fedreach.report.adaptation import tabulate_adaptation
from fedreach.report.analysis import When, has_named_metrics
from fedreach.report.overview import Analysis
from fedreach.report.tables import Table, tabulate, tabulate_contrasts, tabulate_metrics, tabulate_tuning
from fedreach.report.theory import tabulate_theory

LONG_NAME = 24  # letters; longer names of methods are wrapped before a column is left out


def tables_of(analysis: Analysis) -> list[Table]:
    """Return all tables of a comparison, in the order of the report; those without numbers are left out."""
    tables = [
        tabulate(analysis, "last"),
        tabulate_contrasts(analysis),
        tabulate(analysis, "best"),
        tabulate_tuning(analysis.comparison),
        tabulate_metrics(analysis),
        *tabulate_adaptation(analysis),
        tabulate_theory(analysis),
    ]
    return [table for table in tables if table is not None]


def to_text(table: Table, width: int | None = None) -> str:
    """Return the table below its caption as plain text, without its note; see `terminal_text`."""
    return _text(table, width, table.caption)


def to_markdown(table: Table) -> str:
    """Return the table as GitHub-flavored Markdown."""
    heads = [
        _escape_markdown(h) + (f"<br>{_escape_markdown(u)}" if u else "")
        for h, u in zip(table.header, table.units, strict=True)
    ]
    lines = markdown_lines(heads, [[_escape_markdown(cell) for cell in row] for row in table.rows], right=True)
    return "\n".join([f"**{table.caption}**", "", *lines, "", _escape_markdown(table.note), ""])


def terminal_table(analysis: Analysis, when: When = "last", *, width: int | None = None) -> str:
    """Return the table for the terminal, with its note.

    `when` is as in `tabulate`; columns that do not fit into `width` are left out, None keeps all.
    """
    return terminal_text(tabulate(analysis, when), analysis.comparison.name, width)


def terminal_tables(analysis: Analysis, *, width: int | None = None) -> list[str]:
    """Return the tables for the terminal, as `terminal_table` does: all but those that only the page has room for."""
    named_metrics = has_named_metrics(analysis.comparison)
    tables = [
        table for table in tables_of(analysis) if table.name != "best" and (table.name != "metrics" or named_metrics)
    ]
    return [terminal_text(table, analysis.comparison.name, width) for table in tables]


def terminal_text(table: Table, name: str, width: int | None) -> str:
    """Return a table for the terminal with its note, and a name in its title.

    Columns that do not fit into `width`, in letters, are left out; None keeps all.
    """
    return _text(table, width, f"{name}: {table.caption[0].lower()}{table.caption[1:]}", table.note)


def _text(table: Table, width: int | None, title: str, note: str = "") -> str:
    fitting_columns = _fitting(table, width)
    return text_table(
        [f"{two_lines(table.header[j])}\n{table.units[j]}" for j in fitting_columns],
        [[row[j] for j in fitting_columns] for row in table.rows],
        width,
        title=title,
        note=note,
    )


def _fitting(table: Table, width: int | None) -> list[int]:
    """Return the columns that fit into the width; the most dispensable ones are left out first."""
    columns = list(range(len(table.header)))
    if width is None:
        return columns
    columns = [j for j in columns if width >= table.from_width[j]]
    while width_of(table, columns) > width:
        last = max(columns, key=lambda j: (table.from_width[j], j))
        if table.from_width[last] == 0:
            break
        columns.remove(last)
    return columns


def group_columns(table: Table, width: int) -> list[list[int]]:
    """Return the columns that a page shows, then the others in groups that each fit into the width.

    Equally dispensable columns stay together. Every group begins with the columns that identify a row, the first one
    or two.

    Args:
        table: Table whose columns are grouped.
        width: Width of a group in letters.

    Example:
        >>> rows = (("ours", "7.2", "9", "60"),)
        >>> group_columns(Table("", ("method", "gap", "sent", "rounds"), ("",) * 4, rows, (0, 0, 9, 9), ""), 24)
        [[0, 1], [0, 2, 3]]
    """
    every = range(len(table.header))
    keys = [0] if len({row[0] for row in table.rows}) == len(table.rows) else [0, 1]
    visible = list(every)
    for level in sorted({*table.from_width} - {0}, reverse=True):
        if width_of(table, visible) <= width:
            break
        visible = [j for j in visible if table.from_width[j] < level]
    groups = [visible]
    for j in (j for j in every if j not in visible):
        if len(groups) > 1 and width_of(table, [*groups[-1], j]) <= width:
            groups[-1].append(j)
        else:
            groups.append([*keys, j])
    return groups


def width_of(table: Table, columns: Sequence[int]) -> int:
    """Return the letters of a row of these columns, separators included."""
    return sum(_letters(table, j) for j in columns) + 3 * len(columns) - 1


def _letters(table: Table, j: int) -> int:
    if j == 0:
        return min(max(len(row[0]) for row in table.rows), LONG_NAME)
    lines = [*two_lines(table.header[j]).split("\n"), table.units[j], *(row[j] for row in table.rows)]
    return max(len(line) for line in lines)


def two_lines(header: str) -> str:
    """Return a header on two lines if it has several words."""
    return header.replace(", ", ",\n") if "," in header else header.replace(" ", "\n", 1)


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\|*_`<\[\]])", r"\\\1", text).replace("\n", " ")
