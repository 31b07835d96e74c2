"""Files of arrays, and checks of the arrays that users pass."""

from __future__ import annotations

import difflib
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.lib import format as npy

from fedreach._util.arrays import AnyArray, Ints
from fedreach._util.errors import RELATIVE, ConfigError, DataError, nearest
from fedreach.data.images import as_array, as_labels
from fedreach.data.several import IGNORED, has_names, is_labeled, position_counts, records

# ---- ``.npy`` and ``.npz`` files


class UnreadableError(ValueError):
    """A file is not a complete file of arrays; the caller names the file and says what to do."""


@contextmanager
def _reading() -> Iterator[None]:
    """Raise UnreadableError for any error; zipfile and NumPy raise a dozen types for a damaged archive or header."""
    try:
        with np.errstate(all="ignore"):  # NumPy warns of a false shape before it refuses it
            yield
    except Exception as error:
        raise UnreadableError(str(error) or type(error).__name__) from error


def read_npy(path: Path, mmap_mode: Literal["r"] | None = None) -> AnyArray:
    """Return the array of a file; ``mmap_mode="r"`` maps it.

    Raises:
        OSError: If the file cannot be opened.
        UnreadableError: If the file is damaged, holds Python objects, or does not fit its header.
    """
    with path.open("rb") as stream, _reading():
        array: Any = npy.open_memmap(path, mode="r") if mmap_mode else npy.read_array(stream, allow_pickle=False)
        end = array.offset + array.nbytes if mmap_mode else stream.tell()
        if end < path.stat().st_size:
            raise UnreadableError(f"{path.name} holds more than its header says")
        return np.asanyarray(array)


def read_npz(stream: IO[bytes]) -> dict[str, AnyArray]:
    """Return the arrays of an open file by name; raises the errors of `read_npy`.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> np.savez(file, x=np.arange(3))
        >>> read_npz(file)
        {'x': array([0, 1, 2])}
    """
    with _reading():
        stream.seek(0)
        if stream.read(2) != b"PK":  # zipfile would search for an archive after other content
            raise UnreadableError("it does not begin as an .npz file")
        arrays: dict[str, AnyArray] = {}
        with zipfile.ZipFile(stream) as archive:
            for name in (name for name in archive.namelist() if name.endswith(".npy")):
                with archive.open(name) as member:
                    arrays[name.removesuffix(".npy")] = npy.read_array(member, allow_pickle=False)
                    if member.read(1):  # at the end, zipfile compares its checksum
                        raise UnreadableError(f"{name} holds more than its header says")
        return arrays


# ---- Rules for the arrays of a data set, and the types that store them

Kind = Literal["image", "features", "tokens", "several"]
BLOCK = 2**24  # numbers that are checked together
SEVERAL = (
    "Several inputs are a dictionary of arrays by the names of the forward's arguments, or a tuple of arrays in their "
    "order"
)
MAX_LISTED_FILES = 20  # largest number of files that an error lists


def no_such_file(path: Path, endings: Sequence[str]) -> DataError:
    """Return the error for a missing file; it suggests the most similar file with one of these endings."""
    try:
        siblings = sorted(sibling.name for sibling in path.parent.iterdir() if sibling.suffix.lower() in endings)
    except OSError:  # the folder is missing or unreadable
        siblings = []
    if len(siblings) > MAX_LISTED_FILES:
        siblings = difflib.get_close_matches(path.name, siblings, n=1)
    return DataError(f"There is no file {path}.{nearest(path.name, siblings) if siblings else ''} {RELATIVE}")


def check_option_names(what: str, options: Iterable[str], known: Collection[str]) -> None:
    """Raise ConfigError for an option that is unknown."""
    for option in options:
        if option not in known:
            hint = nearest(option, known) if known else " It has no options."
            raise ConfigError(f"{what} has no option {option!r}.{hint}")


