"""Read run folders."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from fedreach._util.arrays import AnyArray, Floats, Ints
from fedreach._util.errors import ConfigError, RunFolderError
from fedreach._util.files import altered_error, below, content_of, missing
from fedreach._util.processes import map_forked
from fedreach.evaluation.statistics import AnalysisPlan, plan_seeds
from fedreach.report.analysis import differences_by_seed
from fedreach.report.findings import flatten
from fedreach.report.numbers import ClientScores, RoundsTable, RunData, RunSet
from fedreach.report.radio import airtime
from fedreach.report.theory import terms
from fedreach.runs.folder import R, RunFolder, json_object
from fedreach.runs.schema import (
    HARMLESS_OPTIONS,
    AdaptationRecord,
    BaselinesRecord,
    ClientLine,
    ComparisonRecord,
    FederationRecord,
    Result,
    RoundRow,
    RunRecord,
    Timing,
    TuningRecord,
)

# ---- Rows of a file


def parse_rows(path: Path, text: str) -> list[dict[str, Any]]:
    """Parse one JSON object per line of a text; error messages name the file `path`.

    Raises:
        RunFolderError: If a line is not an object.
    """
    body = text.strip()
    try:
        # One call for all lines is several times faster; the faulty line is searched for only if it fails.
        rows: list[dict[str, Any]] = json.loads(f"[{body.replace(chr(10), ',')}]")
        if len(rows) == body.count("\n") + 1 and all(isinstance(row, dict) for row in rows):
            return rows
    except (ValueError, RecursionError):
        pass
    lines = enumerate(body.split("\n"), 1)
    return [json_object(line, f"{path}, line {number}") for number, line in lines if line.strip()]


# ---- Several comparisons or runs as one

MEMBER_TABLES = ("methods", "name", "seeds", "baseline", "sweep", "tune", "method")
"""Tables of an experiment that describe the members of a comparison rather than its conditions."""


def merge_comparisons(folders: Sequence[Path], parts: Sequence[RunSet]) -> RunSet:
    """Merge several comparisons into one, in this order; the first comparison sets the baseline.

    Runs of a method with the same settings and different seeds become one method. Methods with the same name in two
    comparisons may have different settings or the same seed. FedReach then adds the name of the comparison to the name
    of the method. In this case, it computes differences within each comparison, and between comparisons with the same
    clients.

    Raises:
        RunFolderError: If the comparisons use different data or scores, or if a run occurs twice.
    """
    if len(parts) == 1:
        return parts[0]
    _refuse_incomparable(folders, parts)
    labels = _labels(folders, parts)
    apart = _ambiguous_methods(parts)
    if apart:
        _refuse_twice(folders, parts)
    several = bool(apart) or sum(len(part.runs) > 1 for part in parts) > 1  # else they are runs of one comparison
    labelled = [_relabel(part, label, apart) for part, label in zip(parts, labels, strict=True)]
    first = labelled[0]
    keys = {(run.method, run.seed) for part in labelled for run in part.runs}
    targets = [part.target_accuracy for part in parts if part.target_accuracy is not None]
    return replace(
        first,
        target_accuracy=targets[0] if targets else None,
        methods=tuple(dict.fromkeys(method for part in labelled for method in part.methods)),
        seeds=tuple(sorted({seed for part in labelled for seed in part.seeds})),
        runs=tuple(run for part in labelled for run in part.runs),
        absent=tuple(key for part in labelled for key in part.absent if key not in keys),
        plan=replace(first.plan, contrasts=_pairs(labelled)) if apart else first.plan,
        labels=labels if several else (),
        differs=_differences(parts) if several else (),
        tuning=None,
    )


def _refuse_incomparable(folders: Sequence[Path], parts: Sequence[RunSet]) -> None:
    """Refuse comparisons on different data or scores."""
    begun = [(folder, _measured_on(part)) for folder, part in zip(folders, parts, strict=True) if part.runs]
    for folder, second in begun[1:]:
        first_folder, first = begun[0]
        for what in first:
            if second[what] != first[what]:
                values = f"{first[what]} and {second[what]}"
                raise RunFolderError(
                    f"{first_folder} and {folder} cannot be compared, because they have different values of {what}: "
                    f"{values}. Write a separate report for each."
                )


def _measured_on(part: RunSet) -> dict[str, str]:
    """Return the data set of a comparison, with the first digits of its hash, and its score."""
    run = part.runs[0]
    name, digest = run.partition.dataset.get("name"), str(run.partition.dataset.get("sha256"))[:8]
    return {
        "data set": f"{name} ({digest}, {run.partition.num_classes or 'no'} classes)",
        "score": part.score.words,
    }


def _labels(folders: Sequence[Path], parts: Sequence[RunSet]) -> tuple[str, ...]:
    """Return the name of each comparison, or if names repeat, the shortest ends of their paths that differ."""
    names = [part.name for part in parts]
    for depth in range(1, 1 + max(len(folder.resolve().parts) for folder in folders)):
        if len({*names}) == len(names):
            break
        names = ["/".join(folder.resolve().parts[-depth:]) for folder in folders]
    return tuple(names)


def _ambiguous_methods(parts: Sequence[RunSet]) -> set[str]:
    """Return the names that denote methods with different settings, or runs with the same seed."""
    settings_by_method: dict[str, dict[int, str]] = {}
    apart = set()
    for part in parts:
        part_settings: dict[str, dict[int, str]] = {}
        for run in part.runs:
            part_settings.setdefault(run.method, {})[run.seed] = _settings(run)
        for method, by_seed in part_settings.items():
            before = settings_by_method.setdefault(method, {})
            if before and (before.keys() & by_seed.keys() or {*before.values()} != {*by_seed.values()}):
                apart.add(method)
            before |= by_seed
    return apart


def _settings(run: RunData) -> str:
    """Return all settings that affect the numbers of a run, except its seed and what follows from other runs."""
    flat = {key: value for key, value in flatten(run.config).items() if key != "method.cohort_size.amounts"}
    return str({key: value for key, value in flat.items() if f"config.{key}" not in HARMLESS_OPTIONS})


def _refuse_twice(folders: Sequence[Path], parts: Sequence[RunSet]) -> None:
    met: dict[tuple[str, int, str, str], Path] = {}
    for folder, part in zip(folders, parts, strict=True):
        for run in part.runs:
            key = (run.method, run.seed, _settings(run), run.partition.hash)
            if key in met:
                raise RunFolderError(
                    f"method {run.method!r} with seed {run.seed} is in {met[key]} and again in {folder}. Write a "
                    "separate report for each folder, or omit one of them."
                )
            met[key] = folder


def _relabel(part: RunSet, label: str, apart: set[str]) -> RunSet:
    """Return a comparison with its label added to the names of ambiguous methods."""
    names = {method: f"{method} ({label})" if method in apart else method for method in part.methods}
    pairs = [(names[a], names[b]) for a, b in part.plan.pairs(part.methods, part.baseline)]
    return replace(
        part,
        baseline=names[part.baseline],
        methods=tuple(names.values()),
        runs=tuple(replace(run, method=names[run.method]) for run in part.runs),
        absent=tuple((names[method], seed) for method, seed in part.absent),
        plan=replace(part.plan, contrasts=pairs) if apart else part.plan,
    )


def _pairs(parts: Sequence[RunSet]) -> list[tuple[str, str]]:
    """Return the pairs within each comparison, and of all methods on the same clients with the first baseline."""
    first = parts[0].baseline
    clients = {run.partition.hash for run in parts[0].runs if run.method == first}
    pairs = [(str(a), str(b)) for part in parts for a, b in part.plan.contrasts]
    for part in parts[1:]:
        sharing = {run.method for run in part.runs if run.partition.hash in clients}
        pairs += [(method, first) for method in part.methods if method in sharing and (method, first) not in pairs]
    return pairs


def _differences(parts: Sequence[RunSet]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the options that differ, and their value in each comparison."""
    flat = [_conditions(part.config) for part in parts]
    keys = dict.fromkeys(key for options in flat for key in options)
    rows = [(key, tuple(options.get(key, "-") for options in flat)) for key in keys]
    return tuple((key, values) for key, values in rows if len({*values}) > 1)


