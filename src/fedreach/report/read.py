"""Reading finished runs."""

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
from fedreach._util.files import altered, missing, text_of
from fedreach._util.processes import map_forked
from fedreach.evaluation.statistics import AnalysisPlan, plan_seeds
from fedreach.report.analysis import differences
from fedreach.report.findings import flatten
from fedreach.report.numbers import ClientScores, Comparison, RoundsTable, Run
from fedreach.report.radio import airtime
from fedreach.report.theory import terms
from fedreach.runs.folder import R, RunFolder, json_object
from fedreach.runs.schema import (
    HARMLESS,
    NUMBERS,
    BaselinesRecord,
    ClientLine,
    ComparisonRecord,
    FederationRecord,
    Record,
    Result,
    RoundRow,
    RunRecord,
    ServingRecord,
    Timing,
    TuningRecord,
)

# -------------------- The rows of a run folder's files, many at a time


def objects(path: Path, text: str) -> list[dict[str, Any]]:
    """Return one object per line of a text, which stands in the file of this path.

    Raises:
        RunFolderError: If a line holds something else.
    """
    body = text.strip()
    try:
        # One call for all lines is several times faster; only when it fails is the guilty line looked for.
        rows: list[dict[str, Any]] = json.loads(f"[{body.replace(chr(10), ',')}]")
        if len(rows) == body.count("\n") + 1 and all(isinstance(row, dict) for row in rows):
            return rows
    except (ValueError, RecursionError):
        pass
    lines = enumerate(body.split("\n"), 1)
    return [json_object(line, f"{path}, line {number}") for number, line in lines if line.strip()]


# --- Several comparisons or runs as one, with what differs between them; refused where numbers cannot be compared

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


# -------------------- Run folders -> values: what happened in each round, to whom, and how each run ended
# Runs under way are read as their last checkpoint has them. Rows are read by columns: one `json.loads` for all lines,
# one
# look at the keys of all rows that have the same ones; only what is wrong is then looked for line by line, and
# refused by
# a RunFolderError.


def read(folders: Sequence[Path]) -> Comparison:
    """Read comparisons and single runs into one comparison, see `fedreach.report.read`.

    Folders hold a ``comparison.json`` or a ``run.json``. Methods keep the order in which they are met; the first
    folder's baseline (for a run: its method) is the baseline.

    Raises:
        RunFolderError: If a folder is not a run folder, a file is missing, damaged or of another format, or what is in
            them cannot be compared.
    """
    if not folders:
        raise RunFolderError("a report needs at least one folder; got none. Name the folder given as `--out`.")
    parts = [_read_folder(Path(folder)) for folder in folders]
    return merged(folders, parts)


def _read_folder(folder: Path) -> Comparison:
    if (folder / ComparisonRecord.FILE).exists():
        return _read_comparison(folder)
    if (folder / RunRecord.FILE).exists():
        run = read_run(folder)
        return Comparison(folder.name, run.method, None, (run.method,), (run.seed,), (run,), (), run.config)
    raise RunFolderError(
        f"{folder} is not a run folder: it holds neither comparison.json nor run.json. "
        "Name the folder that `fedreach run` or `fedreach compare` wrote with `--out`."
    )