@dataclass(frozen=True)
class Check:
    """Checks by the rules of `from_arrays`; errors name the data set and the argument."""

    name: str
    of: str = "data set"  # what the name refers to

    def error(self, what: str) -> DataError:
        """Return the error that names this data set."""
        return DataError(f"{self.of} {self.name!r}: {what}.")

    def array(self, argument: str, value: Any) -> AnyArray:
        """Return the value as one array of numbers or strings."""
        value = as_array(value, f"{self.of} {self.name!r}")
        if hasattr(value, "__getitem__") and not _is_array(value):  # NumPy would read some of these for ever
            raise self.error(
                f"{argument} must be an array; got {type(value).__name__}. "
                "Read a torch Dataset by FederatedData.from_torch, and a Dataset of datasets by from_huggingface"
                f"{f'. {SEVERAL}' if isinstance(value, Mapping) else ''}"
            )
        try:
            array = value if isinstance(value, np.memmap) else np.asarray(value)
        except ValueError as error:  # lists of unequal length
            reason = str(error).rstrip(".")
            raise self.error(f"{argument} must be one rectangular array; {reason}. {SEVERAL}") from error
        if array.dtype.kind not in "uifbUS":
            raise self.error(f"{argument} must hold numbers, not python objects; got dtype {array.dtype}")
        return array

    def rows(self, argument: str, value: Any) -> AnyArray:
        """Return the value as an array with an entry for each example."""
        array = self.array(argument, value)
        if array.ndim == 0:
            raise self.error(f"{argument} must have an entry for each example; got a single value")
        return array

    def samples(
        self, argument: str, value: Any, kind: Kind | None, *, is_checked: bool = False
    ) -> tuple[AnyArray, Kind]:
        """Return inputs in the type that stores them, and their kind; numbers that `is_checked` are not read."""
        if kind == "several" or _are_records(value) or (kind is None and isinstance(value, Mapping)):
            return self._several(argument, value, kind, is_checked=is_checked), "several"
        x = self.array(argument, value)
        if x.ndim < 2 or 0 in x.shape[1:] or x.dtype.kind in "US":
            raise self.error(f"{argument} must be numbers of shape (n, ...); got shape {x.shape}, dtype {x.dtype}")
        if kind is None:
            kind = self._kind(argument, x)
        if kind == "image":
            return self._images(argument, x), kind
        if kind == "tokens":
            lowest = 0 if is_checked else x.min(initial=0)
            if x.ndim != 2 or x.dtype.kind not in "ui" or lowest < 0:
                raise self.error(
                    f"{argument} must be (n, T) integers >= 0 for tokens; got {x.dtype} {x.shape}, smallest {lowest}"
                )
            return as_contiguous(x, np.uint8 if x.dtype == np.uint8 else np.int64), kind
        if kind != "features":
            raise self.error(f"kind must be 'image', 'features' or 'tokens'; got {kind!r}")
        with np.errstate(over="ignore"):  # what overflows float32 is refused below
            features = as_contiguous(x, np.float32)
        bad = np.empty(0, np.int64) if is_checked else _not_finite(features)
        if len(bad):
            raise self.error(
                f"{argument} must be finite as float32; {len(bad)} samples are not, the first at index {bad[0]}"
            )
        return features, kind

    def _several(self, argument: str, value: Any, kind: Kind | None, *, is_checked: bool) -> AnyArray:
        """Return several inputs as records, see `fedreach.data.several`."""
        if kind not in (None, "several"):
            raise self.error(f"kind must be left out where there are several inputs; got {kind!r}")
        if _are_records(value):
            if is_checked:
                return as_contiguous(value, value.dtype)
            names = value.dtype.names
            value = {key: value[key] for key in names} if has_names(value.dtype) else [value[key] for key in names]
        elif not isinstance(value, Mapping | tuple):
            raise self.error(f"{argument} must be several inputs; got {type(value).__name__}. {SEVERAL}")
        return records(value, f"{self.of} {self.name!r}")

    def _kind(self, argument: str, x: AnyArray) -> Kind:
        if x.dtype == np.uint8 and x.ndim in (3, 4):
            return "image"
        if x.dtype.kind in "fb":
            return "features"
        raise self.error(
            f"{argument} {x.dtype} {x.shape} could be several things. Pass kind='tokens' or kind='features'"
        )

    def _images(self, argument: str, x: AnyArray) -> AnyArray:
        if x.dtype != np.uint8 or x.ndim not in (3, 4):
            raise self.error(f"{argument} must be uint8 (n, C, H, W) for images; got shape {x.shape}, dtype {x.dtype}")
        x = x[:, None] if x.ndim == 3 else x
        if x.shape[1] not in (1, 3, 4) and x.shape[3] in (1, 3, 4):
            raise self.error(
                f"{argument} must be (n, C, H, W), channels first; got {x.shape}. Use x.transpose(0, 3, 1, 2)"
            )
        return as_contiguous(x, np.uint8)

    def labels(self, argument: str, value: Any, n: int, num_classes: int | None) -> AnyArray:
        """Return (n,) labels from 0 to `num_classes` - 1, or (n, t) numbers if it is 0 or the labels are floats.

        Integers of shape (n, positions...) are one label per position, see `fedreach.data.several`.
        """
        y = self.array(argument, as_labels(value, f"{self.of} {self.name!r}: a label"))
        if num_classes == 0 or (num_classes is None and y.dtype.kind == "f"):
            return self._numbers(argument, y, n)
        at_positions = y.ndim > 1 and len(y) == n and y[:1].size != 1 and 0 not in y.shape[1:]
        if y.shape != (n,) and not at_positions:
            raise self.error(f"{argument} must have one label per sample, shape ({n},); got shape {y.shape}")
        if n and y.dtype.kind not in "ui":
            raise self.error(
                f"{argument} must be integers; got dtype {y.dtype}. Convert numbers of classes with "
                "y.astype(np.int64), or leave num_classes out where floats are to be predicted"
            )
        y = as_contiguous(y, np.int64)
        if at_positions:
            return self._at_positions(argument, y, num_classes)
        low, high = y.min(initial=0), y.max(initial=0)
        if low < 0 or (num_classes is not None and high >= num_classes):
            rule = "at least 0" if num_classes is None else f"0 to {num_classes - 1}"
            raise self.error(f"{argument} must be {rule}; got {low if low < 0 else high}")
        return y

    def _at_positions(self, argument: str, y: AnyArray, num_classes: int | None) -> AnyArray:
        """Return (n, positions...) labels: each is a class or masked, and each example has at least one class."""
        labeled = y[is_labeled(y)]
        wrong = (labeled < 0) | (labeled >= (np.inf if num_classes is None else num_classes))
        if wrong.any():
            rule = "at least 0" if num_classes is None else f"0 to {num_classes - 1}"
            raise self.error(
                f"{argument} must be {rule} at each position, or {IGNORED} where it is masked; got "
                f"{labeled[wrong][0]}. Write other marks as {IGNORED}: np.where(y == 255, {IGNORED}, y)"
            )
        if len(empty := np.flatnonzero(position_counts(y) == 0)):
            raise self.error(
                f"{argument} must have a label in each example; {len(empty)} have none, the first at {empty[0]}"
            )
        return y

    def _numbers(self, argument: str, y: AnyArray, n: int) -> AnyArray:
        if y.ndim not in (1, 2) or len(y) != n or 0 in y.shape[1:] or y.dtype.kind not in "uifb":
            raise self.error(
                f"{argument} must be numbers of shape ({n},) or ({n}, t); got shape {y.shape}, dtype {y.dtype}"
            )
        with np.errstate(over="ignore"):  # what overflows float32 is refused below
            numbers = as_contiguous(y.reshape(n, -1) if n else y.reshape(0, *(y.shape[1:] or (1,))), np.float32)
        bad = _not_finite(numbers)
        if len(bad):
            raise self.error(
                f"{argument} must be finite as float32; {len(bad)} targets are not, the first in row {bad[0]}"
            )
        return numbers

    def words(self, train_y: Any, test_y: Any, names: Sequence[str] | None) -> tuple[Any, Any, tuple[str, ...] | None]:
        """Return labels with words replaced by numbers, and the names of the classes; None if they have none."""
        labels_by_name = {"train_y": train_y, "test_y": test_y}
        what = f"{self.of} {self.name!r}: a label"
        arrays = {name: self.array(name, as_labels(y, what)) for name, y in labels_by_name.items() if y is not None}
        if all(labels.dtype.kind not in "US" for labels in arrays.values()):
            return train_y, test_y, None if names is None else tuple(map(str, names))
        texts = {name: labels.astype(str) for name, labels in arrays.items()}
        met = np.unique(np.concatenate([text.ravel() for text in texts.values()]))
        classes = met if names is None else np.array(list(names))
        order = np.argsort(classes)
        for name, text in texts.items():
            strange = text[~np.isin(text, classes)]
            if strange.size:
                raise self.error(f"{name} must be one of the class names {classes.tolist()}; got {str(strange[0])!r}")
            texts[name] = order[np.searchsorted(classes, text, sorter=order)]
        return texts["train_y"], texts.get("test_y"), tuple(classes.tolist())

    def owners(self, value: Any, names: Sequence[str] | None, n: int) -> tuple[Ints | None, tuple[str, ...]]:
        """Return (n,) indices into the client names, and the client names."""
        if value is None:
            return None, ()
        owners = self.array("owners", value)
        if owners.shape != (n,) or owners.dtype.kind not in "uiUS":
            raise self.error(
                f"owners must be one integer or string per training sample, ({n},); got {owners.dtype} {owners.shape}"
            )
        if names is None:
            distinct, index = np.unique(owners, return_inverse=True)
            return as_contiguous(index, np.int64), tuple(
                entry.decode() if isinstance(entry, bytes) else str(entry) for entry in distinct.tolist()
            )
        if owners.dtype.kind not in "ui" or owners.min() < 0 or owners.max() >= len(names):
            raise self.error(f"owners must be indices into the {len(names)} owner_names")
        return as_contiguous(owners, np.int64), tuple(names)


