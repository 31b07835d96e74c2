"""What is written in a run folder is what is read from it, and whatever else stands there is refused by name."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedreach as fr
from fedreach._util.arrays import Floats, Ints
from fedreach._util.errors import ComponentError, RunFolderError
from fedreach.evaluation.metrics import additional_metrics
from fedreach.report.read import read_run
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import (
    COMMON_KEYS,
    ClientLine,
    ComparisonRecord,
    FederationRecord,
    Record,
    Result,
    RoundRow,
    RunRecord,
    Timing,
)

from .made_up import edit, federation, listed, row, write_comparison, write_run

LINES = (RoundRow, ClientLine, Timing)
WHOLE = (RunRecord, FederationRecord, Result)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("schema") / "run", rounds=4, measured=True, radio="equal")


@pytest.fixture
def run(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "run")
    return tmp_path / "run"


def objects(path: Path, shape: type[Record]) -> list[dict[str, Any]]:
    text = (path / shape.FILE).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()] if shape in LINES else [json.loads(text)]


@pytest.mark.parametrize("shape", [*LINES, *WHOLE])
def test_what_was_written_comes_back_the_same(written: Path, shape: type[Record]) -> None:
    for found in objects(written, shape):
        found = {key: value for key, value in found.items() if key not in COMMON_KEYS}
        again = shape.of_json(found).to_json()
        assert again == found
        assert list(again) == list(found)  # in the same order


def test_a_comparison_comes_back_the_same(tmp_path: Path) -> None:
    found = objects(write_comparison(tmp_path, ["a", "b"], [3], rounds=1), ComparisonRecord)[0]
    assert ComparisonRecord.of_json(found).to_json() == {k: v for k, v in found.items() if k not in COMMON_KEYS}


def test_what_stands_for_nothing_is_left_out_and_what_is_unknown_is_null() -> None:
    first = row(0).to_json()
    assert "train_loss" not in first
    assert "seconds" not in first
    assert "by_server" not in first
    assert row(1, train_loss=None).to_json()["train_loss"] is None  # no reply counted
    assert np.isnan(RoundRow.of_json(json.loads(json.dumps(first))).train_loss)  # type: ignore[arg-type]


def test_what_is_not_finite_is_null_and_read_as_unknown(run: Path) -> None:
    folder = RunFolder(run)
    folder.append(row(5, cohort=[1, 2], weights=(float("nan"), 1.0), metrics={"loss": [float("inf"), 1.0]}))
    folder.append(Timing(round=5).checked(folder.run))
    last = objects(run, RoundRow)[-1]
    assert (last["weights"], last["metrics"]) == ([None, 1.0], {"loss": [None, 1.0]})
    (run / "result.json").unlink()
    listed(run)
    assert np.isnan(read_run(run).replies.weight[-2:]).tolist() == [True, False]


# ------------------------------------------------------------------------------------------------ planted faults


def test_a_line_about_clients_has_a_key_for_each_further_metric(run: Path) -> None:
    found = objects(run, ClientLine)
    found[-1]["auroc"] = [0.5, None]
    write_lines(run, ClientLine, found)
    read_run(run)
    line = ClientLine.of_json(found[-1])
    assert line.metrics == {"auroc": [0.5, None]}
    assert line.to_json() == found[-1]
    assert ClientLine.of_json(found[0]).metrics == {}


def test_no_metric_may_be_called_as_a_key_of_a_line_about_clients() -> None:
    for key in ClientLine.known_keys():
        with pytest.raises(ComponentError, match=f"must be unique, .*got '{key}'"):
            additional_metrics([Named(key)])


@dataclass(frozen=True)
class Named(fr.Metric):
    """A metric of this name."""

    name: str

    def of(self, labels: Ints, scores: Floats) -> float:
        return 0.0


def write_lines(run: Path, shape: type[Record], lines: list[dict[str, Any]]) -> None:
    (run / shape.FILE).write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    listed(run)


def test_counts_that_are_no_table_are_refused(run: Path) -> None:
    edit(run / "federation.json", label_counts=[1, 2])
    with pytest.raises(RunFolderError, match=r"federation\.json.*'label_counts' must have the shape"):
        read_run(run)


def test_the_recorder_can_write_nothing_that_stands_in_no_schema() -> None:
    with pytest.raises(TypeError, match="cohorts"):
        RoundRow(round=1, cohorts=[], evaluated={})  # type: ignore[call-arg]
    of_some = {"shift", "client_names", "class_names", "preparation", "targets", "target_scale", "mean_mae"}
    assert federation().to_json().keys() | of_some == FederationRecord.known_keys().keys()
