"""Write the report of run folders."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedreach._util.errors import RunFolderError
from fedreach.report.figures import draw_figures, figure_specs
from fedreach.report.figures.style import check_formats, paper_width
from fedreach.report.formats import tables_of, to_markdown
from fedreach.report.latex import to_latex, write_paper
from fedreach.report.overview import Analysis, analyse
from fedreach.report.page import render
from fedreach.report.read import read, without_garbage_collection
from fedreach.report.records import as_document, to_csv
from fedreach.report.tables import provenance_sentence, seeds_sentence


@dataclass(frozen=True)
class ReportPaths:
    """Files of a report, and the numbers that they show, so that run folders are read only once."""

    page: Path
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]
    analysis: Analysis
    paper: tuple[Path, ...] = ()  # files for a paper, in addition to table.tex


@without_garbage_collection()
def write_report(
    folders: Sequence[Path], out: Path, *, formats: Sequence[str] | None = (), paper: str | float | None = None
) -> ReportPaths:
    """Write page, tables and figures into ``out/report``; the same run folders give the same bytes.

    Args:
        folders: Folders of comparisons or single runs, as for `read`.
        out: Folder in which ``report/`` is created.
        formats: Additional files of each figure of the page: any of ``"svg"``, ``"png"``, ``"pdf"``. Each takes longer
            than the page. None draws no figures.
        paper: Width of figures for a paper, ``"single"`` or ``"double"`` column, or inches. They are drawn into
            ``report/paper`` as PDF and in `formats`, with their captions in LaTeX. None draws none.

    Raises:
        ConfigError: If a format or a width is unknown.
        RunFolderError: If a folder cannot be read, or `out` cannot be written to.
    """
    check_formats(formats or ())
    width = None if paper is None else paper_width(paper)
    analysis = analyse(read(folders))
    report = Path(out) / "report"
    with explain_write_errors(report):
        return _write_files(analysis, report, formats, width)


@contextmanager
def explain_write_errors(report: Path) -> Iterator[None]:
    """Raise RunFolderError, with advice, if a report cannot be written: run folders may be read-only."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{report} cannot be written: {error.strerror or error}. Say where the report is to go: fedreach report "
            "FOLDER --out OTHER (in Python, `out`)."
        ) from error


def _write_files(analysis: Analysis, report: Path, formats: Sequence[str] | None, width: float | None) -> ReportPaths:
    (report / "figures" if formats else report).mkdir(parents=True, exist_ok=True)
    tables, specs = tables_of(analysis), figure_specs(analysis)
    comparison = analysis.comparison
    seeds, provenance = seeds_sentence(comparison), provenance_sentence(comparison)
    texts = {
        "table.md": "\n".join(map(to_markdown, tables)),
        "table.csv": to_csv(analysis),
        "table.tex": to_latex(tables, comparison.name, seeds=seeds, provenance=provenance),
        "table.json": json.dumps(as_document(analysis), indent=1, ensure_ascii=False) + "\n",
    }
    for name, text in texts.items():
        _write_text(report / name, text)
    pictures = [] if formats is None else draw_figures(specs, report / "figures", formats)
    figures = tuple(path for picture in pictures for path in picture.files)
    page = report / "index.html"
    _write_text(page, render(analysis, pictures, list(texts)))
    printed: tuple[Path, ...] = ()
    if width is not None:
        printed = write_paper(
            specs,
            report,
            comparison.name,
            width=width,
            formats=formats or (),
            seeds=seeds,
            provenance=provenance,
        )
    return ReportPaths(page, tuple(report / name for name in texts), figures, analysis, printed)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
