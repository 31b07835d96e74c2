"""Names in experiment files and what they stand for: built-in things by name, a user's by ``FILE.py:NAME``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fedreach.errors import ConfigError, nearest

KINDS: Mapping[str, tuple[str, str]] = {
    "data": ("fedreach.data.sets.catalogue", "LOADERS"),
    "partition": ("fedreach.data.partition", "PARTITIONS"),
    "noise": ("fedreach.data.noise", "NOISES"),
    "participation": ("fedreach.federation.participation", "PARTICIPATIONS"),
    "model": ("fedreach.models", "MODELS"),
    "selection": ("fedreach.federation.selection", "SELECTIONS"),
    "weighting": ("fedreach.federation.weighting", "WEIGHTINGS"),
    "solver": ("fedreach.federation.solvers", "SOLVERS"),
    "server": ("fedreach.federation.server", "SERVERS"),
    "label_statistics": ("fedreach.federation.labels", "LABEL_STATISTICS"),
    "allocation": ("fedreach.wireless.allocation.rules", "RULES"),
    "radio": ("fedreach.wireless.radio", "RADIOS"),
    "engine": ("fedreach.engines", "ENGINES"),
}
"""Kind -> where its table of names stands. Tables are imported when they are looked into, and not before."""

PROTOCOLS: Mapping[str, tuple[str, str]] = {
    "participation": ("fedreach.federation.participation", "Participation"),
    "selection": ("fedreach.federation.protocols", "SelectionPolicy"),
    "weighting": ("fedreach.federation.protocols", "Weighting"),
    "solver": ("fedreach.federation.protocols", "LocalSolver"),
    "server": ("fedreach.federation.protocols", "ServerStep"),
    "label_statistics": ("fedreach.federation.protocols", "LabelStatistics"),
    "allocation": ("fedreach.wireless.allocation.rules", "AllocationRule"),
    "radio": ("fedreach.wireless.radio", "Radio"),
}
"""Kinds whose names stand for a part of a federation, and the protocol that it must follow."""

FURTHER: Mapping[str, tuple[str, tuple[str, str]]] = {
    "solver": ("prepare", ("fedreach.federation.protocols", "MemorySolver")),
    "server": ("trains", ("fedreach.federation.protocols", "ServerTrains")),
}
"""Kinds of which some parts follow a second protocol: those that have this method, and then all of it."""

CALLED_WITH: Mapping[str, tuple[str, ...]] = {
    "partition": ("labels", "num_clients", "rng"),
    "noise": ("labels", "rng"),
    "selection": ("view", "k", "rng"),
    "weighting": ("reports",),
}
"""What functions of these kinds are handed by position, whatever names their own arguments have."""

GIVEN: Mapping[str, tuple[str, ...]] = {
    "data": ("place", "source"),
    "partition": ("owners",),
    "noise": ("kind", "num_classes", "partition"),
    "model": ("sample_shape", "num_classes"),
}
"""What FedReach hands in by name."""


@cache
def table(kind: str) -> Mapping[str, Any]:
    """Return the built-in things of a kind by name."""
    module, attribute = KINDS[kind]
    found: Mapping[str, Any] = getattr(importlib.import_module(module), attribute)
    return found


def find(kind: str, name: str, base: Path) -> Callable[..., Any]:
    """Return what a name stands for.

    Args:
        kind: A key of `KINDS`.
        name: A built-in name, ``FILE.py:NAME`` with a path relative to `base`, or ``module:NAME``.
        base: Folder of the experiment file.

    Raises:
        ConfigError: If there is no such thing.
    """
    if ":" in name and kind != "noise":
        found = users_own(name, base)
        if not callable(found):
            raise ConfigError(f"{name!r} must be a class or a function; got {type(found).__name__}.")
        result: Callable[..., Any] = found
        return result
    known = table(kind)
    if name not in known:
        raise ConfigError(
            f"there is no {kind} {name!r}.{nearest(name, known)}"
            + (" Your own: 'FILE.py:NAME'." if kind != "noise" else "")
        )
    thing: Callable[..., Any] = known[name]
    return thing


def is_wrapped(kind: str, target: Callable[..., Any]) -> bool:
    """Say whether a user may write this part as a plain function, and did."""
    return kind in ("selection", "weighting") and not inspect.isclass(target)


def given(kind: str, name: str, target: Callable[..., Any]) -> tuple[str, ...]:
    """Return the arguments of a callable that FedReach hands in itself, so that they are no options.

    Raises:
        ConfigError: If it takes fewer arguments than it is called with.
    """
    handed = CALLED_WITH.get(kind, ()) if not inspect.isclass(target) else ()
    parameters = inspect.signature(target).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return GIVEN.get(kind, ())
    taken = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(taken) < len(handed):
        raise ConfigError(f"{name!r} must take the arguments ({', '.join(handed)}); it takes ({', '.join(taken)}).")
    return (*taken[: len(handed)], *GIVEN.get(kind, ()))


def code_file(name: str, base: Path) -> Path | None:
    """Return the file behind ``FILE.py:NAME`` or ``module:NAME``; None for other names and where there is none."""
    where = name.rpartition(":")[0]
    if where.endswith(".py"):
        return (base / where).resolve()
    try:
        spec = importlib.util.find_spec(where) if where else None
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).resolve() if spec is not None and spec.origin else None


def users_own(name: str, base: Path) -> Any:
    """Return what ``FILE.py:NAME`` or ``module:NAME`` stands for, or say what is wrong with it."""
    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise ConfigError(f"{name!r} must be 'FILE.py:NAME' or 'module:NAME'.")
    path = (base / where).resolve()
    if where.endswith(".py") and not path.is_file():
        raise ConfigError(f"{name!r}: there is no file {path}. Paths are relative to the experiment file.")
    try:
        module = _from_file(path) if where.endswith(".py") else importlib.import_module(where)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{name!r} cannot be imported: {type(error).__name__}: {error}.") from error
    if not hasattr(module, attribute):
        public = [key for key, value in vars(module).items() if not key.startswith("_") and callable(value)]
        raise ConfigError(f"{name!r}: {path.name} has no {attribute!r}.{nearest(attribute, public)}")
    return getattr(module, attribute)


@cache
def _from_file(path: Path) -> Any:
    module_name = f"fedreach_user_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None  # a .py file always has a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module
