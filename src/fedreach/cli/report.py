"""``fedreach report``: table, figures and page from stored rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedreach.cli import options

if TYPE_CHECKING:
    from fedreach.report import ReportPaths


@click.command(
    epilog="Examples:\n\n\b\n  fedreach report runs/digits\n  fedreach report runs/a runs/b --out both --formats svg\n"
    "  fedreach report runs/digits --json | jq '.methods[].unseen_mean'"
)
@click.argument("folders", nargs=-1, required=True, type=options.path)
@click.option("--out", type=options.path, help="Where to make report/. Default: the first folder.")
@options.formats
@click.option("--tensorboard", is_flag=True, help="Also write event files for TensorBoard (extra `tracking`).")
@options.as_json
def report(folders: tuple[Path, ...], out: Path | None, formats: str, tensorboard: bool, as_json: bool) -> None:
    """Make table, figures and page again from the stored rows of comparisons or runs."""
    out = out or folders[0]
    written = write(folders, out, options.figure_formats(formats), as_json)
    if tensorboard:
        from fedreach.report.render.tensorboard import write_events

        write_events(written.analysis.comparison, out / "report" / "tensorboard")
        click.echo(f"Event files: {out / 'report' / 'tensorboard'}", err=as_json)


def write(folders: Sequence[Path], out: Path, formats: tuple[str, ...] | None, as_json: bool) -> ReportPaths:
    """Write the report and print its tables, or its numbers for machines; return what was written."""
    from fedreach.report import (
        as_document,
        near_chance,
        terminal_contrasts,
        terminal_metrics,
        terminal_serving,
        terminal_table,
        terminal_theory,
        write_report,
    )

    written = write_report(folders, out, formats=formats)
    analysis = written.analysis
    told = near_chance(analysis.comparison)
    if as_json:
        files = [str(path) for path in (written.page, *written.tables, *written.figures)]
        options.answer({**as_document(analysis), "page": str(written.page), "files": files, "advice": told or None})
        return written
    from rich.console import Console

    console = Console(highlight=False, width=options.width())
    console.print(terminal_table(analysis, width=console.width))
    if (contrasts := terminal_contrasts(analysis, width=console.width)) is not None:
        console.print(contrasts)
    if (further := terminal_metrics(analysis, width=console.width)) is not None:
        console.print(further)
    for table in terminal_serving(analysis, width=console.width):
        console.print(table)
    if (theory := terminal_theory(analysis, width=console.width)) is not None:
        console.print(theory)
    if told:
        click.echo(f"\n{told}")
    click.echo(f"\nPage: {written.page}")
    for kind, paths in (("Tables", written.tables), ("Figures", written.figures)):
        if paths:
            click.echo(f"{kind}: {paths[0].parent}/: {', '.join(path.name for path in paths)}")
    return written
