"""Reading of array files, and checks of arrays from users."""

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
from fedreach._util.errors import RELATIVE, ConfigError, DataError, nearest, regular
from fedreach.data.images import as_array, as_labels
from fedreach.data.several import IGNORED, has_names, is_labeled, position_counts, records

# ---- ``.npy`` and ``.npz`` files


class UnreadableError(ValueError):
    """Error for a damaged file, or a file without arrays. The caller adds the name of the file and the remedy."""


@contextmanager
def _reading() -> Iterator[None]:
    """Convert any error to UnreadableError: damaged files make zipfile and NumPy raise many types of errors."""
    try:
        with np.errstate(all="ignore"):  # NumPy warns about a wrong shape before it raises an error
            yield
    except Exception as error:
        raise UnreadableError(str(error) or type(error).__name__) from error


def read_npy(path: Path, mmap_mode: Literal["r"] | None = None) -> AnyArray:
    """Read a .npy file, or map it into memory with ``mmap_mode="r"``.

    Raises:
        OSError: If the file cannot be opened.
        UnreadableError: If the file is damaged, contains Python objects, or does not match its header.
    """
    with regular(path).open("rb") as stream, _reading():
        array: Any = npy.open_memmap(path, mode="r") if mmap_mode else npy.read_array(stream, allow_pickle=False)
        end = array.offset + array.nbytes if mmap_mode else stream.tell()
        if end < path.stat().st_size:
            raise UnreadableError(f"{path.name} is longer than its header specifies")
        return np.asanyarray(array)


def read_npz(stream: IO[bytes]) -> dict[str, AnyArray]:
    """Read the arrays of an open .npz file by name; raise the same errors as `read_npy`.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> np.savez(file, x=np.arange(3))
        >>> read_npz(file)
        {'x': array([0, 1, 2])}
    """
    with _reading():
        stream.seek(0)
        if stream.read(2) != b"PK":  # otherwise zipfile accepts an archive after other content
            raise UnreadableError("it is not an .npz file")
        arrays: dict[str, AnyArray] = {}
        with zipfile.ZipFile(stream) as archive:
            for name in (name for name in archive.namelist() if name.endswith(".npy")):
                with archive.open(name) as member:
                    arrays[name.removesuffix(".npy")] = npy.read_array(member, allow_pickle=False)
                    if member.read(1):  # reading to the end also makes zipfile check the checksum
                        raise UnreadableError(f"{name} is longer than its header specifies")
        return arrays


# ---- Checks of the arrays of a data set

ExampleKind = Literal["image", "features", "tokens", "several"]
BLOCK = 2**24  # numbers that are checked at once
SEVERAL = (
    "For several inputs, use a dictionary of arrays by argument name of the model's forward, or a tuple of arrays in "
    "the order of the arguments"
)
MAX_LISTED_FILES = 20  # largest number of files that an error lists


def no_such_file(path: Path, endings: Sequence[str]) -> DataError:
    """Return the error for a missing file, which suggests the most similar file with one of the given endings."""
    try:
        siblings = sorted(sibling.name for sibling in path.parent.iterdir() if sibling.suffix.lower() in endings)
    except OSError:  # the folder is missing or unreadable
        siblings = []
    if len(siblings) > MAX_LISTED_FILES:
        siblings = difflib.get_close_matches(path.name, siblings, n=1)
    return DataError(f"{path}: file not found.{nearest(path.name, siblings) if siblings else ''} {RELATIVE}")


def check_option_names(what: str, options: Iterable[str], known: Collection[str]) -> None:
    """Raise ConfigError for an unknown option."""
    for option in options:
        if option not in known:
            hint = nearest(option, known) if known else " It has no options."
            raise ConfigError(f"Unknown option {option!r} of {what}.{hint}")


