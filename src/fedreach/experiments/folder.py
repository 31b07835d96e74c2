"""A run folder: rows appended as rounds end, a checkpoint that matches them, and what the run was.

```
run.json               what was run: method, seed, resolved config, environment, git revision
federation.json        who holds what and who takes part, with a hash
rounds.jsonl           one row a round          pandas.read_json(path, lines=True)
clients.jsonl          scores of single clients, a line for each evaluation and population
timing.jsonl           seconds a round; the only rows that differ between two runs of the same thing
checkpoint.safetensors all that is needed to go on
last.safetensors, best.safetensors     models by parameter name
result.json            how it ended; written last
```
Rows and checkpoint cannot disagree: the checkpoint holds the length of each file at its round, and resuming cuts
the files back to that length before the rounds after it are run again.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedreach.arrays import AnyArray
from fedreach.errors import RunFolderError

try:
    import fcntl
except ImportError:  # Windows has no such lock; two processes on one folder are then not kept apart
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
ROWS = ("rounds.jsonl", "clients.jsonl", "timing.jsonl")
KEY = "fedreach"  # the one metadata key: safetensors writes several in an order that changes from run to run


class RunFolder:
    """Reads and writes one run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing to the folder; the lock ends with the process, however that ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self._disk(".lock"), (self.path / ".lock").open("w") as file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise RunFolderError(
                        f"Another process is writing to {self.path}. Wait for it, or choose another folder with --out."
                    ) from None
            yield

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
        if not isinstance(content, dict) or content.get("format", FORMAT) != FORMAT:
            version = content.get("format") if isinstance(content, dict) else None
            raise RunFolderError(
                f"{path} is of format {version!r}, and this version of FedReach reads format {FORMAT}. "
                "Use the version that wrote it, or another folder."
            )
        return content

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file, whole or not at all."""
        text = json.dumps({"format": FORMAT, **content}, indent=1, allow_nan=False)
        with self._whole(name) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")

    # ------------------------------------------------------------------------------------------------- rows

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        """Append one row."""
        with self._disk(name), (self.path / name).open("a", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")

    def lengths(self) -> dict[str, int]:
        """Return the length of each file of rows in bytes."""
        return {name: (self.path / name).stat().st_size if (self.path / name).exists() else 0 for name in ROWS}

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Cut the files of rows back to these lengths."""
        for name, length in lengths.items():
            path = self.path / name
            present = path.stat().st_size if path.exists() else 0
            if present < length:
                raise RunFolderError(
                    f"{path} holds {present} bytes, but its checkpoint was written after {length}. Rows are missing; "
                    "put the file back, or move the run folder away to start this run anew."
                )
            if present > length:
                os.truncate(path, length)

    # ---------------------------------------------------------------------------------------------- tensors

    def write_tensors(self, name: str, tensors: Mapping[str, AnyArray], record: Mapping[str, Any]) -> None:
        """Write arrays and a JSON record as one safetensors file, whole or not at all."""
        from safetensors.numpy import save

        plain = {key: np.ascontiguousarray(value) for key, value in tensors.items()}
        content = save(plain, {KEY: json.dumps({"format": FORMAT, **record}, sort_keys=True)})
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
        if record.get("format") != FORMAT:
            raise RunFolderError(f"{path} is of format {record.get('format')!r}; this version reads format {FORMAT}.")
        return arrays, record

    # ------------------------------------------------------------------------------------------------- disk

    @contextmanager
    def _whole(self, name: str) -> Iterator[Path]:
        """Hand out a temporary path and put it in place once it is written."""
        temporary = self.path / f".{name}.{os.getpid()}"
        with self._disk(name):
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                yield temporary
                temporary.replace(self.path / name)
            finally:
                temporary.unlink(missing_ok=True)

    @contextmanager
    def _disk(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            remedy = "Free some space" if full else "Make the folder writable"
            raise RunFolderError(
                f"{self.path / name} cannot be written: {error.strerror}. {remedy} and repeat the command: "
                "it goes on from the last checkpoint."
            ) from error
