"""Options for the columns of a table, and reading of their cells."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from numbers import Real
from typing import Any, Literal, NamedTuple, Self, TypedDict, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedreach._util.arrays import AnyArray, Bools, Floats, Ints
from fedreach._util.errors import ConfigError, DataError, nearest
from fedreach.data.table_source import NOTHING, Table, column_of

# ---- Options for the columns of a table

InputKind = Literal["number", "boolean", "date", "category"]
KINDS: tuple[InputKind, ...] = get_args(InputKind)
EMPTY = ("", "NA", "N/A", "n/a", "<NA>", "NaN", "nan", "NULL", "null", "None")
"""Texts of empty cells in any table."""
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
NUMBERS_SHARE = 0.9
"""Smallest share of numbers (or dates) for which a column counts as a column of numbers (or dates)."""
Decimal = Literal[".", ","]


class ColumnOptions(TypedDict, total=False):
    """Options for columns: keys of ``[data.columns]`` and of the argument `columns` of `FederatedData.from_frame`.

    Example:
        >>> ColumnOptions(drop=["insurer"], category=["postcode"], missing=["?", -9], decimal=",")
        {'drop': ['insurer'], 'category': ['postcode'], 'missing': ['?', -9], 'decimal': ','}
    """

    drop: Sequence[str]  # columns that are not inputs
    category: Sequence[str]  # columns of categories, with any number of categories
    number: Sequence[str]  # columns of numbers; other values count as missing
    date: Sequence[str]  # columns of dates; other values count as missing
    boolean: Sequence[str]  # columns of true, yes or 1 and false, no or 0; other values count as missing
    missing: Sequence[str | float]  # additional texts or numbers that mark missing values
    decimal: Decimal  # decimal separator of numbers in texts


class Reading(NamedTuple):
    """Format of the cells of a column."""

    missing: tuple[str, ...] = ()  # additional texts that mark missing values
    decimal: Decimal = "."  # decimal separator

    @property
    def missing_numbers(self) -> tuple[float, ...]:
        """Numbers among `missing`, with which -9 also matches -9.0."""
        return tuple(float(word) for word in self.missing if re.match(NUMBER, word))

    def is_missing(self, text: str) -> bool:
        """Return whether a text marks a missing value.

        Example:
            >>> reading = Reading(("?", "-9"))
            >>> [reading.is_missing(text) for text in ("NA", " ?", "-9.0", "9")]
            [True, True, True, False]
        """
        plain = text.strip()
        if plain in EMPTY or plain in self.missing:
            return True
        return bool(self.missing and re.match(NUMBER, plain)) and float(plain) in self.missing_numbers


AS_USUAL = Reading()


@dataclass(frozen=True)
class ColumnRules:
    """Checked `ColumnOptions` of a table.

    Example:
        >>> rules = ColumnRules.of({"drop": "insurer", "missing": [-9]}, ["age", "insurer", "ill"], {"ill": "label"})
        >>> rules.drop, rules.reading
        (('insurer',), Reading(missing=('-9',), decimal='.'))
    """

    drop: tuple[str, ...] = ()  # columns that are not inputs
    kinds: Mapping[str, InputKind] = field(default_factory=dict)  # column -> kind that the user has set
    reading: Reading = AS_USUAL  # format of the cells

    @classmethod
    def of(cls, options: Any, names: Sequence[str], roles: Mapping[str, str], where: str = "columns") -> Self:
        """Check the options for the columns of a table, and return them as rules.

        Args:
            options: `ColumnOptions`, or None.
            names: Names of the columns of the table.
            roles: Roles of the columns that cannot be inputs, such as ``"client"``, ``"label"`` or ``"target"``.
            where: Name of `options` in messages.

        Raises:
            ConfigError: If a key or a column is unknown, or a value is invalid.
        """
        options = {} if options is None else options
        known_keys = tuple(ColumnOptions.__annotations__)
        if not isinstance(options, Mapping):
            raise ConfigError(f"{where}: must be a table with the keys {', '.join(known_keys)}; got {options!r}.")
        for key in options:
            if key not in known_keys:
                raise ConfigError(f"{where}.{key}: unknown key.{nearest(str(key), known_keys)}")
        role_of = {name: f"the {role}" for name, role in roles.items()}
        kinds: dict[str, InputKind] = {}
        for key in ("drop", *KINDS):
            for name in _declared_texts(f"{where}.{key}", "columns", options.get(key, ())):
                if name not in names:
                    raise ConfigError(f"{where}.{key}: unknown column {name!r}.{nearest(name, names)}")
                if name in role_of:
                    raise ConfigError(
                        f"{where}.{key}: {name!r} is already {role_of[name]}. Remove one of the two entries."
                    )
                role_of[name] = f"in {where}.{key}"
                kinds |= {name: key} if key in KINDS else {}
        decimal = options.get("decimal", ".")
        if decimal not in get_args(Decimal):
            raise ConfigError(f'{where}.decimal: must be "." or ","; got {decimal!r}.')
        missing = _declared_texts(f"{where}.missing", "texts or numbers", options.get("missing", ()), numbers=True)
        drop = tuple(name for name in names if role_of.get(name) == f"in {where}.drop")
        return cls(drop, kinds, Reading(tuple(missing), decimal))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self) | {"reading": list(self.reading)}

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> Self:
        """Build the rules from the JSON values of `to_json`."""
        missing, decimal = stored["reading"]
        return cls(tuple(stored["drop"]), dict(stored["kinds"]), Reading(tuple(missing), decimal))


NO_RULES = ColumnRules()


def _declared_texts(where: str, what: str, value: Any, *, numbers: bool = False) -> list[str]:
    """Return a list of texts from a list or a single entry."""
    entries = [value] if isinstance(value, str | Real) else value
    if not isinstance(entries, Iterable) or isinstance(entries, Mapping | bytes):
        raise ConfigError(f"{where}: must be a list of {what}; got {value!r}.")
    entries = list(entries)
    for entry in entries:
        is_number = numbers and not isinstance(entry, bool) and isinstance(entry, Real) and math.isfinite(entry)
        if not (isinstance(entry, str) or is_number):
            raise ConfigError(f"{where}: must be a list of {what}; got {entry!r} in the list.")
    return [entry.strip() if numbers and isinstance(entry, str) else str(entry) for entry in entries]


# ---- Values of cells: numbers, words, dates, or missing
# A cell has the same value in a file and in a data frame: "50.5" and 50.5, "True" and True, "2024-01-31" and a date.
# `fedreach.data.preparation` later determines the kind of a column, from the participants' rows.

INFINITE = r"(?i)^[+-]?inf(inity)?$"
DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]+)?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?$"
ZONE = r"(Z|[+-][0-9]{2}:?[0-9]{2})$"
TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z?"
WHOLE = re.compile(r"-?(0|[1-9][0-9]*)")
POINT_ZERO = re.compile(r"-?[0-9]+\.0")
BOOLEANS = ("false", "true")
DAY_SECONDS = 86_400.0
LARGEST = float(np.finfo(np.float32).max)
"""Largest finite float32. Models compute in float32."""


class Words(NamedTuple):
    """Texts of a column."""

    levels: tuple[str, ...]  # distinct texts, sorted
    codes: Ints  # (n,) index into `levels`, -1 for an empty cell


class Cells(NamedTuple):
    """Cells of a column.

    Booleans are the words ``false`` and ``true``. Dates and times are words in ISO 8601 format, in UTC if they have a
    time zone.
    """

    numbers: Floats  # (n,) numbers, nan for other cells
    words: Words | None = None  # texts of all cells that are not empty; None if all of them are numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def at(self, rows: Ints) -> Cells:
        """Select the cells of the given rows."""
        words = self.words
        return Cells(self.numbers[rows], None if words is None else Words(words.levels, words.codes[rows]))


def cells_of(
    name: str,
    column: pa.Array,
    *,
    as_words: bool = False,
    reading: Reading = AS_USUAL,
    places: Ints | None = None,
) -> Cells | None:
    """Read the cells of a column; return None if the cells are not numbers, words or dates, for example lists.

    Args:
        name: Name of the column, for messages.
        column: Column of a table from `fedreach.data.table_source.read_table`.
        as_words: Return numbers as texts too, for example 1.0 as "1".
        reading: Texts that mark missing values, and the decimal separator.
        places: (n,) row numbers in the user's table, for messages. Default: 0, 1, ....

    Raises:
        DataError: If a number is infinite or larger than `LARGEST`.

    Example:
        >>> cells_of("dose", pa.array(["1.5", "<5", "", "True"])).numbers
        array([1.5, nan, nan, nan])
        >>> cells_of("dose", pa.array(["1.5", "<5", "", "True"])).words.levels
        ('1.5', '<5', 'true')
        >>> cells_of("dose", pa.array(["1,5", "-9", "2"]), reading=Reading(("-9",), ",")).numbers
        array([1.5, nan, 2. ])
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_null(kind):
        return Cells(np.full(len(column), np.nan))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        numbers = _numbers(column)
        _refuse_infinite(name, np.abs(numbers) > LARGEST, places)
        numbers[np.isin(numbers, reading.missing_numbers)] = np.nan
        return Cells(numbers, _words(_texts(column), reading) if as_words else None)
    texts = _texts(column)
    return None if texts is None else _of_texts(name, texts, reading, places, as_words=as_words)


