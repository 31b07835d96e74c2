"""Tables of pages that are copied from records: ``python docs/build/excerpts.py`` checks them, ``--write`` renews them.

A page marks such a table by two comments. It is a copy of some columns and rows of a table of another page:

    <!-- excerpt: records/digits.md, table 2, columns: method | adjusted p as p, rows: uniform | full as all clients -->
    <!-- /excerpt -->

The path starts at ``docs/``. Without ``columns`` or ``rows`` the excerpt has all of them. A row is named by its first
cell, or by its first cells with " / " between them, and ``table 3: uniform`` is a row of another table of that record.
``as`` gives a column, or the first cell of a row, another name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[1]
EXCERPT = re.compile(r"(<!-- excerpt: (.*?) -->\n)(.*?)(<!-- /excerpt -->)", re.DOTALL)
SOURCE = re.compile(r"(\S+), table (\d+)(?:, columns: (.*?))?(?:, rows: (.*?))?")
TABLE = re.compile(r"^\|.*\|\n\|[ :|-]+\|\n(?:\|.*\|\n?)*", re.MULTILINE)
FENCES = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


class Table(NamedTuple):
    """A Markdown table as cells."""

    header: list[str]
    rule: list[str]
    rows: list[list[str]]


def read_tables(text: str) -> list[Table]:
    """Return the tables of a page.

    Example:
        >>> read_tables("| a | b |\\n| --- | ---: |\\n| x | 1 |\\n")[0].rows
        [['x', '1']]
    """
    found = []
    for match in TABLE.finditer(FENCES.sub("", text)):
        header, rule, *rows = (
            [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])] for line in match[0].splitlines()
        )
        found.append(Table(header, rule, rows))
    return found


def split_name(name: str, known: set[str]) -> tuple[str, str]:
    """Return the name in the record and the one on the page; only a name that is not in the record is split at "as".

    Example:
        >>> split_name("adjusted p as p", {"adjusted p"}), split_name("as drawn", {"as drawn"})
        (('adjusted p', 'p'), ('as drawn', 'as drawn'))
    """
    if name in known:
        return name, name
    old, separator, new = name.rpartition(" as ")
    return (old, new) if separator else (name, name)


def row_of(name: str, tables: list[Table], number: int, source: str) -> tuple[int, list[str], str]:
    """Return the number of the table that has the row of this name, the row, and its name on the page."""
    if other := re.match(r"table (\d+): ", name):
        number, name = int(other[1]), name[other.end() :]
    rows = table_of(tables, number, source).rows
    ways = [(" / ".join(row[:cells]), row) for cells in range(len(rows[0]), 0, -1) for row in rows]
    old, new = split_name(name, {way for way, _ in ways})
    found = [row for way, row in ways if way == old]
    if len(found) != 1:
        raise ValueError(f"{source}, table {number}: {len(found)} rows are named {old!r}; a row must be named once.")
    return number, found[0], "" if new == old else new


def table_of(tables: list[Table], number: int, source: str) -> Table:
    """Return a table by its number, from 1 on."""
    if not 1 <= number <= len(tables):
        raise ValueError(f"{source} has {len(tables)} tables; got table {number}.")
    return tables[number - 1]


def places_of(names: list[str], table: Table, source: str, number: int) -> list[int]:
    """Return the places of columns."""
    if missing := [name for name in names if table.header.count(name) != 1]:
        raise ValueError(
            f"{source}, table {number}: must have one column {missing[0]!r}; the columns are {table.header}."
        )
    return [table.header.index(name) for name in names]


def excerpt(description: str, docs: Path = DOCS) -> str:
    """Return the table that an excerpt describes.

    Raises:
        ValueError: If the record has no such table, column or row, or several.
    """
    match = SOURCE.fullmatch(" ".join(description.split()))
    if match is None:
        raise ValueError(f"excerpt: must be 'PATH, table N, columns: A | B, rows: x | y'; got {description!r}.")
    source, number, columns, rows = match[1], int(match[2]), match[3], match[4]
    tables = read_tables((docs / source).read_text(encoding="utf-8"))
    table = table_of(tables, number, source)
    names = [split_name(name, set(table.header)) for name in (columns.split(" | ") if columns else table.header)]
    old_names = [old for old, _ in names]
    chosen = [row_of(name, tables, number, source) for name in rows.split(" | ")] if rows else []
    lines = [[new for _, new in names], [table.rule[at] for at in places_of(old_names, table, source, number)]]
    for in_table, row, label in chosen or [(number, row, "") for row in table.rows]:
        first, *others = (row[at] for at in places_of(old_names, tables[in_table - 1], source, in_table))
        lines.append([label or first, *others])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def renewed(text: str, docs: Path = DOCS) -> str:
    """Return the text of a page with its excerpts as the records are now."""
    return EXCERPT.sub(lambda match: f"{match[1]}{excerpt(match[2], docs)}\n{match[4]}", text)


def outdated(docs: Path = DOCS) -> Iterator[tuple[Path, str]]:
    """Yield each page whose excerpts differ from their records, and its text as it should be."""
    for page in sorted(docs.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (new := renewed(text, docs)) != text:
            yield page, new


def main(words: list[str]) -> int:
    """Check the excerpts of all pages, or write them; return the exit status."""
    if unknown := [word for word in words if word != "--write"]:
        sys.exit(f"python docs/build/excerpts.py [--write]; got {unknown[0]}.")
    pages = list(outdated())
    for page, text in pages:
        if "--write" in words:
            page.write_text(text, encoding="utf-8")
        print(
            f"{page.name}: {'renewed' if '--write' in words else 'differs from its records; add --write to renew it'}"
        )
    return 0 if "--write" in words else int(bool(pages))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
