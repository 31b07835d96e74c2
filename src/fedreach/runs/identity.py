"""Which run a folder holds, and whether it is finished; quick to ask, as torch is not needed."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedreach import registry
from fedreach.errors import ConfigError, RunFolderError
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


class OtherExperimentError(RunFolderError):
    """A folder holds the run of another experiment."""


def finished(folder: RunFolder, identity: Mapping[str, Any]) -> Result | None:
    """Return the result of a finished run, or None where there is something to do.

    The identity is of what shall be run, see `fedreach.config.user_code.identity`.

    Raises:
        OtherExperimentError: If the folder holds another run.
        RunFolderError: If the folder cannot be read, or rows of a finished run are missing.
    """
    stored = folder.read(RunRecord)
    if stored is None:
        return None
    before, after = _flat({key: value for key, value in vars(stored).items() if key in identity}), _flat(identity)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    changed = [key for key in changed if key[len("config.") :] not in HARMLESS]
    if changed:
        shown = "; ".join(
            f"{key}: {_short(before.get(key))} there, {_short(after.get(key))} now" for key in changed[:5]
        )
        more = f" (and {len(changed) - 5} more)" if len(changed) > 5 else ""
        raise OtherExperimentError(
            f"{folder.path} holds another experiment. {shown}{more}. Choose another folder with --out, "
            "or move this one away."
        )
    result = folder.read(Result)
    if result is None or result.status != "finished":
        return None
    folder.check_lengths(result.lengths or {})
    return result


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
