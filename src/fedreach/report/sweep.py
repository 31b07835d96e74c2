"""The report of a sweep: a page with one cell a setting, and figures along what was swept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedreach.report.figures import Picture
from fedreach.report.figures.paper import width_of
from fedreach.report.figures.saving import check_formats, inline_svg, save
from fedreach.report.figures.swept import drawings
from fedreach.report.load import no_collection
from fedreach.report.paper import write_paper
from fedreach.report.render.captions import made_by, seeds_said
from fedreach.report.render.formats import to_markdown
from fedreach.report.render.latex import to_latex
from fedreach.report.render.sweep import as_sweep_document, render_sweep, tabulate_sweep, to_sweep_csv
from fedreach.report.render.tables import Table
from fedreach.report.swept import Cell, Swept
from fedreach.report.write import ReportPaths, into, write_report
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import ComparisonRecord, SweepRecord


@dataclass(frozen=True)
class SweepPaths:
    """The files of a sweep's report, and the numbers that they show."""

    page: Path
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]
    swept: Swept
    table: Table
    paper: tuple[Path, ...] = ()


def is_sweep(folder: Path) -> bool:
    """Say whether a folder holds a sweep."""
    return (folder / SweepRecord.FILE).exists()


@no_collection()
def write_sweep_report(
    folder: Path, out: Path, *, formats: Sequence[str] | None = (), paper: str | float | None = None
) -> SweepPaths:
    """Write the page of a sweep into ``out/report``, and that of each of its comparisons beside its runs.

    Args:
        folder: Of the sweep.
        out: Folder in which ``report/`` is made.
        formats: As in `fedreach.report.write.write_report`.
        paper: Likewise, of the figures along what was swept.

    Raises:
        ConfigError: If a format or a width is unknown.
        RunFolderError: If the folder cannot be read, or `out` cannot be written to.
    """
    check_formats(formats or ())
    width = None if paper is None else width_of(paper)
    record = RunFolder(folder).required(SweepRecord)
    pages: list[tuple[int, ReportPaths]] = []
    for place, cell in enumerate(record.cells):
        if (folder / cell / ComparisonRecord.FILE).exists():
            # Where the runs may not be written to, the pages of the cells lie beside that of the sweep.
            beside = folder / cell if out == folder else out / cell
            pages.append((place, write_report([folder / cell], beside, formats=formats)))
    cells = tuple(
        Cell(record.settings[place], folder / record.cells[place], written.page, written.analysis)
        for place, written in pages
    )
    swept = Swept(record, cells, tuple(record.settings[place] for place in range(len(record.cells))))
    report = out / "report"
    with into(report):
        return _written(swept, report, formats, width)


def _written(swept: Swept, report: Path, formats: Sequence[str] | None, width: float | None) -> SweepPaths:
    (report / "figures" if formats else report).mkdir(parents=True, exist_ok=True)
    table = tabulate_sweep(swept)
    first = swept.cells[0].analysis.comparison if swept.cells else None
    seeds, made = (seeds_said(first), made_by(first)) if first else ("", "")
    texts = {
        "table.md": to_markdown(table),
        "table.csv": to_sweep_csv(swept),
        "table.tex": to_latex([table], swept.name, seeds=seeds, made=made),
        "table.json": json.dumps(as_sweep_document(swept), indent=1, ensure_ascii=False) + "\n",
    }
    for name, text in texts.items():
        (report / name).write_text(text, encoding="utf-8", newline="\n")
    pictures = []
    for each in [] if formats is None else drawings(swept):
        if (figure := each.draw()) is not None:
            svg = inline_svg(figure, each.name, each.title, each.description)
            files = save(figure, report / "figures" / each.name, formats) if formats else ()
            pictures.append(Picture(each.name, each.title, each.caption, each.description, svg, files))
    page = report / "index.html"
    page.write_text(render_sweep(swept, table, pictures, list(texts), report), encoding="utf-8", newline="\n")
    files = tuple(path for picture in pictures for path in picture.files)
    printed: tuple[Path, ...] = ()
    if width is not None:
        printed = write_paper(
            drawings(swept), report, swept.name, width=width, formats=formats or (), seeds=seeds, made=made
        )
    return SweepPaths(page, tuple(report / name for name in texts), files, swept, table, printed)
