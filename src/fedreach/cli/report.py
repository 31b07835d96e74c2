"""``fedreach report``: write tables, figures and HTML report of stored results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fedreach._util.errors import FedReachError
from fedreach._util.tables import count_noun
from fedreach.cli import options

if TYPE_CHECKING:
    from fedreach.report.numbers import RunSet
    from fedreach.report.write import ReportPaths

MAX_ROWS = 12  # rows of a sweep that are printed without --verbose


@click.command(
    epilog="Examples:\n\n\b\n  fedreach report runs/digits\n  fedreach report runs/a runs/b --out both --formats svg\n"
    "  fedreach report runs/digits --style paper --width single\n"
    "  fedreach report runs/digits --json | jq '.methods[].unseen_mean'"
)
@click.argument("folders", nargs=-1, required=True, type=options.path)
@click.option("--out", type=options.path, help="Write report/ into this folder (default: the first FOLDER).")
@options.formats
@click.option(
    "--style",
    type=click.Choice(["page", "paper"]),
    default="page",
    show_default=True,
    help="Write the page, or also figures for a paper (PDF and LaTeX).",
)
@click.option(
    "--width", metavar="INCHES", help="Set the width of paper figures: single, double, or inches (default: single)."
)
@options.track
@options.verbose
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
    """Write the HTML report, tables and figures of runs.

    FOLDERS are folders of comparisons, runs or one sweep. Several comparisons are combined in one report, which lists
    the options in which they differ. All comparisons must use the same data and scores.
    """
    out = out or folders[0]
    if width is not None and style != "paper":
        raise click.UsageError("--width needs --style paper.")
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
    """Write the report of comparisons, runs or one sweep, and print the main table, or the numbers as JSON."""
    from fedreach.runs.schema import SweepRecord

    swept = [folder for folder in folders if (folder / SweepRecord.FILE).exists()]
    if swept and len(folders) > 1:
        raise click.UsageError(
            f"{swept[0]} is a sweep and has its own report. Report its cells instead: {swept[0]}/cells/...."
        )
    written, comparison, document, text = (_write_sweep if swept else _write_runs)(folders, out, formats, paper)
    if written.paper and comparison is not None:
        from fedreach.api.comparison import write_bibliography

        written = replace(written, paper=(*written.paper, write_bibliography(comparison, written.paper[0].parent)))
    if as_json:
        files = [str(path) for path in (written.page, *written.tables, *written.figures, *written.paper)]
        options.set_json({**document, "page": str(written.page), "files": files})
        return
    options.echo(text)
    options.echo(f"\nReport  {written.page}" + "     All columns: --verbose" * (not options.is_verbose()))
    options.echo(f"Data    {written.page.parent}/table.{{{','.join(path.suffix[1:] for path in written.tables)}}}")
    for label, paths in (("Figures", written.figures), ("Paper", written.paper)):
        if paths:
            options.echo(f"{label:<7} {paths[0].parent} ({count_noun(len(paths), 'file')})")


class _Report(NamedTuple):
    """A written report: its paths, a comparison whose sources it cites, its numbers, and its text for a terminal."""

    written: ReportPaths[Any]
    comparison: RunSet | None
    document: Mapping[str, Any]
    text: str


def _write_runs(folders: Sequence[Path], out: Path, formats: tuple[str, ...] | None, paper: str | None) -> _Report:
    from fedreach.report.formats import findings_text, full_text, summary_text, tables_of
    from fedreach.report.records import as_document
    from fedreach.report.write import write_report

    written, width = write_report(folders, out, formats=formats, paper=paper), options.width()
    analysis = written.analysis
    text = summary_text(analysis, width)
    if options.is_verbose():
        tables = [full_text(table, width) for table in tables_of(analysis)]
        text = "\n\n".join([*tables, findings_text(analysis, width, limit=None)])
    return _Report(written, analysis.comparison, as_document(analysis), text)


def _write_sweep(folders: Sequence[Path], out: Path, formats: tuple[str, ...] | None, paper: str | None) -> _Report:
    from fedreach.report.formats import full_text, to_text
    from fedreach.report.sweep import as_sweep_document, tabulate_sweep, write_sweep_report
    from fedreach.report.tables import setting_text, tabulate_tuning

    written, width = write_sweep_report(folders[0], out, formats=formats, paper=paper), options.width()
    swept, verbose = written.analysis, options.is_verbose()
    table = tabulate_sweep(swept)
    text = full_text(table, width) if verbose else to_text(table, width, MAX_ROWS)
    for cell in swept.cells if verbose else ():
        if (tuning := tabulate_tuning(cell.analysis.comparison)) is not None:
            text += f"\n\n{setting_text(cell.setting)}\n{full_text(tuning, width)}"
    comparisons = [cell.analysis.comparison for cell in swept.cells]  # methods are the same in all of them
    return _Report(written, next(iter(comparisons), None), as_sweep_document(swept), text)
