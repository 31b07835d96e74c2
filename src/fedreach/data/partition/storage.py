"""One .npz file with a JSON header: written whole or not at all, read without pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile

from fedreach.arrays import AnyArray
from fedreach.errors import DataError

FORMAT = "fedreach-partition/1"


def write(path: Path, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write beside `path` first and then rename, so that a half-written file is never taken for a whole one."""
    text = json.dumps({"format": FORMAT, **header}, sort_keys=True).encode()
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            np.savez_compressed(file, header=np.frombuffer(text, np.uint8), **arrays)
        part.replace(path)
    except OSError as error:
        raise DataError(f"{path}: the partition cannot be written ({error}). Choose another path.") from error
    finally:
        part.unlink(missing_ok=True)


def read(path: Path, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """Return the header and the named arrays, or a DataError that says what is wrong with the file."""
    try:
        with path.open("rb") as file:  # np.load(path) would leave a damaged file open
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, NpzFile):
                raise ValueError("one bare array, not an .npz file")
            header = json.loads(stored["header"].tobytes())
            found = header["format"]
            arrays = {name: stored[name] for name in names} if found == FORMAT else {}
    except Exception as error:  # a damaged zip or array header makes numpy and zipfile raise a dozen kinds
        raise DataError(f"{path}: not a readable partition ({error}). Make or copy it again.") from error
    if found != FORMAT:
        raise DataError(f"{path}: written as {found!r}, and this version reads {FORMAT!r}. Make the partition again.")
    return header, arrays
