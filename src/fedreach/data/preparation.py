"""Preparation of a table: conversion of columns to inputs, and the scale of targets."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from fedreach._util.arrays import AnyArray, Bools, Float32s, Floats, Ints
from fedreach._util.errors import MAX_LISTED, ConfigError, DataError, nearest
from fedreach._util.tables import visible
from fedreach.data.cells import (
    BOOLEANS,
    LARGEST,
    NUMBERS_SHARE,
    Cells,
    ColumnRules,
    Decimal,
    InputKind,
    Reading,
    Words,
    cells_of,
    days_of,
)
from fedreach.data.table_source import check_lengths, read_table

# ---- A column of a table and its inputs

ColumnKind = Literal["client", "label", "target", "group", InputKind, "left out", "dropped"]
NAMED: dict[ColumnKind, str] = {"number": "numbers", "boolean": "true and false", "date": "dates", "category": "words"}
"""Kinds of columns that become inputs, and the words for their content in messages."""
TRUTH = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
FEW = 6  # largest number of categories in a description


@dataclass(frozen=True)
class InputColumn:
    """Column of a table: its conversion to inputs, or another role, such as naming the client of each row.

    A number x becomes (x - mean) / sd, or 0 if it is missing. Booleans count as 1 and 0, and dates as days since 1970.
    A column of words becomes one input per category: 1 for the category of the word, 0 for all other categories. A word
    that occurs at no participant becomes 0 in all of these inputs.
    """

    name: str  # name of the column
    kind: ColumnKind  # kind of its values, or its role
    missing: int = 0  # participants' rows without a value; if positive, an additional input is 1 for missing values
    mean: float = 0.0  # mean over the participants' training rows
    sd: float = 1.0  # standard deviation
    categories: tuple[str, ...] = ()  # categories of words
    why: str = ""  # reason why it is not an input
    odd: str = ""  # remark on values of another kind, which count as missing
    empty: tuple[str, ...] = ()  # additional texts that mark missing values
    decimal: Decimal = "."  # decimal separator

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the inputs that the column becomes."""
        if self.kind not in NAMED:
            return ()
        names = [f"{self.name} = {category}" for category in self.categories] or [self.name]
        return (*names, f"{self.name} is missing") if self.missing else tuple(names)

    def raw(self, cells: Cells | None) -> Floats:
        """Convert cells to (n,) numbers: the value itself, or the index of its category.

        Missing cells and cells of another kind become nan. Words that occur at no participant become -1.

        Raises:
            DataError: If the column contains values, but all of them are of another kind.
        """
        if cells is not None:
            values = values_of(self.kind, cells, self.categories)
            if not (np.isnan(values).all() and is_filled(cells).any()):
                return values
        raise DataError(f"table: column {self.name!r} must contain {NAMED[self.kind]}, as in training.")

    def write(self, raw: Floats, inputs: Float32s) -> None:
        """Write the inputs of (n,) numbers to the (n, f) array `inputs`.

        Raises:
            DataError: If a number is too far from the mean for float32.
        """
        gone = np.isnan(raw)
        if self.kind == "category":
            end = len(self.categories)
            inputs[:, :end] = raw[:, None] == np.arange(end)
        else:
            scaled = np.where(gone, 0.0, (raw - self.mean) / self.sd)
            far = np.flatnonzero(np.abs(scaled) > LARGEST)
            if len(far):
                raise DataError(
                    f"table: column {self.name!r} contains {raw[far[0]]:g}, too far from the participants' values "
                    f"({self.about}) for float32. Clear the cell, remove the row, or drop the column."
                )
            inputs[:, 0] = scaled
        if self.missing:
            inputs[:, -1] = gone

    @property
    def reading(self) -> Reading:
        """Texts that mark missing values, and the decimal separator."""
        return Reading(self.empty, self.decimal)

    @property
    def about(self) -> str:
        """Description of the column's values."""
        text = self.why
        if self.kind == "number":
            text = f"{self.mean:.4g} ± {self.sd:.4g}"
        if self.kind == "date":
            text = f"{self.shown(self.mean)} ± {self.sd:.4g} days"
        if self.kind == "boolean":
            text = f"{100 * self.mean:.3g}% true"
        if self.categories:
            text = ", ".join(self.categories[:FEW])
            text += f" and {len(self.categories) - FEW} more" * (len(self.categories) > FEW)
        missing = f", {self.missing} missing" * bool(self.missing)
        return visible(text) + missing + visible(f" ({self.odd})" if self.odd else "")

    def shown(self, value: float) -> str:
        """Format a number or date of the column."""
        return f"{np.array([value]).astype('datetime64[D]')[0]}" if self.kind == "date" else f"{value:.4g}"

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, without fields that have their default."""
        scale = {} if self.kind not in NAMED or self.kind == "category" else {"mean": self.mean, "sd": self.sd}
        words = {"categories": list(self.categories), "why": self.why, "odd": self.odd, "empty": list(self.empty)}
        record = {"name": self.name, "kind": self.kind} | ({"missing": self.missing} if self.kind in NAMED else {})
        texts = {key: value for key, value in words.items() if value}
        return record | scale | texts | ({} if self.decimal == "." else {"decimal": self.decimal})

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read the values of `to_json`."""
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()
        }
        return cls(**fields)

    def __str__(self) -> str:
        return f"{visible(self.name)}: {self.kind}" + f", {self.about}" * bool(self.about)


