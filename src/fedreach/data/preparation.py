"""How a table becomes inputs: the kind of each column, categories, missing values, and numbers on one scale."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from fedreach.arrays import Bools, Float32s, Floats, Ints
from fedreach.data.cells import Cells, cells_of
from fedreach.data.column_sums import FOREIGN, Counts, category_column, met, number_column, squares
from fedreach.data.columns import ColumnRules, InputKind, Reading
from fedreach.data.input_column import NAMED, InputColumn, Kind, held, values_of
from fedreach.data.table_source import column_of, read_table
from fedreach.errors import DataError
from fedreach.tables import visible


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

    def described(
        self,
        named: Mapping[str, Kind],
        classes: Sequence[str],
        rules: ColumnRules,
        told: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """Return the whole schema: with the columns that are no inputs, and how cells are read.

        Args:
            named: Columns that are no inputs, and what they are: client, label, target or group.
            classes: Of the label.
            rules: What was said of the columns.
            told: What is to be told of some of these, by name, and why other columns are no inputs.
        """
        of_label, of_group = {"label": tuple(classes)}, {"group": "rows of one are held out together"}
        columns = [
            InputColumn(
                name, kind, categories=of_label.get(kind, ()), why=of_group.get(kind, ""), odd=told.get(name, "")
            )
            for name, kind in named.items()
        ]
        columns += [*self.columns, *(InputColumn(name, "dropped", why="as asked") for name in rules.drop)]
        columns += [InputColumn(name, "left out", why=why) for name, why in told.items() if name not in named]
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
    rows = np.concatenate(clients) if clients else np.zeros(0, np.int64)
    own = None if cells is None else cells.at(rows)
    counts = Counts.of(cells, clients)
    if own is None or cells is None or counts.left_out:
        return InputColumn(name, "left out", why=counts.left_out)
    kind = asked or counts.kind
    if kind == "category":
        example = _foreign_number(own) if counts.is_foreign else ""
        return category_column(name, counts, met(own), is_asked=asked is not None, example=example)
    odd = held(own) & np.isnan(values_of(kind, own))
    stood = rows if places is None else places[rows]
    if odd.sum() == counts.held:
        raise DataError(
            f"table: column {name!r} is said to hold {NAMED[kind]}, and no cell of those who take part does: the first "
            f"is {_first(own, odd, stood)}. Say another kind, or none."
        )
    hold = "holds" if odd.sum() == 1 else "hold"
    said = f"{odd.sum()} of these {hold} no {kind}: the first is {_first(own, odd, stood)}" if odd.any() else ""
    values = values_of(kind, cells)
    there = [each[~np.isnan(each)] for each in (values[each] for each in clients)]
    count = sum(map(len, there))
    mean = sum(float(each.sum()) for each in there) / count
    squared = sum(squares(each, mean) for each in there)
    made = number_column(name, kind, counts, count, mean, squared, is_asked=asked is not None)
    return replace(made, odd=said or made.odd)


def _first(cells: Cells, odd: Bools, places: Ints) -> str:
    """Return the first cell of another kind, and its row."""
    first = int(np.flatnonzero(odd)[places[odd].argmin()])
    code = -1 if cells.words is None else int(cells.words.codes[first])
    text = f"{cells.numbers[first]:g}" if cells.words is None or code < 0 else cells.words.levels[code]
    return f"{text!r}, row {int(places[first])}"


def _foreign_number(own: Cells) -> str:
    """Return a number with other points and commas than ours: one that was not read as a number."""
    unread = own.at(np.flatnonzero(np.isnan(own.numbers)))
    return next(level for level in met(unread) if re.fullmatch(FOREIGN, level))
