"""Identity and status of the run in a folder; the module loads fast, because it does not import torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedreach._util import registry
from fedreach._util.code import digest_of_code, name_in
from fedreach._util.errors import ANOTHER_FOLDER, ConfigError, RunFolderError, nearest
from fedreach._util.files import below
from fedreach._util.registry import BY_CONTENT
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import HARMLESS_OPTIONS, ComparisonRecord, Result, RunRecord

ROUNDS = "config.rounds"
ENGINE = "engine.json"
DATA = "data.json"
"""Files with which the runs of a comparison agree on the engine and on the data for all seeds."""


class OtherExperimentError(RunFolderError):
    """A folder contains the run of another experiment."""


class OtherFilesError(OtherExperimentError):
    """A folder contains a run with other versions of the user's files."""


def finished_result(folder: RunFolder, identity: Mapping[str, Any]) -> Result | None:
    """Return the result of a finished run, or None if the run is not finished.

    `identity` is the identity of the requested run (see `fedreach.experiment.components.identity`).

    Raises:
        OtherExperimentError: If the folder contains another run. A failed run with older code or data of the user is
            allowed.
        RunFolderError: If the folder cannot be read, or rows of a finished run are missing.
    """
    stored = folder.read(RunRecord)
    if stored is None:
        return None
    changed = _find_changes(stored, identity)
    result = folder.read(Result)
    if changed and not _failed_by_user_files(changed, result):
        raise _refusal(folder, changed)
    if changed or result is None or result.status != "finished":
        return None
    folder.check_rows(folder.manifest())
    return result


def _refusal(folder: RunFolder, changed: Sequence[tuple[str, Any, Any]]) -> OtherExperimentError:
    options = [change for change in changed if not _is_file(change[0])]
    if not options:
        return OtherFilesError(
            f"{folder.path} was created with other versions of your files: since then, {_list_files(changed)}. Restore "
            f"the old versions, or choose {ANOTHER_FOLDER}."
        )
    differences = "; ".join(f"{key}: stored {before!r:.60}, now {after!r:.60}" for key, before, after in options[:5])
    more = f" (and {len(options) - 5} more)" if len(options) > 5 else ""
    hint = ""
    if [key for key, _, _ in changed] == [ROUNDS] and changed[0][1] < changed[0][2]:
        hint = f" To extend the run to {changed[0][2]} rounds, use `fedreach extend`."
    return OtherExperimentError(
        f"{folder.path} has results of another experiment. {differences}{more}. Choose {ANOTHER_FOLDER}, or move this "
        f"folder to another place.{hint}"
    )


def _is_file(key: str) -> bool:
    return key.startswith(("code.", "data."))


def _list_files(changed: Sequence[tuple[str, Any, Any]]) -> str:
    events = {key.partition(".")[2]: _describe_change(before, after) for key, before, after in changed}
    return ", ".join(f"{name} {what}" for name, what in events.items())


def _describe_change(before: str | None, after: str | None) -> str:
    if before is None or after is None:
        return "was added" if before is None else "was removed"
    return " ".join(["was changed", *after.split(" ", 1)[1:]])  # with the reason why the whole file counts, if it does


def forget_failed(folder: RunFolder, identity: Mapping[str, Any]) -> None:
    """Empty the folder of a failed run if the user changed its code or data, because its rounds are outdated."""
    stored = folder.read(RunRecord)
    if stored is not None and _failed_by_user_files(_find_changes(stored, identity), folder.read(Result)):
        for file in folder.path.iterdir():
            if file.is_file() and not file.name.startswith(".") and file.name != ENGINE:
                folder.remove(file.name)


