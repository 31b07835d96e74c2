"""Reading of tables from files, data frames and dictionaries, as Apache Arrow columns by name.

pyarrow reads files. narwhals reads data frames of pandas, polars and pyarrow, including lazy data frames. The same
table becomes the same columns, whatever its source.
"""

from __future__ import annotations

import codecs
import gzip
import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from fedreach._util.errors import ConfigError, DataError, nearest, regular
from fedreach.data.checks import no_such_file
from fedreach.data.images import as_numpy

TEXTS = (".csv", ".tsv", ".txt")
ENDINGS = (*TEXTS, *(f"{ending}.gz" for ending in TEXTS), ".parquet")
SEPARATORS = ",;\t|"
NEWLINE = re.compile(rb"[\r\n]")
BLOCK_BYTES = 1 << 24  # bytes of a text file that are decoded at once
QUOTED = re.compile(r'"[^"]*("|$)')
DIGITS = re.compile("[0-9]+")
MORE_COLUMNS = 1000
INDEX = re.compile(r"__index_level_\d+__")
"""Name of an index without a name in Parquet files and Hugging Face Datasets; FedReach also uses it for text files."""
NOTHING = pa.list_(pa.null())
"""Type of a column without numbers, words or dates."""

Table = dict[str, pa.Array]
"""Columns of equal length by name."""


def read_table(source: Any) -> Table:
    """Read a table without its pandas index; otherwise, see `read_whole`."""
    return without_index(read_whole(source))


def without_index(table: Table) -> Table:
    """Return the columns except a pandas index."""
    return {name: column for name, column in table.items() if not INDEX.fullmatch(name)}


def read_whole(source: Any) -> Table:
    """Read a table from a file, a data frame of any library, or a dictionary of lists.

    An index without a name becomes a column whose name matches `INDEX`.

    Raises:
        ConfigError: If the source is not a table.
        DataError: If a file is missing or damaged, or two columns have the same name.

    Example:
        >>> found = read_whole({"age": [30, None], "ward": ["a", "b"]})
        >>> {name: str(column.type) for name, column in found.items()}
        {'age': 'int64', 'ward': 'string'}
    """
    if isinstance(source, str | Path):
        return read_file(Path(source))
    if isinstance(source, Mapping):
        columns = [as_arrow(values, f"table: column {name!r}") for name, values in source.items()]
        return _make_table(list(map(str, source)), columns)
    return _frame(source)


def column_of(table: Table, name: Any) -> pa.Array:
    """Return a column by name.

    Raises:
        ConfigError: If the column is missing.
    """
    if not isinstance(name, str) or name not in table:
        raise ConfigError(f"table: unknown column {name!r}.{nearest(str(name), table)}")
    return table[name]


def check_lengths(table: Table, first: str) -> None:
    """Raise DataError if a column does not have the same length as the column `first`."""
    rows = len(table[first])
    for name, values in table.items():
        if len(values) != rows:
            raise DataError(
                f"table: all columns must have the same length; {first!r} has {rows} rows, {name!r} has {len(values)}."
            )


# ---- Data frames


def _frame(frame: Any) -> Table:
    import narwhals as nw

    try:
        any_frame = nw.from_native(frame, allow_series=False)
    except (TypeError, ValueError):  # another library, or two columns with the same name
        any_frame = None
    if isinstance(any_frame, nw.LazyFrame):
        frame = any_frame.collect().to_native()
    names = getattr(frame, "column_names", None)
    names = getattr(frame, "columns", None) if names is None else names
    if names is None or isinstance(names, str) or not isinstance(names, Iterable):
        raise ConfigError(
            f"table must have named columns, like a data frame of pandas or polars; got {type(frame).__name__}. "
            "You can also use a dictionary with a list for each column."
        )
    names = list(names)
    if hasattr(frame, "iloc"):  # pandas allows two columns with the same name
        return _make_table([*map(str, names)], [as_arrow(frame.iloc[:, place]) for place in range(len(names))])
    return _make_table([*map(str, names)], (as_arrow(frame[name]) for name in names))


def _make_table(names: Sequence[str], columns: Iterable[pa.Array]) -> Table:
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise DataError(f"table: columns must have different names; got {twice!r} twice.")
    return dict(zip(names, columns, strict=True))


