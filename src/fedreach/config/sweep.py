"""One experiment for each setting of some options."""

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fedreach.config.grid import Range, Setting, in_words, value_in_words
from fedreach.config.messages import Problem
from fedreach.config.section import Section
from fedreach.config.sections import Experiment

LONGEST = 80  # letters of a setting's folder


class Sweep(Section):
    """The option that a recipe varies, one panel's horizontal axis.

    A step ``*`` of `key` stands for all methods, as in ``methods.*.selection.min_examples``. With training, values of
    an option of methods make one comparison; those of any other option need one each.
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


def refused_settings(
    raw: Mapping[str, Any], e: Experiment, wrong: Callable[[dict[str, Any]], list[Problem]]
) -> list[Problem]:
    """Return what is wrong with ``[sweep]`` and ``[tune]``: each value is tried by itself.

    Args:
        raw: The tables of an experiment that is right but for these.
        e: The experiment.
        wrong: Says what is wrong with tables.
    """
    problems = []
    plain = {key: table for key, table in raw.items() if key not in ("sweep", "tune")}
    for section, grid in (("sweep", e.sweep), ("tune", e.tune)):
        for key, values in () if grid is None else grid.values.items():
            if why := refused_key(key, tuned=section == "tune"):
                problems.append(Problem((section, key), f"{why}."))
                continue
            for value in (values.least, values.most) if isinstance(values, Range) else values:
                for one in wrong(with_setting(copy.deepcopy(plain), {key: value}))[:1]:
                    where, said = ".".join(map(str, one.path)), value_in_words(value)
                    problems.append(Problem((section, key), f"{said} cannot be: {where}: {one.message}"))
    if e.sweep is not None and e.plan.detect_points is not None:
        rule = "has the number of seeds follow from one comparison, and a [sweep] makes several. Leave out one of them."
        problems.append(Problem(("statistics", "detect_points"), rule))
    if e.tune is not None and not e.methods:
        problems.append(Problem(("tune",), "chooses for each method of a comparison: add [methods.NAME] tables."))
    return problems


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
