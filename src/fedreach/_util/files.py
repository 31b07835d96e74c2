"""Files that are written completely or not at all, and digests that detect changes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import time
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from fedreach._util.arrays import AnyArray
from fedreach._util.errors import ANOTHER_FOLDER, DISK, RunFolderError

# ---- Every change of the disk in a run folder: in one place, so that tests can stop a process before and after each
# The operating system keeps content in memory until a file is synced, and names until their folder is synced. After a
# power cut, any change that was not synced may be missing.

Content = bytes | memoryview


def open_unbuffered(path: Path, mode: str) -> IO[bytes]:
    """Open a file without a buffer in this process, so that the operating system gets each write at once."""
    return path.open(mode, buffering=0)


def write(file: IO[bytes], content: Content) -> None:
    """Write all of the content; a full disk takes a part of it before it reports an error."""
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[file.write(remaining) :]


def put(path: Path, content: Content) -> None:
    """Write a file, and return once its content has reached the disk."""
    with open_unbuffered(path, "wb") as file:
        write(file, content)
        sync(file)


def sync(file: IO[bytes]) -> None:
    """Wait until a file's content has reached the disk."""
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the names of a folder's files have reached the disk, on systems that support it."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def truncate(path: Path, length: int) -> None:
    """Cut a file."""
    os.truncate(path, length)


def replace(source: Path, target: Path) -> None:
    """Rename a file, and replace the file that has the new name."""
    source.replace(target)


def link(source: Path, target: Path) -> None:
    """Give a file a second name, which must be free."""
    os.link(source, target)


def unlink(path: Path) -> None:
    """Remove a file if it exists."""
    path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove a folder with its content if it exists."""
    if path.exists():
        shutil.rmtree(path)


def make_folders(path: Path) -> None:
    """Make a folder and its parents, and wait until their names have reached the disk."""
    if path.is_dir():
        return
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        sync_folder(folder.parent)


# ---- A folder whose files are written completely or not at all, or grow line by line

try:
    import fcntl
except ImportError:  # Windows lacks this lock: there, two processes may write to one folder
    fcntl = None  # type: ignore[assignment]

UNFINISHED = ".fedreach-part"  # ending of the name of a file that is still being written
LOCK_SECONDS = 5.0  # a worker whose comparison was killed stops within a round
KEY = "fedreach"  # the only metadata key: safetensors writes several keys in an order that changes from run to run
PUT_BACK = "Put it back, or move the run folder away to start this run anew."


class FileDigest(NamedTuple):
    """What a manifest lists of a file: of one that grows, the content at that moment."""

    size: int  # bytes
    sha256: str  # of these

    @classmethod
    def of(cls, content: Content) -> FileDigest:
        """Return the size and digest of a content."""
        return cls(len(content), hashlib.sha256(content).hexdigest())


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """Turn an OSError into a RunFolderError that names the path and says what to do."""
    try:
        yield
    except OSError as error:
        what, repeat = error.strerror, " and repeat the command: it goes on from the last checkpoint."
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            what, remedy = "a file stands where a folder is needed", f"Choose {ANOTHER_FOLDER}."
        else:
            remedy = DISK.get(error.errno or 0, "Make the folder writable") + repeat
        raise RunFolderError(f"{path} cannot be written: {what}. {remedy}") from error


class Folder:
    """A folder that only one process writes to at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[str, _Lines] = {}  # kept open: opening a file takes as long as writing a line
        self._written: dict[str, FileDigest] = {}  # of whole files that a manifest lists
        weakref.finalize(self, _close, self._files)

    @contextmanager
    def locked(self, seconds: float | None = None) -> Iterator[None]:
        """Keep other processes from writing to the folder; the lock ends with the process, even if it is killed.

        Args:
            seconds: How long to wait for a process that has the lock. Default: `LOCK_SECONDS`.
        """
        with disk(self.path / ".lock"):
            make_folders(self.path)
            file = self.plain(".lock").open("a")
        with file:
            until = time.monotonic() + (LOCK_SECONDS if seconds is None else seconds)
            while not _try_lock(file):
                if time.monotonic() > until:
                    raise RunFolderError(
                        f"Another process is writing to {self.path}. Wait for it, or choose {ANOTHER_FOLDER}."
                    )
                time.sleep(0.1)
            for unfinished in self.path.glob(f".*{UNFINISHED}"):  # left behind by a process that was killed
                unlink(unfinished)
            try:
                yield
            finally:
                self.close()

    def close(self) -> None:
        """Close the files of lines; the next line opens them again."""
        _close(self._files)

    def plain(self, name: str) -> Path:
        """Return the path of a file to read or write, see `plain_file`."""
        return plain_file(self.path / name)

    # ---- Whole files

    def write_whole(self, name: str, content: Content, *, listed: bool = False, once: bool = False) -> None:
        """Write a file, and move it into place once it is written.

        Args:
            name: Name of the file.
            content: Its content.
            listed: Leave syncing to a later call of `sync`, before the manifest that lists the file: after a power cut,
                the old file may still be there.
            once: Keep a file that exists: of several processes that write one, the first succeeds.
        """
        temporary = self.path / f".{name}.{uuid.uuid4().hex}{UNFINISHED}"
        with disk(self.path / name):
            make_folders(self.path)
            try:
                put(temporary, content)
                if once:
                    with suppress(FileExistsError):
                        link(temporary, self.path / name)
                else:
                    replace(temporary, self.path / name)
                if not listed:
                    sync_folder(self.path)
            finally:
                unlink(temporary)
        if listed:
            self._written[name] = FileDigest.of(content)

    def remove(self, *names: str) -> None:
        """Remove the files that exist."""
        for name in names:
            if name in self._files:
                self._files.pop(name).close()
            self._written.pop(name, None)
            with disk(self.path / name):
                unlink(self.path / name)

    # ---- Lines

    def append_lines(self, name: str, lines: Iterable[str]) -> None:
        """Append lines to a file, and create it if it is missing."""
        content = "".join(f"{line}\n" for line in lines).encode()
        with disk(self.path / name):
            self._open_lines(name).append(content)

    def sync(self) -> None:
        """Wait until all lines, and the names of all files, have reached the disk."""
        for name, lines in self._files.items():
            with disk(self.path / name):
                lines.sync()
        with disk(self.path):
            sync_folder(self.path)

    def digest(self, name: str) -> FileDigest:
        """Return the size and digest of a file; a missing file counts as empty."""
        if name.endswith(".jsonl") and (name in self._files or self.plain(name).exists()):
            return self._open_lines(name).digest()
        if name not in self._written:
            self._written[name] = FileDigest.of(content_of(self.path / name) or b"")
        return self._written[name]

    def cut(self, name: str, size: int) -> None:
        """Cut a file of lines to this size if it is longer."""
        if name in self._files:
            self._files.pop(name).close()
        path = self.plain(name)
        if path.exists() and path.stat().st_size > size:
            with disk(self.path / name):
                truncate(path, size)

    def _open_lines(self, name: str) -> _Lines:
        if name not in self._files:
            self._files[name] = _Lines(self.plain(name))
        return self._files[name]

    def lines(self, name: str) -> Iterator[str]:
        """Yield the complete lines of a file, none if it is missing; an incomplete last line is left out."""
        path = self.plain(name)
        if path.exists():
            # Invalid bytes are replaced here; the caller checks the lines.
            with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
                yield from (line for line in file if line.endswith("\n"))


