"""A run folder: records and rows of `fedreach.runs.schema`, a checkpoint that matches them, and models.

```
engine.json            which engine trains, where the experiment leaves that to a trial
checkpoint.safetensors all that is needed to go on, with
memory.rows            what clients keep between rounds, where the solver has them; gone when the run is finished,
selection.rows         as is a table of updates of 16 MiB or more; a smaller one stands in the checkpoint
last.safetensors, best.safetensors     models by parameter name
serving.safetensors    the fitted serving rule, where there is one: of the last model under ``last/``, of the best under
                       ``best/``; of several models, one a cluster, ``last/0/`` and so on
```
Rows and checkpoint cannot disagree: the checkpoint holds the length of each file at its round, and resuming cuts
the files back to that length before the rounds after it are run again. Timing differs from run to run and so stays
out of the checkpoint: it is cut back to the round.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedreach.arrays import AnyArray
from fedreach.errors import RunFolderError
from fedreach.runs.schema import FORMAT, ClientLine, Record, RoundRow, Timing
from fedreach.storage.files import Folder, digest_of

JSON_LINE = json.JSONEncoder(allow_nan=False)  # `json.dumps` makes one for every row
SERVING = "serving.safetensors"
KEY = "fedreach"  # the one metadata key: safetensors writes several in an order that changes from run to run
R = TypeVar("R", bound=Record)


class RunFolder(Folder):
    """Reads and writes one run folder."""

    # ---------------------------------------------------------------------------------------------- records

    def read(self, shape: type[R]) -> R | None:
        """Return the record of this shape; None where the folder has none."""
        content = self.read_json(shape.FILE)
        return None if content is None else shape.of_json(content, str(self.path / shape.FILE))

    def write(self, record: Record) -> None:
        """Write a record, whole or not at all."""
        self.write_json(record.FILE, record.to_json())

    def append(self, *records: Record) -> None:
        """Append records to the rows of their kinds, file by file."""
        for name in dict.fromkeys(record.FILE for record in records):
            self.append_json(name, *(record.to_json() for record in records if name == record.FILE))

    def records(self, shape: type[R]) -> Iterator[R]:
        """Yield the rows of this shape one by one, for those who need not see them all."""
        for number, line in enumerate(self.lines(shape.FILE), 1):
            yield shape.of_json(json.loads(line), f"{self.path / shape.FILE}, line {number}")

    # ------------------------------------------------------------------------------------------------- JSON

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return a JSON file of the folder, or None where there is none."""
        path = self.plain(name)
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
        return content  # type: ignore[no-any-return]  # a file of this name holds a JSON object

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file, whole or not at all."""
        text = _text(content)
        with self.whole(name) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def agree_on(self, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Write a JSON file unless there is one; return what stands there, the same for all who ask."""
        self.write_once(name, _text(content))
        return self.read_json(name) or dict(content)

    def append_json(self, name: str, *rows: Mapping[str, Any]) -> None:
        """Append rows; a number that is not finite becomes null, as JSON has no other word for it."""
        self.append_lines(name, map(json_line, rows))

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a file; none where there is no file. A last row that was cut off is left out."""
        return [json.loads(line) for line in self.lines(name)]

    # ------------------------------------------------------------------------------- in step with the checkpoint

    def lengths(self) -> dict[str, int]:
        """Return the length in bytes of each file of rows that a checkpoint is to match."""
        return {shape.FILE: self.length(shape.FILE) for shape in (RoundRow, ClientLine)}

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
        self.close()  # that of timing is replaced
        self.check_lengths(lengths)
        for name, length in lengths.items():
            if self.lengths()[name] > length:
                os.truncate(self.plain(name), length)
        timing = self.plain(Timing.FILE)
        if timing.exists():
            kept = [line for line in timing.read_text(encoding="utf-8").splitlines() if _round(line) <= round_]
            with self.whole(Timing.FILE) as temporary:
                temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")

    # ---------------------------------------------------------------------------------------------- tensors

    def write_tensors(self, name: str, tensors: Mapping[str, AnyArray], record: Mapping[str, Any]) -> None:
        """Write arrays and a JSON record as one safetensors file, whole or not at all."""
        from safetensors.numpy import save

        plain = {key: np.asarray(value, order="C") for key, value in tensors.items()}
        full = {"format": FORMAT, **record}
        content = save(plain, {KEY: json.dumps({**full, "sha256": digest_of(plain, full)}, sort_keys=True)})
        with self.whole(name) as temporary:
            temporary.write_bytes(content)

    def read_tensors(self, name: str) -> tuple[dict[str, AnyArray], dict[str, Any]] | None:
        """Return the arrays and the record of a safetensors file, or None where there is none."""
        from safetensors import SafetensorError, safe_open

        path = self.plain(name)
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


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps({"format": FORMAT, **content}, indent=1, allow_nan=False) + "\n"


def json_line(row: Mapping[str, Any]) -> str:
    """Return a row as one line; a number that is not finite is null."""
    try:
        return JSON_LINE.encode(row)
    except (TypeError, ValueError):  # seldom: going through every value takes as long as writing the row
        return JSON_LINE.encode(_finite(row))


def _check_format(path: Path, version: Any) -> None:
    if version != FORMAT:
        raise RunFolderError(
            f"{path} is of format {version!r}, and this version of FedReach reads format {FORMAT}. "
            "Use the version that wrote it, or another folder."
        )


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _round(line: str) -> float:
    """Return the round of a row; infinity for a row that was cut off as it was written."""
    try:
        return int(json.loads(line)["round"])
    except (ValueError, KeyError, TypeError):
        return math.inf
