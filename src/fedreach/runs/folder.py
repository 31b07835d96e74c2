"""A run folder: rows appended as rounds end, a checkpoint that matches them, and what the run was.

```
run.json               what was run: method, seed, resolved config, environment, git revision
federation.json        who holds what and who takes part, with a hash
rounds.jsonl           one row a round          pandas.read_json(path, lines=True)
clients.jsonl          scores of single clients, a line for each evaluation and population
engine.json            which engine trains, where the experiment leaves that to a trial
timing.jsonl           seconds a round; the only rows that differ between two runs of the same thing
checkpoint.safetensors all that is needed to go on, with
memory.rows            what clients keep between rounds, where the solver has them; gone when the run is finished,
selection.rows         as is a table of updates of 16 MiB or more; a smaller one stands in the checkpoint
last.safetensors, best.safetensors     models by parameter name
result.json            how it ended; written last
```
Rows and checkpoint cannot disagree: the checkpoint holds the length of each file at its round, and resuming cuts
the files back to that length before the rounds after it are run again. Timing differs from run to run and so stays
out of the checkpoint: it is cut back to the round.
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any

import numpy as np

from fedreach.arrays import AnyArray
from fedreach.errors import RunFolderError
from fedreach.runs.schema import FORMAT, KEY, ROWS, TIMING
from fedreach.storage.files import LOCK_SECONDS, digest_of, length_of, taken

JSON_LINE = json.JSONEncoder(allow_nan=False)  # `json.dumps` makes one for every row


class RunFolder:
    """Reads and writes one run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[str, IO[bytes]] = {}  # of rows, kept open: opening one takes as long as writing a row
        weakref.finalize(self, _close, self._files)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing to the folder; the lock ends with the process, however that ends."""
        with self.disk(".lock"):
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / ".lock").open("w")
        with file:
            until = time.monotonic() + LOCK_SECONDS
            while not taken(file):
                if time.monotonic() > until:
                    raise RunFolderError(
                        f"Another process is writing to {self.path}. Wait for it, or choose another folder with --out."
                    )
                time.sleep(0.1)
            for left in self.path.glob(".*.*"):
                if left.suffix[1:].isdigit():  # half-written by a process that was killed
                    left.unlink()
            try:
                yield
            finally:
                _close(self._files)

    # ------------------------------------------------------------------------------------------------- JSON

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return a JSON file of the folder, or None where there is none."""
        path = self.path / name
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RunFolderError(
                f"{path} cannot be read: {error}. Move the run folder away to start this run anew."
            ) from error
        version = content.get("format") if isinstance(content, dict) else None
        _check_format(path, version)
        return content  # type: ignore[no-any-return]

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file, whole or not at all."""
        text = json.dumps({"format": FORMAT, **content}, indent=1, allow_nan=False)
        with self._whole(name) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")

    def agreed(self, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Write a JSON file unless there is one; return what stands there, the same for all who ask."""
        with self.disk(name):
            self.path.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile("w", dir=self.path, prefix=".", suffix=f".{os.getpid()}", encoding="utf-8") as own:
                own.write(json.dumps({"format": FORMAT, **content}, indent=1, allow_nan=False) + "\n")
                own.flush()
                with suppress(FileExistsError):
                    os.link(own.name, self.path / name)
        return self.read_json(name) or dict(content)

    # ------------------------------------------------------------------------------------------------- rows

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        """Append one row; a number that is not finite becomes null, as JSON has no other word for it."""
        try:
            line = JSON_LINE.encode(row)
        except (TypeError, ValueError):  # seldom: going through every value takes as long as writing the row
            line = JSON_LINE.encode(_finite(row))
        with self.disk(name):
            if name not in self._files:
                self._files[name] = (self.path / name).open("ab", buffering=0)
            left = line.encode() + b"\n"
            while left:  # a disk that fills up takes some of it before it says so
                left = left[self._files[name].write(left) :]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a file; none where there is no file. A last row that was cut off is left out."""
        return list(self.each_row(name))

    def each_row(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a file one by one, for those who need not see them all."""
        path = self.path / name
        if path.exists():
            with path.open(encoding="utf-8", newline="\n") as file:
                yield from (json.loads(line) for line in file if line.endswith("\n"))

    def lengths(self) -> dict[str, int]:
        """Return the length of each file of rows in bytes."""
        files = self._files
        return {name: files[name].tell() if name in files else length_of(self.path / name) for name in ROWS}

    def check_lengths(self, lengths: Mapping[str, int]) -> None:
        """Refuse files of rows that are shorter than they were."""
        for name, present in self.lengths().items():
            if present < lengths[name]:
                raise RunFolderError(
                    f"{self.path / name} holds {present} bytes, but {lengths[name]} were written to it. Rows are "
                    "missing; put the file back, or move the run folder away to start this run anew."
                )

    def rewind(self, lengths: Mapping[str, int], round_: int) -> None:
        """Cut the files of rows back to where they were after a round."""
        _close(self._files)  # that of timing is replaced
        self.check_lengths(lengths)
        for name, length in lengths.items():
            if self.lengths()[name] > length:
                os.truncate(self.path / name, length)
        timing = self.path / TIMING
        if timing.exists():
            kept = [line for line in timing.read_text(encoding="utf-8").splitlines() if _round(line) <= round_]
            with self._whole(TIMING) as temporary:
                temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")

    # ---------------------------------------------------------------------------------------------- tensors

    def write_tensors(self, name: str, tensors: Mapping[str, AnyArray], record: Mapping[str, Any]) -> None:
        """Write arrays and a JSON record as one safetensors file, whole or not at all."""
        from safetensors.numpy import save

        plain = {key: np.asarray(value, order="C") for key, value in tensors.items()}
        full = {"format": FORMAT, **record}
        content = save(plain, {KEY: json.dumps({**full, "sha256": digest_of(plain, full)}, sort_keys=True)})
        with self._whole(name) as temporary:
            temporary.write_bytes(content)

    def read_tensors(self, name: str) -> tuple[dict[str, AnyArray], dict[str, Any]] | None:
        """Return the arrays and the record of a safetensors file, or None where there is none."""
        from safetensors import SafetensorError, safe_open

        path = self.path / name
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="numpy") as file:
                record = json.loads(file.metadata()[KEY])
                arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise RunFolderError(
                f"The checkpoint {path} cannot be read: {error}. It is not skipped, as that would silently start over; "
                "move the run folder away to start this run anew."
            ) from error
        _check_format(path, record.get("format"))
        if record.pop("sha256", None) != digest_of(arrays, record):
            raise RunFolderError(
                f"The checkpoint {path} was altered after it was written. Put it back, or move the run folder away to "
                "start this run anew."
            )
        return arrays, record

    # ------------------------------------------------------------------------------------------------- disk

    @contextmanager
    def _whole(self, name: str) -> Iterator[Path]:
        """Hand out a temporary path and put it in place once it is written."""
        temporary = self.path / f".{name}.{os.getpid()}"
        with self.disk(name):
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                yield temporary
                temporary.replace(self.path / name)
            finally:
                temporary.unlink(missing_ok=True)

    @contextmanager
    def disk(self, name: str) -> Iterator[None]:
        """Say what to do where a file cannot be written."""
        try:
            yield
        except OSError as error:
            what, repeat = error.strerror, " and repeat the command: it goes on from the last checkpoint."
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                remedy = "Free some space" + repeat
            elif error.errno in (errno.EEXIST, errno.ENOTDIR):
                what, remedy = "a file stands where a folder is needed", "Choose another folder with --out."
            else:
                remedy = "Make the folder writable" + repeat
            raise RunFolderError(f"{self.path / name} cannot be written: {what}. {remedy}") from error


def _close(files: dict[str, IO[bytes]]) -> None:
    for name in list(files):
        files.pop(name).close()


def _check_format(path: Path, version: Any) -> None:
    if version != FORMAT:
        raise RunFolderError(
            f"{path} is of format {version!r}, and this version of FedReach reads format {FORMAT}. "
            "Use the version that wrote it, or another folder."
        )


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _round(line: str) -> float:
    """Return the round of a row; infinity for a row that was cut off as it was written."""
    try:
        return int(json.loads(line)["round"])
    except (ValueError, KeyError, TypeError):
        return math.inf
