"""Predictions for the rows of a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from fedreach._util.arrays import AnyArray, Float32s, Floats, Ints
from fedreach._util.errors import ConfigError, DataError, nearest, regular
from fedreach._util.tables import visible
from fedreach.data.cells import AS_USUAL, Cells, Reading, Words, cells_of, named_rows
from fedreach.data.checks import no_such_file, read_npz
from fedreach.data.preparation import InputColumn, Preparation, is_filled
from fedreach.data.samples import RawSamples, SampleFormat
from fedreach.data.table_source import column_of, read_table
from fedreach.deploy.adapter import Adapter
from fedreach.federation.adaptation.base import log_softmax

# -------------------- Rows of a file: examples, their clients, and labels if the file has any
# This code needs numpy and pyarrow alone, so that an exported model can contain it.

SAMPLES = "x"  # name of the examples in an ``.npz`` file, as in one to train on
USUAL = {"client": ("client",), "label": ("label", "y")}
"""Usual names of client and label columns, used if the training data have no names for these columns."""
ENDINGS = (".csv", ".tsv", ".txt", ".gz", ".parquet", ".npz")
MAX_NAMED = 3  # maximum number of names in a list
FAR_DEVIATIONS = 20.0  # standard deviations from the participants' mean beyond which a single value is reported
FAR_DEVIATIONS_MEDIAN = 5.0  # the same for the median of a column, as with a wrong unit
MIN_VALUES = 3  # minimum number of values for a meaningful median


@dataclass(frozen=True, eq=False)
class Rows:
    """Examples, clients and labels of m rows of a file."""

    samples: AnyArray  # (m, ...) raw examples, see `RawSamples`
    clients: tuple[str, ...] | None  # (m,) client of each row; None if the file does not name clients
    labels: AnyArray | None  # (m,) classes, -1 if unknown; or (m, t) numbers, nan if unknown
    notes: tuple[str, ...]  # what the model does not know about the rows

    def by_client(self) -> dict[str, Ints]:
        """Return the rows of each client in order of appearance; without client names, all rows belong to one client.

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


def classes_of(about: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the (c,) names or numbers of classes as texts, or None if the model predicts numbers."""
    if about["targets"] is not None:
        return None
    return tuple(about["classes"] or map(str, range(about["outputs"])))


def read_rows(path: Path, about: Mapping[str, Any], client: str | None = None, label: str | None = None) -> Rows:
    """Read the rows of a table (``.csv`` or ``.parquet``) or of arrays (``.npz``).

    Args:
        path: Path of the file.
        about: Description of the model, as in ``model.json``.
        client: Column of clients, which the file must contain. Default: the client column of the training data, if the
            file contains it.
        label: Column of labels, which the file must contain. Default: the label columns of the training data, if the
            file contains them.

    Raises:
        ConfigError: If a column is missing.
        DataError: If the file cannot be read, or its examples differ in format from the training examples.
    """
    expected = SampleFormat.of_json(about["name"], about)
    classes, label_columns = classes_of(about), about["label_columns"]
    table, is_arrays = _read(path, expected)
    names = list(table)
    prepared = () if expected.preparation is None else expected.preparation.used
    free = [name for name in names if name not in {column.name for column in prepared}]  # a column "y" may be an input
    of_client = _choose_column("client", names, free, client, about["client_column"])
    of_labels = label_columns if all(name in names for name in label_columns) else []
    if label is not None or not label_columns:
        of_labels = [*filter(None, [_choose_column("label", names, free, label, None)])]
    reading = AS_USUAL if expected.preparation is None else expected.preparation.reading
    owners = None if of_client is None else tuple(_texts(table, of_client, reading))
    notes: list[str] = []
    if expected.preparation is not None:
        cells = expected.preparation.cells(table)
        samples = np.column_stack(expected.preparation.numbers(cells))
        notes = _describe_unknown(expected.preparation, cells)
        notes += _describe_unused(expected.preparation, [name for name in names if name not in (of_client, *of_labels)])
    elif is_arrays:
        if SAMPLES not in names:
            raise DataError(f"{path}: array {SAMPLES!r} not found. {nearest(SAMPLES, names)}")
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
        labels = _targets(table, of_labels, about["targets"], reading)
    return Rows(samples.view(RawSamples), owners, labels, tuple(notes))


def _read(path: Path, expected: SampleFormat) -> tuple[Any, bool]:
    """Return the columns or arrays of a file by name, and whether they are arrays of examples."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise DataError(f"{path}: rows must be a .csv, a .parquet or an .npz file; got {ending or 'no ending'!r}.")
    if ending != ".npz":
        return read_table(path), False
    try:
        with regular(path).open("rb") as stream:
            return read_npz(stream), expected.preparation is None
    except FileNotFoundError as error:
        raise no_such_file(path, ENDINGS) from error
    except (OSError, ValueError) as error:  # an incomplete file, or an invalid path
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{path}: must be a readable .npz file without Python objects; got: {error}. Write it with "
            "np.savez_compressed(path, x=x)."
        ) from error


