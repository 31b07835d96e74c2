"""Metrics beside accuracy and loss in the report: on the terminal, the page, in files; and nothing where none are."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from fedreach.report.analysis import metrics_of
from fedreach.report.formats import tables_of, to_text
from fedreach.report.overview import analyse
from fedreach.report.read import read
from fedreach.report.records import as_records, to_csv
from fedreach.report.tables import tabulate_metrics
from fedreach.report.write import write_report

from .made_up import edit_rows, write_comparison

METHODS, SEEDS = ("one", "two"), (0, 1)
AUROC = {("one", 0): 0.7, ("one", 1): 0.8, ("two", 0): 0.9, ("two", 1): 0.9}


def columns_of(method: str, seed: int) -> dict[str, Any]:
    """Return the columns of an evaluation: `auroc` is undefined for some, `cost` large and defined for all."""
    auroc = AUROC[method, seed]
    found = {
        "participant_auroc": auroc + 0.05,
        "participant_auroc_undefined": 4,
        "unseen_auroc": auroc,
        "test_auroc": 0.75,
    }
    found |= {
        "participant_auroc_worst_decile": 0.5,
        "unseen_auroc_worst_decile": auroc - 0.3,
        "unseen_auroc_pooled": 0.65,
    }
    found |= {"unseen_auroc_undefined": 2} if seed == 0 else {}
    return found | {"participant_cost": 123.25, "unseen_cost": 1234.5, "unseen_cost_worst_decile": 2000.0}


def asked_for(out: Path, **changes: Any) -> Path:
    """Write a comparison whose experiment asked for two further metrics; a change is made in the run of one, seed 1."""
    write_comparison(out, METHODS, SEEDS, rounds=6)
    for method in METHODS:
        for seed in SEEDS:
            own = columns_of(method, seed) | (changes if (method, seed) == ("one", 1) else {})
            kept = {name: value for name, value in own.items() if value is not None}
            evaluated = lambda rows, kept=kept: [row.update(kept) for row in rows if "participant_accuracy" in row]  # noqa: E731
            edit_rows(out / f"runs/{method}/seed-{seed}", evaluated)
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asked_for(tmp_path_factory.mktemp("metrics"))


def test_means_and_spreads_are_over_seeds_and_who_was_left_out_is_counted(folder: Path) -> None:
    one, two = as_records(analyse(read([folder])))
    assert one["metric_auroc_unseen_mean"] == pytest.approx(0.75)
    assert one["metric_auroc_unseen_sd_over_seeds"] == pytest.approx(0.1 / 2**0.5)  # of 0.7 and 0.8
    assert one["metric_auroc_participants_mean"] == pytest.approx(0.8)
    assert one["metric_auroc_participants_left_out_mean"] == 4
    assert one["metric_auroc_unseen_left_out_mean"] == 1  # 2 with seed 0, nobody with seed 1
    assert two["metric_auroc_unseen_worst_decile_mean"] == pytest.approx(0.6)
    assert two["metric_auroc_unseen_pooled_mean"] == pytest.approx(0.65)
    assert two["metric_auroc_participants_pooled_mean"] is None
    assert two["metric_auroc_test_mean"] == pytest.approx(0.75)
    assert one["best_metric_auroc_unseen_mean"] == pytest.approx(0.75)
    assert (one["metric_cost_unseen_left_out_mean"], one["metric_cost_test_mean"]) == (0, None)


def test_every_metric_has_a_row_for_each_method(folder: Path) -> None:
    table = tabulate_metrics(analyse(read([folder])))
    assert table is not None
    assert [row[:2] for row in table.rows] == [("one", "auroc"), ("two", "auroc"), ("one", "cost"), ("two", "cost")]
    cells = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    assert cells[0]["unseen clients"] == "0.750 ± 0.071"
    assert (cells[0]["undefined, unseen"], cells[2]["undefined, unseen"]) == ("1", "0")
    assert cells[2]["unseen clients"] == "1234 ± 0"  # its digits are those of the largest number of the metric
    assert cells[2]["test set"] == "-"
    assert "pooled, participants" not in table.header  # there is no such number
    assert table.caption == "Other metrics (mean ± sd over 2 seeds)"


def test_terminal_page_and_files_show_them(folder: Path, tmp_path: Path) -> None:
    written = write_report([folder], tmp_path, formats=None)
    page = written.page.read_text(encoding="utf-8")
    assert page.count("<h3>Other metrics (mean ± sd over 2 seeds)</h3>") == 1
    assert "<td>auroc</td><td>0.800 ± 0.071</td>" in page
    texts = {path.name: path.read_text(encoding="utf-8") for path in written.tables}
    assert "**Other metrics (mean ± sd over 2 seeds)**" in texts["table.md"]
    assert r": other metrics (mean $\pm$ sd over 2 seeds)." in texts["table.tex"]
    assert json.loads(texts["table.json"])["methods"] == as_records(written.analysis)
    (one, _) = csv.DictReader(io.StringIO(texts["table.csv"]))
    assert float(one["metric_auroc_unseen_mean"]) == pytest.approx(0.75)
    (shown,) = (to_text(table, 80) for table in tables_of(written.analysis) if table.name == "metrics")
    rows = shown.partition("─\n")[2].splitlines()[:4]
    assert [row.split()[:2] for row in rows] == [[m, q] for q in ("auroc", "cost") for m in ("one", "two")]


def test_a_seed_without_a_number_is_told(tmp_path: Path) -> None:
    out = asked_for(
        tmp_path, participant_auroc=None, participant_auroc_undefined=10, participant_auroc_worst_decile=None
    )
    one, two = as_records(analyse(read([out])))
    assert one["metric_auroc_participants_mean"] is None
    assert one["metric_auroc_participants_left_out_mean"] == 7
    assert two["metric_auroc_participants_mean"] == pytest.approx(0.95)
    table = tabulate_metrics(analyse(read([out])))
    assert table is not None
    assert "auroc of one, participants: 1 of 2 seeds have no number." in table.note


def test_nothing_is_said_where_nobody_asked(tmp_path: Path) -> None:
    out = write_comparison(tmp_path, METHODS, SEEDS, rounds=6)
    analysis = analyse(read([out]))
    assert metrics_of(analysis.comparison) == ()
    assert tabulate_metrics(analysis) is None
    assert "metrics" not in {table.name for table in tables_of(analysis)}
    assert "metric_" not in to_csv(analysis)
    assert "Other metrics" not in write_report([out], tmp_path, formats=None).page.read_text(encoding="utf-8")
