"""Which run a folder holds, and whether it is finished; quick to ask, as torch is not needed."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedreach import registry
from fedreach.errors import ANOTHER_FOLDER, ConfigError, RunFolderError
from fedreach.registry import BY_CONTENT
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import ComparisonRecord, Result, RunRecord

HARMLESS = {
    "name",
    "seeds",
    "target_accuracy",
    "run.checkpoint_seconds",
    "engine.threads",
    "data.folder",
    "data.download",
}
"""Options that change no number of a run: a folder is gone on with although they differ."""
ENGINE = "engine.json"


class OtherExperimentError(RunFolderError):
    """A folder holds the run of another experiment."""


def finished(folder: RunFolder, identity: Mapping[str, Any]) -> Result | None:
    """Return the result of a finished run, or None where there is something to do.

    The identity is of what shall be run, see `fedreach.config.user_code.identity`.

    Raises:
        OtherExperimentError: If the folder holds another run, but for one that failed and whose code was changed since.
        RunFolderError: If the folder cannot be read, or rows of a finished run are missing.
    """
    stored = folder.read(RunRecord)
    if stored is None:
        return None
    changed = _changed(stored, identity)
    result = folder.read(Result)
    if changed and not _mended(changed, result):
        shown = "; ".join(f"{key}: {_short(before)} there, {_short(after)} now" for key, before, after in changed[:5])
        more = f" (and {len(changed) - 5} more)" if len(changed) > 5 else ""
        raise OtherExperimentError(
            f"{folder.path} holds another experiment. {shown}{more}. Choose {ANOTHER_FOLDER}, or move this one away."
        )
    if changed or result is None or result.status != "finished":
        return None
    folder.check_lengths(result.lengths or {})
    return result


def forget_failed(folder: RunFolder, identity: Mapping[str, Any]) -> None:
    """Empty the folder of a run that failed by code that was changed since: its rounds are those of the old code."""
    stored = folder.read(RunRecord)
    if stored is not None and _mended(_changed(stored, identity), folder.read(Result)):
        for file in folder.path.iterdir():
            if file.is_file() and not file.name.startswith(".") and file.name != ENGINE:
                file.unlink()


def _changed(stored: RunRecord, identity: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return what differs and matters: the key, what stands there, and what is asked for now."""
    before = _flat({key: value for key, value in vars(stored).items() if key in identity})
    after = _flat(identity)
    keys = [key for key in sorted(before.keys() | after.keys()) if key[len("config.") :] not in HARMLESS]
    found = [(key, before.get(key), after.get(key)) for key in keys]
    return [(key, there, now) for key, there, now in found if _bare(there) != _bare(now)]


def _mended(changed: Sequence[tuple[str, Any, Any]], result: Result | None) -> bool:
    """Say whether a run failed, and nothing but its own code was changed since."""
    if not changed or result is None or result.status != "failed":
        return False
    return all(key.startswith("code.") or (_is_code(there) and _is_code(now)) for key, there, now in changed)


def _is_code(value: Any) -> bool:
    return isinstance(value, str) and BY_CONTENT.search(value) is not None and ".pkl:" in value


def _bare(value: Any) -> Any:
    """Return a value, without the folder where it is a file that is named by what is in it."""
    found = BY_CONTENT.search(value) if isinstance(value, str) else None
    return value if found is None else found[0]


def run_of(folder: RunFolder) -> RunRecord:
    """Return what was run in a folder.

    Raises:
        RunFolderError: If it holds no run; of a comparison one of its runs is named.
    """
    run = folder.read(RunRecord)
    if run is not None:
        return run
    comparison = folder.read(ComparisonRecord)
    if comparison is None:
        raise RunFolderError(f"{folder.path} is no folder of a run: it holds no {RunRecord.FILE}.")
    first = next(folder for folders in comparison.runs.values() for folder in folders.values())
    raise RunFolderError(f"{folder.path} holds a comparison: name one of its runs, such as {folder.path / first}.")


def check_code(run: RunRecord, name: str, base: Path) -> None:
    """Refuse the user's own code where it is not what the run was made with.

    Args:
        run: The run.
        name: Of the code in the experiment, such as ``my.py:Net``.
        base: Folder that it is relative to.

    Raises:
        ConfigError: If there is no such file.
        RunFolderError: If it was changed.
    """
    file, noted = registry.code_file(name, base), run.code.get(name)
    if noted is None or file is None:
        return
    if not file.is_file():
        raise ConfigError(
            f"The run was made with {name}, and there is no file {file}. Pass `base`, the folder that {name} is "
            "relative to: that of the experiment's TOML file."
        )
    if sha256(file.read_bytes()).hexdigest() != noted:
        raise RunFolderError(
            f"{file} was changed after the run that was made with {name}. Put it back as it was, or run again."
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    result: dict[str, Any] = {}
    for key, inner in value.items():
        result |= _flat(inner, f"{prefix}.{key}" if prefix else key)
    return result
