"""A run that is killed while participants fit a rule goes on with the same call, and ends in the same bytes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fedreach as fr
from fedreach.federation.adaptation.label_shift import LabelShift

SCRIPT = """
import os, signal, sys
import fedreach as fr
from fedreach.federation.adaptation.label_shift import LabelShift

fold, count = LabelShift.fold, 0


def dying(self, state, sums):
    global count
    count += 1
    if count == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return fold(self, state, sums)


LabelShift.fold = dying
data = fr.load("digits").partition("dirichlet_by_class", clients=12, alpha=0.3, participants=8)
for _ in fr.run(data, {"adaptation": "label_shift"}, rounds=2, cohort_size=3, out=sys.argv[1], evaluation={"every": 2}):
    pass
"""
FILES = ("adaptation.json", "adaptation.safetensors", "adapted.jsonl", "last.safetensors", "rounds.jsonl")


def run(folder: Path) -> dict[str, bytes]:
    data = fr.load("digits").partition("dirichlet_by_class", clients=12, alpha=0.3, participants=8)
    list(fr.run(data, {"adaptation": "label_shift"}, rounds=2, cohort_size=3, out=folder, evaluation={"every": 2}))
    return {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}


@pytest.mark.slow
def test_killed_at_any_exchange_it_ends_in_the_bytes_of_a_run_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[str]] = []
    fold = LabelShift.fold
    monkeypatch.setattr(
        LabelShift, "fold", lambda self, state, sums: asked.append(set(sums)) or fold(self, state, sums)
    )
    whole = run(tmp_path / "whole")
    monkeypatch.undo()
    assert {"adaptation.json", "adaptation.safetensors"} <= set(whole)
    first = {name: 1 + next(i for i, sums in enumerate(asked) if name in sums) for name in ("held_out", "miniatures")}
    exchanges = [first["held_out"] + 1, first["miniatures"] - 1, first["miniatures"]]  # calibration, and both of trust
    for number in exchanges:
        folder = tmp_path / f"killed-{number}"
        done = subprocess.run([sys.executable, "-c", SCRIPT, folder, str(number)], capture_output=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert run(folder) == whole, number
