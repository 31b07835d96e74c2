"""The benchmark of decisions measures every part there is, and says so where one takes too long."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedreach.federation.selection import SELECTIONS
from fedreach.federation.weighting import WEIGHTINGS

from .benchmarked import benchmarks

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "decisions.py"


@pytest.fixture(scope="module")
def decisions():
    with benchmarks("decisions") as (module,):
        yield module


@pytest.mark.parametrize(
    ("kind", "name"), [("selection", s) for s in SELECTIONS] + [("weighting", w) for w in WEIGHTINGS]
)
def test_every_part_can_be_measured(decisions, kind, name):
    part = decisions.make(kind, name, sketch=8)
    prepare = decisions.selection_work if kind == "selection" else decisions.weighting_work
    for work, function in prepare(part, 40, 20).items():
        answer = function()
        if work == "choose":
            assert 1 <= len(answer.ids) <= (40 if part.ignores_cohort else decisions.cohort(40))
        if work == "weigh":
            assert answer[0].sum() == pytest.approx(1)


@pytest.mark.slow
def test_the_rows_are_printed_and_written(tmp_path):
    command = [sys.executable, str(SCRIPT), "--parts", "minimax", "--clients", "30", "--numbers", "100"]
    done = subprocess.run([*command, "--json", str(tmp_path / "rows.json")], capture_output=True, text=True, check=True)
    found = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["work"], row["clients"], row["sketch"]) for row in found["rows"]] == [
        ("hear", 30, None),
        ("choose", 30, None),
    ]
    assert all(0 < row["seconds"] < 60 and row["megabytes"] >= 0 for row in found["rows"])
    (sketch,) = found["sketches"]
    assert sketch["size"] == 64
    assert 0.05 < sketch["root_mean_square"] < 0.2  # 1 / sqrt(64) = 0.125
    assert "| Choosing a cohort | 30 clients |" in done.stdout


def measured(work: str) -> subprocess.CompletedProcess[str]:
    """Time some work, at most a second long, in a process of its own."""
    code = f"import sys, time; sys.path.insert(0, {str(SCRIPT.parent)!r}); import decisions as d"
    code += f"; print(d.timed(lambda: {work}, 1, 1)['megabytes'])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_call_over_the_limit_ends_the_process():
    began = time.perf_counter()
    assert measured("time.sleep(30)").returncode == -signal.SIGALRM
    assert time.perf_counter() - began < 20


def test_memory_is_that_of_the_call():
    assert 90 < float(measured("bytearray(100_000_000).count(1)").stdout) < 110
