"""The documented installation, for tests: what it brings, and processes in which nothing else can be imported."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterable, Set
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

# None in sys.modules would hide them, too, but some libraries look for others there.
HIDING = """\
import sys
from importlib.machinery import PathFinder

hidden = {names}


class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = super().find_spec(name, path, target)
        bundled = spec is not None and 'thirdparty_files' in str(spec.origin)  # Ray brings some packages itself
        return None if path is None and name in hidden and not bundled else spec


sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""


def extras_named(text: str) -> set[str]:
    """Return the extras that a text tells to install.

    Example:
        >>> sorted(extras_named("pip install 'fedreach[ray]', or fedreach[flower]"))
        ['flower', 'ray']
    """
    return {name for names in re.findall(r"fedreach\[([\w,]+)\]", text) for name in names.split(",")}


def packages_named(text: str) -> set[str]:
    """Return the packages that a text tells to install beside FedReach.

    Example:
        >>> packages_named("pip install datasets")
        {'datasets'}
    """
    return set(re.findall(r"pip install (\w[\w-]*)", text))


def brought(extras: Set[str], beside: Set[str] = frozenset()) -> set[str]:
    """Return the packages that come with FedReach, these extras and those beside it, as far as they are installed."""
    return closure([("fedreach", extra) for extra in ("", *extras)] + [(name, "") for name in beside])


def closure(packages: Iterable[tuple[str, str]]) -> set[str]:
    """Return packages, each with one of its extras or "", and all that come with them, as far as they are installed."""
    seen: set[tuple[str, str]] = set()
    waiting = list(packages)
    while waiting:
        name, extra = pair = waiting.pop()
        if pair in seen:
            continue
        seen.add(pair)
        for requirement in map(Requirement, _requirements(name)):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                waiting += [(canonicalize_name(requirement.name), each) for each in ("", *requirement.extras)]
    return {name for name, _ in seen}


def _requirements(name: str) -> list[str]:
    if name == "fedreach":  # not of the installed one, which may be older than pyproject.toml
        return PROJECT["dependencies"] + [f"{r}; extra == '{e}'" for e, them in EXTRAS.items() for r in them]
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def environment(extras: Set[str], beside: Set[str] = frozenset()) -> dict[str, str]:
    """Return the environment of a process that sees only what comes with FedReach, these extras and those beside it."""
    path = [_hiding(frozenset(extras), frozenset(beside)), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


@cache
def _hiding(extras: frozenset[str], beside: frozenset[str]) -> str:
    """Return a folder for PYTHONPATH that hides all other packages."""
    there = brought(extras, beside)
    hidden = [
        module
        for module, packages in metadata.packages_distributions().items()
        if not {canonicalize_name(package) for package in packages} & there
    ]
    folder = tempfile.mkdtemp(prefix="fedreach-installed-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Path(folder, "sitecustomize.py").write_text(HIDING.format(names=set(hidden)), encoding="utf-8")
    return folder
