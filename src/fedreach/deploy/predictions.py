"""Predictions for rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from fedreach._util.arrays import AnyArray, Float32s, Floats, Ints
from fedreach._util.errors import ConfigError, DataError, nearest
from fedreach._util.tables import csv_text, visible
from fedreach.data.cells import AS_USUAL, Cells, Reading, Words, cells_of, named_rows
from fedreach.data.checks import no_such_file, read_npz
from fedreach.data.preparation import InputColumn, Preparation, held
from fedreach.data.samples import SampleFormat
from fedreach.data.table_source import column_of, read_table
from fedreach.deploy.adapter import Adapter
from fedreach.federation.adaptation.base import log_softmax

# -------------------- Rows of a file that are to be predicted: samples, their clients, labels where the file has any
# It needs numpy and pyarrow alone, so that an exported model can take it along.

SAMPLES = "x"  # of an ``.npz`` file, as of one to train on, and so are a client and a y
USUAL = {"client": ("client",), "label": ("label", "y")}
"""What columns are called where the data that a model was trained on do not say."""
ENDINGS = (".csv", ".tsv", ".txt", ".gz", ".parquet", ".npz")
FEW = 3  # that are named where there may be many
FAR = 20.0  # deviations from the participants' mean: so far out a single value is told
FAR_HALF = 5.0  # so far out it is told where half of all values are, as where a unit is another one
LEAST_VALUES = 3  # of a column whose middle says something


@dataclass(frozen=True)
class Columns:
    """What columns of a table are called that are no inputs."""

    client: str | None = None  # whose a row is
    labels: tuple[str, ...] = ()  # the class, or the numbers that are to be predicted


@dataclass(frozen=True, eq=False)
class Rows:
    """m rows of a file."""

    samples: AnyArray  # (m, ...) as the model takes them
    clients: tuple[str, ...] | None  # (m,) whose they are; None where the file does not say
    labels: AnyArray | None  # (m,) classes, -1 where one is not known; or (m, t) numbers, nan likewise
    notes: tuple[str, ...]  # what the model does not know of them

    def by_client(self) -> dict[str, Ints]:
        """Return the rows of each client, in the order in which clients appear; all are of one where nobody says.

        Example:
            >>> Rows(np.zeros((3, 1)), ("b", "a", "b"), None, ()).by_client()
            {'b': array([0, 2]), 'a': array([1])}
        """
        if self.clients is None:
            return {"": np.arange(len(self.samples))} if len(self.samples) else {}
        rows: dict[str, list[int]] = {}
        for row, client in enumerate(self.clients):
            rows.setdefault(client, []).append(row)
        return {client: np.array(indices, np.int64) for client, indices in rows.items()}


def read_rows(
    path: Path,
    expected: SampleFormat,
    data_columns: Columns,
    *,
    classes: Sequence[str] | None,
    targets: int | None,
    client: str | None = None,
    label: str | None = None,
) -> Rows:
    """Return the rows of a table, ``.csv`` or ``.parquet``, or of arrays, ``.npz``.

    Args:
        path: The file.
        expected: What the model takes.
        known: Columns of the data that it was trained on; these may be there, and need not.
        classes: (c,) names of classes, also where these are numbers; None where numbers are predicted.
        targets: How many of these, or None.
        client: Column that must be there, in place of the known one.
        label: Likewise.

    Raises:
        ConfigError: If a column is not there.
        DataError: If the file cannot be read, or holds other samples than the model was trained on.
    """
    table, is_arrays = _read(path, expected, data_columns, client, label)
    names = list(table)
    prepared = () if expected.preparation is None else expected.preparation.used
    free = [name for name in names if name not in {column.name for column in prepared}]  # a column "y" may be an input
    of_client = _choose_column("client", names, free, client, data_columns.client)
    of_labels = data_columns.labels if label is None and all(name in names for name in data_columns.labels) else ()
    if label is not None or not data_columns.labels:
        of_labels = tuple(filter(None, [_choose_column("label", names, free, label, None)]))
    reading = AS_USUAL if expected.preparation is None else expected.preparation.reading
    owners = None if of_client is None else tuple(_texts(table, of_client, reading))
    notes: list[str] = []
    if expected.preparation is not None:
        cells = expected.preparation.cells(table)
        samples, notes = (
            np.column_stack(expected.preparation.numbers(cells)),
            _describe_unknown(expected.preparation, cells),
        )
        notes += _describe_unused(expected.preparation, [name for name in names if name not in (of_client, *of_labels)])
    elif is_arrays:
        if SAMPLES not in names:
            raise DataError(f"{path}: there is no array {SAMPLES!r}, of samples.{nearest(SAMPLES, names)}")
        samples = expected.array(table[SAMPLES])
    else:
        inputs = [name for name in names if name != of_client and name not in of_labels]
        samples = expected.of_columns(np.column_stack([_numbers(table, name) for name in inputs]))
    for name, values in ((of_client, owners), *((name, table[name]) for name in of_labels)):
        if values is not None and len(values) != len(samples):
            raise DataError(
                f"{path}: {name!r} must have a value for each of the {len(samples)} rows; got {len(values)}."
            )
    labels: AnyArray | None = None
    if of_labels and classes is not None:
        labels, more = _classes(table, of_labels[0], classes, reading)
        notes += more
    elif of_labels:
        labels = _targets(table, of_labels, targets or 1, reading)
    return Rows(samples, owners, labels, tuple(notes))


def _read(
    path: Path, expected: SampleFormat, data_columns: Columns, client: str | None, label: str | None
) -> tuple[Any, bool]:
    """Return what stands in a file, by name, and whether that are arrays of samples."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise DataError(f"{path}: rows must be a .csv, a .parquet or an .npz file; got {ending or 'no ending'!r}.")
    if ending != ".npz":
        return read_table(path), False
    try:
        with path.open("rb") as stream:
            return read_npz(stream), expected.preparation is None
    except FileNotFoundError as error:
        raise no_such_file(path, ENDINGS) from error
    except (OSError, ValueError) as error:  # no whole file, or a path that is none
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{path}: must be a readable .npz file without python objects; got: {error}. "
            "Write it with np.savez_compressed(path, x=x)."
        ) from error


