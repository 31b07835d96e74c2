"""Files that are written whole or not at all, and the manifest that seals them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import sys
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

# --- All that changes a disk under a run folder: one place, so that tests can end a process before and after each of it
# What is written stands in the operating system's memory until it is synced, and the names of files until their folder
# is. So after a power cut any of it may be there and any other not, unless it was synced.

Content = bytes | memoryview


def opened(path: Path, mode: str) -> IO[bytes]:
    """Open a file without a buffer of this process: what is written is in the hands of the operating system."""
    return path.open(mode, buffering=0)


def write(file: IO[bytes], content: Content) -> None:
    """Write all of it; a disk that fills up takes some of it before it says so."""
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[file.write(remaining) :]


def put(path: Path, content: Content) -> None:
    """Write a file whose content has reached the disk before it is given its name."""
    with opened(path, "wb") as file:
        write(file, content)
        sync(file)


def sync(file: IO[bytes]) -> None:
    """Wait until a file's content has reached the disk."""
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the names of a folder's files have reached the disk, where the system can say so."""
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
    """Give a file another name, which another one may have had."""
    source.replace(target)


def link(source: Path, target: Path) -> None:
    """Give a file a second name, which no other one has."""
    os.link(source, target)


def unlink(path: Path) -> None:
    """Remove a file, if it is there."""
    path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove a folder with all that is in it, if it is there."""
    if path.exists():
        shutil.rmtree(path)


def make_folders(path: Path) -> None:
    """Make a folder and those that it lies in, and have their names reach the disk."""
    if path.is_dir():
        return
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        sync_folder(folder.parent)


# --- A folder whose files are written whole or not at all, or grow line by line; and digests of what is in them

try:
    import fcntl
except ImportError:  # Windows has no such lock; two processes on one folder are then not kept apart
    fcntl = None  # type: ignore[assignment]

UNFINISHED = ".fedreach-part"  # how the name of a file ends that is not in its place yet
LOCK_SECONDS = 5.0  # a worker whose comparison was killed ends within a round
KEY = "fedreach"  # the one metadata key of arrays: safetensors writes several in an order that changes from run to run
ANEW = "Put it back, or move the run folder away to start this run anew."


class Seal(NamedTuple):
    """What was written to a file that grows."""

    size: int  # bytes
    sha256: str  # of these


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
        self._files: dict[str, _Lines] = {}  # kept open: opening one takes as long as writing a line
        weakref.finalize(self, _close, self._files)

    @contextmanager
    def locked(self, seconds: float | None = None) -> Iterator[None]:
        """Keep other processes from writing to the folder; the lock ends with the process, however that ends.

        `seconds` are waited for another process that has it; None: `LOCK_SECONDS`.
        """
        with self.disk(".lock"):
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
            for unfinished in self.path.glob(f".*{UNFINISHED}"):  # by a process that was killed
                unlink(unfinished)
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
    def whole(self, name: str, *, waits: bool = False) -> Iterator[Path]:
        """Hand out a temporary path and put it in place once it is written, so that it stays there.

        A file that `waits` may have its old name and content after a power cut, until `sync` was called.
        """
        temporary = self.path / f".{name}.{os.getpid()}{UNFINISHED}"
        with self.disk(name):
            make_folders(self.path)
            try:
                yield temporary
                replace(temporary, self.path / name)
                if not waits:
                    sync_folder(self.path)
            finally:
                unlink(temporary)

    def write_once(self, name: str, text: str) -> None:
        """Write a file whole unless there is one: of all who try, one succeeds."""
        with self.disk(name):
            make_folders(self.path)
            temporary = self.path / f".{name}.{uuid.uuid4().hex}{UNFINISHED}"
            try:
                put(temporary, text.encode())
                with suppress(FileExistsError):
                    link(temporary, self.path / name)
                sync_folder(self.path)
            finally:
                unlink(temporary)

    def remove(self, *names: str) -> None:
        """Remove files, where they are."""
        for name in names:
            if name in self._files:
                self._files.pop(name).close()
            with self.disk(name):
                unlink(self.path / name)

    # ------------------------------------------------------------------------------------------------------- lines

    def append_lines(self, name: str, lines: Iterable[str]) -> None:
        """Append lines to a file, which is made if it is not there."""
        content = "".join(f"{line}\n" for line in lines).encode()
        with self.disk(name):
            self._open_lines(name).append(content)

    def sync(self) -> None:
        """Wait until all lines, and the names of all files, have reached the disk."""
        for name, lines in self._files.items():
            with self.disk(name):
                lines.sync()
        with self.disk(""):
            sync_folder(self.path)

    def seal(self, name: str) -> Seal:
        """Return what a file of lines holds now; of one that is not there, nothing."""
        if name not in self._files and not self.plain(name).exists():
            return Seal(0, hashlib.sha256().hexdigest())
        return self._open_lines(name).seal()

    def cut(self, name: str, size: int) -> None:
        """Cut a file of lines that is longer."""
        if name in self._files:
            self._files.pop(name).close()
        path = self.plain(name)
        if path.exists() and path.stat().st_size > size:
            with self.disk(name):
                truncate(path, size)

    def _open_lines(self, name: str) -> _Lines:
        if name not in self._files:
            self._files[name] = _Lines(self.plain(name))
        return self._files[name]

    def lines(self, name: str) -> Iterator[str]:
        """Yield the lines of a file; none where there is no file. A last line that was cut off is left out."""
        path = self.plain(name)
        if path.exists():
            # A byte that is no text is for who checks the lines.
            with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
                yield from (line for line in file if line.endswith("\n"))

    def disk(self, name: str) -> _Disk:
        """Return in which context it is said what to do where a file cannot be written."""
        return _Disk(self, name)

    def cannot_write(self, name: str, error: OSError) -> RunFolderError:
        what, repeat = error.strerror, " and repeat the command: it goes on from the last checkpoint."
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            what, remedy = "a file stands where a folder is needed", f"Choose {ANOTHER_FOLDER}."
        else:
            remedy = DISK.get(error.errno or 0, "Make the folder writable") + repeat
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


class _Lines:
    """A file that grows, and the digest of what was written to it."""

    def __init__(self, path: Path) -> None:
        self._file = opened(path, "ab")
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

    def seal(self) -> Seal:
        # Where writing was interrupted, the file is longer than what was counted, so that the seal is nobody else's.
        return Seal(max(self._size, self._file.tell()), self._digest.hexdigest())

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
    """Take the lock of a file; return False where another process has it."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


