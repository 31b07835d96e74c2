"""Locks, lengths and digests of files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedreach.arrays import AnyArray

try:
    import fcntl
except ImportError:  # Windows has no such lock; two processes on one folder are then not kept apart
    fcntl = None  # type: ignore[assignment]

LOCK_SECONDS = 5.0  # a worker whose comparison was killed ends within a round


def taken(file: IO[str]) -> bool:
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


def length_of(path: Path) -> int:
    """Return how many bytes a file holds; 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
