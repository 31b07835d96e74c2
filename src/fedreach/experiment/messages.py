"""Messages for mistakes in an experiment: the place, the rule, the value, the nearest valid name."""

import inspect
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pydantic
from pydantic import BaseModel

from fedreach._util.errors import nearest
from fedreach.experiment.schema import BROKEN_RULE, Choice, Experiment, Method

Path_ = tuple[str | int, ...]
MOST_SHOWN = 300  # characters of a value, or of a key


class Problem(NamedTuple):
    """One mistake in an experiment."""

    path: Path_
    message: str


def explain_errors(
    error: pydantic.ValidationError,
    raw: Any,
    prefix: Path_ = (),
    section: type[BaseModel] = Experiment,
    allowed: Sequence[str] | None = None,
    owner: str = "",
) -> list[Problem]:
    """Return the problems that pydantic reported.

    Args:
        error: Error of pydantic.
        raw: Rejected table.
        prefix: Path of that table.
        section: Model of that table.
        allowed: Valid names of its keys; default: the fields of `section`.
        owner: Owner of the options, such as ``"model 'mlp'"``.
    """
    rules: dict[Path_, tuple[list[str], Any]] = {}
    problems = []
    for refusal in error.errors():
        kind = refusal["type"]
        loc = _keys_of(refusal["loc"], raw, missing=kind == "missing")
        path = (*prefix, *loc)
        if kind == "extra_forbidden":
            options = allowed if allowed is not None else _keys_at(section, loc[:-1])
            what = f"{owner} has no such option." if owner else "unknown key."
            problems.append(
                Problem(path, what + (nearest(str(loc[-1]), options) if options else " It has no options."))
            )
        elif kind == "missing":
            what = f"{owner} needs this option." if owner else "must be given; `fedreach list` shows what there is."
            problems.append(Problem(path, what))
        elif kind == BROKEN_RULE:
            problems.append(Problem(path, refusal["msg"]))
        else:  # a union such as `int | list[int]` gives one error for each member
            rules.setdefault(path, ([], refusal["input"]))[0].append(_rule(refusal["msg"]))
    beneath = {
        place[:depth] for place in (*rules, *(problem.path for problem in problems)) for depth in range(len(place))
    }
    for path, (alternatives, got) in rules.items():
        if path in beneath:  # a union with a table: the mistake inside the table is reported instead
            continue
        problems.append(
            Problem(path, f"must be {' or '.join(alternatives)}; got {shorten(got)} ({type(got).__name__}).")
        )
    return problems


def _rule(message: str) -> str:
    """Return pydantic's rule as the end of "must be ..."."""
    if instance := re.search(r"instance of (\w+)", message):
        choices: list[type[BaseModel]] = [Choice, *Choice.__subclasses__()]
        choice = instance[1] in {model.__name__ for model in choices}
        return "a name, or a table with a `name`" if choice else "a table"
    rule = re.sub(r"^((Input|List|Tuple|Dictionary) should (be )?|Value error, )", "", message)
    rule = re.sub(r"^have at least (\d+) items?.*", r"a list of at least \1", rule)
    rule = (
        rule.replace("a valid dictionary", "a table")
        .replace("a valid tuple", "a list")
        .replace("a valid integer", "an integer")
    )
    return rule.replace("a valid ", "a ")


def _keys_of(loc: Path_, value: Any, *, missing: bool) -> Path_:
    """Return the keys of pydantic's path, without the members of unions in it, such as ``list[int]``.

    Args:
        loc: The path.
        value: Value that it leads into.
        missing: Treat the last step as a missing key.
    """
    keys: list[str | int] = []
    for place, step in enumerate(loc, start=1):
        if isinstance(value, Mapping):
            exists = step in value
        else:
            exists = isinstance(value, list | tuple) and isinstance(step, int) and step < len(value)
        if exists:
            value = value[step]
        if exists or (missing and place == len(loc)):
            keys.append(step)
    return tuple(keys)


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


def format_problems(problems: Iterable[Problem], source: Path | None, text: str, overridden: Sequence[Path_]) -> str:
    """Return one line for each mistake, in the order of the file; mistakes in --set come last.

    `source` is None if the user gave no file, so that the default applies.
    """
    lines = []
    has_lines = source is not None and source.suffix != ".json"
    for path, message in dict.fromkeys(problems):
        number = None if _came_from(path, overridden) else _line(text, path) if has_lines else 0
        where = "--set " if number is None else f"{source.name}:{number}: " if source is not None and number else ""
        lines.append((number is None, number or 0, f"{where}{_key(path) or 'file'}: {message}"))
    count = "1 mistake" if len(lines) == 1 else f"{len(lines)} mistakes"
    place = "" if source is None else f" in {source.name}"
    return f"{count}{place}:\n  " + "\n  ".join(line for _, _, line in sorted(lines))


def shorten(value: object) -> str:
    """Return a value as text for a message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"


def _key(path: Path_) -> str:
    """Return a path as people write it: ``methods.x.weighting.parts[1].temperature``."""
    key = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")
    return key if len(key) <= MOST_SHOWN else f"{key[: MOST_SHOWN - 1]}…"


def _came_from(path: Path_, overridden: Sequence[Path_]) -> bool:
    """Return whether --set wrote this key, a table above it, or the name whose options are wrong."""
    return any(path[: len(o)] == o or (o[:-1] == path and o[-1] != "name") for o in overridden)


def _line(text: str, path: Path_) -> int:
    """Return the line of a key, or of the closest table above it; 0 if the file has neither."""
    steps = [str(step) for step in path]
    table: list[str] = []
    last: dict[tuple[str, ...], int] = {}  # index of the latest element of each [[list of tables]]
    best = best_number = 0
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\[?([^\]]+)\]", line)
        key = re.match(r"\s*([A-Za-z0-9_.\"' -]+?)\s*=", line)
        if header:
            names = [part.strip().strip("\"'") for part in header[1].split(".")]
            table = []
            for depth, part in enumerate(names, start=1):
                table.append(part)
                if depth == len(names) and line.lstrip().startswith("[["):
                    last[tuple(table)] = last.get(tuple(table), -1) + 1
                if tuple(table) in last:
                    table.append(str(last[tuple(table)]))
            full = table
        elif key:
            full = table + [part.strip().strip("\"'") for part in key[1].split(".")]
        else:
            continue
        if full == steps[: len(full)] and len(full) > best:
            best, best_number = len(full), number
    return best_number
