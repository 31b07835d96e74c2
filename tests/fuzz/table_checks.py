"""What must hold of each table that is handed in: it is read as it stands in the file, or refused in words."""

from __future__ import annotations

import csv
import io
import json
import re
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from click.testing import CliRunner

from fedreach._util.errors import FedReachError
from fedreach.cli import main
from fedreach.data.federated import FederatedData
from fedreach.data.samples import SampleFormat
from fedreach.deploy.predictions import Rows, read_rows

from .campaign import Ending, WrongError, ending
from .commands import must_be_told
from .mutated_tables import BASES, Mutant

EMPTY = {"", "NA", "N/A", "n/a", "<NA>", "NaN", "nan", "NULL", "null", "None"}
INDEX = "__index_level_0__"  # what a first column without a name is called where it numbers the rows
SETTINGS = ("rounds=1", "evaluation.every=1", "engine.name=sequential", "method.cohort_size=1")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
NEEDED = ("client", "label", "target")


class Truth(NamedTuple):
    """What stands in a file, as Python's csv module reads it."""

    columns: dict[str, list[str]]  # by name, without spaces around it
    rows: int


def truth(mutant: Mutant) -> Truth | None:
    """Return what stands in a file; None where that cannot be said."""
    try:
        text = mutant.content.decode("utf-8-sig")
        header, *rows = (row for row in csv.reader(io.StringIO(text, newline=""), delimiter=mutant.separator) if row)
    except (UnicodeDecodeError, csv.Error, ValueError):
        return None
    names = [name.strip() for name in header]
    if "\0" in text or len(set(names)) < len(names) or any(len(row) != len(header) for row in rows):
        return None
    return Truth({name: [row[place] for row in rows] for place, name in enumerate(names)}, len(rows))


def checked(mutant: Mutant, folder: Path) -> Literal["read", "refused"]:
    """Read a file by the door of Python, and hold what comes out to what stands in it.

    Raises:
        WrongError: If a row, a column, a client or a class is lost, or another one is there.
    """
    path = folder / mutant.file_name
    path.write_bytes(mutant.file_bytes)
    found, (how, data, said) = truth(mutant), read(path, mutant)
    if found is not None and data is not None:
        for fault in (*lost_columns(found, data), *lost_rows(mutant, found, data), *lost_names(mutant, found, data)):
            raise WrongError(f"{fault}\n{data.schema}")
    if found is not None and found.rows and is_common(mutant) and "" not in found.columns:
        _, _, wanted = read(found.columns, mutant)
        if said != wanted:
            raise WrongError(f"the file says {said}, and its cells, as a dictionary, {wanted}")
    return "read" if how == "survived" else "refused"


def read(source: Any, mutant: Mutant) -> tuple[Ending, FederatedData | None, str]:
    """Return how it ends to read a table, what comes of it, and the same in words; warnings are errors."""
    made: list[FederatedData] = []
    told: list[str] = []

    def call() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                said: dict[str, Any] = {**mutant.options, "columns": mutant.rules or None}
                made.append(FederatedData.from_frame(source, name="t", **said))
            except FedReachError as error:
                told.append(f"{type(error).__name__}: {error}")
                raise

    how = ending(call)
    if not made:
        return how, None, told[0]
    data = made[0]
    return how, data, f"{data.digest()}, {data.client_names}, {data.class_names}\n{data.schema}"


def is_common(mutant: Mutant) -> bool:
    """Return whether its separator and its ending are such as tables have."""
    return mutant.separator in ",;\t|" and mutant.ending.lower() in (".csv", ".tsv", ".txt")


# --------------------------------------------------------------------------------------------- what is lost in silence


def lost_columns(found: Truth, data: FederatedData) -> Iterator[str]:
    """Yield columns that are neither an input nor told."""
    assert data.schema is not None
    kinds = {column.name: column for column in data.schema.columns}
    for name in found.columns:
        column = kinds.get(name or INDEX)
        if column is None:
            yield f"of column {name!r} nothing is told"
        elif column.kind in ("left out", "dropped") and not column.why:
            yield f"column {name!r} is {column.kind}, and why is not told"


def held(mutant: Mutant, found: Truth) -> dict[str, list[bool]]:
    """Return whether each row holds something, by the columns that it needs."""
    names = [mutant.options[key] for key in NEEDED if key in mutant.options]
    missing = mutant.rules.get("missing", ())
    words = {str(word) for word in ([missing] if isinstance(missing, str) else missing)}
    return {name: [not is_missing(cell.strip(), words) for cell in found.columns[name]] for name in names}