def _conditions(config: Mapping[str, Any]) -> dict[str, str]:
    table = {key: value for key, value in config.items() if key not in MEMBER_TABLES}
    return {
        key: text for key, text in flatten(table).items() if f"config.{key}" not in HARMLESS_OPTIONS and text != "null"
    }


# ---- Run folders
# Unfinished runs are read up to their last checkpoint. For speed, rows are parsed by one `json.loads` for all lines and
# one check of the keys per group of rows; only errors are searched for line by line.


def read(folders: Sequence[Path]) -> RunSet:
    """Read comparisons and single runs into one comparison.

    Each folder contains a ``comparison.json`` or a ``run.json``. Methods keep the order in which they are read. The
    baseline is the baseline of the first folder or, for a single run, its method.

    Raises:
        RunFolderError: If a folder is not a run folder, a file is missing, damaged or of another format, or the
            folders cannot be compared.
    """
    if not folders:
        raise RunFolderError("a report needs at least one folder; got none. Name the folder that you set as `--out`.")
    parts = [_read_folder(Path(folder)) for folder in folders]
    return merge_comparisons(folders, parts)


def _read_folder(folder: Path) -> RunSet:
    if (folder / ComparisonRecord.FILE).exists():
        return _read_comparison(folder)
    if (folder / RunRecord.FILE).exists():
        run = read_run(folder)
        return RunSet(folder.name, run.method, None, (run.method,), (run.seed,), (run,), (), run.config)
    raise RunFolderError(
        f"{folder} is not a run folder: comparison.json or run.json not found. Name the output folder of `fedreach "
        "run` or `fedreach compare`."
    )


