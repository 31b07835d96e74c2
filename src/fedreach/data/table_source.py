"""Tables from files, frames and dictionaries, as Apache Arrow columns by name.

pyarrow reads files. narwhals reads frames of any library (pandas, polars, pyarrow), including lazy frames. The columns
are the same for all sources of a table.
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

from fedreach._util.errors import ConfigError, DataError, nearest
from fedreach.data.checks import no_such_file
from fedreach.data.images import as_numpy

TEXTS = (".csv", ".tsv", ".txt")
ENDINGS = (*TEXTS, *(f"{ending}.gz" for ending in TEXTS), ".parquet")
SEPARATORS = ",;\t|"
NEWLINE = re.compile(rb"[\r\n]")
BLOCK_BYTES = 1 << 24  # of a text file that are decoded at a time
QUOTED = re.compile(r'"[^"]*("|$)')
DIGITS = re.compile("[0-9]+")
MORE_COLUMNS = 1000
INDEX = re.compile(r"__index_level_\d+__")
"""Name of an unnamed pandas index in Parquet files and Hugging Face data sets; also used for text files."""
NOTHING = pa.list_(pa.null())
"""Type of a column that does not hold numbers, words or dates."""

Table = dict[str, pa.Array]
"""Columns of equal length by name."""


def read_table(source: Any) -> Table:
    """Return the columns of a table without a pandas index; see `read_whole`."""
    return without_index(read_whole(source))


def without_index(table: Table) -> Table:
    """Return the columns that are not a pandas index."""
    return {name: column for name, column in table.items() if not INDEX.fullmatch(name)}


def read_whole(source: Any) -> Table:
    """Return the columns of a table: a file, a frame of any library, or a dictionary of lists.

    An unnamed index becomes a column whose name `INDEX` matches.

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
    """Return a column by its name.

    Raises:
        ConfigError: If the column is missing.
    """
    if not isinstance(name, str) or name not in table:
        raise ConfigError(f"table: there is no column {name!r}.{nearest(str(name), table)}")
    return table[name]


def check_lengths(table: Table, first: str) -> None:
    """Raise DataError if a column of a table differs in length from the column `first`."""
    rows = len(table[first])
    for name, values in table.items():
        if len(values) != rows:
            raise DataError(
                f"table: all columns must be as long; {first!r} has {rows} rows and {name!r} has {len(values)}."
            )


# ---- Frames


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
            f"table must have named columns, as tables of pandas and polars have; got {type(frame).__name__}. "
            "A dictionary of a list for each column will do."
        )
    names = list(names)
    if hasattr(frame, "iloc"):  # pandas, where two columns may have the same name
        return _make_table([*map(str, names)], [as_arrow(frame.iloc[:, place]) for place in range(len(names))])
    return _make_table([*map(str, names)], (as_arrow(frame[name]) for name in names))


def _make_table(names: Sequence[str], columns: Iterable[pa.Array]) -> Table:
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise DataError(f"table: each column needs a name of its own; {twice!r} is there twice.")
    return dict(zip(names, columns, strict=True))


