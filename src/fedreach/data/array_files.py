"""Arrays in ``.npy`` and ``.npz`` files: their headers are held against what is there before memory is asked for."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.lib import format as npy

from fedreach.arrays import AnyArray
from fedreach.errors import DataError, FedReachError
from fedreach.limits import check_memory

ADVICE = "Store it as smaller arrays, or of a smaller type."
READERS: Mapping[tuple[int, int], Any] = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class UnreadableError(ValueError):
    """A file is no whole file of arrays; the caller says which file, and what to do."""


def read_npy(path: Path, mmap_mode: Literal["r"] | None = None) -> AnyArray:
    """Return the array of a file, mapped with ``mmap_mode="r"``.

    Raises:
        OSError: If the file cannot be opened.
        UnreadableError: If it is damaged, holds python objects, or does not hold what its header says.
        DataError: If it needs more memory than there is.
    """
    with path.open("rb") as stream:
        try:
            size = path.stat().st_size
            _check(stream, size, path.name, mapped=mmap_mode is not None)
            if mmap_mode is None or not size:
                return _whole(stream)
            mapped: AnyArray = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
            return mapped
        except (FedReachError, UnreadableError):
            raise
        except Exception as error:
            raise UnreadableError(_said(error)) from error


def read_npz(stream: IO[bytes]) -> dict[str, AnyArray]:
    """Return the arrays of an opened file, by name; raises as `read_npy`.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> np.savez(file, x=np.arange(3))
        >>> read_npz(file)
        {'x': array([0, 1, 2])}
    """
    try:
        stream.seek(0)
        begin = stream.read(len(npy.MAGIC_PREFIX))
        if begin == npy.MAGIC_PREFIX:
            raise UnreadableError("one bare array, not an .npz file")
        if not begin.startswith(b"PK"):  # zipfile would look for an archive behind what stands there
            raise UnreadableError("it does not begin as an .npz file")
        with zipfile.ZipFile(stream) as archive:
            members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            for info in members:
                with archive.open(info) as member:
                    _check(member, info.file_size, info.filename)
            total = sum(info.file_size for info in members)
            _fits(f"{len(members)} arrays of one file", total)
            arrays = {}
            for info in members:
                with archive.open(info) as member:
                    arrays[info.filename.removesuffix(".npy")] = _whole(member)
                    if member.read(1):
                        raise UnreadableError(f"{info.filename} holds more than its header says")
            return arrays
    except (FedReachError, UnreadableError):
        raise
    except Exception as error:  # a damaged zip or header makes zipfile and numpy raise a dozen kinds
        raise UnreadableError(_said(error)) from error


def _check(stream: Any, size: int, name: str, *, mapped: bool = False) -> None:
    """Refuse a header that does not describe the `size` bytes of its file; the stream is put back if it can be."""
    version = npy.read_magic(stream)
    if version not in READERS:
        raise UnreadableError(f"{name} is of version {version} of the format, and those read are 1.0 and 2.0")
    shape, _, dtype = READERS[version](stream)
    if dtype.hasobject:
        raise UnreadableError(f"{name} holds python objects, that is a pickle")
    if any(length < 0 for length in shape):
        raise UnreadableError(f"{name} says that its shape is {shape}")
    told = math.prod(shape) * dtype.itemsize
    there = size - stream.tell()
    if told != there:
        raise UnreadableError(f"the header of {name} says {shape} {dtype}, that is {told} bytes; {there} are there")
    if not mapped:
        _fits(f"the array {shape} {dtype} of {name}", told)
    stream.seek(0)


def _fits(what: str, size: int) -> None:
    check_memory(what, size, ADVICE, DataError)


def _whole(stream: Any) -> AnyArray:
    array: AnyArray = npy.read_array(stream, allow_pickle=False)
    return array


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
