"""Options of components and trackers."""

import inspect
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
from pydantic import BaseModel, ConfigDict

from fedreach._util import registry
from fedreach._util.component import wrong_base
from fedreach._util.errors import ConfigError, DataError
from fedreach._util.streams import generator
from fedreach.experiment import components
from fedreach.experiment.components import DATA_ENDINGS, relative_to_base
from fedreach.experiment.messages import Path_, Problem, explain_errors, format_problems
from fedreach.experiment.schema import (
    AttackSection,
    Choice,
    Data,
    Experiment,
    ModelSection,
    PartitionSection,
    RadioSection,
    ShiftSection,
)

# -------------------- Options, checked against the signature that their component's name refers to

OWN_KEYS: Mapping[str, type[Choice]] = {
    "data": Data,
    "partition": PartitionSection,
    "model": ModelSection,
    "radio": RadioSection,
    "shift": ShiftSection,
    "attack": AttackSection,
}


def check_choice(kind: str, path: Path_, choice: Mapping[str, Any], base: Path) -> list[Problem]:
    """Return the problems with the name or the options of a component."""
    section = OWN_KEYS.get(kind, Choice)
    name = choice.get("name", section.model_fields["name"].default)
    if not isinstance(name, str) or (kind == "partition" and choice.get("file") is not None):
        return []  # the section itself reports it, or nothing is drawn
    if kind == "data" and name.endswith(DATA_ENDINGS):
        return []  # its options are checked when the file is read
    try:
        target = registry.find(kind, name, base)
        supplied = registry.supplied_arguments(kind, name, target)
    except ConfigError as error:
        return [Problem((*path, "name"), str(error))]
    options = {key: value for key, value in choice.items() if key not in section.model_fields}
    row = registry.COMPONENT_TYPES[kind]
    problems = _check_nested(kind, path, options, base) if row.base else []
    model = options_model(target, supplied)
    if model is not None:
        try:
            model.model_validate(options)
        except pydantic.ValidationError as error:
            known_fields = model.model_fields | section.model_fields
            problems += explain_errors(error, options, path, known_fields, f"{kind} {name!r}")
    if problems:
        return problems
    if kind == "partition" and ":" not in name and name != "natural":
        return [Problem(path, message) for message in _out_of_range(target, options)]
    if row.base and registry.wrapper(kind, target) is None:
        named = Choice.model_validate({"name": name, **options})  # without the section's keys, checked elsewhere
        return [Problem(path, message) for message in _broken_contract(kind, named, base)]
    return []


def _check_nested(kind: str, path: Path_, options: Mapping[str, Any], base: Path) -> list[Problem]:
    """Return the problems of the components nested in a component."""
    problems = []
    listed = options.get("parts")
    if listed is not None and not isinstance(listed, list):
        problems.append(Problem((*path, "parts"), f"must be a list of names or tables with a `name`; got {listed!r}."))
    for where, value in components.nested_choices(options):
        try:
            problems += check_choice(kind, (*path, *where), Choice.model_validate(value).model_dump(), base)
        except pydantic.ValidationError as error:
            problems += explain_errors(error, value, (*path, *where), Choice.model_fields)
    return problems


def _out_of_range(partitioner: Callable[..., Any], options: Mapping[str, Any]) -> list[str]:
    """Return the range errors of options, by a trial on a few labels; errors due to their small number are ignored."""
    try:
        partitioner(np.repeat(np.arange(10), 20), 2, generator(0, "partition"), **options)
    except ConfigError as error:
        return [str(error)]
    except DataError:
        pass
    return []


def _broken_contract(kind: str, choice: Choice, base: Path) -> list[str]:
    """Return what a component lacks, or why it cannot be built."""
    try:
        part = components.make(kind, choice, base)
    except ConfigError as error:
        return [str(error)]
    except Exception as error:
        return [f"{choice.name!r} cannot be created: {type(error).__name__}: {error}."]
    base_class = registry.import_object(registry.COMPONENT_TYPES[kind].base)
    return [] if isinstance(part, base_class) else [f"{choice.name!r} {wrong_base(part, base_class)}"]


def options_model(target: Callable[..., Any], supplied: Collection[str]) -> type[BaseModel] | None:
    """Return a model of the options of a callable, from its annotations; None if it accepts any options.

    `supplied` are the arguments that FedReach itself passes, which are not options.

    Example:
        >>> def pick(view, k, rng, patience: float = 1.0): ...
        >>> list(options_model(pick, ("view", "k", "rng")).model_fields)
        ['patience']
    """
    lasting = inspect.isclass(target) or inspect.isroutine(target)  # a callable object may not have a hash
    return (_options_model if lasting else _options_model.__wrapped__)(target, tuple(supplied))


@lru_cache(maxsize=256)  # a comparison checks the same few parts in each of its experiments
def _options_model(target: Callable[..., Any], supplied: tuple[str, ...]) -> type[BaseModel] | None:
    parameters = inspect.signature(target).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    hints = components.hints(target)
    fields: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.name in supplied or parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            continue
        hint = hints.get(parameter.name, Any)
        hint = hint if _is_plain(hint) else Any
        if components.is_tuple(hint):
            hint = Annotated[hint, pydantic.BeforeValidator(_tuple_for_list)]
        fields[parameter.name] = (hint, ... if parameter.default is parameter.empty else parameter.default)
    return pydantic.create_model("Options", __config__=ConfigDict(extra="forbid", strict=True), **fields)


def _tuple_for_list(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _is_plain(hint: Any) -> bool:
    """Return whether a TOML file can hold a type; the callable itself checks other types."""
    if hint in (int, float, str, bool, type(None)):
        return True
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return True
    return origin is not None and all(_is_plain(a) for a in arguments if a is not Ellipsis)


# -------------------- Trackers of a run

KEY = ("run", "trackers")


def trackers_of(experiment: Experiment, base: Path) -> list[tuple[str, Any]]:
    """Return the trackers of an experiment with their names.

    Raises:
        ConfigError: If a tracker is unknown, or its package is not installed.
    """
    return [(choice.name, components.make("tracker", choice, base)) for choice in experiment.run.trackers]


def with_trackers(experiment: Experiment, names: Sequence[str], base: Path) -> Experiment:
    """Return an experiment with the named trackers instead of its own trackers; without names, it does not change.

    Raises:
        ConfigError: If a tracker is invalid.
    """
    choices = [Choice(name=relative_to_base(base, KEY, name)) for name in names] or experiment.run.trackers
    problems = [
        problem
        for i, choice in enumerate(choices)
        for problem in check_choice("tracker", (*KEY, i), choice.model_dump(), base)
    ]
    if problems:
        raise ConfigError(format_problems(problems, "--track" if names else "run.json"))
    return experiment.model_copy(update={"run": experiment.run.model_copy(update={"trackers": choices})})
