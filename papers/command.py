"""``python -m papers``: run tables and figures of papers, and judge which of their claims hold here."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedreach._util.text_tables import folded, text_table
from fedreach.cli import Commands, options
from papers.variance.command import variance

if TYPE_CHECKING:
    from papers.decisions import Progress

SECONDS_BETWEEN_LINES = 10.0  # of progress


class Papers(Commands):
    """Commands, of which `run` may be left out: a first word that is none of them is a recipe or an option of `run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=Papers,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="`python -m papers PAPER/ITEM` is short for `python -m papers run PAPER/ITEM`.",
)
def main() -> None:
    """Run tables and figures of five papers, and judge which of their claims hold here."""


@main.command(
    epilog="Examples:\n\n\b\n  python -m papers csra/fig6\n"
    "  python -m papers csra/fig2 --scale full --device cuda\n"
    "  python -m papers --all --scale smoke   # that every recipe runs\n"
    "  python -m papers my_figure.toml        # your own, see [recipe] extends"
)
@click.argument("name", metavar="[PAPER[/ITEM]]", required=False)
@click.option(
    "--scale",
    type=click.Choice(["smoke", "cpu", "full"]),
    default="cpu",
    show_default=True,
    help="smoke: seconds, shows that it runs; cpu: minutes on a laptop; full: as in the paper.",
)
@click.option("--all", "everything", is_flag=True, help="All recipes.")
@click.option("--out", type=options.path, help="Folder. Default: runs/PAPER-ITEM-SCALE for each recipe.")
@click.option("--pages", type=options.path, help="Also write a page per recipe, and an overview, into this folder.")
@options.workers
@options.figure_files
@options.device
@options.quiet
@options.as_json
def run(
    name: str | None,
    scale: str,
    everything: bool,
    out: Path | None,
    pages: Path | None,
    workers: int | None,
    formats: str,
    device: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run tables and figures of a paper, and judge which of its claims hold here.

    PAPER/ITEM is a recipe, such as csra/fig5; csra/fig2 stands for fig2a and fig2b, entropy/table1 for
    that table on each data set, csra for all of the paper. Rerun an interrupted
    command to resume it. A claim that does not hold is a result, not a failure. Figures 5 to 9 of csra also run the
    paper's own algorithm, which needs the extra `reproduce`: pip install 'fedreach[reproduce]'.
    """
    from fedreach.api import terminal
    from fedreach.report.figures.style import save as save_figure
    from fedreach.report.write import write_report
    from papers import curves, figures
    from papers import pages as page_writer
    from papers import recipe as recipes
    from papers.reproduce import reproduce

    if everything and name is not None:
        raise click.UsageError(f"--all is every recipe; leave it out to run {name}.")
    if name is None and not everything:
        raise click.UsageError("Name a recipe, or take --all. `python -m papers list` lists them.")
    chosen = recipes.names() if name is None else recipes.find(name)
    figure_formats, silent = options.figure_formats(formats), quiet or as_json
    records = []
    for chosen_name in chosen:
        recipe = recipes.load(chosen_name, scale, device=device)
        item = f"{recipe.name.replace('/', '-')}-{scale}"
        folder = Path("runs") / item if out is None else out / item if len(chosen) > 1 else out
        rounds_progress = _rounds_progress(chosen_name, quiet=silent)
        with terminal.compare_progress(quiet=silent) as progress:
            record = reproduce(recipe, folder, workers=workers, callbacks=progress, progress=rounds_progress)
        if figure_formats is not None:
            if (figure := figures.figure_of(record)) is not None:
                save_figure(figure, folder / "figure", figure_formats)
            for drawn, figure in curves.figures_of(record).items():
                save_figure(figure, folder / f"figure-{drawn}", figure_formats)
        if (folder / "comparison.json").exists():
            write_report([folder], folder, formats=figure_formats)
        if pages is not None:
            page_writer.add_record(record, pages)
        records.append({**record, "folder": str(folder)})
        if not as_json:
            click.echo(_text(record, options.width()))
            click.echo(f"\nWrote {folder}: {', '.join(sorted(path.name for path in folder.glob('[!.]*')))}\n")
    if pages is not None:
        paths = page_writer.write_pages(pages)
        if not as_json:
            click.echo(f"Pages: {pages / page_writer.INDEX} and {len(paths) - 1} more")
    if as_json:
        options.set_json(records)


def _text(record: Mapping[str, Any], width: int) -> str:
    """Return a record as text for the terminal."""
    from papers.record import CLAIM_COLUMNS, CUT, OPEN, claim_cells, describe_setting, tables

    title = click.style("\n".join(folded(f"{record['recipe']}: {record['title']}", width)), bold=True)
    parts = ["\n".join([title, *folded(describe_setting(record), width)])]
    if record["claims"]:
        parts.append(text_table(CLAIM_COLUMNS, map(claim_cells, record["claims"]), width, left=3))
    parts += [text_table(header, rows, width, title=title) for title, header, rows in tables(record)]
    for heading, sentences in ((OPEN, record["choices"]), (CUT, record["cut"])):
        if sentences:
            parts.append("\n".join(folded("\n".join([heading, *(f"  - {sentence}" for sentence in sentences)]), width)))
    return "\n\n".join(parts)


def _rounds_progress(name: str, *, quiet: bool) -> Progress:
    """Return a callback that prints every ten seconds how many rounds are decided and how long the rest takes."""
    from fedreach.api.terminal import clock

    start = last_report = time.monotonic()
    before: int | None = None

    def report(done: int, rounds: int) -> None:
        nonlocal last_report, before
        now = time.monotonic()
        if before is None:
            before = done  # decided by earlier commands
        elif not quiet and (now - last_report > SECONDS_BETWEEN_LINES or done == rounds):
            last_report = now
            remaining = (now - start) * (rounds - done) / (done - before)
            print(f"{name}: {done}/{rounds} rounds, {clock(remaining)} left", file=sys.stderr, flush=True)

    return report


@main.command("list", epilog="Examples:\n\n\b\n  python -m papers list\n  python -m papers list --json")
@options.as_json
def list_(as_json: bool) -> None:
    """List the recipes with their titles."""
    from papers.recipe import names, title

    if as_json:
        options.set_json(names())
        return
    widest = max(map(len, names()))
    click.echo("\n".join(f"{name:{widest}}  {title(name)}" for name in names()))


@main.command(epilog="Example:\n\n\b\n  python -m papers judge docs/results")
@click.argument("pages", type=options.path)
def judge(pages: Path) -> None:
    """Judge the claims of stored records again, and write their pages, without new runs."""
    from papers.pages import judge_again, write_pages

    judge_again(pages)
    click.echo(f"Wrote {len(write_pages(pages))} pages into {pages}")


main.add_command(variance)