def _choose_column(
    what: Literal["client", "label"],
    names: Sequence[str],
    free: Sequence[str],
    requested: str | None,
    data_column: str | None,
) -> str | None:
    """Return the column that is asked for, or else the one that the data had, or else one with a usual name."""
    if requested is not None and requested not in names:
        raise ConfigError(f"--{what}: there is no column {requested!r}.{nearest(requested, names)}")
    if requested is not None or data_column is not None:
        return requested or (data_column if data_column in names else None)
    return next((name for name in USUAL[what] if name in free), None)


def _texts(table: Any, name: str, reading: Reading) -> list[str]:
    """Return names, each as it stands in the file."""
    plain = named_rows(f"column {name!r}", _arrow(table, name), reading)
    gone = [row for row, value in enumerate(plain) if value is None]
    if gone:
        raise DataError(f"column {name!r} is missing in {len(gone)} rows, the first is row {gone[0]}. Name a client.")
    return [text for text in plain if text is not None]


def _arrow(table: Any, name: str) -> Any:
    return column_of(read_table({name: table[name]}), name)


def _numbers(table: Any, name: str) -> Floats:
    values = _values(table, name, "numbers, as every input of this model does")
    if np.isnan(values).any():
        row = int(np.flatnonzero(np.isnan(values))[0])
        raise DataError(f"column {name!r} is empty in row {row}; this model was trained on whole samples.")
    return values