def column_roles(
    client: str | None, targets: Sequence[str], group: str | None, *, are_classes: bool
) -> dict[str, ColumnKind]:
    """Return the roles of columns that are not inputs, by column name."""
    roles: dict[str, ColumnKind] = {} if client is None else {client: "client"}
    roles |= dict.fromkeys(targets, "label" if are_classes else "target")
    return roles if group is None else {**roles, group: "group"}


def is_filled(cells: Cells) -> Bools:
    """Return the (n,) mask of cells that are not empty."""
    numbers: Bools = ~np.isnan(cells.numbers)
    return numbers if cells.words is None else numbers | (cells.words.codes >= 0)


def values_of(kind: ColumnKind, cells: Cells, categories: Sequence[str] = ()) -> Floats:
    """Convert cells to (n,) numbers, with nan for cells of another kind."""
    words = cells.words or Words((), np.full(len(cells), -1))
    if kind == "number":
        return cells.numbers
    if kind == "category":
        place: Mapping[str, float] = {category: float(j) for j, category in enumerate(categories)}
        levels = [place.get(level, -1.0) for level in words.levels]
    elif kind == "boolean":
        levels = [TRUTH.get(level.casefold(), np.nan) for level in words.levels]
    else:
        levels = days_of(words.levels).tolist()
    values: Floats = np.array([*levels, np.nan])[words.codes]
    if kind == "boolean":
        values = np.where((cells.numbers == 0) | (cells.numbers == 1), cells.numbers, values)
    return values


# ---- Kind of a column, from counts and sums over the participants' rows

MOST_CATEGORIES = 100  # columns with more categories probably identify rows
FEW_CATEGORIES = 20  # categories that are allowed even in a small table
CONSTANT = 1e-12  # smaller standard deviations, relative to the mean, are rounding errors
SAME = "all participants have the same value"
FEWEST_NUMBERED = 20  # rows that are needed to detect a column of row numbers
NUMBERS_ROWS = "probably a row number"
NAMES_ROWS = re.compile(
    r"(?i:(^|.*[^a-z])(id|ids|pid|uid|row|rows|rowid|rownames?|index|idx|no|nr|num|number|order|key|seq|serial|record|obs))"
    r"|.*[a-z](Id|ID|Nr|No)|Unnamed: [0-9]+"
)
"""Typical names of columns with row numbers or ids. For example, pandas names an index without a name "Unnamed: 0"."""
ROUNDING = 1e-9
FOREIGN = r"[+-]?[0-9]{1,3}([.,][0-9]{3})*([.,][0-9]+)?|[+-]?[0-9]+,[0-9]+"
"""Numbers in which a point or comma can be a decimal or a thousands separator."""