def _choose_column(
    what: Literal["client", "label"],
    names: Sequence[str],
    free: Sequence[str],
    requested: str | None,
    data_column: str | None,
) -> str | None:
    """Return the requested column, or else that of the training data, or else one with a usual name."""
    if requested is not None and requested not in names:
        raise ConfigError(f"--{what}: unknown column {requested!r}.{nearest(requested, names)}")
    if requested is not None or data_column is not None:
        return requested or (data_column if data_column in names else None)
    return next((name for name in USUAL[what] if name in free), None)


def _texts(table: Any, name: str, reading: Reading) -> list[str]:
    """Return the names in a column, as the file has them."""
    values = named_rows(f"column {name!r}", _arrow(table, name), reading)
    gone = [row for row, value in enumerate(values) if value is None]
    if gone:
        raise DataError(
            f"column {name!r} is empty in {len(gone)} rows, first in row {gone[0]}. Fill in the client of each row."
        )
    return [text for text in values if text is not None]


def _arrow(table: Any, name: str) -> Any:
    return column_of(read_table({name: table[name]}), name)


def _numbers(table: Any, name: str) -> Floats:
    values = _values(table, name, "numbers, like every input of this model")
    if np.isnan(values).any():
        row = int(np.flatnonzero(np.isnan(values))[0])
        raise DataError(f"column {name!r} is empty in row {row}; this model needs complete rows.")
    return values


def _values(table: Any, name: str, what: str, reading: Reading = AS_USUAL) -> Floats:
    """Return (m,) numbers, nan for empty cells."""
    cells = cells_of(name, _arrow(table, name), reading=reading)
    if cells is None or cells.words is not None:
        raise DataError(f"column {name!r} must contain {what}. Remove the column.")
    return cells.numbers


def _classes(table: Any, name: str, classes: Sequence[str], reading: Reading) -> tuple[Ints, list[str]]:
    """Return (m,) classes, -1 for missing and unknown ones, and a note about unknown classes."""
    place = {class_name: number for number, class_name in enumerate(classes)}
    values = named_rows(f"column {name!r}", _arrow(table, name), reading)
    numbers = np.array([-1 if value is None else place.get(value, -1) for value in values], np.int64)
    strange = sorted({value for value in values if value is not None and value not in place})
    be = "is" if len(strange) == 1 else "are"
    note = f"{name}: {_quote_names(strange)} {be} not in the model's classes, so these rows are not scored"
    return numbers, [note] if strange else []


def _targets(table: Any, names: Sequence[str], targets: int, reading: Reading) -> Floats:
    """Return (m, t) numbers, nan for missing ones."""
    array = np.asarray(table[names[0]])
    if len(names) == 1 and array.ndim == 2 and array.dtype.kind in "uif" and array.shape[1] == targets:
        several: Floats = array.astype(np.float64)  # one array of an .npz file
        return several
    if len(names) != targets:
        raise DataError(f"The model predicts {targets} numbers, one column each; got the label columns {list(names)}.")
    what = "the numbers to predict"
    return np.column_stack([_values(table, name, what, reading) for name in names])


def _describe_unknown(preparation: Preparation, table: Mapping[str, Cells | None]) -> list[str]:
    """Return notes about what the model does not know: categories, cells of another kind, new missing values."""
    notes = []
    for column in preparation.used:
        cells = table[column.name]
        assert cells is not None  # `numbers` refuses it
        has_value, values = is_filled(cells), column.raw(cells)
        if column.kind == "category":
            words = cells.words or Words((), np.full(len(cells), -1))
            categories = set(column.categories)
            strange = {code: level for code, level in enumerate(words.levels) if level not in categories}
            rows = int(np.isin(words.codes, [*strange]).sum())
            if strange:
                named = _quote_names([*strange.values()])
                notes.append(
                    f"{column.name}: no participant had {named} ({_count_rows(rows)}), which counts as no category"
                )
        elif (odd := int((has_value & np.isnan(values)).sum())) and cells.words is not None:
            texts = np.unique(cells.words.codes[has_value & np.isnan(values)])
            named = _quote_names([cells.words.levels[code] for code in texts.tolist()])
            notes.append(f"{column.name}: {named} ({_count_rows(odd)}) is not a {column.kind} and counts as missing")
        gone = int((~has_value).sum())
        if gone and not column.missing:
            instead = "no category" if column.kind == "category" else f"the participants' mean, {column.mean:.4g}"
            notes.append(
                f"{column.name}: missing in {_count_rows(gone)}, but in no row of participants; a missing value counts "
                f"as {instead}"
            )
        notes += _describe_far(column, values)
    return notes