def _values(table: Any, name: str, what: str, reading: Reading = AS_USUAL) -> Floats:
    """Return (m,) numbers, nan where a cell is empty."""
    cells = cells_of(name, _arrow(table, name), reading=reading)
    if cells is None or cells.words is not None:
        raise DataError(f"column {name!r} must hold {what}. Leave it out.")
    return cells.numbers


def _classes(table: Any, name: str, classes: Sequence[str], reading: Reading) -> tuple[Ints, list[str]]:
    """Return (m,) classes, -1 where a row tells none, and what is no class."""
    place = {class_name: number for number, class_name in enumerate(classes)}
    plain = named_rows(f"column {name!r}", _arrow(table, name), reading)
    numbers = np.array([-1 if value is None else place.get(value, -1) for value in plain], np.int64)
    strange = sorted({value for value in plain if value is not None and value not in place})
    be = "is" if len(strange) == 1 else "are"
    return numbers, [f"{name}: {_quote_names(strange)} {be} no class of the model, and not scored"] if strange else []


def _targets(table: Any, names: Sequence[str], targets: int, reading: Reading) -> Floats:
    """Return (m, t) numbers, nan where a row tells none."""
    array = np.asarray(table[names[0]])
    if len(names) == 1 and array.ndim == 2 and array.dtype.kind in "uif" and array.shape[1] == targets:
        several: Floats = array.astype(np.float64)  # one array of an .npz file
        return several
    if len(names) != targets:
        raise DataError(f"The model predicts {targets} numbers, a column each; got labels in {list(names)}.")
    what = "the numbers that are to be predicted"
    return np.column_stack([_values(table, name, what, reading) for name in names])


def _describe_unknown(preparation: Preparation, table: Mapping[str, Cells | None]) -> list[str]:
    """Return what of a table the model does not know: categories, cells of another kind, and what was never missing."""
    notes = []
    for column in preparation.used:
        cells = table[column.name]
        assert cells is not None  # `numbers` refuses it
        has_value, values = held(cells), column.raw(cells)
        if column.kind == "category":
            words = cells.words or Words((), np.full(len(cells), -1))
            categories = set(column.categories)
            strange = {code: level for code, level in enumerate(words.levels) if level not in categories}
            rows = int(np.isin(words.codes, [*strange]).sum())
            if strange:
                named = _quote_names([*strange.values()])
                notes.append(f"{column.name}: no participant had {named} ({_count_rows(rows)}); it counts as none")
        elif (odd := int((has_value & np.isnan(values)).sum())) and cells.words is not None:
            texts = np.unique(cells.words.codes[has_value & np.isnan(values)])
            named = _quote_names([cells.words.levels[code] for code in texts.tolist()])
            notes.append(f"{column.name}: {named} ({_count_rows(odd)}) is no {column.kind}; it counts as missing")
        gone = int((~has_value).sum())
        if gone and not column.missing:
            instead = "none of its categories" if column.kind == "category" else f"their mean, {column.mean:.4g}"
            notes.append(
                f"{column.name}: missing in {_count_rows(gone)} and in none of the participants'; it counts as {instead}"
            )
        notes += _describe_far(column, values)
    return notes


def _describe_far(column: InputColumn, values: Floats) -> list[str]:
    """Return what of a column's numbers is far from what participants had, by the mean and deviation of these.

    Bounds are wide, as columns with a long tail have a few values far out at many clients: in the 31 real tables of
    ``benchmarks/natural_tables.py``, the rows of 1 unseen client in 170 are noted.
    """
    if column.kind not in ("number", "date") or np.isnan(values).all():
        return []
    distance = abs(values - column.mean) / column.sd
    far, theirs = distance > FAR, f"{column.shown(column.mean)} ± {column.sd:.4g}{' days' * (column.kind == 'date')}"
    middle = float(np.nanmedian(values))
    has_middle = (~np.isnan(values)).sum() >= LEAST_VALUES
    if has_middle and float(np.nanmedian(distance)) > FAR_HALF:
        about = f"half of the values are far from what participants had, {column.shown(middle)} in the middle"
        return [f"{column.name}: {about}; theirs were {theirs}: check the unit"]
    if not far.any():
        return []
    row = int(np.nanargmax(distance))
    about = f"far from what participants had in {_count_rows(int(far.sum()))}: {column.shown(values[row])} in row {row}"
    return [f"{column.name}: {about}; theirs were {theirs}"]


