"""All that changes a disk under a run folder: one place, so that tests can end a process before and after each of it.

What is written stands in the operating system's memory until it is synced, and the names of files until their folder
is. So after a power cut any of it may be there and any other not, unless it was synced.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import IO

Content = bytes | memoryview


def opened(path: Path, mode: str) -> IO[bytes]:
    """Open a file without a buffer of this process: what is written is in the hands of the operating system."""
    return path.open(mode, buffering=0)


def write(file: IO[bytes], content: Content) -> None:
    """Write all of it; a disk that fills up takes some of it before it says so."""
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


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