def _numbers(column: pa.Array) -> Floats:
    if pa.types.is_float32(column.type) or pa.types.is_float16(column.type):
        column = pc.cast(pc.cast(column, pa.float32()), pa.string())  # so that 0.1 is the same number as in a text file
    numbers: Floats = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False) + 0.0  # -0.0 becomes 0.0
    return numbers


def _refuse_infinite(name: str, infinite: Bools, places: Ints | None) -> None:
    rows = np.flatnonzero(infinite)
    if len(rows):
        raise DataError(
            f"table: column {name!r} must be finite, at most {LARGEST:.1e}; got {len(rows)} infinite numbers, the "
            f"first in row {_place(rows[0], places)}. Clear these cells, remove the rows, or drop the column."
        )


def _place(row: int, places: Ints | None) -> int:
    """Return the number of a row in the user's table."""
    return row if places is None else int(places[row])


def _texts(column: pa.Array) -> pa.Array | None:
    """Convert cells to texts, in the same way for all sources; None if they are not single values."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return pc.if_else(column, *reversed(BOOLEANS))
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _dates(column)
    if pa.types.is_floating(kind):
        return _as_in_files(column)
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        column = pc.cast(column, pa.string())
    elif kind not in (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()):
        return None
    return pc.cast(column, pa.large_string())


def _as_in_files(column: pa.Array) -> pa.Array:
    """Convert numbers to texts as in files: the shortest text for the same number, with the point in 1.0."""
    encoded = column.dictionary_encode()
    texts = [None if value != value else str(value) for value in encoded.dictionary.to_numpy(zero_copy_only=False)]
    return pa.array(texts, pa.large_string()).take(encoded.indices)


def _dates(column: pa.Array) -> pa.Array:
    """Convert dates and times to texts; to dates only if all times are midnight."""
    kind = column.type
    if pa.types.is_date(kind):
        return pc.cast(pc.cast(column, pa.date32()), pa.large_string())
    zoned = kind.tz is not None
    plain = pc.cast(pc.cast(column, pa.timestamp("us", kind.tz), safe=False), pa.timestamp("us"), safe=False)
    present = pc.drop_null(plain)
    if not zoned and len(present) == int(
        pc.sum(pc.equal(pc.floor_temporal(present, unit="day"), present)).as_py() or 0
    ):
        return pc.cast(pc.cast(plain, pa.date32()), pa.large_string())
    seconds = pc.cast(pc.strftime(plain, format="%Y-%m-%dT%H:%M:%S"), pa.large_string())
    end, nothing = (pa.scalar(text, pa.large_string()) for text in ("Z" if zoned else "", ""))
    return pc.binary_join_element_wise(seconds, end, nothing)


def _of_texts(name: str, texts: pa.Array, reading: Reading, places: Ints | None, *, as_words: bool) -> Cells:
    """Parse texts; each distinct text is parsed once."""
    if not as_words and reading == AS_USUAL and (numbers := _all_numbers(texts)) is not None:
        return Cells(numbers)
    encoded = texts.dictionary_encode()
    levels = pc.utf8_trim_whitespace(encoded.dictionary)
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    empty = pc.is_in(levels, pa.array((*EMPTY, *reading.missing), levels.type)).to_numpy(zero_copy_only=False)
    infinite = pc.match_substring_regex(levels, INFINITE).to_numpy(zero_copy_only=False)
    is_number = pc.match_substring_regex(levels, NUMBER)
    if reading.decimal == ",":  # numbers with a point, such as 1.234, are then ambiguous and stay words
        pointed = pc.replace_substring(levels, ",", ".")
        is_number = pc.and_not(pc.match_substring_regex(pointed, NUMBER), pc.match_substring(levels, "."))
        levels = pc.if_else(is_number, pointed, levels)
    parsed = pc.cast(pc.if_else(is_number, levels, None), pa.float64()).to_numpy(zero_copy_only=False)
    empty = empty | np.isin(parsed, reading.missing_numbers)
    infinite = (infinite | (np.abs(parsed) > LARGEST)) & ~empty
    if not as_words and infinite.any():
        has_value, like_numbers = np.append(~empty, False)[codes], np.append(infinite | ~np.isnan(parsed), False)[codes]
        if like_numbers.sum() >= NUMBERS_SHARE * has_value.sum():  # otherwise it can be a word, such as the code 12e345
            _refuse_infinite(name, np.append(infinite, False)[codes], places)
    parsed = np.where(infinite, np.nan, parsed)
    numbers = np.append(np.where(empty, np.nan, parsed), np.nan)[codes] + 0.0
    if not as_words and (~np.isnan(parsed) | empty).all():
        return Cells(numbers)
    plain = [None if gone else _normal(text) for text, gone in zip(levels.to_pylist(), empty.tolist(), strict=True)]
    missing = {_normal(word) + time for word in reading.missing for time in ("", "T00:00:00", "T00:00:00Z")}
    return Cells(numbers, _encode_words([None if text in missing else text for text in _days_alone(plain)], codes))


def _days_alone(plain: list[str | None]) -> list[str | None]:
    """Remove the time of day if all times are midnight without a time zone."""
    times = [text for text in plain if text is not None and re.fullmatch(TIME, text)]
    if not times or not all(text.endswith("T00:00:00") for text in times):
        return plain
    return [text[:10] if text is not None and re.fullmatch(TIME, text) else text for text in plain]


def _all_numbers(texts: pa.Array) -> Floats | None:
    """Parse a column that contains only numbers, the most common case; None if it does not."""
    try:
        numbers = pc.cast(texts, pa.float64()).to_numpy(zero_copy_only=False) + 0.0
    except pa.ArrowInvalid:
        return None
    return numbers if (np.abs(numbers) <= LARGEST).all() else None


def _normal(text: str) -> str:
    """Return the normal form of a text: Booleans in lower case, dates in ISO 8601, 1.0 as 1."""
    folded = text.casefold()
    if folded in BOOLEANS:
        return folded
    if text.endswith(".0") and re.fullmatch(POINT_ZERO, text):
        return text[:-2]
    if text[4:5] == "-" and re.fullmatch(DATE, text):
        return _iso(text)
    return text


def _iso(text: str) -> str:
    """Convert a date or time to ISO 8601, in UTC if it has a time zone."""
    plain, zone = text.replace(" ", "T").replace(",", "."), re.search(ZONE, text[10:])
    try:
        if zone:
            plain = datetime.fromisoformat(plain).astimezone(UTC).replace(tzinfo=None).isoformat()
        moment = np.datetime64(plain, "us")
    except ValueError:  # for example February 30
        return text
    return str(moment.astype(f"datetime64[{'D' if len(text) == 10 else 's'}]")) + ("Z" if zone else "")


def _words(texts: pa.Array, reading: Reading) -> Words:
    encoded = texts.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    levels = [
        None if text is None or reading.is_missing(text) else _normal(text) for text in encoded.dictionary.to_pylist()
    ]
    return _encode_words(levels, codes)


def _encode_words(plain: Sequence[str | None], codes: Ints) -> Words:
    """Return words from the texts of the codes."""
    levels = tuple(sorted({text for text in plain if text is not None}))
    place: dict[str | None, int] = {level: number for number, level in enumerate(levels)}
    place[None] = -1
    return Words(levels, np.array([*(place[text] for text in plain), -1], np.int64)[codes])


def days_of(levels: Sequence[str]) -> Floats:
    """Convert dates and times in ISO 8601 format to days since 1970, and other texts to nan.

    Example:
        >>> days_of(["1970-01-02", "1970-01-01T12:00:00Z", "soon"])
        array([1. , 0.5, nan])
    """
    days = np.full(len(levels), np.nan)
    for place, text in enumerate(levels):
        if re.fullmatch(DATE, text):
            try:
                days[place] = np.datetime64(text.rstrip("Z"), "us").astype(np.int64) / 1e6 / DAY_SECONDS
            except ValueError:
                continue
    return days


def cells_by_name(
    table: Table, without: Sequence[str] = (), rules: ColumnRules = NO_RULES, places: Ints | None = None
) -> dict[str, Cells | None]:
    """Read the cells of each column except dropped columns and the columns `without`; `places` is as in `cells_of`."""
    return {
        name: cells_of(name, column, as_words=rules.kinds.get(name) == "category", reading=rules.reading, places=places)
        for name, column in table.items()
        if name not in (*without, *rules.drop)
    }


def cells_at(table: Mapping[str, Cells | None], rows: Ints) -> dict[str, Cells | None]:
    """Select the cells of the given rows."""
    return {name: None if cells is None else cells.at(rows) for name, cells in table.items()}


def row_order(owners: Ints, first: AnyArray, table: Mapping[str, Cells | None]) -> Ints:
    """Return the order of the rows by client, `first` and content, which does not depend on their order in the table.

    Numbers precede words, so that words of other clients do not change the order of a client's rows.

    Args:
        owners: (n,) client of each row.
        first: (n,) or (n, k) sort keys that are compared before the content, such as labels.
        table: Cells of the table by column name.
    """
    keys: list[AnyArray] = [owners, *first.reshape(len(first), -1).T]
    fixed = len(keys)
    readable = [cells for cells in table.values() if cells is not None]
    keys += [cells.numbers for cells in readable]
    worded = [(cells.numbers, cells.words.codes) for cells in readable if cells.words is not None]
    keys += [np.where(np.isnan(numbers), codes, -1) for numbers, codes in worded]
    keys += [codes for _, codes in worded]  # last, because "7" and "7.00" are the same number
    for used in sorted({min(fixed + 1, len(keys)), len(keys)}):  # one column is usually enough
        order = np.lexsort(tuple(reversed(keys[:used])))
        if not _any_tied([key[order] for key in keys[:used]]):
            break
    return order


def by_text(codes: AnyArray, names: Sequence[str]) -> Ints:
    """Return the (n,) ranks of texts in alphabetical order; in contrast, `index_names` sorts whole numbers by size.

    Example:
        >>> by_text(np.array([0, 1, 0]), ("9", "10"))
        array([1, 0, 1])
    """
    place = np.empty(len(names), np.int64)
    place[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    return np.asarray(place[codes])


def moments(what: str, column: pa.Array, reading: Reading = AS_USUAL, places: Ints | None = None) -> Floats:
    """Return the (n,) times of the rows, as numbers or as days since 1970; messages use `what` and `places`.

    Raises:
        DataError: If a cell is empty, or the column mixes numbers and dates.

    Example:
        >>> moments("time", pa.array(["1970-01-03", "1970-01-01T12:00"]))
        array([2. , 0.5])
    """
    cells = cells_of(what, column, reading=reading, places=places)
    if cells is None:
        raise DataError(f"{what} must contain numbers or dates; got {column.type}.")
    words = cells.words
    days = np.full(len(cells), np.nan) if words is None else np.append(days_of(words.levels), np.nan)[words.codes]
    times = max(cells.numbers, days, key=lambda values: np.isfinite(values).sum())
    rows = np.flatnonzero(np.isnan(times))
    if len(rows):
        code = -1 if words is None else int(words.codes[rows[0]])
        got = "an empty cell" if words is None or code < 0 else repr(words.levels[code])
        raise DataError(
            f"{what} must contain only numbers, or only dates such as 2024-01-31; got other values in {len(rows)} "
            f"rows, first in row {_place(rows[0], places)}: {got}. Fill these cells, or remove the rows."
        )
    return times


def _any_tied(keys: Sequence[AnyArray]) -> bool:
    """Return whether a row equals the one before it; missing numbers are equal."""
    tied = np.ones(max(len(keys[0]) - 1, 0), bool)
    for key in keys:
        now, before = key[1:], key[:-1]
        tied &= (now == before) | ((now != now) & (before != before))
    return bool(tied.any())


# ---- Names of clients and classes, and numeric targets


def named_rows(what: str, column: pa.Array, reading: Reading = AS_USUAL) -> list[str | None]:
    """Return the name in each row of a column, or None if the cell is empty.

    Numbers become the texts that a file would contain. If all numbers are whole numbers with ".0", FedReach removes the
    ".0", because pandas adds it when a value is missing. Booleans become lower case.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type):
        return [None] * len(column)
    texts = _texts(column)
    if texts is None:
        raise DataError(
            f"{what} must contain names or numbers; got {'lists' if column.type == NOTHING else column.type}."
        )
    encoded = texts.dictionary_encode()
    plain = [None if reading.is_missing(text) else text for text in encoded.dictionary.to_pylist()]
    distinct = {text for text in plain if text is not None}
    if distinct and all(map(POINT_ZERO.fullmatch, distinct)):
        plain = [None if text is None else text[:-2] for text in plain]
    folded = {text.casefold() for text in distinct}
    if distinct and folded <= set(BOOLEANS) and len(folded) == len(distinct):
        plain = [None if text is None else text.casefold() for text in plain]
    codes = encoded.indices.fill_null(-1).to_pylist()
    return [None if code < 0 else plain[code] for code in codes]


