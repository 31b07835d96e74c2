from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedreach._util.errors import ConfigError
from fedreach.report.analysis import Leaders
from fedreach.report.findings import find
from fedreach.report.page import render
from fedreach.report.tables import tabulate
from fedreach.report.write import ReportPaths, write_report

from .made_up import edit, write_comparison, write_run

FORMATS = ("svg", "png")
VOID = {"meta", "br", "wbr", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Collects what a browser would fetch, and checks that elements are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        self.fetched += [
            v for k, v in attrs if v and (k in {"src", "srcset", "data"} or (tag == "link" and k == "href"))
        ]
        self.fetched += [v for k, v in attrs if v and k == "xlink:href" and tag == "image"]
        self.links += [values["href"] or ""] if tag == "a" else []
        self.ids += [values["id"] or ""] if "id" in values else []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def test_the_columns_of_a_table_are_on_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_run(folder, rounds=4)
    assert "Columns of the data" not in write_report([folder], tmp_path / "none").page.read_text(encoding="utf-8")
    columns = [
        {"name": "hospital", "kind": "client"},
        {"name": "age", "kind": "number", "missing": 2, "mean": 40.0, "sd": 10.0, "odd": "1 of these holds no number"},
        {"name": "<ward>", "kind": "dropped", "why": "as asked"},
    ]
    edit(folder / "federation.json", preparation=columns)
    page = write_report([folder], tmp_path / "report").page.read_text(encoding="utf-8")
    Page(page)
    assert "Columns of the data (3)" in page
    assert "<td>age</td><td>number</td><td>40 ± 10, 2 missing (1 of these holds no number)</td>" in page
    assert "<td>&lt;ward&gt;</td><td>dropped</td><td>as asked</td>" in page


@pytest.fixture(scope="module")
def written(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> ReportPaths:
    """The report as others look at it; `FORMATS` are two of three, as drawing takes long and figures have own tests."""
    return write_report([folder], tmp_path_factory.mktemp("out"), formats=FORMATS)


def test_the_page_fetches_nothing(written: ReportPaths) -> None:
    text = written.page.read_text()
    page = Page(text)
    assert page.open == []
    assert page.fetched
    assert all(value.startswith("data:image/png;base64,") for value in page.fetched)
    assert not re.search(r"@import|url\((?!#)", text)
    addresses = set(re.findall(r"https?://[^\"'\s<>]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_ids_are_unique_and_links_lead_to_written_files(written: ReportPaths) -> None:
    page = Page(written.page.read_text())
    assert len(page.ids) == len(set(page.ids))
    inside = {link for link in page.links if link.startswith("#")}
    assert inside <= {f"#{each}" for each in page.ids}
    assert inside
    assert {written.page.parent / link for link in {*page.links} - inside} == {*written.tables, *written.figures}


def test_every_cell_of_every_table_is_on_the_page(written: ReportPaths) -> None:
    text = unescape(re.sub(r"<[^>]+>", "\0", written.page.read_text().replace("<wbr>", "")))
    said = {each.strip() for each in text.replace("\u00a0", " ").split("\0")}
    for table in (tabulate(written.analysis, "last"), tabulate(written.analysis, "best")):
        assert len(table.header) > 12  # more than are shown at first
        assert {*table.header} <= said
        assert {cell for row in table.rows for cell in row} <= said


def test_rows_are_shaded_for_those_whose_lead_is_decided_and_for_nobody_else(written: ReportPaths) -> None:
    analysis = written.analysis
    leading, ahead = analysis.comparison.methods[1:3], find(analysis).headline.split()[0]

    def shaded(methods: tuple[str, ...]) -> list[str]:
        decided = replace(analysis, leaders={"last": Leaders(methods, ()), "best": Leaders((), ())})
        rows = re.findall(r'<tr class="leads"><th scope="row">(.*?)</th>', render(decided, [], []), re.DOTALL)
        return [re.sub(r"<[^>]+>", "", row).strip() for row in rows]

    assert {*shaded(tuple(leading))} == {f"{method} (leads)" for method in leading}
    assert ahead in analysis.comparison.methods
    assert shaded(()) == []  # although one has the best mean


def test_the_page_tells_what_was_found_and_what_failed(written: ReportPaths) -> None:
    text = written.page.read_text()
    heading = re.search(r"<h1>(.*?)</h1>", text)
    assert heading
    assert "unseen clients" in heading[1]
    assert "client 17, round 24: loss is nan" in text
    assert "seed 4: unfinished after round 24" in text
    for fact in ("003f9a6c1be8d247", "CC BY 4.0", "2.8.0+cpu", "1f2e3d4c5b6a", "selection.policy"):
        assert fact in text, fact


def test_every_figure_has_words(written: ReportPaths) -> None:
    text = written.page.read_text()
    assert text.count('<svg role="img"') == text.count("<figcaption>") == len(written.figures) // len(FORMATS)
    assert not re.search(r"<(title|desc|figcaption)[^>]*>\s*</", text)


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes_wherever_they_lie(
    folder: Path, written: ReportPaths, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "moved")
    again = write_report([tmp_path / "moved"], tmp_path / "moved", formats=FORMATS)
    for path in (written.page, *written.tables, *written.figures):
        other = again.page.parent / path.relative_to(written.page.parent)
        assert path.read_bytes() == other.read_bytes(), path.name


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 3])
def test_the_bytes_do_not_hang_on_how_many_processes_read_and_draw(
    folder: Path, written: ReportPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    monkeypatch.setattr("fedreach._util.processes.free_processes", lambda: processes)
    again = write_report([folder], tmp_path, formats=FORMATS)
    for path in (written.page, *written.tables, *written.figures):
        assert (again.page.parent / path.relative_to(written.page.parent)).read_bytes() == path.read_bytes(), path.name


def test_no_place_of_this_machine_is_written(folder: Path, written: ReportPaths) -> None:
    for path in (written.page, *written.tables):
        assert str(folder.parent) not in path.read_text()


def test_names_are_shown_and_not_run(tmp_path: Path) -> None:
    name = '<script>alert(1)</script>&"$x$'
    out = write_comparison(tmp_path, ["fedavg", "own"], [0], rounds=4, name=name)
    runs = tmp_path / "runs"
    for seed in runs.glob("*/seed-0/run.json"):
        if json.loads(seed.read_text())["method"] == "own":
            edit(seed, method="<b>own</b>$")
    comparison = tmp_path / "comparison.json"
    edit(comparison, **json.loads(comparison.read_text().replace('"own"', '"<b>own</b>$"', 2)))
    text = write_report([out], out, formats=()).page.read_text()
    assert "<script>alert" not in text
    assert "<b>own" not in text
    assert "&lt;b&gt;own" in text
    assert Page(text).open == []


def test_a_report_can_go_without_figure_files(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=4)
    paths = write_report([run], tmp_path, formats=())
    assert paths.figures == ()
    assert paths.page == tmp_path / "report" / "index.html"
    assert {path.name for path in paths.tables} == {"table.md", "table.csv", "table.tex", "table.json"}


def test_a_report_can_go_without_any_figure(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=4)
    bare, drawn = (write_report([run], tmp_path / name, formats=f) for name, f in (("bare", None), ("drawn", ())))
    assert bare.figures == ()
    assert not (tmp_path / "bare" / "report" / "figures").exists()
    assert "<svg" in drawn.page.read_text()
    assert "<svg" not in bare.page.read_text()
    assert Page(bare.page.read_text()).open == []
    assert [path.read_text() for path in bare.tables] == [path.read_text() for path in drawn.tables]


def test_runs_without_any_round_still_make_a_page(tmp_path: Path) -> None:
    out = write_comparison(tmp_path, ["a"], [0], rounds=2)
    shutil.rmtree(out / "runs")
    text = write_report([out], out).page.read_text()
    assert "No run has a result yet" in text
    assert "never began" in text


def test_a_wrong_format_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'jpg'"):
        write_report([tmp_path], tmp_path / "out", formats=("jpg",))
    assert not (tmp_path / "out").exists()


def test_what_the_server_learned_is_a_folded_table_with_the_methods_that_differ(tmp_path: Path) -> None:
    write_comparison(tmp_path, ["a", "b"], [0], rounds=4)
    assert "What the server learned" not in write_report([tmp_path], tmp_path, formats=None).page.read_text("utf-8")
    names = ("what", "whose", "when", "form", "limit")
    loss = dict(zip(names, ("loss", "cohort", "each round", "each client", ""), strict=True))
    total = dict(zip(names, ("<b>update", "cohort", "before selection", "sum", "larger cohort"), strict=True))
    for method, learned in (("a", [loss]), ("b", [loss, total])):
        edit(tmp_path / f"runs/{method}/seed-0/run.json", learned=learned)
    page = write_report([tmp_path], tmp_path, formats=None).page.read_text("utf-8")
    section = page.partition('<details class="section" id="learned">')[2].partition("</details>")[0]
    cells = re.findall(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>", section)
    assert cells[:6] == ["data", "of", "when", "form", "limited by", "methods"]
    assert cells[6:12] == ["&lt;b&gt;update", "cohort", "before selection", "sum", "larger cohort", "b"]  # earlier
    assert cells[12:] == ["loss", "cohort", "each round", "each client", "-", "all"]
    assert "A sum over one client is the data of this client." in section
    assert " open" not in section.partition(">")[0]
