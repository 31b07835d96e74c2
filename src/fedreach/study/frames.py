"""Rows of run folders as one DataFrame: methods x seeds x rounds, or also x clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedreach.errors import ConfigError
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import ClientLine, RoundRow, ServedLine

if TYPE_CHECKING:
    import pandas as pd

SECONDS = ("train_seconds", "evaluate_seconds")
ROUND_COLUMNS = (
    *("method", "seed", "round"),
    *(each.name for each in fields(RoundRow) if each.name not in ("round", RoundRow.REST)),
    *SECONDS,
)
"""What every frame of rounds begins with; the columns of evaluations follow, see `fedreach.evaluation.Evaluator`."""
CLIENT_COLUMNS = ("method", "seed", "round", "client", "population", "id", "examples")
"""What every frame of clients begins with; the metrics follow."""
COUNTS = {"seed", "round", "id", "examples", "bytes_down", "bytes_up", "bytes_total", "probe_bytes"}
LISTS = {"cohort", "weights", "lost", "metrics", "allocation", "refused", "clusters"}
OBJECTS = LISTS | {"method", "client", "population", "remark"}
MISSING = {"by_server": False}  # what a column holds that a row leaves out; of others None
SCORES = ("accuracy", "loss", "calibration_error")  # of a client that is adapted


class RunAt(NamedTuple):
    """A run, by its method and seed, and its folder."""

    method: str
    seed: int
    folder: Path


def rounds_of(runs: Iterable[RunAt]) -> pd.DataFrame:
    """Return a row for each round of each run, round 0 first, with `ROUND_COLUMNS` and those of evaluations.

    What a round lacks, as the columns of an evaluation that was not made, is missing: nan in a column of numbers.

    Raises:
        ConfigError: If pandas is not installed.
    """
    rows: list[dict[str, Any]] = []
    for method, seed, path in runs:
        folder = RunFolder(path)
        kept = folder.kept_rows(RoundRow.FILE)
        timings = folder.timing(len(kept) - 1) if kept else []
        for row, timing in zip(kept, timings, strict=True):
            seconds = {name: getattr(timing, name) for name in SECONDS}
            rows.append({"method": method, "seed": seed, **row, **seconds})
    return _frame(rows, ROUND_COLUMNS)


def clients_of(runs: Iterable[RunAt]) -> pd.DataFrame:
    """Return a row for each client of each evaluation of each run, with `CLIENT_COLUMNS` and a column for each metric.

    The population is "participants" on what they hold out, "unseen", or "local": a client of the cohort by its own
    model before aggregation. With an adaptation rule, rows of the last round have ``served_MODE_SCORE``, too.

    Raises:
        ConfigError: If pandas is not installed.
    """
    rows: list[dict[str, Any]] = []
    for method, seed, path in runs:
        folder = RunFolder(path)
        adapted = _adapted(folder)
        for line in folder.records(ClientLine):
            metrics = {key: value for key, value in line.to_json().items() if isinstance(value, list)}
            names = metrics.pop("names", None) or [str(client) for client in line.ids]
            for place, client in enumerate(metrics.pop("ids")):
                known = {"method": method, "seed": seed, "round": line.round, "client": names[place], "id": client}
                values = {key: numbers[place] for key, numbers in metrics.items()}
                more = adapted.get((line.round, line.population, client), {})
                rows.append({**known, "population": line.population, **values, **more})
    return _frame(rows, CLIENT_COLUMNS)


def _adapted(folder: RunFolder) -> Mapping[tuple[int, str, int], dict[str, float]]:
    """Return the scores of adapted clients, by round of the last model, population and client."""
    found: dict[tuple[int, str, int], dict[str, float]] = {}
    for line in folder.records(ServedLine):
        for score in SCORES if line.model == "last" else ():
            for client, value in zip(line.ids, getattr(line, score), strict=True):
                row = found.setdefault((line.round, line.population, client), {})
                row[f"served_{line.rung}_{score}"] = value
    return found


def _frame(rows: list[dict[str, Any]], first: tuple[str, ...]) -> pd.DataFrame:
    """Return rows as a DataFrame with these columns first, each of the same type in every frame."""
    try:
        import pandas
    except ImportError as error:
        raise ConfigError(
            "rounds() and clients() return a DataFrame of pandas, which is not installed. Run: pip install pandas"
        ) from error
    names = dict.fromkeys([*first, *(name for row in rows for name in row)])
    return pandas.DataFrame(
        {name: pandas.Series([row.get(name, MISSING.get(name)) for row in rows], dtype=_type(name)) for name in names}
    )


def _type(name: str) -> str:
    """Return the type of a column, whatever stands in it."""
    return "int64" if name in COUNTS else "bool" if name in MISSING else "object" if name in OBJECTS else "float64"