def is_missing(cell: str, words: set[str]) -> bool:
    """Return whether a cell holds nothing; of words that are numbers all ways to write them."""
    if cell in EMPTY or cell in words:
        return True
    return bool(NUMBER.fullmatch(cell)) and any(NUMBER.fullmatch(each) and float(each) == float(cell) for each in words)


def lost_rows(mutant: Mutant, found: Truth, data: FederatedData) -> Iterator[str]:
    """Yield what is wrong with the number of rows, or with what is told of those that are left out."""
    assert data.schema is not None
    there = held(mutant, found)
    kept = sum(map(all, zip(*there.values(), strict=True)))
    if len(data.dataset.train_y) != kept:
        yield f"{kept} rows hold all that is needed, and {len(data.dataset.train_y)} are there"
    odd = {column.name: column.odd for column in data.schema.columns}
    for name, each in there.items():
        told = re.match(r"(\d+) rows? without a value .* \(first: row (\d+)\)", odd[name])
        said = (int(told[1]), int(told[2])) if told else (0, -1)
        if said != (each.count(False), each.index(False) if False in each else -1):
            yield f"{each.count(False)} rows are without {name!r}; told is {odd[name]!r}"


def lost_names(mutant: Mutant, found: Truth, data: FederatedData) -> Iterator[str]:
    """Yield what is wrong with the number of clients or classes."""
    kept = [row for row, each in enumerate(zip(*held(mutant, found).values(), strict=True)) if all(each)]
    for key, count in {"client": data.num_clients, "label": data.dataset.num_classes}.items():
        texts = {found.columns[mutant.options[key]][row] for row in kept} if key in mutant.options else set()
        if key in mutant.options and len(texts) != count:
            yield f"there are {len(texts)} different names of {key}, {sorted(texts)[:9]}, and {count} are known"


# ----------------------------------------------------------------------------------------------------------- commands


def trained(mutant: Mutant, folder: Path) -> Literal["read", "refused"]:
    """Train on a file for a round by the command.

    Raises:
        WrongError: If it ends in a traceback, or without a word.
    """
    path = folder / mutant.file_name
    path.write_bytes(mutant.file_bytes)
    options = [part for key, column in mutant.options.items() for part in (f"--{key}", column)]
    rules = [f"data.columns.{key}={json.dumps(value)}" for key, value in mutant.rules.items()]
    settings = [part for each in (*SETTINGS, *rules) for part in ("--set", each)]
    arguments = ["run", "--data", str(path), *options, *settings, "--quiet", "--out", str(folder / "run")]

    def call() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            must_be_told(arguments, CliRunner().invoke(main, arguments))

    return "read" if ending(call) == "survived" else "refused"


# -------------------------------------------------------------------------------------------------------- predictions


@cache
def trained_on(base: str) -> dict[str, Any]:
    """Return the description of a model that was trained on a base table."""
    draft = BASES[base]()
    table = {name: [row[place] for row in draft.rows] for place, name in enumerate(draft.header)}
    data = FederatedData.from_frame(table, **draft.options)  # type: ignore[arg-type]
    d = data.dataset
    labels = [draft.options[key] for key in ("label", "target") if key in draft.options]
    expected = SampleFormat(d.name, d.kind, d.train_x.shape[1:], preparation=d.preparation)
    return {
        **expected.to_json(),
        "name": d.name,
        "client_column": draft.options["client"],
        "label_columns": labels,
        "classes": data.class_names,
        "targets": None if data.class_names else 1,
        "outputs": len(data.class_names or [1]),
    }


def predicted(mutant: Mutant, folder: Path) -> Literal["read", "refused"]:
    """Read a file whose rows a model of its base table is to predict.

    Raises:
        WrongError: If a row or a client is lost, or another one is there.
    """
    path = folder / mutant.file_name
    path.write_bytes(mutant.file_bytes)
    about = trained_on(mutant.base)
    made: list[Rows] = []

    def call() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made.append(read_rows(path, about))

    if ending(call) == "told":
        return "refused"
    found, rows = truth(mutant), made[0]
    if found is not None and len(rows.samples) != found.rows:
        raise WrongError(f"{found.rows} rows are in the file, and {len(rows.samples)} are predicted")
    if found is not None and about["client_column"] in found.columns and rows.clients is not None:
        names = found.columns[about["client_column"]]
        if len(set(names)) != len(rows.by_client()):
            raise WrongError(f"there are {len(set(names))} clients, and {len(rows.by_client())} are known")
    return "read"


Law = Callable[[Mutant, Path], Literal["read", "refused"]]
