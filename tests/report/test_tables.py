from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fedreach.evaluation.statistics import AnalysisPlan
from fedreach.report.analysis import QUANTITIES, TARGET_COSTS
from fedreach.report.findings import find
from fedreach.report.formats import full_text, group_columns, summary_text, tables_of, to_markdown
from fedreach.report.numbers import RunSet, points
from fedreach.report.overview import analyse
from fedreach.report.page import render
from fedreach.report.read import read
from fedreach.report.records import as_document, as_records, to_csv
from fedreach.report.tables import MAX_NUMERIC, Table, tabulate, tabulate_contrasts

from .made_up import federation, write_comparison

DIFFERENCE = "vs. fedavg, points"
AWKWARD = r"my_module:50%|A&B\~{x}<b>$1$"


def text_of(comparison: RunSet, width: int) -> str:
    return summary_text(analyse(comparison), width)


def cell(comparison: RunSet, method: str, header: str) -> str:
    table = tabulate(analyse(comparison))
    return next(row for row in table.rows if row[0] == method)[table.header.index(header)]


def test_cells_are_the_summary_in_per_cent(comparison: RunSet) -> None:
    unseen = analyse(comparison).last[0].at["unseen"]
    assert cell(comparison, "fedavg", "unseen clients") == f"{100 * unseen.mean:.1f} ± {100 * unseen.sd:.1f}"
    assert cell(comparison, "fedavg", DIFFERENCE) == "baseline"
    assert cell(comparison, "minimax_gap", "seeds") == "4/5"


def test_spread_over_seeds_and_over_clients_are_named(comparison: RunSet, tmp_path: Path) -> None:
    one_seed = read([write_comparison(tmp_path, ["a"], [0], rounds=4)])
    assert "points [95% CI, seeds]" in tabulate(analyse(comparison)).units
    assert "points [95% CI, clients]" in tabulate(analyse(one_seed)).units
    assert "(mean ± sd over 4 to 5 seeds)" in tabulate(analyse(comparison)).caption
    assert "(mean over clients, one seed)" in tabulate(analyse(one_seed)).caption
    assert "±" not in cell(one_seed, "a", "participants")


def test_columns_without_numbers_are_left_out(tmp_path: Path) -> None:
    out = write_comparison(tmp_path, ["a", "b"], [0, 1], rounds=4, held=federation(20, 0), test=False, target=None)
    header = tabulate(analyse(read([out]))).header
    assert not {"unseen clients", "test set", "participation gap"} & set(header)
    assert not any("to" in name.split() for name in header)
    assert "vs. a, points" in header


def test_a_single_method_has_no_difference_column(tmp_path: Path) -> None:
    header = tabulate(analyse(read([write_comparison(tmp_path, ["a"], [0, 1], rounds=4)]))).header
    assert not any(head.startswith("vs. ") for head in header)


def test_seeds_that_missed_the_target_are_counted(comparison: RunSet) -> None:
    rows = analyse(comparison).last
    partly = [row for row in rows if 0 < row.reached < row.seeds]
    for row in rows:
        text = cell(comparison, row.method, "rounds to 60%")
        assert (f"({row.reached} of {row.seeds})" in text) == (row in partly)
        assert (text == "-") == (row.reached == 0)


def test_markdown_has_as_many_cells_in_each_line(tmp_path: Path) -> None:
    markdown = to_markdown(tabulate(analyse(read([write_comparison(tmp_path, ["base", AWKWARD], [0, 1], rounds=4)]))))
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(lines) == 4
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert "<b>" not in markdown.replace("\\<b>", "")


def test_csv_holds_the_records_as_plain_numbers(comparison: RunSet) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(analyse(comparison)))))
    records = as_records(analyse(comparison))
    assert [row["method"] for row in rows] == list(comparison.methods)
    for row, record in zip(rows, records, strict=True):
        for key, value in record.items():
            expected = "" if value is None else str(value)
            assert row[key] == expected


def test_records_are_strict_json(comparison: RunSet) -> None:
    records = json.loads(json.dumps(as_records(analyse(comparison)), allow_nan=False))
    assert all(math.isfinite(record["unseen_mean"]) for record in records)
    assert records[0]["difference_p"] is None
    assert records[0]["best_round"] <= records[0]["round"]


def test_a_declared_quantity_stands_in_summary_table_and_records(tmp_path: Path) -> None:
    radio = write_comparison(tmp_path, ["a", "b"], [0, 1], rounds=4, radios=("best",))
    analysis = analyse(read([radio]))
    table, record = tabulate(analysis), as_records(analysis)[0]
    assert {quantity.head for quantity in QUANTITIES.values()} <= set(table.header)
    for name, quantity in QUANTITIES.items():
        recorded = name if name == "round" else f"{quantity.column if quantity.is_radio else name}_mean"
        assert record[recorded] == analysis.last[0].at[name].mean is not None
        assert record[f"best_{recorded}"] == analysis.best[0].at[name].mean
    assert set(analysis.last[0].to_target) == set(TARGET_COSTS) <= set(QUANTITIES)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_terminal_table_fits_and_keeps_what_matters(comparison: RunSet, width: int) -> None:
    text = text_of(comparison, width)
    assert max(map(len, text.splitlines())) <= width
    for method in ("fedavg", "feddyn"):
        assert cell(comparison, method, "unseen clients") in text
        assert cell(comparison, method, DIFFERENCE) in text


