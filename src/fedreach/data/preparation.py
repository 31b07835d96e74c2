"""Preparation of a table: from columns to inputs, and the scale of a target."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from fedreach._util.arrays import AnyArray, Bools, Float32s, Floats, Ints
from fedreach._util.errors import DataError
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
from fedreach.data.table_source import column_of, read_table

# -------------------- A column of a table and how it becomes inputs, cell by cell

ColumnKind = Literal["client", "label", "target", "group", InputKind, "left out", "dropped"]
NAMED: dict[ColumnKind, str] = {"number": "numbers", "boolean": "true and false", "date": "dates", "category": "words"}
"""Kinds that become inputs, and what their cells hold."""
TRUTH = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
FEW = 6  # categories that are named where there may be many


@dataclass(frozen=True)
class InputColumn:
    """How a column of a table becomes inputs; or what it is else, such as the client of each row.

    A number x becomes (x - mean) / sd, and 0 where it is missing; so do true and false, as 1 and 0, and dates, as days
    since 1970. A word becomes one input for each category, 1 for its own and 0 for the others, and 0 everywhere if no
    participant has it.
    """

    name: str
    kind: ColumnKind
    missing: int = 0  # rows of participants; where there are any, being missing is an input, too
    mean: float = 0.0
    sd: float = 1.0
    categories: tuple[str, ...] = ()
    why: str = ""  # it is no input
    odd: str = ""  # cells of participants that are none of its kind, and count as missing
    empty: tuple[str, ...] = ()  # what cells say that hold nothing, beside what they always may
    decimal: Decimal = "."

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Name of each input that it becomes."""
        if self.kind not in NAMED:
            return ()
        names = [f"{self.name} = {category}" for category in self.categories] or [self.name]
        return (*names, f"{self.name} is missing") if self.missing else tuple(names)

    def raw(self, cells: Cells | None) -> Floats:
        """Return (n,) one number a row: the number itself, or the place of a word among the categories.

        What is missing, or of another kind, is nan, and a word that no participant has is -1.

        Raises:
            DataError: If no cell that holds something is of the column's kind.
        """
        if cells is not None:
            values = values_of(self.kind, cells, self.categories)
            if not (np.isnan(values).all() and held(cells).any()):
                return values
        raise DataError(f"table: column {self.name!r} must hold {NAMED[self.kind]}, as it did for those who trained.")

    def write(self, raw: Floats, inputs: Float32s) -> None:
        """Write the (n, f) inputs that the (n,) numbers of `raw` become.

        Raises:
            DataError: If a number is so far from the mean that float32 has none for it.
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
                    f"table: column {self.name!r} holds {raw[far[0]]:g}, and participants {self.about}: that is too "
                    "far from their mean for float32. Leave the cell empty, or the row out, or drop the column."
                )
            inputs[:, 0] = scaled
        if self.missing:
            inputs[:, -1] = gone

    @property
    def reading(self) -> Reading:
        """How its cells are read."""
        return Reading(self.empty, self.decimal)

    @property
    def about(self) -> str:
        """What it is like, in words."""
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
        """Return one of its numbers as people write it."""
        return f"{np.array([value]).astype('datetime64[D]')[0]}" if self.kind == "date" else f"{value:.4g}"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values; what is as always is left out."""
        scale = {} if self.kind not in NAMED or self.kind == "category" else {"mean": self.mean, "sd": self.sd}
        words = {"categories": list(self.categories), "why": self.why, "odd": self.odd, "empty": list(self.empty)}
        record = {"name": self.name, "kind": self.kind} | ({"missing": self.missing} if self.kind in NAMED else {})
        texts = {key: value for key, value in words.items() if value}
        return record | scale | texts | ({} if self.decimal == "." else {"decimal": self.decimal})

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return what `to_json` returned."""
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()
        }
        return cls(**fields)

    def __str__(self) -> str:
        return f"{visible(self.name)}: {self.kind}" + f", {self.about}" * bool(self.about)


def held(cells: Cells) -> Bools:
    """Return (n,) whether a cell holds something."""
    numbers: Bools = ~np.isnan(cells.numbers)
    return numbers if cells.words is None else numbers | (cells.words.codes >= 0)


def values_of(kind: ColumnKind, cells: Cells, categories: Sequence[str] = ()) -> Floats:
    """Return (n,) one number a row, nan for cells of another kind."""
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


# --- What participants tell of a column so that all agree on what it is: counts and sums, and what follows from these

MOST_CATEGORIES = 100  # what has more of them names a row rather than says something about it
FEW_CATEGORIES = 20  # which a column may have whatever the number of rows
CONSTANT = 1e-12  # of the mean: a smaller deviation is rounding
SAME = "it is the same for all who take part"
FEWEST_NUMBERED = 20  # rows, of which a column may be taken for their numbers
NUMBERS_ROWS = "it numbers the rows"
NAMES_ROWS = re.compile(
    r"(?i:(^|.*[^a-z])(id|ids|pid|uid|row|rows|rowid|rownames?|index|idx|no|nr|num|number|order|key|seq|serial|record|obs))"
    r"|.*[a-z](Id|ID|Nr|No)|Unnamed: [0-9]+"
)
"""What columns are called that number rows, persons or cases; an index without a name is "Unnamed: 0" in pandas."""
ROUNDING = 1e-9
FOREIGN = r"[+-]?[0-9]{1,3}([.,][0-9]{3})*([.,][0-9]+)?|[+-]?[0-9]+,[0-9]+"
"""Numbers with points or commas, of which it must be said what these are."""


class Counts(NamedTuple):
    """How many cells of participants' training rows are what; those of several participants add up."""

    rows: int = 0
    unreadable: int = 0  # rows of a column that holds neither numbers nor words nor dates, such as lists
    held: int = 0  # that hold something
    booleans: int = 0
    numbers: int = 0
    dates: int = 0
    foreign: int = 0  # no numbers as they stand, which they would be with other points and commas
    unique: int = 0  # rows of participants at whom all cells are different whole numbers
    dense: int = 0  # of these, at whom they fill at least half of their range

    @classmethod
    def of(cls, cells: Cells | None, clients: Sequence[Ints]) -> Counts:
        """Return the counts of clients together; each different text is looked at once, however many clients there are.

        Args:
            cells: Of a column; None: of one that cannot be read.
            clients: The rows of each client.
        """
        rows = sum(map(len, clients))
        if cells is None:
            return cls(rows, unreadable=rows)
        parts = [_numbering(cells.numbers[client_rows]) for client_rows in clients]
        unique, dense = (sum(column) for column in zip(*parts, strict=True)) if parts else (0, 0)
        cells = cells.at(np.concatenate(clients) if clients else np.zeros(0, np.int64))
        has_values, numbers, booleans, foreign = held(cells), ~np.isnan(cells.numbers), 0, 0
        if cells.words is not None:
            levels = [*cells.words.levels, None]
            is_foreign = np.array([level is not None and bool(re.fullmatch(FOREIGN, level)) for level in levels])
            booleans = int(np.array([level in BOOLEANS for level in levels])[cells.words.codes].sum())
            foreign = int((is_foreign[cells.words.codes] & ~numbers).sum())
        dates = int((~np.isnan(values_of("date", cells))).sum())
        return cls(rows, 0, int(has_values.sum()), booleans, int(numbers.sum()), dates, foreign, unique, dense)

    @property
    def kind(self) -> InputKind:
        """What the column is, where some cell holds something."""
        if self.booleans == self.held:
            return "boolean"
        if self.numbers >= NUMBERS_SHARE * self.held - ROUNDING:
            return "number"
        return "date" if self.dates >= NUMBERS_SHARE * self.held - ROUNDING else "category"

    @property
    def is_foreign(self) -> bool:
        """Whether nine in ten cells are numbers, and some with other points and commas than ours."""
        return self.foreign > 0 and self.foreign + self.numbers >= NUMBERS_SHARE * self.held - ROUNDING

    def numbers_rows(self, sd: float) -> bool:
        """Whether a column of numbers with this deviation rather numbers the rows, as an index or an id does.

        All are different whole numbers at each participant, and fill at least half of their range there or a fifth of
        it at all of them together; and they are no more than the whole numbers of that range, which a column of years
        has again at every participant. The range is that of evenly spread numbers, sqrt(12) sd.
        """
        if self.rows < FEWEST_NUMBERED or self.unique < self.rows:
            return False
        whole_range = 12**0.5 * sd
        fills = self.dense == self.rows or self.rows >= 0.2 * whole_range
        return fills and self.rows <= 1.1 * whole_range + 1

    @property
    def left_out(self) -> str:
        """Why the column is no input whatever its kind; "" where it may be one."""
        if self.unreadable:
            return "it holds neither numbers nor words nor dates"
        return "" if self.held else "no participant has a value"


