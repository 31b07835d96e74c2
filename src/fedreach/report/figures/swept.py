"""Lines along what a sweep swept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedreach.report.analysis.quantities import POPULATION
from fedreach.report.analysis.rows import mean_of
from fedreach.report.figures import Asked
from fedreach.report.figures.spending import FAR
from fedreach.report.figures.sweep import sweep
from fedreach.report.render.tuning import words_of
from fedreach.report.swept import Cell, Swept


def drawings(swept: Swept) -> list[Asked]:
    """Return the figures of a sweep: along its first option, one for each setting of the others that has a line.

    Settings that were drawn at random over several options are shown along each of them, without lines.
    """
    keys, cells = list(swept.record.keys), [cell for cell in swept.cells if cell.analysis.comparison.all_counted]
    if not cells:
        return []
    if swept.record.samples is not None and len(keys) > 1:
        return [_asked(swept, cells, key, {}, f"sweep-{place}", lines=False) for place, key in enumerate(keys)]
    groups: dict[str, tuple[dict[str, Any], list[Cell]]] = {}
    for cell in cells:
        others = {key: value for key, value in cell.setting.items() if key != keys[0]}
        groups.setdefault(words_of(others), (others, []))[1].append(cell)
    names = ["sweep"] if len(groups) == 1 else [f"sweep-{place}" for place in range(len(groups))]
    return [
        _asked(swept, some, keys[0], others, name, lines=True)
        for name, (others, some) in zip(names, groups.values(), strict=True)
    ]


def _asked(
    swept: Swept, cells: Sequence[Cell], key: str, others: Mapping[str, Any], name: str, *, lines: bool
) -> Asked:
    first = cells[0].analysis.comparison
    score, columns = first.score, list(dict.fromkeys([first.seen, first.primary]))
    ordered, record = _record(swept, cells, key, columns)
    unit = ", %" if score.percent else ""
    titles = {c: f"{score.words.capitalize()} on {POPULATION[c].words}{unit}" for c in columns}
    at = f" at {words_of(others)}" if others else ""
    several = any(len(cell.analysis.comparison.counted(m)) > 1 for cell in ordered for m in swept.methods)
    bands = (" Bands: ± sd over seeds." if lines else " Bars: ± sd over seeds.") if several else " One seed: no spread."
    shares = columns if score.percent else ()
    return Asked(
        name,
        f"{score.words.capitalize()} along {key}{at}",
        f"Mean over seeds at the last round; each value is a comparison of its own.{bands}",
        f"{score.words.capitalize()} of each method at each value of {key}{at}, as in the table.",
        partial(sweep, record, titles, shares=shares, lines=lines),
    )


def _record(swept: Swept, cells: Sequence[Cell], key: str, columns: Sequence[str]) -> tuple[list[Cell], dict[str, Any]]:
    """Return the cells along an option, and what is drawn of them."""
    values = [cell.setting[key] for cell in cells]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    ordered = sorted(cells, key=lambda cell: cell.setting[key]) if numeric else list(cells)
    values = [cell.setting[key] for cell in ordered]
    log = numeric and min(values) > 0 and max(values) >= FAR * min(values)
    names = None if numeric else [words_of({key: value}).partition(" = ")[2] for value in values]
    return ordered, {
        "x": values if numeric else list(range(len(values))),
        "names": names,
        "log": log,
        "axis": key,
        "methods": swept.methods,
        "numbers": {column: {m: list(_by_seed(ordered, m, column)) for m in swept.methods} for column in columns},
    }


def _by_seed(cells: Sequence[Cell], method: str, column: str) -> Iterator[list[float]]:
    """Yield the numbers of each seed along the cells; seeds that have not finished everywhere are left out."""
    found = [
        {run.seed: mean_of(run, column, "last", cell.analysis.comparison.plan.last_rounds)
         for run in cell.analysis.comparison.counted(method)}
        for cell in cells
    ]  # fmt: skip
    common = set.intersection(*(set(each) for each in found)) if found else set()
    for seed in sorted(common):
        yield [each[seed] for each in found]
    if not common:
        yield [np.nan] * len(cells)