@pytest.mark.parametrize("options", [{}, {"radios": ("best",)}])
def test_no_view_has_more_than_six_numeric_columns_and_no_heading_twice(tmp_path: Path, options: dict) -> None:
    for table in tables_of(analyse(read([write_comparison(tmp_path, rounds=4, **options)]))):
        cells = [[row[j] for row in table.rows] for j in table.main[1:]]
        numeric = [column for column in cells if any(re.match(r"[+−]?\d", text) for text in column)]
        assert 0 < len(numeric) <= len(cells) <= MAX_NUMERIC, table.name
        assert len(table.header) == len({*table.header}), table.header
        assert len(table.note) <= 260, table.note  # two lines


def test_the_terminal_has_one_table_two_findings_and_the_words_of_the_page(comparison: RunSet) -> None:
    analysis = analyse(comparison)
    text, page = text_of(comparison, 100), render(analysis, [], [])
    assert text.count("───  ─") == len(tabulate(analysis).main) - 1
    found = find(analysis)
    flat = " ".join(text.split())
    for place, bullet in enumerate(found.bullets, 1):
        assert (f"{place}. {bullet}" in flat) == (place <= 2)
        assert f"<li>{bullet}</li>" in page
    for warning in found.warnings:
        assert f"Warning: {warning}" in flat
        assert f"<li>{warning}</li>" in page
    assert tabulate(analysis).caption in text
    assert f"{tabulate(analysis).caption}</h2>" in page
    assert f"<h1>{found.headline}</h1>" in page


def test_all_columns_are_printed_in_groups_that_fit(comparison: RunSet) -> None:
    table = tabulate(analyse(comparison))
    text = full_text(table, 100)
    assert max(map(len, text.splitlines())) <= 100
    assert all(cell in text for row in table.rows for cell in row)


def test_square_brackets_are_not_taken_for_markup(comparison: RunSet) -> None:
    assert re.search(r"\[[+−]\d+\.\d, [+−]\d+\.\d\]", text_of(comparison, 120))


def test_one_method_makes_no_table_of_pairs(comparison: RunSet) -> None:
    only = replace(comparison, methods=comparison.methods[:1], plan=AnalysisPlan(contrasts="all"))
    assert tabulate_contrasts(analyse(only)) is None


def test_pairs_stand_in_a_table_of_their_own_on_page_terminal_and_in_files(
    comparison: RunSet,
) -> None:
    analysis = analyse(replace(comparison, plan=AnalysisPlan(contrasts="all", correction="max_t")))
    table = tabulate_contrasts(analysis)
    assert table is not None
    assert len(table.rows) == 10
    first = next(each for each in analysis.contrasts["last"] if each.judged.conclusion == "better")
    shown = next(row for row in table.rows if row[0] == f"{first.first} − {first.second}")
    assert shown[1].startswith(points(first.judged.mean or 0, sign=True))
    assert shown[4] == "better"
    assert "adjusted for 10 comparisons (max-t)" in table.details
    page = render(analysis, [], [])
    assert page.count(f"{table.caption}</h2>") == 1
    assert page.count('<span class="name"><span>') == 10  # pairs have no dot in a method's colour
    assert "better" in full_text(table, 100)
    document = as_document(analysis)
    assert document["statistics"]["contrasts"] == "all"
    assert [(each["first"], each["second"]) for each in document["contrasts"]] == [
        (each.first, each.second) for each in analysis.contrasts["last"]
    ]
    assert tabulate_contrasts(analyse(comparison)) is None


@pytest.mark.parametrize("width", [60, 100, 136, 400])
def test_a_page_folds_columns_and_loses_none(comparison: RunSet, width: int) -> None:
    table = tabulate(analyse(comparison))
    shown, *groups = group_columns(table, width)
    assert tuple(shown) == table.main
    assert all(group[0] == 0 for group in (shown, *groups))
    rest = [j for group in groups for j in group[1:]]
    assert sorted(shown + rest) == list(range(len(table.header)))


def test_rows_of_one_method_are_told_apart_in_what_is_folded() -> None:
    rows = (("ours", "r2", "0.1", "9"), ("ours", "mse", "0.2", "8"))
    table = Table("", ("method", "metric", "unseen", "MB"), ("",) * 4, rows, (0, 1, 2), "")
    assert group_columns(table, 25) == [[0, 1, 2], [0, 1, 3]]
