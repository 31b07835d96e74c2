"""Bars stand at the bottom of a terminal, lines above them, and in the end nothing is left that was not meant to be."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from pathlib import Path

import pytest

from fedreach._util.processes import fork
from fedreach._util.progress import progress_bars
from fedreach.api.terminal import ComparisonProgress, RunProgress, compare_progress, run_progress
from fedreach.cli import main
from fedreach.experiment.schema import Experiment
from fedreach.experiment.workers import ComparisonStatus, Job

from .terminals import on_terminal


def test_lines_stand_above_bars_and_only_those_bars_stay_that_shall() -> None:
    with on_terminal() as terminal:
        with progress_bars() as add:
            whole, run = add("all", total=9), add("run", total=3, leave=False)
            print("one,", end=" ")
            whole.show(4, 9, "0:05 left")
            print("two")
            run.show(2, 3, "70 %")
            print("three", file=sys.stderr)
            print("the rest", end="")
        print("afterwards")
    lines = terminal.lines()
    assert lines[:3] == ["one, two", "three", "the rest"]
    assert lines[3].startswith("all ━")
    assert lines[3].endswith(" 4/9 0:00:00 0:05 left")
    assert lines[4:] == ["afterwards"]


def test_a_comparison_has_one_bar_that_counts_its_runs(tmp_path: Path) -> None:
    jobs = [
        Job(name, seed, tmp_path / name, Experiment(rounds=10), tmp_path) for seed, name in enumerate(["a", "longer"])
    ]
    status = ComparisonStatus(jobs, running={jobs[0]: 5, jobs[1]: 0}, fresh_rounds=5, began=time.monotonic() - 10)
    with on_terminal(70) as terminal, compare_progress(quiet=False) as (shown,):
        shown.update(status)
        time.sleep(0.4)
        shown.update(status)
        under_way = terminal.now()
        del status.running[jobs[0]]
        status.finished, status.ended = [jobs[0]], jobs[0]
        shown.update(status)
        time.sleep(0.4)
        after_one = [line for line in terminal.now() if line]
    (bar,) = filter(None, under_way)
    assert bar.startswith("  Training  ")
    assert bar.endswith("0/2 runs 0:00:00 0:30 left")
    (bar,) = after_one
    assert "1/2 runs" in bar
    assert [line.split()[0] for line in filter(None, terminal.lines())] == ["Training"]


def test_a_log_has_a_line_for_each_tenth_of_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedreach.api.terminal.CHECK_SECONDS", 0.0)
    jobs = [Job("a", seed, tmp_path / str(seed), Experiment(rounds=10, name=str(seed)), tmp_path) for seed in range(40)]
    progress, status = ComparisonProgress(None), ComparisonStatus(jobs)
    for job in jobs:
        for round_ in range(1, 11):
            status.ended, status.running, status.fresh_rounds = None, {job: round_}, status.fresh_rounds + 1
            progress.update(status)
        status.ended, status.running = job, {}
        (status.failed.__setitem__(job, "cause") if job.seed == 7 else status.finished.append(job))
        progress.update(status)
    lines = capsys.readouterr().err.splitlines()
    assert lines.count("  Failed    a, seed 7: cause") == 1
    shown = [line for line in lines if line.startswith("  Training  ")]
    assert len(shown) <= 10
    assert shown[-1].startswith("  Training  40/40 runs, ")


def test_a_run_on_a_terminal_has_one_bar_with_its_latest_scores(home: Path) -> None:
    with on_terminal(100) as terminal:
        main(["run", "tiny.toml"], standalone_mode=False)
    lines = terminal.lines()
    assert lines[0].startswith("  Data      digits: 1,437 examples, 10 classes")
    (bar,) = (line for line in lines if line.startswith("  Training "))
    assert re.search(r"4/4 0:00:0\d participants [\d.]+%, unseen [\d.]+%, 0:00 left$", bar)


def test_training_again_on_all_rows_has_a_bar_below_that_of_the_rounds_which_vanishes(home: Path) -> None:
    with on_terminal(60) as terminal, run_progress(Experiment(rounds=9), Path(), quiet=False) as (shown,):
        shown.refit_round(0, 7)
        time.sleep(0.4)
        shown.refit_round(3, 7)
        time.sleep(0.4)
        rounds, refit = terminal.now()
    assert [rounds.split()[0], refit.split()[0]] == ["Training", "Refit"]
    assert refit.index("━") == rounds.index("━")
    assert re.search(r"3/7 0:00:0\d 0:0\d left$", refit)
    assert [line.split()[0] for line in filter(None, terminal.lines())] == ["Training"]


def test_a_run_that_trains_again_shows_it(home: Path) -> None:
    options = ["--set", "population.refit=true", "--set", "evaluation.every=1"]
    with on_terminal(100) as terminal:
        main(["run", "tiny.toml", *options, "--out", "run"], standalone_mode=False)
    rounds = json.loads((home / "run/result.json").read_text())["refit"]["rounds"]
    assert re.search(rf"Refit .* 0/{rounds} ", terminal.text)


def test_a_log_has_a_line_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    progress = RunProgress(Experiment(), Path(), None)
    for round_ in (10, 11, 12):  # resumed after round 10
        progress.refit_round(round_, 30)
    assert capsys.readouterr().err == "  Refit     training on all rows, 30 rounds\n"


@pytest.mark.parametrize("option", ["--quiet", "--json"])
def test_who_wants_no_progress_gets_none_on_a_terminal(home: Path, option: str) -> None:
    with on_terminal(out=False) as terminal:
        main(["run", "tiny.toml", "--set", "rounds=1", "--set", "evaluation.every=1", option], standalone_mode=False)
    assert terminal.text == ""


def test_ctrl_c_leaves_a_clean_terminal() -> None:
    def interrupted() -> None:
        with progress_bars() as add:
            add("all", total=9)
            add("run", total=3, leave=False)
            raise KeyboardInterrupt

    with on_terminal() as terminal:
        before = sys.stdout, sys.stderr
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert (sys.stdout, sys.stderr) == before
        print("Interrupted.")
    assert [line.split()[0] for line in terminal.lines()] == ["all", "Interrupted."]


def test_a_fork_prints_though_the_lock_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_terminal() as terminal, progress_bars() as add:
        console = add("all", total=9).progress.console
        held, over = threading.Event(), threading.Event()

        def hold() -> None:
            with console._lock:
                held.set()
                over.wait(10)

        other = threading.Thread(target=hold)
        other.start()
        held.wait()
        child = fork()
        if child == 0:
            print("from the child", flush=True)
            os._exit(0)
        began = time.monotonic()
        while not (ended := os.waitpid(child, os.WNOHANG)[0]) and time.monotonic() < began + 5:
            time.sleep(0.01)
        over.set()
        other.join()
        assert ended, os.kill(child, 9)
    assert any("from the child" in line for line in terminal.lines())


def test_the_clock_goes_on_where_nothing_else_is_new() -> None:
    with on_terminal() as terminal, progress_bars() as add:
        add("all", total=9)
        time.sleep(1.5)
        assert "0:00:01" in terminal.text


def test_a_bar_is_as_wide_as_the_terminal() -> None:
    with on_terminal(50) as terminal, progress_bars() as add:
        add("all", total=9).show(9, 9, "")
    (line,) = terminal.lines()
    assert 48 <= len(line) <= 50  # nothing follows the clock


def test_bars_within_others_stand_below_them(tmp_path: Path) -> None:
    """As where data are downloaded for a comparison."""
    with on_terminal() as terminal, progress_bars() as add:
        add("all", total=9)
        with progress_bars() as more:
            more("file", total=3, leave=False)
            print("a line")
            within = terminal.now()
        print("another")
    assert [line.split()[0] for line in within] == ["a", "all", "file"]
    assert [line.split()[0] for line in terminal.lines()] == ["a", "another", "all"]
