"""Reading a CSV file as spreadsheets write it: a byte order mark, blank lines, semicolons, spaces round names."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedreach.errors import DataError

DELIMITERS = ",;\t"


@dataclass(frozen=True)
class Table:
    """Text cells, and the lines of the file where they stand."""

    path: Path
    cells: dict[str, tuple[str, ...]]  # by column
    lines: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.lines)


def read_table(path: Path, known: Iterable[str]) -> Table:
    """Return the table in a CSV file.

    Args:
        path: The file: UTF-8 (or UTF-16 with its mark), a header, then a client a line.
        known: Names of columns, by which the delimiter is found: comma, semicolon or tab.

    Raises:
        DataError: If it is no such file, naming the line.
    """
    rows = _rows(path, _text(path), set(known))
    if not rows:
        raise DataError(f"{path} is empty. The first line names the columns, and each other line is a client.")
    (first, header), *body = rows
    while header and not header[-1]:  # spreadsheets end lines with delimiters
        header = header[:-1]
    for column, name in enumerate(header, start=1):
        if not name:
            raise DataError(f"{path}:{first}: column {column} has no name.")
        if header.count(name) > 1:
            raise DataError(f"{path}:{first}: there are {header.count(name)} columns {name!r}; keep one.")
    if not body:
        raise DataError(f"{path} has no clients below its header.")
    for line, row in body:
        if len(row) < len(header) or any(row[len(header) :]):
            hint = " Is a decimal comma or a thousands separator in it?" if len(row) > len(header) else ""
            raise DataError(f"{path}:{line}: the line has {len(row)} cells, but there are {len(header)} columns.{hint}")
    cells = {name: tuple(row[j] for _, row in body) for j, name in enumerate(header)}
    return Table(path, cells, tuple(line for line, _ in body))


def _text(path: Path) -> str:
    if path.is_dir():
        raise DataError(f"{path} is a folder; give a CSV file.")
    content = path.read_bytes()
    if content.startswith(b"PK"):
        raise DataError(f"{path} is a workbook or an archive, not text; save it as CSV (UTF-8).")
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(f"{path}:{line}: this is not UTF-8; save it as CSV (UTF-8).") from error


def _rows(path: Path, text: str, known: set[str]) -> list[tuple[int, list[str]]]:
    """Return (line, stripped cells) of the lines that are not blank."""
    header = next(filter(str.strip, text.splitlines()), "")

    def found(delimiter: str) -> int:
        return len(known.intersection(name.strip(' "') for name in header.split(delimiter)))

    delimiter = max(DELIMITERS, key=found)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
    rows = []
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells):
                rows.append((reader.line_num, cells))
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: {error}.") from error
    return rows
