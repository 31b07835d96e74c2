"""Preparation of tables that remain at the clients, which agree on it by exchanging sums and names, but no rows."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from fedreach._util.arrays import AnyArray, Floats, Ints
from fedreach._util.errors import ConfigError, DataError
from fedreach.data import cells, preparation
from fedreach.data.cells import KINDS, Cells, ColumnRules, InputKind
from fedreach.data.checks import ArgumentChecks
from fedreach.data.datasets import Dataset, from_arrays
from fedreach.data.own import complete_rows, together_of
from fedreach.data.preparation import ColumnKind, Counts, Preparation, TargetScale
from fedreach.data.splits import ClientIndex, draws, split_held_out
from fedreach.data.table_source import Table, check_lengths, column_of, read_table

Step = Literal["columns", "counts", "totals", "squares"]


@dataclass(frozen=True)
class TableOptions:
    """Options for the tables of all clients of an experiment."""

    label: str | None  # column of classes; None if targets are numbers
    targets: tuple[str, ...]  # columns of numeric targets
    client: str | None  # column of the client, if a table has one; not an input
    columns: Mapping[str, Any]  # options, see `fedreach.data.cells.ColumnOptions`
    held_out: float  # share of each client's rows that is held out
    seed: int  # seed of the held-out rows
    group: str | None = None  # column of groups; a client holds out all rows of a group or none
    time: str | None = None  # column of times; each client holds out its latest rows

    @property
    def named(self) -> dict[str, ColumnKind]:
        """Roles of the columns that are not inputs."""
        labels = self.targets if self.label is None else (self.label,)
        return preparation.column_roles(self.client, labels, self.group, are_classes=self.label is not None)

    def rules(self, names: Sequence[str], *, all_there: bool) -> ColumnRules:
        """Check the options for columns; for one client's table, ignore columns that the table does not have."""
        options = dict(self.columns)
        for key in () if all_there else ("drop", *KINDS):
            listed = options.get(key, ())
            options[key] = [name for name in ([listed] if isinstance(listed, str) else listed) if name in names]
        return ColumnRules.of(options, names, self.named, "data.columns")


