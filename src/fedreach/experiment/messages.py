"""Messages for mistakes in an experiment, with the key, the rule, the value and the nearest valid name."""

import inspect
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pydantic
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedreach._util.errors import nearest
from fedreach.experiment.schema import Experiment

Path_ = tuple[str | int, ...]
MOST_SHOWN = 300  # characters of a value, or of a key
FLAGS: Mapping[Path_, str] = {("statistics", "detect_points"): "--detect", ("statistics", "max_seeds"): "--max-seeds"}
"""Key -> command-line option that also sets the key."""


class Problem(NamedTuple):
    """One mistake in an experiment."""

    path: Path_
    message: str


COUNTED = re.compile(" after validation, not [0-9]+")  # in pydantic's words; what there is stands behind "got"


def explain_errors(
    error: pydantic.ValidationError,
    raw: Any,
    prefix: Path_ = (),
    known: Mapping[str, FieldInfo] = Experiment.model_fields,
    owner: str = "",
) -> list[Problem]:
    """Return the problems that pydantic reported.

    Args:
        error: Error of pydantic.
        raw: Rejected table.
        prefix: Path of that table.
        known: Valid keys of that table.
        owner: Owner of the options, such as ``"model 'mlp'"``.
    """
    rules: dict[Path_, list[str]] = {}  # a union such as `int | list[int]` gives one error for each member
    got, sentences = dict[Path_, str](), dict[Path_, str]()
    for refusal in error.errors():
        kind = refusal["type"]
        loc = _keys_of(refusal["loc"], raw, missing=kind == "missing")
        path = (*prefix, *loc)
        text, should, rule = refusal["msg"].removeprefix("Value error, ").partition(" should ")
        rule = COUNTED.sub("", rule).replace("a valid dictionary", "a table").replace("a valid tuple", "a list")
        if kind == "extra_forbidden":
            what = f"{owner} has no such option." if owner else "unknown key."
            sentences[path] = what + (_elsewhere(str(loc[-1])) or nearest(str(loc[-1]), _known_at(known, loc[:-1])))
        elif kind == "missing":
            what = f"{owner} needs this option." if owner else "must be set. Run `fedreach list` for names."
            sentences[path] = what
        elif should:
            rules.setdefault(path, []).append(rule.partition(" or instance of")[0])
            got[path] = _shorten(repr(refusal["input"]))
        else:
            sentences[path] = text
    texts = {path: f"must {' or '.join(rules[path])}; got {got[path]}." for path in rules} | sentences
    above = {path[:depth] for path in texts for depth in range(len(path))}  # of a mistake inside a table of a union
    return [Problem(path, text) for path, text in texts.items() if path not in above]


def _keys_of(loc: Path_, value: Any, *, missing: bool) -> Path_:
    """Return the keys of pydantic's path, without the members of unions in it, such as ``list[int]``.

    Args:
        loc: The path.
        value: Value that it leads into.
        missing: Treat the last step as a missing key.
    """
    keys: list[str | int] = []
    for place, step in enumerate(loc, start=1):
        exists = step in (value if isinstance(value, Mapping) else range(len(value)) if isinstance(value, list) else ())
        if exists:
            value = value[step]
        if exists or (missing and place == len(loc)):
            keys.append(step)
    return tuple(keys)


def _known_at(known: Mapping[str, FieldInfo], path: Path_) -> list[str]:
    """Return the valid keys of a table inside another one."""
    for step in path:
        if step in known:  # else a name of the user's, such as that of a method, or a place in a list
            known = _keys_of_table(known[str(step)]) or known
    return list(known)


def _keys_of_table(field: FieldInfo) -> Mapping[str, FieldInfo]:
    """Return the valid keys of an option that is a table; empty for other options."""
    options = [field.annotation, *typing.get_args(field.annotation)]
    tables = (option for option in options if inspect.isclass(option) and issubclass(option, BaseModel))
    return next((table.model_fields for table in tables), {})


def _elsewhere(key: str) -> str:
    """Return a hint at the table that has an unknown key, or "".

    Example:
        >>> _elsewhere("lr"), _elsewhere("lerning_rate")
        (" Did you mean 'local.lr'?", '')
    """
    tables = [table for table, field in Experiment.model_fields.items() if key in _keys_of_table(field)]
    places = [key] * (key in Experiment.model_fields) + [f"{table}.{key}" for table in tables]
    return f" Did you mean {' or '.join(map(repr, places))}?" if places else ""


def format_problems(problems: Iterable[Problem], place: str = "", overridden: Sequence[Path_] = ()) -> str:
    """Return one line for each mistake; mistakes in --set come last.

    Args:
        problems: The mistakes.
        place: Name of the file or of the function that was called; "" for the default file.
        overridden: Keys that were set with --set.
    """
    lines = []
    for path, message in dict.fromkeys(problems):
        # --set wrote this key, a table above it, or the name whose options are wrong
        is_set = any(path[: len(o)] == o or (o[:-1] == path and o[-1] != "name") for o in overridden)
        key = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")
        set_by = f"{FLAGS[path]} ({key})" if path in FLAGS else f"--set {_shorten(key)}"
        lines.append((is_set, f"{set_by if is_set else _shorten(key) or 'file'}: {message}"))
    count = "1 mistake" if len(lines) == 1 else f"{len(lines)} mistakes"
    lines.sort(key=lambda line: line[0])
    return f"{count}{place and f' in {place}'}:\n  " + "\n  ".join(line for _, line in lines)


def _shorten(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"