def _find_changes(stored: RunRecord, identity: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return relevant differences: the key, the stored value and the requested value."""
    before = flatten({key: vars(stored)[key] for key in identity})
    after = flatten(identity)
    keys = [key for key in sorted(before.keys() | after.keys()) if key not in HARMLESS_OPTIONS]
    pairs = [(key, before.get(key), after.get(key)) for key in keys]
    return [
        (key, stored_value, new_value)
        for key, stored_value, new_value in pairs
        if _without_folder(stored_value) != _without_folder(new_value)
    ]


def relevant_options(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that affect results (see `HARMLESS_OPTIONS`), with files by name, without folders."""
    flat = flatten(dict(identity))
    return {_file_name(key): _file_name(value) for key, value in flat.items() if key not in HARMLESS_OPTIONS}


def _file_name(value: Any) -> Any:
    return value.replace("\\", "/").rpartition("/")[2] if isinstance(value, str) else value


def _failed_by_user_files(changed: Sequence[tuple[str, Any, Any]], result: Result | None) -> bool:
    """Return whether a run failed and only the user's code and data were changed since."""
    if not changed or result is None or result.status != "failed":
        return False
    return all(_is_file(key) or (_is_code(before) and _is_code(after)) for key, before, after in changed)


def _is_code(value: Any) -> bool:
    return isinstance(value, str) and BY_CONTENT.search(value) is not None and ".pkl:" in value


def _without_folder(value: Any) -> Any:
    """Return a value; remove the folder of a file that is identified by its content."""
    match = BY_CONTENT.search(value) if isinstance(value, str) else None
    return value if match is None else match[0]


def check_unchanged(files: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Reject a run if the user's files changed since the start of its comparison.

    Raises:
        RunFolderError: If a file changed.
    """
    before, after = flatten(files), flatten({key: identity[key] for key in files})
    keys = sorted(before.keys() | after.keys())
    changed = [(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]
    if changed:
        raise RunFolderError(
            f"Since the comparison began, {_list_files(changed)}. Restore the old versions, or choose {ANOTHER_FOLDER}."
        )


def check_data(agreed: RunFolder, digest: str, name: str) -> None:
    """Reject data that differ from the data of other runs of a comparison; the first run stores its digest.

    This check includes data without a file, such as the result of a function or a built-in data set.

    Args:
        agreed: Folder of the comparison.
        digest: Digest of the data after reading (see `fedreach.data.stored.digest`).
        name: Name of the data in the experiment.

    Raises:
        RunFolderError: If the data differ.
    """
    stored = agreed.agree_on(DATA, {"data": digest}).get("data")
    if stored != digest:
        raise RunFolderError(
            f"data {name!r} differ from the data of other runs in {agreed.path} ({str(stored)[:12]}, now "
            f"{digest[:12]}): a file changed, or the data are drawn again at each read. Restore the old data, or "
            f"choose {ANOTHER_FOLDER}."
        )


def run_of(folder: RunFolder) -> RunRecord:
    """Return the record of the run in a folder.

    Raises:
        RunFolderError: If the folder contains no run. For a comparison, the message names one of its runs.
    """
    run = folder.read(RunRecord)
    if run is not None:
        return run
    comparison = folder.read(ComparisonRecord)
    if comparison is None:
        raise RunFolderError(f"{folder.path} is not a run folder: {RunRecord.FILE} not found.")
    first = next(folder for folders in comparison.runs.values() for folder in folders.values())
    raise RunFolderError(f"{folder.path} is a comparison. Name one of its runs, such as {folder.path / first}.")


def folder_of_run(path: Path, method: str | None = None, seed: int | None = None) -> Path:
    """Return the folder of a run: `path` itself, or the run of a method and a seed in a comparison.

    Omit the method or the seed if the comparison has only one method or seed.

    Raises:
        ConfigError: If the comparison lacks the method or seed, or if it has several and none is given.
        RunFolderError: If the folder cannot be read.
    """
    folder = RunFolder(path)
    comparison = folder.read(ComparisonRecord) if path.is_dir() else None
    if comparison is None:
        if method is not None or seed is not None:
            raise ConfigError(
                f"--method and --seed require a comparison; {path} is not a comparison. Remove these options."
            )
        return path
    chosen_method = _choose("method", method, comparison.runs, path)
    chosen_seed = _choose("seed", None if seed is None else str(seed), comparison.runs[chosen_method], path)
    return below(path, comparison.runs[chosen_method][chosen_seed])


def _choose(what: str, requested: str | None, choices: Mapping[str, Any], path: Path) -> str:
    names = list(map(str, choices))
    if requested is None and len(names) == 1:
        return names[0]
    if requested is None:
        raise ConfigError(f"{path} is a comparison. Name one of its runs with --{what}: {', '.join(names)}.")
    if requested not in names:
        raise ConfigError(f"--{what}: {path} has no {what} {requested!r}.{nearest(requested, names)}")
    return requested


def check_code(run: RunRecord, name: str, base: Path, files: Mapping[str, Path]) -> None:
    """Reject the user's code if it changed since the run.

    Args:
        run: Record of the run.
        name: Name of the code in the experiment, such as ``my.py:Net``.
        base: Folder to which the name is relative.
        files: Files of the code and of its imports (see `fedreach.experiment.components.code_files`).

    Raises:
        ConfigError: If the file is missing.
        RunFolderError: If the code changed.
    """
    file, stored_digest = registry.code_file(name, base), run.code.get(name)
    if stored_digest is None or file is None:
        return
    if not file.is_file():
        raise ConfigError(
            f"The run used {name}, but {file} does not exist. Pass `base`, the folder of the experiment's TOML file."
        )
    for code_name, code_file in {name: file, **files}.items():
        if code_name in run.code and digest_of_code(code_file, name_in(code_name)) != run.code[code_name]:
            raise RunFolderError(
                f"{code_file} changed after the run with {name}. Restore the old version, or rerun the run."
            )


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested settings with dotted keys."""
    if not isinstance(value, dict):
        return {prefix: value}
    result: dict[str, Any] = {}
    for key, inner in value.items():
        result |= flatten(inner, f"{prefix}.{key}" if prefix else key)
    return result