def _numbering(numbers: Floats) -> tuple[int, int]:
    """Return how many rows have whole numbers that are all different, and that are dense, too: all or none."""
    rows = len(numbers)
    if not rows or np.isnan(numbers).any() or (numbers != np.floor(numbers)).any():
        return 0, 0
    if len(np.unique(numbers)) < rows:
        return 0, 0
    return rows, rows if 2 * rows >= np.ptp(numbers) + 1 else 0


def met(cells: Cells) -> tuple[str, ...]:
    """Return the different texts that stand in some cells, sorted."""
    assert cells.words is not None  # or all cells are numbers
    codes = np.unique(cells.words.codes[cells.words.codes >= 0])
    return tuple(cells.words.levels[code] for code in codes.tolist())


def number_column(
    name: str, kind: InputKind, counts: Counts, num_values: int, mean: float, squares: float, *, is_asked: bool
) -> InputColumn:
    """Return a column of numbers, dates or truth values.

    Args:
        name: Of the column.
        kind: What it is.
        counts: Of all participants.
        num_values: Number of cells that hold such a value.
        mean: Of these.
        squares: Sum of their squared differences from it.
        is_asked: Whether it is said to be of this kind.
    """
    sd = (squares / num_values) ** 0.5
    if sd <= CONSTANT * abs(mean):
        return InputColumn(name, "left out", why=SAME)
    remark = ""
    if kind == "number" and not is_asked and counts.numbers_rows(sd):
        if NAMES_ROWS.fullmatch(name):
            return InputColumn(name, "left out", why=f"{NUMBERS_ROWS}; name it in columns.number to use it")
        remark = f"{NUMBERS_ROWS}; drop it if it is no more than that"
    return InputColumn(name, kind, counts.rows - num_values, mean, sd, odd=remark)


