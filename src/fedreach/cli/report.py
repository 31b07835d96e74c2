"""``fedreach report``: table, figures and page from stored rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fedreach._util.errors import FedReachError
from fedreach.cli import options

if TYPE_CHECKING:
    from fedreach.report.numbers import RunSet
    from fedreach.report.write import ReportPaths


@click.command(
    epilog="Examples:\n\n\b\n  fedreach report runs/digits\n  fedreach report runs/a runs/b --out both --formats svg\n"
    "  fedreach report runs/digits --style paper --width single\n"
    "  fedreach report runs/digits --json | jq '.methods[].unseen_mean'"
)
@click.argument("folders", nargs=-1, required=True, type=options.path)
@click.option("--out", type=options.path, help="Where to make report/. Default: the first folder.")
@options.formats
@click.option(
    "--style",
    type=click.Choice(["page", "paper"]),
    default="page",
    show_default=True,
    help="paper: also figures at column width as PDF, with captions in LaTeX, in report/paper.",
)
@click.option(
    "--width", metavar="INCHES", help="With --style paper: single (3.25), double (6.75), or inches. Default: single."
)
@options.track
@options.as_json
def report(
    folders: tuple[Path, ...],
    out: Path | None,
    formats: str,
    style: str,
    width: str | None,
    tracked: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write table, figures and page from the stored rows of comparisons, runs or a sweep.

    Several comparisons become one page, which lists their differences. They are rejected if their data or scores
    differ, as their numbers cannot be compared.
    """
    out = out or folders[0]
    if width is not None and style != "paper":
        raise click.UsageError("--width is for --style paper; figures of the page have one width.")
    paper = (width or "single") if style == "paper" else None
    write(folders, out, options.figure_formats(formats), as_json, paper)
    if tracked:
        _track(folders, tracked)


def _track(folders: Sequence[Path], names: Sequence[str]) -> None:
    """Replay finished runs to trackers; raise FedReachError if a tracker fails."""
    from fedreach.experiment.options import trackers_of, with_trackers
    from fedreach.experiment.schema import Experiment
    from fedreach.runs.folder import RunFolder
    from fedreach.runs.schema import ComparisonRecord
    from fedreach.runs.trackers import NamedTracker, replay_run

    experiment, failed = with_trackers(Experiment(), names, Path.cwd()), dict[str, str]()
    for folder in folders:
        comparison = RunFolder(folder).read(ComparisonRecord)
        runs = ["."] if comparison is None else [place for of in comparison.runs.values() for place in of.values()]
        for place in runs:
            trackers = [
                NamedTracker(*tracker) for tracker in trackers_of(experiment, Path.cwd()) if tracker[0] not in failed
            ]
            replay_run(RunFolder(folder / place), trackers, failed.setdefault)
    if failed:
        raise FedReachError("\n".join(failed.values()))


def write(
    folders: Sequence[Path], out: Path, formats: tuple[str, ...] | None, as_json: bool, paper: str | None = None
) -> None:
    """Write the report of comparisons, runs or one sweep, and print its tables, or its numbers as JSON."""
    from fedreach.runs.schema import SweepRecord

    swept = [folder for folder in folders if (folder / SweepRecord.FILE).exists()]
    if swept and len(folders) > 1:
        raise click.UsageError(
            f"{swept[0]} is a sweep and has a page of its own; name its cells, {swept[0]}/cells/...."
        )
    written, comparison, document, texts = (_write_sweep if swept else _write_runs)(folders, out, formats, paper)
    if written.paper and comparison is not None:
        from fedreach.api.comparison import write_bibliography

        written = replace(written, paper=(*written.paper, write_bibliography(comparison, written.paper[0].parent)))
    if as_json:
        files = [str(path) for path in (written.page, *written.tables, *written.figures, *written.paper)]
        options.set_json({**document, "page": str(written.page), "files": files})
        return
    click.echo("\n\n".join(texts))
    click.echo(f"\nPage: {written.page}")
    for kind, paths in (("Tables", written.tables), ("Figures", written.figures), ("For a paper", written.paper)):
        if paths:
            click.echo(f"{kind}: {paths[0].parent}/: {', '.join(path.name for path in paths)}")


class _Report(NamedTuple):
    """A written report: its paths, a comparison whose sources it cites, its numbers, and its tables for a terminal."""

    written: ReportPaths[Any]
    comparison: RunSet | None
    document: Mapping[str, Any]
    texts: Sequence[str]


def _write_runs(folders: Sequence[Path], out: Path, formats: tuple[str, ...] | None, paper: str | None) -> _Report:
    from fedreach.report.concerns import concerns
    from fedreach.report.formats import terminal_tables
    from fedreach.report.records import as_document
    from fedreach.report.write import write_report

    written = write_report(folders, out, formats=formats, paper=paper)
    comparison = written.analysis.comparison
    texts = [*terminal_tables(written.analysis, width=options.width()), *concerns(comparison)]
    return _Report(written, comparison, as_document(written.analysis), texts)


def _write_sweep(folders: Sequence[Path], out: Path, formats: tuple[str, ...] | None, paper: str | None) -> _Report:
    from fedreach.report.formats import terminal_text
    from fedreach.report.sweep import as_sweep_document, tabulate_sweep, write_sweep_report
    from fedreach.report.tables import setting_text, tabulate_tuning

    written = write_sweep_report(folders[0], out, formats=formats, paper=paper)
    swept = written.analysis
    tables = [(tabulate_sweep(swept), swept.record.name)]
    for cell in swept.cells:
        if (table := tabulate_tuning(cell.analysis.comparison)) is not None:
            tables.append((table, setting_text(cell.setting)))
    comparisons = [cell.analysis.comparison for cell in swept.cells]  # methods are the same in all of them
    texts = [terminal_text(table, name, options.width()) for table, name in tables]
    return _Report(written, next(iter(comparisons), None), as_sweep_document(swept), texts)
