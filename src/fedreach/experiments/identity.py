"""Which run a folder holds, and whether it is finished; quick to ask, as torch is not needed."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedreach.errors import FedReachError, PartError, RunFolderError
from fedreach.experiments import names
from fedreach.experiments.config import PARTS, Choice, Experiment
from fedreach.experiments.folder import RunFolder
from fedreach.experiments.parts import with_nested

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


def identity(experiment: Experiment, seed: int, method: str, base: Path) -> dict[str, Any]:
    """Return what makes a run this run: its method, seed, options and the user's own code."""
    return {
        "method": method,
        "seed": seed,
        "config": experiment.model_dump(mode="json"),
        "code": {
            name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in users_files(experiment, base).items()
        },
    }


def finished(store: RunFolder, described: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the result of a finished run, or None where there is something to do.

    Args:
        store: The run folder.
        described: What shall be run, see `identity`.

    Raises:
        OtherExperimentError: If the folder holds another run.
        RunFolderError: If the folder cannot be read, or rows of a finished run are missing.
    """
    stored = store.read_json("run.json")
    if stored is None:
        return None
    before, after = _flat(stored), _flat(described)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    changed = [key for key in changed if key.partition(".")[0] in described and key[len("config.") :] not in HARMLESS]
    if changed:
        shown = "; ".join(
            f"{key}: {_short(before.get(key))} there, {_short(after.get(key))} now" for key in changed[:5]
        )
        more = f" (and {len(changed) - 5} more)" if len(changed) > 5 else ""
        raise OtherExperimentError(
            f"{store.path} holds another experiment. {shown}{more}. Choose another folder with --out, "
            "or move this one away."
        )
    result = store.read_json("result.json")
    if result is None or result["status"] != "finished":
        return None
    store.check_lengths(result["lengths"])
    return result


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


def users_files(experiment: Experiment, base: Path) -> dict[str, Path]:
    """Return each name of the user's own code in the experiment, with its file."""
    e = experiment
    choices: list[Choice] = [e.data, e.partition, e.model]
    for part in (e.noise, e.radio, e.population.participation, *(getattr(e.method, kind) for kind in PARTS)):
        choices += [] if part is None else with_nested(part)
    files = {choice.name: names.code_file(choice.name, base) for choice in choices if ":" in choice.name}
    return {name: path for name, path in files.items() if path is not None and path.is_file()}


@contextmanager
def blamed(experiment: Experiment, base: Path) -> Iterator[None]:
    """Say of an exception that passed through the user's own code where in it that was.

    Raises:
        PartError: In place of such an exception, which is its cause.
    """
    try:
        yield
    except FedReachError:
        raise
    except (Exception, SystemExit) as error:
        files = set(users_files(experiment, base).values())
        frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() in files]
        if not frames:
            raise
        last = frames[-1]
        raise PartError(
            f"{Path(last.filename).name}, line {last.lineno}, in {last.name}: {type(error).__name__}: {error}."
        ) from error
