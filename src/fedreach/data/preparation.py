"""How a table becomes inputs: the kind of each column, categories, missing values, and numbers on one scale."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from fedreach.arrays import Bools, Float32s, Floats, Ints
from fedreach.data.cells import BOOLEANS, Cells, cells_of
from fedreach.data.columns import InputKind, Reading
from fedreach.data.input_column import NAMED, InputColumn, held, values_of
from fedreach.data.table_source import column_of, read_table
from fedreach.errors import DataError
from fedreach.tables import visible

MOST_CATEGORIES = 100  # what has more of them names a row rather than says something about it
CONSTANT = 1e-12  # of the mean: a smaller deviation is rounding
SAME = "it is the same for all who take part"
ROUNDING = 1e-9
FOREIGN = r"[+-]?[0-9]{1,3}([.,][0-9]{3})*([.,][0-9]+)?|[+-]?[0-9]+,[0-9]+"
"""Numbers with points or commas, of which it must be said what these are."""
NUMBERS_SHARE = 0.9
"""Share of a column's cells that are numbers, or dates, from which on the column is one of these."""


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
        said = kinds or {}
        made = cls(tuple(_column(name, values, clients, places, said.get(name)) for name, values in table.items()))
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
            each.name: cells_of(
                each.name, column_of(columns, each.name), as_words=each.kind == "category", reading=each.reading
            )
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
        return [each.to_json() for each in self.columns]

    @classmethod
    def of_json(cls, stored: Sequence[Mapping[str, Any]]) -> Self:
        """Return what `to_json` returned."""
        return cls(tuple(map(InputColumn.of_json, stored)))

    def lines(self, most: int | None = None) -> list[str]:
        """Return a line for each column: its name, its kind and what it is like.

        Args:
            most: How many lines there may be; columns of which there is something to tell come first then, and the
                last line counts the others.
        """
        first = sorted(self.columns, key=lambda each: each.kind in NAMED and not each.odd)  # stable
        chosen = first if most is None or len(first) <= most else first[: most - 1]
        rows = [(visible(each.name), each.kind, each.about) for each in self.columns if each in chosen]
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)] if rows else []
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        others = [each.kind for each in self.columns if each not in chosen]
        counts = ", ".join(f"{others.count(kind)} {kind}" for kind in dict.fromkeys(others))
        return [*lines, f"and {len(others)} more columns: {counts}"] if others else lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _column(
    name: str, cells: Cells | None, clients: Sequence[Ints], places: Ints | None, asked: InputKind | None
) -> InputColumn:
    if cells is None:
        return InputColumn(name, "left out", why="it holds neither numbers nor words nor dates")
    rows = np.concatenate(clients) if clients else np.zeros(0, np.int64)
    own, stood = cells.at(rows), rows if places is None else places[rows]
    there = held(own)
    if not there.any():
        return InputColumn(name, "left out", why="no participant has a value")
    kind = asked or _kind(own, there)
    if kind == "category":
        return _category(name, own, is_asked=asked is not None)
    odd = there & np.isnan(values_of(kind, own))
    if odd.sum() == there.sum():
        raise DataError(
            f"table: column {name!r} is said to hold {NAMED[kind]}, and no cell of those who take part does: the first "
            f"is {_first(own, odd, stood)}. Say another kind, or none."
        )
    hold = "holds" if odd.sum() == 1 else "hold"
    said = f"{odd.sum()} of these {hold} no {kind}: the first is {_first(own, odd, stood)}" if odd.any() else ""
    return replace(_number(name, kind, values_of(kind, cells), clients), odd=said)


def _kind(own: Cells, there: Bools) -> InputKind:
    """Return what participants' cells are, of which some hold something."""
    if own.words is not None and set(np.array(own.words.levels)[own.words.codes[there]]) <= set(BOOLEANS):
        return "boolean"
    for kind in ("number", "date"):
        if (~np.isnan(values_of(kind, own))).sum() >= NUMBERS_SHARE * there.sum() - ROUNDING:
            return kind
    return "category"


def _first(cells: Cells, odd: Bools, places: Ints) -> str:
    """Return the first cell of another kind, and its row."""
    first = int(np.flatnonzero(odd)[places[odd].argmin()])
    code = -1 if cells.words is None else int(cells.words.codes[first])
    text = f"{cells.numbers[first]:g}" if cells.words is None or code < 0 else cells.words.levels[code]
    return f"{text!r}, row {int(places[first])}"


def _number(name: str, kind: InputKind, values: Floats, clients: Sequence[Ints]) -> InputColumn:
    held = [values[rows] for rows in clients]
    there = [own[~np.isnan(own)] for own in held]
    count = sum(map(len, there))
    mean = sum(float(own.sum()) for own in there) / count
    sd = (sum(float(((own - mean) ** 2).sum()) for own in there) / count) ** 0.5
    if sd <= CONSTANT * abs(mean):
        return InputColumn(name, "left out", why=SAME)
    return InputColumn(name, kind, sum(map(len, held)) - count, mean, sd)


def _category(name: str, own: Cells, *, is_asked: bool) -> InputColumn:
    assert own.words is not None  # or all cells were numbers
    codes = own.words.codes
    met, missing = np.unique(codes[codes >= 0]), int((codes < 0).sum())
    categories = tuple(own.words.levels[code] for code in met.tolist())
    if not is_asked and (example := _foreign_number(own)):
        why = f"its numbers are written as {example!r}: set columns.decimal, and leave out what parts thousands"
        return InputColumn(name, "left out", why=why)
    if len(met) + bool(missing) < 2:
        return InputColumn(name, "left out", why=SAME)
    if not is_asked and (len(met) > MOST_CATEGORIES or len(met) > max(20, len(codes) / 2)):
        share = 100 * float((~np.isnan(own.numbers)).sum()) / max(int(held(own).sum()), 1)
        numbers = f", {share:.0f}% of them numbers," if share else ""
        why = f"{len(met)} different texts{numbers} in {len(codes)} rows are rather names"
        return InputColumn(name, "left out", why=why)
    return InputColumn(name, "category", missing, categories=categories)


def _foreign_number(own: Cells) -> str:
    """Return a number with other points and commas than ours, where nine in ten texts are numbers and some are such."""
    assert own.words is not None
    met = [own.words.levels[code] for code in np.unique(own.words.codes[own.words.codes >= 0]).tolist()]
    found = [level for level in met if re.fullmatch(FOREIGN, level)]
    is_foreign = np.array([*(level in found for level in own.words.levels), False])[own.words.codes]
    is_number = ~np.isnan(own.numbers)
    share = (is_foreign | is_number).sum() / held(own).sum()
    odd = np.unique(own.words.codes[is_foreign & ~is_number])
    return own.words.levels[odd[0]] if len(odd) and share >= NUMBERS_SHARE - ROUNDING else ""