def _read_comparison(folder: Path) -> Comparison:
    stored = RunFolder(folder).required(ComparisonRecord)
    methods, path = list(stored.methods), folder / ComparisonRecord.FILE
    if stored.baseline not in methods:
        raise RunFolderError(f"{path}: 'baseline' must be one of 'methods' {methods}; got {stored.baseline!r}.")
    places = [(method, seed, place) for method, seeds in stored.runs.items() for seed, place in seeds.items()]
    there = {place: None for _, _, place in places if _is_begun(folder / place)}
    absent = [(method, int(seed)) for method, seed, place in places if place not in there]
    runs = map_forked(lambda place: read_run(folder / place, place), list(there))
    for run in runs:
        if run.method not in methods:
            raise RunFolderError(
                f"{folder / run.path / RunRecord.FILE}: 'method' must be one of {methods}; got {run.method!r}."
            )
    return Comparison(
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
    """Say whether a run came so far that there is something to report: one may fail before it has a federation."""
    return any((folder / shape.FILE).exists() for shape in (FederationRecord, RoundRow))


def _plan(stored: Mapping[str, Any], path: Path) -> AnalysisPlan:
    try:
        return AnalysisPlan.of_json(stored)
    except (TypeError, ConfigError) as error:
        raise RunFolderError(
            f"{path}: 'statistics' must be as it was written: {error} Copy the folder again."
        ) from None


@contextmanager
def no_collection() -> Iterator[None]:
    """Hold off Python's search for cycles: it would walk through all rows and figures, again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@no_collection()
def read_run(folder: Path, path: str | None = None) -> Run:
    """Read one run folder, which the report calls by its name if no other path is given."""
    stored = RunFolder(folder)
    head, federation, result = stored.required(RunRecord), stored.required(FederationRecord), stored.read(Result)
    if federation.label_counts.ndim != 2:
        shape = federation.label_counts.shape
        raise RunFolderError(
            f"{folder / FederationRecord.FILE}: 'label_counts' must be clients x classes; got shape {shape}."
        )
    if result is not None and result.status not in ("finished", "failed"):
        raise RunFolderError(f"{folder / Result.FILE}: 'status' must be 'finished' or 'failed'; got {result.status!r}.")
    rows = objects(folder / RoundRow.FILE, stored.kept_text(RoundRow.FILE))
    rounds = columns(rows, RoundRow, folder / RoundRow.FILE)
    table = rounds_table(rows, rounds["round"], folder / RoundRow.FILE)
    return Run(
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
        status="unfinished" if result is None else result.status,
        best_round=None if result is None else result.best_round,
        error=None if result is None else result.error,
        refit_rounds=None if result is None or result.refit is None else result.refit["rounds"],
        refused=tuple((row["round"], *one) for row in rows for one in (row.get("refused") or {}).items()),
        serving=_at_the_end(stored, result, ServingRecord),
        baselines=_at_the_end(stored, result, BaselinesRecord),
    )


def _at_the_end(folder: RunFolder, result: Result | None, shape: type[R]) -> R | None:
    """Return what a finished run wrote in its end; None where it wrote no such file."""
    if result is None or result.status != "finished" or shape.FILE not in (result.digests or {}):
        return None
    return folder.required(shape)


# ---------------------------------------------------------------------------------------------------------- rows


def columns(rows: Sequence[Mapping[str, Any]], shape: type[Record], path: Path) -> dict[str, Floats]:
    """Return every number of the rows as a column, nan where a row has none; rounds must increase."""
    found: dict[str, Floats] = {"round": np.full(len(rows), np.nan)}
    # Rows with the same keys are read together: a few groups (evaluated or not), however many rounds.
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(tuple(row), []).append(place)
    for names, places in groups.items():
        shape.check_keys(names, f"{path}, line {places[0] + 1}")
        held = [rows[place] for place in places]
        for name in names:
            values, types = list(map(itemgetter(name), held)), shape.types_of(name)
            for wrong in {*map(type, values)} - types:
                line = next(place for place, value in zip(places, values, strict=True) if type(value) is wrong) + 1
                shape.check_type(name, wrong, f"{path}, line {line}")
            if types <= NUMBERS:
                found.setdefault(name, np.full(len(rows), np.nan))[places] = np.array(values, np.float64)  # None is nan
    rounds = found["round"]
    wrong_places = np.flatnonzero(np.diff(rounds) <= 0)
    if len(wrong_places):
        place = int(wrong_places[0]) + 1
        raise RunFolderError(
            f"{path}, line {place + 1}: rounds must increase; got {rounds[place]:g} after {rounds[place - 1]:g}. "
            "Two runs wrote into one folder: give each its own."
        )
    return found


def rounds_table(rows: Sequence[Mapping[str, Any]], numbers: Floats, path: Path) -> RoundsTable:
    """Return who was chosen, and the one weight and number of each measurement of each report, by rounds `numbers`."""
    cohorts: list[list[int]] = list(map(itemgetter("cohort"), rows))
    weights: list[list[float]] = list(map(itemgetter("weights"), rows))
    # Weights may stand for the whole cohort (0 for the lost) or, as reports do, for those that replied.
    chosen, counts = _lengths(cohorts), _lengths(weights)
    shorter = np.flatnonzero(counts != chosen).tolist()
    replied = list(cohorts)
    for place in shorter:
        lost = rows[place]["lost"]
        replied[place] = [i for i in cohorts[place] if i not in lost]
        if len(replied[place]) != counts[place]:
            raise RunFolderError(
                f"{path}, line {place + 1}: there must be one weight per report; "
                f"got {counts[place]} weights for {len(replied[place])} reports. Run the same command again."
            )
    rounds = numbers.astype(np.int64)
    of_chosen = np.repeat(rounds, chosen), _flat(cohorts, np.int64)
    of_replied = (np.repeat(rounds, counts), _flat(replied, np.int64)) if shorter else of_chosen
    return RoundsTable(*of_chosen, *of_replied, _flat(weights, np.float64), _metrics(rows, counts, path))


def _metrics(rows: Sequence[Mapping[str, Any]], counts: Ints, path: Path) -> dict[str, Floats]:
    """Return what the replies of all rounds measured, laid end to end; `counts` are the replies of each round."""
    held: list[Mapping[str, list[float]]] = [row.get("metrics", {}) for row in rows]
    found = {}
    for name in dict.fromkeys(chain.from_iterable(held)):
        lists = [values.get(name) or [] for values in held]
        lengths = _lengths(lists)
        for place in np.flatnonzero((lengths > 0) & (lengths != counts)):
            raise RunFolderError(
                f"{path}, line {place + 1}: there must be one {name} per report; got {lengths[place]} for "
                f"{counts[place]} reports. Run the same command again."
            )
        found[name] = np.full(counts.sum(), np.nan)
        found[name][np.repeat(lengths > 0, counts)] = _flat(lists, np.float64)  # None is nan
    return found


def _timing(path: Path, run: str, rounds: Floats) -> dict[str, Floats]:
    """Return how long rounds took: each row has a digest of its own, and there is one for each of the `rounds`."""
    if not len(rounds):
        return columns([], Timing, path)
    # Later rows are of rounds that are not vouched for yet.
    text = text_of(path)
    if text is None:
        raise missing(path)
    lines = text.split("\n")[: int(rounds[-1]) + 1]
    rows = objects(path, "\n".join(lines))
    found = columns(rows, Timing, path)
    whole = all(
        row.get("check") == Timing.digest(run, row["round"], row.get("train_seconds"), row.get("evaluate_seconds"))
        for row in rows
    )
    if not whole or not set(rounds) <= set(found["round"]):
        raise altered(path)
    return found


def last_scores(folder: RunFolder, has_unseen: bool) -> dict[str, ClientScores]:
    """Return each population's scores at its last evaluation."""
    path = folder.path / ClientLine.FILE
    # Only the last evaluation is drawn, so the file is read from its end: it can be long.
    wanted = {"participants", "unseen"} if has_unseen else {"participants"}
    lines = folder.kept_text(ClientLine.FILE).strip().split("\n")
    scores: dict[str, ClientScores] = {}
    for number in range(len(lines) if lines[0] else 0, 0, -1):
        if wanted <= scores.keys():
            break
        where = f"{path}, line {number}"
        line = ClientLine.of_json(json_object(lines[number - 1], where), where)
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


# -------------------- How many seeds a comparison needs, from the runs of its pilot


@no_collection()
def seeds_to_detect(out: Path) -> tuple[int, str]:
    """Return how many seeds find the comparison's `detect_points` in each of its contrasts, and why in words.

    It follows from the pilot's runs alone, so that it is the same whenever it is asked.

    Raises:
        RunFolderError: If `out` holds no comparison with a pilot that is finished.
    """
    comparison = read([out])
    plan, pilot = comparison.plan, comparison.pilot
    if plan.detect_points is None or pilot is None:
        raise RunFolderError(f"{out} holds no comparison with a pilot. Start one with `fedreach compare --detect 2.0`.")
    pairs = plan.pairs(comparison.methods, comparison.baseline)
    found = [differences(comparison, *pair, "last", of=pilot) for pair in pairs]
    paired = [{} if isinstance(each, str) else each for each in found]
    needed = plan_seeds(paired, plan.detect_points / 100, correction=plan.correction)
    known = {pair: number for pair, number in zip(pairs, needed, strict=True) if number is not None}
    wanted = max(known.values(), default=len(pilot))
    number = min(wanted, plan.most_seeds)
    said = ", ".join(f"{first} - {second} {seeds}" for (first, second), seeds in known.items()) or "none"
    less = f"; no more than {number} are run" if number < wanted else ""
    return number, (
        f"Pilot of {len(pilot)} seeds: to find {plan.detect_points:g} points with power 0.8, seeds: {said}. "
        f"So {wanted} in all{less}."
    )
