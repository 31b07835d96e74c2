"""``fedreach export``: what a finished run leaves for others to use."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from fedreach.cli import options


@click.command(
    epilog="Examples:\n\n\b\n  fedreach run --set method.serving=label_shift --out runs/served\n"
    "  fedreach export runs/served --to serving\n"
    "  fedreach export runs/served --to serving --which best --out ward/best.py"
)
@click.argument("run", type=options.path)
@click.option(
    "--to",
    "form",
    type=click.Choice(["serving"]),
    required=True,
    help="serving: the fitted rule as one Python file that needs numpy alone.",
)
@click.option("--out", type=options.path, default=Path("client.py"), show_default=True, help="The file to write.")
@click.option("--which", type=click.Choice(["last", "best"]), default="last", show_default=True, help="Of which model.")
@click.option("--cluster", type=click.IntRange(0), help="Number of the model, where the run has one a cluster.")
@click.option("--base", type=options.path, help="Folder that FILE.py:NAME is relative to. Default: the current one.")
@options.as_json
def export(
    run: Path,
    form: str,
    out: Path,
    which: Literal["last", "best"],
    cluster: int | None,
    base: Path | None,
    as_json: bool,
) -> None:
    """Write what a finished run leaves for others to use: how a deployed client is served."""
    from fedreach.serving.export import export as write

    saved = write(run, out, which, cluster=cluster, base=base)
    if as_json:
        said = {"method": saved.run.method, "seed": saved.run.seed, "round": saved.round, "rule": repr(saved.rule)}
        options.answer({"file": str(out), **said})
        return
    click.echo(f"Wrote {out}: {saved.rule} of {saved.run.method}, seed {saved.run.seed}, round {saved.round}.")
    click.echo(f"It needs numpy alone: import {out.stem}; adapter = {out.stem}.new_adapter()")
