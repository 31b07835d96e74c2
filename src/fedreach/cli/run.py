"""``fedreach run``: run one federation."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedreach._util.errors import ConfigError
from fedreach.cli import options

if TYPE_CHECKING:
    from fedreach.engines.distributed import Ranks
    from fedreach.experiment.schema import Experiment
    from fedreach.runs.schema import Result


# ---- Options for your own table

_OPTIONS = (
    click.option("--data", type=options.path, help="Read your own table (.csv or .parquet) with one example per row."),
    click.option("--client", metavar="COLUMN", help="Name the column with the client of each row."),
    click.option("--label", metavar="COLUMN", help="Name the column with the class of each row."),
    click.option(
        "--target",
        "targets",
        metavar="COLUMN",
        multiple=True,
        help="Name the column with the number to predict. Repeatable.",
    ),
    click.option("--group", metavar="COLUMN", help="Hold out all rows of a group, such as a patient, together."),
    click.option("--time", metavar="COLUMN", help="Hold out the latest rows according to this column."),
    click.option(
        "--participants",
        help='Set the number of participants, or their names: north,"St. Mary, London" (default: 40%).',
    ),
)


def add_table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for a user's table to a command."""
    return functools.reduce(lambda inner, option: option(inner), reversed(_OPTIONS), command)


def load_experiment(
    config: Path | None,
    overrides: Sequence[str],
    device: str | None,
    tracked: Sequence[str],
    *,
    quiet: bool,
    alone: bool = False,
    data: Path | None,
    targets: Sequence[str],
    participants: str | None,
    **columns: str | None,
) -> tuple[Experiment, Path]:
    """Return the experiment of a command with `add_table_options`, and the folder that its files are relative to.

    With `alone`, the methods of the default file are ignored.

    Raises:
        ConfigError: If an option is given without the options that it requires, or if a column or client is missing.
        DataError: If the table cannot be used.
    """
    from fedreach.experiment.load import CLASSES_TEMPLATE, NUMBERS_TEMPLATE

    columns = {name: column for name, column in columns.items() if column is not None}
    template = None
    if data is not None:
        if config is not None:
            raise ConfigError(
                "--data cannot be combined with an experiment file. Set [data] and [partition] in the file instead."
            )
        if "client" not in columns or ("label" in columns) == bool(targets):
            raise ConfigError(
                "--data needs --client (the column with the client of each row), and either --label (the class) or "
                "--target (a number to predict)."
            )
        template = NUMBERS_TEMPLATE if targets else CLASSES_TEMPLATE
        named: dict[str, Any] = {**columns, "target": targets[0] if len(targets) == 1 else [*targets] or None}
        ordered = {name: named.get(name) for name in ("client", "label", "target", "group", "time")}
        ordered = {name: column for name, column in ordered.items() if column is not None}
        overrides = [*_table_overrides(data, ordered, participants, quiet=quiet), *overrides]
    elif table_options := [
        *columns,
        *(["target"] if targets else []),
        *(["participants"] if participants is not None else []),
    ]:
        raise ConfigError(f"--{table_options[0]} needs --data, a table in a .csv or .parquet file.")
    return options.load(config, overrides, device, tracked, template, alone=alone)


