"""The papers are a user of the library: it knows nothing of them, and they list what they import that is not public."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedreach

ROOT = Path(__file__).parents[2]
README = (ROOT / "papers" / "README.md").read_text(encoding="utf-8")
PUBLIC = {
    *("fedreach", "fedreach._util.errors", "fedreach.runs.schema", "fedreach.runs.simulation"),
    *("fedreach.evaluation.metrics", "fedreach.federation.convergence"),
}
"""Modules of the reference, see `docs/build/names.py`, that the papers use."""


def imported(folder: Path) -> Iterator[str]:
    """Yield the modules that the files of a folder import, also within functions."""
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)


def test_the_library_knows_nothing_of_the_papers() -> None:
    assert not [name for name in imported(Path(fedreach.__file__).parent) if name.partition(".")[0] == "papers"]


def test_what_is_not_public_is_listed() -> None:
    listed = re.findall(r"^\| `(fedreach[\w.]*)` \|", README.partition("## What is not public")[2], re.MULTILINE)
    needed = {name for name in imported(ROOT / "papers") if name.partition(".")[0] == "fedreach"}
    assert sorted(needed - PUBLIC) == listed


def test_what_is_called_public_is_in_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "build")
    names = __import__("names")
    monkeypatch.delitem(sys.modules, "names")
    reference = {where.partition(":")[0] for _, _, modules in names.PUBLIC.values() for where in modules}
    assert reference >= PUBLIC
