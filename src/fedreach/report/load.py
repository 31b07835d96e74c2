"""Run folders -> values: what happened in each round, to whom, and how each run ended.

Runs under way are read as their last checkpoint has them. Rows are read by columns: one `json.loads` for all lines, one
look at the keys of all rows that have the same ones; only what is wrong is then looked for line by line, and refused by
a RunFolderError.
"""

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from fedreach.arrays import AnyArray, Floats, Ints
from fedreach.errors import ConfigError, RunFolderError
from fedreach.evidence.plan import AnalysisPlan
from fedreach.forks import map_forked
from fedreach.report.analysis.airtime import airtime
from fedreach.report.analysis.theory import terms
from fedreach.report.merge import merged
from fedreach.report.rows import objects
from fedreach.report.values import ClientScores, Comparison, RoundsTable, Run
from fedreach.runs.folder import R, RunFolder, json_object
from fedreach.runs.schema import (
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
from fedreach.storage.files import altered, missing, text_of


def read(folders: Sequence[Path]) -> Comparison:
    """Read comparisons and single runs into one comparison, see `fedreach.report.merge`.

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
