"""Who, what and how: the settings, data, software and fate of the runs, sorted for reading."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedreach.report.values import Comparison, Run

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class RunFacts:
    """Everything the page says about how the numbers came about."""

    data: Pairs
    partition: Pairs
    columns: tuple[tuple[str, str, str], ...]  # of a table: name, what it is, what it is like
    shared: Pairs  # settings that all methods have in common
    own: tuple[tuple[str, Pairs], ...]  # method -> settings in which methods differ
    software: Pairs
    seconds: tuple[tuple[str, str, str], ...]  # method, seconds per round: train, evaluate
    troubled: tuple[tuple[str, int, str, str, str], ...]  # method, seed, status, last round, error
    refused: tuple[tuple[str, int, str, str, str], ...]  # method, seed, who, in which rounds, what was said first
    runs: tuple[tuple[str, int, str, str], ...]  # method, seed, status, path


def gather(comparison: Comparison) -> RunFacts:
    """Return the facts of a comparison; what differs between runs is listed value by value."""
    runs = comparison.runs
    shared, own = _settings(comparison)
    return RunFacts(
        data=_merge(_told(run.partition.dataset) for run in runs),
        partition=_partition(runs),
        columns=_columns(runs),
        shared=shared,
        own=own,
        software=_merge(dict(r.environment) | {f"git.{k}": v for k, v in r.git.items()} for r in runs),
        seconds=tuple(_seconds(comparison, method) for method in comparison.methods if comparison.counted(method)),
        troubled=tuple(
            (run.method, run.seed, run.status, str(run.last_round) if run.last_round >= 0 else "none", run.error or "")
            for run in runs
            if run.status != "finished"
        )
        + tuple((method, seed, "never began", "none", "") for method, seed in comparison.absent),
        refused=tuple((run.method, run.seed, *one) for run in runs for one in _refused(run)),
        runs=tuple((run.method, run.seed, run.status, run.path) for run in runs),
    )


def _refused(run: Run) -> list[tuple[str, str, str]]:
    """Return who said what cannot be, in which rounds, and what it was at first."""
    rounds: dict[str, list[int]] = {}
    first: dict[str, str] = {}
    for number, who, why in run.refused:
        rounds.setdefault(who, []).append(number)
        first.setdefault(who, why)
    return [(who, counted(numbers), first[who]) for who, numbers in rounds.items()]


def counted(rounds: Sequence[int]) -> str:
    """Return rounds in words: all of a few, or how many.

    Example:
        >>> counted([0]), counted([2, 3]), counted([1, 2, 3, 5, 8])
        ('round 0', 'rounds 2, 3', '5 rounds from 1 to 8')
    """
    if len(rounds) > 4:
        return f"{len(rounds)} rounds from {rounds[0]} to {rounds[-1]}"
    return f"round{'s' * (len(rounds) > 1)} {', '.join(map(str, rounds))}"


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings as dotted keys and their values as JSON.

    Example:
        >>> flatten({"data": {"name": "digits"}, "cohort": 10})
        {'data.name': 'digits', 'cohort': '10'}
    """
    flat: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return flat


def _told(dataset: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a reader wants to know of a data set: not the scale of its colours, which differs with the seed."""
    return {key: value for key, value in dataset.items() if key not in ("mean", "std")}


def _merge(values: Iterable[Mapping[str, Any]]) -> Pairs:
    merged: dict[str, dict[str, None]] = {}
    for value in values:
        for key, text in flatten(value).items():
            merged.setdefault(key, {})[text] = None
    return tuple((key, " | ".join(texts)) for key, texts in merged.items())


def _settings(comparison: Comparison) -> tuple[Pairs, tuple[tuple[str, Pairs], ...]]:
    first: dict[str, dict[str, str]] = {}
    for run in comparison.runs:
        settings = flatten(run.config)
        settings.pop("seed", None)  # differs by design
        settings.pop("run.trackers", None)  # nothing that is shown depends on who looked on
        first.setdefault(run.method, settings)
    keys = list(dict.fromkeys(key for settings in first.values() for key in settings))
    same = [key for key in keys if len({settings.get(key) for settings in first.values()}) == 1]
    any_method = next(iter(first.values()), {})
    own = tuple(
        (method, tuple((key, settings[key]) for key in settings if key not in same))
        for method, settings in first.items()
    )
    return tuple((key, any_method[key]) for key in same), own if len(first) > 1 else ()


def _partition(runs: tuple[Run, ...]) -> Pairs:
    partitions = list({run.partition.hash: run.partition for run in runs}.values())
    if not partitions:
        return ()
    one = partitions[0]
    facts = {
        "clients": f"{len(one.participants)} participants, {len(one.unseen)} unseen",
        "examples per client": f"{one.sizes.min()} to {one.sizes.max()}, median {np.median(one.sizes):g}",
        "classes": str(one.label_counts.shape[1] or ("not told" if one.targets is None else "none: numbers")),
        **flatten(one.statistics),
        **flatten(one.noise or {}, "noise."),
        **flatten({**one.shift, "clients": len(one.shift["clients"])} if one.shift else {}, "shift."),
        "federation hash": " | ".join(partition.hash[:16] for partition in partitions),
    }
    return tuple(facts.items())


def _columns(runs: tuple[Run, ...]) -> tuple[tuple[str, str, str], ...]:
    """Return the columns of the table that the first run was trained on; in others only their scale differs."""
    prepared = next((run.partition.preparation for run in runs), None)
    if not prepared:
        return ()
    from fedreach.data.input_column import InputColumn  # only then what reads tables is loaded

    return tuple((each.name, each.kind, each.about) for each in map(InputColumn.of_json, prepared))


def _seconds(comparison: Comparison, method: str) -> tuple[str, str, str]:
    def mean(column: str) -> str:
        found = [run.timing[column] for run in comparison.counted(method) if column in run.timing]
        values = np.concatenate(found) if found else np.zeros(0)
        known = values[np.isfinite(values)]
        return f"{known.mean():.3g}" if len(known) else "-"

    return method, mean("train_seconds"), mean("evaluate_seconds")