def _read_comparison(folder: Path) -> RunSet:
    stored = RunFolder(folder).required(ComparisonRecord)
    methods, path = list(stored.methods), folder / ComparisonRecord.FILE
    if stored.baseline not in methods:
        raise RunFolderError(f"{path}: 'baseline' must be one of 'methods' {methods}; got {stored.baseline!r}.")
    places = [(method, seed, place) for method, seeds in stored.runs.items() for seed, place in seeds.items()]
    begun = {place: None for _, _, place in places if _is_begun(below(folder, place))}
    absent = [(method, int(seed)) for method, seed, place in places if place not in begun]
    runs = map_forked(lambda place: read_run(folder / place, place), list(begun))
    for run in runs:
        if run.method not in methods:
            raise RunFolderError(
                f"{folder / run.path / RunRecord.FILE}: 'method' must be one of {methods}; got {run.method!r}."
            )
    return RunSet(
        name=stored.name,
        baseline=stored.baseline,
        target_accuracy=stored.target_accuracy,
        methods=tuple(methods),
        seeds=tuple(stored.seeds),
        runs=tuple(sorted(runs, key=lambda run: (methods.index(run.method), run.seed))),
        absent=tuple(absent),
        config=stored.config,
        plan=_plan(stored.statistics, path),
        pilot=None if stored.pilot is None else tuple(stored.pilot),
        looks=tuple(stored.looks or ()),
        lengths=tuple(stored.lengths or ()),
        tuning=RunFolder(folder).read(TuningRecord) if stored.config.get("tune") else None,
    )


def _is_begun(folder: Path) -> bool:
    """Return whether a run has something to report: it may fail before it has a federation."""
    return any((folder / shape.FILE).exists() for shape in (FederationRecord, RoundRow))


def _plan(stored: Mapping[str, Any], path: Path) -> AnalysisPlan:
    try:
        return AnalysisPlan(**stored)
    except (TypeError, ConfigError) as error:
        raise RunFolderError(f"{path}: 'statistics' is not valid: {error} Copy the folder again.") from None


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable Python's cyclic garbage collection, which would visit all rows and figures repeatedly."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@without_garbage_collection()
def read_run(folder: Path, path: str | None = None) -> RunData:
    """Read one run folder; `path` is its name in the report, by default the name of the folder."""
    stored = RunFolder(folder)
    head, federation = stored.required(RunRecord), stored.required(FederationRecord)
    result = stored.read(Result) or Result(status="unfinished", error=None)
    if federation.label_counts.ndim != 2:
        shape = federation.label_counts.shape
        raise RunFolderError(
            f"{folder / FederationRecord.FILE}: 'label_counts' must have the shape (clients, classes); got shape "
            f"{shape}."
        )
    if result.status not in ("finished", "failed", "unfinished"):
        raise RunFolderError(f"{folder / Result.FILE}: 'status' must be 'finished' or 'failed'; got {result.status!r}.")
    rows = parse_rows(folder / RoundRow.FILE, stored.kept_text(RoundRow.FILE))
    rounds = columns(rows, folder / RoundRow.FILE)
    table = rounds_table(rows, rounds["round"], folder / RoundRow.FILE)
    return RunData(
        path=path or folder.name,
        method=head.method,
        seed=head.seed,
        config=head.config,
        environment=head.environment,
        git=head.git or {},
        partition=federation,
        rounds=rounds,
        theory=terms(federation, table, rounds["round"], folder / RoundRow.FILE),
        airtime=airtime(rows, folder / RoundRow.FILE),
        replies=table,
        clients=last_scores(stored, bool(len(federation.unseen))),
        timing=_timing(folder / Timing.FILE, head.id, rounds["round"]),
        status=result.status,
        best_round=result.best_round,
        error=result.error,
        refit_rounds=None if result.refit is None else result.refit["rounds"],
        privacy=(result.privacy or {}).get("statement", ""),
        refused=tuple((row["round"], *refusal) for row in rows for refusal in (row.get("refused") or {}).items()),
        adaptation=_at_the_end(stored, result, AdaptationRecord),
        baselines=_at_the_end(stored, result, BaselinesRecord),
        learned=head.learned or (),
    )


