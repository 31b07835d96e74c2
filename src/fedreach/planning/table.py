"""The columns of a table of clients: names with units, what is plausible in them, and text cells as numbers."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from fedreach.arrays import Floats, Ints
from fedreach.errors import DataError, nearest

INF = math.inf


@dataclass(frozen=True)
class TableColumn:
    """What may stand in a column; numbers outside `low` to `high` are taken for a mistake in the unit."""

    low: float
    high: float
    hint: str = ""
    zero: bool = False  # allowed, whatever `low` is
    whole: bool = False
    signed: bool = False  # negative numbers are as good as others
    infinite: bool = False  # inf is allowed


COLUMNS = {
    "num_examples": TableColumn(0, 2**40, zero=True, whole=True),
    "upload_seconds": TableColumn(1e-9, 1e5, "It is the time to send the report over the whole band, in seconds."),
    "bits_per_second": TableColumn(1e3, 1e13, "It is the rate over the whole band: write 2e7 for 20 Mbit/s."),
    "distance_meters": TableColumn(1, 1e5, "Write 250 for 0.25 km."),
    "fading_gain": TableColumn(1e-9, 1e3, "It is the power gain |h|^2, about 1, and not in decibels."),
    "power_watts": TableColumn(1e-6, 10, "Power in dBm belongs into the column power_dbm: 23 dBm are 0.2 W."),
    "power_dbm": TableColumn(-30, 60, "Power in watts belongs into the column power_watts.", signed=True),
    "cycles": TableColumn(1e3, 1e18, "It is the work of all passes over the client's examples: write 2e8.", zero=True),
    "cycles_per_bit": TableColumn(1e-3, 1e6, zero=True),
    "max_hertz": TableColumn(1e5, 1e11, "A frequency in gigahertz belongs into the column max_gigahertz."),
    "max_gigahertz": TableColumn(1e-4, 100, "A frequency in hertz belongs into the column max_hertz."),
    "divergence": TableColumn(0, INF, zero=True, infinite=True),
}
FORMS = {  # each of these in exactly one form
    "the upload": ("upload_seconds", "bits_per_second", "distance_meters"),
    "the power": ("power_watts", "power_dbm"),
    "the work": ("cycles", "cycles_per_bit"),
    "the highest CPU frequency": ("max_hertz", "max_gigahertz"),
}
LABEL = re.compile(r"label_(0|[1-9]\d{0,5})")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_GROUPED = re.compile(r"[+-]?\d{1,3}(\.\d{3})+")
_LABELS = TableColumn(0, 2**40, zero=True, whole=True)


@dataclass(frozen=True, eq=False)
class ClientTable:
    """A table of K clients as numbers."""

    table: CsvTable
    names: tuple[str, ...]  # (K,)
    numbers: dict[str, Floats]  # (K,) each, by column
    labels: Ints | None  # (K, c)

    @property
    def num_examples(self) -> Ints:
        """(K,)."""
        return self.numbers["num_examples"].astype(np.int64)

    def refuse(self, k: int, what: str) -> NoReturn:
        """Raise the error that names file, line and client."""
        raise DataError(f"{self.table.path}:{self.table.lines[k]}: client {self.names[k]!r}: {what}")


def clients_of(table: CsvTable) -> ClientTable:
    """Return the table as numbers.

    Raises:
        DataError: If a column is unknown, missing, given twice in different units, or a cell is no number or not
            plausible; it names file, line, client and column.
    """
    _check_columns(table)
    clients = ClientTable(table, _names(table), {}, None)
    for name in (name for name in COLUMNS if name in table.cells):
        clients.numbers[name] = _numbers(clients, name, COLUMNS[name])
    count = sum(LABEL.fullmatch(name) is not None for name in table.cells)
    if not count:
        return clients
    per_class = [_numbers(clients, f"label_{c}", _LABELS) for c in range(count)]
    labels: Ints = np.stack(per_class, axis=1).astype(np.int64)
    for k in np.flatnonzero(labels.sum(axis=1) != clients.num_examples)[:1]:
        total, examples = labels[k].sum(), clients.num_examples[k]
        clients.refuse(int(k), f"its labels sum to {total}, but num_examples is {examples}.")
    return ClientTable(table, clients.names, clients.numbers, labels)


def _check_columns(table: CsvTable) -> None:
    path, have = table.path, set(table.cells)
    known = ["client", *COLUMNS]
    for name in table.cells:
        if name not in known and not LABEL.fullmatch(name):
            meant = name.lower().replace("ghz", "gigahertz").replace("_hz", "_hertz")
            raise DataError(f"{path}: unknown column {name!r}.{nearest(meant, [*known, 'label_0'])}")
    labels = sorted(int(name[len("label_") :]) for name in have if LABEL.fullmatch(name))
    for c, found in enumerate(labels):
        if c != found:
            raise DataError(f"{path} has a column label_{found} but none label_{c}; number the classes without gaps.")
    if "num_examples" not in have:
        raise DataError(f"{path} has no column num_examples.")
    for what, forms in FORMS.items():
        given = [name for name in forms if name in have]
        if not given:
            raise DataError(f"{path} does not give {what}: it needs one of the columns {', '.join(forms)}.")
        if len(given) > 1:
            raise DataError(f"{path} gives {what} twice, as {' and '.join(given)}; keep one of them.")
    if "fading_gain" in have and "distance_meters" not in have:
        other = next(name for name in FORMS["the upload"] if name in have)
        raise DataError(f"{path}: fading_gain belongs to distance_meters; {other} already says what fading leaves.")
    if labels and "divergence" in have:
        raise DataError(f"{path} has both divergence and label_0; keep the divergence or the labels.")


def _names(table: CsvTable) -> tuple[str, ...]:
    names = table.cells.get("client") or tuple(map(str, range(len(table))))
    seen: dict[str, int] = {}
    for name, line in zip(names, table.lines, strict=True):
        if not name:
            raise DataError(f"{table.path}:{line}: the client has no name.")
        if name in seen:
            raise DataError(f"{table.path}:{line}: client {name!r} stands in line {seen[name]} already.")
        seen[name] = line
    return names


def _numbers(clients: ClientTable, name: str, column: TableColumn) -> Floats:
    values = np.empty(len(clients.names))
    for k, text in enumerate(clients.table.cells[name]):
        said = text if len(text) <= 40 else text[:39] + "…"
        if not _NUMBER.fullmatch(text) and text.lower() not in ("inf", "infinity"):
            clients.refuse(k, f"{name} {_no_number(said)}")
        if column.whole and _GROUPED.fullmatch(text):  # 1.000: one, or a thousand where people group by points
            clients.refuse(k, f"{name} must be a whole number; got {said}. Write it without a point.")
        values[k] = float(text)
        if wrong := _rule(values[k], column):
            clients.refuse(k, f"{name} must be {wrong}; got {said}." + (f" {column.hint}" if column.hint else ""))
    return values


def _rule(value: float, column: TableColumn) -> str:
    """Return the rule that a number breaks; nothing if it is as it should be."""
    if math.isinf(value) and not column.infinite:
        return "finite"
    if not column.signed and (value < 0 or (value == 0 and not column.zero)):
        return "not negative" if column.zero else "positive"
    if column.whole and value != math.floor(value):
        return "a whole number"
    if value > column.high:
        return f"at most {column.high:g}"
    if value < column.low and not (value == 0 and column.zero):
        return f"at least {column.low:g}"
    return ""


def _no_number(text: str) -> str:
    if not text:
        return "is empty."
    rule = f"must be a number; got {text!r}."
    if re.fullmatch(r"[+-]?[\d ,'’_\u00a0\u202f.]+([eE][+-]?\d+)?", text):
        return f"{rule} Write it without thousands separators, and with a decimal point."
    if re.match(r"[+-]?\d", text):
        return f"{rule} The unit stands in the name of the column."
    return rule


DELIMITERS = ",;\t"


@dataclass(frozen=True)
class CsvTable:
    """Text cells, and the lines of the file where they stand."""

    path: Path
    cells: dict[str, tuple[str, ...]]  # by column
    lines: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.lines)


def read_table(path: Path, known: Iterable[str]) -> CsvTable:
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
    return CsvTable(path, cells, tuple(line for line, _ in body))


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
