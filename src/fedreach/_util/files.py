"""Atomic writes to run folders, and digests that detect changed files."""

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
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import numpy as np

from fedreach._util.arrays import AnyArray
from fedreach._util.errors import ANOTHER_FOLDER, DISK, RunFolderError

# ---- Primitive disk operations. Run folders change only through these, so that tests can interrupt each of them.
# The operating system keeps content in memory until a file is synced, and names until their folder is synced. After a
# power cut, any change that was not synced may be missing.

Content = bytes | memoryview


def open_unbuffered(path: Path, mode: str) -> IO[bytes]:
    """Open a file without a buffer, so that each write reaches the operating system immediately."""
    return path.open(mode, buffering=0)


def write(file: IO[bytes], content: Content) -> None:
    """Write all of the content, even if one call of `file.write` writes only a part."""
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[file.write(remaining) :]


def put(path: Path, content: Content) -> None:
    """Write a file and wait until its content has reached the disk."""
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
    """Truncate a file to `length` bytes."""
    os.truncate(path, length)


def replace(source: Path, target: Path) -> None:
    """Rename a file, and overwrite a file that already has the new name."""
    source.replace(target)


def link(source: Path, target: Path) -> None:
    """Add a second name to a file; the name must not exist yet."""
    os.link(source, target)


def unlink(path: Path) -> None:
    """Remove a file if it exists."""
    path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove a folder and its content if it exists."""
    if path.exists():
        shutil.rmtree(path)


def make_folders(path: Path) -> None:
    """Create a folder and its parents, and wait until their names have reached the disk."""
    if path.is_dir():
        return
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        sync_folder(folder.parent)


# ---- A folder of files that are written atomically or appended to line by line

try:
    import fcntl
except ImportError:  # Windows lacks this lock, so two processes can write to one folder there
    fcntl = None  # type: ignore[assignment]

UNFINISHED = ".fedreach-part"  # suffix of a file that is still being written
LOCK_SECONDS = 5.0  # a worker of a killed comparison releases its lock within a round
KEY = "fedreach"  # the only metadata key: safetensors writes several keys in an order that changes from run to run
PUT_BACK = "Restore it, or move the run folder away to rerun this run."


class FileDigest(NamedTuple):
    """Size and SHA-256 digest of a file's content, as listed in a manifest."""

    size: int  # bytes
    sha256: str  # of the first `size` bytes

    @classmethod
    def of(cls, content: Content) -> FileDigest:
        """Return the size and digest of this content."""
        return cls(len(content), hashlib.sha256(content).hexdigest())


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """Turn an OSError into a RunFolderError with the path, the cause and the remedy."""
    try:
        yield
    except OSError as error:
        action = DISK.get(error.errno or 0, "Make the folder writable")
        cause, remedy = error.strerror, f"{action}, then rerun the command to resume from the last checkpoint."
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            cause, remedy = "a parent folder is a file", f"Choose {ANOTHER_FOLDER}."
        raise RunFolderError(f"{path} cannot be written: {cause}. {remedy}") from error


class Folder:
    """A folder that one process at a time can write to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[str, _Lines] = {}  # stay open: opening a file takes as long as writing a line
        self._written: dict[str, FileDigest] = {}  # digests of whole files that a manifest lists
        weakref.finalize(self, _close, self._files)

    @contextmanager
    def locked(self, seconds: float | None = None) -> Iterator[None]:
        """Lock the folder against other processes; the lock ends with the process, even if the process is killed.

        Args:
            seconds: Longest time to wait for another process's lock, in seconds. Default: `LOCK_SECONDS`.

        Raises:
            RunFolderError: If another process still has the lock after that time.
        """
        with disk(self.path / ".lock"):
            make_folders(self.path)
            file = self.plain(".lock").open("a")
        with file:
            until = time.monotonic() + (LOCK_SECONDS if seconds is None else seconds)
            while not _try_lock(file):
                if time.monotonic() > until:
                    raise RunFolderError(
                        f"{self.path} is in use: another process is writing to it. Wait for this process, or choose "
                        f"{ANOTHER_FOLDER}."
                    )
                time.sleep(0.1)
            for unfinished in self.path.glob(f".*{UNFINISHED}"):  # from a process that was killed
                unlink(unfinished)
            try:
                yield
            finally:
                self.close()

    def close(self) -> None:
        """Close the line files; `append_lines` opens them again."""
        _close(self._files)

    def plain(self, name: str) -> Path:
        """Return the path of a file in this folder (see `plain_file`)."""
        return plain_file(self.path / name)

    # ---- Whole files

    def write_whole(self, name: str, content: Content, *, listed: bool = False, once: bool = False) -> None:
        """Write a file under a temporary name, then rename it.

        Args:
            name: Name of the file.
            content: Content of the file.
            listed: Do not sync the folder. The caller calls `sync` before it writes the manifest that lists the file.
                Until then, a power cut may restore the old file.
            once: Keep an existing file. If several processes write the file, the first one wins.
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
        """Append lines to a file; create the file if it is missing."""
        content = "".join(f"{line}\n" for line in lines).encode()
        with disk(self.path / name):
            self._open_lines(name).append(content)

    def sync(self) -> None:
        """Wait until all lines and all file names have reached the disk."""
        for name, lines in self._files.items():
            with disk(self.path / name):
                lines.sync()
        with disk(self.path):
            sync_folder(self.path)

    def digest(self, name: str) -> FileDigest:
        """Return the size and digest of a file; a missing file is treated as empty."""
        if name.endswith(".jsonl") and (name in self._files or self.plain(name).exists()):
            return self._open_lines(name).digest()
        if name not in self._written:
            self._written[name] = FileDigest.of(content_of(self.path / name) or b"")
        return self._written[name]

    def cut(self, name: str, size: int) -> None:
        """Truncate a line file to this size in bytes if it is longer."""
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
        """Yield the complete lines of a file; skip an incomplete last line, and treat a missing file as empty."""
        path = self.plain(name)
        if path.exists():
            # Invalid bytes are replaced here; the caller checks the lines.
            with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
                yield from (line for line in file if line.endswith("\n"))


