"""User data whose participants are not yet known, and data on disk."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedreach._util.arrays import AnyArray, Ints
from fedreach._util.errors import DataError, regular
from fedreach._util.registry import SHORT
from fedreach.data.cells import NO_RULES, Cells, ColumnRules, Words, names_unless_numbers
from fedreach.data.checks import ArgumentChecks, ExampleKind, UnreadableError, channel_scale, read_npy
from fedreach.data.datasets import ARRAYS, Dataset, add_bytes, check_array_names, from_arrays
from fedreach.data.preparation import Preparation, column_roles
from fedreach.data.splits import APART, Together

# ---- User data before the participants are known


@dataclass(frozen=True, eq=False)
class OwnData(ABC):
    """User data with natural clients, from which FederatedData builds a `Dataset` when the participants are known.

    `prepare` uses only the participants' training rows, for example to compute the scale of the inputs.
    """

    name: str  # name in tables and messages
    owners: Ints  # (n,) client of each example
    owner_names: tuple[str, ...]  # names of the N clients
    together: Together = field(default=APART, kw_only=True)  # groups and times of the examples

    @property
    @abstractmethod
    def train_y(self) -> AnyArray:
        """(n,) classes, or (n, t) numeric targets."""

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """Number of classes c, or 0 if targets are numbers."""

    @abstractmethod
    def prepare(self, clients: Sequence[Ints]) -> Dataset:
        """Build the data set; compute scales from the participants' training rows."""


@dataclass(frozen=True, eq=False)
class OwnTable(OwnData):
    """Rows of a table, see `fedreach.data.preparation.Preparation`."""

    columns: Mapping[str, Cells | None]  # cells of the input columns by name
    labels: AnyArray  # (n,) classes, or (n, t) numbers
    classes: tuple[str, ...]  # names of the classes; () if targets are numbers
    places: Ints | None = None  # (n,) numbers of the rows in the user's table
    client_column: str | None = None  # column with the clients; None: none
    label_columns: tuple[str, ...] = ()  # columns of the targets
    rules: ColumnRules = NO_RULES  # options for columns
    left_out: Mapping[str, str] = field(default_factory=dict)  # column -> rows left out, or why not used

    @property
    def train_y(self) -> AnyArray:
        return self.labels

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def prepare(self, clients: Sequence[Ints]) -> Dataset:
        preparation = Preparation.of(self.columns, clients, self.places, self.rules.kinds)
        x = preparation.inputs_of_cells(self.columns)
        names = names_unless_numbers(self.classes) if self.classes else None
        plain = from_arrays(
            x, self.labels, num_classes=self.num_classes, class_names=names, kind="features", name=self.name
        )
        columns = self.client_column, self.label_columns, self.together.group
        roles = column_roles(*columns, are_classes=bool(self.classes))
        schema = preparation.described(roles, self.classes, self.rules, self.left_out)
        return replace(plain, preparation=schema)


@dataclass(frozen=True, eq=False)
class OwnSamples(OwnData):
    """Examples as arrays; only images are normalized, with the participants' pixels."""

    plain: Dataset

    @property
    def train_y(self) -> AnyArray:
        return self.plain.train_y

    @property
    def num_classes(self) -> int:
        return self.plain.num_classes

    def prepare(self, clients: Sequence[Ints]) -> Dataset:
        if self.plain.kind != "image":
            return self.plain
        check = ArgumentChecks(self.name)
        mean, std = channel_scale(check, self.plain.train_x[np.concatenate(clients)], self.plain.kind, None, None)
        return replace(self.plain, mean=mean, std=std)


# ---- A data set in a folder of arrays, from which FedReach reads only the examples it uses
# ```
# mine/x.npy        inputs: uint8 images (n, C, H, W), float32 features (n, ...), or uint8 or int64 tokens (n, T)
# mine/y.npy        (n,) labels
# mine/client.npy   (n,) natural clients, integers or strings (optional)
# mine/x_test.npy, mine/y_test.npy     test set (optional)
# mine/dataset.json result of `index_folder`; with it, the data set opens without reading the inputs
# ```
# Write large arrays in pieces, with ``np.lib.format.open_memmap("mine/x.npy", "w+", np.uint8, (n, 3, 32, 32))``.
# Compressed files such as ``.npz`` cannot be mapped.