def plain_file(path: Path) -> Path:
    """Return the path of a plain or missing file: a link may lead anywhere, and a pipe blocks its reader.

    Raises:
        RunFolderError: If the path is a link, a pipe, a folder or a device.
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


class _Lines:
    """A file of lines, and the digest of its content."""

    def __init__(self, path: Path) -> None:
        self._file = open_unbuffered(path, "ab")
        self._digest, self._size, self._unsynced = hashlib.sha256(), 0, True
        with path.open("rb") as existing:
            while content := existing.read(2**20):
                self._digest.update(content)
                self._size += len(content)

    def append(self, content: bytes) -> None:
        self._unsynced = True
        write(self._file, content)
        self._digest.update(content)
        self._size += len(content)

    def digest(self) -> FileDigest:
        # After an interrupted write the file is longer than counted, so that its size fits no other digest.
        return FileDigest(max(self._size, self._file.tell()), self._digest.hexdigest())

    def sync(self) -> None:
        if self._unsynced:
            sync(self._file)
            self._unsynced = False

    def close(self) -> None:
        self._file.close()


def _close(files: dict[str, _Lines]) -> None:
    for name in list(files):
        files.pop(name).close()


def _try_lock(file: IO[str]) -> bool:
    """Take the lock of a file; return False if another process has it."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


# ---- Reading, and digests


def content_of(path: Path, listed: FileDigest | None = None) -> bytes | None:
    """Return the content of a plain file, or the part of it that a manifest lists; None if it is missing.

    Raises:
        RunFolderError: If it cannot be read, or is not what the manifest lists.
    """
    try:
        with plain_file(path).open("rb") as file:
            content = file.read(-1 if listed is None else listed.size)
    except (FileNotFoundError, NotADirectoryError):
        if listed is not None and listed.size:
            raise missing(path) from None
        return None
    except OSError as error:
        raise cannot_read(path, error) from error
    if listed is not None and FileDigest.of(content) != listed:
        raise altered_error(path)
    return content


def cannot_read(path: Path, error: OSError) -> RunFolderError:
    """Return the error for a file that the operating system cannot read; it says what to do."""
    remedy = DISK.get(error.errno or 0, "Copy it again, or see to its disk")
    return RunFolderError(f"{path} cannot be read: {error.strerror or error}. {remedy}.")


def missing(path: Path) -> RunFolderError:
    """Return the error for a missing file."""
    return RunFolderError(f"{path} is missing. Copy the run folder whole, or move it away to start this run anew.")


def altered_error(path: Path) -> RunFolderError:
    """Return the error for a file that is not as it was written."""
    return RunFolderError(f"{path} was altered after it was written, or is of another run or round. {PUT_BACK}")


def signed(name: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record that ends with the digest of itself and of the name of its file."""
    unsigned = {key: value for key, value in record.items() if key != "sha256"}
    return {**unsigned, "sha256": digest_of({}, {"file": name, "record": unsigned})}


def check_signature(path: Path, record: Mapping[str, Any]) -> None:
    """Raise RunFolderError if a record is not as `signed` returned it."""
    if record != signed(path.name, record):
        raise altered_error(path)


def digest_of(arrays: Mapping[str, AnyArray], record: Mapping[str, Any]) -> str:
    """Return a digest of arrays, their names, types and shapes, and of a record."""
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
    for key in sorted(arrays):
        array = np.asarray(arrays[key], order="C")
        digest.update(f"{key} {array.dtype} {array.shape};".encode())
        digest.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
    return digest.hexdigest()


# ---- The user's cache folder: downloaded data sets and compiled code


def cache_folder() -> Path:
    """Return FedReach's folder in the user's cache, such as ``~/.cache/fedreach``; it may not exist yet.

    Raises:
        RuntimeError: If the user has no home folder, as in some containers.
    """
    from platformdirs import user_cache_path

    return user_cache_path("fedreach", appauthor=False)
