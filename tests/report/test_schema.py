"""What is written in a run folder is what is read from it, and whatever else stands there is refused by name."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, fields
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

from .made_up import edit, edit_rows, federation, row, sealed, write_comparison, write_run

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
        again = shape.of_json(found, "here").to_json()
        assert again == found
        assert list(again) == list(found)  # in the same order


def test_a_comparison_comes_back_the_same(tmp_path: Path) -> None:
    found = objects(write_comparison(tmp_path, ["a", "b"], [3], rounds=1), ComparisonRecord)[0]
    assert ComparisonRecord.of_json(found, "here").to_json() == {k: v for k, v in found.items() if k not in COMMON_KEYS}


def test_every_field_says_of_what_type_it_is_in_json() -> None:
    plain = {int, float, str, bool, list, dict, type(None)}
    for shape in (*LINES, *WHOLE, ComparisonRecord):
        names = {each.name for each in fields(shape)} - {shape.REST}  # type: ignore[arg-type]
        assert names == shape.known_keys().keys()
        assert all(key.types <= plain for key in shape.known_keys().values())


def test_what_stands_for_nothing_is_left_out_and_what_is_unknown_is_null() -> None:
    first = row(0).to_json()
    assert "train_loss" not in first
    assert "seconds" not in first
    assert "by_server" not in first
    assert row(1, train_loss=None).to_json()["train_loss"] is None  # no reply counted
    assert np.isnan(RoundRow.of_json(json.loads(json.dumps(first)), "here").train_loss)  # type: ignore[arg-type]


def test_what_is_not_finite_is_null_and_read_as_unknown(run: Path) -> None:
    folder = RunFolder(run)
    folder.append(row(5, cohort=[1, 2], weights=(float("nan"), 1.0), metrics={"loss": [float("inf"), 1.0]}))
    folder.append(Timing(round=5).checked(folder.run))
    last = objects(run, RoundRow)[-1]
    assert (last["weights"], last["metrics"]) == ([None, 1.0], {"loss": [None, 1.0]})
    (run / "result.json").unlink()
    sealed(run)
    assert np.isnan(read_run(run).replies.weight[-2:]).tolist() == [True, False]


# ------------------------------------------------------------------------------------------------ planted faults


def renamed(rows: list[dict[str, Any]], place: int, key: str, other: str) -> None:
    rows[place] = {(other if name == key else name): value for name, value in rows[place].items()}


@pytest.mark.parametrize(
    ("key", "other", "hint"),
    [
        ("cohort", "cohorts", "Did you mean 'cohort'?"),
        ("train_loss", "loss_train", "that no version of this format writes"),
        ("bytes_up", "byte_up", "Did you mean 'bytes_up'?"),
        ("participant_accuracy", "accuracy_id", "that no version of this format writes"),
        ("seconds_total", "second_total", "Did you mean 'seconds_total'?"),
    ],
)
def test_a_row_with_a_wrong_key_is_named_with_file_and_line(run: Path, key: str, other: str, hint: str) -> None:
    edit_rows(run, lambda rows: renamed(rows, 2, key, other))
    with pytest.raises(RunFolderError, match=rf"rounds\.jsonl, line 3 has a key '{other}' .*{re.escape(hint)}"):
        read_run(run)
    with pytest.raises(RunFolderError, match=rf"rounds\.jsonl, line 3 has a key '{other}'"):
        list(RunFolder(run).records(RoundRow))


def test_a_row_with_a_key_too_few_is_named(run: Path) -> None:
    edit_rows(run, lambda rows: rows[3].pop("weights"))
    with pytest.raises(RunFolderError, match=r"rounds\.jsonl, line 4 has no key 'weights'"):
        read_run(run)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("cohort", 3, "must be list; got int"),
        ("bytes_up", "9", "must be int; got str"),
        ("bytes_up", 9.5, "must be int; got float"),
        ("train_loss", "low", "must be float or int or null; got str"),
        ("participant_accuracy", [0.5], "must be float or int or null; got list"),
        ("allocation", [], "must be null or object; got list"),
        ("round", None, "must be int; got null"),
        ("by_server", 1, "must be bool; got int"),
    ],
)
def test_a_value_of_another_type_is_named(run: Path, key: str, value: Any, said: str) -> None:
    edit_rows(run, lambda rows: rows[2].update({key: value}))
    with pytest.raises(RunFolderError, match=rf"rounds\.jsonl, line 3: '{key}' {said}\. Restore"):
        read_run(run)


@pytest.mark.parametrize("shape", WHOLE)
def test_a_file_with_a_wrong_key_is_named(run: Path, shape: type[Record]) -> None:
    first = next(iter(shape.known_keys()))
    value = objects(run, shape)[0][first]
    edit(run / shape.FILE, **{f"{first}_": value, first: None})
    with pytest.raises(RunFolderError, match=rf"{shape.FILE} has a key '{first}_' .* Did you mean '{first}'\?"):
        read_run(run)
    edit(run / shape.FILE, **{f"{first}_": None})
    with pytest.raises(RunFolderError, match=rf"{shape.FILE} has no key '{first}'"):
        read_run(run)


@pytest.mark.parametrize(
    ("shape", "said"),
    [(ClientLine, "has no key 'round'"), (Timing, r"has a key 'rounds' .*'round'\?")],  # a metric may be called rounds
)
def test_other_rows_with_a_wrong_key_are_named(run: Path, shape: type[Record], said: str) -> None:
    found = objects(run, shape)
    found[-1]["rounds"] = found[-1].pop("round")
    write_lines(run, shape, found)
    with pytest.raises(RunFolderError, match=rf"{shape.FILE}, line {len(found)} {said}"):
        read_run(run)


def test_a_line_about_clients_has_a_key_for_each_further_metric(run: Path) -> None:
    found = objects(run, ClientLine)
    found[-1]["auroc"] = [0.5, None]
    write_lines(run, ClientLine, found)
    read_run(run)
    line = ClientLine.of_json(found[-1], "here")
    assert line.metrics == {"auroc": [0.5, None]}
    assert line.to_json() == found[-1]
    assert ClientLine.of_json(found[0], "here").metrics == {}
    for key, value, said in (("Auroc", [0.5], "has a key 'Auroc'"), ("auroc", 0.5, "'auroc' must be list; got float")):
        write_lines(run, ClientLine, [*found[:-1], {**found[0], key: value}])
        with pytest.raises(RunFolderError, match=said):
            read_run(run)


def test_no_metric_may_be_called_as_a_key_of_a_line_about_clients() -> None:
    for key in ClientLine.known_keys():
        with pytest.raises(ComponentError, match=f"there are columns of '{key}' already"):
            additional_metrics([Named(key)])


@dataclass(frozen=True)
class Named(fr.Metric):
    """A metric of this name."""

    name: str

    def of(self, labels: Ints, scores: Floats) -> float:
        return 0.0


def write_lines(run: Path, shape: type[Record], lines: list[dict[str, Any]]) -> None:
    (run / shape.FILE).write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    sealed(run)


def test_counts_that_are_no_table_of_whole_numbers_are_refused(run: Path) -> None:
    for counts, said in (([[1, 2], [3]], "must hold whole numbers"), ([1, 2], "must be clients x classes")):
        edit(run / "federation.json", label_counts=counts)
        with pytest.raises(RunFolderError, match=rf"federation\.json.*'label_counts'.*{said}"):
            read_run(run)


def test_the_recorder_can_write_nothing_that_stands_in_no_schema() -> None:
    with pytest.raises(TypeError, match="cohorts"):
        RoundRow(round=1, cohorts=[], evaluated={})  # type: ignore[call-arg]
    of_some = {"shift", "client_names", "class_names", "preparation", "targets", "target_scale", "mean_mae"}
    assert federation().to_json().keys() | of_some == FederationRecord.known_keys().keys()
