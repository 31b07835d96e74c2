"""What Python hands over becomes what an experiment file says: names, with options.

What has a name is called by it: FedReach's own by their short names, functions and classes of modules ``module:NAME``.
What has none, such as a lambda or a class of a notebook, is stored by what it means (``parts/NAME-DIGEST.pkl``, see
`fedreach.experiments.meaning`), so that other processes, and the same program run again, find the same thing.
"""

from __future__ import annotations

import functools
import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import nn

from fedreach import registry
from fedreach.errors import ConfigError
from fedreach.experiments.meaning import Pickler, meaning_of
from fedreach.models.copying import copied
from fedreach.models.instance import ModuleInstance, redraw
from fedreach.registry import Instance


@dataclass(eq=False)
class Shelf:
    """Where things without names are kept, from when they are first named until they are written."""

    folder: Path
    base: Path | None = None  # that names are relative to; None: the current folder
    waiting: dict[Path, bytes] = field(default_factory=dict)

    def name_of(self, thing: Any, called: str) -> str:
        """Return a name by which other processes find a thing.

        Raises:
            ConfigError: If it cannot be handed to another process.
        """
        content = pickled(thing, called)
        with _by_value(thing):
            digest, because = meaning_of(thing)
        word = re.sub(r"\W+", "", called) or "thing"
        path = (self.folder / f"{word}-{digest}.pkl").resolve()
        self.waiting[path] = content
        registry.KEPT[path] = thing
        if because:
            registry.KNOWN_BY_FILE[path.name] = because
        return f"{Path(os.path.relpath(path, self.base)).as_posix()}:{word}"

    def write(self) -> None:
        """Write what is not there yet."""
        for path, content in self.waiting.items():
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                new = path.with_suffix(f".{os.getpid()}")
                new.write_bytes(content)
                new.replace(path)
        self.waiting.clear()


def said(kind: str, value: Any, shelf: Shelf) -> Any:
    """Return what an experiment file says in place of a part: a name, or a table with a name.

    Args:
        kind: A key of `fedreach.registry.KINDS`.
        value: A name, a table with a name, a class, a function, a part that was made; anything else is left to the
            check of the experiment.
        shelf: Keeps what has no name.

    Example:
        >>> from fedreach.federation.selection import PowerOfChoice
        >>> said("selection", PowerOfChoice(candidates=7), Shelf(Path("parts")))
        {'name': 'power_of_choice', 'candidates': 7}
    """
    if isinstance(value, Mapping):
        if isinstance(module := value.get("name"), nn.Module):
            value = {**value, "name": _module_said(module, value.get("keep_weights") is True, shelf)}
        if kind == "model" and callable(value.get("output")):
            value = {**value, "output": function_said(value["output"], shelf)}
        table = {str(key): plain(inner) for key, inner in value.items() if key not in ("name", "inner", "parts")}
        if "name" in value:
            named = said(kind, value["name"], shelf)
            table = {**(named if isinstance(named, dict) else {"name": named}), **table}
        if "inner" in value:
            table["inner"] = said(kind, value["inner"], shelf)
        if isinstance(value.get("parts"), Sequence):
            table["parts"] = [said(kind, part, shelf) for part in value["parts"]]
        return table
    if isinstance(value, type) or _is_function(value):
        return _thing_said(kind, value, shelf)
    if kind == "augmentation" and callable(value) and not hasattr(value, "augment"):  # a transform of torchvision
        return function_said(value, shelf)
    if isinstance(value, nn.Module):
        return _module_said(value, False, shelf)
    if value is None or isinstance(value, str | bytes | bool | int | float | Sequence | np.generic):
        return plain(value)
    if not registry.KINDS[kind].protocol and callable(value):  # an object that makes one
        return shelf.name_of(value, type(value).__name__)
    return _part_said(kind, value, shelf)


def _is_function(value: Any) -> bool:
    return inspect.isroutine(value) or isinstance(value, functools.partial)


def _module_said(module: nn.Module, keep_weights: bool, shelf: Shelf) -> str:
    """Return the name of a module; where its weights will be drawn anew those that it has are no part of it."""
    if not keep_weights:
        module = copied(module)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            redraw(module)
    return shelf.name_of(ModuleInstance(module), type(module).__name__)


