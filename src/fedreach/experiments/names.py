"""Names in experiment files and what they stand for: built-in things by name, a user's by ``FILE.py:NAME``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fedreach.errors import ConfigError, nearest

KINDS: Mapping[str, tuple[str, str]] = {
    "data": ("fedreach.data.catalogue", "LOADERS"),
    "partition": ("fedreach.data.partition", "PARTITIONS"),
    "noise": ("fedreach.data.noise", "NOISES"),
    "participation": ("fedreach.federation.participation", "PARTICIPATIONS"),
    "model": ("fedreach.models", "MODELS"),
    "selection": ("fedreach.federation.selection", "SELECTIONS"),
    "weighting": ("fedreach.federation.weighting", "WEIGHTINGS"),
    "solver": ("fedreach.federation.solvers", "SOLVERS"),
    "server": ("fedreach.federation.server", "SERVERS"),
    "engine": ("fedreach.engines", "ENGINES"),
}
"""Kind -> where its table of names stands. Tables are imported when they are looked into, and not before."""

PARTS = ("participation", "selection", "weighting", "solver", "server")
"""Kinds whose names stand for frozen dataclasses of hyper-parameters."""

GIVEN: Mapping[str, tuple[str, ...]] = {
    "data": ("place", "source"),
    "partition": ("labels", "num_clients", "rng", "owners"),
    "noise": ("labels", "rng", "kind", "num_classes", "partition"),
    "model": ("sample_shape", "num_classes"),
    "participation": (),
    "selection": ("view", "k", "rng"),
    "weighting": ("reports",),
    "solver": (),
    "server": (),
}
"""Arguments that FedReach hands in itself, so that no option may have their names."""


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
    if ":" in name:
        found = _users(name, base)
        if not callable(found):
            raise ConfigError(f"{name!r} must be a class or a function; got {type(found).__name__}.")
        result: Callable[..., Any] = found
        return result
    known = table(kind)
    if name not in known:
        raise ConfigError(f"there is no {kind} {name!r}.{nearest(name, known)} Your own: 'FILE.py:NAME'.")
    thing: Callable[..., Any] = known[name]
    return thing


def code_digest(name: str, base: Path) -> str | None:
    """Return the sha256 of the file behind ``FILE.py:NAME``; None for other names."""
    path = base / name.rpartition(":")[0]
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.suffix == ".py" and path.is_file() else None


def _users(name: str, base: Path) -> Any:
    where, _, attribute = name.rpartition(":")
    path = (base / where).resolve()
    try:
        module = _from_file(path) if where.endswith(".py") else importlib.import_module(where)
    except FileNotFoundError as error:
        raise ConfigError(f"{name!r}: there is no file {path}.") from error
    except Exception as error:
        raise ConfigError(f"{name!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise ConfigError(f"{name!r}: {path.name} has no {attribute!r}.{nearest(attribute, public)}")
    return getattr(module, attribute)


@cache
def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(path)
    module_name = f"fedreach_user_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None  # a .py file always has a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module
