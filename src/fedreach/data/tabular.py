"""Tables, read by what they offer: names of columns, and by name a column.

So tables of pandas, polars and pyarrow do, and plain dictionaries of lists; none of these libraries is needed.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from numbers import Number
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedreach.arrays import AnyArray, Floats, Ints
from fedreach.data.checks import no_such_file
from fedreach.errors import ConfigError, DataError, nearest

TEXTS, ENDINGS = (".csv", ".tsv", ".txt"), (".csv", ".tsv", ".txt", ".parquet")  # of files
EMPTY = ("", "NA")  # cells of a file that hold nothing


class Words(NamedTuple):
    """A column of words."""

    levels: tuple[str, ...]  # the different ones, sorted
    codes: Ints  # (n,) which one; -1 where it is missing


Values = Floats | Words | None
"""A column as it was read: (n,) numbers, nan where one is missing; words; None: neither, such as dates."""


def column_names(table: Any) -> list[str]:
    """Return the names of a table's columns.

    Raises:
        ConfigError: If it is no table.
    """
    names = table.keys() if isinstance(table, Mapping) else getattr(table, "column_names", None)
    if names is None:  # pyarrow has both, and there the columns are the values
        names = getattr(table, "columns", None)
    if names is None or isinstance(names, str):
        raise ConfigError(
            f"table must have named columns, as tables of pandas and polars have; got {type(table).__name__}. "
            "A dictionary of a list for each column will do."
        )
    return list(names)


def column(table: Any, name: str) -> Any:
    """Return a column by its name.

    Raises:
        ConfigError: If there is none.
    """
    names = column_names(table)
    if not isinstance(name, Hashable) or name not in names:
        raise ConfigError(f"table: there is no column {name!r}.{nearest(str(name), map(str, names))}")
    return table[name]


def read(table: Any, without: Sequence[str] = ()) -> dict[str, Values]:
    """Return the columns of a table by name, all but some.

    Raises:
        ConfigError: If it is no table.
        DataError: If a number is infinite, or a column is no list.
    """
    return {str(name): values_of(str(name), table[name]) for name in column_names(table) if name not in without}


def check_lengths(table: Mapping[str, Values], first: str, rows: int) -> None:
    """Refuse a table whose columns are not all as long as its first one, which has so many rows."""
    for name, values in table.items():
        length = rows if values is None else len(values.codes if isinstance(values, Words) else values)
        if length != rows:
            raise DataError(f"table: all columns must be as long; {first!r} has {rows} rows and {name!r} has {length}.")


def values_of(name: str, column: Any) -> Values:
    """Return a column as numbers, words, or None for what is neither.

    Raises:
        DataError: If a number is infinite.
    """
    array: Any = column.to_numpy() if hasattr(column, "to_numpy") else column
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "uifb":
        if isinstance(array, np.ndarray) and array.dtype.kind in "Mm":
            return None
        plain = listed(array, f"table: column {name!r}")
        there = [value for value in plain if value is not None]
        if any(isinstance(value, str) for value in there):
            return _words(plain)
        if not all(isinstance(value, Number | np.bool_) for value in there):
            return None
        array = np.array([np.nan if value is None else value for value in plain])
        if array.dtype.kind == "c":
            return None
    if array.ndim != 1:
        return None
    numbers: Floats = array.astype(np.float64) + 0.0  # so that there is one zero
    infinite = np.flatnonzero(np.isinf(numbers))
    if len(infinite):
        raise DataError(
            f"table: column {name!r} holds {len(infinite)} infinite numbers, the first in row {infinite[0]}. "
            "Leave those rows out, or leave the cells empty."
        )
    return numbers


def listed(values: Any, what: str = "a column") -> list[Any]:
    """Return a column as a list, None where a value is missing: None, not a number, pandas' NA, or an empty text.

    Raises:
        DataError: If it is a single value.

    Example:
        >>> listed(np.array([1.5, np.nan])), listed(["a", " "])
        ([1.5, None], ['a', None])
    """
    values = values.to_numpy() if hasattr(values, "to_numpy") else values
    plain = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(plain, str | bytes | Mapping) or not isinstance(plain, Iterable):
        raise DataError(f"{what} must be a list or an array, a value a row; got {type(values).__name__}.")
    return [None if _missing(value) else value for value in plain]


def _missing(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    nothing = value is None or type(value).__name__ in ("NAType", "NaTType")
    return nothing or (isinstance(value, Number) and bool(value != value))


def _words(plain: Sequence[Any]) -> Words:
    texts = [None if value is None else str(value) for value in plain]
    levels = tuple(sorted({text for text in texts if text is not None}))
    code: dict[str | None, int] = {level: place for place, level in enumerate(levels)}
    code[None] = -1
    return Words(levels, np.array([code[text] for text in texts], np.int64))


def numbered(what: str, values: Any) -> tuple[Ints, tuple[str, ...]]:
    """Return (n,) numbers from 0 for values, and their names: whole numbers by size, all else by the alphabet.

    Raises:
        DataError: If a value is missing.

    Example:
        >>> numbered("client", [10, 9, 10]), numbered("label", ["yes", "no"])
        ((array([1, 0, 1]), ('9', '10')), (array([1, 0]), ('no', 'yes')))
    """
    plain = listed(values, what)
    gone = [row for row, value in enumerate(plain) if value is None]
    if gone:
        raise DataError(f"{what} is missing in {len(gone)} rows, the first is row {gone[0]}. Leave those rows out.")
    if all(map(_is_whole, plain)):
        distinct, index = np.unique(np.array([int(value) for value in plain]), return_inverse=True)
    else:
        distinct, index = np.unique(np.array([_text(value) for value in plain]), return_inverse=True)
    return index.astype(np.int64), tuple(map(str, distinct.tolist()))


def targets(table: Any, names: Sequence[str]) -> Floats:
    """Return the (n, t) numbers of some columns, which are to be predicted.

    Raises:
        ConfigError: If a column is not there, or none is named.
        DataError: If a column does not hold numbers, or a number is missing or infinite; its row is told.

    Example:
        >>> targets({"days": [3, 5], "cost": [1.5, 2.0]}, ["cost"]).tolist()
        [[1.5], [2.0]]
    """
    if not names or len(set(map(str, names))) < len(names):
        raise ConfigError(f"table: target must name one column or more, each once; got {list(names)}.")
    found = []
    for name in names:
        numbers = values_of(name, column(table, name))
        if numbers is None or isinstance(numbers, Words):
            raise DataError(f"table: column {name!r} must hold numbers to be a target. Say label where it is a class.")
        gone = np.flatnonzero(np.isnan(numbers))
        if len(gone):
            raise DataError(
                f"table: column {name!r} is missing in {len(gone)} rows, the first is row {gone[0]}. "
                "Leave those rows out."
            )
        found.append(numbers)
    if len({len(numbers) for numbers in found}) > 1:
        raise DataError(f"table: all columns must be as long; those of target are {[len(each) for each in found]}.")
    return np.stack(found, axis=1)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and float(value).is_integer()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value).strip()


def named(names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return names, or None where each is the number that it stands for."""
    return None if names == tuple(map(str, range(len(names)))) else names


