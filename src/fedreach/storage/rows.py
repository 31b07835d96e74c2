"""Where vectors lie: in main memory, or as records of a file that are written once and read often."""

from __future__ import annotations

import hashlib
import tempfile
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from fedreach.arrays import AnyArray, Ints
from fedreach.errors import RunFolderError
from fedreach.storage import disk
from fedreach.storage.files import ANEW, altered, plain_file

Dtype = Literal["float32", "float16"]
ALL = slice(None)
DIGEST = 16  # bytes of a sha256 that are kept of a record
NO_DIGEST = bytes(DIGEST)  # of zeros, which stand nowhere


class RowFile:
    """Records of equal length in a file; a record nobody refers to any more is used again.

    Args:
        path: Of the file; made anew unless it holds something. None: a file without a name, gone when it is closed.
        width: Numbers in a record.
        dtype: Of a number.
        taken: Records that hold something already.
    """

    def __init__(self, path: Path | None, width: int, dtype: Any = np.float32, taken: Iterable[int] = ()) -> None:
        self.path, self.width, self.dtype = path, width, np.dtype(dtype)
        used = set(taken)
        self._file = _nameless() if path is None else _opened(path, anew=not used)
        weakref.finalize(self, self._file.close)
        self._end = max(used, default=-1) + 1
        self._free = [row for row in range(self._end) if row not in used]

    @property
    def bytes_each(self) -> int:
        """Bytes of a record."""
        return self.width * int(self.dtype.itemsize)

    def write(self, values: AnyArray) -> StoredRow:
        """Write a record where nothing that is still referred to stands."""
        number = self._free.pop() if self._free else self._end
        self._end = max(self._end, number + 1)
        row = StoredRow(self, number)  # before anything is written: if that fails, the place is free again
        content = np.ascontiguousarray(values, self.dtype).reshape(-1).view(np.uint8).data
        self._file.seek(number * self.bytes_each)
        disk.write(self._file, content)
        if self.path is not None:  # else nobody comes back to it
            row.digest = digest(content)
        return row

    def read(self, number: int, some: slice = ALL) -> AnyArray:
        """Return a record, or these numbers of it."""
        begin, end, _ = some.indices(self.width)
        size = max(0, end - begin) * self.dtype.itemsize
        self._file.seek(number * self.bytes_each + begin * self.dtype.itemsize)
        content = self._file.read(size)
        if len(content) < size:
            raise RunFolderError(f"{self.path} was cut while it was in use. {ANEW}")
        return np.frombuffer(content, self.dtype)

    def sync(self) -> None:
        """Wait until everything written has reached the disk."""
        disk.sync(self._file)

    def release(self, number: int) -> None:
        """Let a record be written over."""
        self._free.append(number)


def digest(content: disk.Content) -> bytes:
    """Return the digest of a record."""
    return hashlib.sha256(content).digest()[:DIGEST]


def _opened(path: Path, *, anew: bool) -> IO[bytes]:
    if anew:
        disk.unlink(path)  # another memory that was begun there keeps its own
    return disk.opened(plain_file(path), "w+b" if anew else "r+b")


def _nameless() -> IO[bytes]:
    return tempfile.TemporaryFile("w+b", buffering=0)


class StoredRow:
    """A record of a file; when the last reference to it is gone, its place is free."""

    def __init__(self, file: RowFile, number: int, digest: bytes = NO_DIGEST) -> None:
        self.file, self.number, self.digest = file, number, digest
        weakref.finalize(self, file.release, number)

    def check(self) -> None:
        """Refuse a record that was altered, by a RunFolderError."""
        assert self.file.path is not None  # nobody comes back to a file without a name
        if digest(self.file.read(self.number).view(np.uint8).data) != self.digest:
            raise altered(self.file.path)


@dataclass(frozen=True)
class RowLayout:
    """How vectors are kept: (n, width) numbers, `each` clients together, so that they are copied and stored as one."""

    n: int
    width: int
    dtype: Dtype = "float32"
    each: int = 1

    @property
    def stored_width(self) -> int:
        """Numbers stored for a client; as float16, see `fedreach.storage.float16`, one more."""
        return self.width + (self.dtype == "float16")

    def file(self, path: Path | None, taken: Ints | None = None) -> RowFile:
        """Return a file for them, a nameless one without a path."""
        return RowFile(path, self.each * self.stored_width, self.dtype, () if taken is None else taken.tolist())


class Block:
    """Vectors that are kept together: in main memory, in a file, or in both."""

    __slots__ = ("stored", "values")

    def __init__(self, values: AnyArray | None, stored: StoredRow | None = None) -> None:
        self.values, self.stored = values, stored

    def read(self, width: int, columns: slice = ALL) -> AnyArray:
        """Return these numbers of each of the vectors, `width` numbers each."""
        if self.values is not None:
            return self.values[:, columns]
        assert self.stored is not None  # or it would be nowhere
        file, number = self.stored.file, self.stored.number
        if file.width == width:  # one long vector: only what is asked for is read
            return file.read(number, columns).reshape(1, -1)
        return file.read(number).reshape(-1, width)[:, columns]


class Backing:
    """The file of a memory and of all that came from it; where there is none yet, the first checkpoint brings one."""

    def __init__(self, file: RowFile | None, *, on_disk: bool) -> None:
        self.file, self.on_disk = file, on_disk

    def block(self, values: AnyArray) -> Block:
        """Return new vectors, stored where they belong."""
        if self.file is None or not self.on_disk:
            return Block(values)
        return Block(None, self.file.write(values))

    def store(self, block: Block, width: int) -> int:
        """Return the place of vectors in the file, where they are written unless they stand there."""
        assert self.file is not None  # brought by `RowTable.places`
        if block.stored is None or block.stored.file is not self.file:
            block.stored = self.file.write(block.read(width))
            if self.on_disk:
                block.values = None
        return block.stored.number
