"""How a table becomes inputs: the kind of each column, categories, missing values, and numbers on one scale."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from fedreach.arrays import Bools, Float32s, Floats, Ints
from fedreach.data.cells import BOOLEANS, Cells, Words, cells_of, days_of
from fedreach.data.table_source import column_of, read_table
from fedreach.errors import DataError
from fedreach.tables import visible

MOST_CATEGORIES = 100  # what has more of them names a row rather than says something about it
CONSTANT = 1e-12  # of the mean: a smaller deviation is rounding
SAME = "it is the same for all who take part"
ROUNDING = 1e-9
DECIMAL_COMMA = r"[+-]?[0-9]+,[0-9]+"
NUMBERS_SHARE = 0.9
"""Share of a column's cells that are numbers, or dates, from which on the column is one of these."""
Kind = Literal["number", "boolean", "date", "category", "left out"]
NAMED = {"number": "numbers", "boolean": "true and false", "date": "dates", "category": "words"}


@dataclass(frozen=True)
class InputColumn:
    """How a column of a table becomes inputs.

    A number x becomes (x - mean) / sd, and 0 where it is missing; so do true and false, as 1 and 0, and dates, as days
    since 1970. A word becomes one input for each category, 1 for its own and 0 for the others, and 0 everywhere if no
    participant has it.
    """

    name: str
    kind: Kind
    missing: int = 0  # rows of participants; where there are any, being missing is an input, too
    mean: float = 0.0
    sd: float = 1.0
    categories: tuple[str, ...] = ()
    why: str = ""  # it is left out
    odd: str = ""  # cells of participants that are none of its kind, and count as missing

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Name of each input that it becomes."""
        if self.kind == "left out":
            return ()
        names = [f"{self.name} = {category}" for category in self.categories] or [self.name]
        return (*names, f"{self.name} is missing") if self.missing else tuple(names)

    def raw(self, cells: Cells | None) -> Floats:
        """Return (n,) one number a row: the number itself, or the place of a word among the categories.

        What is missing, or of another kind, is nan, and a word that no participant has is -1.

        Raises:
            DataError: If no cell that holds something is of the column's kind.
        """
        found = None if cells is None else _values(self.kind, cells, self.categories)
        if cells is None or found is None or (np.isnan(found).all() and held(cells).any()):
            raise DataError(
                f"table: column {self.name!r} must hold {NAMED[self.kind]}, as it did for those who trained."
            )
        return found

    def write(self, raw: Floats, inputs: Float32s) -> None:
        """Write the (n, f) inputs that the (n,) numbers of `raw` become."""
        gone = np.isnan(raw)
        if self.kind == "category":
            end = len(self.categories)
            inputs[:, :end] = raw[:, None] == np.arange(end)
        else:
            inputs[:, 0] = np.where(gone, 0.0, (raw - self.mean) / self.sd)
        if self.missing:
            inputs[:, -1] = gone

    def __str__(self) -> str:
        if self.kind == "left out":
            return visible(f"{self.name}: left out, {self.why}")
        what = f"{self.kind}, {self.mean:.4g} ± {self.sd:.4g}"
        if self.kind == "date":
            days = np.array([self.mean]).astype("datetime64[D]")[0]
            what = f"date, {days} ± {self.sd:.4g} days"
        if self.kind == "boolean":
            what = f"boolean, {100 * self.mean:.3g}% true"
        if self.kind == "category":
            more = "" if len(self.categories) <= 6 else f" and {len(self.categories) - 6} more"
            what = f"{len(self.categories)} categories, {', '.join(self.categories[:6])}{more}"
        return (
            visible(f"{self.name}: {what}")
            + (f", {self.missing} missing" if self.missing else "")
            + visible(f" ({self.odd})" if self.odd else "")
        )


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
        age: number, 40 ± 10, 1 missing
        ward: 2 categories, a, b
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
    def of(cls, table: Mapping[str, Cells | None], clients: Sequence[Ints], places: Ints | None = None) -> Self:
        """Return how a table is prepared.

        What a column is follows from the participants' rows, too: true and false, numbers or dates where nine in ten of
        its cells are, else words.

        Args:
            table: As `fedreach.data.cells.cells_by_name` returns it.
            clients: The training rows of each participant.
            places: (n,) where rows stood as the table was read, for messages. None: where they stand.

        Raises:
            DataError: If no column is left.
        """
        made = cls(tuple(_column(name, values, clients, places) for name, values in table.items()))
        if not made.feature_names:
            raise DataError(f"No column of the table can be an input:\n{made}")
        return made

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Name of each of the d inputs."""
        return tuple(name for column in self.columns for name in column.feature_names)

    @property
    def used(self) -> tuple[InputColumn, ...]:
        """The columns that become inputs."""
        return tuple(column for column in self.columns if column.kind != "left out")

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
            each.name: cells_of(each.name, column_of(columns, each.name), as_words=each.kind == "category")
            for each in self.used
        }

    def numbers(self, table: Mapping[str, Cells | None]) -> list[Floats]:
        """Return (n,) one number a row for each column that is used, see `InputColumn.raw`."""
        columns = [each.raw(table[each.name]) for each in self.used]
        for each, values in zip(self.used, columns, strict=True):
            if len(values) != len(columns[0]):
                raise DataError(
                    f"table: all columns must be as long; {self.used[0].name!r} has {len(columns[0])} rows and "
                    f"{each.name!r} has {len(values)}. Leave cells empty where a value is missing."
                )
        return columns

    def _inputs(self, raw: Sequence[Floats]) -> Float32s:
        inputs, end = np.zeros((len(raw[0]), len(self.feature_names)), np.float32), 0
        for each, values in zip(self.used, raw, strict=True):
            begin, end = end, end + len(each.feature_names)
            each.write(values, inputs[:, begin:end])
        return inputs

    def to_json(self) -> list[dict[str, Any]]:
        """Return it as plain JSON values."""
        return [asdict(each) | {"categories": list(each.categories)} for each in self.columns]

    @classmethod
    def of_json(cls, stored: Sequence[Mapping[str, Any]]) -> Self:
        """Return what `to_json` returned."""
        return cls(tuple(InputColumn(**{**each, "categories": tuple(each["categories"])}) for each in stored))

    def __str__(self) -> str:
        return "\n".join(map(str, self.columns))


