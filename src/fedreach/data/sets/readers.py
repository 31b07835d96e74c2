"""Readers of the file formats of built-in data sets."""

import gzip
import hashlib
import io
import json
import math
import pickle
import re
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedreach._util.arrays import AnyArray, Ints
from fedreach._util.errors import ConfigError, DataError, nearest
from fedreach.data.assignment import checked_count
from fedreach.data.checks import read_npz
from fedreach.data.datasets import Dataset, from_arrays
from fedreach.data.sets.download import Place, Source

# ---- File formats of image sets: idx, CIFAR pickles, packed ``.npz``
# Each reader checks the structure of a file. If its checksum is known, the content must match it.


def damaged_file_error(path: Path, what: object) -> DataError:
    """Return the error for a damaged file."""
    return DataError(f"{path}: {what}. Remove the file and load the data again, or replace it with the original.")


@contextmanager
def _unpacking(path: Path, problem: str) -> Iterator[None]:
    """Convert any error to DataError: damaged archives, pickles and texts cause many types of errors."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise damaged_file_error(path, f"{problem} ({type(error).__name__}: {error})") from error


def read_bytes(path: Path) -> bytes:
    """Read a file, and unpack it if its name ends in ``.gz``."""
    with _unpacking(path, "cannot be read"):
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data


def read_tar(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """Read files by name from any folder of a ``.tar.gz`` archive, without writing to disk."""
    contents: dict[str, bytes] = {}
    with _unpacking(path, "is not a complete .tar.gz"), tarfile.open(path, "r|gz") as archive:
        for member in archive:
            name = member.name.rpartition("/")[2]
            if name in names and (file := archive.extractfile(member)) is not None:
                contents[name] = file.read()
    if missing := [name for name in names if name not in contents]:
        raise damaged_file_error(path, f"does not contain {', '.join(missing)}")
    return contents


def read_zip(path: Path, name: str) -> bytes:
    """Read one file from a ``.zip`` archive, and unpack it if its name ends in ``.gz``."""
    with _unpacking(path, f"does not contain a readable {name}"), zipfile.ZipFile(path) as archive:
        data = archive.read(name)
        return gzip.decompress(data) if name.endswith(".gz") else data


def check_published(path: Path, data: bytes, checksum: str | None) -> None:
    """Raise DataError if bytes do not match a checksum ``"sha256:..."`` or ``"md5:..."``; None skips the check."""
    if checksum is None:
        return
    algorithm, _, expected = checksum.partition(":")
    got = hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()
    if got != expected:
        raise damaged_file_error(
            path,
            f"must be the published file with {algorithm} {expected}; got {got}. For your own data, use from_npz or "
            "from_arrays",
        )


def check_labels(path: Path, labels: Ints, num_classes: int) -> Ints:
    """Return the labels; raise DataError if a label is not from 0 to `num_classes` - 1."""
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if len(wrong):
        raise damaged_file_error(
            path, f"labels must be 0 to {num_classes - 1}; got {wrong[0]} ({len(wrong)} such labels)"
        )
    return labels


def parse_idx(path: Path, data: bytes, ndim: int) -> AnyArray:
    """Parse the uint8 array of an idx file, with 3 axes for images or 1 axis for labels.

    The file starts with two zero bytes, the type 8, the number of axes, and the size of each axis as a big-endian
    uint32.

    Example:
        >>> parse_idx(Path("labels"), bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), 1)
        array([7, 9], dtype=uint8)
    """
    header = 4 + 4 * ndim
    shape = np.frombuffer(data[4:header].ljust(4 * ndim, b"\0"), ">u4").tolist()
    if data[:4] != bytes([0, 0, 8, ndim]) or len(data) != header + math.prod(shape):
        content = f"first bytes {data[:4].hex()!r}, sizes {shape} and {len(data)} bytes"
        raise damaged_file_error(path, f"must be an idx file of bytes with {ndim} axes; got {content}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


class _ArraysOnly(pickle.Unpickler):
    """Unpickler that accepts only the plain arrays of CIFAR pickles, and so runs no code."""

    # The private constructor of NumPy arrays has different modules in different versions.
    _ADMITTED = {  # noqa: RUF012
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it contains {module}.{name}, which image data do not need") from None


def parse_cifar_pickle(path: Path, data: bytes, labels: str, num_classes: int) -> tuple[AnyArray, Ints]:
    """Parse (n, 3, 32, 32) uint8 images and (n,) labels of an original CIFAR pickle, without running code.

    The key of the labels is ``labels``, ``fine_labels`` or ``coarse_labels``.
    """
    with _unpacking(path, "is not a CIFAR pickle"):
        content = _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
        x, y = content[b"data"], np.array(content[labels.encode()], np.int64)
        if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.shape != (len(y), 3072):
            raise ValueError(f"data must be uint8 of shape ({len(y)}, 3072)")
    return x.reshape(-1, 3, 32, 32), check_labels(path, y, num_classes)


def parse_packed(path: Path, data: bytes, labels: str, num_classes: int) -> tuple[AnyArray, Ints]:
    """Parse (n, 3, 32, 32) uint8 images and (n,) labels of a packed ``.npz``.

    ``delta`` (3, n, 32, 32) uint8 contains the planes G, R - G and B - G. In each plane, each row is stored as its
    difference from the row above. All values are modulo 256, so a cumulative sum over rows and the addition of G
    restore the image exactly. The key of the labels is ``labels`` or ``coarse_labels``.
    """
    with _unpacking(path, "is not a packed image file"):
        file = read_npz(io.BytesIO(data))
        delta, y = file["delta"], file[labels].astype(np.int64)
        if delta.dtype != np.uint8 or delta.shape != (3, len(y), 32, 32):
            shape = f"(3, {len(y)}, 32, 32)"
            raise ValueError(f"delta must be uint8 of shape {shape}; got {delta.dtype} {delta.shape}")
    planes = np.cumsum(delta, axis=2, dtype=np.uint8)
    planes[1:] += planes[0]
    return planes[[1, 0, 2]].transpose(1, 0, 2, 3), check_labels(path, y, num_classes)


# ---- Image sets

EMNIST_CLASSES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


def _read_idx(place: Place, source: Source, name: str, ndim: int) -> tuple[Path, AnyArray]:
    candidates = [f"{folder}/{name}{end}" for folder in source.folders for end in (".gz", "")]
    archives = [path for path in source.files if path.endswith(".zip")]
    path = place.locate(source, candidates + archives)
    data = read_zip(path, f"gzip/{name}.gz") if path.suffix == ".zip" else read_bytes(path)
    array = parse_idx(path, data, ndim)
    check_published(path, data, source.parts.get(name))
    return path, array


def _read_idx_pair(
    place: Place, source: Source, stem: str, num_classes: int, first_label: int = 0
) -> tuple[AnyArray, Ints]:
    """Return (n, H, W) images and (n,) labels from 0."""
    _, x = _read_idx(place, source, f"{stem}-images-idx3-ubyte", 3)
    path, labels = _read_idx(place, source, f"{stem}-labels-idx1-ubyte", 1)
    if len(labels) != len(x):
        raise damaged_file_error(path, f"must have one label for each of the {len(x)} images; got {len(labels)}")
    return x, check_labels(path, labels.astype(np.int64) - first_label, num_classes)


def idx_digits(mean: float, std: float) -> Callable[..., Dataset]:
    """Return the reader of MNIST or Fashion-MNIST, with its usual mean and standard deviation."""

    def read(place: Place, source: Source) -> Dataset:
        parts = [*_read_idx_pair(place, source, "train", 10), *_read_idx_pair(place, source, "t10k", 10)]
        return from_arrays(*parts, **source.about, num_classes=10, mean=(mean,), std=(std,))

    return read


def emnist(place: Place, source: Source, split: str = "letters", classes: int | None = None) -> Dataset:
    """Load EMNIST, with images in upright orientation and labels from 0.

    The mean and standard deviation are computed from the selected training images, as in FedDyn's code.

    Args:
        split: ``letters`` (26 classes), ``digits`` (10), ``mnist`` (10), ``balanced`` (47), ``bymerge`` (47) or
            ``byclass`` (62). Default: "letters".
        classes: Number of classes to use, starting with the first class. FedDyn's code uses the letters A to J and
            calls this data set EMNIST; other papers call it EMNIST-10. Default: all classes.

    Raises:
        ConfigError: If the split is unknown, or has fewer than `classes` classes.
    """
    if not isinstance(split, str) or split not in EMNIST_CLASSES:
        raise ConfigError(f"Unknown emnist split: {split!r}.{nearest(str(split), EMNIST_CLASSES)}")
    total = EMNIST_CLASSES[split]
    classes = total if classes is None else classes
    if checked_count("emnist classes", classes, 1) > total:
        raise ConfigError(f"emnist classes must be at most {total} for split {split!r}; got {classes!r}.")
    parts = []
    for part in ("train", "test"):
        x, y = _read_idx_pair(place, source, f"emnist-{split}-{part}", total, int(split == "letters"))
        parts += [x.transpose(0, 2, 1)[y < classes], y[y < classes]]
    return from_arrays(*parts, **source.about, num_classes=classes)


_PACKED = ("cifar-10", "cifar-100-subset")


def _read_cifar(
    place: Place, source: Source, batches: tuple[str, ...], labels: str, num_classes: int
) -> list[AnyArray]:
    """Return training images and labels, then test images and labels, which are in the last batch."""
    path = place.locate(source, source.folders)

    def unpack(batch: str) -> tuple[AnyArray, Ints]:
        where = path / f"{batch}.npz" if packed else path / batch
        data = pickles[batch] if path.is_file() else read_bytes(where)
        parse = parse_packed if packed else parse_cifar_pickle
        key = labels.removeprefix("fine_") if packed else labels
        parsed = parse(where, data, key, num_classes)
        check_published(where, data, source.parts.get(where.name))
        return parsed

    packed = path.name in _PACKED
    pickles = read_tar(path, batches) if path.is_file() else {}
    with ThreadPoolExecutor(2) as pool:  # unpacking LZMA releases the GIL
        *train, test = pool.map(unpack, batches)
    x, y = zip(*train, strict=True)
    return [np.concatenate(x), np.concatenate(y), *test]


def cifar10(place: Place, source: Source) -> Dataset:
    """Load CIFAR-10, with the mean and standard deviation of FedDyn's code."""
    batches = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")
    parts = _read_cifar(place, source, batches, "labels", 10)
    return from_arrays(*parts, **source.about, num_classes=10, mean=(0.491, 0.482, 0.447), std=(0.247, 0.243, 0.262))