class Counts(NamedTuple):
    """Counts of a column over the participants' training rows; counts of several participants can be added."""

    rows: int = 0  # rows
    unreadable: int = 0  # rows of a column without numbers, words or dates, such as lists
    held: int = 0  # cells that are not empty
    booleans: int = 0  # cells that are Booleans
    numbers: int = 0  # cells that are numbers
    dates: int = 0  # cells that are dates
    foreign: int = 0  # numbers with another decimal separator or with thousands separators
    unique: int = 0  # rows of participants whose cells are distinct whole numbers
    dense: int = 0  # rows of such participants whose numbers fill at least half of their range

    @classmethod
    def of(cls, cells: Cells | None, clients: Sequence[Ints]) -> Counts:
        """Count the cells of all participants.

        Args:
            cells: Cells of the column, or None if the column is unreadable.
            clients: Training rows of each participant.
        """
        rows = sum(map(len, clients))
        if cells is None:
            return cls(rows, unreadable=rows)
        parts = [_numbering(cells.numbers[client_rows]) for client_rows in clients]
        unique, dense = (sum(column) for column in zip(*parts, strict=True)) if parts else (0, 0)
        cells = cells.at(np.concatenate(clients) if clients else np.zeros(0, np.int64))
        has_values, numbers, booleans, foreign = is_filled(cells), ~np.isnan(cells.numbers), 0, 0
        if cells.words is not None:
            levels = [*cells.words.levels, None]
            is_foreign = np.array([level is not None and bool(re.fullmatch(FOREIGN, level)) for level in levels])
            booleans = int(np.array([level in BOOLEANS for level in levels])[cells.words.codes].sum())
            foreign = int((is_foreign[cells.words.codes] & ~numbers).sum())
        dates = int((~np.isnan(values_of("date", cells))).sum())
        return cls(rows, 0, int(has_values.sum()), booleans, int(numbers.sum()), dates, foreign, unique, dense)

    @property
    def kind(self) -> InputKind:
        """Kind of the column; at least one cell must not be empty."""
        if self.booleans == self.held:
            return "boolean"
        if self.numbers >= NUMBERS_SHARE * self.held - ROUNDING:
            return "number"
        return "date" if self.dates >= NUMBERS_SHARE * self.held - ROUNDING else "category"

    @property
    def is_foreign(self) -> bool:
        """Whether 90% of the cells are numbers, and some of these numbers have other separators."""
        return self.foreign > 0 and self.foreign + self.numbers >= NUMBERS_SHARE * self.held - ROUNDING

    def numbers_rows(self, sd: float) -> bool:
        """Return whether a column of numbers with this standard deviation contains row numbers or ids.

        Three conditions must hold. The numbers of each participant are whole and distinct. The numbers fill at least
        half of their range at each participant, or a fifth of the range over all participants. There are at most as
        many rows as whole numbers in the range over all participants. Years do not satisfy this condition, because they
        repeat at each participant. FedReach estimates this range as sqrt(12) sd, which is the range of evenly spaced
        numbers.
        """
        if self.rows < FEWEST_NUMBERED or self.unique < self.rows:
            return False
        whole_range = 12**0.5 * sd
        fills = self.dense == self.rows or self.rows >= 0.2 * whole_range
        return fills and self.rows <= 1.1 * whole_range + 1

    @property
    def left_out(self) -> str:
        """Reason why the column cannot be an input of any kind, or ""."""
        if self.unreadable:
            return "not numbers, words or dates"
        return "" if self.held else "no participant has a value"


def _numbering(numbers: Floats) -> tuple[int, int]:
    """Return the number of rows if all are distinct whole numbers, else 0; then the same if they are also dense."""
    rows = len(numbers)
    if not rows or np.isnan(numbers).any() or (numbers != np.floor(numbers)).any():
        return 0, 0
    if len(np.unique(numbers)) < rows:
        return 0, 0
    return rows, rows if 2 * rows >= np.ptp(numbers) + 1 else 0


def distinct_texts(cells: Cells) -> tuple[str, ...]:
    """Return the distinct texts of cells in sorted order."""
    assert cells.words is not None  # the caller passes a column of words
    codes = np.unique(cells.words.codes[cells.words.codes >= 0])
    return tuple(cells.words.levels[code] for code in codes.tolist())