def _at_the_end(folder: RunFolder, result: Result, shape: type[R]) -> R | None:
    """Return a record that a finished run wrote at its end; None if it did not."""
    is_written = result.status == "finished" and shape.FILE in (result.files or {})
    return folder.required(shape) if is_written else None


# ---- Columns of rounds

NUMBERS = {int, float, bool, type(None)}


def columns(rows: Sequence[Mapping[str, Any]], path: Path) -> dict[str, Floats]:
    """Return the numbers of the rows as columns, with nan for missing numbers; rounds must increase."""
    table: dict[str, Floats] = {"round": np.full(len(rows), np.nan)}
    # Rows with the same keys are read together: a few groups (evaluated or not), however many rounds.
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(tuple(row), []).append(place)
    for names, places in groups.items():
        group = [rows[place] for place in places]
        for name in names:
            values = list(map(itemgetter(name), group))
            if {*map(type, values)} <= NUMBERS:
                table.setdefault(name, np.full(len(rows), np.nan))[places] = np.array(values, np.float64)  # None is nan
    rounds = table["round"]
    wrong_places = np.flatnonzero(np.diff(rounds) <= 0)
    if len(wrong_places):
        place = int(wrong_places[0]) + 1
        raise RunFolderError(
            f"{path}, line {place + 1}: rounds must increase; got {rounds[place]:g} after {rounds[place - 1]:g}. Two "
            "runs wrote to one folder. Use a separate folder for each run."
        )
    return table


def rounds_table(rows: Sequence[Mapping[str, Any]], numbers: Floats, path: Path) -> RoundsTable:
    """Return the cohorts, weights and measurements of the rounds `numbers`."""
    cohorts: list[list[int]] = list(map(itemgetter("cohort"), rows))
    weights: list[list[float]] = list(map(itemgetter("weights"), rows))
    # Weights may cover the whole cohort, with 0 for lost replies, or only the clients that replied.
    chosen, counts = _lengths(cohorts), _lengths(weights)
    shorter = np.flatnonzero(counts != chosen).tolist()
    replied = list(cohorts)
    for place in shorter:
        lost = rows[place]["lost"]
        replied[place] = [i for i in cohorts[place] if i not in lost]
        if len(replied[place]) != counts[place]:
            raise RunFolderError(
                f"{path}, line {place + 1}: weights must have one number per reply; got {counts[place]} weights for "
                f"{len(replied[place])} replies. Rerun the command."
            )
    rounds = numbers.astype(np.int64)
    of_chosen = np.repeat(rounds, chosen), _flat(cohorts, np.int64)
    of_replied = (np.repeat(rounds, counts), _flat(replied, np.int64)) if shorter else of_chosen
    return RoundsTable(*of_chosen, *of_replied, _flat(weights, np.float64), _metrics(rows, counts, path))