def _describe_far(column: InputColumn, values: Floats) -> list[str]:
    """Return a note about a column's numbers that are far from the participants' mean, in their standard deviations.

    The bounds are wide, as columns with a long tail have a few distant values at many clients. In the 31 real tables
    of ``benchmarks/natural_tables.py``, the rows of 1 unseen client in 170 get a note.
    """
    if column.kind not in ("number", "date") or np.isnan(values).all():
        return []
    distance = abs(values - column.mean) / column.sd
    far = distance > FAR_DEVIATIONS
    theirs = f"{column.shown(column.mean)} ± {column.sd:.4g}{' days' * (column.kind == 'date')}"
    middle = float(np.nanmedian(values))
    has_middle = (~np.isnan(values)).sum() >= MIN_VALUES
    if has_middle and float(np.nanmedian(distance)) > FAR_DEVIATIONS_MEDIAN:
        about = f"half of the values are far from the participants' values, with median {column.shown(middle)}"
        return [f"{column.name}: {about}; participants have {theirs}. Check the unit"]
    if not far.any():
        return []
    row = int(np.nanargmax(distance))
    about = (
        f"far from the participants' values in {_count_rows(int(far.sum()))}, such as {column.shown(values[row])} in "
        f"row {row}"
    )
    return [f"{column.name}: {about}; participants have {theirs}"]


def _describe_unused(preparation: Preparation, names: Sequence[str]) -> list[str]:
    """Return a note about the columns of a file that the training data did not have."""
    trained_names = {column.name for column in preparation.columns}
    strange = [name for name in names if name not in trained_names]
    if not strange:
        return []
    columns, are = ("columns", "are") if len(strange) > 1 else ("column", "is")
    return [f"{columns} {_quote_names(strange)} {are} not in the training data and not used"]


def _count_rows(rows: int) -> str:
    return f"{rows} row{'s' * (rows != 1)}"


def _quote_names(names: Sequence[str]) -> str:
    more = "" if len(names) <= MAX_NAMED else f" and {len(names) - MAX_NAMED} more"
    return ", ".join(map(repr, names[:MAX_NAMED])) + more


# -------------------- Predictions of rows: unadapted, or adapted to each client by its inputs
# This code needs numpy alone, so that an exported model can contain it.

MIN_PROBABILITY = 1e-12  # minimum probability of the true class in the log loss, as 0 does not have a logarithm


class PredictingModel(Protocol):
    """Interface of trained models in this process and of exported models."""

    def logits(self, samples: Any) -> Floats:
        """Return the (m, c) logits of examples, or their (m, t) predicted numbers."""
        ...

    def answers(self, samples: Any) -> tuple[Floats, Floats | None, Float32s | None]:
        """Return logits, features and inputs of examples, which are the arguments of `Adapter.fit`."""
        ...


@dataclass(frozen=True)
class ClientPredictions:
    """Scores of one client, and the decision about its adaptation."""

    name: str  # "" if the file does not name clients
    rows: int
    decision: str | None  # "adapted", "repaired, adapted", "abstained" ...; None: unadapted
    scores: dict[str, float]  # of its labeled rows; empty without labels


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of a model for m rows."""

    rows: Rows
    clients: tuple[ClientPredictions, ...]
    outputs: Floats  # (m, c) probabilities, or (m, t) numbers
    classes: tuple[str, ...] | None  # (c,) names; None if the model predicts numbers
    decisions: tuple[str, ...] | None  # (m,) decision about the adaptation to each row's client; None: unadapted
    scores: dict[str, float]  # of all labeled rows; empty without labels

    def table(self, client: str | None = None, targets: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return a table with the client, prediction, adaptation decision and class probabilities of each row.

        Args:
            client: Name of the column of clients. If another column has this name, the name is ``client``.
            targets: Names of the predicted numbers, if there are several.
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

    def lines(self) -> list[str]:
        """Return a table of the clients' decisions and scores as lines of text."""
        header = ["client", "rows", "decision", *self.scores]
        body = [
            [visible(client.name) or "(all rows)", str(client.rows), client.decision or "unadapted"]
            + [_format_score(name, client.scores.get(name)) for name in self.scores]
            for client in self.clients
        ]
        if len(self.clients) > 1 and self.scores:
            overall = [_format_score(name, value) for name, value in self.scores.items()]
            body.append(["all", str(len(self.rows.samples)), "", *overall])
        widths = [max(map(len, cells)) for cells in zip(header, *body, strict=True)]
        return ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in (header, *body)]