def input_column(
    name: str,
    counts: Counts,
    requested: InputKind | None,
    texts: Sequence[str] | None = (),
    num_values: int = 0,
    mean: float = 0.0,
    squares: float = 0.0,
    first: str = "",
) -> InputColumn:
    """Decide how a column becomes inputs, from counts and sums over the participants' training rows.

    Args:
        name: Name of the column.
        counts: Counts over all participants.
        requested: Kind that the user has set. Default: the counts determine the kind.
        texts: Sorted distinct texts of a column of words; None if there are more than `MOST_CATEGORIES`.
        num_values: Number of cells with a value of the kind.
        mean: Mean of these values.
        squares: Sum of their squared differences from the mean.
        first: First cell of another kind. For words, a number with other separators.

    Raises:
        DataError: If no cell contains a value of the requested kind.
    """
    kind, missing = requested or counts.kind, counts.rows - counts.held
    if counts.left_out:
        return InputColumn(name, "left out", why=counts.left_out)
    if kind == "category":
        max_categories = math.inf if requested else min(MOST_CATEGORIES, max(FEW_CATEGORIES, counts.rows / 2))
        if not requested and counts.is_foreign:
            example = f"such as {first!r}" if first else "with other separators"
            why = f"numbers {example} are ambiguous: set columns.decimal and remove thousands separators"
        elif texts is None or len(texts) > max_categories:
            how_many = f"more than {MOST_CATEGORIES}" if texts is None else str(len(texts))
            share = 100 * counts.numbers / max(counts.held, 1)
            numbers = f", {share:.0f}% of them numbers," if counts.numbers else ""
            why = f"{how_many} different texts{numbers} in {counts.rows} rows are probably ids"
        elif len(texts) + bool(missing) < 2:
            why = SAME
        else:
            return InputColumn(name, kind, missing, categories=tuple(texts))
        return InputColumn(name, "left out", why=why)
    if not num_values:
        raise DataError(
            f"table: column {name!r} must contain {NAMED[kind]}, but no participant has such a value"
            f"{f'; the first value is {first}' if first else ''}. Set another kind, or none."
        )
    sd = (squares / num_values) ** 0.5
    if sd <= CONSTANT * abs(mean):
        return InputColumn(name, "left out", why=SAME)
    num_odd = counts.held - num_values
    remark = f"{num_odd} {'value is' if num_odd == 1 else 'values are'} not of this kind" if num_odd else ""
    remark += f": the first is {first}" if first else ""
    if kind == "number" and not requested and counts.numbers_rows(sd):
        if NAMES_ROWS.fullmatch(name):
            return InputColumn(name, "left out", why=f"{NUMBERS_ROWS}; list it in columns.number to use it")
        remark = remark or f"{NUMBERS_ROWS}; drop it if it is one"
    return InputColumn(name, kind, counts.rows - num_values, mean, sd, odd=remark)


def squares(values: Floats, mean: float) -> float:
    """Return the sum of squared differences from a mean."""
    return float(((values - mean) ** 2).sum())


# ---- Conversion of tables to inputs


