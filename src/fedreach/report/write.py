"""Write the report of run folders."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedreach._util.errors import RunFolderError
from fedreach._util.files import reject_link
from fedreach.report.figures import FigureSpec, Picture, draw_figures, figure_specs
from fedreach.report.figures.style import check_formats, paper_width
from fedreach.report.formats import tables_of, to_markdown
from fedreach.report.latex import to_latex, write_paper
from fedreach.report.numbers import RunSet
from fedreach.report.overview import Analysis, analyse
from fedreach.report.page import render
from fedreach.report.read import read, without_garbage_collection
from fedreach.report.records import as_document, to_csv
from fedreach.report.tables import Table, provenance_sentence, seeds_sentence

A = TypeVar("A")


@dataclass(frozen=True)
class ReportPaths(Generic[A]):
    """Files of a report, and the numbers in them, so that run folders are read only once."""

    page: Path
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]
    analysis: A
    paper: tuple[Path, ...] = ()  # files for a paper, in addition to table.tex


@without_garbage_collection()
def write_report(
    folders: Sequence[Path], out: Path, *, formats: Sequence[str] | None = (), paper: str | float | None = None
) -> ReportPaths[Analysis]:
    """Write page, tables and figures into ``out/report``; the same run folders always produce the same bytes.

    Args:
        folders: Folders of comparisons or single runs, as for `read`.
        out: Folder in which ``report/`` is created.
        formats: Additional file formats of each figure: ``"svg"``, ``"png"``, ``"pdf"``. Each format takes longer than
            the page. None: no figures.
        paper: Width of figures for a paper: ``"single"`` or ``"double"`` column, or inches. FedReach writes these
            figures into ``report/paper`` as PDF and in `formats`, with captions in LaTeX. None: no figures for a paper.

    Raises:
        ConfigError: If a format or a width is unknown.
        RunFolderError: If a folder cannot be read, or `out` cannot be written to.
    """
    check_formats(formats or ())
    width = None if paper is None else paper_width(paper)
    analysis = analyse(read(folders))
    return write_files(
        analysis,
        Path(out) / "report",
        analysis.comparison.name,
        analysis.comparison,
        tables_of(analysis),
        to_csv(analysis),
        as_document(analysis),
        figure_specs(analysis),
        lambda pictures, files: render(analysis, pictures, files),
        formats=formats,
        width=width,
    )


@contextmanager
def explain_write_errors(report: Path) -> Iterator[None]:
    """Raise RunFolderError, with advice, if a report cannot be written, for example into a read-only run folder."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{report} cannot be written: {error.strerror or error}. Choose another folder: fedreach report FOLDER "
            "--out OTHER (in Python, `out`)."
        ) from error


def write_files(
    analysis: A,
    report: Path,
    name: str,
    comparison: RunSet | None,
    tables: Sequence[Table],
    csv: str,
    document: Mapping[str, Any],
    specs: Sequence[FigureSpec],
    page: Callable[[Sequence[Picture], Sequence[str]], str],
    *,
    formats: Sequence[str] | None,
    width: float | None,
) -> ReportPaths[A]:
    """Write the files of a report.

    Args:
        analysis: Numbers that the files show.
        report: Folder of the report.
        name: Name of the comparison or sweep.
        comparison: Comparison whose seeds and software are named in captions for a paper.
        tables: Tables in Markdown and LaTeX.
        csv: Numbers as CSV.
        document: Numbers as JSON.
        specs: Figures of the page.
        page: Function that returns the page, given its figures and the names of the other files.
        formats: As for `write_report`.
        width: Width of figures for a paper in inches. None: no figures for a paper.
    """
    seeds, provenance = (seeds_sentence(comparison), provenance_sentence(comparison)) if comparison else ("", "")
    texts = {
        "table.md": "\n".join(map(to_markdown, tables)),
        "table.csv": csv,
        "table.tex": to_latex(tables, name, seeds=seeds, provenance=provenance),
        "table.json": json.dumps(document, indent=1, ensure_ascii=False) + "\n",
    }
    files = list(texts)
    printed: tuple[Path, ...] = ()
    for path in (report, *(report.rglob("*") if report.is_dir() else ())):
        reject_link(path)
    with explain_write_errors(report):
        (report / "figures" if formats else report).mkdir(parents=True, exist_ok=True)
        pictures = [] if formats is None else draw_figures(specs, report / "figures", formats)
        texts["index.html"] = page(pictures, files)
        for file, text in texts.items():
            (report / file).write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
        if width is not None:
            printed = write_paper(
                specs, report, name, width=width, formats=formats or (), seeds=seeds, provenance=provenance
            )
    figures = tuple(path for picture in pictures for path in picture.files)
    return ReportPaths(report / "index.html", tuple(report / file for file in files), figures, analysis, printed)