NOTE = "dataset.json"
SPOTS = 64  # examples that are compared when a data set is opened, because comparing all would take too long
MAPPED_TYPES = ("float32", "uint8", "int64")


def from_folder(path: Path | str, *, kind: ExampleKind | None = None, num_classes: int | None = None) -> Dataset:
    """Open a data set in a folder of arrays. After `index_folder`, this function reads only labels and clients.

    Without `index_folder`, every call reads, checks and hashes all examples, but does not copy them to memory. The name
    of the folder becomes the name of the data set. `kind` and `num_classes` are as in
    `fedreach.data.datasets.from_arrays`.

    Raises:
        DataError: If a file is missing or unknown, has a type that cannot be mapped, or differs from the index.
    """
    path = Path(path)
    arrays, note = _arrays(path), _note(path)
    if note is None:
        return from_arrays(**arrays, name=path.name, kind=kind, num_classes=num_classes, source=path.name)
    for option, value in {"kind": kind, "num_classes": num_classes}.items():
        if value is not None and value != note[option]:
            raise DataError(
                f"{path}: {option} must be {note[option]!r}, as in the index; got {value!r}. Run index_folder again."
            )
    descriptions = {argument: _describe_array(array) for argument, array in arrays.items()}
    for name, argument in ARRAYS.items():
        if descriptions.get(argument) != note["arrays"].get(argument):
            raise DataError(f"{path / name}.npy: was changed after indexing. Restore it, or run index_folder again.")
    indexed = {key: note[key] for key in ("kind", "num_classes", "mean", "std", "sha256")}
    return from_arrays(**arrays, name=path.name, **indexed, source=path.name)


def index_folder(path: Path | str, *, kind: ExampleKind | None = None, num_classes: int | None = None) -> Dataset:
    """Check and hash a folder of arrays, write the index to the folder, and return the data set.

    The arguments are as in `from_folder`.

    Raises:
        DataError: For the same reasons as in `from_folder`, or if an input or a label is invalid.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "mine"
        >>> folder.mkdir()
        >>> np.save(folder / "x.npy", np.ones((6, 4), np.float32)), np.save(folder / "y.npy", [0, 1, 0, 1, 0, 1])
        (None, None)
        >>> made = index_folder(folder)
        >>> from_folder(folder)
        Dataset(mine: 6 training and 0 test samples, features 4 float32, 2 classes, sha256 ...)
    """
    path = Path(path)
    arrays = _arrays(path)
    dataset = from_arrays(**arrays, name=path.name, kind=kind, num_classes=num_classes, source=path.name)
    note = {key: getattr(dataset, key) for key in ("kind", "num_classes", "sha256")}
    note |= {key: list(getattr(dataset, key)) or None for key in ("mean", "std")}
    note["arrays"] = {argument: _describe_array(array) for argument, array in arrays.items()}
    temporary = path / f".{NOTE}"
    temporary.write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path / NOTE)
    return dataset


def _arrays(path: Path) -> dict[str, Any]:
    """Return the arrays of a folder by argument of `from_arrays`; inputs are mapped."""
    if not path.is_dir():
        raise DataError(f"{path}: must be a folder with x.npy and y.npy; folder not found.")
    files = {file.stem: file for file in sorted(path.glob("*.npy"))}
    check_array_names(path, files)
    return {ARRAYS[name]: _open_array(file, samples=name.startswith("x")) for name, file in files.items()}


def _open_array(file: Path, *, samples: bool) -> AnyArray:
    """Read an array of labels or clients, or map an array of inputs."""
    try:
        array = read_npy(file, "r" if samples else None)
    except (OSError, UnreadableError) as error:
        raise DataError(
            f"{file}: must be a complete .npy file without Python objects; got: {error}. Write it with np.save."
        ) from error
    if array.ndim == 0:
        raise DataError(f"{file}: must be an array with one entry per example; got a single value.")
    if samples and (array.dtype.name not in MAPPED_TYPES or not array.flags.c_contiguous or not array.dtype.isnative):
        order = "" if array.flags.c_contiguous else ", in Fortran order"
        raise DataError(
            f"{file}: must be float32, uint8 or int64 in C order to be mapped; got {array.dtype}{order}. Convert it."
        )
    return array


