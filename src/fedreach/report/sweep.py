"""Report of a sweep: tables, figures and HTML page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedreach._util.files import below
from fedreach._util.tables import csv_text
from fedreach.report.analysis import POPULATION, mean_of
from fedreach.report.figures import FigureSpec, Picture
from fedreach.report.figures.curves import LOG_RATIO, sweep
from fedreach.report.figures.style import check_formats, paper_width
from fedreach.report.findings import find
from fedreach.report.numbers import ABSENT
from fedreach.report.overview import Analysis
from fedreach.report.page import render_template
from fedreach.report.read import without_garbage_collection
from fedreach.report.records import as_document, as_records, baseline_records
from fedreach.report.tables import Table, setting_text, tabulate, tabulate_tuning
from fedreach.report.write import ReportPaths, write_files, write_report
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import ComparisonRecord, SweepRecord

# ---- Comparisons of a sweep


@dataclass(frozen=True)
class SweptComparison:
    """One comparison of a sweep."""

    setting: Mapping[str, Any]
    folder: Path
    page: Path
    analysis: Analysis


@dataclass(frozen=True)
class SweepAnalysis:
    """The comparisons of a sweep that have started, in the order of their settings."""

    record: SweepRecord
    cells: tuple[SweptComparison, ...]

    @property
    def methods(self) -> tuple[str, ...]:
        """All methods, in the order of the comparisons."""
        return tuple(dict.fromkeys(m for cell in self.cells for m in cell.analysis.comparison.methods))


# ---- Figures along swept options


def sweep_figure_specs(swept: SweepAnalysis) -> list[FigureSpec]:
    """Return the figures along the first option of a sweep, one for each setting of the other options.

    If settings of several options were drawn at random, the result is one figure along each option, without lines.
    """
    keys, cells = list(swept.record.keys), [cell for cell in swept.cells if cell.analysis.comparison.all_counted]
    if not cells:
        return []
    if swept.record.samples is not None and len(keys) > 1:
        return [_figure_spec(swept, cells, key, {}, f"sweep-{place}", lines=False) for place, key in enumerate(keys)]
    groups: dict[str, tuple[dict[str, Any], list[SweptComparison]]] = {}
    for cell in cells:
        fixed_options = {key: value for key, value in cell.setting.items() if key != keys[0]}
        groups.setdefault(setting_text(fixed_options), (fixed_options, []))[1].append(cell)
    names = ["sweep"] if len(groups) == 1 else [f"sweep-{place}" for place in range(len(groups))]
    return [
        _figure_spec(swept, group, keys[0], fixed_options, name, lines=True)
        for name, (fixed_options, group) in zip(names, groups.values(), strict=True)
    ]


def _figure_spec(
    swept: SweepAnalysis,
    cells: Sequence[SweptComparison],
    key: str,
    fixed_options: Mapping[str, Any],
    name: str,
    *,
    lines: bool,
) -> FigureSpec:
    first = cells[0].analysis.comparison
    score, columns = first.score, list(dict.fromkeys([first.seen, first.primary]))
    ordered, record = _record(swept, cells, key, columns)
    unit = ", %" if score.percent else ""
    titles = {c: f"{score.words.capitalize()} on {POPULATION[c].words}{unit}" for c in columns}
    at = f" at {setting_text(fixed_options)}" if fixed_options else ""
    several = any(len(cell.analysis.comparison.counted(m)) > 1 for cell in ordered for m in swept.methods)
    bands = (" Bands: ± sd over seeds." if lines else " Bars: ± sd over seeds.") if several else " One seed: no spread."
    shares = columns if score.percent else ()
    return FigureSpec(
        name,
        f"{score.words.capitalize()} by {key}{at}",
        f"Mean over clients and seeds in the last round; each value is a separate comparison.{bands}",
        partial(sweep, record, titles, shares=shares, lines=lines),
    )


def _record(
    swept: SweepAnalysis, cells: Sequence[SweptComparison], key: str, columns: Sequence[str]
) -> tuple[list[SweptComparison], dict[str, Any]]:
    """Return the cells along an option, and the numbers to draw."""
    values = [cell.setting[key] for cell in cells]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    ordered = sorted(cells, key=lambda cell: cell.setting[key]) if numeric else list(cells)
    values = [cell.setting[key] for cell in ordered]
    log = numeric and min(values) > 0 and max(values) >= LOG_RATIO * min(values)
    names = None if numeric else [setting_text({key: value}).partition(" = ")[2] for value in values]
    return ordered, {
        "x": values if numeric else list(range(len(values))),
        "names": names,
        "log": log,
        "axis": key,
        "methods": swept.methods,
        "numbers": {column: {m: list(_by_seed(ordered, m, column)) for m in swept.methods} for column in columns},
    }


def _by_seed(cells: Sequence[SweptComparison], method: str, column: str) -> Iterator[list[float]]:
    """Yield the numbers of each seed along the cells; seeds that have not finished in every cell are left out."""
    scores_by_cell = [
        {run.seed: mean_of(run, column, "last", cell.analysis.comparison.plan.last_rounds)
         for run in cell.analysis.comparison.counted(method)}
        for cell in cells
    ]  # fmt: skip
    common = set.intersection(*(set(scores) for scores in scores_by_cell)) if scores_by_cell else set()
    for seed in sorted(common):
        yield [scores[seed] for scores in scores_by_cell]
    if not common:
        yield [np.nan] * len(cells)


# ---- Table, records and page

SETTINGS_NOTE = (
    "Each setting is a separate comparison, and p is not adjusted for the number of settings. Confirm a setting chosen "
    "from this table with other seeds, or choose it with [tune]."
)


def tabulate_sweep(swept: SweepAnalysis) -> Table:
    """Return one table with the rows of all comparisons, with the setting in the first column."""
    tables = [(setting_text(cell.setting), tabulate(cell.analysis, "last")) for cell in swept.cells]
    heads = {("setting", ""): True}  # header and unit -> whether it is in the main view
    rows = []
    for setting, table in tables:
        keys = list(zip(table.header, table.units, strict=True))
        heads |= {key: j in table.main for j, key in enumerate(keys) if key not in heads}
        rows += [{("setting", ""): setting} | dict(zip(keys, row, strict=True)) for row in table.rows]
    setting_count = len(swept.record.settings)
    note = tables[0][1].note if tables else ""
    waiting = f" {setting_count - len(tables)} of {setting_count} settings have not started."
    waiting *= len(tables) < setting_count
    drawn = "" if swept.record.samples is None else f" The {setting_count} settings were drawn at random."
    return Table(
        caption=f"{tables[0][1].caption if tables else 'No setting has started'}, by {', '.join(swept.record.keys)}",
        header=tuple(head for head, _ in heads),
        units=tuple(unit for _, unit in heads),
        rows=tuple(tuple(row.get(key, ABSENT) for key in heads) for row in rows),
        main=tuple(j for j, is_main in enumerate(heads.values()) if is_main),
        note=f"{note} {SETTINGS_NOTE}{drawn}{waiting}",
        name="sweep",
        details=tables[0][1].details if tables else "",
    )


def as_sweep_document(swept: SweepAnalysis) -> dict[str, Any]:
    """Return all numbers: ``sweep`` describes the sweep, and ``cells`` contains the document of each comparison."""
    record = swept.record
    return {
        "sweep": {"keys": list(record.keys), "settings": len(swept.record.settings), "samples": record.samples},
        "cells": [
            {"setting": dict(cell.setting), "folder": cell.folder.name, **as_document(cell.analysis)}
            for cell in swept.cells
        ],
    }


def to_sweep_csv(swept: SweepAnalysis) -> str:
    """Return the numbers as CSV, one row per setting and method."""
    rows = [
        {**cell.setting, **record}
        for cell in swept.cells
        for record in (*as_records(cell.analysis), *baseline_records(cell.analysis))
    ]
    every = dict.fromkeys(key for row in rows for key in row)
    return csv_text([{key: _plain(row.get(key)) for key in every} for row in rows])


def _plain(value: Any) -> Any:
    return setting_text({"": value}).removeprefix(" = ") if isinstance(value, dict | list) else value


def render_sweep(
    swept: SweepAnalysis, table: Table, pictures: Sequence[Picture], tables: Sequence[str], report: Path
) -> str:
    """Return the page, with links to the pages of the comparisons and to the files of the report."""
    cells = [
        {
            "setting": setting_text(cell.setting),
            "page": Path(os.path.relpath(cell.page, report)).as_posix(),
            "findings": find(cell.analysis),
            "tuning": tabulate_tuning(cell.analysis.comparison),
        }
        for cell in swept.cells
    ]
    return render_template(
        "sweep.html",
        name=swept.record.name,
        keys=swept.record.keys,
        methods=swept.methods,
        settings=len(swept.record.settings),
        table=table,
        cells=cells,
        figures=pictures,
        files=tables,
    )


# ---- Files of the report


@without_garbage_collection()
def write_sweep_report(
    folder: Path, out: Path, *, formats: Sequence[str] | None = (), paper: str | float | None = None
) -> ReportPaths[SweepAnalysis]:
    """Write the page of a sweep into ``out/report``, and the page of each comparison into the folder of its runs.

    Args:
        folder: Folder of the sweep.
        out: Folder in which ``report/`` is created.
        formats: As in `fedreach.report.write.write_report`.
        paper: As in `fedreach.report.write.write_report`, for the figures along swept options.

    Raises:
        ConfigError: If a format or a width is unknown.
        RunFolderError: If the folder cannot be read, or `out` cannot be written to.
    """
    check_formats(formats or ())
    width = None if paper is None else paper_width(paper)
    record = RunFolder(folder).required(SweepRecord)
    cells = []
    for setting, cell in zip(record.settings, record.cells, strict=True):
        comparison = below(folder, cell)
        if (comparison / ComparisonRecord.FILE).exists():
            # With another `out`, run folders may be read-only: the pages of the cells go into `out` as well.
            written = write_report([comparison], below(out, cell), formats=formats)
            cells.append(SweptComparison(setting, comparison, written.page, written.analysis))
    swept, report = SweepAnalysis(record, tuple(cells)), out / "report"
    table = tabulate_sweep(swept)
    return write_files(
        swept,
        report,
        record.name,
        cells[0].analysis.comparison if cells else None,
        [table],
        to_sweep_csv(swept),
        as_sweep_document(swept),
        sweep_figure_specs(swept),
        lambda pictures, files: render_sweep(swept, table, pictures, files, report),
        formats=formats,
        width=width,
    )