def _table_overrides(data: Path, columns: Mapping[str, Any], participants: str | None, *, quiet: bool) -> list[str]:
    """Return the options of `add_table_options` in the form of ``--set``.

    The table is read here once, so that its errors are reported first, with its contents.
    """
    from fedreach.data.own import of_file
    from fedreach.data.splits import ids_of
    from fedreach.experiment.load import names_in

    table = of_file(data, **columns)
    chosen: list[str] | int | None = None
    if participants is not None:
        names = names_in(participants)
        is_number = len(names) == 1 and re.fullmatch("0|[1-9][0-9]*", names[0])  # 007 is a name
        chosen = int(names[0]) if is_number else names
    ids = ids_of(chosen, table.owner_names)
    count = ids if isinstance(ids, int) else len(set(ids))
    set_ = {
        "name": data.stem,
        # The table fixes clients and held-out rows for all seeds. Participants are drawn, unless they are named.
        "partition": {"name": "natural", "seed": 0},
        "population.participants": count if isinstance(ids, int) else chosen,
        "method.cohort_size": min(5, -(-count // 2)),  # a choice among the participants
        "data": {"name": data.as_posix(), **columns},
    }
    if participants is None and not quiet:
        trains = f"participate{'s' * (count == 1)}"
        who = f"{count} of {len(table.owner_names)} clients (40%) {trains}, drawn by each seed"
        options.echo(f"{who}; --participants chooses their number or names.", err=True)
    return [f"{key}={_toml(value)}" for key, value in set_.items()]


def _toml(value: object) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value)


@click.command(
    epilog="Examples:\n\n\b\n  fedreach run\n  fedreach run my.toml --set local.lr=0.05 --seed 3\n"
    "  fedreach run my.toml --method entropy --out runs/entropy"
    "\n  fedreach run --data patients.csv --client hospital --target age"
)
@options.config
@options.overrides
@add_table_options
@click.option("--method", help="Run the method [methods.NAME] (default: the components of [method]).")
@options.seed
@click.option("--out", type=options.path, help="Write the run to this folder (default: runs/NAME-METHOD-seed-N).")
@click.option("--resume", is_flag=True, help="Fail if there is no checkpoint to resume from.")
@options.device
@options.track
@click.option("--explain", is_flag=True, help="Show which engine would train, without running it.")
@options.quiet
@options.verbose
@options.as_json
def run(
    config: Path | None,
    overrides: tuple[str, ...],
    method: str | None,
    seed: int | None,
    out: Path | None,
    resume: bool,
    device: str | None,
    tracked: tuple[str, ...],
    explain: bool,
    quiet: bool,
    as_json: bool,
    **table: Any,
) -> None:
    """Run one federation: one method with one seed.

    Without CONFIG, the run uses the digits that come with FedReach. Each finished round is appended to
    OUT/rounds.jsonl. Rerun an interrupted command to resume it. Under torchrun, all processes share the work.
    """
    from fedreach.api import terminal
    from fedreach.experiment.run import run as run_one
    from fedreach.runs.schema import CHECKPOINT

    with _ranks(alone=explain) as ranks:
        experiment, base = load_experiment(
            config, overrides, device, tracked, quiet=quiet or as_json, alone=method is None, **table
        )
        seed = experiment.seeds[0] if seed is None else seed
        folder = out or Path("runs") / f"{experiment.name}-{method or 'run'}-seed-{seed}"
        is_helper = ranks is not None and ranks.rank > 0
        if resume and not is_helper and not (folder / CHECKPOINT).exists():
            raise ConfigError(f"--resume: {folder} has no checkpoint. Without --resume, the run starts at round 0.")
        resolved = experiment.resolved(method)
        if explain:
            if os.environ.get("RANK", "0") == "0":  # only one process prints it
                _explain(resolved, base, seed, folder, as_json)
            return
        silent = quiet or as_json or is_helper
        with terminal.run_progress(resolved, folder, quiet=silent, verbose=options.is_verbose()) as callbacks:
            result = run_one(
                resolved,
                seed=seed,
                folder=folder,
                base=base,
                method=method or "run",
                ranks=ranks,
                callbacks=callbacks,
            )
    if result is not None:  # None in a process that only helps with another one's run
        print_result(folder, result, as_json)


def print_result(folder: Path, result: Result, as_json: bool) -> None:
    """Print the outcome of a run, and the folder in which it is stored."""
    from fedreach._util.text_tables import folded
    from fedreach.api import terminal
    from fedreach.report.analysis import baselines_of
    from fedreach.report.concerns import concerns
    from fedreach.report.formats import findings_text
    from fedreach.report.overview import analyse
    from fedreach.report.read import read as read_folders

    last, read = terminal.last_evaluation(folder), read_folders([folder])
    if as_json:
        baselines = {name: dict(of) for record in baselines_of(read) for name, of in record.columns.items()}
        numbers = {"last": last, "baselines": baselines, "findings": list(concerns(read))}
        options.set_json({"folder": str(folder), **result.to_json(), **numbers})
        return
    width = options.width()
    outcome = "\n".join(folded(terminal.outcome_sentence(last, result), width))
    texts = [terminal.baselines_table(read, last, width), outcome, findings_text(analyse(read), width)]
    options.echo("\n\n".join(filter(None, texts)))
    options.echo(f"\nRun     {folder}")
    if options.is_verbose():
        options.echo("\n".join(f"        {path}" for path in sorted(folder.glob("[!.]*"))))
    options.echo(f"Next    fedreach report {folder}")


def _explain(experiment: Experiment, base: Path, seed: int, folder: Path, as_json: bool) -> None:
    from fedreach.api import terminal
    from fedreach.experiment.run import explain

    data, name, why = explain(experiment, seed=seed, folder=folder, base=base)
    if as_json:
        options.set_json({"engine": name, "why": why})
    else:
        options.echo(terminal.summary(experiment.model_copy(update={"seeds": [seed]}), data))
        options.echo(why)


def _ranks(*, alone: bool) -> AbstractContextManager[Ranks | None]:
    """Join the processes that torchrun started for this run; None if there is only one, or `alone` is set."""
    if alone or "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        return nullcontext()
    from fedreach.engines.distributed import join

    return join()
