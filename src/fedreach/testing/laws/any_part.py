"""What every part is: its options and nothing else."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, cast

from fedreach.federation.selection import FunctionSelection
from fedreach.federation.weighting import FunctionWeighting
from fedreach.testing.law import Subject, broken, law


@law()
def options_are_all_it_is(subject: Subject) -> None:
    """A part is a frozen dataclass, and its options, written as JSON and read again, make an equal part."""
    part = subject.part
    if isinstance(part, FunctionSelection | FunctionWeighting):
        return  # a function has no options of its own here
    if not dataclasses.is_dataclass(part):
        if vars(part):
            broken(
                f"it keeps {', '.join(map(repr, vars(part)))}, which its repr does not tell; make it a "
                "@dataclass(frozen=True) with these as fields"
            )
        return
    if not cast(Any, type(part)).__dataclass_params__.frozen:
        broken("its options can be changed during a run; write @dataclass(frozen=True)")
    try:
        text = json.dumps(_written(part))
    except (TypeError, ValueError) as error:
        broken(f"its options cannot be written as JSON: {error}", repr(part))
    again = _read(part, json.loads(text))
    if again != part:
        broken(f"it came back as {again!r}", f"{part!r}, written as {text}")


def _written(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _written(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
    if isinstance(value, Mapping):
        return {key: _written(inner) for key, inner in value.items()}
    return [_written(inner) for inner in value] if isinstance(value, list | tuple) else value


def _read(like: Any, stored: Any) -> Any:
    """Return what was stored, with the classes of the value that it came from."""
    if dataclasses.is_dataclass(like) and not isinstance(like, type):
        return type(like)(**{key: _read(getattr(like, key), inner) for key, inner in stored.items()})
    if isinstance(like, Mapping):
        return {key: _read(like[key], inner) for key, inner in stored.items()}
    if isinstance(like, list | tuple):
        return type(like)(_read(a, b) for a, b in zip(like, stored, strict=True))
    return stored
