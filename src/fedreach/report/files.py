"""Read the files of a run folder and say plainly which one cannot be used, and why."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedreach.errors import RunFolderError

FORMAT = 2


def read_text(path: Path) -> str:
    """Return a file's text.

    Raises:
        RunFolderError: If the file is missing, cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RunFolderError(f"{path} is missing. Copy the run folder whole, or run the same command again.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}. Check its permissions, or copy it again.") from error


def read_object(path: Path, *, versioned: bool = False) -> dict[str, Any]:
    """Return the JSON object in `path`; with `versioned`, check that it is of format 1.

    Raises:
        RunFolderError: If the file is missing, is not a JSON object, or is of another format.
    """
    try:
        value = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise RunFolderError(
            f"{path} is not JSON ({error}). It was cut or edited: run the same command again."
        ) from error
    if not isinstance(value, dict):
        raise RunFolderError(f"{path} must hold a JSON object; got {type(value).__name__}. Run the same command again.")
    if versioned and value.get("format") != FORMAT:
        raise RunFolderError(
            f"{path} must be of format {FORMAT}; got format {value.get('format')!r}. "
            "Report it with the FedReach version that wrote it (key `fedreach` in run.json)."
        )
    return value


def read_lines(path: Path, *, whole: bool = True) -> list[dict[str, Any]]:
    """Return one object per line of a JSON Lines file.

    Args:
        path: The file.
        whole: Whether the run has ended. If not, a missing file is empty, and a last line without its line
            end is left out: it is still being written.

    Raises:
        RunFolderError: If a line is not a JSON object, or the file of an ended run is missing.
    """
    text = _text(path, whole=whole)
    body = text.strip()
    try:
        # One call for all lines is several times faster; only when it fails is the guilty line looked for.
        rows: list[dict[str, Any]] = json.loads(f"[{body.replace(chr(10), ',')}]")
        if len(rows) == body.count("\n") + 1 and all(isinstance(row, dict) for row in rows):
            return rows
    except json.JSONDecodeError:
        pass
    return [read_line(path, number, line) for number, line in enumerate(_lines(text), 1)]


def list_lines(path: Path, *, whole: bool) -> list[str]:
    """Return the lines of a JSON Lines file, unread; `whole` as in `read_lines`."""
    return _lines(_text(path, whole=whole))


def _text(path: Path, *, whole: bool) -> str:
    if not whole and not path.exists():
        return ""
    text = read_text(path)
    return text if whole else text[: text.rfind("\n") + 1]


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


@contextmanager
def no_collection() -> Iterator[None]:
    """Hold off Python's search for cycles: it would walk through all rows and figures, again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def read_line(path: Path, number: int, line: str) -> dict[str, Any]:
    """Return the object on line `number` of `path`."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise RunFolderError(
            f"{path}, line {number} is not JSON ({error.msg}). It was cut or edited: run the same command again."
        ) from error
    if not isinstance(value, dict):
        raise RunFolderError(f"{path}, line {number} must be a JSON object; got {type(value).__name__}.")
    return value


def field(values: Mapping[str, Any], key: str, kind: type | tuple[type, ...], path: Path) -> Any:
    """Return ``values[key]``, which must be there and of the type `kind`.

    Raises:
        RunFolderError: If the key is missing or its value is of another type.
    """
    if key not in values:
        raise RunFolderError(f"{path} has no key {key!r}. It was edited or cut: run the same command again.")
    value = values[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        kinds: Sequence[type] = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
        raise RunFolderError(
            f"{path}: {key!r} must be {wanted}; got {value!r:.60}. Restore the file as it was written."
        )
    return value
