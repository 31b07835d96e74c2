"""Tables on pages are copies of the records: every page agrees with its records, and a changed number is found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from .installed import ROOT

DOCS = ROOT / "docs"
PAGE = """# Page

<!-- excerpt: records/one.md, table 1, columns: method | accuracy, % as %, rows: b | table 2: c / late as late c -->
| method | % |
| --- | ---: |
| b | 2.0 |
| late c | 4.0 |
<!-- /excerpt -->
"""
RECORD = """# One

| method | accuracy, % | seeds |
| --- | ---: | ---: |
| a | 1.0 | 5 |
| b | 2.0 | 5 |

| method | when | accuracy, % |
| --- | --- | ---: |
| c | early | 3.0 |
| c | late | 4.0 |
"""


@pytest.fixture
def excerpts() -> Iterator[ModuleType]:
    before = list(sys.path)
    sys.path.insert(0, str(DOCS / "build"))
    try:
        yield import_module("excerpts")
    finally:
        sys.path[:] = before
        sys.modules.pop("excerpts", None)


def pages(folder: Path, record: str = RECORD, page: str = PAGE) -> Path:
    (folder / "records").mkdir()
    (folder / "records" / "one.md").write_text(record, encoding="utf-8")
    (folder / "page.md").write_text(page, encoding="utf-8")
    return folder


def test_every_page_agrees_with_its_records(excerpts: ModuleType) -> None:
    assert [page.name for page, _ in excerpts.outdated()] == [], "python docs/build/excerpts.py --write"


@pytest.mark.parametrize("name", ["results.md", "benchmarks.md"])
def test_all_tables_of_results_are_excerpts(excerpts: ModuleType, name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    marked = text.count("<!-- excerpt: ")
    assert len(excerpts.read_tables(text)) == len(excerpts.EXCERPT.findall(text)) == marked > 5
    for table in excerpts.read_tables(text):
        assert len(table.rows) <= 8
        assert sum(cell.endswith(":") for cell in table.rule) <= 6


def test_the_excerpt_has_the_columns_and_rows_that_it_names(excerpts: ModuleType, tmp_path: Path) -> None:
    swapped = PAGE.replace("| b | 2.0 |\n", "")
    ((page, text),) = excerpts.outdated(pages(tmp_path, page=swapped))
    assert page.name == "page.md"
    assert text == PAGE


def test_a_changed_number_is_found(excerpts: ModuleType, tmp_path: Path) -> None:
    folder = pages(tmp_path, RECORD.replace("| c | late | 4.0 |", "| c | late | 4.5 |"))
    ((_, text),) = excerpts.outdated(folder)
    assert text == PAGE.replace("4.0", "4.5")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("accuracy, % as %", "loss", "must have one column 'loss'"),
        ("accuracy, % as %", "seeds", "table 2: must have one column 'seeds'"),
        ("rows: b", "rows: d", "0 rows are named 'd'"),
        ("table 2: c / late", "table 2: c", "2 rows are named"),
        ("table 1", "table 3", "has 2 tables"),
        ("one.md, table", "one.md, tables", "must be 'PATH, table N"),
    ],
)
def test_an_excerpt_of_something_missing_is_rejected(
    excerpts: ModuleType, tmp_path: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        list(excerpts.outdated(pages(tmp_path, page=PAGE.replace(old, new, 1))))


def test_the_command_takes_no_other_option(excerpts: ModuleType) -> None:
    with pytest.raises(SystemExit, match="got --all"):
        excerpts.main(["--all"])


def test_every_record_is_linked_from_a_page() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("*.md"))
    assert [path.name for path in (DOCS / "records").glob("*.md") if f"(records/{path.name})" not in text] == []