def _describe_unused(preparation: Preparation, names: Sequence[str]) -> list[str]:
    """Return which columns of a file nobody trained on; those that were dropped or left out then are known."""
    trained_names = {column.name for column in preparation.columns}
    strange = [name for name in names if name not in trained_names]
    if not strange:
        return []
    columns, are = ("columns", "are") if len(strange) > 1 else ("column", "is")
    return [f"{columns} {_quote_names(strange)} {are} not used: nobody trained on {'them' if are == 'are' else 'it'}"]


def _count_rows(rows: int) -> str:
    return f"{rows} row{'s' * (rows != 1)}"


def _quote_names(names: Sequence[str]) -> str:
    more = "" if len(names) <= FEW else f" and {len(names) - FEW} more"
    return ", ".join(map(repr, names[:FEW])) + more


# --- Rows become predictions: by the model as it is, or each client's by a fitted rule and its own inputs
# It needs numpy alone, so that an exported model can take it along.

LEAST = 1e-12  # probability of a true class in the log loss, as that of an impossible one has no logarithm


class AnswersModel(Protocol):
    """A model, wherever it runs, asked about samples as `SampleFormat.array` returns them."""

    def raw_logits(self, raw: AnyArray) -> Floats:
        """Return (m, c) logits of raw samples, or the (m, t) numbers that it predicts."""
        ...

    def raw_answers(self, raw: AnyArray) -> tuple[Floats, Floats | None, Float32s | None]:
        """Return logits, features and inputs: the arguments of `Adapter.fit`."""
        ...


@dataclass(frozen=True)
class Client:
    """One client, and how it was served."""

    name: str  # "" where the file does not tell clients apart
    rows: int
    decision: str | None  # "adapted", "repaired, adapted", "abstained" ...; None: by the model as it is
    scores: dict[str, float]  # of its labelled rows; empty without


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of m rows."""

    rows: Rows
    clients: tuple[Client, ...]
    outputs: Floats  # (m, c) probabilities, or (m, t) numbers
    classes: tuple[str, ...] | None  # (c,) names; None where numbers are predicted
    decisions: tuple[str, ...] | None  # (m,) how each row's client was served; None: by the model as it is
    scores: dict[str, float]  # of all labelled rows; empty without

    def table(self, client: str | None = None, targets: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return a row for each row: its client, the prediction, how it was served, a probability for each class.

        Args:
            client: What the column of clients is called; it is ``client`` where another column has that name.
            targets: What predicted numbers are called, where there are several.
        """
        columns: dict[str, Sequence[Any]] = {}
        if self.classes is None:
            width = self.outputs.shape[1]
            names = targets if len(targets) == width else [str(number) for number in range(width)]
            for number in range(width):
                columns["prediction" if width == 1 else f"prediction_{names[number]}"] = self.outputs[
                    :, number
                ].tolist()
        else:
            columns["prediction"] = [self.classes[number] for number in self.outputs.argmax(axis=1).tolist()]
            if self.decisions is not None:
                columns["decision"] = self.decisions
            for number, name in enumerate(self.classes):
                columns[f"p_{name}"] = self.outputs[:, number].tolist()
        if self.rows.clients is not None:
            client_column = client if client and client not in columns else "client"
            columns = {client_column: self.rows.clients, **columns}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def csv(self, client: str | None = None, targets: Sequence[str] = ()) -> str:
        """Return that table as CSV; nothing where there are no rows."""
        table = self.table(client, targets)
        return csv_text(table) if table else ""

    def lines(self) -> list[str]:
        """Return what became of the clients, for people."""
        header = ["client", "rows", "decision", *self.scores]
        body = [
            [visible(client.name) or "(all rows)", str(client.rows), client.decision or "plain"]
            + [_format_score(name, client.scores.get(name)) for name in self.scores]
            for client in self.clients
        ]
        if len(self.clients) > 1 and self.scores:
            overall = [_format_score(name, value) for name, value in self.scores.items()]
            body.append(["all", str(len(self.rows.samples)), "", *overall])
        widths = [max(map(len, cells)) for cells in zip(header, *body, strict=True)]
        return ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in (header, *body)]


