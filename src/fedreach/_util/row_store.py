"""Tables with one row of numbers per client, on disk or in memory."""

from __future__ import annotations

import hashlib
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedreach._util import files
from fedreach._util.arrays import AnyArray, Dtype, Float32s, Ints, pack_rows, scale_rows, unpack_rows
from fedreach._util.errors import RunFolderError
from fedreach._util.files import PUT_BACK, FileDigest, altered_error, plain_file

# ---- Records in a file, written once and read often

ALL = slice(None)
DIGEST = 16  # bytes of the SHA-256 digest that are stored per record
NO_DIGEST = bytes(DIGEST)  # for rows in an unnamed file, which is never opened again


class RowFile:
    """File of records of equal length, which reuses the space of unreferenced records.

    Args:
        path: Path of the file. An existing file is replaced unless `occupied` lists records. None: an unnamed temporary
            file.
        width: Number of values per record.
        dtype: Type of the values.
        occupied: Positions of the records that contain data.
    """

    def __init__(self, path: Path | None, width: int, dtype: Any = np.float32, occupied: Iterable[int] = ()) -> None:
        self.path, self.width, self.dtype = path, width, np.dtype(dtype)
        used = set(occupied)
        with files.disk(path or Path(tempfile.gettempdir())):
            self._file = _unnamed_file() if path is None else _open_file(path, create=not used)
        weakref.finalize(self, self._file.close)
        self._end = max(used, default=-1) + 1
        self._free = [row for row in range(self._end) if row not in used]

    @property
    def bytes_each(self) -> int:
        """Size of a record in bytes."""
        return self.width * int(self.dtype.itemsize)

    def write(self, values: AnyArray) -> StoredRow:
        """Write a record at a free position."""
        number = self._free.pop() if self._free else self._end
        self._end = max(self._end, number + 1)
        row = StoredRow(self, number)  # before writing, so that a failed write frees the position again
        content = np.ascontiguousarray(values, self.dtype).reshape(-1).view(np.uint8).data
        with files.disk(self.path or Path(tempfile.gettempdir())):
            self._file.seek(number * self.bytes_each)
            files.write(self._file, content)
        if self.path is not None:
            row.digest = digest(content)
        return row

    def read(self, number: int, columns: slice = ALL) -> AnyArray:
        """Return these columns of a record."""
        begin, end, _ = columns.indices(self.width)
        size = max(0, end - begin) * self.dtype.itemsize
        self._file.seek(number * self.bytes_each + begin * self.dtype.itemsize)
        content = self._file.read(size)
        if len(content) < size:
            raise RunFolderError(f"{self.path} was truncated while it was in use. {PUT_BACK}")
        return np.frombuffer(content, self.dtype)

    def sync(self) -> None:
        """Wait until all records have reached the disk."""
        with files.disk(self.path or Path(tempfile.gettempdir())):
            files.sync(self._file)

    def release(self, number: int) -> None:
        """Mark the position of a record as free."""
        self._free.append(number)


def digest(content: files.Content) -> bytes:
    """Return the digest of a record's bytes."""
    return hashlib.sha256(content).digest()[:DIGEST]


def _open_file(path: Path, *, create: bool) -> IO[bytes]:
    if create:
        files.unlink(path)  # another table that has the old file open can still use it
    return files.open_unbuffered(plain_file(path), "w+b" if create else "r+b")


def _unnamed_file() -> IO[bytes]:
    return tempfile.TemporaryFile("w+b", buffering=0)


class StoredRow:
    """A record of a file; its position becomes free when the record is no longer referenced."""

    def __init__(self, file: RowFile, number: int) -> None:
        self.file, self.number, self.digest = file, number, NO_DIGEST
        weakref.finalize(self, file.release, number)


@dataclass(frozen=True)
class RowLayout:
    """Layout of a table of (n, width) numbers, which is copied and stored in blocks of `each` clients."""

    n: int
    width: int
    dtype: Dtype = "float32"
    each: int = 1

    @property
    def stored_width(self) -> int:
        """Numbers stored per client; float16 adds an exponent (see `fedreach._util.arrays`)."""
        return self.width + (self.dtype == "float16")

    def file(self, path: Path | None, occupied: Ints | None = None) -> RowFile:
        """Return a file for the blocks; an unnamed file if `path` is None."""
        return RowFile(path, self.each * self.stored_width, self.dtype, () if occupied is None else occupied.tolist())


class Block:
    """Vectors that are stored together, in main memory, in a file or in both."""

    __slots__ = ("stored", "values")

    def __init__(self, values: AnyArray | None, stored: StoredRow | None = None) -> None:
        self.values, self.stored = values, stored

    def read(self, width: int, columns: slice = ALL) -> AnyArray:
        """Return these columns of the block's vectors, which have `width` numbers each."""
        if self.values is not None:
            return self.values[:, columns]
        assert self.stored is not None  # a block is in memory or in a file
        file, number = self.stored.file, self.stored.number
        if file.width == width:  # one vector per block: read only these columns
            return file.read(number, columns).reshape(1, -1)
        return file.read(number).reshape(-1, width)[:, columns]


