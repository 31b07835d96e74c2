"""Read run folders and write the report beside them."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedreach.errors import RunFolderError
from fedreach.report.analysis.analysis import Analysis, analyse
from fedreach.report.figures import gallery
from fedreach.report.figures.saving import check_formats
from fedreach.report.load import no_collection, read
from fedreach.report.render.formats import to_latex, to_markdown
from fedreach.report.render.metrics import tabulate_metrics
from fedreach.report.render.page import render
from fedreach.report.render.records import as_document, to_csv
from fedreach.report.render.serving import tabulate_serving
from fedreach.report.render.tables import tabulate, tabulate_contrasts
from fedreach.report.render.theory import tabulate_theory
from fedreach.report.render.tuning import tabulate_tuning


@dataclass(frozen=True)
class ReportPaths:
    """The files of a report, and the numbers that they show: run folders are long to read twice."""

    page: Path
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]
    analysis: Analysis


@no_collection()
def write_report(folders: Sequence[Path], out: Path, *, formats: Sequence[str] | None = ()) -> ReportPaths:
    """Write page, tables and figures into ``out/report``; the same run folders give the same bytes.

    Args:
        folders: Comparisons or single run folders, as for `read`.
        out: Folder in which ``report/`` is made.
        formats: Of files beside the page, which has the figures anyway: any of ``"svg"``, ``"png"``, ``"pdf"``. Each
            takes longer than the page. None draws no figures at all.

    Raises:
        ConfigError: If a format is unknown.
        RunFolderError: If a folder cannot be read, or `out` cannot be written to.
    """
    check_formats(formats or ())
    analysis = analyse(read(folders))
    report = Path(out) / "report"
    with into(report):
        return _written(analysis, report, formats)


@contextmanager
def into(report: Path) -> Iterator[None]:
    """Say of a report that cannot be written where it could go, as run folders may lie where nobody may write."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{report} cannot be written: {error.strerror or error}. Say where the report is to go: fedreach report "
            "FOLDER --out OTHER (in Python, `out`)."
        ) from error


def _written(analysis: Analysis, report: Path, formats: Sequence[str] | None) -> ReportPaths:
    (report / "figures" if formats else report).mkdir(parents=True, exist_ok=True)
    theory = tabulate_theory(analysis)
    pairs, further = tabulate_contrasts(analysis), tabulate_metrics(analysis)
    tables = [tabulate(analysis, "last"), *([pairs] if pairs else []), tabulate(analysis, "best")]
    tables += [each for each in (tabulate_tuning(analysis.comparison),) if each]
    tables += [*([further] if further else []), *tabulate_serving(analysis), *([theory] if theory else [])]
    texts = {
        "table.md": "\n".join(map(to_markdown, tables)),
        "table.csv": to_csv(analysis),
        "table.tex": "\n".join(map(to_latex, tables)),
        "table.json": json.dumps(as_document(analysis), indent=1, ensure_ascii=False) + "\n",
    }
    for name, text in texts.items():
        _write(report / name, text)
    pictures = [] if formats is None else gallery(analysis, report / "figures", formats)
    figures = tuple(path for picture in pictures for path in picture.files)
    page = report / "index.html"
    _write(page, render(analysis, pictures, list(texts)))
    return ReportPaths(page, tuple(report / name for name in texts), figures, analysis)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
