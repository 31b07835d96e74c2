"""The benchmark of memory measures each of its rows, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "memory.py"


def measured(folder: Path, *parts: str) -> tuple[dict[str, dict[str, float]], str]:
    command = [sys.executable, str(SCRIPT), "--quick", "--folder", str(folder), "--json", str(folder / "rows.json")]
    done = subprocess.run([*command, "--parts", *parts], capture_output=True, text=True, check=True)
    found = json.loads((folder / "rows.json").read_text())
    assert [path.name for path in folder.iterdir()] == ["rows.json"]  # all that was written for it is gone
    return {row["name"]: row for row in found["rows"]}, done.stdout


def test_rows_of_a_table_are_told_with_what_they_take(tmp_path: Path) -> None:
    rows, page = measured(tmp_path, "copied", "table", "table16")
    assert list(rows) == ["copied", "table", "table16"]
    assert all(20 < row["peak_mb"] < 2000 and 0 < row["round"] < 30 for row in rows.values())
    assert rows["table16"]["disk_mb"] < 0.6 * rows["table"]["disk_mb"]
    assert "| table, float16 | 500 x 256 |" in page


@pytest.mark.slow
def test_every_row_can_be_measured(tmp_path: Path) -> None:
    everything = ["population", "fedavg", "scaffold", "scaffold16", "feddyn", "minimax", "long", "long16"]
    rows, _ = measured(tmp_path, *everything, "disk", "disk16", "mapped")
    numbers = 4 * 5_000 / 1e6  # in MB, about, of a model
    assert rows["fedavg"]["disk_mb"] < 3 * numbers
    # Four rounds of 100 of 500 clients: between 100 and 400 have a row, and those of the round before are kept, too.
    assert 100 * numbers < rows["scaffold"]["disk_mb"] < 550 * numbers
    assert rows["scaffold16"]["disk_mb"] < 0.6 * rows["scaffold"]["disk_mb"]
    assert rows["mapped"]["peak_mb"] < 2000
