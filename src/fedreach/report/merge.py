"""Several comparisons or runs as one, with what differs between them; refused where numbers cannot be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedreach.errors import ConfigError, RunFolderError
from fedreach.report.analysis.facts import flatten
from fedreach.report.values import Comparison, Run
from fedreach.runs.schema import HARMLESS

OF_ONE = ("methods", "name", "seeds", "baseline", "sweep", "tune", "method")
"""Tables of an experiment that say what is in a comparison, rather than on what it is made."""


def merged(folders: Sequence[Path], parts: Sequence[Comparison]) -> Comparison:
    """Return several comparisons as one, in this order; the first one's baseline is the baseline.

    Runs of one method with the same settings and other seeds are one method. Where two comparisons have a method of
    one name with other settings, or the same seed of it, each is called by its comparison, too, and differences are
    taken within each comparison, and between those with the same clients.

    Raises:
        RunFolderError: If they are on different data or judged by different scores, or the very same run comes twice.
    """
    if len(parts) == 1:
        return parts[0]
    _refuse_incomparable(folders, parts)
    labels = _labels(folders, parts)
    apart = _apart(parts)
    if apart:
        _refuse_twice(folders, parts)
    told = bool(apart) or sum(len(part.runs) > 1 for part in parts) > 1  # else they are runs of one comparison
    called = [_called(part, label, apart) for part, label in zip(parts, labels, strict=True)]
    first = called[0]
    keys = {(run.method, run.seed) for part in called for run in part.runs}
    targets = [part.target_accuracy for part in parts if part.target_accuracy is not None]
    return replace(
        first,
        target_accuracy=targets[0] if targets else None,
        methods=tuple(dict.fromkeys(method for part in called for method in part.methods)),
        seeds=tuple(sorted({seed for part in called for seed in part.seeds})),
        runs=tuple(run for part in called for run in part.runs),
        absent=tuple(key for part in called for key in part.absent if key not in keys),
        plan=replace(first.plan, contrasts=_pairs(called)) if apart else first.plan,
        labels=labels if told else (),
        differs=_differences(parts) if told else (),
        tuning=None,
    )


def _refuse_incomparable(folders: Sequence[Path], parts: Sequence[Comparison]) -> None:
    for what, of in (("data set", _data), ("score", _score)):
        found = {folder: said for folder, part in zip(folders, parts, strict=True) if (said := of(part))}
        (one, first), *others = [*found.items()] or [(Path(), "")]
        for other, second in others:
            if second != first:
                raise RunFolderError(
                    f"{one} and {other} cannot be compared: another {what}, {first} and {second}. Report them apart."
                )


def _data(part: Comparison) -> str:
    """Return which data a comparison is of, with the first digits of what they hold."""
    for run in part.runs:
        data = run.partition.dataset
        return f"{data.get('name')} ({str(data.get('sha256'))[:8]}, {run.partition.num_classes or 'no'} classes)"
    return ""


def _score(part: Comparison) -> str:
    return part.score.words if part.runs else ""


def _labels(folders: Sequence[Path], parts: Sequence[Comparison]) -> tuple[str, ...]:
    """Return what to call each: its name, or where names are the same the end of its folder's path that differs."""
    names = [part.name for part in parts]
    for depth in range(1, 1 + max(len(folder.resolve().parts) for folder in folders)):
        if len({*names}) == len(names):
            break
        names = ["/".join(folder.resolve().parts[-depth:]) for folder in folders]
    return tuple(names)


def _apart(parts: Sequence[Comparison]) -> set[str]:
    """Return the methods of one name that are not the same thing."""
    found: dict[str, dict[int, str]] = {}
    apart = set()
    for part in parts:
        mine: dict[str, dict[int, str]] = {}
        for run in part.runs:
            mine.setdefault(run.method, {})[run.seed] = _settings(run)
        for method, by_seed in mine.items():
            before = found.setdefault(method, {})
            if before and (before.keys() & by_seed.keys() or {*before.values()} != {*by_seed.values()}):
                apart.add(method)
            before |= by_seed
    return apart


def _settings(run: Run) -> str:
    """Return what makes the numbers of a run, but for its seed."""
    return str({key: value for key, value in flatten(run.config).items() if f"config.{key}" not in HARMLESS})


def _refuse_twice(folders: Sequence[Path], parts: Sequence[Comparison]) -> None:
    met: dict[tuple[str, int, str, str], Path] = {}
    for folder, part in zip(folders, parts, strict=True):
        for run in part.runs:
            key = (run.method, run.seed, _settings(run), run.partition.hash)
            if key in met:
                raise RunFolderError(
                    f"method {run.method!r} with seed {run.seed} is in {met[key]} and again in {folder}. "
                    "Report them apart, or leave one out."
                )
            met[key] = folder


def _called(part: Comparison, label: str, apart: set[str]) -> Comparison:
    """Return a comparison whose methods, where another has them too, are called by its label as well."""
    names = {method: f"{method} ({label})" if method in apart else method for method in part.methods}
    pairs = [(names[a], names[b]) for a, b in part.plan.pairs(part.methods, part.baseline)]
    try:
        plan = replace(part.plan, contrasts=pairs) if apart else part.plan
    except ConfigError as error:  # it was read, so it is right
        raise RunFolderError(str(error)) from error
    return replace(
        part,
        baseline=names[part.baseline],
        methods=tuple(names.values()),
        runs=tuple(replace(run, method=names[run.method]) for run in part.runs),
        absent=tuple((names[method], seed) for method, seed in part.absent),
        plan=plan,
    )


def _pairs(called: Sequence[Comparison]) -> list[tuple[str, str]]:
    """Return the differences within each, and of all methods that share clients with the first one's baseline to it."""
    first = called[0].baseline
    clients = {run.partition.hash for run in called[0].runs if run.method == first}
    pairs = [(str(a), str(b)) for part in called for a, b in part.plan.contrasts]
    for part in called[1:]:
        sharing = {run.method for run in part.runs if run.partition.hash in clients}
        pairs += [(method, first) for method in part.methods if method in sharing and (method, first) not in pairs]
    return pairs


def _differences(parts: Sequence[Comparison]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the options that differ, and what each comparison says of them."""
    flat = [_conditions(part.config) for part in parts]
    keys = dict.fromkeys(key for each in flat for key in each)
    rows = [(key, tuple(each.get(key, "-") for each in flat)) for key in keys]
    return tuple((key, said) for key, said in rows if len({*said}) > 1)


def _conditions(config: Mapping[str, Any]) -> dict[str, str]:
    table = {key: value for key, value in config.items() if key not in OF_ONE}
    return {key: text for key, text in flatten(table).items() if f"config.{key}" not in HARMLESS and text != "null"}