def index_names(what: str, names: Sequence[str | None], places: Ints | None = None) -> tuple[Ints, tuple[str, ...]]:
    """Return (n,) indices into the sorted names, and these names: whole numbers by size, others alphabetically.

    Raises:
        DataError: If a name is missing.

    Example:
        >>> index_names("client", ["10", "9", "10"]), index_names("site", ["7", "007"])
        ((array([1, 0, 1]), ('9', '10')), (array([1, 0]), ('007', '7')))
    """
    gone = [row for row, name in enumerate(names) if name is None]
    if gone:
        first = _place(gone[0], places)
        raise DataError(
            f"{what} must not be empty; got {len(gone)} empty cells, the first in row {first}. Remove these rows."
        )
    ordered = ordered_names({name for name in names if name is not None})
    place = {name: number for number, name in enumerate(ordered)}
    return np.array([place[name] for name in names if name is not None], np.int64), ordered


def ordered_names(distinct: Set[str]) -> tuple[str, ...]:
    """Sort whole numbers by size, and other names alphabetically."""
    return tuple(sorted(distinct, key=int) if all(map(WHOLE.fullmatch, distinct)) else sorted(distinct))


def targets(table: Table, names: Sequence[str], reading: Reading = AS_USUAL, places: Ints | None = None) -> Floats:
    """Return (n, t) numeric targets from t columns; `places` is as in `cells_of`.

    Raises:
        ConfigError: If a column is missing or given twice, or `names` is empty.
        DataError: If a column contains values other than numbers, or a number is missing or infinite.

    Example:
        >>> targets({"days": pa.array([3, 5]), "cost": pa.array(["1.5", "2"])}, ["cost"]).tolist()
        [[1.5], [2.0]]
    """
    if not names or len(set(map(str, names))) < len(names):
        raise ConfigError(f"table: target must contain different columns, at least one; got {list(names)}.")
    target_columns = []
    for name in names:
        cells = cells_of(name, column_of(table, name), reading=reading, places=places)
        if cells is None or (cells.words is not None and np.isnan(cells.numbers[cells.words.codes >= 0]).all()):
            raise DataError(
                f"table: column {name!r} must contain numbers as a target. For classes, use label instead of target."
            )
        gone = np.flatnonzero(np.isnan(cells.numbers))
        if len(gone):
            raise DataError(
                f"table: column {name!r} must contain only numbers; got other values in {len(gone)} rows, first in row "
                f"{_place(gone[0], places)}."
            )
        target_columns.append(cells.numbers)
    return np.stack(target_columns, axis=1)


def names_unless_numbers(names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the names, or None if each name is just its index."""
    return None if names == tuple(map(str, range(len(names)))) else names
