"""Data of one's own on disk, as they were handed over in Python, so that other processes open the same.

```
NAME-DIGEST/own.json      what they are: a data set, samples or a table, with all that is no array
NAME-DIGEST/*.npy         the arrays; samples are mapped, so that processes that open them share the memory
```
The folder is named by what is in it: the same data are stored once, and others never in their place.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedreach.arrays import AnyArray
from fedreach.data.array_files import read_npy
from fedreach.data.cells import Cells, Words
from fedreach.data.columns import ColumnRules
from fedreach.data.datasets import Dataset, add_bytes, from_arrays
from fedreach.data.held_out import Together
from fedreach.data.own_data import OwnData, OwnSamples, OwnTable
from fedreach.errors import DataError
from fedreach.registry import SHORT

FILE = "own.json"
ARRAYS = ("train_x", "train_y", "test_x", "test_y", "owners")
TOGETHER = ("groups", "moments")
WORDS = ("name", "source", "licence", "notes", "sha256", "kind", "num_classes")
LISTS = ("mean", "std", "owner_names", "class_names")


def store(data: Dataset | OwnData, folder: Path) -> Path:
    """Write data into a folder of their own in `folder`, unless they are there; return the path of its ``own.json``.

    Example:
        >>> from fedreach.data.datasets import from_arrays
        >>> toy = from_arrays(np.eye(4), [0, 1, 0, 1], name="toy")
        >>> opened(store(toy, Path(tempfile.mkdtemp()))).sha256 == toy.sha256
        True
    """
    words, arrays = _taken_apart(data)
    if isinstance(data, Dataset) and data.preparation is not None:
        raise DataError("Only data sets and one's own data can be stored; got a table that was prepared already.")
    stem = re.sub(r"[^\w-]+", "-", data.name).strip("-")[:40] or "data"
    own = folder / f"{stem}-{_digest(words, arrays)[:SHORT]}"
    if not (own / FILE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as temporary:
            new = Path(temporary) / own.name
            new.mkdir()
            for name, array in arrays.items():
                np.save(new / f"{name}.npy", array, allow_pickle=False)
            (new / FILE).write_text(json.dumps(words, indent=1) + "\n", encoding="utf-8")
            try:
                new.rename(own)
            except OSError:  # another process was as fast
                if not (own / FILE).exists():
                    raise
    return own / FILE


def digest(data: Dataset | OwnData) -> str:
    """Return the sha256 of data as they were read, before a seed says who takes part and what follows from that.

    What a data set's own hash covers is not read again.

    Example:
        >>> from fedreach.data.datasets import from_arrays
        >>> one, other = (from_arrays(np.eye(4), [0, 1, 0, last], num_classes=2) for last in (0, 1))
        >>> digest(one) == digest(one), digest(one) == digest(other)
        (True, False)
    """
    words, arrays = _taken_apart(data)
    hashed = ARRAYS if "sha256" in words else ()
    return _digest(words, {name: array for name, array in arrays.items() if name not in hashed})


def _digest(words: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> str:
    """Return the sha256 of words and arrays, but for where rows stood as they were read and what is told of others."""
    found = hashlib.sha256(json.dumps({**words, "left_out": None}, sort_keys=True).encode())
    for name, array in arrays.items():
        if name == "places":
            continue
        plain = np.ascontiguousarray(array)
        found.update(f"{name} {plain.dtype.str} {plain.shape};".encode())
        add_bytes(found, plain)
    return found.hexdigest()


def opened(path: Path) -> Dataset | OwnData:
    """Return the data that `store` wrote.

    Raises:
        DataError: If a file is missing or damaged.
    """
    try:
        words = json.loads(path.read_text(encoding="utf-8"))
        arrays = {file.stem: _array(file) for file in sorted(path.parent.glob("*.npy"))}
        return _put_together(words, arrays)
    except FileNotFoundError as error:
        raise DataError(f"There is no file {path}. Run the program again that stored the data there.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path}: must be data as FedReach stored them; got: {type(error).__name__}: {error}. "
            "Remove the folder and run the program again that stored them."
        ) from error


def _array(file: Path) -> AnyArray:
    """Return the array of a file; samples are mapped."""
    return read_npy(file, "r" if file.stem in ("train_x", "test_x") else None)


def _taken_apart(data: Dataset | OwnData) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """Return what is stored as words and as arrays."""
    if isinstance(data, OwnTable):
        columns: dict[str, list[str] | None] = {}
        arrays: dict[str, AnyArray] = {"owners": data.owners, "labels": data.labels}
        if data.places is not None:
            arrays["places"] = data.places
        arrays |= _together(data)
        for place, (name, cells) in enumerate(data.columns.items()):
            columns[name] = None if cells is None or cells.words is None else list(cells.words.levels)
            if cells is not None:
                arrays[f"column-{place}"] = cells.numbers
            if cells is not None and cells.words is not None:
                arrays[f"words-{place}"] = cells.words.codes
        names: dict[str, Any] = {"name": data.name, "owner_names": list(data.owner_names)}
        names |= {
            "classes": list(data.classes),
            "client_column": data.client_column,
            "label_columns": list(data.label_columns),
            "group": data.together.group,
            "time": data.together.time,
        }
        names |= {"rules": data.rules.to_json(), "left_out": dict(data.left_out)}
        return {"what": "table", **names, "columns": columns}, arrays
    if isinstance(data, OwnSamples):
        words, arrays = _taken_apart(data.plain)
        words |= {"what": "samples", "client_names": list(data.owner_names)}
        said = {"group": data.together.group, "time": data.together.time}
        words |= {option: name for option, name in said.items() if name is not None}
        return words, {**arrays, "clients": data.owners, **_together(data)}
    if not isinstance(data, Dataset):
        raise DataError(f"Only data sets and one's own data can be stored; got {type(data).__name__}.")
    words = {key: getattr(data, key) for key in WORDS}
    words |= {key: None if (found := getattr(data, key)) is None else list(found) for key in LISTS}
    found = {key: getattr(data, key) for key in ARRAYS}
    absent = ("test_x", "test_y") if not len(data.test_y) else ()
    kept = {key: array for key, array in found.items() if array is not None and key not in absent}
    return {"what": "dataset", **words}, kept


def _together(data: OwnData) -> dict[str, AnyArray]:
    """Return the arrays that say what is held out together."""
    found = {key: getattr(data.together, key) for key in TOGETHER}
    return {key: array for key, array in found.items() if array is not None}


def _put_together(words: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> Dataset | OwnData:
    if words["what"] == "table":
        columns: dict[str, Cells | None] = {}
        for place, (name, levels) in enumerate(words["columns"].items()):
            numbers = arrays.get(f"column-{place}")
            known = None if levels is None else Words(tuple(levels), arrays[f"words-{place}"])
            columns[name] = None if numbers is None else Cells(numbers, known)
        names, classes = tuple(words["owner_names"]), tuple(words["classes"])
        return OwnTable(
            words["name"],
            arrays["owners"],
            names,
            columns,
            arrays["labels"],
            classes,
            arrays.get("places"),
            words["client_column"],
            tuple(words["label_columns"]),
            ColumnRules.of_json(words["rules"]),
            Together(words["group"], words["time"], *(arrays.get(key) for key in TOGETHER)),
            words["left_out"],
        )
    said: dict[str, Any] = {key: arrays.get(key) for key in ARRAYS}
    said |= {key: words[key] for key in WORDS} | {key: words[key] or None for key in LISTS}
    plain = from_arrays(**said)
    if words["what"] == "samples":
        together = Together(words.get("group"), words.get("time"), *(arrays.get(key) for key in TOGETHER))
        return OwnSamples(plain.name, arrays["clients"], tuple(words["client_names"]), plain, together)
    return plain