def _note(path: Path) -> dict[str, Any] | None:
    try:
        note = json.loads(regular(path / NOTE).read_text(encoding="utf-8"))
        if not {"kind", "num_classes", "mean", "std", "sha256", "arrays"} <= note.keys():
            raise ValueError("keys are missing")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path / NOTE}: must be an index of the folder; got: {error}. Run index_folder again."
        ) from error
    return dict(note)


def _describe_array(array: AnyArray) -> dict[str, Any]:
    """Return type, shape, and a hash of some entries of an array, including the first and the last one."""
    sample_indices = np.unique(np.linspace(0, max(0, len(array) - 1), SPOTS).astype(np.int64))[: len(array)]
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(array[i]).tobytes() for i in sample_indices.tolist()))
    return {"dtype": array.dtype.str, "shape": list(array.shape), "spots": digest.hexdigest()}


# ---- Data from Python in a folder, so that other processes can open them
# ```
# NAME-DIGEST/own.json      type of the data, and everything except arrays
# NAME-DIGEST/*.npy         the arrays; inputs are mapped, so processes share their memory
# ```
# The digest of the content is part of the folder name. So equal data are stored once, and never overwritten.

FILE = "own.json"
STORED_ARRAYS = ("train_x", "train_y", "test_x", "test_y", "owners")
TOGETHER = ("groups", "moments")
WORDS = ("name", "source", "licence", "notes", "sha256", "kind", "num_classes")
LISTS = ("mean", "std", "owner_names", "class_names")
TABLE_WORDS = ("name", "owner_names", "classes", "client_column", "label_columns")