def function_said(function: Callable[..., Any], shelf: Shelf) -> str:
    """Return the name of a function that is no part, such as ``module:NAME``."""
    called = getattr(function, "__qualname__", "") or type(function).__name__
    if importable(function):
        return f"{function.__module__}:{called}"
    return shelf.name_of(function, called.rpartition(".")[2].strip("<>"))


def _thing_said(kind: str, thing: Callable[..., Any], shelf: Shelf) -> str:
    table = registry.table(kind)
    if getattr(thing, "__module__", "").startswith("fedreach."):
        for name in table:
            if table[name] is thing:
                return name
    return function_said(thing, shelf)


def _part_said(kind: str, part: Any, shelf: Shelf) -> Any:
    """Return a part that was made, by its class and options where others find the class and these say all of it."""
    cls = type(part)
    if is_dataclass(part) and "__eq__" in vars(cls) and importable(cls):
        options: dict[str, Any] = {}
        for each in fields(part):
            value = getattr(part, each.name)
            if each.init and not _is_default(value, each):
                options[each.name] = value
        nested = {key: said(kind, options.pop(key), shelf) for key in ("inner",) if key in options}
        if isinstance(options.get("parts"), list | tuple):
            nested["parts"] = [said(kind, each, shelf) for each in options.pop("parts")]
        if all(map(_is_plain, options.values())):
            name = _thing_said(kind, cls, shelf)
            table = {"name": name, **{key: plain(value) for key, value in options.items()}, **nested}
            return table if len(table) > 1 else name
    return shelf.name_of(Instance(part), cls.__name__)


def _is_default(value: Any, each: Any) -> bool:
    default = each.default if each.default_factory is MISSING else each.default_factory()
    return type(value) is type(default) and bool(value == default)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(inner) for key, inner in value.items())
    return isinstance(value, bool | int | float | str | np.bool_ | np.integer | np.floating)


def plain(value: Any) -> Any:
    """Return a value as TOML has it: lists for tuples and arrays, Python's numbers for numpy's, text for paths."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple | range):
        return [plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def importable(thing: Any) -> bool:
    """Say whether a fresh process finds a function or class by its module and name."""
    name, module = getattr(thing, "__qualname__", ""), getattr(thing, "__module__", None) or ""
    loaded = sys.modules.get(module)
    if module == "__main__" or loaded is None or getattr(loaded, name, None) is not thing:
        return False
    return _found_anew(module, loaded)


def _found_anew(module: str, loaded: ModuleType) -> bool:
    places, whole = None, ""
    for step in module.split("."):
        whole = f"{whole}.{step}".lstrip(".")
        spec = PathFinder.find_spec(whole, places)
        if spec is None:
            return False
        places = spec.submodule_search_locations
    return spec is not None and spec.origin == getattr(loaded, "__file__", None)


def pickled(thing: Any, called: str) -> bytes:
    """Return a thing as bytes that another process makes the same of; the same program gives the same bytes.

    Raises:
        ConfigError: If it holds something that cannot leave this process.
    """
    content = io.BytesIO()
    try:
        with _by_value(thing):
            Pickler(content, protocol=5).dump(thing)
    except Exception as error:  # pickle raises whatever the thing's own methods do
        raise ConfigError(
            f"{called} cannot be handed to other processes: {type(error).__name__}: {error}. Define it in a module of "
            "its own, without open files, generators or locks."
        ) from error
    return content.getvalue()


@contextmanager
def _by_value(thing: Any) -> Iterator[None]:
    """Have a thing pickled whole whose module a fresh process would not find."""
    modules = list(_only_here(thing))
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _only_here(thing: Any) -> Iterator[ModuleType]:
    """Yield the modules of a thing that a fresh process would not find, as a test's or that of a ``FILE.py``."""
    inner = thing.part if isinstance(thing, Instance) else thing.module if isinstance(thing, ModuleInstance) else thing
    kinds = {getattr(inner, "__module__", None), type(inner).__module__}
    if isinstance(inner, nn.Module):
        kinds |= {type(layer).__module__ for layer in inner.modules()}
    for name in sorted({str(kind) for kind in kinds} - {"None", "__main__", "builtins"}):
        loaded = sys.modules.get(name)
        if loaded is not None and hasattr(loaded, "__file__") and not _found_anew(name, loaded):
            yield loaded
