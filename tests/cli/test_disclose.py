"""``fedreach disclose`` lists what the server learns, and with which methods."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

EVERYTHING = (
    "methods={plain={}, asked={selection='minimax', weighting='disagreement'}, apart={solver='scaffold'},"
    " summed={weighting='entropy', adaptation='label_shift', label_statistics='secure_aggregation'}}"
)
TABLES = "data={name='patients.csv', label='ill', client='hospital'}"
MANY = ("--set", EVERYTHING, "--set", "baseline=plain", "--set", TABLES)


def test_each_line_names_the_methods_with_which_the_server_learns_it(fedreach: Callable[..., Any]) -> None:
    done = fedreach("disclose", *MANY)
    assert done.exit_code == 0, done.output
    lines = {line.partition("  ")[0]: line.split("  ")[-1].strip() for line in done.stdout.splitlines()}
    assert next(methods for line, methods in lines.items() if line.startswith("update, training loss")) == "asked"
    assert lines["update"] == "plain, asked, apart"
    assert lines["update times weight, weight"] == lines["sums over labels and outputs"] == "summed"
    assert lines["scores, decision to adapt"] == "summed"
    assert lines["vector stored between rounds"] == "apart"
    assert "A sum over one client is the data of this client." in done.stdout


def test_the_list_of_one_method_is_short_and_has_no_column_of_methods(fedreach: Callable[..., Any]) -> None:
    secure = "method={label_statistics='secure_aggregation', weighting='entropy', adaptation='label_shift'}"
    done = fedreach(
        "disclose", "--set", "methods={only={}}", "--set", "baseline=only", "--set", secure, "--set", TABLES
    )
    assert done.exit_code == 0, done.output
    assert "methods" not in done.stdout
    assert "weight, so label entropy" in done.stdout
    assert done.stdout.count("\n") <= 25


def test_verbose_adds_how_to_limit_it_and_json_has_all_fields(fedreach: Callable[..., Any]) -> None:
    assert "secure aggregation" in fedreach("disclose", "--verbose").stdout
    rows = json.loads(fedreach("disclose", "--json").stdout)
    (update,) = [row for row in rows if row["what"] == "update"]
    assert update["keys"] == ["train/update/update"]
    assert "uniform" in update["methods"]


def test_a_run_stores_what_disclose_lists(fedreach: Callable[..., Any], home: Path) -> None:
    options = [
        "tiny.toml",
        "--set",
        "method.selection=power_of_choice",
        "--set",
        "rounds=1",
        "--set",
        "evaluation.every=1",
    ]
    assert fedreach("run", *options, "--out", "r", "--quiet").exit_code == 0
    stored = json.loads((home / "r/run.json").read_text())["learned"]
    only = ["--set", "methods={only={}}", "--set", "baseline=only"]
    listed = json.loads(fedreach("disclose", *options, *only, "--json").stdout)
    assert [row["what"] for row in stored] == [row["what"] for row in listed]
    assert "loss of the model" in {row["what"] for row in stored}
