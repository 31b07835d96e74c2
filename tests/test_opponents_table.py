"""The table of opponents says what its runs did: who trained, at what cost, and how unseen clients were adapted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedreach as fr
from fedreach.report.read import read

from .benchmarked import benchmarks


def test_the_table_counts_examples_and_judges_both_ways_of_adaptation(tmp_path: Path) -> None:
    fr.compare(
        fr.load("digits").partition("dirichlet_by_class", clients=12, alpha=0.3, participants=6),
        {"uniform": {}, "full": {"selection": "full"}, "asked": {"selection": {"name": "minimax", "refresh": 2}}},
        model="linear",
        rounds=4,
        cohort_size=3,
        seeds=2,
        method={"adaptation": "label_shift"},
        evaluation={"inputs": [5]},
        out=tmp_path / "s",
        progress=False,
    )
    comparison = read([tmp_path / "s"])
    with benchmarks("opponents") as (opponents,):
        parameters = opponents.parameters_of(comparison.counted("full")[0])
        found = {name: opponents.reached(comparison.counted(name), parameters) for name in comparison.methods}
        told, (least, most), seeds = opponents.lines(comparison)
    assert parameters == 64 * 10 + 10
    trained = {name: 1e6 * each.spent["examples"] / opponents.EXAMPLES for name, each in found.items()}
    rows = (tmp_path / "s/runs/asked/seed-0/rounds.jsonl").read_text(encoding="utf-8").splitlines()
    assert sum(json.loads(row)["probe_bytes"] > 0 for row in rows) >= 2
    assert trained["uniform"] == pytest.approx(4 * 3, rel=0.01)
    assert trained["full"] == pytest.approx(4 * 6, rel=0.01)
    assert trained["asked"] > 4 * 3 + 6 - 1  # at least all once, in probes
    assert (seeds, 0 < least <= most) == (2, True)
    by_name = {line[0].strip("`"): line for line in told}
    assert by_name["uniform"][5:7] == by_name["uniform"][8:10] == ["-", "-"]
    adapted = json.loads((tmp_path / "s/runs/full/seed-0/adaptation.json").read_text(encoding="utf-8"))["columns"][
        "last"
    ]
    assert found["full"].accuracy["label_shift"][0] == adapted["unseen_adapted_accuracy"]
    assert found["full"].accuracy["none"][0] == adapted["unseen_unadapted_accuracy"]
