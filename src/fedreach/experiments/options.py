"""Options of named things (a partition, a policy, ...), checked against the signature of what the name stands for."""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic
from pydantic import BaseModel, ConfigDict

from fedreach.errors import ConfigError, DataError
from fedreach.experiments import names
from fedreach.experiments.config import Choice, Data, PartitionSection
from fedreach.experiments.explaining import Path_, Problem, explained
from fedreach.streams import generator

OWN_KEYS: Mapping[str, type[Choice]] = {"data": Data, "partition": PartitionSection}


def check_choice(kind: str, path: Path_, choice: Mapping[str, Any], base: Path) -> list[Problem]:
    """Return what is wrong with the name or the options of one named thing."""
    own = OWN_KEYS.get(kind, Choice)
    name = choice.get("name", own.model_fields["name"].default)
    if not isinstance(name, str) or (kind == "partition" and choice.get("file") is not None):
        return []  # said by the section itself; or nothing is drawn
    if kind == "data" and name.endswith(".npz"):
        return []  # its options are checked as it is read
    try:
        target = names.find(kind, name, base)
        given = names.given(kind, name, target)
    except ConfigError as error:
        return [Problem((*path, "name"), str(error))]
    options = {key: value for key, value in choice.items() if key not in own.model_fields}
    model = options_model(target, given)
    if model is not None:
        try:
            model.model_validate(options)
        except pydantic.ValidationError as error:
            known = [*model.model_fields, *own.model_fields]
            return explained(error, path, known=known, owner=f"{kind} {name!r}")
    if kind == "partition" and ":" not in name and name != "natural":
        return [Problem(path, message) for message in _out_of_range(target, options)]
    if kind in names.PROTOCOLS and not names.is_wrapped(kind, target):
        return [Problem(path, message) for message in _broken_contract(kind, name, target, options)]
    return []


def _out_of_range(partitioner: Callable[..., Any], options: Mapping[str, Any]) -> list[str]:
    """Try the options on a few labels, where a range is refused as ConfigError; that they are few does not matter."""
    try:
        partitioner(np.repeat(np.arange(10), 20), 2, generator(0, "partition"), **options)
    except ConfigError as error:
        return [str(error)]
    except DataError:
        pass
    return []


def _broken_contract(kind: str, name: str, target: Callable[..., Any], options: Mapping[str, Any]) -> list[str]:
    """Make the part and say which methods it lacks, or why it cannot be made."""
    try:
        part = target(**options)
    except ConfigError as error:
        return [str(error)]
    except Exception as error:
        return [f"{name!r} cannot be made: {type(error).__name__}: {error}."]
    module, protocol = names.PROTOCOLS[kind]
    wanted = [key for key in vars(getattr(importlib.import_module(module), protocol)) if not key.startswith("_")]
    lacking = [key for key in wanted if not callable(getattr(part, key, None))]
    if not lacking:
        return []
    base = " Inherit from fedreach.federation.selection.Policy to have all but `select`." if kind == "selection" else ""
    return [f"{name!r} must have the methods of {module}.{protocol}; {', '.join(lacking)} missing.{base}"]


def options_model(target: Callable[..., Any], given: Collection[str]) -> type[BaseModel] | None:
    """Return a model of the options that a callable takes; None where it takes anything.

    Args:
        target: A class or function whose annotations say the types.
        given: Arguments that FedReach hands in itself.

    Example:
        >>> def pick(view, k, rng, patience: float = 1.0): ...
        >>> list(options_model(pick, ("view", "k", "rng")).model_fields)
        ['patience']
    """
    parameters = inspect.signature(target).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    function: Any = vars(target)["__init__"] if inspect.isclass(target) and "__init__" in vars(target) else target
    try:
        hints = typing.get_type_hints(function)
    except NameError:
        hints = {}
    fields: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.name in given or parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            continue
        hint = hints.get(parameter.name, Any)
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hint if _is_plain(hint) else Any, default)
    return pydantic.create_model("Options", __config__=ConfigDict(extra="forbid", strict=True), **fields)


def _is_plain(hint: Any) -> bool:
    """Say whether a type can stand in a TOML file; others are left to the callable itself."""
    if hint in (int, float, str, bool, type(None)):
        return True
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return True
    return origin is not None and all(_is_plain(a) for a in arguments if a is not Ellipsis)
