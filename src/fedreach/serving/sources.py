"""The sources that a rule consists of: its own module and all of FedReach's that it imports, as modules of one file.

What is imported from FedReach becomes an import from beside: ``from fedreach.arrays import Floats`` is
``from .arrays import Floats`` in the file. Everything else is taken as it stands, so that nothing is said twice.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fedreach.errors import ConfigError

THERE = frozenset({"numpy", *sys.stdlib_module_names})
"""Packages that a client has."""
READS_TABLES = frozenset({"narwhals", "pyarrow"})
"""Packages that FedReach's own modules read tables by: whoever predicts tables has them, too."""


class Module(NamedTuple):
    """A module as the file holds it."""

    name: str  # within the file
    source: str
    is_users: bool  # and not FedReach's


class _Place(NamedTuple):
    """Where a module is."""

    name: str  # "fedreach.arrays"; of a user's own file, its path
    file: Path


def modules(roots: list[Path | str]) -> dict[str, Module]:
    """Return the modules that others need come first, by their full name, or path where they are a user's own.

    Args:
        roots: Full names of FedReach's modules, or paths of a user's own files.

    Raises:
        ConfigError: If one of them imports what is neither numpy, nor the standard library, nor FedReach's.
    """
    found: dict[str, Module] = {}
    for root in roots:
        place = _place(root) if isinstance(root, str) else _Place(str(root), root)
        _collect(place, found, ())
    return found


def _collect(place: _Place, found: dict[str, Module], through: tuple[_Place, ...]) -> str:
    """Take a module and first all that it imports; return its name within the file."""
    if place.name not in found:
        source = place.file.read_text(encoding="utf-8")
        changes = [
            (node, _rewritten(node, found, (*through, place)))
            for node in _imports(ast.parse(source))
            if _is_fedreachs(node, (*through, place))
        ]
        is_users = not place.name.startswith("fedreach.")
        found[place.name] = Module(_free_name(place, found), _replaced(source, changes), is_users)
    return found[place.name].name


def _imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports of a module, wherever they stand, but for those that only type checkers see."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING":
            for other in node.orelse:
                yield from _imports(other)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        else:
            yield from _imports(node)


def _is_fedreachs(node: ast.Import | ast.ImportFrom, through: tuple[_Place, ...]) -> bool:
    """Return whether FedReach's own modules are imported; refuse what a client does not have."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    tops = {name.partition(".")[0] for name in names}
    way = " -> ".join(place.file.name for place in through)
    where = f"{way}, line {node.lineno}: an exported rule"
    if isinstance(node, ast.ImportFrom) and node.level:
        raise ConfigError(f"{where} is one file and imports nothing from beside it; got {ast.unparse(node)!r}.")
    if "fedreach" in tops:
        if isinstance(node, ast.Import):
            raise ConfigError(
                f"{where} imports names from FedReach; got {ast.unparse(node)!r}. Write 'from ... import'."
            )
        return True
    if tops - THERE - (READS_TABLES if through[-1].name.startswith("fedreach.") else frozenset()):
        raise ConfigError(
            f"{where} may import numpy, the standard library and what of FedReach needs no more than these; got "
            f"{ast.unparse(node)!r}."
        )
    return False


def _rewritten(node: ast.Import | ast.ImportFrom, found: dict[str, Module], through: tuple[_Place, ...]) -> str:
    """Return the statement that imports the same within the file."""
    assert isinstance(node, ast.ImportFrom)
    assert node.module is not None
    place, lines = _place(node.module), []
    for alias in node.names:
        whole = f"{node.module}.{alias.name}"
        if place.file.name == "__init__.py" and importlib.util.find_spec(whole) is not None:
            inside = _collect(_place(whole), found, through)
            lines.append(f"from . import {inside} as {alias.asname or alias.name}")
        else:
            inside = _collect(place, found, through)
            own = f" as {alias.asname}" if alias.asname else ""
            lines.append(f"from .{inside} import {alias.name}{own}")
    return f"\n{' ' * node.col_offset}".join(lines)


def _place(name: str) -> _Place:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ConfigError(f"there is no module {name!r}.")
    return _Place(name, Path(spec.origin))


def _free_name(place: _Place, found: dict[str, Module]) -> str:
    """Return a name within the file that no other module has."""
    if not place.name.startswith("fedreach."):
        return f"own_{place.file.stem}"
    taken, parts = {module.name for module in found.values()}, place.name.split(".")
    names = ("_".join(parts[-length:]) for length in range(1, len(parts) + 1))
    return next(name for name in names if name not in taken)


def _replaced(source: str, changes: list[tuple[ast.Import | ast.ImportFrom, str]]) -> str:
    """Return the source with other text in place of some of its statements."""
    text = source.encode()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, new in sorted(changes, key=lambda change: -change[0].lineno):
        assert node.end_lineno is not None  # ast.parse says it of every statement
        assert node.end_col_offset is not None
        begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        text = text[:begin] + new.encode() + text[end:]
    return text.decode()