def store(data: Dataset | OwnData, folder: Path) -> Path:
    """Write data to a new folder in `folder` unless it already contains them; return the path of ``own.json``.

    Example:
        >>> from fedreach.data.datasets import from_arrays
        >>> toy = from_arrays(np.eye(4), [0, 1, 0, 1], name="toy")
        >>> open_stored(store(toy, Path(tempfile.mkdtemp()))).sha256 == toy.sha256
        True
    """
    words, arrays = _split_parts(data)
    if isinstance(data, Dataset) and data.preparation is not None:
        raise DataError("Only data sets and user data can be stored; got a prepared table.")
    stem = re.sub(r"[^\w-]+", "-", data.name).strip("-")[:40] or "data"
    target = folder / f"{stem}-{_digest(words, arrays)[:SHORT]}"
    if not (target / FILE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as temporary:
            new = Path(temporary) / target.name
            new.mkdir()
            for name, array in arrays.items():
                np.save(new / f"{name}.npy", array, allow_pickle=False)
            (new / FILE).write_text(json.dumps(words, indent=1) + "\n", encoding="utf-8")
            try:
                new.rename(target)
            except OSError:  # another process has stored the same data in the meantime
                if not (target / FILE).exists():
                    raise
    return target / FILE


def digest(data: Dataset | OwnData) -> str:
    """Return the sha256 of data as they are before FedReach draws participants and measures scales.

    If the data set has a stored hash, FedReach does not read the arrays in this hash again.

    Example:
        >>> from fedreach.data.datasets import from_arrays
        >>> one, other = (from_arrays(np.eye(4), [0, 1, 0, last], num_classes=2) for last in (0, 1))
        >>> digest(one) == digest(one), digest(one) == digest(other)
        (True, False)
    """
    words, arrays = _split_parts(data)
    hashed = STORED_ARRAYS if "sha256" in words else ()
    return _digest(words, {name: array for name, array in arrays.items() if name not in hashed})


def _digest(words: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> str:
    """Return the sha256 of words and arrays, without original row numbers and remarks on rows left out."""
    hasher = hashlib.sha256(json.dumps({**words, "left_out": None}, sort_keys=True).encode())
    for name, array in arrays.items():
        if name == "places":
            continue
        plain = np.ascontiguousarray(array)
        hasher.update(f"{name} {plain.dtype.str} {plain.shape};".encode())
        add_bytes(hasher, plain)
    return hasher.hexdigest()


def open_stored(path: Path) -> Dataset | OwnData:
    """Open data that `store` wrote.

    Raises:
        DataError: If a file is missing or damaged.
    """
    try:
        words = json.loads(regular(path).read_text(encoding="utf-8"))
        mapped = ("train_x", "test_x")
        files = sorted(path.parent.glob("*.npy"))
        arrays = {file.stem: read_npy(file, "r" if file.stem in mapped else None) for file in files}
        return _join_parts(words, arrays)
    except FileNotFoundError as error:
        raise DataError(f"{path}: file not found. Run the program that stored the data again.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path}: must be data that FedReach has stored; got: {type(error).__name__}: {error}. "
            "Remove the folder, and run the program that stored the data again."
        ) from error


def _split_parts(data: Dataset | OwnData) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """Split data into JSON values and arrays."""
    words: dict[str, Any]
    arrays: dict[str, AnyArray | None]
    if isinstance(data, OwnTable):
        together = data.together
        words = {"what": "table"} | {key: getattr(data, key) for key in TABLE_WORDS}
        words |= {"group": together.group, "time": together.time, "rules": data.rules.to_json()}
        words |= {"left_out": dict(data.left_out), "columns": {}}
        arrays = {"owners": data.owners, "labels": data.labels, "places": data.places}
        arrays |= {key: getattr(together, key) for key in TOGETHER}
        for place, (name, cells) in enumerate(data.columns.items()):
            column_words = None if cells is None else cells.words
            words["columns"][name] = None if column_words is None else column_words.levels
            arrays[f"column-{place}"] = None if cells is None else cells.numbers
            arrays[f"words-{place}"] = None if column_words is None else column_words.codes
    elif isinstance(data, OwnSamples):
        words, of_plain = _split_parts(data.plain)
        options = {"group": data.together.group, "time": data.together.time}
        words |= {"what": "samples", "client_names": data.owner_names}
        words |= {option: name for option, name in options.items() if name is not None}
        arrays = {**of_plain, "clients": data.owners} | {key: getattr(data.together, key) for key in TOGETHER}
    elif isinstance(data, Dataset):
        words = {"what": "dataset"} | {key: getattr(data, key) for key in (*WORDS, *LISTS)}
        array_names = STORED_ARRAYS if len(data.test_y) else ("train_x", "train_y", "owners")
        arrays = {key: getattr(data, key) for key in array_names}
    else:
        raise DataError(f"Only data sets and user data can be stored; got {type(data).__name__}.")
    return words, {key: array for key, array in arrays.items() if array is not None}


def _join_parts(words: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> Dataset | OwnData:
    together = Together(words.get("group"), words.get("time"), *(arrays.get(key) for key in TOGETHER))
    if words["what"] == "table":
        columns: dict[str, Cells | None] = {}
        for place, (name, levels) in enumerate(words["columns"].items()):
            column_words = None if levels is None else Words(tuple(levels), arrays[f"words-{place}"])
            numbers = arrays.get(f"column-{place}")
            columns[name] = None if numbers is None else Cells(numbers, column_words)
        about: dict[str, Any] = {
            key: tuple(value) if isinstance(value := words[key], list) else value for key in TABLE_WORDS
        }
        about |= {"columns": columns, "rules": ColumnRules.of_json(words["rules"]), "left_out": words["left_out"]}
        parts: dict[str, Any] = {key: arrays.get(key) for key in ("owners", "labels", "places")}
        return OwnTable(**about, **parts, together=together)
    arguments: dict[str, Any] = {key: arrays.get(key) for key in STORED_ARRAYS}
    arguments |= {key: words[key] for key in WORDS} | {key: words[key] or None for key in LISTS}
    plain = from_arrays(**arguments)
    if words["what"] == "samples":
        return OwnSamples(plain.name, arrays["clients"], tuple(words["client_names"]), plain, together=together)
    return plain
