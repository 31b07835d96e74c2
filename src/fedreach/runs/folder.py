"""The folder of a run: its records and files."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedreach._util import files
from fedreach._util.arrays import AnyArray
from fedreach._util.errors import RunFolderError
from fedreach._util.files import (
    KEY,
    PUT_BACK,
    FileDigest,
    Folder,
    altered_error,
    check_digest,
    check_same_run,
    digest_of,
    missing,
    record_of_tensors,
    refuse_lost_rounds,
    sealed_text,
    text_of,
    with_digest,
)
from fedreach.runs.schema import (
    CHECKPOINT,
    COMMON_KEYS,
    FORMAT,
    AdaptationRecord,
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
LAST, BEST, REFIT = "last.safetensors", "best.safetensors", "refit.safetensors"
CONSTANTS = "constants.safetensors"
VERIFIED_FILES = (LAST, BEST, REFIT, CONSTANTS, ADAPTATION_FILE, AdaptationRecord.FILE, BaselinesRecord.FILE)
WAITING = (RunRecord.FILE, FederationRecord.FILE, *VERIFIED_FILES)
"""Files to which only a checkpoint or the result refers; these are written after a sync of all other files."""
R = TypeVar("R", bound=Record)


class RunFolder(Folder):
    """Reads and writes one run folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._run: Mapping[str, Any] | None = None

    @property
    def run(self) -> str:
        """Digest of the run in this folder, which its files name; empty without a run."""
        if self._run is None:
            self._run = self.read_json(RunRecord.FILE)
        return "" if self._run is None else str(self._run.get("id", ""))

    def remove(self, *names: str) -> None:
        """Remove files if they exist."""
        super().remove(*names)
        self._run = None  # it may be one of them

    # ---------------------------------------------------------------------------------------------- records

    def read(self, shape: type[R]) -> R | None:
        """Return the record of this class; None if the folder has none."""
        content, path = self.read_json(shape.FILE), self.path / shape.FILE
        if content is None:
            return None
        record = shape.of_json(content, str(path))
        if isinstance(record, FederationRecord) and self.run and self._run is not None:
            check_same_run(path, content["seal"], str(self._run.get("federation")))
        elif whose := content.get("run"):  # missing if a run failed before it was written
            check_same_run(path, whose, self.run)
        self._check_matches_run(shape.FILE, content["seal"])
        return record

    def required(self, shape: type[R]) -> R:
        """Return the record of this class, see `read`; raise a RunFolderError if the folder has none."""
        record = self.read(shape)
        if record is None:
            raise missing(self.path / shape.FILE)
        return record

    def write(self, record: Record) -> str:
        """Write a record, whole or not at all, and return its digest."""
        if isinstance(record, RunRecord):
            self._run = None
        return self.write_json(record.FILE, record.to_json())

    def append(self, *records: Record) -> None:
        """Append records to the files of their classes."""
        for name in dict.fromkeys(record.FILE for record in records):
            self.append_json(name, *(record.to_json() for record in records if name == record.FILE))

    def records(self, shape: type[R]) -> Iterator[R]:
        """Yield the verified rows of this class one by one."""
        for number, line in enumerate(self.kept_text(shape.FILE).splitlines(), 1):
            yield shape.of_json(json.loads(line), f"{self.path / shape.FILE}, line {number}")

    # ------------------------------------------------------------------------------------------------- JSON

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return a JSON file of the folder, or None if it is missing."""
        path = self.path / name
        text = text_of(path)
        if text is None:
            return None
        content = json_object(text, str(path))
        _check_format(path, content.get("format"))
        check_digest(path, content)
        return content

    def write_json(self, name: str, content: Mapping[str, Any]) -> str:
        """Write a JSON file, whole or not at all, and return its digest."""
        full = _with_format(name, content)
        with self.whole(name, waits=name in WAITING) as temporary:
            files.put(temporary, _text(full).encode())
        return str(full["seal"])

    def agree_on(self, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Write a JSON file unless it exists; return its content, the same for all processes."""
        self.write_once(name, _text(_with_format(name, content)))
        return self.read_json(name) or dict(content)

    def append_json(self, name: str, *rows: Mapping[str, Any]) -> None:
        """Append rows; a number that is not finite becomes null, because JSON cannot represent it."""
        self.append_lines(name, map(json_line, rows))

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a file without verification, except an incomplete last one; empty without a file."""
        return [json.loads(line) for line in self.lines(name)]

    # ------------------------------------------------------------------------------- in step with the checkpoint

    def kept_rows(self, name: str) -> list[dict[str, Any]]:
        """Return the verified rows of a file: all rows of a finished run, else those up to its checkpoint.

        Raises:
            RunFolderError: If they were altered.
        """
        return [json.loads(line) for line in self.kept_text(name).splitlines()]

    def kept_text(self, name: str) -> str:
        """Return the text of these rows, see `kept_rows`."""
        seal = self.vouched().get(name)
        return "" if seal is None else sealed_text(self.path / name, seal)

    def vouched(self) -> Mapping[str, FileDigest]:
        """Return the verified part of each file of rows, by the result of a finished run, else by its checkpoint."""
        return read_seals(self._end_record().get("seals") or {})

    def _end_record(self) -> Mapping[str, Any]:
        """Return the record that verifies the other files: the result of a finished run, else its checkpoint."""
        result = self.read(Result)
        if result is not None and result.seals is not None:
            return vars(result)
        path = self.plain(CHECKPOINT)
        if not path.exists():
            refuse_lost_rounds(path, self.path / RoundRow.FILE)
            return {}
        record = record_of_tensors(path)
        check_same_run(path, record.get("run"), self.run)
        return record

    def _check_matches_run(self, name: str, digest: str) -> None:
        """Reject a model or an adapter of another run or round, with a RunFolderError."""
        if name not in VERIFIED_FILES:
            return
        expected = (self._end_record().get("digests") or {}).get(name, digest)
        if digest != expected:
            raise RunFolderError(
                f"{self.path / name} is of another round or run than the {CHECKPOINT} or {Result.FILE} beside it. Put "
                "it back, or run the same command again."
            )

    def digests(self) -> dict[str, str]:
        """Return the digests of the models and adapters."""
        digests = {}
        for name in VERIFIED_FILES:
            if (path := self.plain(name)).exists():
                record = self.read_json(name) if name.endswith(".json") else record_of_tensors(path)
                digests[name] = str((record or {})["seal"])
        return digests

    def seals(self, *more_shapes: type[Record]) -> dict[str, FileDigest]:
        """Return the length and digest of each file of rows that a checkpoint matches, and of `more_shapes`."""
        shapes: tuple[type[Record], ...] = (RoundRow, ClientLine, *more_shapes)
        return {shape.FILE: self.seal(shape.FILE) for shape in shapes}

    def check(self, seals: Mapping[str, FileDigest]) -> None:
        """Reject files of rows whose verified part was altered, with a RunFolderError."""
        for name, seal in seals.items():
            sealed_text(self.path / name, seal)

    def rewind(self, seals: Mapping[str, FileDigest], round_: int) -> None:
        """Cut the files of rows back to where they were after a round."""
        self.close()
        self.check(seals)
        for name, seal in seals.items():
            self.cut(name, seal.size)
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
                row = Timing.of_json(json.loads(line), "")
            except (ValueError, AttributeError, RecursionError, RunFolderError):
                row = Timing(round=-1)
            if row.round != number or row != row.checked(self.run):
                raise altered_error(self.path / Timing.FILE)
            rows.append(row)
        return rows

    # ---------------------------------------------------------------------------------------------- tensors

    def write_tensors(self, name: str, tensors: Mapping[str, AnyArray], record: Mapping[str, Any]) -> str:
        """Write arrays and a JSON record as one safetensors file, whole or not at all, and return its digest."""
        from safetensors.numpy import save

        plain = {key: np.asarray(value, order="C") for key, value in tensors.items()}
        payload = {key: value for key, value in record.items() if key not in COMMON_KEYS}
        full = _with_format(name, {**payload, "arrays": digest_of(plain, {})})
        content = save(plain, {KEY: json.dumps(full, sort_keys=True)})
        with self.whole(name, waits=name in WAITING) as temporary:
            files.put(temporary, content)
        return str(full["seal"])

    def read_tensors(self, name: str) -> tuple[dict[str, AnyArray], dict[str, Any]] | None:
        """Return the arrays and the record of a safetensors file of this run, or None if it is missing."""
        stored = self.stored_tensors(name)
        if stored is not None:
            if name == CHECKPOINT:
                check_same_run(self.path / name, stored[1]["run"], self.run)
            self._check_matches_run(name, stored[1]["seal"])
        return stored

    def stored_tensors(self, name: str) -> tuple[dict[str, AnyArray], dict[str, Any]] | None:
        """Return the arrays and the record of a safetensors file of any run, see `read_tensors`."""
        from safetensors import SafetensorError, safe_open

        path = self.plain(name)
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="numpy") as file:
                record = json.loads(file.metadata()[KEY])
                arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
            version = record.get("format")
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise RunFolderError(
                f"{path} cannot be read: {error}. It is not skipped, as that would silently start over. {PUT_BACK}"
            ) from error
        _check_format(path, version)
        check_digest(path, record)
        if record["arrays"] != digest_of(arrays, {}):
            raise altered_error(path)
        return arrays, record


def read_seals(stored: Mapping[str, Any]) -> dict[str, FileDigest]:
    """Return seals from their JSON form."""
    return {name: FileDigest(*seal) for name, seal in stored.items()}


def _with_format(name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    return with_digest(name, {"format": FORMAT, **content})


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def json_line(row: Mapping[str, Any]) -> str:
    """Return a row as one line; a number that is not finite is null."""
    try:
        return JSON_LINE.encode(row)
    except (TypeError, ValueError):  # rare, because checking every value takes as long as writing the row
        return JSON_LINE.encode(_finite(row))


def json_object(text: str, where: str) -> dict[str, Any]:
    """Return the JSON object in a text; otherwise raise a RunFolderError that names the place `where`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{where} is not JSON ({error}). It was cut or edited. {PUT_BACK}") from error
    if not isinstance(value, dict):
        raise RunFolderError(f"{where} must hold a JSON object; got {type(value).__name__}. {PUT_BACK}")
    return value


def _check_format(path: Path, version: Any) -> None:
    if version != FORMAT:
        raise RunFolderError(
            f"{path} is of format {version!r}, and this version of FedReach reads format {FORMAT}. "
            "Use the version that wrote it (key `fedreach` in run.json), or another folder."
        )


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
