"""Locate, download and check the files of built-in data sets.

The data folder is an argument, the environment variable ``FEDREACH_DATA``, or the user's cache folder
(`fedreach._util.files.cache_folder`). If ``FEDREACH_MIRROR`` is set, FedReach downloads all files from
``<FEDREACH_MIRROR>/<path in the data folder>``. So a web server with a data folder can be a mirror.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fedreach._util.errors import DataError
from fedreach._util.files import cache_folder

TIMEOUT_S = 30  # longest time without data
BLOCK_BYTES = 1 << 16


@dataclass(frozen=True)
class Source:
    """Entry of ``sources.json`` for a built-in data set."""

    name: str
    title: str  # description in one line
    reference: str  # publication
    home: str  # address of the website
    licence: str
    folders: Sequence[str] = ()  # possible paths of the files in the data folder
    mirrors: Sequence[str] = ()  # base addresses, in the order in which they are tried
    files: Mapping[str, str] = field(default_factory=dict)  # path in the data folder -> checksum of the downloaded file
    parts: Mapping[str, str] = field(default_factory=dict)  # name -> checksum of the bytes that a reader parses
    notes: str = ""  # information that readers of results need

    @property
    def about(self) -> dict[str, Any]:
        """Arguments of `from_arrays` that describe the source."""
        return {"name": self.name, "source": self.home, "licence": self.licence, "notes": self.notes}


@cache
def sources() -> Mapping[str, Source]:
    """Return the entries of all built-in data sets by name."""
    entries = json.loads(Path(__file__).with_name("sources.json").read_text(encoding="utf-8"))
    return {name: Source(name, **entry) for name, entry in entries.items()}


def data_folder(folder: Path | str | None = None) -> Path:
    """Return the data folder: the argument, ``FEDREACH_DATA``, or the user's cache folder."""
    if folder is None:
        folder = os.environ.get("FEDREACH_DATA") or cache_folder()
    return Path(folder).expanduser()


@dataclass(frozen=True)
class Place:
    """Data folder, and options for missing files."""

    folder: Path
    download: bool = True  # download missing files
    progress: bool = False  # show progress of downloads

    def locate(self, source: Source, candidates: Sequence[str]) -> Path:
        """Return the path of the first candidate that exists, or download a candidate.

        Raises:
            DataError: If no candidate exists, and none can be downloaded.
        """
        for candidate in candidates:
            if (self.folder / candidate).exists():
                return self.folder / candidate
        remote = [candidate for candidate in candidates if candidate in source.files]
        if remote and self.download:
            return fetch(remote[0], source, self.folder, progress=self.progress)
        missing_file = remote[0] if remote else candidates[0]
        reason = "downloads are off" if remote else "it cannot be downloaded"
        more = f" or {len(candidates) - 3} other paths" if len(candidates) > 3 else ""
        raise DataError(
            f"data set {source.name!r}: {', '.join(candidates[:3])}{more} not found in {self.folder}, and {reason}. "
            f"{_remedy(missing_file, source, self.folder)}"
        )


def fetch(path: str, source: Source, folder: Path, *, progress: bool = False) -> Path:
    """Download a file of a built-in data set from the first mirror that provides it, and return the path of the file.

    FedReach renames the file to its final name only after the checksum has been verified. So an interrupted download
    leaves no file under this name, and several processes can download at the same time.

    Args:
        path: Path in the data folder, a key of ``source.files``.
        source: Entry of the data set. Unless ``FEDREACH_MIRROR`` is set, FedReach tries the mirrors of the entry in
            order.
        folder: Data folder, created if it does not exist.
        progress: Show progress on stderr.

    Raises:
        DataError: If no mirror provides the file with the right checksum.
    """
    from http.client import HTTPException  # here, as importing network modules takes 0.05 seconds

    target = folder / path
    mirror = os.environ.get("FEDREACH_MIRROR")
    addresses = [f"{mirror.rstrip('/')}/{path}"] if mirror else [base + target.name for base in source.mirrors]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"data set {source.name!r}: cannot write the data folder {folder} ({error}). Set FEDREACH_DATA to another "
            "folder."
        ) from error
    failures = []
    for address in addresses:
        try:
            _download(address, source.files[path], target, progress=progress)
        except (OSError, HTTPException, ValueError) as error:  # ValueError: an invalid address
            failures.append(f"\n  {address}: {error}")
        else:
            return target
    raise DataError(
        f"data set {source.name!r}: could not download {target.name}.{''.join(failures)}\n"
        f"Try again, or: {_remedy(path, source, folder)}"
    )


def _remedy(path: str, source: Source, folder: Path) -> str:
    checksum = f" ({source.files[path]})" if path in source.files else ""
    return (
        f"Place the file from {source.home}{checksum} at {folder / path}. Or set FEDREACH_DATA to a folder, or "
        f"FEDREACH_MIRROR to the address of a folder, that contains {path}."
    )


def _download(address: str, checksum: str, target: Path, *, progress: bool) -> None:
    """Download to a temporary file, check its checksum ("sha256:..." or "md5:..."), and rename it."""
    from urllib.request import Request, urlopen

    from fedreach._util.progress import progress_bars

    kind, _, expected = checksum.partition(":")
    digest = hashlib.new(kind, usedforsecurity=False)
    partial_file = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    # "identity": a server may otherwise unpack a .gz file, which changes its checksum.
    request = Request(address, headers={"Accept-Encoding": "identity", "User-Agent": "fedreach"})
    if progress:
        print(f"downloading {address} to {target}", file=sys.stderr, flush=True)
    bars: AbstractContextManager[Any] = progress_bars() if progress and sys.stderr.isatty() else nullcontext()
    try:
        with bars as add, urlopen(request, timeout=TIMEOUT_S) as reply:
            total, received = reply.length, 0
            bar = None if add is None else add(target.name, total=total, leave=False)
            with partial_file.open("xb") as file:
                while block := reply.read(BLOCK_BYTES):
                    file.write(block)
                    digest.update(block)
                    if bar is not None:
                        received += len(block)
                        bar.show(received, total, "", f"{received / 1e6:.1f}/{(total or 0) / 1e6:.1f} MB")
            if reply.length:
                raise OSError(f"the connection ended {reply.length} bytes early")
        if digest.hexdigest() != expected:
            raise OSError(f"the checksum must be {checksum}; got {kind}:{digest.hexdigest()}")
        partial_file.replace(target)
    finally:
        partial_file.unlink(missing_ok=True)