class Backing:
    """The file that a table shares with the tables derived from it.

    A table in memory is written to a file at its first checkpoint.
    """

    def __init__(self, file: RowFile | None, *, on_disk: bool) -> None:
        self.file, self.on_disk = file, on_disk

    def block(self, values: AnyArray) -> Block:
        """Return a block with these vectors, in the file or in memory."""
        if self.file is None or not self.on_disk:
            return Block(values)
        return Block(None, self.file.write(values))

    def store(self, block: Block, width: int) -> int:
        """Return the position of a block in the file; write the block if the file lacks it."""
        assert self.file is not None  # set by `RowTable.places`
        if block.stored is None or block.stored.file is not self.file:
            block.stored = self.file.write(block.read(width))
            if self.on_disk:
                block.values = None
        return block.stored.number


# ---- One vector per client: client state between rounds, and large tables of updates


class RowTable:
    """A table with a (p,) vector for each of n clients, initially 0; unwritten vectors use no space.

    Writing returns a new table that shares all unchanged vectors with the old one. The old table stays valid, so that
    the state of an earlier round can be restored. A table can be indexed like an (n, p) float32 array.

    Example:
        >>> memory = RowTable.zeros(3, width=2)
        >>> later = memory.written(np.array([1]), np.ones((1, 2), np.float32))
        >>> later.read(np.array([0, 1])).tolist(), memory.read(np.array([1])).tolist()
        ([[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0]])
        >>> later[1:, :1].tolist(), later.shape
        ([[1.0], [0.0]], (3, 2))
    """

    def __init__(self, layout: RowLayout, blocks: tuple[Block | None, ...], backing: Backing) -> None:
        self.layout, self.blocks, self.backing = layout, blocks, backing

    @classmethod
    def zeros(
        cls,
        n: int,
        width: int,
        path: Path | None = None,
        *,
        dtype: Dtype = "float32",
        each: int = 1,
        on_disk: bool | None = None,
    ) -> RowTable:
        """Return a table of zeros.

        Args:
            n: Number of clients.
            width: Length p of a vector.
            path: File for the vectors. None: main memory, or an unnamed temporary file if `on_disk` is true.
            dtype: Type of the stored numbers. ``"float16"`` needs half the space (see `fedreach._util.arrays` for the
                rounding error).
            each: Number of vectors per block. Writing one vector copies its block. Default: 1.
            on_disk: Store the vectors on disk instead of in main memory. Default: true if `path` is given.
        """
        layout, leaves = RowLayout(n, width, dtype, each), path is not None if on_disk is None else on_disk
        file = layout.file(path) if path is not None or leaves else None
        return cls(layout, (None,) * -(-n // each), Backing(file, on_disk=leaves))

    @classmethod
    def stored(
        cls,
        path: Path,
        width: int,
        places: Ints,
        listed: FileDigest,
        *,
        n: int | None = None,
        dtype: Dtype = "float32",
        each: int = 1,
        on_disk: bool = True,
    ) -> RowTable:
        """Return the table of the blocks at these positions of a file (`zeros` describes the other arguments).

        Args:
            path: File of the vectors.
            width: Length p of a vector.
            places: Position of each block in the file; -1 for a block of zeros.
            listed: Expected result of `digest`.
            n: Number of clients. Default: the number of blocks.
            dtype: Type of the stored numbers.
            each: Number of vectors per block.
            on_disk: Store the vectors on disk instead of in main memory.

        Raises:
            RunFolderError: If the file is too short, or the digest of the blocks differs from `listed`.
        """
        layout = RowLayout(len(places) if n is None else n, width, dtype, each)
        present = path.stat().st_size if path.exists() else 0
        if present < listed.size:
            raise RunFolderError(
                f"{path} must have {listed.size} bytes of client state; got {present} bytes. {PUT_BACK}"
            )
        file = layout.file(path, places[places >= 0])
        blocks = [None if place < 0 else Block(None, StoredRow(file, int(place))) for place in places]
        for block in blocks:
            if block is not None and block.stored is not None:
                values = block.read(layout.stored_width)
                block.stored.digest = digest(values.reshape(-1).view(np.uint8).data)
                block.values = None if on_disk else values
        table = cls(layout, tuple(blocks), Backing(file, on_disk=on_disk))
        if table.digest() != listed:
            raise altered_error(path)
        return table

    def places(self, path: Path | None = None) -> Ints:
        """Write all blocks to the file, wait until they have reached the disk, and return their positions.

        Args:
            path: File to move the blocks to. Blocks that it already contains are not written again. Default: the
                table's file.

        Returns:
            Position of each block in the file; -1 for a block of zeros.
        """
        backing = self.backing
        if path is not None and (backing.file is None or backing.file.path != path):
            backing.file = self.layout.file(path)
        assert backing.file is not None  # callers pass a path for a table in memory
        width = self.layout.stored_width
        places = np.array(
            [-1 if block is None else backing.store(block, width) for block in self.blocks], dtype=np.int64
        )
        backing.file.sync()
        return places

    def digest(self) -> FileDigest:
        """Return the file size up to the last stored block, and a digest of the digests of all blocks."""
        rows = [block.stored for block in self.blocks if block is not None and block.stored is not None]
        size = max((row.number + 1) * row.file.bytes_each for row in rows) if rows else 0
        return FileDigest(size, hashlib.sha256(b"".join(row.digest for row in rows)).hexdigest())

    # ---- Reading and writing

    def read(self, positions: Ints, columns: slice = ALL) -> Float32s:
        """Return the (k, p) vectors of these clients, or only these columns of the vectors."""
        begin, end, _ = columns.indices(self.layout.width)
        result = np.zeros((len(positions), max(0, end - begin)), np.float32)
        for number, members, inside in self._by_block(positions):
            block = self.blocks[number]
            if block is not None:
                result[members] = self._numbers(block, begin, end)[inside]
        return result

    def written(self, positions: Ints, values: Float32s) -> RowTable:
        """Return a table with these (k, p) new vectors for these clients."""
        width, block_size = self.layout.stored_width, self.layout.each
        rows = pack_rows(values) if self.layout.dtype == "float16" else values
        blocks = list(self.blocks)
        for number, members, inside in self._by_block(positions):
            if block_size == 1:
                new = np.array(rows[members[-1:]], self.layout.dtype)
            else:
                old = blocks[number]
                new = np.zeros((block_size, width), self.layout.dtype) if old is None else old.read(width).copy()
                new[inside] = rows[members]
            blocks[number] = self.backing.block(new)
        return RowTable(self.layout, tuple(blocks), self.backing)

    def kept(self, values: Float32s) -> Float32s:
        """Return the (k, p) vectors with the rounding of a write and a read."""
        return unpack_rows(pack_rows(values)) if self.layout.dtype == "float16" else values

    def only(self, positions: Ints) -> RowTable:
        """Return a table of these clients only, which shares their vectors if each block contains one client."""
        layout = replace(self.layout, n=len(positions))
        if layout.each == 1:
            return RowTable(layout, tuple(self.blocks[i] for i in positions.tolist()), self.backing)
        alone = RowTable.zeros(layout.n, layout.width, dtype=layout.dtype, each=layout.each)
        return alone.written(np.arange(layout.n), self.read(positions))

    def forget(self, positions: Ints) -> RowTable:
        """Return a table in which the vectors of these clients are 0."""
        if self.layout.each > 1:
            return self.written(positions, np.zeros((len(positions), self.layout.width), np.float32))
        gone = set(positions.tolist())
        blocks = tuple(None if i in gone else block for i, block in enumerate(self.blocks))
        return RowTable(self.layout, blocks, self.backing)

    def _by_block(self, positions: Ints) -> Iterator[tuple[int, Ints, Ints]]:
        """Yield each block that contains some of these clients, their indices in `positions` and rows in the block."""
        if len(positions) == 0:
            return
        block, inside = np.divmod(positions, self.layout.each)
        order = np.argsort(block, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(block[order])) + 1):
            yield int(block[members[0]]), members, inside[members]

    def _numbers(self, block: Block, begin: int, end: int) -> AnyArray:
        width = self.layout.stored_width
        if self.layout.dtype == "float32":
            return block.read(width, slice(begin, end))
        return scale_rows(block.read(width, slice(begin + 1, end + 1)), block.read(width, slice(0, 1)))

    # ---- Array interface

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (n, p)."""
        return self.layout.n, self.layout.width

    @property
    def dtype(self) -> Any:
        """Type of the numbers that reading returns: float32, whatever type is stored."""
        return np.dtype(np.float32)

    def __len__(self) -> int:
        return self.layout.n

    def __getitem__(self, index: Any) -> Float32s:
        rows, columns = index if isinstance(index, tuple) else (index, ALL)
        if not isinstance(rows, slice | np.ndarray) or not isinstance(columns, slice):
            raise TypeError(f"An index must be an array or a slice of clients, and a slice of columns; got {index!r}.")
        if isinstance(rows, slice) and rows.step in (None, 1):
            return self._span(*rows.indices(self.layout.n)[:2], columns)
        return self.read(np.arange(self.layout.n)[rows], columns)

    def _span(self, first: int, last: int, columns: slice) -> Float32s:
        """Return the vectors of consecutive clients, faster than `read`."""
        begin, end, _ = columns.indices(self.layout.width)
        block_size, result = self.layout.each, np.zeros((max(0, last - first), max(0, end - begin)), np.float32)
        for at in range(first - first % block_size, last, block_size):
            block, start, to = self.blocks[at // block_size], max(at, first), min(at + block_size, last)
            if block is not None:
                result[start - first : to - first] = self._numbers(block, begin, end)[start - at : to - at]
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> AnyArray:
        return np.asarray(self[:], dtype)
