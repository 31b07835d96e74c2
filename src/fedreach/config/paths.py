"""What paths are relative to: those in a TOML file to its folder, all others to where the user stands."""

import os
from pathlib import Path
from typing import Any

from fedreach import registry
from fedreach.config.messages import Path_
from fedreach.data.own import FILES

PATHS: tuple[Path_, ...] = (("data", "folder"), ("partition", "file"), ("server_data", "file"))
"""Options that are paths, beside files of code, ``FILE.py:NAME`` anywhere, and of data."""
DATA = (".npz", ".npy", *FILES)


def folder_of(source: Path | None) -> Path:
    """Return the folder that paths are relative to: that of the TOML file, or the current one without such a file."""
    return Path.cwd() if source is None or source.suffix == ".json" else source.resolve().parent


def seen_from(base: Path, key: Path_, value: Any) -> Any:
    """Return the value of a key with its paths, which are relative to the current folder, relative to `base`."""
    if isinstance(value, dict):
        return {name: seen_from(base, (*key, name), inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [seen_from(base, (*key, i), inner) for i, inner in enumerate(value)]
    if not isinstance(value, str) or base == Path.cwd():
        return value
    file, colon, name = value.rpartition(":")
    if not file.endswith(registry.FILES):
        file, colon, name = value, "", ""
        data = key in (("data",), ("data", "name")) and value.endswith(DATA)
        if not data and key not in PATHS:
            return value
    there = file if Path(file).is_absolute() else Path(os.path.relpath(file, base)).as_posix()
    return f"{there}{colon}{name}"