@dataclass(frozen=True)
class ArgumentChecks:
    """Checks of the arguments of `from_arrays` and similar functions; messages name the data set and the argument."""

    name: str  # name of the data set
    of: str = "data set"  # noun before the name in messages

    def error(self, what: str) -> DataError:
        """Return an error whose message names this data set."""
        return DataError(f"{self.of} {self.name!r}: {what}.")

    def array(self, argument: str, value: Any) -> AnyArray:
        """Convert the value to an array of numbers or strings."""
        value = as_array(value, f"{self.of} {self.name!r}")
        if hasattr(value, "__getitem__") and not _is_array(value):  # NumPy would read some of these endlessly
            raise self.error(
                f"{argument} must be an array; got {type(value).__name__}. "
                "Read a torch Dataset with FederatedData.from_torch, and a Hugging Face Dataset with from_huggingface"
                f"{f'. {SEVERAL}' if isinstance(value, Mapping) else ''}"
            )
        try:
            array = value if isinstance(value, np.memmap) else np.asarray(value)
        except ValueError as error:  # lists of unequal length
            reason = str(error).rstrip(".")
            raise self.error(f"{argument} must be one rectangular array; {reason}. {SEVERAL}") from error
        if array.dtype.kind not in "uifbUS":
            raise self.error(f"{argument} must contain numbers, not Python objects; got dtype {array.dtype}")
        return array

    def rows(self, argument: str, value: Any) -> AnyArray:
        """Convert the value to an array with one entry per example."""
        array = self.array(argument, value)
        if array.ndim == 0:
            raise self.error(f"{argument} must have one entry per example; got a single value")
        return array

    def samples(
        self, argument: str, value: Any, kind: ExampleKind | None, *, is_checked: bool = False
    ) -> tuple[AnyArray, ExampleKind]:
        """Return inputs in the type that FedReach stores, and their kind; `is_checked` skips the check of values."""
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
        with np.errstate(over="ignore"):  # overflow of float32 raises an error below
            features = as_contiguous(x, np.float32)
        bad = np.empty(0, np.int64) if is_checked else _not_finite(features)
        if len(bad):
            raise self.error(
                f"{argument} must be finite as float32; got {len(bad)} examples that are not, the first at index "
                f"{bad[0]}"
            )
        return features, kind

    def _several(self, argument: str, value: Any, kind: ExampleKind | None, *, is_checked: bool) -> AnyArray:
        """Convert several inputs to records, see `fedreach.data.several`."""
        if kind not in (None, "several"):
            raise self.error(f"kind must be omitted for several inputs; got {kind!r}")
        if _are_records(value):
            if is_checked:
                return as_contiguous(value, value.dtype)
            names = value.dtype.names
            value = {key: value[key] for key in names} if has_names(value.dtype) else [value[key] for key in names]
        elif not isinstance(value, Mapping | tuple):
            raise self.error(f"{argument} must be several inputs; got {type(value).__name__}. {SEVERAL}")
        return records(value, f"{self.of} {self.name!r}")

    def _kind(self, argument: str, x: AnyArray) -> ExampleKind:
        if x.dtype == np.uint8 and x.ndim in (3, 4):
            return "image"
        if x.dtype.kind in "fb":
            return "features"
        raise self.error(
            f"{argument} {x.dtype} {x.shape} could be tokens or features. Pass kind='tokens' or kind='features'"
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
        """Return (n,) labels from 0 to `num_classes` - 1, or (n, t) numbers.

        Targets are numbers if `num_classes` is 0, or if `num_classes` is None and the values are floats. Integers of
        shape (n, positions...) are one label per position, see `fedreach.data.several`.
        """
        y = self.array(argument, as_labels(value, f"{self.of} {self.name!r}: a label"))
        if num_classes == 0 or (num_classes is None and y.dtype.kind == "f"):
            return self._numbers(argument, y, n)
        at_positions = y.ndim > 1 and len(y) == n and y[:1].size != 1 and 0 not in y.shape[1:]
        if y.shape != (n,) and not at_positions:
            raise self.error(f"{argument} must be one label per example, shape ({n},); got shape {y.shape}")
        if n and y.dtype.kind not in "ui":
            raise self.error(
                f"{argument} must be integers; got dtype {y.dtype}. Convert classes with y.astype(np.int64). To "
                "predict floats, omit num_classes"
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
        """Check (n, positions...) labels; each example needs at least one label that is not masked."""
        labeled = y[is_labeled(y)]
        wrong = (labeled < 0) | (labeled >= (np.inf if num_classes is None else num_classes))
        if wrong.any():
            rule = "at least 0" if num_classes is None else f"0 to {num_classes - 1}"
            raise self.error(
                f"{argument} must be {rule} at each position, or {IGNORED} if masked; got {labeled[wrong][0]}. "
                f"Replace other masks with {IGNORED}, for example np.where(y == 255, {IGNORED}, y)"
            )
        if len(empty := np.flatnonzero(position_counts(y) == 0)):
            raise self.error(
                f"{argument} must have at least one label per example; got {len(empty)} examples without a label, the "
                f"first at index {empty[0]}"
            )
        return y

    def _numbers(self, argument: str, y: AnyArray, n: int) -> AnyArray:
        if y.ndim not in (1, 2) or len(y) != n or 0 in y.shape[1:] or y.dtype.kind not in "uifb":
            raise self.error(
                f"{argument} must be numbers of shape ({n},) or ({n}, t); got shape {y.shape}, dtype {y.dtype}"
            )
        with np.errstate(over="ignore"):  # overflow of float32 raises an error below
            numbers = as_contiguous(y.reshape(n, -1) if n else y.reshape(0, *(y.shape[1:] or (1,))), np.float32)
        bad = _not_finite(numbers)
        if len(bad):
            raise self.error(
                f"{argument} must be finite as float32; got {len(bad)} targets that are not, the first in row {bad[0]}"
            )
        return numbers

    def words(self, train_y: Any, test_y: Any, names: Sequence[str] | None) -> tuple[Any, Any, tuple[str, ...] | None]:
        """Replace labels that are words with numbers; return the labels and the class names, or None without names."""
        labels_by_name = {"train_y": train_y, "test_y": test_y}
        what = f"{self.of} {self.name!r}: a label"
        arrays = {name: self.array(name, as_labels(y, what)) for name, y in labels_by_name.items() if y is not None}
        if all(labels.dtype.kind not in "US" for labels in arrays.values()):
            return train_y, test_y, None if names is None else tuple(map(str, names))
        try:
            texts = {name: labels.astype(str) for name, labels in arrays.items()}
        except UnicodeDecodeError as error:
            raise self.error(f"labels must be text or whole numbers; got bytes that are not ASCII: {error}") from error
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
                f"owners must be one integer or string per training example, ({n},); got {owners.dtype} {owners.shape}"
            )
        if names is None:
            distinct, index = np.unique(owners, return_inverse=True)
            return as_contiguous(index, np.int64), tuple(
                entry.decode() if isinstance(entry, bytes) else str(entry) for entry in distinct.tolist()
            )
        if owners.dtype.kind not in "ui" or owners.min() < 0 or owners.max() >= len(names):
            raise self.error(f"owners must be indices from 0 to {len(names) - 1}, the last of owner_names")
        return as_contiguous(owners, np.int64), tuple(names)


def _are_records(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.names is not None


def as_contiguous(array: AnyArray, dtype: Any) -> AnyArray:
    """Return a contiguous, writable array of the given type, as torch requires it; copy only if necessary.

    A memory-mapped array stays mapped and read-only, because a writable copy would need as much memory as the file.
    """
    return np.require(array, dtype, ["C"] if isinstance(array, np.memmap) else ["C", "W"])


def _is_array(value: Any) -> bool:
    """Return whether NumPy converts the value at once, not example by example."""
    if isinstance(value, list | tuple | range | str | bytes) or hasattr(value, "__array__"):
        return True
    try:
        memoryview(value).release()
    except TypeError:
        return hasattr(value, "__array_interface__")
    return True


def _not_finite(samples: AnyArray) -> Ints:
    """Return the indices of examples that are not finite, in blocks to limit memory."""
    axes, step = tuple(range(1, samples.ndim)), max(1, BLOCK // max(1, samples[:1].size))
    blocks = [~np.isfinite(samples[i : i + step]).all(axis=axes) for i in range(0, len(samples), step)]
    return np.flatnonzero(np.concatenate([np.empty(0, np.bool_), *blocks]))


def channel_scale(
    check: ArgumentChecks, x: AnyArray, kind: ExampleKind, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the given or measured mean and standard deviation of each channel, or () and () without images."""
    if kind != "image":
        if mean or std:
            raise check.error(f"mean and std require images; got the kind {kind!r}. Normalize the array itself")
        return (), ()
    channels = x.shape[1]
    if mean is None or std is None:
        measured = [_mean_and_std(x[:, channel]) for channel in range(channels)]
        mean = [m for m, _ in measured] if mean is None else mean
        std = [s for _, s in measured] if std is None else std
    if len(mean) != channels or len(std) != channels or not np.isfinite([*mean, *std]).all() or min(std) <= 0:
        raise check.error(f"mean and std must be {channels} finite numbers each, std > 0; got {mean} and {std}")
    return tuple(float(m) for m in mean), tuple(float(s) for s in std)


def _mean_and_std(pixels: AnyArray) -> tuple[float, float]:
    """Return the exact mean and standard deviation of uint8 pixels / 255, from histograms."""
    blocks = np.array_split(pixels, len(pixels) // 4096 + 1)
    counts = np.sum([np.bincount(block.ravel(), minlength=256) for block in blocks], axis=0)
    level = np.arange(256) / 255
    mean = float(counts @ level / counts.sum())
    std = float(np.sqrt(counts @ (level - mean) ** 2 / counts.sum()))
    return mean, std if std > 0 else 1.0