def predictions(
    model: PredictingModel,
    rows: Rows,
    about: Mapping[str, Any],
    new_adapter: Callable[[], Adapter] | None = None,
) -> Predictions:
    """Return a model's predictions for rows; a rule adapts to each client with all of its rows, without labels.

    Args:
        model: Trained or exported model.
        rows: Rows of a file.
        about: Description of the model, as in ``model.json``.
        new_adapter: Function that returns an adapter for a client. None: predict without adaptation.

    Raises:
        DataError: If a prediction is not finite, as of very large numbers; the message names the row and the column.
    """
    classes, shape, by_client = classes_of(about), (len(rows.samples), about["outputs"]), rows.by_client()
    predicted, unadapted = np.empty(shape), None if new_adapter is None else np.empty(shape)
    decisions: dict[str, str] = {}
    preparation = SampleFormat.of_json(about["name"], about).preparation
    if new_adapter is None and len(rows.samples):
        for indices in by_client.values() if about["mixes"] else [np.arange(len(rows.samples))]:
            logits = model.logits(rows.samples[indices])
            check_finite(logits, rows.samples, indices, preparation)
            predicted[indices] = logits if classes is None else np.exp(log_softmax(logits))
    elif new_adapter is not None and unadapted is not None:
        for name, indices in by_client.items():
            answers = model.answers(rows.samples[indices])
            check_finite(answers[0], rows.samples, indices, preparation)
            adapter = new_adapter().fit(*answers)
            predicted[indices], decisions[name] = adapter.predict_proba(*answers), adapter.decision_
            unadapted[indices] = np.exp(log_softmax(answers[0]))
    clients = tuple(
        ClientPredictions(
            name, len(indices), decisions.get(name), _scores(rows, predicted, unadapted, indices, classes)
        )
        for name, indices in by_client.items()
    )
    names = rows.clients or [""] * len(predicted)
    return Predictions(
        rows,
        clients,
        predicted,
        classes,
        None if new_adapter is None else tuple(decisions[name] for name in names),
        _scores(rows, predicted, unadapted, np.arange(len(predicted)), classes),
    )


def check_finite(outputs: Floats, samples: Any, indices: Ints, preparation: Preparation | None) -> None:
    """Raise DataError if outputs of these rows are not finite; name the cell furthest from the participants' mean."""
    refused = indices[~np.isfinite(outputs).all(axis=tuple(range(1, outputs.ndim)))]
    if not len(refused):
        return
    row, cause = int(refused[0]), ""
    if preparation is not None:
        values = np.asarray(samples, np.float64)[refused]
        mean, sd = np.array([(column.mean, column.sd) for column in preparation.used]).T
        place, number = np.unravel_index(np.nan_to_num(abs(values - mean) / sd).argmax(), values.shape)
        row, column = int(refused[place]), preparation.used[number]
        cause = f": column {column.name!r} is {column.shown(float(values[place, number]))}, the most unusual cell"
    raise DataError(f"The prediction for row {row} is not finite{cause}. Correct the row, or remove it.")


def _scores(
    rows: Rows, outputs: Floats, unadapted: Floats | None, indices: Ints, classes: Sequence[str] | None
) -> dict[str, float]:
    """Return the scores of the predictions of some rows, as far as these have labels."""
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
    labels, scores = labels[has_label], dict[str, float]()
    for head, probabilities in (("", outputs), ("unadapted_", unadapted)):
        if probabilities is not None:
            p = probabilities[indices][has_label]
            scores[f"{head}accuracy"] = float((p.argmax(axis=1) == labels).mean())
            true_probabilities = np.maximum(p[np.arange(len(labels)), labels], MIN_PROBABILITY)
            scores[f"{head}log_loss"] = float(-np.log(true_probabilities).mean())
    return scores


def _format_score(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f}%" if name.endswith("accuracy") else f"{value:.4g}"