def row_order(owners: Ints, labels: AnyArray, table: Mapping[str, Values]) -> Ints:
    """Return the rows sorted by client, label and content, so that a shuffled table is the same federation."""
    keys = [values.codes if isinstance(values, Words) else values for values in table.values() if values is not None]
    return np.lexsort((*reversed(keys), *reversed(labels.reshape(len(labels), -1).T), owners))


def rows_of(table: Mapping[str, Values], rows: Ints) -> dict[str, Values]:
    """Return these rows of a table that was read."""
    return {
        name: Words(v.levels, v.codes[rows]) if isinstance(v, Words) else None if v is None else v[rows]
        for name, v in table.items()
    }


# --------------------------------------------------------------------------------------------------------- files


def read_file(path: Path | str, words: Collection[str] = ()) -> Any:
    """Return the table of a ``.csv`` or ``.parquet`` file.

    CSV is read here: comma, semicolon or tab, a line of names first; a column whose cells are all numbers, or empty, is
    one of numbers. Parquet is read by pyarrow, polars or pandas, whichever is installed.

    Args:
        path: The file.
        words: Columns of a CSV that are words even where all their cells are numbers.

    Raises:
        DataError: If the file is missing, damaged or of another kind.
    """
    path = Path(path)
    if path.suffix.lower() == ".parquet":
        return _parquet(path)
    if path.suffix.lower() not in TEXTS:
        raise DataError(f"{path}: a table must be a .csv or a .parquet file; got {path.suffix or 'no ending'!r}.")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=max(",;\t", key=first.count))
            lines = [(reader.line_num, cells) for cells in reader if cells]
    except FileNotFoundError as error:
        raise no_such_file(path, ENDINGS) from error
    except (OSError, ValueError, csv.Error) as error:  # no text, or a path that is none
        raise DataError(f"{path}: must be a table in UTF-8 text; got: {error}.") from error
    if len(lines) < 2:
        raise DataError(f"{path}: a line of names and at least one row must stand in it; got {len(lines)} lines.")
    names, rows = [name.strip() for name in lines[0][1]], lines[1:]
    for number, row in rows:
        if len(row) != len(names):
            raise DataError(f"{path}, line {number}: {len(names)} cells are needed; got {len(row)}.")
    if len(set(names)) < len(names) or "" in names:
        raise DataError(f"{path}: each column needs a name of its own; got {names}.")
    columns = zip(*(row for _, row in rows), strict=True)
    return {name: _parsed(cells, name in words) for name, cells in zip(names, columns, strict=True)}


def _parsed(cells: Sequence[str], as_words: bool) -> AnyArray:
    """Return cells as numbers, whole ones if none is empty, where all that are not empty are numbers."""
    cells = [cell.strip() for cell in cells]
    if as_words:
        return _word_cells(cells)
    try:
        return np.array([int(cell) for cell in cells], np.int64)
    except (ValueError, OverflowError):
        pass
    try:
        return np.array([np.nan if cell in EMPTY else float(cell) for cell in cells])
    except ValueError:
        return _word_cells(cells)


def _word_cells(cells: Sequence[str]) -> AnyArray:
    return np.array([None if cell in EMPTY else cell for cell in cells], object)


def _parquet(path: Path) -> Any:
    readers = {"pyarrow.parquet": "read_table", "polars": "read_parquet", "pandas": "read_parquet"}
    for module, function in readers.items():
        try:
            path.stat()  # whether it is there is said first, whatever is installed
            return getattr(importlib.import_module(module), function)(path)
        except FileNotFoundError as error:
            raise no_such_file(path, ENDINGS) from error
        except ImportError:  # pandas needs pyarrow or fastparquet, and says so by this error, too
            continue
        except Exception as error:  # each library has its own
            raise DataError(f"{path}: must be a readable parquet file; got: {error}.") from error
    raise DataError(f"{path}: reading parquet needs pyarrow. Install it with: pip install pyarrow")
