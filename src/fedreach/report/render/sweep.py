"""A sweep as a table, as numbers for other programs, and as a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from fedreach.report.analysis.findings import find
from fedreach.report.figures import Picture
from fedreach.report.figures.style import METHOD, METHOD_ON_DARK
from fedreach.report.numbers import ABSENT
from fedreach.report.render.page import tied
from fedreach.report.render.records import as_document, as_records, baseline_records
from fedreach.report.render.tables import Table, tabulate
from fedreach.report.render.tuning import tabulate_tuning, words_of
from fedreach.report.swept import Swept
from fedreach.tables import csv_text

APART = (
    "Each setting is a comparison of its own: p is corrected for its differences, not for the number of settings. A "
    "setting that was singled out by this table is to be confirmed with other seeds; under [tune] settings are chosen "
    "without looking at these numbers."
)


def tabulate_sweep(swept: Swept) -> Table:
    """Return the tables of all comparisons as one, their setting in front."""
    tables = [(words_of(cell.setting), tabulate(cell.analysis, "last")) for cell in swept.cells]
    heads: dict[tuple[str, str], int] = {}
    for _, table in tables:
        for head, unit, width in zip(table.header, table.units, table.from_width, strict=True):
            heads.setdefault((head, unit), width)
    rows = []
    for setting, table in tables:
        places = {key: j for j, key in enumerate(zip(table.header, table.units, strict=True))}
        for row in table.rows:
            rows.append((setting, *(row[places[key]] if key in places else ABSENT for key in heads)))
    many = len(swept.settings)
    note = tables[0][1].note if tables else ""
    waiting = f" {many - len(tables)} of {many} settings have not begun." if len(tables) < many else ""
    drawn = "" if swept.record.samples is None else f" The {many} settings were drawn at random."
    return Table(
        caption=f"{tables[0][1].caption if tables else 'No setting has begun'}, by {', '.join(swept.record.keys)}",
        header=("setting", *(head for head, _ in heads)),
        units=("", *(unit for _, unit in heads)),
        rows=tuple(rows),
        from_width=(0, *heads.values()),
        note=f"{note} {APART}{drawn}{waiting}",
        name="sweep",
    )


def as_sweep_document(swept: Swept) -> dict[str, Any]:
    """Return all numbers: ``sweep`` says what was swept, ``cells`` holds the document of each comparison."""
    record = swept.record
    return {
        "sweep": {"keys": list(record.keys), "settings": len(swept.settings), "samples": record.samples},
        "cells": [
            {"setting": dict(cell.setting), "folder": cell.folder.name, **as_document(cell.analysis)}
            for cell in swept.cells
        ],
    }


def to_sweep_csv(swept: Swept) -> str:
    """Return plain numbers as CSV, one row a setting and method."""
    rows = [
        {**cell.setting, **record}
        for cell in swept.cells
        for record in (*as_records(cell.analysis), *baseline_records(cell.analysis))
    ]
    every = dict.fromkeys(key for row in rows for key in row)
    return csv_text([{key: _plain(row.get(key)) for key in every} for row in rows])


def _plain(value: Any) -> Any:
    return words_of({"": value}).removeprefix(" = ") if isinstance(value, dict | list) else value


def render_sweep(swept: Swept, table: Table, pictures: Sequence[Picture], tables: Sequence[str], report: Path) -> str:
    """Return the page, with links to the pages of its comparisons and to files beside it."""
    folder = resources.files("fedreach.report.render")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["tied"] = tied
    cells = [
        {
            "setting": words_of(cell.setting),
            "page": Path(os.path.relpath(cell.page, report)).as_posix(),
            "findings": find(cell.analysis),
            "tuning": tabulate_tuning(cell.analysis.comparison),
        }
        for cell in swept.cells
    ]
    return environment.from_string((folder / "sweep.html").read_text(encoding="utf-8")).render(
        name=swept.name,
        keys=swept.record.keys,
        methods=swept.methods,
        settings=len(swept.settings),
        table=table,
        cells=cells,
        figures=pictures,
        files=tables,
        palette=list(zip(METHOD, METHOD_ON_DARK, strict=True)),
        css=Markup((folder / "page.css").read_text(encoding="utf-8")),
    )
