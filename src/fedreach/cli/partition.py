"""``fedreach partition``: show how examples are divided among clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedreach._util.errors import ConfigError
from fedreach.cli import options

if TYPE_CHECKING:
    from fedreach.data.federated import FederatedData
    from fedreach.experiment.schema import Experiment


@click.command(
    epilog="Examples:\n\n\b\n  fedreach partition\n"
    "  fedreach partition my.toml --set partition.alpha=0.1 --plot labels.svg\n"
    '  fedreach partition my.toml --save partition.npz     # then: [partition] file = "partition.npz"'
)
@options.config
@options.overrides
@options.seed
@click.option("--save", type=options.path, help="Save the partition to this file (see partition.file).")
@click.option("--plot", type=options.path, help="Draw label distributions into this svg, png or pdf file.")
@options.verbose
@options.as_json
def partition(
    config: Path | None,
    overrides: tuple[str, ...],
    seed: int | None,
    save: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Show how examples are divided among clients."""
    from fedreach.runs.describe import federation_record

    experiment, base = options.load(config, overrides)
    if seed is not None:
        experiment = experiment.model_copy(update={"seeds": [seed]})
    options.check_figure(plot)
    data = options.first_seed_data(experiment, base)
    record = federation_record(data)
    if plot is not None and not data.dataset.num_classes:
        raise ConfigError("--plot needs classes as targets; these targets are numbers. Remove --plot.")
    if save is not None:  # before anything is printed, as it may fail
        data.partition.save(save)
    if as_json:
        options.set_json(record.to_json())
    else:
        options.echo(_text(experiment, data, options.width()))
    if save is not None:
        options.echo(f"Saved   {save}", err=as_json)
    if plot is not None:
        from fedreach.report.figures.clients import partition_heatmap

        figure = partition_heatmap(
            record.label_counts, record.participants, record.unseen, record.client_names, record.class_names
        )
        options.save_figure(figure, plot, as_json=as_json)


def _text(experiment: Experiment, data: FederatedData, width: int) -> str:
    """Return the statistics of a partition, and with --verbose the label counts of each client."""
    from fedreach._util.text_tables import folded, text_table
    from fedreach.api import terminal
    from fedreach.data.assignment import statistics

    d, federation = data.dataset, f"Federation {data.digest()}"
    summary = "\n".join(folded(terminal.summary(experiment, data), width))
    if not d.num_classes:  # only sizes are skewed, which the summary shows
        return f"{summary}\n{federation}"
    stats = statistics(data.partition, d.train_y, d.num_classes)
    labels = {
        "size": "examples",
        "entropy_nats": "label entropy (nats)",
        "divergence_nats": "KL divergence from all data (nats)",
        "earth_movers_distance": "earth mover's distance from all data",
        "effective_classes": "effective classes",
    }
    statistic_names = ("min", "median", "mean", "max")
    spreads = {label: stats.summary()[key] for key, label in labels.items()}
    rows = [[label, *(f"{spread[name]:.4g}" for name in statistic_names)] for label, spread in spreads.items()]
    parts = [summary, text_table(["per client", *statistic_names], rows, width)]
    if options.is_verbose():
        counts = data.partition.label_counts(d.train_y, d.num_classes)
        unseen = set(data.population.unseen.tolist())
        names = d.class_names or tuple(map(str, range(d.num_classes)))
        client_rows = [
            [
                data.name_of(client),
                "unseen" if client in unseen else "participant",
                *(str(n) if n else "." for n in row),
                str(row.sum()),
                f"{stats.entropy_nats[client]:.2f}",
            ]
            for client, row in enumerate(counts)
        ]
        parts.append(text_table(["client", "role", *names, "examples", "entropy"], client_rows, width, left=2))
    more = "" if options.is_verbose() else "     Clients one by one: --verbose"
    return "\n\n".join([*parts, f"{federation}{more}"])
