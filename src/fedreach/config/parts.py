"""The parts of a federation, made from what an experiment file says; some of them are made of parts themselves."""

import contextlib
import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fedreach import registry
from fedreach.config.sections import Choice, Experiment, LocalSection
from fedreach.errors import ConfigError
from fedreach.federation.adam import Adam, AdamW
from fedreach.federation.federation import Federation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.federation.torch_steps import TorchSteps
from fedreach.federation.uneven_steps import UnevenSteps


def nested(options: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield where options name further parts, and what is said there.

    A part that is made of others of its kind takes one as its option ``inner`` or a list as ``parts``; each is written
    as everywhere, as a name or as a table with a name.

    Example:
        >>> list(nested({"most": 0.3, "inner": "entropy"}))
        [(('inner',), 'entropy')]
        >>> list(nested({"parts": ["equal", {"name": "entropy"}]}))
        [(('parts', 0), 'equal'), (('parts', 1), {'name': 'entropy'})]
    """
    if options.get("inner") is not None:
        yield ("inner",), options["inner"]
    if isinstance(parts := options.get("parts"), list):
        yield from ((("parts", i), part) for i, part in enumerate(parts))


def with_nested(choice: Choice) -> Iterator[Choice]:
    """Yield a part and all those that it is made of."""
    yield choice
    for _, said in nested(choice.options):
        yield from with_nested(Choice.model_validate(said))


def make(kind: str, choice: Choice, base: Path) -> Any:
    """Return a part of a federation; a user's function is wrapped, and lists become tuples, which never change.

    Raises:
        ConfigError: If there is no such part, or its options are refused.
    """
    target = registry.find(kind, choice.name, base)
    options = choice.options
    made = {where: make(kind, Choice.model_validate(said), base) for where, said in nested(options)}
    for option, value in options.items():
        if (option,) in made:
            options[option] = made[option,]
        elif option == "parts" and isinstance(value, list):
            options[option] = tuple(made[option, i] for i in range(len(value)))
        elif isinstance(value, list) and is_tuple(hints(target).get(option)):
            options[option] = tuple(value)
    wrapper = registry.wrapper(kind, target)
    try:
        return target(**options) if wrapper is None else wrapper(_with_options(target, options))
    except SystemExit as error:  # or the whole program would end there, and as if all was well
        raise ConfigError(f"{choice.name!r} cannot be made: SystemExit: {error}.") from error


OPTIMIZERS: Mapping[str, Callable[..., Any]] = {"adam": Adam, "adamw": AdamW, "torch": TorchSteps}


def local_of(section: LocalSection, base: Path | None = None) -> LocalSGD:
    """Return how clients train; a schedule in a file of one's own is relative to `base`."""
    said = section.model_dump()
    if ":" in section.schedule:
        said["schedule"] = registry.load_users(section.schedule, registry.base_of(section.schedule, base or Path.cwd()))
        if not callable(said["schedule"]):
            raise ConfigError(f"local.schedule must be a function of the round; got {section.schedule!r}.")
    if isinstance(said["steps"], dict):
        said["steps"] = UnevenSteps(**said["steps"])
    options = {key: value for key, value in said["optimizer"].items() if value is not None}
    said["optimizer"] = _optimizer_of(options.pop("name"), options)
    return LocalSGD(**said)


def _optimizer_of(name: str, options: Mapping[str, Any]) -> Any:
    """Return how a client takes its steps; None: plainly."""
    target = OPTIMIZERS.get(name)
    known = [] if target is None else [*inspect.signature(target).parameters]
    if unknown := [option for option in options if option not in known]:
        has = f"the options {', '.join(known)}" if known else "no options"
        raise ConfigError(f"local.optimizer {name!r} has {has}; got {', '.join(unknown)}. Remove them.")
    if target is TorchSteps and "optimizer" not in options:
        raise ConfigError(
            "local.optimizer 'torch' needs a class of torch.optim: local.optimizer = { name = \"torch\", optimizer = "
            '"RMSprop" }.'
        )
    return None if target is None else target(**options)


def federation(experiment: Experiment, seed: int, base: Path) -> Federation:
    """Return the federation that `[method]` describes."""
    said = {field.name: experiment.choice(field.name) for field in fields(Federation) if field.name in registry.KINDS}
    parts = {kind: make(kind, choice, base) for kind, choice in said.items() if choice is not None}
    return Federation(**parts, local=local_of(experiment.local, base), cohort=experiment.method.cohort, seed=seed)


def hints(target: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the arguments of a class or function, as far as they can be told."""
    function: Any = target
    if inspect.isclass(target):
        function = vars(target).get("__init__", target)
    elif not inspect.isroutine(target):  # an object that is called
        function = type(target).__call__
    try:
        return typing.get_type_hints(function)
    except NameError:  # of a class that came from another process, without all that its module imports
        found: dict[str, Any] = {}
        for name, hint in getattr(function, "__annotations__", {}).items():
            with contextlib.suppress(NameError):
                found |= typing.get_type_hints(SimpleNamespace(__annotations__={name: hint}))
        return found


def is_tuple(hint: Any) -> bool:
    """Say whether a type is a tuple, or may be one: a TOML file can only write a list."""
    return typing.get_origin(hint) is tuple or any(map(is_tuple, typing.get_args(hint)))


def _with_options(function: Any, options: dict[str, Any]) -> Any:
    if not options:
        return function

    @functools.wraps(function)  # with its name and attributes, such as `needs`
    def configured(*args: Any) -> Any:
        return function(*args, **options)

    return configured