def cifar100(place: Place, source: Source, labels: Literal["fine", "coarse"] = "fine") -> Dataset:
    """Load CIFAR-100, or the subset that `source` describes, with ``fine`` or ``coarse`` labels."""
    if labels not in ("fine", "coarse"):
        raise ConfigError(f"{source.name} labels must be 'fine' (100 classes) or 'coarse' (20); got {labels!r}.")
    num_classes = 100 if labels == "fine" else 20
    parts = _read_cifar(place, source, ("train", "test"), f"{labels}_labels", num_classes)
    return from_arrays(
        *parts, **source.about, num_classes=num_classes, mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761)
    )


# ---- Shakespeare of LEAF: predict the next character of a role's text; each role is a client
# Reference: Caldas et al., LEAF: A Benchmark for Federated Settings, arXiv:1812.01097.

VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80  # number of characters per example

_INDEX = np.zeros(128, np.uint8)
_INDEX[[ord(character) for character in VOCABULARY]] = np.arange(len(VOCABULARY))


def encode(text: str) -> NDArray[np.uint8]:
    """Return the index in `VOCABULARY` of each character, after the same cleaning as in LEAF.

    A newline becomes a space, and three or more spaces become one. So index 0, the newline, can encode characters
    outside the vocabulary, for which LEAF uses -1.

    Example:
        >>> encode("a\\nb$").tolist() == [VOCABULARY.index("a"), 1, VOCABULARY.index("b"), 0]
        True
    """
    text = re.sub(" {3,}", " ", text.replace("\n", " "))
    code = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    return np.where(code < 128, _INDEX[np.minimum(code, 127)], 0).astype(np.uint8)


