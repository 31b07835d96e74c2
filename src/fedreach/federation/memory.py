"""What clients keep between rounds: one vector each, in main memory or as rows of a file."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fedreach.arrays import Float32s, Ints
from fedreach.errors import RunFolderError


class RowFile:
    """A file of rows that are written once and read often; a row nobody refers to any more is used again.

    Args:
        path: Of the file; made anew unless it holds something.
        width: Numbers in a row, float32.
        taken: Rows that hold something already.
    """

    def __init__(self, path: Path, width: int, taken: Iterable[int] = ()) -> None:
        self.path, self.width = path, width
        used = set(taken)
        if not used:  # a new file: another memory that was begun there keeps its own
            path.unlink(missing_ok=True)
        self._file = path.open("r+b" if used else "w+b")
        weakref.finalize(self, self._file.close)
        self._end = max(used, default=-1) + 1
        self._free = [row for row in range(self._end) if row not in used]

    def write(self, values: Float32s) -> StoredRow:
        """Write a row where nothing that is still referred to stands."""
        number = self._free.pop() if self._free else self._end
        self._end = max(self._end, number + 1)
        row = StoredRow(self, number)  # before anything is written: if that fails, the place is free again
        self._file.seek(number * self.width * 4)
        self._file.write(np.ascontiguousarray(values, np.float32).tobytes())
        return row

    def read(self, number: int) -> Float32s:
        """Return a row."""
        self._file.seek(number * self.width * 4)
        values: Float32s = np.frombuffer(self._file.read(self.width * 4), np.float32)
        return values

    def flush(self) -> None:
        """Hand everything written to the operating system."""
        self._file.flush()

    def release(self, number: int) -> None:
        """Let a row be written over."""
        self._free.append(number)


class StoredRow:
    """A row of a file; when the last reference to it is gone, its place is free."""

    def __init__(self, file: RowFile, number: int) -> None:
        self.file, self.number = file, number
        weakref.finalize(self, file.release, number)


Row = Float32s | StoredRow


class ClientMemory:
    """One (p,) vector for each of n clients, 0 at first.

    Writing returns a new memory that shares all other rows with the old one, which stays valid as long as somebody
    refers to it: so the state of an earlier round can be gone back to.

    Example:
        >>> memory = ClientMemory.zeros(3, width=2)
        >>> later = memory.written(np.array([1]), np.ones((1, 2), np.float32))
        >>> later.read(np.array([0, 1])).tolist(), memory.read(np.array([1])).tolist()
        ([[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0]])
    """

    def __init__(self, rows: tuple[Row | None, ...], width: int, file: RowFile | None = None) -> None:
        self.rows, self.width, self.file = rows, width, file

    @classmethod
    def zeros(cls, n: int, width: int, path: Path | None = None) -> ClientMemory:
        """Return the memory before round 1; with a path, rows are kept in that file."""
        return cls((None,) * n, width, None if path is None else RowFile(path, width))

    @classmethod
    def stored(cls, path: Path, width: int, places: Ints) -> ClientMemory:
        """Return the memory whose rows stand at these `places` of a file, -1 for zeros."""
        needed = (int(places.max(initial=-1)) + 1) * width * 4
        present = path.stat().st_size if path.exists() else 0
        if present < needed:
            raise RunFolderError(
                f"{path} must hold {needed} bytes of what clients keep between rounds; it holds {present}. "
                "Put it back, or move the run folder away to start this run anew."
            )
        file = RowFile(path, width, taken=places[places >= 0].tolist())
        return cls(tuple(None if place < 0 else StoredRow(file, int(place)) for place in places), width, file)

    def places(self) -> Ints:
        """Return where in the file each row stands, -1 for zeros, after handing the file to the operating system."""
        assert self.file is not None
        self.file.flush()
        return np.array([row.number if isinstance(row, StoredRow) else -1 for row in self.rows], dtype=np.int64)

    def read(self, positions: Ints) -> Float32s:
        """Return the (k, p) rows of these clients."""
        result = np.zeros((len(positions), self.width), np.float32)
        for target, position in zip(result, positions, strict=True):
            row = self.rows[int(position)]
            if row is not None:
                target[:] = row.file.read(row.number) if isinstance(row, StoredRow) else row
        return result

    def written(self, positions: Ints, values: Float32s) -> ClientMemory:
        """Return the memory with (k, p) new rows."""
        rows = list(self.rows)
        for position, row in zip(positions, values, strict=True):
            rows[int(position)] = row.copy() if self.file is None else self.file.write(row)
        return ClientMemory(tuple(rows), self.width, self.file)

    def forget(self, positions: Ints) -> ClientMemory:
        """Return the memory in which these rows are 0 again."""
        gone = set(positions.tolist())
        return ClientMemory(tuple(None if i in gone else row for i, row in enumerate(self.rows)), self.width, self.file)
