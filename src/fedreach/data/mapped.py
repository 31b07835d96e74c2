"""A data set that stays on disk: arrays in a folder, of which only the samples that are used are read.

```
mine/x.npy        samples, uint8 images (n, C, H, W), float32 features (n, ...) or tokens (n, T), uint8 or int64
mine/y.npy        (n,) labels
mine/client.npy   (n,) natural client of each, integers or strings, where there are any
mine/x_test.npy, mine/y_test.npy     a test set, where there is one
mine/dataset.json what `index_folder` found: with it, samples are not read when the data set is opened
```
Write large arrays piece by piece with ``np.lib.format.open_memmap("mine/x.npy", "w+", np.uint8, (n, 3, 32, 32))``.
Compressed files cannot be mapped, and so neither can ``.npz`` nor the packed form of the known image sets.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from fedreach.arrays import AnyArray
from fedreach.data.array_files import UnreadableError, read_npy
from fedreach.data.checks import Kind
from fedreach.data.datasets import ARRAYS, Dataset, from_arrays
from fedreach.errors import DataError, nearest

NOTE = "dataset.json"
SPOTS = 64  # samples that are compared when a data set is opened; all of them would take as long as reading it
KEPT = ("float32", "uint8", "int64")


def from_folder(path: Path | str, *, kind: Kind | None = None, num_classes: int | None = None) -> Dataset:
    """Open a folder of arrays without reading more of it than labels and clients, if it was indexed.

    A folder that was not indexed is read once each time it is opened, to check and hash it; no copy is held either. The
    folder's name becomes that of the data set. `kind` and `num_classes` are as in `fedreach.data.datasets.from_arrays`,
    for a folder that was not indexed.

    Raises:
        DataError: A file is missing, unknown, of a type that cannot be mapped, or not what was indexed.
    """
    path = Path(path)
    arrays, note = _arrays(path), _note(path)
    if note is None:
        return from_arrays(**arrays, name=path.name, kind=kind, num_classes=num_classes, source=path.name)
    for option, given in {"kind": kind, "num_classes": num_classes}.items():
        if given is not None and given != note[option]:
            raise DataError(
                f"{path}: was indexed with {option} {note[option]!r}; got {given!r}. "
                "Repeat index_folder with it, which reads the folder once."
            )
    found = {argument: _described(array) for argument, array in arrays.items()}
    for name, argument in ARRAYS.items():
        if found.get(argument) != note["arrays"].get(argument):
            raise DataError(f"{path / name}.npy: is not what was indexed. Put it back, or repeat index_folder.")
    known = {key: note[key] for key in ("kind", "num_classes", "mean", "std", "sha256")}
    return from_arrays(**arrays, name=path.name, **known, source=path.name)


def index_folder(path: Path | str, *, kind: Kind | None = None, num_classes: int | None = None) -> Dataset:
    """Check and hash a folder of arrays, reading it once, and note there what was found; return the data set.

    The arguments are as in `from_folder`.

    Raises:
        DataError: As `from_folder`, or if a sample or label breaks a rule.

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
    made = from_arrays(**arrays, name=path.name, kind=kind, num_classes=num_classes, source=path.name)
    note = {key: getattr(made, key) for key in ("kind", "num_classes", "sha256")}
    note |= {key: list(getattr(made, key)) or None for key in ("mean", "std")}
    note["arrays"] = {argument: _described(array) for argument, array in arrays.items()}
    temporary = path / f".{NOTE}"
    temporary.write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path / NOTE)
    return made


def _arrays(path: Path) -> dict[str, Any]:
    """Return the arrays of a folder by argument of `from_arrays`, mapped."""
    if not path.is_dir():
        raise DataError(f"{path}: must be a folder with x.npy and y.npy; there is none.")
    files = {file.stem: file for file in sorted(path.glob("*.npy"))}
    unknown, missing = [name for name in files if name not in ARRAYS], [key for key in ("x", "y") if key not in files]
    if unknown or missing:
        said = f"unknown array {unknown[0]!r}" if unknown else f"no file {missing[0]}.npy"
        raise DataError(f"{path}: {said}.{nearest(unknown[0] if unknown else '', ARRAYS)}")
    return {ARRAYS[name]: _mapped(file, samples=name.startswith("x")) for name, file in files.items()}


def _mapped(file: Path, *, samples: bool) -> AnyArray:
    """Return the array of a file; of samples nothing is read."""
    try:
        array = read_npy(file, "r" if samples else None)
    except (OSError, UnreadableError) as error:
        raise DataError(
            f"{file}: must be a whole .npy file without python objects; got: {error}. Write it with np.save."
        ) from error
    if array.ndim == 0:
        raise DataError(f"{file}: must hold an array with an entry for each sample; got a single value.")
    if samples and (array.dtype.name not in KEPT or not array.flags.c_contiguous or not array.dtype.isnative):
        order = "" if array.flags.c_contiguous else ", in Fortran order"
        raise DataError(
            f"{file}: must be float32, uint8 or int64 in C order to stay on disk; got {array.dtype}{order}. "
            "Write it anew with np.save(path, np.ascontiguousarray(x, np.float32)), or as uint8 or int64."
        )
    return array


def _note(path: Path) -> dict[str, Any] | None:
    try:
        note = json.loads((path / NOTE).read_text(encoding="utf-8"))
        if not {"kind", "num_classes", "mean", "std", "sha256", "arrays"} <= note.keys():
            raise ValueError("keys are missing")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path / NOTE}: cannot be read ({error}). Repeat index_folder, which reads the folder once."
        ) from error
    return dict(note)


def _described(array: AnyArray) -> dict[str, Any]:
    """Return type, shape, and a hash of some samples of an array, the first and last among them."""
    some = np.unique(np.linspace(0, max(0, len(array) - 1), SPOTS).astype(np.int64))[: len(array)]
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(array[i]).tobytes() for i in some.tolist()))
    return {"dtype": array.dtype.str, "shape": list(array.shape), "spots": digest.hexdigest()}
