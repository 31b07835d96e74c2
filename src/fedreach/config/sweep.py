"""One experiment for each setting of some options."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fedreach.config.grid import Setting, in_words
from fedreach.config.section import Section

LONGEST = 80  # letters of a setting's folder


class Sweep(Section):
    """The option that a recipe varies, one panel's horizontal axis.

    A step ``*`` of `key` stands for all methods, as in ``methods.*.selection.min_examples``. A recipe with training
    sweeps over options of methods only, so that all its runs make one comparison.
    """

    key: str
    values: Annotated[list[int | float], Field(min_length=2)]
    label: str  # of the axis, with its unit
    unit: Annotated[float, Field(gt=0)] = 1.0  # of the label, in the unit of the option


def expanded(key: str, methods: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths that a key stands for, of these methods."""
    yield from (key.replace("*", method, 1) for method in methods) if "*" in key else (key,)


def put(table: dict[str, Any], key: str, value: Any) -> None:
    """Set an option of nested tables; a part that is only named becomes a table with its name."""
    *steps, last = key.split(".")
    for step in steps:
        inner = table.get(step)
        table[step] = {"name": inner} if isinstance(inner, str) else inner if isinstance(inner, dict) else {}
        table = table[step]
    table[last] = value


def with_setting(raw: dict[str, Any], setting: Setting) -> dict[str, Any]:
    """Return the tables of an experiment with a setting, and without what it was one of; `raw` is changed."""
    methods = tuple(raw.get("methods") or ())
    for key, value in setting.items():
        for path in expanded(key, methods):
            put(raw, path, value)
    return raw


def folders(settings: Sequence[Setting], where: Path) -> list[Path]:
    """Return a folder for each setting, called by it.

    Example:
        >>> [path.as_posix() for path in folders([{"partition.alpha": 0.1}, {"partition.alpha": 1.0}], Path("cells"))]
        ['cells/partition.alpha=0.1', 'cells/partition.alpha=1.0']
    """
    names: dict[str, int] = {}
    found = []
    for setting in settings:
        text = in_words(setting).replace(" = ", "=").replace(", ", ",")
        name = re.sub(r"[^\w.,=+-]", "_", text, flags=re.ASCII)[:LONGEST]
        names[name] = names.get(name, 0) + 1
        found.append(where / (name if names[name] == 1 else f"{name}~{names[name]}"))
    return found


def same_value(one: Any, other: Any) -> bool:
    """Say whether two values of an option are the same in TOML, where 1 and 1.0 are not."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


FIXED: Mapping[str, str] = {
    "name": "is no option of a run",
    "seeds": "is the same for all settings: each is tried with all seeds",
    "baseline": "is no option of a run",
    "target_accuracy": "changes no run",
    "statistics": "changes no run",
    "engine": "changes no run but by rounding",
    "run": "changes no run",
    "sweep": "cannot be swept itself",
    "tune": "cannot be swept itself",
}
"""Keys that no settings are of, and why."""

NOT_TUNED: Mapping[str, str] = {
    "data": "says what is learnt",
    "partition": "says who holds what",
    "population": "says who takes part",
    "noise": "says what the labels are",
    "shift": "says what unseen clients hold",
    "server_data": "says what the server holds",
    "budget": "says what a run may spend",
    "radio": "says where clients are",
    "evaluation": "says how models are scored",
    "rounds": "says how long a run is",
    "method.serving": "comes after training, and a setting is chosen by the model that was trained",
}
"""Keys that are the same for all methods of a comparison, and why: they are swept, not tuned."""


def refused_key(key: str, *, tuned: bool) -> str:
    """Say why an option cannot be swept or tuned; empty where it can."""
    for rules in (FIXED, NOT_TUNED if tuned else {}):
        for head, why in rules.items():
            if key == head or key.startswith(f"{head}."):
                return f"{head} {why}" + (
                    ". Show it under [sweep]" if rules is NOT_TUNED and head != "method.serving" else ""
                )
    if tuned and re.match(r"methods\.[^.]+\.serving(\.|$)", key):
        return NOT_TUNED["method.serving"]
    return ""
