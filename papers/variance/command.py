"""``python -m papers variance``: where the spread over seeds comes from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedreach._util.errors import ConfigError, FedReachError
from fedreach.cli import options

if TYPE_CHECKING:
    from papers.variance.decomposition import Decomposition
    from papers.variance.design import Design
    from papers.variance.report import VariancePaths


@click.command(
    epilog="Examples:\n\n\b\n  python -m papers variance\n"
    "  python -m papers variance my.toml --methods uniform entropy\n"
    "  python -m papers variance my.toml --draws 6,2,2,2 --workers 2 --json | jq '.components[].difference.value'"
)
@options.config
@options.overrides
@click.option(
    "--draws",
    default="20,2,2,2",
    show_default=True,
    metavar="P,C,M,B",
    help="Of partitions, participants within each, initial models within these, batches within those.",
)
@click.option(
    "--methods", nargs=2, metavar="BASELINE OTHER", help="Whose difference. Default: the baseline and the first other."
)
@click.option("--out", type=options.path, help="Folder of the runs. Default: runs/NAME-variance.")
@options.workers
@options.figure_files
@options.quiet
@options.as_json
def variance(
    config: Path | None,
    overrides: tuple[str, ...],
    draws: str,
    methods: tuple[str, str] | None,
    out: Path | None,
    workers: int | None,
    formats: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Split the spread over seeds into partition, participants, initial model and batches.

    Runs two methods on a nested design, in parallel processes, whatever seeds the experiment pins, and estimates what
    more seeds, more unseen clients or means over rounds would save. Rerun an interrupted command to resume it.
    """
    from fedreach.api import terminal
    from fedreach.experiment.workers import ComparisonCallback
    from papers.variance.design import chosen_methods, plan, record, run_design
    from papers.variance.report import write_variance

    experiment, base = options.load(config, overrides)
    design, figure_formats = _design(draws), options.figure_formats(formats)
    pair = chosen_methods(experiment, methods or ())
    out = out or Path("runs") / f"{experiment.name}-variance"
    first = plan(experiment, design, pair, out)[0]
    silent = quiet or as_json

    class Beginning(ComparisonCallback):
        def begin(self) -> None:
            from fedreach.engines.batches import checked_device

            checked_device(experiment.engine.device)
            data = options.first_seed_data(first.experiment, base)  # data that cannot be used ends it at once
            if not silent:
                click.echo(terminal.summary(first.experiment, data), err=True)
                times = " x ".join(map(str, design.draws))
                runs = f"{' and '.join(pair)}, {times} draws of partition, participants, initial model and batches"
                click.echo(f"  {runs}: {2 * design.size} runs of {experiment.rounds} rounds", err=True)

    with terminal.compare_progress(quiet=silent) as progress:
        callbacks = [Beginning(), *progress]
        status = run_design(experiment, design, pair, out=out, base=base, workers=workers, callbacks=callbacks)
    for job, cause in status.failed.items():
        click.secho(f"failed: {job.folder.name}, {job.label}: {cause}", fg="red", err=True)
    if status.failed and as_json:
        failed_runs = [{"method": job.method, "seed": job.seed, "error": cause} for job, cause in status.failed.items()]
        options.set_json({"failed": failed_runs})
    if status.failed:
        failed = f"{len(status.failed)} of {len(status.jobs)} runs failed, and all are needed."
        raise FedReachError(f"{failed} The others are kept; the same command tries again.")
    written = write_variance(out, record(experiment, design, pair, out), formats=figure_formats)
    _show(written, as_json)


def _show(written: VariancePaths, as_json: bool) -> None:
    from papers.variance.report import as_record

    if as_json:
        files = [str(path) for path in (*written.tables, *written.figures)]
        options.set_json({**as_record(written.decomposition), "files": files})
        return
    click.echo(_text(written.decomposition, options.width()))
    for kind, paths in (("Tables", written.tables), ("Figure", written.figures)):
        if paths:
            click.echo(f"{kind}: {paths[0].parent}/: {', '.join(path.name for path in paths)}")


def _text(decomposition: Decomposition, width: int) -> str:
    from fedreach._util.text_tables import folded, text_table
    from papers.variance import report as words

    design = words.design(decomposition) + " Standard deviations in points, with 95% intervals cut off at 0."
    cells = (words.parts_table(decomposition), words.ways_table(decomposition))
    tables = [text_table(header, rows, width) for header, rows in cells]
    title, sentences = words.title(decomposition), "\n".join(words.sentences(decomposition))
    parts = [f"{title}\n{design}", *tables, words.PINNED, sentences]
    return "\n\n".join(part if part in tables else "\n".join(folded(part, width)) for part in parts) + "\n"


def _design(draws: str) -> Design:
    from papers.variance.design import Design

    numbers = [int(number) for number in draws.split(",") if number.strip().isdecimal()]
    if len(numbers) != draws.count(",") + 1 or len(numbers) != 4:
        raise ConfigError(f"--draws must be four whole numbers such as 20,2,2,2; got {draws!r}.")
    partitions, participants, models, batches = numbers
    return Design((partitions, participants, models, batches))
