"""How a table becomes inputs: the kind of each column, categories, missing values, and numbers on one scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np

from fedreach.arrays import Float32s, Floats, Ints
from fedreach.data.tabular import Values, Words, column, values_of
from fedreach.errors import DataError
from fedreach.tables import visible

MOST_CATEGORIES = 100  # what has more of them names a row rather than says something about it
CONSTANT = 1e-12  # of the mean: a smaller deviation is rounding
SAME = "it is the same for all who take part"


@dataclass(frozen=True)
class InputColumn:
    """How a column of a table becomes inputs.

    A number x becomes (x - mean) / sd, and 0 where it is missing; a word becomes one input for each category, 1 for its
    own and 0 for the others, and 0 everywhere if no participant has it.
    """

    name: str
    kind: Literal["number", "category", "left out"]
    missing: int = 0  # rows of participants; where there are any, being missing is an input, too
    mean: float = 0.0
    sd: float = 1.0
    categories: tuple[str, ...] = ()
    why: str = ""  # it is left out

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Name of each input that it becomes."""
        if self.kind == "left out":
            return ()
        names = [f"{self.name} = {category}" for category in self.categories] or [self.name]
        return (*names, f"{self.name} is missing") if self.missing else tuple(names)

    def raw(self, values: Values) -> Floats:
        """Return (n,) one number a row: the number itself, or the place of a word among the categories.

        What is missing is nan, and a word that no participant has is -1.
        """
        if self.kind == "category" and isinstance(values, np.ndarray) and np.isnan(values).all():
            values = Words((), np.full(len(values), -1))  # nothing is known: it reads as either kind
        if not isinstance(values, Words if self.kind == "category" else np.ndarray):
            want = "words" if self.kind == "category" else "numbers"
            raise DataError(f"table: column {self.name!r} must hold {want}, as it did for those who trained.")
        if not isinstance(values, Words):
            return values
        place = {category: j for j, category in enumerate(self.categories)}
        return np.array([*(place.get(level, -1) for level in values.levels), np.nan])[values.codes]

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
        what = f"number, {self.mean:.4g} ± {self.sd:.4g}"
        if self.kind == "category":
            more = "" if len(self.categories) <= 6 else f" and {len(self.categories) - 6} more"
            what = f"{len(self.categories)} categories, {', '.join(self.categories[:6])}{more}"
        return visible(f"{self.name}: {what}") + (f", {self.missing} missing" if self.missing else "")


@dataclass(frozen=True)
class Preparation:
    """How tables become inputs. All of its numbers are of the participants' training rows; nobody else's are read.

    With x_i the values of participant i that are not missing, mean = sum_i sum(x_i) / sum_i |x_i| and
    sd^2 = sum_i sum((x_i - mean)^2) / sum_i |x_i|: a participant adds two sums and a count, so that a server that sees
    sums only can find them.

    Example:
        >>> from fedreach.data.tabular import read
        >>> ages = {"age": [30, 50, None, 90], "ward": ["a", "b", "a", "c"]}
        >>> made = Preparation.of(read(ages), [np.array([0, 1]), np.array([2])])     # nobody reads the last row
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
    def of(cls, table: Mapping[str, Values], clients: Sequence[Ints]) -> Self:
        """Return how a table is prepared.

        Args:
            table: As `fedreach.data.tabular.read` returns it.
            clients: The training rows of each participant.

        Raises:
            DataError: If no column is left.
        """
        made = cls(tuple(_column(name, values, clients) for name, values in table.items()))
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
        return self._inputs(self._raw(self._read(table)))

    def raw(self, table: Any) -> Floats:
        """Return (n, k) one number for each column that is used, see `InputColumn.raw`; raises as `inputs`.

        Example:
            >>> ward = InputColumn("ward", "category", categories=("heart", "surgery"))
            >>> Preparation((InputColumn("age", "number"), ward)).raw({"age": [30, None], "ward": ["surgery", "eyes"]})
            array([[30.,  1.],
                   [nan, -1.]])
        """
        return np.column_stack(self._raw(self._read(table)))

    def written(self, table: Mapping[str, Values]) -> Float32s:
        """Return the (n, d) inputs for a table as `fedreach.data.tabular.read` returns it."""
        return self._inputs(self._raw(table))

    def _read(self, table: Any) -> dict[str, Values]:
        return {each.name: values_of(each.name, column(table, each.name)) for each in self.used}

    def _raw(self, table: Mapping[str, Values]) -> list[Floats]:
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


def _column(name: str, values: Values, clients: Sequence[Ints]) -> InputColumn:
    if values is None:
        return InputColumn(name, "left out", why="it holds neither numbers nor words")
    return _category(name, values, clients) if isinstance(values, Words) else _number(name, values, clients)


def _number(name: str, values: Floats, clients: Sequence[Ints]) -> InputColumn:
    held = [values[rows] for rows in clients]
    there = [own[~np.isnan(own)] for own in held]
    count = sum(map(len, there))
    if not count:
        return InputColumn(name, "left out", why="no participant has a value")
    mean = sum(float(own.sum()) for own in there) / count
    sd = (sum(float(((own - mean) ** 2).sum()) for own in there) / count) ** 0.5
    if sd <= CONSTANT * abs(mean):
        return InputColumn(name, "left out", why=SAME)
    return InputColumn(name, "number", sum(map(len, held)) - count, mean, sd)


def _category(name: str, values: Words, clients: Sequence[Ints]) -> InputColumn:
    codes = np.concatenate([values.codes[rows] for rows in clients])
    met, missing = np.unique(codes[codes >= 0]), int((codes < 0).sum())
    if len(met) + bool(missing) < 2:
        return InputColumn(name, "left out", why=SAME if len(met) else "no participant has a value")
    if len(met) > MOST_CATEGORIES or len(met) > max(20, len(codes) / 2):
        return InputColumn(name, "left out", why=f"{len(met)} different texts in {len(codes)} rows are rather names")
    return InputColumn(name, "category", missing, categories=tuple(values.levels[code] for code in met.tolist()))
