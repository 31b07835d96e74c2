from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedreach._util.errors import RunFolderError
from fedreach.evaluation.statistics import AnalysisPlan
from fedreach.report.numbers import RunSet
from fedreach.report.read import read, read_run
from fedreach.runs.schema import FORMAT

from .made_up import (
    edit,
    fail,
    federation,
    listed,
    row,
    write_comparison,
    write_curve,
    write_rows,
    write_run,
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", rounds=6, every=3)


def test_rounds_without_evaluation_have_no_number(run: Path) -> None:
    read_back = read_run(run)
    assert np.isfinite(read_back.column("participant_accuracy")).tolist() == [
        True,
        False,
        False,
        True,
        False,
        False,
        True,
    ]
    assert np.isnan(read_back.column("never_written")).all()
    assert np.isfinite(read_back.column("bytes_total")).all()


def test_columns_hold_what_the_lines_say(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    read_back = read_run(run)
    assert read_back.column("train_loss")[1:].tolist() == [row["train_loss"] for row in rows[1:]]
    assert read_back.replies.chosen.tolist() == [i for row in rows for i in row["cohort"]]
    assert read_back.replies.weight.tolist() == [w for row in rows for w in row["weights"]]
    assert read_back.replies.weight_round.tolist() == [row["round"] for row in rows for _ in row["weights"]]


def test_the_scores_of_clients_are_those_of_the_last_evaluation(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "clients.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["population"] == "unseen"][-1]
    scores = read_run(run).clients["unseen"]
    assert (scores.round, scores.score.tolist()) == (6, last["accuracy"])


def test_lost_clients_have_no_weight_but_were_chosen(run: Path) -> None:
    write_rows(run, row(1, cohort=[4, 7, 9], weights=[0.25, 0.75], lost=[7]))
    replies = read_run(run).replies
    assert replies.chosen.tolist() == [4, 7, 9]
    assert replies.weight_client.tolist() == [4, 9]


def test_failed_and_unfinished_runs_are_kept_and_not_counted(comparison: RunSet) -> None:
    status = {(run.method, run.seed): run.status for run in comparison.runs}
    assert status["minimax_gap", 2] == "failed"
    assert status["feddyn", 4] == "unfinished"
    assert [run.seed for run in comparison.counted("minimax_gap")] == [0, 1, 3, 4]
    assert len(comparison.runs) == 25


def test_a_run_that_never_began_is_named(tmp_path: Path) -> None:
    out = write_comparison(tmp_path, ["a", "b"], [0, 1], rounds=2)
    shutil.rmtree(out / "runs/b/seed-1")
    assert read([out]).absent == (("b", 1),)


def test_while_no_run_has_finished_all_count(tmp_path: Path) -> None:
    out = write_comparison(tmp_path, ["a", "b"], [0], rounds=4, finished=False)
    comparison = read([out])
    assert comparison.provisional
    assert len(comparison.all_counted) == 2


def test_a_line_still_being_written_is_left_out(run: Path) -> None:
    (run / "result.json").unlink()
    lines = (run / "rounds.jsonl").read_text()
    (run / "rounds.jsonl").write_text(lines + '{"round": 7, "cohort": [1,')
    assert read_run(run).last_round == 6


def test_a_cut_line_of_a_finished_run_is_an_error_with_its_number(run: Path) -> None:
    lines = (run / "rounds.jsonl").read_text().splitlines()
    lines[3] = lines[3][:20]
    (run / "rounds.jsonl").write_text("\n".join(lines))
    listed(run)
    with pytest.raises(RunFolderError, match=r"rounds\.jsonl, line 4 is not valid JSON"):
        read_run(run)


@pytest.mark.parametrize("name", ["federation.json", "rounds.jsonl", "clients.jsonl", "timing.jsonl"])
def test_a_missing_file_of_a_finished_run_is_named(run: Path, name: str) -> None:
    (run / name).unlink()
    with pytest.raises(RunFolderError, match=rf"{name} is missing\. Copy"):
        read_run(run)


def test_a_run_that_failed_before_its_first_round_is_readable(tmp_path: Path) -> None:
    out = write_comparison(tmp_path, ["a", "b"], [0], rounds=2)
    for name in ("rounds.jsonl", "clients.jsonl", "timing.jsonl", "checkpoint.safetensors"):
        (out / "runs/b/seed-0" / name).unlink()
    fail(out / "runs/b/seed-0", "no")
    comparison = read([out])
    assert comparison.runs[1].last_round == -1
    assert comparison.counted("b") == ()


def test_another_format_is_refused(run: Path) -> None:
    edit(run / "run.json", format=FORMAT + 1)
    with pytest.raises(RunFolderError, match=rf"must have format {FORMAT} .*; got format {FORMAT + 1}\. Use"):
        read_run(run)


@pytest.mark.parametrize("processes", [1, 3])
def test_the_first_damaged_run_is_told_however_many_processes_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    out = write_comparison(tmp_path, ["a", "b", "c"], [0, 1], rounds=2)
    for path in ("runs/b/seed-1", "runs/c/seed-0"):
        (out / path / "rounds.jsonl").write_text("no\n")
    monkeypatch.setattr("fedreach._util.processes.free_processes", lambda: processes)
    with pytest.raises(RunFolderError, match=r"b/seed-1/rounds.jsonl was altered"):
        read([out])


def test_rounds_written_twice_are_refused(run: Path) -> None:
    lines = (run / "rounds.jsonl").read_text()
    (run / "rounds.jsonl").write_text(lines + lines)
    listed(run)
    with pytest.raises(RunFolderError, match="line 8: rounds must increase; got 0 after 6"):
        read_run(run)


def test_weights_that_fit_no_report_are_refused(run: Path) -> None:
    write_rows(run, row(1, cohort=[4, 7, 9], weights=[0.5, 0.5]))
    with pytest.raises(RunFolderError, match="got 2 weights for 3 replies"):
        read_run(run)


def test_a_folder_without_a_run_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"is not a run folder.*output folder"):
        read([tmp_path])
    with pytest.raises(RunFolderError, match="at least one folder"):
        read([])


def test_the_same_method_and_seed_twice_is_refused(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "copy")
    with pytest.raises(RunFolderError, match="'fedavg' with seed 0"):
        read([run, tmp_path / "copy"])


def test_single_runs_make_a_comparison_with_the_first_as_baseline(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, name, 3, rounds=2) for name in ("b", "a")]
    comparison = read(folders)
    assert (comparison.baseline, comparison.methods, comparison.seeds) == ("b", ("b", "a"), (3,))


def test_a_comparison_and_a_run_are_read_together(tmp_path: Path) -> None:
    out = write_comparison(tmp_path / "all", ["a"], [0, 1], rounds=2)
    comparison = read([out, write_run(tmp_path / "own", "own", 0, rounds=2)])
    assert comparison.methods == ("a", "own")
    assert comparison.target_accuracy == 0.6


def test_an_unknown_baseline_is_refused(tmp_path: Path) -> None:
    out = write_comparison(tmp_path, ["a"], [0], rounds=2, baseline="b")
    with pytest.raises(RunFolderError, match="'baseline' must be one of"):
        read([out])


def test_methods_are_judged_by_unseen_clients_then_test_set_then_participants(tmp_path: Path) -> None:
    alone = federation(20, 0)
    both = write_run(tmp_path / "both", rounds=2)
    tested = write_run(tmp_path / "tested", rounds=2, held=alone)
    plain = write_curve(tmp_path / "unadapted", "m", 0, {"participant_accuracy": [0.1, 0.2]}, held=alone)
    assert [read([f]).primary for f in (both, tested, plain)] == [
        "unseen_accuracy",
        "test_accuracy",
        "participant_accuracy",
    ]


@pytest.mark.parametrize(
    "wrong",
    [{"margin_points": -1.0}, {"correction": "none"}, {"last_rounds": "three"}, {"margin": 2.0}, {"last_rounds": 0}],
)
def test_questions_that_nobody_wrote_are_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    out = write_comparison(tmp_path, ["a", "b"], [0, 1], rounds=2)
    edit(out / "comparison.json", statistics=vars(AnalysisPlan()) | wrong)
    with pytest.raises(RunFolderError, match=r"comparison.json: 'statistics' is not valid"):
        read([out])