def category_column(
    name: str, counts: Counts, categories: Sequence[str] | None, *, is_asked: bool, example: str = ""
) -> InputColumn:
    """Return a column of categories.

    Args:
        name: Of the column.
        counts: Of all participants.
        categories: The different texts, sorted; None: more than a column may have that is not said to be of categories.
        is_asked: Whether it is said to be.
        example: Of a number with other points and commas.
    """
    if not is_asked and counts.is_foreign:
        how = f"as {example!r}" if example else "with other points and commas"
        why = f"its numbers are written {how}: set columns.decimal, and leave out what parts thousands"
        return InputColumn(name, "left out", why=why)
    missing = counts.rows - counts.held
    if categories is not None and len(categories) + bool(missing) < 2:
        return InputColumn(name, "left out", why=SAME)
    max_categories = min(MOST_CATEGORIES, max(FEW_CATEGORIES, counts.rows / 2))
    if categories is None or (not is_asked and len(categories) > max_categories):
        how_many = f"more than {MOST_CATEGORIES}" if categories is None else str(len(categories))
        share = 100 * counts.numbers / max(counts.held, 1)
        numbers = f", {share:.0f}% of them numbers," if counts.numbers else ""
        return InputColumn(
            name, "left out", why=f"{how_many} different texts{numbers} in {counts.rows} rows are rather names"
        )
    return InputColumn(name, "category", missing, categories=tuple(categories))


def squares(values: Floats, mean: float) -> float:
    """Return the sum of squared differences from a mean."""
    return float(((values - mean) ** 2).sum())


# --- How a table becomes inputs: the kind of each column, categories, missing values, and numbers on one scale