class TableQuestion(NamedTuple):
    """Question of the server to the clients, whose fields are JSON values."""

    step: Step
    classes: Sequence[str] = ()  # (c,) classes of all participants
    columns: Sequence[str] = ()  # (k,) columns of all participants
    kinds: Sequence[InputKind | None] = ()  # (k,) kinds of the columns; None if left out
    targets: Sequence[str] = ()  # (t,) numeric targets; their sums follow those of the columns
    means: Sequence[float] = ()  # (k + t,) means over all participants

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the sums in an answer."""
        rows = len(self.columns) + len(self.targets)
        widths = {"columns": (0,), "counts": (rows, len(Counts._fields)), "totals": (rows, 2), "squares": (rows,)}
        return widths[self.step]


class TableAnswer(NamedTuple):
    """Answer of a client to a question."""

    told: Mapping[str, Any]  # columns, classes or texts, as JSON values
    sums: Floats  # sums over its training rows: (k, 9) counts, (k + t, 2) totals, (k + t,) squares, or (0,)


@dataclass(frozen=True)
class TableAgreement:
    """Result of the agreement: classes, preparation and scale of the targets."""

    classes: tuple[str, ...]  # classes; () if targets are numbers
    preparation: Preparation
    target_scale: TargetScale | None = None  # scale of numeric targets

    @property
    def outputs(self) -> int:
        """Number of model outputs per row: one per class, or one per numeric target."""
        return len(self.classes) if self.target_scale is None else len(self.target_scale.mean)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes, or None if names are indices or targets are numbers."""
        return cells.names_unless_numbers(self.classes) if self.classes else None

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        scale = None if self.target_scale is None else self.target_scale.to_json()
        return {"classes": list(self.classes), "columns": self.preparation.to_json(), "target_scale": scale}

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read the values of `to_json`."""
        scale = stored["target_scale"]
        scale = None if scale is None else TargetScale.of_json(scale)
        return cls(tuple(stored["classes"]), Preparation.of_json(stored["columns"]), scale)


ClientAnswers = Mapping[int, Mapping[str, Any]]
"""Names in the answer of each client (see `TableAnswer`), by client."""


def agreement(
    options: TableOptions, participants: Sequence[int]
) -> Generator[TableQuestion, tuple[ClientAnswers, Floats], TableAgreement]:
    """Yield questions to the clients, and return the agreement.

    For each question, the caller sends the names from each client and the sum of the participants' numbers to this
    generator.

    Raises:
        ConfigError: If an option contains a column that no participant has.
        DataError: If no column can be an input, a column has no value of the kind that the options set, or all values
            of a target are equal.
    """
    answers, _ = yield TableQuestion("columns")
    classes = cells.ordered_names({name for answer in answers.values() for name in answer["classes"]})
    columns = [*dict.fromkeys(name for client in participants for name in answers[client]["columns"])]
    rules = options.rules([*columns, *options.named], all_there=True)
    columns = [name for name in columns if name not in rules.drop]
    question = TableQuestion("counts", classes, columns)
    _, sums = yield question
    counts = [Counts(*map(int, row)) for row in sums]
    kinds = [
        None if column_counts.left_out else rules.kinds.get(name) or column_counts.kind
        for name, column_counts in zip(columns, counts, strict=True)
    ]
    question = question._replace(step="totals", kinds=kinds, targets=options.targets)
    answers, totals = yield question
    means = [total / count if count else 0.0 for count, total in totals.tolist()]
    _, squared = yield question._replace(step="squares", means=means)
    input_columns = []
    for place, (name, column_counts) in enumerate(zip(columns, counts, strict=True)):
        parts = [answers[client]["texts"][place] for client in participants]
        texts = None if None in parts else sorted({text for part in parts for text in part})
        statistics = int(totals[place, 0]), means[place], float(squared[place])
        input_columns.append(preparation.input_column(name, column_counts, rules.kinds.get(name), texts, *statistics))
    prepared = Preparation(tuple(input_columns))
    if not prepared.feature_names:
        raise DataError(f"The tables must have a column that can be an input; got:\n{prepared}")
    scale = None
    if options.targets:
        k = len(columns)
        scale = TargetScale.of(int(totals[k, 0]), totals[k:, 1], squared[k:], options.targets)
    return TableAgreement(classes, prepared.described(options.named, classes, rules), scale)


def sum_of(question: TableQuestion, parts: Sequence[Floats]) -> Floats:
    """Return the sum over the participants, added in the order of their ids.

    The sum is bitwise equal to the sum in `Preparation.of` and `TargetScale.of_clients`.

    Args:
        question: Question that the participants have answered.
        parts: Sums of each participant, at least one.

    Example:
        >>> parts = [np.array([1e16, 1e16]), np.array([1.0, 1.0]), np.array([-1e16, -1e16])]
        >>> sum_of(TableQuestion("squares", columns=["age"], targets=["price"]), parts)
        array([0., 1.])
    """
    k = len(question.columns)
    columns = sum((part[:k] for part in parts[1:]), start=parts[0][:k])
    if not question.targets:
        return columns
    return np.concatenate([columns, preparation.sum_exactly([part[k:] for part in parts])])


@dataclass(frozen=True, eq=False)
class LocalTable:
    """Table of one client.

    Args:
        source: Table, see `fedreach.data.table_source.read_table`.
        options: Options of the experiment.
        name: Name of the client. Default: the name in the client's table.
        unnamed: Name of the client if neither `name` nor the table provides a name.

    Raises:
        ConfigError: If a column is missing.
        DataError: If the table contains rows of another client or of several clients, or a target is not numeric.
    """

    source: Any
    options: TableOptions
    name: str = ""
    unnamed: str = ""
    _read: Table = field(init=False, repr=False)

    def __post_init__(self) -> None:
        table, options = read_table(self.source), self.options
        check_lengths(table, next(iter(table)))
        object.__setattr__(self, "_read", table)
        texts = self._texts_of(options.client) if options.client in table else []
        named = dict.fromkeys(filter(None, texts))
        if len(named) > 1 or (self.name and named and self.name not in named):
            rule = f"be {self.name!r}" if self.name else "contain one client"
            raise DataError(
                f"table: column {options.client!r} must {rule}; got {', '.join(sorted(map(repr, named))[:5])}."
            )
        object.__setattr__(self, "name", self.name or next(iter(named), self.unnamed))
        try:
            if options.label is not None:
                column_of(table, options.label)
            else:
                self._targets  # noqa: B018  # check them now, before the first question
        except (ConfigError, DataError) as error:
            raise type(error)(f"client {self.name!r}: {error}") from error

    def _texts_of(self, name: str) -> list[str | None]:
        return cells.named_rows(f"table: column {name!r}", column_of(self._read, name), self.rules.reading)

    @cached_property
    def rules(self) -> ColumnRules:
        """Options for the columns of the table."""
        return self.options.rules([*self._read], all_there=False)

    @cached_property
    def cells(self) -> dict[str, Cells | None]:
        """Cells of the columns that can be inputs."""
        return cells.cells_by_name(self._read, without=[*self.options.named], rules=self.rules)

    def labels(self, classes: Sequence[str]) -> AnyArray:
        """Return (n,) labels, with -1 for other classes, or (n, t) numeric targets, with nan for missing targets."""
        if self.options.label is None:
            return self._targets
        place = {name: number for number, name in enumerate(classes)}
        texts = self._texts_of(self.options.label)
        return np.array([-1 if name is None else place.get(name, -1) for name in texts], np.int64)

    @cached_property
    def _targets(self) -> Floats:
        """(n, t) numeric targets; nan in rows with a missing target."""
        names, reading = self.options.targets, self.rules.reading
        complete, _ = complete_rows(self._read, names, reading)
        numbers = np.full((len(column_of(self._read, names[0])), len(names)), np.nan)
        complete_columns = {name: column_of(self._read, name).take(complete) for name in names}
        numbers[complete] = cells.targets(complete_columns, names, reading)
        ArgumentChecks("table").labels(
            " and ".join(names), numbers[complete], len(complete), 0
        )  # must be finite as float32
        return numbers

    def rows(self, classes: Sequence[str]) -> tuple[Ints, Ints, AnyArray]:
        """Return the training rows, the held-out rows, and all labels.

        Rows without a target, or with another class, are neither training rows nor held-out rows.
        """
        options, labels = self.options, self.labels(classes)
        labeled = np.flatnonzero(labels >= 0 if labels.ndim == 1 else ~np.isnan(labels).any(axis=1))
        key = labels[labeled] if options.label is None else cells.by_text(labels[labeled], classes)
        together = together_of(self._read, options.group, options.time, self.rules.reading).at(labeled)
        inputs = cells.cells_at(self.cells, labeled)
        order = cells.row_order(np.zeros(len(labeled), np.int64), together.sort_keys(key), inputs)
        rows = ClientIndex(np.arange(len(order)), np.array([0, len(order)]))
        drawn = draws(rows, options.seed, "held-out", [self.name])
        train, held_out = split_held_out(rows, options.held_out, drawn, together.at(order))
        order = labeled[order]
        return order[train[0]], order[held_out[0]], labels

    def answer(self, question: TableQuestion) -> TableAnswer:
        """Answer a question of the server."""
        if question.step == "columns":
            label_texts = [] if self.options.label is None else self._texts_of(self.options.label)
            classes = sorted({text for text in label_texts if text is not None})
            columns = [name for name in self._read if name not in self.options.named]
            return TableAnswer({"columns": columns, "classes": classes}, np.zeros(0))
        train, _, labels = self.rows(question.classes)
        if question.step == "counts":
            return TableAnswer({}, np.array([self._counts(name, train) for name in question.columns], np.float64))
        texts: list[Sequence[str] | None] = []
        totals: list[tuple[float, float]] = []
        squared: list[float] = []
        k, t = len(question.columns), len(question.targets)
        means = np.array(question.means or [0.0] * (k + t))
        pairs = zip(question.columns, question.kinds, means[:k].tolist(), strict=True)
        for name, kind, mean in pairs:
            column = None if kind is None else self._cells(name, kind)
            own_texts: list[str] | None = []
            present = np.zeros(0)
            if column is not None and kind == "category":
                own_texts = [*preparation.distinct_texts(column.at(train))]
                if len(own_texts) > preparation.MOST_CATEGORIES and name not in self.rules.kinds:
                    own_texts = None  # many texts can be private, such as names of persons
            elif column is not None and kind is not None:
                values = preparation.values_of(kind, column.at(train))
                present = values[~np.isnan(values)]
            texts.append(own_texts)
            totals.append((len(present), float(present.sum())))
            squared.append(preparation.squares(present, mean))
        if t:
            own_targets = labels[train].astype(np.float32)  # the type in which models receive them
            totals += [(len(train), total) for total in preparation.sum_exactly(own_targets).tolist()]
            squared += preparation.squared_differences(own_targets, means[k:]).tolist()
        if question.step == "totals":
            return TableAnswer({"texts": texts}, np.array(totals).reshape(k + t, 2))
        return TableAnswer({}, np.array(squared))

    def _counts(self, name: str, rows: Ints) -> Counts:
        if name not in self.cells:
            return Counts(len(rows))  # the client does not have this column, so all values are missing
        return Counts.of(self.cells[name], [rows])

    def _cells(self, name: str, kind: ColumnKind) -> Cells | None:
        """Return the cells of a column, or None. Cells of categories have words even if all are numbers."""
        if kind == "category" and name in self.cells:
            return cells.cells_of(name, self._read[name], as_words=True, reading=self.rules.reading)
        return self.cells.get(name)

    def dataset(self, agreed: TableAgreement) -> tuple[Dataset, Ints, Ints]:
        """Build the client's data set; return it with the indices of its training and held-out rows."""
        train, held_out, labels = self.rows(agreed.classes)
        count = len(next(iter(self._read.values())))
        nothing = Cells(np.full(count, np.nan))
        table = {
            column.name: self._cells(column.name, column.kind) if column.name in self.cells else nothing
            for column in agreed.preparation.used
        }
        used_rows = np.concatenate([train, held_out])
        x = agreed.preparation.inputs_of_cells(cells.cells_at(table, used_rows))
        plain = from_arrays(
            x,
            labels[used_rows],
            num_classes=len(agreed.classes),
            class_names=agreed.class_names,
            kind="features",
            name=self.name,
        )
        client_data = replace(plain, preparation=agreed.preparation, target_scale=agreed.target_scale)
        return client_data, np.arange(len(train)), np.arange(len(train), len(used_rows))