def _join_chunks(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def as_arrow(values: Any, what: str = "a column") -> pa.Array:
    """Return a list, an array, a tensor, or a column of a frame as an Arrow array.

    Raises:
        DataError: If the value is a single value.
    """
    values = as_numpy(values)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return _join_chunks(values)
    if hasattr(values, "to_arrow"):  # polars
        try:
            return _join_chunks(values.to_arrow())
        except (pa.ArrowException, NotImplementedError):  # a type that Arrow lacks, such as 128-bit integers
            values = values.to_list()
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise DataError(f"{what} must be a list or an array, a value a row; got {type(values).__name__}.")
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
    """Return cells of several types as texts; if they are not single values, a column of type `NOTHING`."""
    present = [cell for cell in cells if cell is not None]
    if any(isinstance(cell, complex) or not isinstance(cell, str | Number | np.bool_) for cell in present):
        return pa.array([[]] * len(cells), NOTHING)
    return pa.array([None if cell is None else str(cell) for cell in cells], pa.string())


def _plain(cell: Any) -> Any:
    if isinstance(cell, bytes):
        return cell.decode(errors="replace")
    if isinstance(cell, np.float32 | np.float16):
        return float(str(cell))  # 0.1 means 0.1, as in a file
    return cell.item() if isinstance(cell, np.generic) or type(cell).__name__ == "Tensor" else cell


def _is_missing(cell: Any) -> bool:
    nothing = cell is None or type(cell).__name__ in ("NAType", "NaTType")
    return nothing or (isinstance(cell, Number) and bool(cell != cell))


# ---- Files


def read_file(path: Path) -> Table:
    """Return the columns of a Parquet file, or of a text file with separators, whose cells stay texts.

    Raises:
        DataError: If the file is missing, damaged or of another format.
    """
    ending = "".join(path.suffixes[-2:]).lower() if path.suffix.lower() == ".gz" else path.suffix.lower()
    if ending not in ENDINGS:
        raise DataError(
            f"{path}: a table must be one of {', '.join(ENDINGS)}; got {ending or 'no ending'!r}. Save a sheet as "
            ".csv, or hand over the frame: FederatedData.from_frame(pandas.read_excel(path), ...)."
        )
    try:
        path.stat()
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
        raise DataError(f"{path}: must be a readable parquet file; got: {error}.") from error
    names = list(map(str, table.column_names))
    return _make_table(names, [_join_chunks(table.column(i)) for i in range(len(names))])


def _text(path: Path) -> Table:
    """Return the columns of a text file, with all cells as unchanged texts."""
    packed = path.suffix.lower() == ".gz"
    content = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    if (place := content.find(b"\0")) >= 0:
        raise _not_utf8(path, f"a NUL, byte {place}, as in UTF-16", "UTF-16")
    content = content.removeprefix(b"\xef\xbb\xbf")
    try:
        first = NEWLINE.split(content, 1)[0].decode()
        decoder = codecs.getincrementaldecoder("utf-8")()
        for begin in range(0, len(content), BLOCK_BYTES):  # pyarrow decodes a row with too many cells without a check
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
            f"{path}, {line}: {row.expected_columns} cells are needed; got {row.actual_columns}: {row.text[:60]!r}."
        )
    if parsed is None or parsed.num_rows < 2:
        lines = 0 if parsed is None else parsed.num_rows
        raise DataError(f"{path}: a line of names and at least one row must stand in it; got {lines} lines.")
    columns = [_join_chunks(parsed.column(place)) for place in range(parsed.num_columns)]
    names = [column[0].as_py().strip() for column in columns]
    if names[0] == "" and _are_row_numbers(columns[0][1:].to_pylist()):
        names[0] = "__index_level_0__"
    if "" in names:
        raise DataError(
            f"{path}: each column needs a name of its own; column {names.index('') + 1} of {len(names)} has none."
        )
    return _make_table(names, [column[1:] for column in columns])


def _are_row_numbers(cells: list[str]) -> bool:
    """Return whether cells are distinct whole numbers, as pandas and R write them before rows."""
    return all(map(DIGITS.fullmatch, cells)) and len(set(cells)) == len(cells)


def _all_texts(first: str, separator: str) -> dict[str, pa.DataType]:
    """Return types for more columns than the first line has, as a quoted name may span several lines."""
    return {f"f{place}": pa.string() for place in range(first.count(separator) + MORE_COLUMNS)}


def _not_utf8(path: Path, why: str, encoding: str) -> DataError:
    return DataError(
        f"{path}: must be a table in UTF-8 text; got: {why}. Convert it: iconv -f {encoding} -t UTF-8 FILE > NEW, or "
        "hand over the frame: FederatedData.from_frame(pandas.read_csv(path, encoding=...), ...)."
    )
