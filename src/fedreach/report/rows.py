"""Rows of JSON Lines files -> columns, who was chosen with which weight, and every client's last score."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedreach.errors import RunFolderError
from fedreach.report.files import field, list_lines, read_line
from fedreach.report.values import ClientScores, Floats, Replies


def columns(rows: Sequence[Mapping[str, Any]], path: Path) -> dict[str, Floats]:
    """Return every number of the rows as a column, nan where a row has none.

    Raises:
        RunFolderError: If a value is no number, or rounds are missing or do not increase.
    """
    found: dict[str, Floats] = {"round": np.full(len(rows), np.nan)}
    # Rows with the same keys are read together: a few groups (evaluated or not), however many rounds.
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(tuple(row), []).append(place)
    try:
        for names, places in groups.items():
            held = [rows[place] for place in places]
            numbers = [name for name in names if not isinstance(held[0][name], (list, str, dict))]  # a cohort is none
            for name in numbers:
                column = found.setdefault(name, np.full(len(rows), np.nan))
                column[places] = np.array(list(map(itemgetter(name), held)), dtype=np.float64)  # None is nan
    except (TypeError, ValueError) as error:
        raise RunFolderError(
            f"{path} holds a value that is not a number ({error}). Run the same command again."
        ) from None
    rounds = found["round"]
    if not np.isfinite(rounds).all():
        line = int(np.flatnonzero(~np.isfinite(rounds))[0]) + 1
        raise RunFolderError(f"{path}, line {line} has no 'round'. Run the same command again.")
    wrong = np.flatnonzero(np.diff(rounds) <= 0)
    if len(wrong):
        place = int(wrong[0]) + 1
        raise RunFolderError(
            f"{path}, line {place + 1}: rounds must increase; got {rounds[place]:g} after {rounds[place - 1]:g}. "
            "Two runs wrote into one folder: give each its own."
        )
    return found


def replies(rows: Sequence[Mapping[str, Any]], numbers: Floats, path: Path) -> Replies:
    """Return who was chosen, what each report weighed and measured; `numbers` are the rounds of the rows.

    Raises:
        RunFolderError: If a round does not have one weight, or one number of a measurement, per report.
    """
    cohorts: list[list[int]] = [row.get("cohort") or [] for row in rows]
    weights: list[list[float]] = [row.get("weights") or [] for row in rows]
    replied = []
    for number, (row, cohort, weight) in enumerate(zip(rows, cohorts, weights, strict=True), 1):
        lost = row.get("lost") or []
        # Weights may stand for the whole cohort (0 for the lost) or, as reports do, for those that replied.
        ids = cohort if len(weight) == len(cohort) else [i for i in cohort if i not in lost]
        if len(ids) != len(weight):
            raise RunFolderError(
                f"{path}, line {number}: there must be one weight per report; "
                f"got {len(weight)} weights for {len(ids)} reports. Run the same command again."
            )
        replied.append(ids)
    rounds = numbers.astype(np.int64)
    return Replies(
        chosen_round=np.repeat(rounds, [len(ids) for ids in cohorts]),
        chosen=_flat(cohorts, np.int64),
        weight_round=np.repeat(rounds, [len(ids) for ids in replied]),
        weight_client=_flat(replied, np.int64),
        weight=_flat(weights, np.float64),
        metrics=_metrics(rows, [len(ids) for ids in replied], path),
    )


def _metrics(rows: Sequence[Mapping[str, Any]], counts: Sequence[int], path: Path) -> dict[str, Floats]:
    """Return what the replies of all rounds measured, laid end to end; `counts` are the replies of each round."""
    held: list[Mapping[str, list[float]]] = [row.get("metrics") or {} for row in rows]
    found = {}
    for name in dict.fromkeys(chain.from_iterable(held)):
        lists = [values.get(name) or [] for values in held]
        for number, (values, count) in enumerate(zip(lists, counts, strict=True), 1):
            if values and len(values) != count:
                raise RunFolderError(
                    f"{path}, line {number}: there must be one {name} per report; got {len(values)} for {count} "
                    "reports. Run the same command again."
                )
        measured = np.repeat([bool(values) for values in lists], counts)
        found[name] = np.full(len(measured), np.nan)
        found[name][measured] = np.array(list(chain.from_iterable(lists)), dtype=np.float64)  # None is nan
    return found


def last_scores(path: Path, whole: bool, has_unseen: bool) -> dict[str, ClientScores]:
    """Return each population's scores at its last evaluation."""
    # Only the last evaluation is drawn, so the file is read from its end: it can be long.
    wanted = {"participants", "unseen"} if has_unseen else {"participants"}
    lines = list_lines(path, whole=whole)
    scores: dict[str, ClientScores] = {}
    for number in range(len(lines), 0, -1):
        if wanted <= scores.keys():
            break
        row = read_line(path, number, lines[number - 1])
        population = field(row, "population", str, path)
        if population not in scores:
            scores[population] = ClientScores(
                round=field(row, "round", int, path),
                ids=np.array(field(row, "ids", list, path), dtype=np.int64),
                accuracy=np.array(field(row, "accuracy", list, path), dtype=np.float64),
            )
    return scores


def _flat(lists: Iterable[Sequence[Any]], kind: type) -> NDArray[Any]:
    return np.array(list(chain.from_iterable(lists)), dtype=kind)
