"""A table of one's own on the command line: its columns and clients, as options of an experiment."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from fedreach.cli import options
from fedreach.errors import ConfigError

_OPTIONS = (
    click.option("--data", type=options.path, help="Your own table, .csv or .parquet: a row an example."),
    click.option("--client", metavar="COLUMN", help="With --data: who holds each row."),
    click.option("--label", metavar="COLUMN", help="With --data: the class of each row."),
    click.option(
        "--target",
        "targets",
        metavar="COLUMN",
        multiple=True,
        help="With --data, in place of --label: the number to predict. Repeatable.",
    ),
    click.option("--group", metavar="COLUMN", help="With --data: rows of one are held out together, as a patient's."),
    click.option("--time", metavar="COLUMN", help="With --data: the latest rows are held out."),
    click.option(
        "--participants",
        help='With --data: how many train, or who: north,"St. Mary, London". Default: 40 % of the clients.',
    ),
)


def of_table(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a table of one's own."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def default(label: str | None, targets: Sequence[str]) -> Path | None:
    """Return the experiment that a table of one's own is put into; None: none was given."""
    from fedreach.config.load import OF_CLASSES, OF_NUMBERS

    return OF_NUMBERS if targets else OF_CLASSES if label is not None else None


def overrides(
    config: Path | None,
    data: Path | None,
    client: str | None,
    label: str | None,
    targets: Sequence[str],
    group: str | None,
    time: str | None,
    participants: str | None,
    *,
    quiet: bool,
) -> list[str]:
    """Return what the options of `of_table` set, as ``--set`` would.

    The table is read here once, so that what is wrong with it is said first, with what was found in it.

    Raises:
        ConfigError: If one goes without the others, or a column or client is not there.
        DataError: If the table cannot be used.
    """
    if data is None:
        rest = {"group": group, "time": time, "participants": participants}
        given = {"client": client, "label": label, "target": targets or None, **rest}
        for name, value in given.items():
            if value is not None:
                raise ConfigError(f"--{name} goes with --data, a table in a .csv or .parquet file.")
        return []
    if config is not None:
        raise ConfigError("--data goes without a file: in one, say [data] and [partition] as `fedreach init` shows.")
    if client is None or (label is None and not targets):
        raise ConfigError(
            "--data needs --client and --label: the columns that name each row's client and its class. A number to "
            "predict is --target instead of --label."
        )
    if label is not None and targets:
        raise ConfigError("--label names a class and --target a number to predict: give one of the two.")
    from fedreach.config.reading import names_in
    from fedreach.data.own import of_file
    from fedreach.data.population import ids_of

    predicted = {"label": label} if label is not None else {"target": targets[0] if len(targets) == 1 else [*targets]}
    columns = {"client": client, **predicted, "group": group, "time": time}
    columns = {option: column for option, column in columns.items() if column is not None}
    table = of_file(data, **columns)
    asked: list[str] | int | None = None
    if participants is not None:
        asked = names_in(participants)
        asked = int(asked[0]) if len(asked) == 1 and asked[0] == str(_whole(asked[0])) else asked
    found = ids_of(asked, table.owner_names)
    count = found if isinstance(found, int) else len(set(found))
    set_ = {
        "name": data.stem,
        # Who holds what and what is held out is the table's, for every seed; who takes part is drawn, unless named.
        "partition": {"name": "natural", "seed": 0},
        "population.participants": count if isinstance(found, int) else asked,
        "method.cohort": min(5, count),
        "data": {"name": data.as_posix(), **columns},
    }
    if participants is None and not quiet:
        who = f"{count} of the {len(table.owner_names)} clients (40 %) take part, drawn by each seed"
        click.echo(f"{who}; --participants says how many, or who", err=True)
    return [f"{key}={_toml(value)}" for key, value in set_.items()]


def _toml(value: object) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value)


def _whole(text: str) -> int | None:
    """Return a whole number, of which 007 is none: that is a name."""
    return int(text) if text.isdecimal() and text.isascii() else None