def _metrics(rows: Sequence[Mapping[str, Any]], counts: Ints, path: Path) -> dict[str, Floats]:
    """Return the measurements of all replies, concatenated over rounds; `counts` are the replies of each round."""
    measurements: list[Mapping[str, list[float]]] = [row.get("metrics", {}) for row in rows]
    metrics = {}
    for name in dict.fromkeys(chain.from_iterable(measurements)):
        lists = [values.get(name) or [] for values in measurements]
        lengths = _lengths(lists)
        for place in np.flatnonzero((lengths > 0) & (lengths != counts)):
            raise RunFolderError(
                f"{path}, line {place + 1}: {name} must have one number per reply; got {lengths[place]} for "
                f"{counts[place]} replies. Rerun the command."
            )
        metrics[name] = np.full(counts.sum(), np.nan)
        metrics[name][np.repeat(lengths > 0, counts)] = _flat(lists, np.float64)  # None is nan
    return metrics


def _timing(path: Path, run: str, rounds: Floats) -> dict[str, Floats]:
    """Return the duration of each of the `rounds`; every row must have a valid digest."""
    if not len(rounds):
        return columns([], path)
    # Later rows belong to rounds after the last checkpoint.
    content = content_of(path)
    if content is None:
        raise missing(path)
    lines = content.decode(errors="replace").split("\n")[: int(rounds[-1]) + 1]
    rows = parse_rows(path, "\n".join(lines))
    intact = all(
        row.get("check") == Timing.digest(run, row.get("round"), row.get("train_seconds"), row.get("evaluate_seconds"))
        for row in rows
    )
    if not intact or not set(rounds) <= {row["round"] for row in rows}:
        raise altered_error(path)
    return columns(rows, path)


def last_scores(folder: RunFolder, has_unseen: bool) -> dict[str, ClientScores]:
    """Return the scores of each population at its last evaluation."""
    # Only the last evaluation is drawn, so the file, which can be long, is read from its end.
    populations = {"participants", "unseen"} if has_unseen else {"participants"}
    lines = folder.kept_text(ClientLine.FILE).strip().split("\n")
    scores: dict[str, ClientScores] = {}
    for number in range(len(lines) if lines[0] else 0, 0, -1):
        if populations <= scores.keys():
            break
        line = ClientLine.of_json(json.loads(lines[number - 1]))
        if line.population not in scores:
            scores[line.population] = ClientScores(
                round=line.round,
                ids=np.array(line.ids, dtype=np.int64),
                score=np.array(line.score, dtype=np.float64),
            )
    return scores


def _lengths(lists: Sequence[Sequence[Any]]) -> Ints:
    return np.fromiter(map(len, lists), np.int64, len(lists))


def _flat(lists: Iterable[Sequence[Any]], kind: type) -> AnyArray:
    try:
        return np.fromiter(chain.from_iterable(lists), kind)
    except TypeError:  # a null, which is nan
        return np.array(list(chain.from_iterable(lists)), dtype=kind)


# ---- Number of seeds from a pilot


@without_garbage_collection()
def seeds_to_detect(out: Path) -> tuple[int, str]:
    """Return the number of seeds needed to detect `detect_points` in each planned comparison, and a sentence on it.

    The number depends only on the runs of the pilot, so that repeated calls return the same number.

    Raises:
        RunFolderError: If `out` contains no comparison with a finished pilot.
    """
    comparison = read([out])
    plan, pilot = comparison.plan, comparison.pilot
    if plan.detect_points is None or pilot is None:
        raise RunFolderError(
            f"{out} must contain a comparison with a pilot. Start one with `fedreach compare --detect 2.0`."
        )
    pairs = plan.pairs(comparison.methods, comparison.baseline)
    paired = [differences_by_seed(comparison, *pair, "last", of=pilot)[0] for pair in pairs]
    needed = plan_seeds(paired, plan.detect_points / 100, correction=plan.correction, test=plan.test)
    seeds_by_pair = {pair: number for pair, number in zip(pairs, needed, strict=True) if number is not None}
    required = max(seeds_by_pair.values(), default=len(pilot))
    number = min(required, plan.max_seeds)
    hardest = max(seeds_by_pair, key=lambda pair: seeds_by_pair[pair], default=None)
    needs = "no pair needs more seeds" if hardest is None else f"{' vs. '.join(hardest)} needs the most seeds"
    limit = f"; max_seeds limits their number to {number}" if number < required else ""
    return number, (
        f"pilot of {len(pilot)} seeds: {required} seeds detect {plan.detect_points:g} points with 80% power "
        f"({needs}){limit}"
    )
