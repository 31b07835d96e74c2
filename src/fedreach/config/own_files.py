"""The files of one's own that the numbers of a run depend on: code with what it imports, data, what options name.

Of code the imports count that its text names, wherever they stand in it: of a name in a file those of what that refers
to, see `fedreach.storage.definitions`, and those whose own names nothing refers to. A module whose name is made up as
the code runs, and a file that the code opens by itself, cannot be known before it runs.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import fedreach
from fedreach import registry
from fedreach.config.paths import DATA
from fedreach.config.sections import Choice, Experiment
from fedreach.data.mapped import NOTE
from fedreach.data.stored import FILE
from fedreach.errors import ConfigError, DataError
from fedreach.storage.code import digest_of_code, name_in
from fedreach.storage.definitions import definition_of, imports_for_effect

LIBRARY = Path(fedreach.__file__).parent


def digest(path: Path) -> str:
    """Return the sha256 of a file; one that did not change since is not read again.

    Raises:
        DataError: If it cannot be read.
    """
    return _readable(path, lambda: _digest(path, *_stamp(path)))


def code_digest(path: Path, called: str) -> str:
    """Return the digest of what a file of code means, see `fedreach.storage.code`, by what it is called in a run.

    Of ``FILE.py:NAME`` and ``module:NAME`` the name and what it refers to count, of an imported module all.

    Raises:
        DataError: If it cannot be read.
    """
    return _readable(path, lambda: _digest_of_code(path, name_in(called), *_stamp(path)))


def _readable(path: Path, read: Callable[[], str]) -> str:
    try:
        return read()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}. Make it readable.") from error


def _stamp(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


@cache
def _digest(path: Path, *stamp: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def _digest_of_code(path: Path, name: str, *stamp: int) -> str:
    return digest_of_code(path, name)


def data_files(experiment: Experiment, base: Path, parts: list[Choice]) -> dict[str, Path]:
    """Return the files of data that an experiment names, by what they are called there.

    Of a folder of arrays, and of what Python handed over, all files count; of a part the files that its options name.
    """
    e = experiment
    named = [e.partition.file, None if e.server_data is None else e.server_data.file]
    named += [value for part in parts for value in part.options.values() if isinstance(value, str) and "." in value]
    found = {name: base / name for name in named if name is not None}
    name = e.data.name
    if name.endswith((".npy", FILE)):
        folder = (base / name).parent
        # What is named by its content is the same wherever it lies.
        called = Path(folder.name) if registry.BY_CONTENT.search(name) else Path(name).parent
        files = sorted({*folder.glob("*.npy"), folder / FILE, folder / NOTE})
        found |= {(called / file.name).as_posix(): file for file in files}
    elif name.endswith(DATA):
        found[name] = base / name
    return {name: path for name, path in found.items() if _is_file(path)}


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # no path at all, such as a long text
        return False


def code_files(name: str, base: Path) -> dict[str, Path]:
    """Return the files of a user's ``FILE.py:NAME`` or ``module:NAME``: its own by that name, and by path from `base`
    those of the modules of nobody's package that it imports, and that these import.

    Its module is imported first: where others are found may be said there.
    """
    if name.rpartition(":")[0].endswith(".pkl"):  # the name has a digest
        return {}
    with suppress(ConfigError):  # that is told where the part is made
        registry.load_users(name, base)
    file = registry.code_file(name, base)
    if file is None or not file.is_file():
        return {}
    where = name.rpartition(":")[0]
    module = "" if where.endswith(".py") else where
    others = {_key(path, base): path for path in imported_by(file, module, name_in(name)) if path != file}
    return {name: file, **others}


def _key(path: Path, base: Path) -> str:
    return Path(os.path.relpath(path, base.resolve())).as_posix()


def imported_by(file: Path, module: str = "", of: str = "") -> list[Path]:
    """Return a file of code, and those of the modules of nobody's package that it needs, directly or not.

    Args:
        file: The file.
        module: Its name as a module; "" where it is in no package.
        of: A function or class of the file, whose imports count; "": all do.
    """
    found: dict[Path, None] = {}
    waiting, first = [(file.resolve(), module)], file.resolve()
    while waiting:
        path, name = waiting.pop()
        if path in found or not _is_own(path):
            continue
        found[path] = None
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for wanted in _imports(path, of if path == first else "", *_stamp(path)) if path.suffix == ".py" else ():
            if whole := _absolute(wanted, package):
                waiting += _modules(whole, path.parent)
    return sorted(found)


def _is_own(path: Path) -> bool:
    return not registry.is_installed(str(path)) and not path.is_relative_to(LIBRARY)


@cache
def _imports(path: Path, of: str, *stamp: int) -> tuple[str, ...]:
    """Return what may be modules of what a file imports, relative ones with their dots; nothing where it is no code."""
    try:
        tree = ast.parse(path.read_bytes())
        nodes = [*definition_of(tree, of).statements, *imports_for_effect(tree)] if of else [tree]
    except (OSError, SyntaxError, ValueError):
        return ()
    found: dict[str, None] = {}
    for node in (inner for each in nodes for inner in ast.walk(each)):
        if isinstance(node, ast.Import):
            found |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            joint = "" if start.endswith(".") else "."
            found |= dict.fromkeys([start, *(f"{start}{joint}{alias.name}" for alias in node.names)])
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                found[node.args[0].value] = None
    return tuple(found)


def _absolute(wanted: str, package: str) -> str:
    """Return the whole name of what is imported in a package; "" where it cannot be imported."""
    name = wanted.lstrip(".")
    up = len(wanted) - len(name) - 1
    if up < 0:
        return name
    parents = package.split(".") if package else []
    return ".".join([*parents[: len(parents) - up], *([name] if name else [])]) if up < len(parents) else ""


def _modules(whole: str, beside: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files, with their names, of a module and of the packages that it is in, as far as they are found."""
    name = ""
    places: list[str] = []
    for step in whole.split("."):
        name = f"{name}.{step}" if name else step
        try:
            spec = _top(step, beside) if name == step else PathFinder.find_spec(name, places)
        except KeyError:  # a package without __init__.py in another one: Python asks modules that are not imported
            places = [str(folder) for place in places if (folder := Path(place) / step).is_dir()]
            continue
        if spec is None:
            return
        places = list(spec.submodule_search_locations or ())
        if spec.has_location and spec.origin:
            path = Path(spec.origin).resolve()
            if not _is_own(path):
                return
            yield path, name


def module_files(name: str) -> set[Path]:
    """Return the files of a module of one's own by its whole name, with those that it imports; none of others'."""
    beside = Path.cwd()  # where Python does not find it
    return {path for file, module in _modules(name, beside) for path in imported_by(file, module)}


def _top(name: str, beside: Path) -> ModuleSpec | None:
    """Return where a module is that is in no package: where Python finds it, or beside the one that imports it."""
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    return found or PathFinder.find_spec(name, [str(beside)])