def _are_records(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.names is not None


def as_contiguous(array: AnyArray, dtype: Any) -> AnyArray:
    """Return an array of this type that torch can share: contiguous and writable, copied only if necessary.

    An array that is mapped from a file stays mapped and read-only: a writable one could not exceed main memory.
    """
    return np.require(array, dtype, ["C"] if isinstance(array, np.memmap) else ["C", "W"])


def _is_array(value: Any) -> bool:
    """Return whether NumPy converts the value at once, instead of reading one example after the other."""
    if isinstance(value, list | tuple | range | str | bytes) or hasattr(value, "__array__"):
        return True
    try:
        memoryview(value).release()
    except TypeError:
        return hasattr(value, "__array_interface__")
    return True


def _not_finite(samples: AnyArray) -> Ints:
    """Return the indices of examples that are not finite; reading in blocks bounds the memory."""
    axes, step = tuple(range(1, samples.ndim)), max(1, BLOCK // max(1, samples[:1].size))
    blocks = [~np.isfinite(samples[i : i + step]).all(axis=axes) for i in range(0, len(samples), step)]
    return np.flatnonzero(np.concatenate([np.empty(0, np.bool_), *blocks]))


def channel_scale(
    check: Check, x: AnyArray, kind: Kind, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation per channel, measured if None; () and () if not images."""
    if kind != "image":
        if mean or std:
            raise check.error(f"mean and std are for images; this is of kind {kind!r}. Normalise the array itself")
        return (), ()
    channels = x.shape[1]
    if mean is None or std is None:
        measured = [_mean_and_std(x[:, channel]) for channel in range(channels)]
        mean = [m for m, _ in measured] if mean is None else mean
        std = [s for _, s in measured] if std is None else std
    if len(mean) != channels or len(std) != channels or not np.isfinite([*mean, *std]).all() or min(std) <= 0:
        raise check.error(f"mean and std need {channels} finite numbers each, std positive; got {mean} and {std}")
    return tuple(float(m) for m in mean), tuple(float(s) for s in std)


def _mean_and_std(pixels: AnyArray) -> tuple[float, float]:
    """Return the exact mean and standard deviation of uint8 pixels / 255, from histograms of blocks."""
    blocks = np.array_split(pixels, len(pixels) // 4096 + 1)
    counts = np.sum([np.bincount(block.ravel(), minlength=256) for block in blocks], axis=0)
    level = np.arange(256) / 255
    mean = float(counts @ level / counts.sum())
    std = float(np.sqrt(counts @ (level - mean) ** 2 / counts.sum()))
    return mean, std if std > 0 else 1.0
