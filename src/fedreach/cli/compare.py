"""``fedreach compare``: compare methods on the same federation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedreach._util.errors import ConfigError, FedReachError
from fedreach.cli import options, run
from fedreach.cli.report import write

if TYPE_CHECKING:
    from fedreach.experiment.workers import ComparisonStatus


@click.command(
    epilog="Examples:\n\n\b\n  fedreach compare\n  fedreach compare examples/fashion_mnist.toml\n"
    "  fedreach compare my.toml --seeds 5 --workers 2 --set local.epochs=5 --out runs/longer\n"
    "  fedreach compare --detect 2.0 --max-seeds 100 --out runs/decided"
    "\n  fedreach compare --data patients.csv --client hospital --label readmitted --participants north,south"
    "\n  fedreach compare --data patients.csv --client hospital --target age --seeds 3"
)
@options.config
@options.overrides
@run.add_table_options
@click.option("--seeds", type=click.IntRange(1, 10_000), help="Use the seeds 0, 1, ..., N-1.")
@click.option(
    "--detect",
    type=float,
    metavar="POINTS",
    help="Run as many seeds as find a difference of so many percentage points; `seeds`, ten at least, are the pilot.",
)
@click.option(
    "--max-seeds",
    "max_seeds",
    type=click.IntRange(1, 10_000),
    help="With --detect: at most so many seeds. Default: 200.",
)
@click.option("--add-seeds", is_flag=True, help="Add seeds although there are results. There is no conclusion then.")
@click.option(
    "--rerun", multiple=True, metavar="METHOD", help="Move this method's runs aside and make them again. Repeatable."
)
@click.option("--out", type=options.path, help="Folder of the comparison. Default: runs/NAME.")
@options.workers
@click.option(
    "--executor",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="ray: on a cluster, see docs/running.md.",
)
@click.option("--address", help="Of the Ray cluster: auto, HOST:PORT, ray://HOST:PORT. Default: start one here.")
@options.formats
@options.device
@options.track
@options.quiet
@options.as_json
def compare(
    config: Path | None,
    overrides: tuple[str, ...],
    seeds: int | None,
    detect: float | None,
    max_seeds: int | None,
    add_seeds: bool,
    rerun: tuple[str, ...],
    out: Path | None,
    workers: int | None,
    executor: str,
    address: str | None,
    formats: str,
    device: str | None,
    tracked: tuple[str, ...],
    quiet: bool,
    as_json: bool,
    **table: Any,
) -> None:
    """Compare methods on the same federation: table, figures and page.

    Runs every [methods.NAME] with every seed in parallel processes. Rerun the command to resume it; with an additional
    method, only new runs are computed. Exits with status 1 if a run failed.

    With a table [sweep], runs a comparison at each of its settings, and writes one page with a figure. With [tune],
    each method is first given its best setting, by validation data of its participants.

    With --detect, the number of seeds follows from the spread of a pilot (Stein's two-stage procedure). The report then
    lists for each pair a decision, or the number of seeds that would decide.
    """
    from fedreach.api import terminal
    from fedreach.experiment.compare import compare as compare_all
    from fedreach.experiment.ray import OnRay
    from fedreach.report.read import seeds_to_detect

    if address is not None and executor != "ray":
        raise ConfigError(f"--address is that of a Ray cluster; got {address!r} without Ray. Add --executor ray.")
    machines = OnRay(address) if executor == "ray" else None
    plan_options = {
        "seeds": None if seeds is None else list(range(seeds)),
        "statistics.detect_points": detect,
        "statistics.max_seeds": max_seeds,
    }
    plan_overrides = [f"{key}={value}" for key, value in plan_options.items() if value is not None]
    experiment, base = run.load_experiment(
        config, [*overrides, *plan_overrides], device, tracked, quiet=quiet or as_json, **table
    )
    if max_seeds is not None and experiment.plan.detect_points is None:
        raise click.UsageError("--max-seeds is for --detect, whose rule may ask for many seeds.")
    out = out or Path("runs") / experiment.name
    figure_formats = options.figure_formats(formats)
    silent = quiet or as_json

    # Data are loaded here as well, so that unusable data end the command at once.
    begin = terminal.ComparisonStart(
        experiment,
        lambda: options.first_seed_data(experiment, base, shared=True),
        quiet=silent,
        trains_here=executor == "local",
    )
    with terminal.compare_progress(quiet=silent) as progress:
        callbacks = [begin, *progress]
        status = compare_all(
            experiment,
            out=out,
            base=base,
            workers=workers,
            executor=machines,
            callbacks=callbacks,
            add_seeds=add_seeds,
            rerun=rerun,
            further=seeds_to_detect,
        )
    print_outcome(status, out, figure_formats, as_json)


def print_outcome(status: ComparisonStatus, out: Path, figure_formats: tuple[str, ...] | None, as_json: bool) -> None:
    """Print the report of finished runs, and raise FedReachError if a run failed."""
    if status.finished:
        write([out], out, figure_formats, as_json)
    for job, cause in status.failed.items():
        click.secho(f"failed: {job.label}: {cause}", fg="red", err=True)
    if status.failed and as_json:
        failed_runs = [
            {"method": job.method, "seed": job.seed, "folder": str(job.folder), "error": cause}
            for job, cause in status.failed.items()
        ]
        options.set_json({"failed": failed_runs})
    if status.failed:
        failed = f"{len(status.failed)} of {len(status.jobs)} runs failed."
        raise FedReachError(f"{failed} The others are kept; the same command tries again.")