def predictions(
    model: AnswersModel,
    rows: Rows,
    *,
    classes: Sequence[str] | None,
    outputs: int,
    new_adapter: Callable[[], Adapter] | None = None,
    mixes: bool = False,
) -> Predictions:
    """Return what a model says of rows; where there is a rule, each client is served by all its rows and no label.

    Args:
        model: The model.
        rows: The rows.
        classes: (c,) names; None where numbers are predicted.
        outputs: c, or how many numbers are predicted.
        new_adapter: Makes the adapter of a client; None: the model as it is.
        mixes: Whether the model mixes the examples of a batch, so that each client needs batches of its own.
    """
    predicted, plain = np.empty((len(rows.samples), outputs)), np.empty((len(rows.samples), outputs))
    decisions: list[str | None] = [None] * len(rows.samples)
    by_client = rows.by_client()
    if new_adapter is None and len(rows.samples):
        for indices in by_client.values() if mixes else [np.arange(len(rows.samples))]:
            raw_outputs = model.raw_logits(rows.samples[indices])
            predicted[indices] = raw_outputs if classes is None else np.exp(log_softmax(raw_outputs))
    clients = []
    for name, indices in by_client.items():
        decision = None
        if new_adapter is not None:
            answers = model.raw_answers(rows.samples[indices])
            adapter = new_adapter().fit(*answers)
            predicted[indices], decision = adapter.predict_proba(*answers), adapter.decision_
            plain[indices] = np.exp(log_softmax(answers[0]))
            for row in indices.tolist():
                decisions[row] = decision
        clients.append((name, indices, decision))
    unadapted = None if new_adapter is None else plain
    return Predictions(
        rows,
        tuple(
            Client(name, len(indices), how, _scores(rows, predicted, unadapted, indices, classes))
            for name, indices, how in clients
        ),
        predicted,
        None if classes is None else tuple(classes),
        None if new_adapter is None else tuple(str(decision) for decision in decisions),
        _scores(rows, predicted, unadapted, np.arange(len(predicted)), classes),
    )


def _scores(
    rows: Rows, outputs: Floats, plain: Floats | None, indices: Ints, classes: Sequence[str] | None
) -> dict[str, float]:
    """Return how right predictions of some rows are, as far as these have labels."""
    if rows.labels is None:
        return {}
    labels = rows.labels[indices]
    if classes is None:
        has_label = ~np.isnan(labels).any(axis=1)
        errors = outputs[indices][has_label] - labels[has_label]
        return {} if not len(errors) else {"mae": float(abs(errors).mean()), "rmse": float((errors**2).mean() ** 0.5)}
    has_label = labels >= 0
    if not has_label.any():
        return {}
    labels, scores = labels[has_label], {}
    for head, p in (
        ("", outputs[indices][has_label]),
        *((("plain_", plain[indices][has_label]),) if plain is not None else ()),
    ):
        scores[f"{head}accuracy"] = float((p.argmax(axis=1) == labels).mean())
        true_probabilities = np.maximum(p[np.arange(len(labels)), labels], LEAST)
        scores[f"{head}log_loss"] = float(-np.log(true_probabilities).mean())
    return scores


def _format_score(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f} %" if name.endswith("accuracy") else f"{value:.4g}"
