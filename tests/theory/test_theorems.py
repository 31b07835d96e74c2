"""Every theorem is reached from `fedreach list` and from the reference, by the name of its function."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedreach._util.registry import COMPONENT_TYPES, paragraph
from fedreach.federation import bounds, convergence
from fedreach.federation.bounds import THEOREMS

ROOT = Path(__file__).parents[2]


def test_a_line_of_the_list_names_each_theorem_its_function_and_the_page_of_the_reference(
    fedreach: Callable[..., Any],
) -> None:
    head, _, *lines = fedreach("list", "theorem").stdout.splitlines()
    assert "reference/python/theory" in head
    listed = {line.split()[0]: line.split()[1].rstrip(":") for line in lines[:-2]}
    assert listed == {name: function.__name__ for name, function in THEOREMS.items()}
    text = fedreach("list", "theorem", "--verbose").stdout
    assert "worst_case_error: the error (1 - omega) / 8" in text
    assert "safari_theorem_1 (participants, clients)" in text


def test_no_function_of_a_theorem_is_missing_in_the_list() -> None:
    """Its docstring says so: `Reference: Theorem 1`."""
    functions = [
        thing
        for module in (bounds, convergence)
        for thing in vars(module).values()
        if inspect.isfunction(thing) and thing.__module__ == module.__name__
    ]
    of_theorems = {f for f in functions if re.search(r"(^|, )(Theorem|Corollary) \d", paragraph(f, "Reference")[:120])}
    helpers = {bounds.joint_risk, convergence.bounds}  # a definition, and both bounds from losses
    assert of_theorems - helpers <= set(THEOREMS.values())


def test_the_reference_documents_each_theorem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "build")
    page = __import__("names").pages()["reference/python/theory.md"]
    monkeypatch.delitem(sys.modules, "names")
    for function in THEOREMS.values():
        assert f"::: {function.__module__}.{function.__name__}\n" in page, function


def test_the_site_links_each_theorem_and_documents_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "build")
    page = __import__("components").page("theorem")
    monkeypatch.delitem(sys.modules, "components")
    for name, function in THEOREMS.items():
        assert f"| [`{name}`][{function.__module__}.{function.__name__}] |" in page
    assert ":::" not in page
    assert COMPONENT_TYPES["theorem"].meaning in page
