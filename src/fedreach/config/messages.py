"""Mistakes in an experiment in our words: where they stand, the rule, what arrived, the nearest right name."""

import inspect
import re
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pydantic
from pydantic import BaseModel

from fedreach.config.sections import Choice, Experiment, Method
from fedreach.errors import nearest

Path_ = tuple[str | int, ...]


class Problem(NamedTuple):
    """One mistake in an experiment."""

    path: Path_
    message: str


def explained(
    error: pydantic.ValidationError,
    prefix: Path_ = (),
    section: type[BaseModel] = Experiment,
    known: Sequence[str] | None = None,
    owner: str = "",
) -> list[Problem]:
    """Return what pydantic found.

    Args:
        error: The refusal.
        prefix: Path of the table that was refused.
        section: Model of that table.
        known: Right names of its keys, where they are not the fields of `section`.
        owner: Whose options they are, such as ``"model 'mlp'"``.
    """
    rules: dict[Path_, tuple[list[str], Any]] = {}
    problems = []
    for found in error.errors():
        loc = tuple(step for step in found["loc"] if not _is_tag(step))
        path, kind = (*prefix, *loc), found["type"]
        if kind == "extra_forbidden":
            options = known if known is not None else _keys_at(section, loc[:-1])
            what = f"{owner} has no such option." if owner else "unknown key."
            problems.append(
                Problem(path, what + (nearest(str(loc[-1]), options) if options else " It has no options."))
            )
        elif kind == "missing":
            what = f"{owner} needs this option." if owner else "must be given; `fedreach list` shows what there is."
            problems.append(Problem(path, what))
        else:  # a union such as `int | list[int]` gives one refusal for each member
            rules.setdefault(path, ([], found["input"]))[0].append(_rule(found["msg"]))
    for path, (said, got) in rules.items():
        problems.append(Problem(path, f"must be {' or '.join(said)}; got {got!r} ({type(got).__name__})."))
    return problems


def _rule(message: str) -> str:
    """Return pydantic's rule as the end of "must be ..."."""
    if found := re.search(r"instance of (\w+)", message):
        choices: list[type[Choice]] = [Choice, *Choice.__subclasses__()]
        choice = found[1] in {model.__name__ for model in choices}
        return "a name, or a table with a `name`" if choice else "a table"
    rule = re.sub(r"^(Input|List|Tuple|Dictionary) should (be )?", "", message)
    rule = re.sub(r"^have at least (\d+) items?.*", r"a list of at least \1", rule)
    rule = (
        rule.replace("a valid dictionary", "a table")
        .replace("a valid tuple", "a list")
        .replace("a valid integer", "an integer")
    )
    return rule.replace("a valid ", "a ")


def _is_tag(step: str | int) -> bool:
    """Say whether a step of pydantic's path names a member of a union, such as ``list[int]``, and no key."""
    return isinstance(step, str) and (
        step in ("int", "float", "str", "bool", "none", "constrained-int", "constrained-float") or "[" in step
    )


def _keys_at(section: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    model: Any = section
    for step in path:
        if model is dict:
            model = Method
            continue
        annotation = model.model_fields[step].annotation
        options = [annotation, *typing.get_args(annotation)]
        classes = [a for a in options if inspect.isclass(a) and issubclass(a, BaseModel)]
        model = dict if typing.get_origin(annotation) is dict else classes[0]
    return list(model.model_fields)


def listed(problems: Iterable[Problem], source: Path, text: str, overridden: Sequence[Path_]) -> str:
    """Return one line for each mistake, in the order of the file; those that came by --set stand last."""
    lines = []
    for path, message in dict.fromkeys(problems):
        number = None if _came_from(path, overridden) else _line(text, path) if source.suffix != ".json" else 0
        where = "--set " if number is None else f"{source.name}:{number}: " if number else ""
        lines.append((number is None, number or 0, f"{where}{_key(path) or 'file'}: {message}"))
    count = "1 mistake" if len(lines) == 1 else f"{len(lines)} mistakes"
    return f"{count} in {source.name}:\n  " + "\n  ".join(line for _, _, line in sorted(lines))


def _key(path: Path_) -> str:
    """Return a path as people write it: ``methods.x.weighting.parts[1].temperature``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def _came_from(path: Path_, overridden: Sequence[Path_]) -> bool:
    """Say whether a --set wrote this key, a table above it, or the name whose options are wrong."""
    return any(path[: len(o)] == o or (o[:-1] == path and o[-1] != "name") for o in overridden)


def _line(text: str, path: Path_) -> int:
    """Return the line of a key, or of the closest table above it; 0 where the file has neither."""
    steps = [str(step) for step in path]
    table: list[str] = []
    last: dict[tuple[str, ...], int] = {}  # index of the element of each [[list of tables]] that began last
    best = found = 0
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\[?([^\]]+)\]", line)
        key = re.match(r"\s*([A-Za-z0-9_.\"' -]+?)\s*=", line)
        if header:
            whole = [part.strip().strip("\"'") for part in header[1].split(".")]
            table = []
            for depth, part in enumerate(whole, start=1):
                table.append(part)
                if depth == len(whole) and line.lstrip().startswith("[["):
                    last[tuple(table)] = last.get(tuple(table), -1) + 1
                if tuple(table) in last:
                    table.append(str(last[tuple(table)]))
            full = table
        elif key:
            full = table + [part.strip().strip("\"'") for part in key[1].split(".")]
        else:
            continue
        if full == steps[: len(full)] and len(full) > best:
            best, found = len(full), number
    return found
