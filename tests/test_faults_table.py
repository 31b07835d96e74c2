"""The table of faults: what it counts, and that it cannot be clean by leaving something out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from .benchmarked import benchmarks

TABLE = Path(__file__).parents[1] / "benchmarks" / "faults" / "table.py"


def test_a_row_is_clean_only_if_every_fault_was_survived_or_told() -> None:
    with benchmarks("rows", folders=("faults",)) as (rows,):
        row = rows.Row.of_endings("x", [("survived", "a"), ("told", "b")])
        assert row == ("x", 2, 1, 1, 0, 0, ())
        assert row.is_clean
        for ending in ("lost", "wrong", "forgotten"):  # an ending that nobody knows is no zero
            bad = rows.Row.of_endings("x", [("survived", "a"), (ending, "b")])
            assert not bad.is_clean
            assert bad.found == (f"{ending}: b",)
        assert not rows.Row("x").is_clean  # nothing was injected
        assert "| **all** | 4 | 2 | 2 | 0 | 0 |" in rows.markdown([row, row])


def test_counts_of_others_become_rows() -> None:
    with benchmarks("rows", folders=("faults",)) as (rows,):
        counts = SimpleNamespace(injected=3, survived=1, told=1, lost=1, wrong=0, first="what it was")
        assert rows.Row.of("x", counts) == ("x", 3, 1, 1, 1, 0, ("what it was",))
        counts = SimpleNamespace(injected=1, survived=1, told=0, lost=0, wrong=0, found=[])
        assert rows.Row.of("x", counts) == ("x", 1, 1, 0, 0, 0, ())


def test_an_unknown_kind_is_refused_in_one_line() -> None:
    done = subprocess.run([sys.executable, TABLE, "lise"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "must be one of crashes, damages, disk-errors, inputs, part-errors, lies, plants; got lise" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_sample_of_lies_ends_in_zeros() -> None:
    pytest.importorskip("flwr")
    done = subprocess.run([sys.executable, TABLE, "lies", "--quick"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| clients that lie | 4 | 0 | 4 | 0 | 0 |" in done.stdout