def held(cells: Cells) -> Bools:
    """Return (n,) whether a cell holds something."""
    numbers: Bools = ~np.isnan(cells.numbers)
    return numbers if cells.words is None else numbers | (cells.words.codes >= 0)


def _values(kind: Kind, cells: Cells, categories: Sequence[str] = ()) -> Floats | None:
    """Return (n,) one number a row, nan for cells of another kind."""
    words = cells.words or Words((), np.full(len(cells), -1))
    if kind == "number":
        return cells.numbers
    if kind == "category":
        place: Mapping[str, float] = {category: float(j) for j, category in enumerate(categories)}
        levels = [place.get(level, -1.0) for level in words.levels]
    elif kind == "boolean":
        levels = [float(BOOLEANS.index(level)) if level in BOOLEANS else np.nan for level in words.levels]
    else:
        levels = days_of(words.levels).tolist()
    return np.array([*levels, np.nan])[words.codes]


def _column(name: str, cells: Cells | None, clients: Sequence[Ints], places: Ints | None) -> InputColumn:
    if cells is None:
        return InputColumn(name, "left out", why="it holds neither numbers nor words nor dates")
    rows = np.concatenate(clients) if clients else np.zeros(0, np.int64)
    own = cells.at(rows)
    there = held(own)
    if not there.any():
        return InputColumn(name, "left out", why="no participant has a value")
    shares: dict[Kind, float] = {"boolean": 1.0, "number": NUMBERS_SHARE, "date": NUMBERS_SHARE}
    for kind, least in shares.items():
        values = _values(kind, own)
        assert values is not None
        odd = there & np.isnan(values)
        if (there & ~odd).sum() >= least * there.sum() - ROUNDING:
            said = _odd(own, odd, rows if places is None else places[rows])
            every = _values(kind, cells)
            assert every is not None
            return replace(_number(name, kind, every, clients), odd=said)
    return _category(name, own)


def _has_decimal_commas(own: Cells) -> bool:
    """Return whether nine in ten texts of participants are numbers with a comma for the point."""
    assert own.words is not None
    commas = np.array([bool(re.fullmatch(DECIMAL_COMMA, level)) for level in own.words.levels] + [False])
    there = own.words.codes >= 0
    return bool(commas[own.words.codes].sum() >= NUMBERS_SHARE * there.sum() - ROUNDING)


def _odd(cells: Cells, odd: Bools, places: Ints) -> str:
    """Return what is to be said of cells of another kind."""
    count = int(odd.sum())
    if not count or cells.words is None:
        return ""
    first = int(np.flatnonzero(odd)[places[odd].argmin()])
    text = cells.words.levels[cells.words.codes[first]]
    is_are = "is no number or date" if count == 1 else "are no number or date"
    return f"{count} of these {is_are}: the first is {text!r}, row {int(places[first])}"


def _number(name: str, kind: Kind, values: Floats, clients: Sequence[Ints]) -> InputColumn:
    held = [values[rows] for rows in clients]
    there = [own[~np.isnan(own)] for own in held]
    count = sum(map(len, there))
    mean = sum(float(own.sum()) for own in there) / count
    sd = (sum(float(((own - mean) ** 2).sum()) for own in there) / count) ** 0.5
    if sd <= CONSTANT * abs(mean):
        return InputColumn(name, "left out", why=SAME)
    return InputColumn(name, kind, sum(map(len, held)) - count, mean, sd)


def _category(name: str, own: Cells) -> InputColumn:
    assert own.words is not None  # or all cells were numbers
    if _has_decimal_commas(own):
        return InputColumn(name, "left out", why="its numbers have decimal commas: write 12.5 for 12,5")
    codes = own.words.codes
    met, missing = np.unique(codes[codes >= 0]), int((codes < 0).sum())
    if len(met) + bool(missing) < 2:
        return InputColumn(name, "left out", why=SAME)
    if len(met) > MOST_CATEGORIES or len(met) > max(20, len(codes) / 2):
        share = 100 * float((~np.isnan(own.numbers)).sum()) / max(int(held(own).sum()), 1)
        numbers = f", {share:.0f}% of them numbers," if share else ""
        why = f"{len(met)} different texts{numbers} in {len(codes)} rows are rather names"
        return InputColumn(name, "left out", why=why)
    return InputColumn(name, "category", missing, categories=tuple(own.words.levels[code] for code in met.tolist()))