def shakespeare(
    place: Place,
    source: Source,
    stride: int = 1,
    min_samples: int = 64,
    max_samples: int | None = None,
    roles: int | None = None,
    train_fraction: float = 0.8,
) -> Dataset:
    """Load Shakespeare: examples of 80 characters, with the next character as the label.

    One example starts at every `stride` characters of a role's text. A text of L characters has w = L - 80 possible
    examples. Examples that start before ``cut = max(1, int(train_fraction * w))`` are training examples. Examples that
    start at ``cut + 79`` or later are test examples, so they never overlap with the inputs of training examples. The
    test set contains the test examples of all roles.

    FedDyn uses ``train_fraction=5/6, min_samples=2000, max_samples=2000, roles=100``.

    Args:
        stride: Number of characters between the starts of two examples, at least 1. Default: 1.
        min_samples: Smallest number of training examples of a role, before the limit `max_samples` applies. Roles with
            fewer examples are omitted. Default: 64.
        max_samples: Largest number of training examples of a role; later examples are omitted. The number of test
            examples is at most ``round(max_samples * (1 - f) / f)`` with f = `train_fraction`. Default: no limit.
        roles: Largest number of roles. Roles are sorted by their number of training examples before the limit
            `max_samples` applies, the largest first (ties: by name). The clients have this order. Default: no limit.
        train_fraction: Share of each text for training, in (0, 1]. With 1, the test set is empty. Default: 0.8.

    Raises:
        ConfigError: If an option is outside its range.
        DataError: If a file is damaged, or all roles have fewer than `min_samples` training examples.
    """
    limits = {"max_samples": max_samples, "roles": roles}
    limits = {option: value for option, value in limits.items() if value is not None}
    for option, value in {"stride": stride, "min_samples": min_samples, **limits}.items():
        checked_count(f"shakespeare {option}", value, 1)
    if not isinstance(train_fraction, int | float) or not 0 < train_fraction <= 1:
        raise ConfigError(f"shakespeare train_fraction must be in (0, 1]; got {train_fraction!r}.")
    most_test = None if max_samples is None else round(max_samples * (1 - train_fraction) / train_fraction)

    path = place.locate(source, source.folders)
    kept_roles = []
    for role, text in read_roles(path).items():
        available, *parts = _windows(encode(text), stride, train_fraction, max_samples, most_test)
        if available >= min_samples:
            kept_roles.append((-available, role, parts))
    if not kept_roles:
        raise DataError(
            f"{path}: at least one role must have min_samples = {min_samples} training examples; got none. Lower "
            "min_samples or stride."
        )
    kept_roles = sorted(kept_roles, key=lambda kept: kept[:2])[:roles]
    return from_arrays(
        *(np.concatenate(column) for column in zip(*(parts for *_, parts in kept_roles), strict=True)),
        owners=np.repeat(np.arange(len(kept_roles)), [len(parts[0]) for *_, parts in kept_roles]),
        owner_names=[role for _, role, _ in kept_roles],
        num_classes=len(VOCABULARY),
        kind="tokens",
        **source.about,
    )