def below(folder: Path, place: str) -> Path:
    """Return the path of a folder inside another folder, such as a run folder in the folder of its comparison.

    Raises:
        RunFolderError: If the path leads out of `folder`, for example through ``..`` or a link.
    """
    parts = PurePosixPath(place).parts
    if not parts or PurePosixPath(place).is_absolute() or ".." in parts:
        raise RunFolderError(f"{folder}: the folder of a run must be below this one; got {place!r}.")
    path = folder
    for part in parts:
        path /= part
        reject_link(path)
    return path


def reject_link(path: Path) -> None:
    """Raise RunFolderError if the path is a link, which can lead out of its folder."""
    if path.is_symlink():
        raise RunFolderError(f"{path} must not be a link. Replace the link with the file or folder itself.")


def plain_file(path: Path) -> Path:
    """Return the path if it is a regular file or missing.

    Links are rejected because they can lead out of the folder. Pipes are rejected because they block the reader.

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
            f"{path} must be a regular file; got {kind or 'a device or socket'}. Replace it with a regular file, or "
            "move it to another place."
        )
    return path


class _Lines:
    """A file of lines with the digest of its content."""

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
        # After an interrupted write, the file is longer than `_size`. The longer size makes the digest invalid.
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
    """Acquire the lock of a file; return False if another process has it."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


# ---- Reading, and digests


def content_of(path: Path, listed: FileDigest | None = None) -> bytes | None:
    """Return the content of a file; None if the file is missing.

    Args:
        path: Path of the file.
        listed: Size and digest from a manifest. Only the first `listed.size` bytes are read and checked.

    Raises:
        RunFolderError: If the file cannot be read, or differs from the manifest.
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
    """Return the error for a file that the operating system cannot read."""
    remedy = DISK.get(error.errno or 0, "Copy it again, or check its disk")
    return RunFolderError(f"{path} cannot be read: {error.strerror or error}. {remedy}.")


def missing(path: Path) -> RunFolderError:
    """Return the error for a missing file."""
    return RunFolderError(f"{path} is missing. Copy the complete run folder, or move it away to rerun this run.")


def altered_error(path: Path) -> RunFolderError:
    """Return the error for a file whose content differs from the recorded digest."""
    return RunFolderError(f"{path} was altered, or belongs to another run or round. {PUT_BACK}")


def signed(name: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with a last field `sha256`, the digest of the record and its file name."""
    unsigned = {key: value for key, value in record.items() if key != "sha256"}
    return {**unsigned, "sha256": digest_of({}, {"file": name, "record": unsigned})}


def check_signature(path: Path, record: Mapping[str, Any]) -> None:
    """Raise RunFolderError if the field `sha256` does not match the record (see `signed`)."""
    if record != signed(path.name, record):
        raise altered_error(path)


def digest_of(arrays: Mapping[str, AnyArray], record: Mapping[str, Any]) -> str:
    """Return the digest of a record and of arrays with their names, types and shapes."""
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
    for key in sorted(arrays):
        array = np.asarray(arrays[key], order="C")
        digest.update(f"{key} {array.dtype} {array.shape};".encode())
        digest.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
    return digest.hexdigest()


# ---- The user's cache folder: downloaded data sets and compiled code


def cache_folder() -> Path:
    """Return the user's cache folder for FedReach, such as ``~/.cache/fedreach``; the folder may not exist yet.

    Raises:
        RuntimeError: If the user has no home folder, as in some containers.
    """
    from platformdirs import user_cache_path

    return user_cache_path("fedreach", appauthor=False)
