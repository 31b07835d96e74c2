"""A comparison knows what is left to do, and its workers say only what is theirs to say."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedreach._util.errors import ConfigError, TrainingError
from fedreach.api.terminal import clock
from fedreach.experiment.compare import plan
from fedreach.experiment.components import file_digests
from fedreach.experiment.load import load
from fedreach.experiment.workers import ComparisonStatus, Message, Scheduler


def test_seeds_come_one_after_the_other_with_all_methods_of_each() -> None:
    e = load(None, ["seeds=[3,1]"])
    jobs = plan(e, Path("out"))
    assert [(job.seed, job.method) for job in jobs] == [(seed, m) for seed in (3, 1) for m in e.methods]
    assert jobs[0].folder == Path("out/runs/uniform/seed-3")
    assert jobs[0].experiment == e.resolved("uniform")
    with pytest.raises(ConfigError, match=r"must have a \[methods.NAME\] table"):
        plan(e.resolved("uniform"), Path("out"))


def test_the_time_left_follows_from_the_rounds_run_so_far() -> None:
    jobs = plan(load(None, ["rounds=10", "seeds=[0]"]), Path("out"))[:4]
    status = ComparisonStatus(jobs)
    assert (status.rounds_left, status.seconds_left) == (40, None)
    status.finished.append(jobs[0])  # before this command: it says nothing about speed
    status.running[jobs[1]], status.fresh_rounds, status.began = 5, 5, time.monotonic() - 10.0
    assert status.rounds_left == 25
    assert status.seconds_left == pytest.approx(10.0 * 25 / 5, rel=0.01)
    status.failed[jobs[2]] = "cause"
    assert status.rounds_left == 15
    assert clock(status.seconds_left) == "0:30"


def test_the_time_left_knows_how_early_others_ended() -> None:
    jobs = plan(load(None, ["rounds=100", "seeds=[0, 1, 2]", "budget.megabytes=1.0"]), Path("out"))
    first, other, again = jobs[0], jobs[1], next(job for job in jobs[1:] if job.method == jobs[0].method)
    status = ComparisonStatus([first, other, again])
    assert status.rounds_left == 300
    status.finished.append(first)
    status.lengths[first] = 10
    assert status.rounds_left == 10 + 10
    status.finished.append(other)
    status.lengths[other] = 30
    assert status.rounds_left == 10  # as many as that of its own method
    status.running[again] = 12  # more than that: it ends soon
    assert status.rounds_left == 0


def test_the_time_left_counts_what_an_interrupted_run_has_behind_it(tmp_path: Path) -> None:
    jobs = plan(load(None, ["rounds=10", "seeds=[0]"]), tmp_path)[:2]
    jobs[1].folder.mkdir(parents=True)
    (jobs[1].folder / "rounds.jsonl").write_text('{"round": 0}\n' * 7)  # rounds 0 to 6
    status = ComparisonStatus(jobs)
    assert status.rounds_left == 10 + 4
    status.running[jobs[1]], status.fresh_rounds, status.began = 8, 2, time.monotonic() - 6.0
    assert status.seconds_left == pytest.approx(6.0 * (10 + 2) / 2, rel=0.01)


def test_a_stage_is_timed_by_its_own_rounds(tmp_path: Path) -> None:
    """What a pilot took before says nothing about seconds that are counted anew."""
    jobs = plan(load(None, ["rounds=10", "seeds=[0]"]), tmp_path)[:1]
    status = ComparisonStatus(jobs, fresh_rounds=90)

    class Dying:
        def start(self, on_message: Callable[[Message], None]) -> None:
            on_message({"died": "at once"})

        def send(self, job: Message) -> None: ...
        def end(self) -> None: ...
        def wait(self) -> None: ...

    with pytest.raises(TrainingError, match="No worker is left"):
        Scheduler([Dying()], jobs, status, tmp_path, tmp_path).work([])
    assert status.seconds_left is None


NOISY = """\
print("loading")

def noisy(view, k, rng):
    print("choosing")
    return view.ids[:k]
"""


@pytest.mark.slow
def test_what_lies_in_the_current_folder_is_not_taken_for_a_module(home: Path) -> None:
    """A file called as a module of Python's own or of a library's would run in each worker, under its name."""
    for module in ("queue", "torch", "json"):
        (home / f"{module}.py").write_text("open('ran', 'a').close()\nraise SystemExit(7)\n")
    few = ["--seeds", "1", "--set", "rounds=1", "--formats", "none", "-q", "--out", "x"]
    command = [str(Path(sys.executable).with_name("fedreach")), "compare", "tiny.toml", *few]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (home / "ran").exists()


@pytest.mark.slow
def test_a_worker_ends_with_its_input_and_what_users_print_is_no_message(home: Path) -> None:
    (home / "noisy.py").write_text(NOISY, encoding="utf-8")
    e = load(home / "tiny.toml", ["method.selection=noisy.py:noisy"]).resolved("uniform")
    request = {"method": "uniform", "seed": 0, "folder": "x", "out": ".", "base": str(home)}
    request |= {"config": e.model_dump(mode="json"), "files": file_digests(e, home)}
    process = subprocess.Popen(
        [sys.executable, "-m", "fedreach.experiment.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        messages = [json.loads(process.stdout.readline()) for _ in range(5)]
        assert [message.get("round") for message in messages] == [1, 2, 3, 4, None]
        assert messages[-1]["ended"] == "finished"
        said, complaints = process.communicate(timeout=30)  # closes its input
        assert process.returncode == 0
        assert said == ""
        assert complaints.count("choosing") == 4
        assert "Traceback" not in complaints
    assert json.loads((home / "x" / "result.json").read_text())["status"] == "finished"