def _join_chunks(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def as_arrow(values: Any, what: str = "a column") -> pa.Array:
    """Convert a list, array, tensor or column of a data frame to an Arrow array.

    Raises:
        DataError: If the value is a single value instead of a list.
    """
    values = as_numpy(values)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return _join_chunks(values)
    if hasattr(values, "to_arrow"):  # polars
        try:
            return _join_chunks(values.to_arrow())
        except (pa.ArrowException, NotImplementedError):  # types that Arrow lacks, such as 128-bit integers
            values = values.to_list()
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise DataError(f"{what} must be a list or an array with one value per row; got {type(values).__name__}.")
    if isinstance(values, np.ndarray) and values.ndim != 1:
        return pa.array([[]] * len(values), NOTHING)
    if not hasattr(values, "__len__"):
        values = list(values)
    is_plain = isinstance(values, list | tuple) or str(getattr(values, "dtype", "")) == "object"
    try:
        if is_plain:
            return pa.array([None if _is_missing(value) else _plain(value) for value in values])
        return _join_chunks(pa.array(values, from_pandas=True))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return _texts_of_mixed([None if _is_missing(value) else _plain(value) for value in values])


def _texts_of_mixed(cells: list[Any]) -> pa.Array:
    """Convert cells of several types to texts, or to a column of type `NOTHING` if a cell is not a single value."""
    present = [cell for cell in cells if cell is not None]
    if any(isinstance(cell, complex) or not isinstance(cell, str | Number | np.bool_) for cell in present):
        return pa.array([[]] * len(cells), NOTHING)
    return pa.array([None if cell is None else str(cell) for cell in cells], pa.string())


def _plain(cell: Any) -> Any:
    if isinstance(cell, bytes):
        return cell.decode(errors="replace")
    if isinstance(cell, np.float32 | np.float16):
        return float(str(cell))  # so that 0.1 is the same number as in a text file
    return cell.item() if isinstance(cell, np.generic) or type(cell).__name__ == "Tensor" else cell


def _is_missing(cell: Any) -> bool:
    nothing = cell is None or type(cell).__name__ in ("NAType", "NaTType")
    return nothing or (isinstance(cell, Number) and bool(cell != cell))


# ---- Files


def read_file(path: Path) -> Table:
    """Read a Parquet file, or a text file whose cells remain texts.

    Raises:
        DataError: If the file is missing or damaged, or has another format.
    """
    ending = "".join(path.suffixes[-2:]).lower() if path.suffix.lower() == ".gz" else path.suffix.lower()
    if ending not in ENDINGS:
        raise DataError(
            f"{path}: a table file must end in {', '.join(ENDINGS)}; got {ending or 'no ending'!r}. Save a spreadsheet "
            "as .csv, or pass a data frame: FederatedData.from_frame(pandas.read_excel(path), ...)."
        )
    try:
        regular(path)
        return _parquet(path) if ending == ".parquet" else _text(path)
    except FileNotFoundError as error:
        raise no_such_file(path, ENDINGS) from error
    except OSError as error:  # an invalid path, or a damaged archive
        raise DataError(f"{path}: must be a readable table; got: {error}.") from error


def _parquet(path: Path) -> Table:
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            table = file.read()
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"{path}: must be a readable Parquet file; got: {error}.") from error
    names = list(map(str, table.column_names))
    return _make_table(names, [_join_chunks(table.column(i)) for i in range(len(names))])


def _text(path: Path) -> Table:
    """Read a text file; all cells are unchanged texts."""
    packed = path.suffix.lower() == ".gz"
    content = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    if (place := content.find(b"\0")) >= 0:
        raise _not_utf8(path, f"a NUL, byte {place}, as in UTF-16", "UTF-16")
    content = content.removeprefix(b"\xef\xbb\xbf")
    try:
        first = NEWLINE.split(content, 1)[0].decode()
        decoder = codecs.getincrementaldecoder("utf-8")()
        for begin in range(0, len(content), BLOCK_BYTES):  # pyarrow does not check the encoding of invalid rows
            decoder.decode(content[begin : begin + BLOCK_BYTES], final=begin + BLOCK_BYTES >= len(content))
    except UnicodeDecodeError as error:
        raise _not_utf8(path, str(error), "LATIN1") from error
    bad: list[Any] = []

    def note(row: Any) -> str:
        bad.append(row)
        return "skip"

    separator = max(SEPARATORS, key=QUOTED.sub("", first).count)
    try:
        parsed = pyarrow.csv.read_csv(
            pa.BufferReader(content),
            pyarrow.csv.ReadOptions(use_threads=False, autogenerate_column_names=True, block_size=BLOCK_BYTES),
            pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=note),
            pyarrow.csv.ConvertOptions(
                column_types=_all_texts(first, separator), strings_can_be_null=False, null_values=[]
            ),
        )
    except pa.ArrowInvalid as error:
        if "UTF8" in str(error):
            raise _not_utf8(path, str(error), "LATIN1") from error
        if "Empty CSV" not in str(error):
            raise DataError(f"{path}: must be a table; got: {error}.") from error
        parsed = None
    if bad:
        row = bad[0]
        line = "a line" if row.number is None else f"line {row.number}"
        raise DataError(
            f"{path}, {line}: must have {row.expected_columns} cells; got {row.actual_columns}: {row.text[:60]!r}."
        )
    if parsed is None or parsed.num_rows < 2:
        lines = 0 if parsed is None else parsed.num_rows
        raise DataError(f"{path}: must have a line of column names and at least one row; got {lines} lines.")
    columns = [_join_chunks(parsed.column(place)) for place in range(parsed.num_columns)]
    names = [column[0].as_py().strip() for column in columns]
    if names[0] == "" and _are_row_numbers(columns[0][1:].to_pylist()):
        names[0] = "__index_level_0__"
    if "" in names:
        raise DataError(f"{path}: each column must have a name; column {names.index('') + 1} of {len(names)} has none.")
    return _make_table(names, [column[1:] for column in columns])


def _are_row_numbers(cells: list[str]) -> bool:
    """Return whether cells are distinct whole numbers, as pandas and R write them before rows."""
    return all(map(DIGITS.fullmatch, cells)) and len(set(cells)) == len(cells)


def _all_texts(first: str, separator: str) -> dict[str, pa.DataType]:
    """Return types for more columns than the first line has, because a quoted name can span several lines."""
    return {f"f{place}": pa.string() for place in range(first.count(separator) + MORE_COLUMNS)}


def _not_utf8(path: Path, why: str, encoding: str) -> DataError:
    return DataError(
        f"{path}: must be text in UTF-8; got: {why}. Convert it with iconv -f {encoding} -t UTF-8 FILE > NEW, or pass "
        "a data frame: FederatedData.from_frame(pandas.read_csv(path, encoding=...), ...)."
    )
