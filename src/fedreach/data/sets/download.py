"""Find the files of a known data set in the data folder, or download them, checked and in one piece or not at all.

The data folder is the one handed in, else the environment variable ``FEDREACH_DATA``, else the user's cache folder
(``pooch.os_cache("fedreach")``). With ``FEDREACH_MIRROR`` set, files are taken from that address and nowhere
else: ``<FEDREACH_MIRROR>/<place in the data folder>``, so that a served data folder is a mirror.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fedreach.errors import DataError


@dataclass(frozen=True)
class Source:
    """One entry of ``sources.json``: where a known data set comes from, its licence, its files, their checksums."""

    name: str
    title: str
    reference: str
    home: str
    licence: str
    folders: Sequence[str] = ()  # where its files may lie in the data folder
    mirrors: Sequence[str] = ()  # base addresses, tried in this order
    files: Mapping[str, str] = field(default_factory=dict)  # place in the data folder -> checksum of the download
    parts: Mapping[str, str] = field(default_factory=dict)  # name -> checksum of the bytes a reader parses
    notes: str = ""

    @property
    def about(self) -> dict[str, Any]:
        """What a `Dataset` records of it, as arguments of `from_arrays`."""
        return {"name": self.name, "source": self.home, "licence": self.licence, "notes": self.notes}


@cache
def sources() -> Mapping[str, Source]:
    """Return all known data sets by name."""
    entries = json.loads(Path(__file__).with_name("sources.json").read_text(encoding="utf-8"))
    return {name: Source(name, **entry) for name, entry in entries.items()}


def data_folder(folder: Path | str | None = None) -> Path:
    """Return the data folder: the one handed in, else ``FEDREACH_DATA``, else the user's cache folder."""
    if folder is None:
        folder = os.environ.get("FEDREACH_DATA") or None
    if folder is None:
        import pooch

        folder = pooch.os_cache("fedreach")
    return Path(folder).expanduser()


@dataclass(frozen=True)
class Place:
    """A data folder, and whether what is missing there may be downloaded."""

    folder: Path
    download: bool = True
    progress: bool = False

    def locate(self, source: Source, candidates: Sequence[str]) -> Path:
        """Return the first of the candidates (places in the data folder) that exists, or download one of them.

        Raises:
            DataError: None is there and none can be downloaded; the message says what to place where.
        """
        for candidate in candidates:
            if (self.folder / candidate).exists():
                return self.folder / candidate
        remote = [candidate for candidate in candidates if candidate in source.files]
        if remote and self.download:
            return fetch(remote[0], source, self.folder, progress=self.progress)
        wanted = remote[0] if remote else candidates[0]
        reason = "download is off" if remote else "it cannot be downloaded"
        more = f" or {len(candidates) - 3} more places" if len(candidates) > 3 else ""
        raise DataError(
            f"data set {source.name!r}: there is no {', '.join(candidates[:3])}{more} in {self.folder}, and {reason}. "
            f"{_remedy(wanted, source, self.folder)}"
        )


def fetch(path: str, source: Source, folder: Path, *, progress: bool = False) -> Path:
    """Download one file of a known data set from the first mirror that has it, and return where it lies.

    The bytes go to a temporary file beside the target; only a complete file with the right checksum is moved, in
    one step, to its name. So an interrupted download leaves nothing, and processes that fetch at once agree.

    Args:
        path: Place in the data folder, a key of ``source.files``.
        source: The data set; its mirrors are tried in order unless ``FEDREACH_MIRROR`` is set.
        folder: The data folder; made if missing.
        progress: Say on stderr what is fetched, with a progress bar on a terminal.

    Raises:
        DataError: No mirror gave the right file. The message has each address with its reason, expected and got
            checksum, and where to place the file by hand.
    """
    import pooch

    target = folder / path
    mirror = os.environ.get("FEDREACH_MIRROR")
    addresses = [f"{mirror.rstrip('/')}/{path}"] if mirror else [base + target.name for base in source.mirrors]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"data set {source.name!r}: the data folder {folder} cannot be written ({error}). "
            "Set FEDREACH_DATA to a folder that can."
        ) from error
    failures = []
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("ERROR")  # pooch would log each file; what to show is `progress`
    try:
        for address in addresses:
            bar = _Bar(address, target) if progress else None
            # Asking for the file as it is: a .gz unpacked on the way would have another checksum.
            downloader = pooch.HTTPDownloader(
                progressbar=bar or False, chunk_size=1 << 16, headers={"Accept-Encoding": "identity"}
            )
            try:
                pooch.retrieve(address, source.files[path], target.name, target.parent, downloader=downloader)
                return target
            except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong checksum is a ValueError
                failures.append(f"\n  {address}: {error}")
            finally:
                if bar:
                    bar.close()
    finally:
        logger.setLevel(level)
    raise DataError(
        f"data set {source.name!r}: could not download {target.name}; nothing was kept.{''.join(failures)}\n"
        f"Try again, or: {_remedy(path, source, folder)}"
    )


def _remedy(path: str, source: Source, folder: Path) -> str:
    checksum = f" ({source.files[path]})" if path in source.files else ""
    return (
        f"Place the file from {source.home}{checksum} at {folder / path}, or set FEDREACH_DATA to a folder that holds "
        f"{path}, or FEDREACH_MIRROR to an address that serves such a folder."
    )


class _Bar:
    """The progress bar that pooch asks for, drawn by rich with the time left; one plain line without a terminal."""

    def __init__(self, address: str, target: Path) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        console.print(f"downloading {address} to {target}", soft_wrap=True, highlight=False, markup=False)
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task(target.name, total=None)
        self._progress.start()

    @property
    def total(self) -> float | None:
        return self._progress.tasks[0].total

    @total.setter
    def total(self, total: int) -> None:
        self._progress.update(self._task, total=total or None)

    def update(self, count: int) -> None:
        self._progress.advance(self._task, count)

    def reset(self) -> None:
        """Go back to 0; pooch fills the bar from there at the end."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.stop()
