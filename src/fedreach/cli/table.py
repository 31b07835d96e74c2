"""A table of one's own on the command line: its columns and clients, as options of an experiment."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fedreach.errors import ConfigError


def overrides(
    config: Path | None,
    data: Path | None,
    client: str | None,
    label: str | None,
    group: str | None,
    time: str | None,
    participants: str | None,
    *,
    quiet: bool,
) -> list[str]:
    """Return what ``--data`` and the options that go with it set, as ``--set`` would.

    The table is read here once, so that what is wrong with it is said first, with what was found in it.

    Raises:
        ConfigError: If one goes without the others, or a column or client is not there.
        DataError: If the table cannot be used.
    """
    if data is None:
        rest = {"group": group, "time": time, "participants": participants}
        for name, given in {"client": client, "label": label, **rest}.items():
            if given is not None:
                raise ConfigError(f"--{name} goes with --data, a table in a .csv or .parquet file.")
        return []
    if config is not None:
        raise ConfigError("--data goes without a file: in one, say [data] and [partition] as `fedreach init` shows.")
    if client is None or label is None:
        raise ConfigError("--data needs --client and --label: the columns that name each row's client and its class.")
    from fedreach.config.reading import names_in
    from fedreach.data.own import of_file
    from fedreach.data.population import ids_of

    columns = {"client": client, "label": label, "group": group, "time": time}
    columns = {option: column for option, column in columns.items() if column is not None}
    table = of_file(data, **columns)
    asked: list[str] | int | None = None
    if participants is not None:
        asked = names_in(participants)
        asked = int(asked[0]) if len(asked) == 1 and asked[0] == str(_whole(asked[0])) else asked
    found = ids_of(asked, table.owner_names)
    count = found if isinstance(found, int) else len(set(found))
    whole = {"name": data.as_posix(), **columns}
    set_ = {
        "name": data.stem,
        # Who holds what and what is held out is the table's, for every seed; who takes part is drawn, unless named.
        "partition": {"name": "natural", "seed": 0},
        "population.participants": count if isinstance(found, int) else asked,
        "method.cohort": min(5, count),
        "data": whole,
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
