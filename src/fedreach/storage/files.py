"""A folder whose files are written whole or not at all, or grow line by line; and digests of what is in them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import time
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from fedreach.arrays import AnyArray
from fedreach.errors import ANOTHER_FOLDER, RunFolderError

try:
    import fcntl
except ImportError:  # Windows has no such lock; two processes on one folder are then not kept apart
    fcntl = None  # type: ignore[assignment]

UNFINISHED = ".fedreach-part"  # how the name of a file ends that is not in its place yet
LOCK_SECONDS = 5.0  # a worker whose comparison was killed ends within a round


class _Disk(NamedTuple):
    """Says what to do where a file cannot be written, see `Folder.disk`."""

    folder: Folder
    name: str

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, OSError):
            raise self.folder.cannot_write(self.name, error) from error


class Folder:
    """A folder that one process writes to at a time, however that process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[str, IO[bytes]] = {}  # of lines, kept open: opening one takes as long as writing a line
        weakref.finalize(self, _close, self._files)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing to the folder; the lock ends with the process, however that ends."""
        with self.disk(".lock"):
            self.path.mkdir(parents=True, exist_ok=True)
            file = self.plain(".lock").open("a")
        with file:
            until = time.monotonic() + LOCK_SECONDS
            while not _taken(file):
                if time.monotonic() > until:
                    raise RunFolderError(
                        f"Another process is writing to {self.path}. Wait for it, or choose {ANOTHER_FOLDER}."
                    )
                time.sleep(0.1)
            for left in self.path.glob(f".*{UNFINISHED}"):  # by a process that was killed
                left.unlink()
            try:
                yield
            finally:
                self.close()

    def close(self) -> None:
        """Close the files of lines; the next line opens them again."""
        _close(self._files)

    def plain(self, name: str) -> Path:
        """Return the path of a file that is to be read or written, see `plain_file`."""
        return plain_file(self.path / name)

    # ------------------------------------------------------------------------------------------------- whole files

    @contextmanager
    def whole(self, name: str) -> Iterator[Path]:
        """Hand out a temporary path and put it in place once it is written."""
        temporary = self.path / f".{name}.{os.getpid()}{UNFINISHED}"
        with self.disk(name):
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                yield temporary
                temporary.replace(self.path / name)
            finally:
                temporary.unlink(missing_ok=True)

    def write_once(self, name: str, text: str) -> None:
        """Write a file whole unless there is one: of all who try, one succeeds."""
        with self.disk(name):
            self.path.mkdir(parents=True, exist_ok=True)
            own = self.path / f".{name}.{uuid.uuid4().hex}{UNFINISHED}"
            try:
                own.write_text(text, encoding="utf-8")
                with suppress(FileExistsError):
                    os.link(own, self.path / name)
            finally:
                own.unlink(missing_ok=True)

    # ------------------------------------------------------------------------------------------------------- lines

    def append_lines(self, name: str, lines: Iterable[str]) -> None:
        """Append lines to a file, which is made if it is not there."""
        left = "".join(f"{line}\n" for line in lines).encode()
        try:
            if name not in self._files:
                self._files[name] = self.plain(name).open("ab", buffering=0)
            while left:  # a disk that fills up takes some of it before it says so
                left = left[self._files[name].write(left) :]
        except OSError as error:
            raise self.cannot_write(name, error) from error

    def lines(self, name: str) -> Iterator[str]:
        """Yield the lines of a file; none where there is no file. A last line that was cut off is left out."""
        path = self.plain(name)
        if path.exists():
            with path.open(encoding="utf-8", newline="\n") as file:
                yield from (line for line in file if line.endswith("\n"))

    def length(self, name: str) -> int:
        """Return how many bytes a file holds; 0 where there is none."""
        if name in self._files:
            return self._files[name].tell()
        try:
            return (self.path / name).stat().st_size
        except FileNotFoundError:
            return 0

    def disk(self, name: str) -> _Disk:
        """Return in which context it is said what to do where a file cannot be written."""
        return _Disk(self, name)

    def cannot_write(self, name: str, error: OSError) -> RunFolderError:
        what, repeat = error.strerror, " and repeat the command: it goes on from the last checkpoint."
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            remedy = "Free some space" + repeat
        elif error.errno in (errno.EEXIST, errno.ENOTDIR):
            what, remedy = "a file stands where a folder is needed", f"Choose {ANOTHER_FOLDER}."
        else:
            remedy = "Make the folder writable" + repeat
        return RunFolderError(f"{self.path / name} cannot be written: {what}. {remedy}")


def plain_file(path: Path) -> Path:
    """Return a path where there is a plain file, or nothing: a link may lead anywhere, and a pipe has readers wait.

    Raises:
        RunFolderError: If there is something else.
    """
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return path
    if not stat.S_ISREG(mode):
        kind = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFDIR: "a folder"}.get(stat.S_IFMT(mode))
        raise RunFolderError(
            f"{path} is {kind or 'no plain file'}; what FedReach reads and writes in its folders are plain files. "
            "Put the file itself there, or move it away."
        )
    return path


def _close(files: dict[str, IO[bytes]]) -> None:
    for name in list(files):
        files.pop(name).close()


def _taken(file: IO[str]) -> bool:
    """Take the lock of a file; return False where another process has it."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def digest_of(arrays: Mapping[str, AnyArray], record: Mapping[str, Any]) -> str:
    """Return a digest of arrays, with their names, types and shapes, and of a record beside them."""
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
    for key in sorted(arrays):
        array = np.asarray(arrays[key], order="C")
        digest.update(f"{key} {array.dtype} {array.shape};".encode())
        digest.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
    return digest.hexdigest()