@dataclass(frozen=True)
class Preparation:
    """How tables become inputs. All of its numbers are of the participants' training rows; nobody else's are read.

    With x_i the values of participant i that are not missing, mean = sum_i sum(x_i) / sum_i |x_i| and
    sd^2 = sum_i sum((x_i - mean)^2) / sum_i |x_i|: a participant adds two sums and a count, so that a server that sees
    sums only can find them.

    Example:
        >>> from fedreach.data.cells import cells_by_name
        >>> ages = {"age": [30, 50, None, 90], "ward": ["a", "b", "a", "c"]}
        >>> cells = cells_by_name(read_table(ages))
        >>> made = Preparation.of(cells, [np.array([0, 1]), np.array([2])])  # nobody reads the last row
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
        """Return how a table is prepared.

        What a column is follows from the participants' rows, too, unless it is said: true and false, numbers or dates
        where nine in ten of its cells are, else words.

        Args:
            table: As `fedreach.data.cells.cells_by_name` returns it.
            clients: The training rows of each participant.
            places: (n,) where rows stood as the table was read, for messages. None: where they stand.
            kinds: What columns are whatever they look like, by name.

        Raises:
            DataError: If no column is left, or no cell of one is of the kind that is said.
        """
        kind_by_name = kinds or {}
        preparation = cls(
            tuple(_column(name, values, clients, places, kind_by_name.get(name)) for name, values in table.items())
        )
        if not preparation.feature_names:
            raise DataError(f"No column of the table can be an input:\n{preparation}")
        return preparation

    def described(
        self,
        named: Mapping[str, ColumnKind],
        classes: Sequence[str],
        rules: ColumnRules,
        remarks: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """Return the whole schema: with the columns that are no inputs, and how cells are read.

        Args:
            named: Columns that are no inputs, and what they are: client, label, target or group.
            classes: Of the label.
            rules: What was said of the columns.
            remarks: By column, a remark on one of these, or the reason why another column is not an input.
        """
        of_label, of_group = {"label": tuple(classes)}, {"group": "rows of one are held out together"}
        columns = [
            InputColumn(
                name, kind, categories=of_label.get(kind, ()), why=of_group.get(kind, ""), odd=remarks.get(name, "")
            )
            for name, kind in named.items()
        ]
        columns += [*self.columns, *(InputColumn(name, "dropped", why="as asked") for name in rules.drop)]
        columns += [InputColumn(name, "left out", why=why) for name, why in remarks.items() if name not in named]
        missing, decimal = rules.reading
        return type(self)(tuple(replace(column, empty=missing, decimal=decimal) for column in columns))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Name of each of the d inputs."""
        return tuple(name for column in self.columns for name in column.feature_names)

    @property
    def used(self) -> tuple[InputColumn, ...]:
        """The columns that become inputs."""
        return tuple(column for column in self.columns if column.kind in NAMED)

    @property
    def reading(self) -> Reading:
        """How cells of all columns are read."""
        return self.columns[0].reading

    @property
    def client(self) -> InputColumn | None:
        """The column that names the client of each row; None where the table was not told."""
        return next((column for column in self.columns if column.kind == "client"), None)

    @property
    def labels(self) -> tuple[InputColumn, ...]:
        """The column of classes, or those of the numbers to predict."""
        return tuple(column for column in self.columns if column.kind in ("label", "target"))

    def inputs(self, table: Any) -> Float32s:
        """Return the (n, d) inputs for the rows of a table with the same columns; others may stand beside them.

        Raises:
            ConfigError: If a column is missing.
            DataError: If one holds words where there were numbers, or the other way round, or is shorter than another.
        """
        return self._inputs(self.numbers(self.cells(table)))

    def raw(self, table: Any) -> Floats:
        """Return (n, k) one number for each column that is used, see `InputColumn.raw`; raises as `inputs`.

        Example:
            >>> ward = InputColumn("ward", "category", categories=("heart", "surgery"))
            >>> Preparation((InputColumn("age", "number"), ward)).raw({"age": [30, None], "ward": ["surgery", "eyes"]})
            array([[30.,  1.],
                   [nan, -1.]])
        """
        return np.column_stack(self.numbers(self.cells(table)))

    def written(self, table: Mapping[str, Cells | None]) -> Float32s:
        """Return the (n, d) inputs for a table as `fedreach.data.cells.cells_by_name` returns it."""
        return self._inputs(self.numbers(table))

    def cells(self, table: Any) -> dict[str, Cells | None]:
        """Return the cells of the columns that are used; raises as `inputs`."""
        columns = read_table(table)
        return {
            column.name: cells_of(
                column.name, column_of(columns, column.name), as_words=column.kind == "category", reading=column.reading
            )
            for column in self.used
        }

    def numbers(self, table: Mapping[str, Cells | None]) -> list[Floats]:
        """Return (n,) one number a row for each column that is used, see `InputColumn.raw`."""
        columns = [column.raw(table[column.name]) for column in self.used]
        for column, values in zip(self.used, columns, strict=True):
            if len(values) != len(columns[0]):
                raise DataError(
                    f"table: all columns must be as long; {self.used[0].name!r} has {len(columns[0])} rows and "
                    f"{column.name!r} has {len(values)}. Leave cells empty where a value is missing."
                )
        return columns

    def _inputs(self, raw: Sequence[Floats]) -> Float32s:
        inputs, end = np.zeros((len(raw[0]), len(self.feature_names)), np.float32), 0
        for column, values in zip(self.used, raw, strict=True):
            begin, end = end, end + len(column.feature_names)
            column.write(values, inputs[:, begin:end])
        return inputs

    def to_json(self) -> list[dict[str, Any]]:
        """Return it as plain JSON values."""
        return [column.to_json() for column in self.columns]

    @classmethod
    def of_json(cls, stored: Sequence[Mapping[str, Any]]) -> Self:
        """Return what `to_json` returned."""
        return cls(tuple(map(InputColumn.of_json, stored)))

    def lines(self, max_lines: int | None = None) -> list[str]:
        """Return a line for each column: its name, its kind and what it is like.

        Args:
            max_lines: Largest number of lines. With a limit, columns with a remark come first, and the last line
                counts the others. Default: no limit.
        """
        first = sorted(self.columns, key=lambda column: column.kind in NAMED and not column.odd)  # stable
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
    name: str, cells: Cells | None, clients: Sequence[Ints], places: Ints | None, asked_kind: InputKind | None
) -> InputColumn:
    rows = np.concatenate(clients) if clients else np.zeros(0, np.int64)
    participant_cells = None if cells is None else cells.at(rows)
    counts = Counts.of(cells, clients)
    if participant_cells is None or cells is None or counts.left_out:
        return InputColumn(name, "left out", why=counts.left_out)
    kind = asked_kind or counts.kind
    if kind == "category":
        example = _foreign_number(participant_cells) if counts.is_foreign else ""
        return category_column(name, counts, met(participant_cells), is_asked=asked_kind is not None, example=example)
    odd = held(participant_cells) & np.isnan(values_of(kind, participant_cells))
    stood = rows if places is None else places[rows]
    if odd.sum() == counts.held:
        raise DataError(
            f"table: column {name!r} is said to hold {NAMED[kind]}, and no cell of those who take part does: the first "
            f"is {_first(participant_cells, odd, stood)}. Say another kind, or none."
        )
    hold = "holds" if odd.sum() == 1 else "hold"
    remark = (
        f"{odd.sum()} of these {hold} no {kind}: the first is {_first(participant_cells, odd, stood)}"
        if odd.any()
        else ""
    )
    values = values_of(kind, cells)
    present_values = [column[~np.isnan(column)] for column in (values[rows] for rows in clients)]
    count = sum(map(len, present_values))
    mean = sum(float(client_values.sum()) for client_values in present_values) / count
    squared = sum(squares(client_values, mean) for client_values in present_values)
    column = number_column(name, kind, counts, count, mean, squared, is_asked=asked_kind is not None)
    return replace(column, odd=remark or column.odd)


