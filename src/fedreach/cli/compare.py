"""``fedreach compare``: methods on the same federation."""

from pathlib import Path

import click

from fedreach.cli import options
from fedreach.cli.report import write
from fedreach.errors import FedReachError


@click.command(
    epilog="Examples:\n\n\b\n  fedreach compare\n  fedreach compare examples/fashion_mnist.toml\n"
    "  fedreach compare my.toml --seeds 5 --workers 2 --set local.epochs=5 --out runs/longer"
)
@options.config
@options.overrides
@click.option("--seeds", type=click.IntRange(1, 10_000), help="Use the seeds 0, 1, ..., N-1.")
@click.option("--out", type=options.path, help="Folder of the comparison. Default: runs/NAME.")
@options.workers
@click.option("--executor", default="local", show_default=True, help="local, or ray: a cluster, see docs/cluster.md.")
@click.option("--address", help="Of the Ray cluster: auto, HOST:PORT, ray://HOST:PORT. Default: start one here.")
@options.formats
@options.device
@options.quiet
@options.as_json
def compare(
    config: Path | None,
    overrides: tuple[str, ...],
    seeds: int | None,
    out: Path | None,
    workers: int | None,
    executor: str,
    address: str | None,
    formats: str,
    device: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Compare methods on the same federation: table, figures and page.

    Runs every [methods.NAME] with every seed in parallel processes. The same command again runs only what is
    unfinished; with a method or a seed more, only what is new. Ends with 1 if a run failed.
    """
    from fedreach.cli import terminal
    from fedreach.experiments.compare import compare as compare_all
    from fedreach.experiments.executors import chosen
    from fedreach.experiments.jobs import ComparisonCallback

    machines = chosen(executor, address)
    experiment, base = options.load(config, overrides, device)
    if seeds is not None:
        experiment = experiment.model_copy(update={"seeds": list(range(seeds))})
    out = out or Path("runs") / experiment.name
    figure_formats = options.figure_formats(formats)
    silent = quiet or as_json

    class Beginning(ComparisonCallback):
        def begin(self) -> None:
            from fedreach.engines.samples import checked_device

            if executor == "local":  # the machine that starts a comparison on a cluster may have no GPU
                checked_device(experiment.engine.device)
            data = options.federated(experiment, base)  # here too, so that data that cannot be used ends it at once
            if not silent:
                click.echo(terminal.summary(experiment, data), err=True)

    with terminal.compare_progress(quiet=silent) as progress:
        callbacks = [Beginning(), *progress]
        status = compare_all(experiment, out=out, base=base, workers=workers, executor=machines, callbacks=callbacks)
    if status.finished:
        write([out], out, figure_formats, as_json)
    for job, cause in status.failed.items():
        click.secho(f"failed: {job.label}: {cause}", fg="red", err=True)
    if status.failed:
        failed = f"{len(status.failed)} of {len(status.jobs)} runs failed."
        raise FedReachError(f"{failed} The others are kept; the same command tries again.")