# --------------------------------------------------------------------------------------------- reading, and digests


def text_of(path: Path) -> str | None:
    """Return the text of a plain file; None where there is none.

    Raises:
        RunFolderError: If it cannot be read, or is no text.
    """
    try:
        return plain_file(path).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise cannot_read(path, error) from error
    except UnicodeDecodeError as error:
        raise RunFolderError(f"{path} is no text ({error}). It was cut or edited. {ANEW}") from error


def cannot_read(path: Path, error: OSError) -> RunFolderError:
    """Return the error that the system refuses to read a file, and what to do about it."""
    remedy = DISK.get(error.errno or 0, "Copy it again, or see to its disk")
    return RunFolderError(f"{path} cannot be read: {error.strerror or error}. {remedy}.")


def missing(path: Path) -> RunFolderError:
    """Return the error that a folder lacks a file."""
    return RunFolderError(f"{path} is missing. Copy the run folder whole, or move it away to start this run anew.")


def altered(path: Path) -> RunFolderError:
    """Return the error that a file does not hold what was written to it."""
    return RunFolderError(f"{path} was altered after it was written. {ANEW}")


def sealed_text(path: Path, seal: Seal) -> str:
    """Return what was written to a file that grows, without what came after it.

    Raises:
        RunFolderError: If the file is shorter than that, or holds something else.
    """
    try:
        with plain_file(path).open("rb") as file:
            content = file.read(seal.size)
    except FileNotFoundError:
        if seal.size:
            raise missing(path) from None
        content = b""
    except OSError as error:
        raise cannot_read(path, error) from error
    if len(content) < seal.size:
        raise RunFolderError(
            f"{path} holds {len(content)} bytes, but {seal.size} were written to it. Rows are missing; "
            "put the file back, or move the run folder away to start this run anew."
        )
    if hashlib.sha256(content).hexdigest() != seal.sha256:
        raise altered(path)
    return content.decode()


def with_digest(name: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a file of this name with a digest of both."""
    return {**record, "seal": _digest(name, record)}


def check_digest(path: Path, record: Mapping[str, Any]) -> None:
    """Refuse a record that was not written to a file of this name with its digest, by a RunFolderError."""
    if record.get("seal") != _digest(path.name, {key: value for key, value in record.items() if key != "seal"}):
        raise altered(path)


def _digest(name: str, record: Mapping[str, Any]) -> str:
    return digest_of({}, {"file": name, "record": record})


def record_of_tensors(path: Path) -> dict[str, Any]:
    """Return the record in the head of a file of arrays, which are not read.

    Raises:
        RunFolderError: If it cannot be read or was altered.
    """
    try:
        with plain_file(path).open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            head = json.loads(file.read(min(size, path.stat().st_size)))
        record = json.loads(head["__metadata__"][KEY])
        if not isinstance(record, dict):
            raise TypeError("its head holds no record")
    except OSError as error:
        raise cannot_read(path, error) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunFolderError(
            f"{path} holds no arrays ({error}). It was altered after it was written. {ANEW}"
        ) from error
    check_digest(path, record)
    return record


def refuse_lost_rounds(checkpoint: Path, rounds: Path) -> None:
    """Refuse rounds without their checkpoint, by a RunFolderError; with one row a run stopped before the first."""
    if plain_file(rounds).exists() and rounds.read_bytes().count(b"\n") > 1:
        raise RunFolderError(
            f"{checkpoint.parent} holds rounds, but {checkpoint.name} is missing. Put it back, or move the run folder "
            "away to start this run anew."
        )


def check_same_run(path: Path, run: Any, whose: str) -> None:
    """Refuse a file of another run than the folder's, by a RunFolderError."""
    if run != whose:
        raise RunFolderError(f"{path} is of another run than run.json beside it. {ANEW}")


def digest_of(arrays: Mapping[str, AnyArray], record: Mapping[str, Any]) -> str:
    """Return a digest of arrays, with their names, types and shapes, and of a record beside them."""
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
    for key in sorted(arrays):
        array = np.asarray(arrays[key], order="C")
        digest.update(f"{key} {array.dtype} {array.shape};".encode())
        digest.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
    return digest.hexdigest()


# -------------------- Where a user's cache lies: of data sets that were downloaded and of what was compiled


def cache_folder() -> Path:
    """Return FedReach's folder in the user's cache, which need not exist.

    That is ``$XDG_CACHE_HOME/fedreach`` where the variable holds an absolute path, ``~/Library/Caches/fedreach`` on a
    Mac, ``%LOCALAPPDATA%/fedreach/Cache`` on Windows, and ``~/.cache/fedreach`` elsewhere.

    Raises:
        RuntimeError: If the user has no home, as in some containers.

    References:
        XDG Base Directory Specification, version 0.8: a relative path in the variable is to be ignored.
    """
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "fedreach" / "Cache"
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or "")
    if cache_home.is_absolute():
        return cache_home / "fedreach"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "fedreach"
