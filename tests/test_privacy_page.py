"""The tables of docs/privacy.md are those that the components' attributes give."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import pytest

from .installed import ROOT

PAGE = ROOT / "docs" / "privacy.md"


@pytest.fixture
def disclosed() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "docs" / "build"))
    yield import_module("disclosed")
    sys.path.remove(str(ROOT / "docs" / "build"))


def test_the_tables_of_the_page_are_current(disclosed: ModuleType) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert disclosed.renewed(text) == text, "run python docs/build/disclosed.py --write"


def test_a_changed_cell_is_found_and_repaired(disclosed: ModuleType) -> None:
    text = PAGE.read_text(encoding="utf-8")
    changed = text.replace("loss of the model (probed clients", "nothing (probed clients")
    assert changed != text
    assert disclosed.renewed(changed) == text


def test_a_custom_component_is_listed_by_its_attributes(disclosed: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    base = disclosed.federation(selection="power_of_choice")
    policy = type(base.selection)
    monkeypatch.setattr(policy, "needs", ("label_counts",))
    assert disclosed.cells(disclosed.federation(), base) == (
        "label counts (participants, before round 1); loss of the model (probed clients, before selection)",
        "rejected",
    )