def _windows(
    code: NDArray[np.uint8], stride: int, train_fraction: float, most_train: int | None, most_test: int | None
) -> tuple[int, AnyArray, AnyArray, AnyArray, AnyArray]:
    """Return the number of training examples before the limit, then inputs and labels for training and test."""
    count = max(len(code) - LENGTH, 0)
    cut = min(count, max(1, int(train_fraction * count)))
    starts = np.arange(0, cut, stride)
    train = starts[:most_train]
    test = np.arange(cut + LENGTH - 1, count, stride)[:most_test]
    if not count:
        code = np.zeros(LENGTH, np.uint8)  # too short for an example; the empty arrays still need the right shape
    view = np.lib.stride_tricks.sliding_window_view(code, LENGTH)
    return len(starts), view[train], code[train + LENGTH], view[test], code[test + LENGTH]


def read_roles(path: Path) -> dict[str, str]:
    """Read the text of each role.

    ``roles.json.gz`` contains a list ``speeches`` for each user. A folder of LEAF's ``all_data`` JSON files contains
    the text ``raw`` for each user, or inputs ``x`` and next characters ``y`` with stride 1.

    Raises:
        DataError: If a file is damaged or has another format.
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise damaged_file_error(path, "must contain a .json file")
    texts: dict[str, str] = {}
    for file in files:
        with _unpacking(file, "is not a file of roles and texts"):
            users = json.loads(read_bytes(file))["user_data"]
            for role, user in users.items():
                if role in texts:
                    raise ValueError(f"role {role!r} occurs twice")
                texts[role] = _text(role, user)
    return texts


def _text(role: str, user: dict[str, Any]) -> str:
    if "speeches" in user:
        return "\n".join(user["speeches"])
    if "raw" in user:
        return str(user["raw"])
    text = user["x"][0] + "".join(user["y"])
    if user["x"] != [text[start : start + LENGTH] for start in range(len(user["y"]))]:
        raise ValueError(f"the examples of {role!r} are not consecutive; use LEAF's all_data, not sampled data")
    return str(text)