@dataclass(frozen=True)
class Preparation:
    """Conversion of tables to inputs, whose parameters depend only on the participants' training rows.

    x_i are the values of participant i that are not missing. Then mean = sum_i sum(x_i) / sum_i |x_i| and sd^2 = sum_i
    sum((x_i - mean)^2) / sum_i |x_i|. Each participant contributes only two sums and a count, so secure aggregation can
    compute the mean and sd.

    Example:
        >>> from fedreach.data.cells import cells_by_name
        >>> ages = {"age": [30, 50, None, 90], "ward": ["a", "b", "a", "c"]}
        >>> cells = cells_by_name(read_table(ages))
        >>> made = Preparation.of(cells, [np.array([0, 1]), np.array([2])])  # the last row is not used
        >>> print(made)
        age   number    40 ± 10, 1 missing
        ward  category  a, b
        >>> made.feature_names
        ('age', 'age is missing', 'ward = a', 'ward = b')
        >>> made.inputs(ages)
        array([[-1.,  0.,  1.,  0.],
               [ 1.,  0.,  0.,  1.],
               [ 0.,  1.,  1.,  0.],
               [ 5.,  0.,  0.,  0.]], dtype=float32)
    """

    columns: tuple[InputColumn, ...]

    @classmethod
    def of(
        cls,
        table: Mapping[str, Cells | None],
        clients: Sequence[Ints],
        places: Ints | None = None,
        kinds: Mapping[str, InputKind] | None = None,
    ) -> Self:
        """Build the preparation of a table.

        Without `kinds`, the participants' rows determine the kind of a column. The kind is Boolean if all values are
        Booleans, number or date if 90% of the values are numbers or dates, and otherwise words.

        Args:
            table: Cells by column name, from `fedreach.data.cells.cells_by_name`.
            clients: Training rows of each participant.
            places: (n,) row numbers in the user's table, for messages. Default: 0, 1, ....
            kinds: Kinds of columns by name. Other columns have the kind that their values determine.

        Raises:
            DataError: If no column can be an input, or a column in `kinds` has no value of its kind.
        """
        kind_by_name = kinds or {}
        preparation = cls(
            tuple(_column(name, values, clients, places, kind_by_name.get(name)) for name, values in table.items())
        )
        if not preparation.feature_names:
            raise DataError(f"The table must have a column that can be an input; got:\n{preparation}")
        return preparation

    def described(
        self,
        named: Mapping[str, ColumnKind],
        classes: Sequence[str],
        rules: ColumnRules,
        remarks: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """Return the complete schema, including columns that are not inputs, and the format of cells.

        Args:
            named: Roles of columns that are not inputs: client, label, target or group.
            classes: Names of the classes.
            rules: Options for columns.
            remarks: Remarks by column name. For a column without a role, the remark is the reason why the column is not
                an input.
        """
        of_label, of_group = {"label": tuple(classes)}, {"group": "rows of a group are held out together"}
        columns = [
            InputColumn(
                name, kind, categories=of_label.get(kind, ()), why=of_group.get(kind, ""), odd=remarks.get(name, "")
            )
            for name, kind in named.items()
        ]
        columns += [*self.columns, *(InputColumn(name, "dropped", why="listed in columns.drop") for name in rules.drop)]
        columns += [InputColumn(name, "left out", why=why) for name, why in remarks.items() if name not in named]
        missing, decimal = rules.reading
        return type(self)(tuple(replace(column, empty=missing, decimal=decimal) for column in columns))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the d inputs."""
        return tuple(name for column in self.columns for name in column.feature_names)

    @property
    def used(self) -> tuple[InputColumn, ...]:
        """Columns that become inputs."""
        return tuple(column for column in self.columns if column.kind in NAMED)

    @property
    def reading(self) -> Reading:
        """Texts that mark missing values, and the decimal separator, in all columns."""
        return self.columns[0].reading

    @property
    def client(self) -> InputColumn | None:
        """Column with the client of each row, or None if the table has no such column."""
        return next((column for column in self.columns if column.kind == "client"), None)

    @property
    def labels(self) -> tuple[InputColumn, ...]:
        """Columns of the targets: one column of classes, or columns of numbers."""
        return tuple(column for column in self.columns if column.kind in ("label", "target"))

    def inputs(self, table: Any) -> Float32s:
        """Convert a table with the same columns to (n, d) inputs; additional columns are ignored.

        Raises:
            ConfigError: If a column is missing.
            DataError: If all values of a column are of another kind, or columns differ in length.
        """
        return self.inputs_of_cells(self.cells(table))

    def raw(self, table: Any) -> Floats:
        """Convert a table to (n, k) raw numbers of the k columns in `used` (see `InputColumn.raw`).

        This method raises the same errors as `inputs`.

        Example:
            >>> ward = InputColumn("ward", "category", categories=("heart", "surgery"))
            >>> Preparation((InputColumn("age", "number"), ward)).raw({"age": [30, None], "ward": ["surgery", "eyes"]})
            array([[30.,  1.],
                   [nan, -1.]])
        """
        return np.column_stack(self.numbers(self.cells(table)))

    def inputs_of_cells(self, table: Mapping[str, Cells | None]) -> Float32s:
        """Convert cells from `fedreach.data.cells.cells_by_name` to (n, d) inputs."""
        raw = self.numbers(table)
        inputs, end = np.zeros((len(raw[0]), len(self.feature_names)), np.float32), 0
        for column, values in zip(self.used, raw, strict=True):
            begin, end = end, end + len(column.feature_names)
            column.write(values, inputs[:, begin:end])
        return inputs

    def cells(self, table: Any) -> dict[str, Cells | None]:
        """Read the cells of the columns in `used`; raise the same errors as `inputs`."""
        table = read_table(table)
        if missing := [column.name for column in self.used if column.name not in table]:
            more = f" and {len(missing) - MAX_LISTED} more" if len(missing) > MAX_LISTED else ""
            names = ", ".join(map(repr, missing[:MAX_LISTED]))
            what = "missing column" if len(missing) == 1 else "missing columns"
            raise ConfigError(f"table: {what} {names}{more}.{nearest(missing[0], table)}")
        used = {column.name: table[column.name] for column in self.used}
        check_lengths(used, self.used[0].name)
        return {
            column.name: cells_of(
                column.name, used[column.name], as_words=column.kind == "category", reading=column.reading
            )
            for column in self.used
        }

    def numbers(self, table: Mapping[str, Cells | None]) -> list[Floats]:
        """Convert cells to (n,) raw numbers for each column in `used` (see `InputColumn.raw`)."""
        return [column.raw(table[column.name]) for column in self.used]

    def to_json(self) -> list[dict[str, Any]]:
        """Return JSON values."""
        return [column.to_json() for column in self.columns]

    @classmethod
    def of_json(cls, stored: Sequence[Mapping[str, Any]]) -> Self:
        """Read the values of `to_json`."""
        return cls(tuple(map(InputColumn.of_json, stored)))

    def lines(self, max_lines: int | None = None) -> list[str]:
        """Return one line per column with its name, kind and description.

        Args:
            max_lines: Largest number of lines. If the table has more columns, the lines describe columns with remarks
                first, and the last line states how many columns are omitted. Default: no limit.
        """
        first = sorted(self.columns, key=lambda column: column.kind in NAMED and not column.odd)
        chosen = first if max_lines is None or len(first) <= max_lines else first[: max_lines - 1]
        rows = [(visible(column.name), column.kind, column.about) for column in self.columns if column in chosen]
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)] if rows else []
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        omitted_kinds = [column.kind for column in self.columns if column not in chosen]
        counts = ", ".join(f"{omitted_kinds.count(kind)} {kind}" for kind in dict.fromkeys(omitted_kinds))
        return [*lines, f"and {len(omitted_kinds)} more columns: {counts}"] if omitted_kinds else lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _column(
    name: str, cells: Cells | None, clients: Sequence[Ints], places: Ints | None, requested: InputKind | None
) -> InputColumn:
    counts = Counts.of(cells, clients)
    if cells is None or counts.left_out:
        return input_column(name, counts, requested)
    rows = np.concatenate(clients)
    participant_cells, kind = cells.at(rows), requested or counts.kind
    if kind == "category":
        example = _foreign_number(participant_cells) if counts.is_foreign else ""
        return input_column(name, counts, requested, distinct_texts(participant_cells), first=example)
    values = values_of(kind, cells)
    odd = is_filled(participant_cells) & np.isnan(values[rows])
    first = _first(participant_cells, odd, rows if places is None else places[rows]) if odd.any() else ""
    present_values = [column[~np.isnan(column)] for column in (values[client_rows] for client_rows in clients)]
    count = sum(map(len, present_values))
    mean = sum(float(client_values.sum()) for client_values in present_values) / max(count, 1)
    squared = sum(squares(client_values, mean) for client_values in present_values)
    return input_column(name, counts, requested, (), count, mean, squared, first)


def _first(cells: Cells, odd: Bools, places: Ints) -> str:
    """Describe the first cell of another kind and its row."""
    first = int(np.flatnonzero(odd)[places[odd].argmin()])
    code = -1 if cells.words is None else int(cells.words.codes[first])
    text = f"{cells.numbers[first]:g}" if cells.words is None or code < 0 else cells.words.levels[code]
    return f"{text!r}, row {int(places[first])}"


def _foreign_number(cells: Cells) -> str:
    """Return the first number with other separators."""
    unread = cells.at(np.flatnonzero(np.isnan(cells.numbers)))
    return next(level for level in distinct_texts(unread) if re.fullmatch(FOREIGN, level))


# ---- Scale of numeric targets


@dataclass(frozen=True)
class TargetScale:
    """Mean and standard deviation of t targets over the participants' training rows, in their original units.

    t_i are the targets of participant i. Then mean = sum_i sum(t_i) / sum_i |t_i| and sd^2 = sum_i sum((t_i - mean)^2)
    / sum_i |t_i|. Models are trained on (target - mean) / sd.

    Example:
        >>> scale = TargetScale.of(4, np.array([20.0]), np.array([36.0]))
        >>> scale
        TargetScale(mean=(5.0,), sd=(3.0,))
        >>> scale.scaled(np.array([[8.0]])), scale.in_units(np.array([[1.0]]))
        (array([[1.]], dtype=float32), array([[8.]]))
    """

    mean: tuple[float, ...]  # (t,)
    sd: tuple[float, ...]  # (t,)

    @classmethod
    def of(cls, rows: int, total: Floats, squares: Floats, names: Sequence[str] = ()) -> Self:
        """Compute the scale from sums over all participants.

        Args:
            rows: Number of training rows.
            total: (t,) sum of the targets.
            squares: (t,) sum of (target - total / rows)^2.
            names: Names of the targets, for messages.

        Raises:
            DataError: If all values of a target are equal.
        """
        mean, sd = total / rows, np.sqrt(squares / rows)
        for place in np.flatnonzero(sd <= CONSTANT * abs(mean)).tolist():
            name = repr(names[place]) if names else f"number {place}"
            raise DataError(
                f"target {name} must vary between the participants' {rows} training rows; got {mean[place]:g} in "
                "all of them. Add participants, or predict another column."
            )
        return cls(tuple(mean.tolist()), tuple(sd.tolist()))

    @classmethod
    def of_clients(cls, targets: Sequence[AnyArray], names: Sequence[str] = ()) -> Self:
        """Compute the scale of the participants' (m, t) targets; the order of clients and rows does not matter."""
        count = sum(map(len, targets))
        total = sum_exactly([sum_exactly(client_targets) for client_targets in targets])
        squares = sum_exactly([squared_differences(client_targets, total / count) for client_targets in targets])
        return cls.of(count, total, squares, names)

    def scaled(self, targets: AnyArray) -> Float32s:
        """Convert (..., t) targets to the scale that is used in training."""
        return np.asarray(((targets.astype(np.float64) - self.mean) / self.sd).astype(np.float32))

    def in_units(self, outputs: AnyArray) -> Floats:
        """Convert (..., t) model outputs to the original units."""
        return np.asarray(outputs.astype(np.float64) * self.sd + self.mean)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"mean": list(self.mean), "sd": list(self.sd)}

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read the values of `to_json`."""
        return cls(tuple(stored["mean"]), tuple(stored["sd"]))

    def lines(self, names: Sequence[str] = ()) -> list[str]:
        """Return one line per target.

        Example:
            >>> TargetScale((180921.2,), (79442.5,)).lines(["price"])
            ['price: mean 180,921 ± 79,442; mse and huber train in these units']
        """
        target_names = names if len(names) == len(self.mean) else [f"target {place}" for place in range(len(self.mean))]
        return [
            f"{visible(name)}: mean {_format_number(mean)} ± {_format_number(sd)}; mse and huber train in these units"
            for name, mean, sd in zip(target_names, self.mean, self.sd, strict=True)
        ]


def sum_exactly(arrays: AnyArray | Sequence[AnyArray]) -> Floats:
    """Return the exact sum of an (m, ...) array over m, rounded only once, so that the order does not matter.

    Example:
        >>> sum_exactly(np.array([[1e16], [1.0], [-1e16]]))
        array([1.])
    """
    return np.asarray(np.apply_along_axis(math.fsum, 0, np.asarray(arrays, np.float64)))


def squared_differences(targets: AnyArray, mean: Floats) -> Floats:
    """Return the (t,) sum of (target - mean)^2 over (m, t) targets.

    Example:
        >>> squared_differences(np.array([[1.0], [5.0]]), np.array([2.0]))
        array([10.])
    """
    return sum_exactly((targets.astype(np.float64) - mean) ** 2)


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
