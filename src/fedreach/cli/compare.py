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
    "\n  fedreach compare --data patients.csv --client hospital --target age --seeds 3 --out runs/age"
)
@options.config
@options.overrides
@run.add_table_options
@click.option("--seeds", type=click.IntRange(1, 10_000), help="Use the seeds 0, 1, ..., N-1.")
@click.option(
    "--detect", type=float, metavar="POINTS", help="Run enough seeds to detect this difference, after a pilot."
)
@click.option(
    "--max-seeds",
    type=click.IntRange(1, 10_000),
    help="Limit the number of seeds of --detect (default: 200).",
)
@click.option("--add-seeds", is_flag=True, help="Add seeds to finished results. The report then draws no conclusion.")
@click.option("--rerun", multiple=True, metavar="METHOD", help="Rerun a method; keep its old runs. Repeatable.")
@click.option("--out", type=options.path, help="Write the comparison to this folder (default: runs/NAME).")
@options.workers
@click.option(
    "--executor",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Run on this machine or on a Ray cluster.",
)
@click.option("--address", help="Connect to Ray at auto, HOST:PORT or ray://HOST:PORT (default: start Ray here).")
@options.formats
@options.device
@options.track
@options.quiet
@options.verbose
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
    """Compare methods on the same clients, and write an HTML report.

    Runs every [methods.NAME] with every seed in parallel processes. Rerun the command to resume it. If you add a
    method, only the runs of this method are computed. Exits with status 1 if a run failed.

    With [sweep], FedReach runs a comparison for each setting. With [tune], it first chooses a setting for each method
    on validation data of the participants.

    With --detect, FedReach computes the number of seeds from the spread of a pilot (Stein's two-stage procedure).
    """
    from fedreach.api import terminal
    from fedreach.experiment.compare import compare as compare_all
    from fedreach.experiment.ray import OnRay
    from fedreach.report.read import seeds_to_detect

    if address is not None and executor != "ray":
        raise ConfigError(f"--address {address!r} needs --executor ray.")
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
        raise click.UsageError("--max-seeds needs --detect.")
    out = out or Path("runs") / experiment.name
    figure_formats = options.figure_formats(formats)
    silent = quiet or as_json

    # Data are loaded here as well, so that unusable data end the command at once.
    begin = terminal.ComparisonStart(
        experiment,
        lambda: options.first_seed_data(experiment, base, shared=True),
        quiet=silent,
        trains_here=executor == "local",
        verbose=options.is_verbose(),
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
    """Print the report of finished runs; raise FedReachError if a run failed."""
    if status.finished:
        write([out], out, figure_formats, as_json)
    for job, cause in status.failed.items():
        options.echo(f"failed: {job.label}: {cause}", err=True, color="red")
    if status.failed and as_json:
        failed_runs = [
            {"method": job.method, "seed": job.seed, "folder": str(job.folder), "error": cause}
            for job, cause in status.failed.items()
        ]
        options.set_json({"failed": failed_runs})
    if status.failed:
        failed = f"{len(status.failed)} of {len(status.jobs)} runs failed."
        raise FedReachError(f"{failed} Finished runs are kept. Rerun the command to try again.")
