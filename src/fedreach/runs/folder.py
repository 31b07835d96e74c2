"""The folder of a run: its records and files."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedreach._util.arrays import AnyArray
from fedreach._util.errors import RunFolderError
from fedreach._util.files import (
    KEY,
    PUT_BACK,
    FileDigest,
    Folder,
    altered_error,
    check_signature,
    content_of,
    digest_of,
    missing,
    signed,
)
from fedreach.runs.schema import (
    CHECKPOINT,
    FORMAT,
    AdaptationRecord,
    AdaptedLine,
    BaselinesRecord,
    ClientLine,
    FederationRecord,
    Record,
    Result,
    RoundRow,
    RunRecord,
    Timing,
)

JSON_LINE = json.JSONEncoder(allow_nan=False)  # `json.dumps` would create one per row
ADAPTATION_FILE = "adaptation.safetensors"
PRIVATE_FIT = "private_fit.safetensors"  # of an adaptation rule on Flower, which an interrupted run does not repeat
LAST, BEST, REFIT = "last.safetensors", "best.safetensors", "refit.safetensors"
CONSTANTS = "constants.safetensors"
ROW_FILES = (RoundRow.FILE, ClientLine.FILE)
RESUMED = (*ROW_FILES, FederationRecord.FILE, CONSTANTS, BEST)
"""The files that a checkpoint lists, in addition to tables of rows."""
LISTED = (*RESUMED, LAST, REFIT, AdaptationRecord.FILE, ADAPTATION_FILE, AdaptedLine.FILE, BaselinesRecord.FILE)
"""The files that the result lists. `run.json` is not listed, because a run that resumes elsewhere writes it again."""
SIGNED = (CHECKPOINT, REFIT, PRIVATE_FIT)
"""Files of arrays that may be read before a manifest lists them; like records, they end with their own digest."""
R = TypeVar("R", bound=Record)


class RunFolder(Folder):
    """A run folder, with methods to read and write its files."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._run: Mapping[str, Any] | None = None

    @property
    def run(self) -> str:
        """Digest of the run in this folder, which its files contain; empty without a run."""
        if self._run is None:
            self._run = self.read_json(RunRecord.FILE)
        return "" if self._run is None else str(self._run.get("id", ""))

    def remove(self, *names: str) -> None:
        """Remove files if they exist."""
        super().remove(*names)
        self._run = None  # it may be one of them

    # ---------------------------------------------------------------------------------------------- records

    def read(self, shape: type[R]) -> R | None:
        """Return the record of this class; None if the folder contains no such record."""
        content = self.read_json(shape.FILE)
        return None if content is None else shape.of_json(content)

    def required(self, shape: type[R]) -> R:
        """Return the record of this class (see `read`); raise RunFolderError if the folder contains no such record."""
        record = self.read(shape)
        if record is None:
            raise missing(self.path / shape.FILE)
        return record

    def write(self, record: Record) -> None:
        """Write a record atomically."""
        self.write_json(record.FILE, record.to_json())

    def append(self, *records: Record) -> None:
        """Append records to the files of their classes."""
        for name in dict.fromkeys(record.FILE for record in records):
            self.append_json(name, *(record.to_json() for record in records if name == record.FILE))

    def records(self, shape: type[R]) -> Iterator[R]:
        """Yield the listed rows of this class one by one."""
        yield from map(shape.of_json, self.kept_rows(shape.FILE))

    # ------------------------------------------------------------------------------------------------- JSON

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return a JSON file of the folder, or None if it is missing."""
        path = self.path / name
        text = content_of(path)
        if text is None:
            return None
        content = json_object(text, str(path))
        _check_format(path, content.get("format"))
        check_signature(path, content)
        if name in LISTED and FileDigest.of(text) != (self._listed(name) or FileDigest.of(text)):
            raise altered_error(path)
        return content

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file atomically."""
        self.write_whole(name, _json(name, content), listed=name in LISTED or name == RunRecord.FILE)
        self._run = None  # it may be this file

    def agree_on(self, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Write a JSON file unless it exists, and return its content, which is the same for all processes."""
        self.write_whole(name, _json(name, content), once=True)
        return self.read_json(name) or dict(content)

    def append_json(self, name: str, *rows: Mapping[str, Any]) -> None:
        """Append rows; a number that is not finite becomes null, because JSON cannot represent it."""
        self.append_lines(name, map(json_line, rows))

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a file without verification and without an incomplete last row; empty without a file."""
        return [json.loads(line) for line in self.lines(name)]

    # --------------------------------------------------------------------------------------------- the manifest

    def manifest(self) -> dict[str, FileDigest]:
        """Return the size and digest of each file, from the result of a finished run, else from the checkpoint."""
        record, path = self.read_json(Result.FILE), self.path / Result.FILE
        if record is None or "files" not in record:
            path = self.plain(CHECKPOINT)
            if not path.exists():
                self.refuse_lost_rounds()
                return {}
            record = self.stored_record(CHECKPOINT)
        if record["run"] != self.run:
            raise RunFolderError(f"{path} and {RunRecord.FILE} in the same folder belong to different runs. {PUT_BACK}")
        return {name: FileDigest(*entry) for name, entry in record["files"].items()}

    def list_files(self, names: Iterable[str]) -> dict[str, FileDigest]:
        """Return the manifest of the current files; files of rows are listed even if they are missing."""
        return {name: self.digest(name) for name in names if name in ROW_FILES or self.plain(name).exists()}

    def _listed(self, name: str) -> FileDigest | None:
        return self._written.get(name) or self.manifest().get(name)

    def kept_rows(self, name: str) -> list[dict[str, Any]]:
        """Return the listed rows of a file: all rows of a finished run, else the rows up to its checkpoint.

        Raises:
            RunFolderError: If the rows were altered.
        """
        return [json.loads(line) for line in self.kept_text(name).splitlines()]

    def kept_text(self, name: str) -> str:
        """Return the text of the listed rows (see `kept_rows`)."""
        listed = self.manifest().get(name)
        return "" if listed is None else (content_of(self.path / name, listed) or b"").decode()

    def check_rows(self, manifest: Mapping[str, FileDigest]) -> None:
        """Raise RunFolderError if the listed part of a file of rows was altered."""
        for name, listed in manifest.items():
            if name.endswith(".jsonl"):
                content_of(self.path / name, listed)

    def refuse_lost_rounds(self) -> None:
        """Reject rounds without a checkpoint; a run with one row stopped before the first checkpoint."""
        if sum(1 for _ in self.lines(RoundRow.FILE)) > 1:
            raise missing(self.path / CHECKPOINT)

    def rewind(self, manifest: Mapping[str, FileDigest], round_: int) -> None:
        """Truncate the files of rows to their length after a round."""
        self.close()
        self.check_rows(manifest)
        for name, listed in manifest.items():
            if name.endswith(".jsonl"):
                self.cut(name, listed.size)
        self.cut(Timing.FILE, sum(len(json_line(row.to_json())) + 1 for row in self.timing(round_)))

    def timing(self, round_: int) -> list[Timing]:
        """Return the timing of the rounds up to this one.

        Raises:
            RunFolderError: If a row is missing or was altered.
        """
        rows, lines = [], self.lines(Timing.FILE)
        for number in range(round_ + 1):
            line = next(lines, "")
            try:
                row = Timing.of_json(json.loads(line))
            except (ValueError, TypeError, KeyError, RecursionError):
                row = Timing(round=-1)
            if row.round != number or row != row.checked(self.run):
                raise altered_error(self.path / Timing.FILE)
            rows.append(row)
        return rows

    # ---------------------------------------------------------------------------------------------- tensors

    def write_tensors(self, name: str, tensors: Mapping[str, AnyArray], record: Mapping[str, Any]) -> None:
        """Write arrays and a JSON record atomically as one safetensors file."""
        from safetensors.numpy import save

        plain = {key: np.asarray(value, order="C") for key, value in tensors.items()}
        full = {"format": FORMAT, **record}
        if name in SIGNED:
            full = signed(name, {**full, "arrays": digest_of(plain, {})})
        content = save(plain, {KEY: json.dumps(full, sort_keys=True)})
        self.write_whole(name, content, listed=name in LISTED)

    def read_tensors(self, name: str) -> tuple[dict[str, AnyArray], dict[str, Any]] | None:
        """Return the arrays and the record of a safetensors file of this run, or None if it is missing."""
        path, listed = self.plain(name), self._listed(name)
        if listed is not None:
            content_of(path, listed)
        elif name not in SIGNED or not path.exists():
            return None
        arrays, record = _load(path)
        if name in SIGNED:
            check_signature(path, {**record, "arrays": digest_of(arrays, {})})
        return arrays, record

    def stored_record(self, name: str) -> dict[str, Any]:
        """Return the record of a safetensors file without reading the arrays; no manifest needs to list the file."""
        record = _load(self.plain(name), arrays=False)[1]
        if name in SIGNED:
            check_signature(self.path / name, record)
        return record


def _load(path: Path, *, arrays: bool = True) -> tuple[dict[str, AnyArray], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            record = json.loads(file.metadata()[KEY])
            loaded = {key: file.get_tensor(key) for key in (file.keys() if arrays else ())}
        version = record.get("format")
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}. {PUT_BACK}") from error
    _check_format(path, version)
    return loaded, record


def _json(name: str, content: Mapping[str, Any]) -> bytes:
    full = signed(name, {"format": FORMAT, **content})
    return f"{json.dumps(full, indent=1, allow_nan=False)}\n".encode()


def json_line(row: Mapping[str, Any]) -> str:
    """Return a row as one line; a number that is not finite is null."""
    try:
        return JSON_LINE.encode(row)
    except (TypeError, ValueError):  # rare, because checking every value takes as long as writing the row
        return JSON_LINE.encode(_finite(row))


def json_object(text: str | bytes, where: str) -> dict[str, Any]:
    """Return the JSON object in a text; otherwise raise a RunFolderError that names the file `where`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunFolderError(
            f"{where} is not valid JSON ({error}). The file was truncated or edited. {PUT_BACK}"
        ) from error
    if not isinstance(value, dict):
        raise RunFolderError(f"{where} must contain a JSON object; got {type(value).__name__}. {PUT_BACK}")
    return value


def _check_format(path: Path, version: Any) -> None:
    if version != FORMAT:
        raise RunFolderError(
            f"{path} must have format {FORMAT} to be read by this version of FedReach; got format {version!r}. Use the "
            "version that wrote the file (key `fedreach` in run.json), or another folder."
        )


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
