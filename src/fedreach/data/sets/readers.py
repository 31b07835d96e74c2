"""Readers of the formats in which the known image sets are stored: idx, CIFAR pickles, packed ``.npz``.

Every reader checks the structure (a truncated or altered file is named) and, where a checksum of the content is
known, that the content is the published one, so that no set is taken for another.
"""

import gzip
import hashlib
import io
import lzma
import math
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from fedreach.arrays import AnyArray, Ints
from fedreach.data.array_files import UnreadableError, read_npz
from fedreach.errors import DataError

# All that unpacking a cut-off or altered file can raise; RuntimeError is how zipfile says encrypted or unknown method.
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    tarfile.TarError,
)


def damaged(path: Path, what: object) -> DataError:
    """Return the error for a file that cannot be used."""
    return DataError(f"{path}: {what}. Remove the file and load again, or replace it by the original.")


def read_bytes(path: Path) -> bytes:
    """Read a file, unpacking ``.gz``."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except _DAMAGE as error:
        raise damaged(path, f"cannot be read ({error})") from error


def read_tar(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """Read the named files from a ``.tar.gz``, wherever they lie in it; nothing is written to disk."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if name in names and (file := archive.extractfile(member)) is not None:
                    found[name] = file.read()
    except (*_DAMAGE, TypeError) as error:  # TypeError: of a head of gzip that is cut off
        raise damaged(path, f"is not a complete .tar.gz ({error})") from error
    if missing := [name for name in names if name not in found]:
        raise damaged(path, f"does not contain {', '.join(missing)}")
    return found


def read_zip(path: Path, name: str) -> bytes:
    """Read one file from a ``.zip``, unpacking it if it is a ``.gz``."""
    try:
        with zipfile.ZipFile(path) as archive:
            data = archive.read(name)
        return gzip.decompress(data) if name.endswith(".gz") else data
    except (*_DAMAGE, KeyError) as error:
        raise damaged(path, f"does not hold a readable {name} ({error})") from error


def check_published(path: Path, data: bytes, known: str | None) -> None:
    """Refuse bytes whose checksum (``"sha256:..."`` or ``"md5:..."``) is not the known one; None checks nothing."""
    if known is None:
        return
    algorithm, _, expected = known.partition(":")
    got = hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()
    if got != expected:
        raise damaged(
            path,
            f"is well formed but is not the published file: {algorithm} expected {expected}, got {got}. "
            "For data of your own use from_npz or from_arrays",
        )


def check_labels(path: Path, labels: Ints, num_classes: int) -> Ints:
    """Return the labels if all are from 0 to `num_classes` - 1."""
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if len(wrong):
        raise damaged(path, f"labels must be 0 to {num_classes - 1}; got {wrong[0]} ({len(wrong)} such labels)")
    return labels


def parse_idx(path: Path, data: bytes, ndim: int) -> AnyArray:
    """Return the uint8 array of an idx file: two zero bytes, type 8, number of axes, each size as big-endian uint32.

    Images have 3 axes and labels 1; the path is named in errors.

    Example:
        >>> parse_idx(Path("labels"), bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), 1)
        array([7, 9], dtype=uint8)
    """
    magic = bytes([0, 0, 8, ndim])
    header = 4 + 4 * ndim
    if data[:4] != magic:
        raise damaged(path, f"is no idx file of {ndim}-d bytes: must start with {magic.hex()}, got {data[:4].hex()!r}")
    if len(data) < header:
        raise damaged(path, f"idx header is cut off: {len(data)} of {header} bytes")
    shape = np.frombuffer(data, ">u4", ndim, offset=4).tolist()
    if len(data) != header + math.prod(shape):
        raise damaged(path, f"header says {shape}, that is {header + math.prod(shape)} bytes; the file has {len(data)}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


class _ArraysOnly(pickle.Unpickler):
    """Admits what the CIFAR pickles need, plain arrays, and nothing that could run code."""

    # numpy's private constructor has moved between versions; an array's own reduction always knows it.
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
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which image data never need") from None


def parse_cifar_pickle(path: Path, data: bytes, labels: str, num_classes: int) -> tuple[AnyArray, Ints]:
    """Return images (n, 3, 32, 32) uint8 and labels (n,) of one original CIFAR pickle; no code in it is run.

    The key of the labels is ``labels``, ``fine_labels`` or ``coarse_labels``.
    """
    try:
        content = _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
        x, y = content[b"data"], np.array(content[labels.encode()], np.int64)
        if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.shape != (len(y), 3072):
            raise ValueError(f"{len(y)} labels need uint8 data of shape ({len(y)}, 3072)")
    except Exception as error:  # a broken pickle can raise anything
        raise damaged(path, f"is not a CIFAR pickle: {type(error).__name__}: {error}") from error
    return x.reshape(-1, 3, 32, 32), check_labels(path, y, num_classes)


def parse_packed(path: Path, data: bytes, labels: str, num_classes: int) -> tuple[AnyArray, Ints]:
    """Return images (n, 3, 32, 32) uint8 and labels (n,) of one packed ``.npz``.

    ``delta`` (3, n, 32, 32) uint8 holds the planes G, R - G, B - G, and in each plane every row less the row above it,
    all modulo 256. Undoing that is exact: a running sum over rows, then adding G. The key of the labels is ``labels``
    or ``coarse_labels``.
    """
    try:
        file = read_npz(io.BytesIO(data))
        delta, y = file["delta"], file[labels].astype(np.int64)
    except (UnreadableError, KeyError, ValueError, TypeError) as error:
        raise damaged(path, f"is not a packed image file ({error})") from error
    if delta.dtype != np.uint8 or delta.shape != (3, len(y), 32, 32):
        raise damaged(
            path, f"{len(y)} labels need uint8 delta of shape (3, {len(y)}, 32, 32); got {delta.dtype} {delta.shape}"
        )
    planes = np.cumsum(delta, axis=2, dtype=np.uint8)
    planes[1:] += planes[0]
    return planes[[1, 0, 2]].transpose(1, 0, 2, 3), check_labels(path, y, num_classes)
