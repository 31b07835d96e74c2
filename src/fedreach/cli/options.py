"""What several commands share: options, and how they are read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedreach.errors import FedReachError

if TYPE_CHECKING:
    from fedreach.config.sections import Experiment
    from fedreach.data.federated import FederatedData

LOG_WIDTH = 220  # of tables that go to a file or a pipe

path = click.Path(path_type=Path)
config = click.argument("config", required=False, type=path)
overrides = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="A.B=C",
    help="Override an option, such as local.rate=0.05. Repeatable.",
)
seed = click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Default: the first of `seeds`.")
workers = click.option(
    "--workers", type=click.IntRange(1), help="Processes at a time. Default: the cores. Changes no number."
)
formats = click.option("--formats", default="svg,png,pdf", show_default=True, help="Figure formats, comma separated.")
device = click.option("--device", help="Where to train: cpu, cuda, cuda:1. Short for --set engine.device=...")
quiet = click.option("-q", "--quiet", is_flag=True, help="No progress.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document for machines, and no progress.")


class InterruptError(FedReachError):
    """Ctrl-C ended a command in its own way, said in the message."""

    exit_code = 130


def load(config: Path | None, overrides: Sequence[str], device: str | None = None) -> tuple[Experiment, Path]:
    """Return the experiment and the folder that its files are relative to."""
    from fedreach.config.load import load

    if device is not None:
        overrides = [*overrides, f"engine.device={device}"]
    return load(config, overrides), (config.resolve().parent if config is not None else Path.cwd())


def federated(experiment: Experiment, base: Path) -> FederatedData:
    """Return the data of an experiment's first seed."""
    from fedreach.config.user_code import blamed
    from fedreach.experiments.build import Builder

    with blamed(experiment, base):
        builder = Builder(experiment, base)
        return builder.federated(builder.dataset(progress=sys.stderr.isatty()), experiment.seeds[0])


def figure_formats(text: str) -> tuple[str, ...]:
    """Return the formats of a comma separated list, checked."""
    from fedreach.report.figures.saving import check_formats

    found = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    check_formats(found)
    return found


def figure_format(figure: Path | None) -> tuple[str, ...]:
    """Return the format that the ending of a figure's path names."""
    return figure_formats(figure.suffix[1:] or "none") if figure is not None else ()


def width() -> int:
    """Return how wide a table may be."""
    from rich.console import Console

    return Console().width if sys.stdout.isatty() else LOG_WIDTH
