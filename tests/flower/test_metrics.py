"""Metrics beside accuracy and loss on Flower: those of the simulator, client by client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import MetricRecord

from fedreach.experiment.run import run
from fedreach.flower.experiment import FlowerExperiment
from fedreach.runs.schema import ClientLine

from .in_process import Answering, InProcess
from .same import SIX_CLIENTS, rows_of

OWN = '''
import numpy as np

def share_of_zeros(y_true, scores):
    """Not defined for clients without a zero."""
    return float(scores[y_true == 0, 0].mean()) if (y_true == 0).any() else float("nan")
'''
ENDS = ("share_of_zeros", "share_of_zeros_worst_decile", "share_of_zeros_undefined")


def experiment(tmp_path: Path, *overrides: str) -> FlowerExperiment:
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    text = "rounds = 2\n[evaluation]\nevery = 1\nmetrics = ['own.py:share_of_zeros']\n"
    (tmp_path / "own.toml").write_text(text, encoding="utf-8")
    return FlowerExperiment(tmp_path / "own.toml", overrides=(*SIX_CLIENTS, *overrides))


def on_flower(setup: FlowerExperiment, folder: Path, answering: Answering = lambda c, m, answer: answer()) -> Path:
    grid = InProcess(setup.client_app(), range(6), answering=answering)
    setup.strategy(folder, timeout=5, patience=5).run(grid)
    return folder


def lines_of(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / ClientLine.FILE).read_text(encoding="utf-8").splitlines()]
    return [line for line in found if line["population"] != "local"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "clusters",
    [(), ('method.selection={name="clustered", eps1=1000.0, eps2=0.0, thresholds="absolute", first_round=1}',)],
    ids=["one model", "clusters"],
)
def test_columns_and_lines_are_the_simulator_s_but_for_what_is_pooled(tmp_path: Path, clusters: tuple[str]) -> None:
    setup = experiment(tmp_path, "partition.alpha=0.1", *clusters)
    found = on_flower(setup, tmp_path / "flower")
    run(setup.experiment, seed=setup.seed, folder=tmp_path / "ours", base=setup.base)
    for mine, other in zip(rows_of(tmp_path / "ours"), rows_of(found), strict=True):
        for name in [f"{population}_{end}" for population in ("participant", "unseen") for end in ENDS]:
            assert other.get(name) == pytest.approx(mine.get(name), abs=1e-6), name
        assert other["test_share_of_zeros"] == pytest.approx(mine["test_share_of_zeros"], abs=1e-6)
        assert "participant_share_of_zeros_pooled" in mine
        assert "participant_share_of_zeros_pooled" not in other
    for mine, other in zip(lines_of(tmp_path / "ours"), lines_of(found), strict=True):
        ours, theirs = (line["share_of_zeros"] for line in (mine, other))
        assert theirs == pytest.approx(ours, abs=1e-5, nan_ok=True)
    assert any(None in line["share_of_zeros"] for line in lines_of(found))


def test_a_metric_that_is_no_number_names_its_client(tmp_path: Path) -> None:
    def answering(client, message, answer):
        reply = answer()
        record = reply.content.metric_records.get("metrics", MetricRecord())
        if client == 1 and "eval_share_of_zeros" in record:
            record["eval_share_of_zeros"] = float("inf")
        return reply

    rows = rows_of(on_flower(experiment(tmp_path, "partition.name=iid"), tmp_path / "flower", answering))
    assert "eval_share_of_zeros" in rows[-1]["refused"]["client 1"]