def _first(cells: Cells, odd: Bools, places: Ints) -> str:
    """Return the first cell of another kind, and its row."""
    first = int(np.flatnonzero(odd)[places[odd].argmin()])
    code = -1 if cells.words is None else int(cells.words.codes[first])
    text = f"{cells.numbers[first]:g}" if cells.words is None or code < 0 else cells.words.levels[code]
    return f"{text!r}, row {int(places[first])}"


def _foreign_number(cells: Cells) -> str:
    """Return a number with other points and commas than ours: one that was not read as a number."""
    unread = cells.at(np.flatnonzero(np.isnan(cells.numbers)))
    return next(level for level in met(unread) if re.fullmatch(FOREIGN, level))


# -------------------- The scale of targets that are numbers: what participants' training rows say of it, as sums


class TargetSums(NamedTuple):
    """What participants add up, in two exchanges: the second sum needs the mean that follows from the first."""

    rows: int
    total: Floats  # (t,) sum of the targets
    squares: Floats  # (t,) sum of (target - total / rows)^2


@dataclass(frozen=True)
class TargetScale:
    """The mean and the standard deviation of each of t targets, in the units of their columns.

    With t_i the targets of participant i's training rows, mean = sum_i sum(t_i) / sum_i |t_i| and
    sd^2 = sum_i sum((t_i - mean)^2) / sum_i |t_i|. A model is trained on (target - mean) / sd.

    Example:
        >>> scale = TargetScale.of(TargetSums(4, np.array([20.0]), np.array([36.0])))
        >>> scale
        TargetScale(mean=(5.0,), sd=(3.0,))
        >>> scale.scaled(np.array([[8.0]])), scale.in_units(np.array([[1.0]]))
        (array([[1.]], dtype=float32), array([[8.]]))
    """

    mean: tuple[float, ...]
    sd: tuple[float, ...]

    @classmethod
    def of(cls, sums: TargetSums, names: Sequence[str] = ()) -> Self:
        """Return the scale that follows from the participants' sums.

        Args:
            sums: Over all participants.
            names: Of the targets, for messages.

        Raises:
            DataError: If a target is the same in all rows.
        """
        mean, sd = sums.total / sums.rows, np.sqrt(sums.squares / sums.rows)
        for place in np.flatnonzero(sd <= CONSTANT * abs(mean)).tolist():
            name = repr(names[place]) if names else f"number {place}"
            raise DataError(
                f"target {name} is {mean[place]:g} in all {sums.rows} rows that participants train on: it varies in "
                "none of them. Let more clients take part, or predict another column."
            )
        return cls(tuple(mean.tolist()), tuple(sd.tolist()))

    @classmethod
    def of_clients(cls, targets: Sequence[AnyArray], names: Sequence[str] = ()) -> Self:
        """Return the scale of participants' (m, t) targets, whatever the order of clients and rows; as `of`."""
        count = sum(map(len, targets))
        total = added([added(client_targets) for client_targets in targets])
        squares = added([squared_differences(client_targets, total / count) for client_targets in targets])
        return cls.of(TargetSums(count, total, squares), names)

    def scaled(self, targets: AnyArray) -> Float32s:
        """Return (..., t) targets as they are trained on."""
        standardized: Float32s = ((targets.astype(np.float64) - self.mean) / self.sd).astype(np.float32)
        return standardized

    def in_units(self, outputs: AnyArray) -> Floats:
        """Return (..., t) outputs of a model in the units of the columns."""
        values: Floats = outputs.astype(np.float64) * self.sd + self.mean
        return values

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {"mean": list(self.mean), "sd": list(self.sd)}

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return what `to_json` returned."""
        return cls(tuple(stored["mean"]), tuple(stored["sd"]))

    def lines(self, names: Sequence[str] = ()) -> list[str]:
        """Return a line for each target, for people.

        Example:
            >>> TargetScale((180921.2,), (79442.5,)).lines(["price"])
            ['price: mean 180,921 ± 79,442; mse and huber train in these units']
        """
        target_names = names if len(names) == len(self.mean) else [f"target {place}" for place in range(len(self.mean))]
        return [
            f"{visible(name)}: mean {_format_number(mean)} ± {_format_number(sd)}; mse and huber train in these units"
            for name, mean, sd in zip(target_names, self.mean, self.sd, strict=True)
        ]


def added(arrays: AnyArray | Sequence[AnyArray]) -> Floats:
    """Return the (...) sum of (m, ...) arrays, rounded once, so that their order does not matter.

    Example:
        >>> added(np.array([[1e16], [1.0], [-1e16]]))
        array([1.])
    """
    return np.asarray(np.apply_along_axis(math.fsum, 0, np.asarray(arrays, np.float64)))


def squared_differences(targets: AnyArray, mean: Floats) -> Floats:
    """Return the (t,) sum over m of (target - mean)^2, of (m, t) targets.

    Example:
        >>> squared_differences(np.array([[1.0], [5.0]]), np.array([2.0]))
        array([10.])
    """
    return added((targets.astype(np.float64) - mean) ** 2)


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
