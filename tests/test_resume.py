"""The same command gives the same bytes: twice, with any number of workers, and after whatever interrupted it."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from fedreach._util import files
from fedreach._util.errors import RunFolderError
from fedreach.cli import main
from fedreach.experiment.load import load
from fedreach.experiment.run import run
from fedreach.federation import round as decisions
from fedreach.federation.selection import geometry
from fedreach.runs.callbacks import Callback
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import RoundRow, Timing

from .conftest import TINY, Command, Start, exact, rows, wait_until

SLOW_POLICY = """\
import time

def slow(view, k, rng):
    time.sleep(0.03)
    return rng.choice(view.ids, size=k, replace=False)

def slow_equal(reports):
    time.sleep(0.03)
    return [1.0 for _ in reports.ids]
"""

ROUNDS = 30


def slowed(home: Path) -> list[str]:
    """Write the policy; return options of a run that takes about a second and writes a checkpoint every few rounds."""
    (home / "slow.py").write_text(SLOW_POLICY, encoding="utf-8")
    chosen = {"rounds": ROUNDS, "evaluation.every": 3, "method.selection": f"{home / 'slow.py'}:slow", "seeds": [0]}
    chosen |= {"run.checkpoint_seconds": 0.2}
    return [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture
def slow(home: Path) -> list[str]:
    return slowed(home)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def runs(folder: Path) -> dict[str, dict[str, bytes]]:
    """Return what must be the same in two comparisons."""
    return {path.relative_to(folder).as_posix(): exact(path) for path in sorted(folder.glob("runs/*/*"))}


# --------------------------------------------------------------------------------------------- nothing interrupts


def test_the_same_run_twice_gives_the_same_bytes(fedreach: Command, home: Path) -> None:
    for out in ("a", "b"):
        assert fedreach("run", "tiny.toml", "--out", out).exit_code == 0
    assert exact(home / "a") == exact(home / "b")
    assert exact(home / "a")["rounds.jsonl"] != b""


@pytest.mark.parametrize("engine", ["sequential", "vmap"])
def test_the_number_of_threads_changes_no_byte(fedreach: Command, home: Path, engine: str) -> None:
    for threads in (1, 3):
        options = ["--set", f"engine.name={engine}", "--set", f"engine.threads={threads}", "--out", threads]
        assert fedreach("run", "tiny.toml", *options).exit_code == 0
    assert exact(home / "1") == exact(home / "3")


def test_a_finished_run_is_not_repeated(fedreach: Command, home: Path) -> None:
    first = fedreach("run", "tiny.toml", "--out", "a")
    times = {path.name: path.stat().st_mtime_ns for path in (home / "a").glob("[!.]*")}
    again = fedreach("run", "tiny.toml", "--out", "a")
    assert again.stdout == first.stdout
    assert "round" not in again.stderr
    assert {path.name: path.stat().st_mtime_ns for path in (home / "a").glob("[!.]*")} == times


def test_another_seed_gives_another_run(fedreach: Command, home: Path) -> None:
    for seed in (0, 1):
        assert fedreach("run", "tiny.toml", "--out", seed, "--seed", seed).exit_code == 0
    assert exact(home / "0")["last.safetensors"] != exact(home / "1")["last.safetensors"]


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_the_engines_agree_up_to_rounding(fedreach: Command, home: Path, model: str) -> None:
    """Vmap kernels add in another order: parameters agree to 1e-5, what follows from counts and draws is the same.

    A sample on the edge between two classes may fall to either side, so accuracies may differ by a sample or two; each
    client holds out at least 10 samples here, and 6 clients are averaged.
    """
    for engine in ("sequential", "vmap"):
        options = ["--set", f"engine.name={engine}", "--set", f"model={model}", "--set", "rounds=8"]
        assert fedreach("run", "tiny.toml", *options, "--out", engine).exit_code == 0
    one, other = (load_file(home / engine / "last.safetensors") for engine in ("sequential", "vmap"))
    for name, value in one.items():
        np.testing.assert_allclose(other[name], value, rtol=1e-4, atol=1e-5)
    for a, b in zip(rows(home / "sequential"), rows(home / "vmap"), strict=True):
        assert a.keys() == b.keys()
        for key in a:
            if "accuracy" in key or "gap" in key:
                assert abs(a[key] - b[key]) < 0.05
            elif isinstance(a[key], float):
                assert abs(a[key] - b[key]) < 1e-4
            elif key == "metrics":
                np.testing.assert_allclose(b[key].get("loss", []), a[key].get("loss", []), atol=1e-4)
            else:  # cohort, weights, bytes: these do not depend on the arithmetic
                assert a[key] == b[key]
    assert (home / "sequential" / "federation.json").read_bytes() == (home / "vmap" / "federation.json").read_bytes()


# ---------------------------------------------------------------------------------------------- a run is cut short


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    home = tmp_path_factory.mktemp("uninterrupted")
    (home / "tiny.toml").write_text(TINY, encoding="utf-8")
    command = ["run", str(home / "tiny.toml"), *slowed(home), "--out", str(home / "whole"), "-q"]
    assert CliRunner().invoke(main, command).exit_code == 0
    return exact(home / "whole")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "moment", [pytest.param(1, marks=pytest.mark.slow), 13, pytest.param(29, marks=pytest.mark.slow)]
)
def test_a_run_killed_in_any_round_goes_on_as_if_nothing_had_happened(
    fedreach: Command, start: Start, home: Path, slow: list[str], uninterrupted: dict[str, bytes], moment: int
) -> None:
    command = ["run", "tiny.toml", *slow, "--out", "x", "-q"]
    killed = start(*command)
    wait_until(lambda: lines(home / "x" / "rounds.jsonl") >= moment)
    killed.kill()
    killed.wait()
    assert not (home / "x" / "result.json").exists()
    assert fedreach(*command).exit_code == 0
    assert exact(home / "x") == uninterrupted
    assert [row["round"] for row in rows(home / "x", "timing.jsonl")] == list(range(ROUNDS + 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keeper", "selection", "server"),
    [
        pytest.param("solver=scaffold", "minimax", "yogi", marks=pytest.mark.slow),
        ("loss={name='moon',mu=5.0}", "power_of_choice", "adam"),
        pytest.param("solver=feddyn", "rademacher", "adam", marks=pytest.mark.slow),
    ],
)
def test_what_clients_and_parts_remember_survives_a_kill(
    fedreach: Command, start: Start, home: Path, slow: list[str], keeper: str, selection: str, server: str
) -> None:
    """The rows of a checkpoint are not written over by the rounds after it, which are run again."""
    parts = [f"method.{keeper}", "model=mlp", f"method.selection={selection}", f"method.server={server}"]
    parts += [f"method.weighting={home / 'slow.py'}:slow_equal", "run.checkpoint_seconds=0.05"]
    solving = [*slow, *(word for part in parts for word in ("--set", part))]
    assert fedreach("run", "tiny.toml", *solving, "--out", "whole", "-q").exit_code == 0
    command = ["run", "tiny.toml", *solving, "--out", "x", "-q"]
    for moment in (7, 16):
        killed = start(*command)
        wait_until(lambda: lines(home / "x" / "rounds.jsonl") >= moment)  # noqa: B023 (waited for at once)
        killed.kill()
        killed.wait()
    assert (home / "x" / "memory.rows").exists()
    assert fedreach(*command).exit_code == 0
    assert exact(home / "x") == exact(home / "whole")
    assert not (home / "x" / "memory.rows").exists()


NORMED = """
from torch import nn

def normed(sample_shape, num_classes):
    layers = nn.Linear(64, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, num_classes)
    return nn.Sequential(nn.Flatten(), *layers)
"""


class StopAfter(Callback):
    """Interrupts a run after so many rounds of this process."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def round(self, row: RoundRow, timing: Timing, lost: Mapping[int, str]) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("selection", "weighting"), [("hics", "fedau"), ("urns_by_similarity", "by_draws"), ("urns_by_size", "fedau")]
)
def test_draws_and_what_a_weighting_keeps_survive_an_interruption(home: Path, selection: str, weighting: str) -> None:
    config = TINY.replace("[method]", f'[method]\nselection = "{selection}"\nweighting = "{weighting}"')
    (home / "tiny.toml").write_text(config, encoding="utf-8")
    experiment = load(home / "tiny.toml").resolved("uniform").model_copy(update={"rounds": 8})

    def made(name: str, *callbacks: Callback) -> dict[str, bytes]:
        run(experiment, seed=0, folder=home / name, base=home, callbacks=callbacks)
        return exact(home / name)

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            made("x", StopAfter(3))
    assert made("x") == made("whole")


def test_whole_models_that_clients_keep_survive_an_interruption(home: Path) -> None:
    """With buffers, so that what is kept is longer than what is trained."""
    (home / "net.py").write_text(NORMED, encoding="utf-8")
    config = TINY.replace('name = "linear"', 'name = "net.py:normed"').replace("[local]", "[local]\ndrop_last = true")
    config = config.replace("[method]", '[method]\nloss = { name = "moon", mu = 5.0 }')
    (home / "tiny.toml").write_text(config, encoding="utf-8")
    experiment = load(home / "tiny.toml").resolved("uniform").model_copy(update={"rounds": 8})

    def made(name: str, *callbacks: Callback) -> dict[str, bytes]:
        run(experiment, seed=0, folder=home / name, base=home, callbacks=callbacks)
        return exact(home / name)

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            made("x", StopAfter(3))
        assert (home / "x" / "memory.rows").stat().st_size > 0
    assert made("x") == made("whole")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "server",
    [
        'name = "server_only", steps = 5, lr = 5.0, batch_size = 8, held_out = 0.3, patience = 2',
        'name = "fine_tune", inner = "adam", batch_size = 8',
        'name = "fine_tune", when = "end", steps = 3',
        'name = "feddf", batch_size = 8, steps = 3',
    ],
)
def test_what_a_server_learns_survives_an_interruption(home: Path, server: str) -> None:
    config = TINY.replace("[method]", f"[server_data]\nexamples = 30\n\n[method]\nserver = {{ {server} }}")
    (home / "tiny.toml").write_text(config, encoding="utf-8")
    experiment = load(home / "tiny.toml").resolved("uniform").model_copy(update={"rounds": 8})

    def made(name: str, *callbacks: Callback) -> dict[str, bytes]:
        run(experiment, seed=0, folder=home / name, base=home, callbacks=callbacks)
        return exact(home / name)

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            made("x", StopAfter(3))
    assert made("x") == made("whole")
    (home / "tiny.toml").write_text(config.replace("seeds", "engine.threads = 2\nseeds"), encoding="utf-8")
    experiment = load(home / "tiny.toml").resolved("uniform").model_copy(update={"rounds": 8})
    assert made("threads")["last.safetensors"] == made("whole")["last.safetensors"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("aggregation", ["fedvarp", "mifa"])
def test_what_clients_sent_last_survives_an_interruption(
    home: Path, monkeypatch: pytest.MonkeyPatch, aggregation: str
) -> None:
    config = TINY.replace("[method]", f'[method]\naggregation = "{aggregation}"')
    (home / "tiny.toml").write_text(config, encoding="utf-8")
    experiment = load(home / "tiny.toml").resolved("uniform").model_copy(update={"rounds": 8})

    def made(name: str, *callbacks: Callback) -> dict[str, bytes]:
        run(experiment, seed=0, folder=home / name, base=home, callbacks=callbacks)
        return exact(home / name)

    whole = made("whole")
    for name, large in (("x", 2**24), ("y", 1)):
        monkeypatch.setattr(decisions, "LARGE", large)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                made(name, StopAfter(3))
            assert (home / name / "sent.rows").exists()
        assert made(name) == whole
        assert not (home / name / "sent.rows").exists()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", ["", ', dtype = "float16"', ', storage = "disk"'])
def test_a_large_table_changes_no_byte_and_survives_an_interruption(
    home: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    config = TINY.replace("[method]", f'[method]\nselection = {{ name = "minimax"{options} }}')
    (home / "tiny.toml").write_text(config, encoding="utf-8")
    experiment = load(home / "tiny.toml").resolved("uniform").model_copy(update={"rounds": 8})

    def made(name: str, *callbacks: Callback) -> dict[str, bytes]:
        run(experiment, seed=0, folder=home / name, base=home, callbacks=callbacks)
        return exact(home / name)

    small = made("small")
    monkeypatch.setattr(geometry, "LARGE", 1)
    monkeypatch.setattr(geometry, "TOGETHER", 2**13)
    large = made("large")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            made("x", StopAfter(3))
        assert (home / "x" / "selection.rows").exists()
    assert made("x") == large
    assert not (home / "x" / "selection.rows").exists()
    del small["checkpoint.safetensors"], large["checkpoint.safetensors"]  # that of a small table holds it
    assert large == small


@pytest.mark.slow
def test_seconds_and_joules_add_up_over_a_kill(fedreach: Command, start: Start, home: Path, slow: list[str]) -> None:
    radio = [*slow, "--set", "radio.bandwidth_hertz=1e6", "--set", "method.allocation=random"]
    assert fedreach("run", "tiny.toml", *radio, "--out", "whole", "-q").exit_code == 0
    command = ["run", "tiny.toml", *radio, "--out", "x", "-q"]
    killed = start(*command)
    wait_until(lambda: lines(home / "x" / "rounds.jsonl") >= 16)
    killed.kill()
    killed.wait()
    assert fedreach(*command).exit_code == 0
    assert exact(home / "x") == exact(home / "whole")
    told = rows(home / "x")
    for key in ("seconds", "joules"):
        assert told[-1][f"{key}_total"] == pytest.approx(sum(row[key] for row in told), rel=1e-8)
        assert told[-1][key] > 0


@pytest.mark.slow
def test_memory_that_is_missing_is_not_taken_for_zeros(
    fedreach: Command, start: Start, home: Path, slow: list[str]
) -> None:
    command = ["run", "tiny.toml", *slow, "--set", "method.solver=scaffold", "--out", "x", "-q"]
    killed = start(*command)
    wait_until(lambda: lines(home / "x" / "rounds.jsonl") >= 5)
    killed.send_signal(2)
    killed.wait()
    (home / "x" / "memory.rows").unlink()
    done = fedreach(*command)
    assert done.exit_code == 3
    assert "bytes of client state; got 0 bytes. Restore it" in done.stderr


@pytest.mark.slow
def test_a_run_killed_again_and_again_still_ends_the_same(
    fedreach: Command, start: Start, home: Path, slow: list[str], uninterrupted: dict[str, bytes]
) -> None:
    command = ["run", "tiny.toml", *slow, "--out", "x", "-q"]
    seconds = random.Random(0)
    for _ in range(4):
        killed = start(*command)
        time.sleep(seconds.uniform(0.2, 3.0))
        killed.kill()
        killed.wait()
    assert fedreach(*command).exit_code == 0
    assert exact(home / "x") == uninterrupted


@pytest.mark.sampled(2)
def test_ctrl_c_writes_a_checkpoint_and_says_that_nothing_is_lost(
    fedreach: Command, start: Start, home: Path, slow: list[str], uninterrupted: dict[str, bytes]
) -> None:
    never = [*slow, "--set", "run.checkpoint_seconds=1000.0"]  # only the interrupt itself writes one
    command = ["run", "tiny.toml", *never, "--out", "x"]
    process = start(*command)
    wait_until(lambda: lines(home / "x" / "rounds.jsonl") >= 9)
    process.send_signal(2)
    _, said = process.communicate()
    assert process.returncode == 130
    assert said.count("error: ") == 1
    assert "Interrupted. Rerun the command to resume it." in said
    assert "Traceback" not in said
    assert not (home / "x" / "result.json").exists()
    again = fedreach(*command, "--resume")
    assert again.exit_code == 0
    assert "round 3/30" not in again.stderr  # it went on, and did not start over
    assert "round 30/30" in again.stderr
    assert exact(home / "x") == uninterrupted


@pytest.mark.parametrize("limit", [pytest.param(2000, marks=pytest.mark.slow), 6000])
def test_a_full_disk_loses_nothing(
    fedreach: Command, start: Start, home: Path, slow: list[str], uninterrupted: dict[str, bytes], limit: int
) -> None:
    """No file may grow beyond `limit` bytes: at 2000 no model fits, at 6000 the rows of some rounds do."""
    command = ["run", "tiny.toml", *slow, "--out", "x", "-q"]
    process = start(*command, before=f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))")
    _, said = process.communicate()
    assert process.returncode == 3
    assert said.count("error: ") == 1
    assert "cannot be written: File too large. Free some space, then rerun the command to resume from the last" in said
    assert "Traceback" not in said
    assert not (home / "x" / "result.json").exists()
    assert not list((home / "x").glob(".*.[0-9]*"))
    assert fedreach(*command).exit_code == 0
    assert exact(home / "x") == uninterrupted


@pytest.mark.slow
def test_a_row_that_was_cut_off_is_written_anew(
    fedreach: Command, start: Start, home: Path, slow: list[str], uninterrupted: dict[str, bytes]
) -> None:
    command = ["run", "tiny.toml", *slow, "--out", "x", "-q"]
    killed = start(*command)
    wait_until(lambda: lines(home / "x" / "rounds.jsonl") >= 9)
    killed.kill()
    killed.wait()
    for name in ("rounds.jsonl", "clients.jsonl", "timing.jsonl"):
        with (home / "x" / name).open("a") as file:
            file.write('{"round": 10, "coh')
    (home / "x" / f".checkpoint.safetensors.{killed.pid}{files.UNFINISHED}").write_bytes(b"half")
    assert fedreach(*command).exit_code == 0
    assert exact(home / "x") == uninterrupted
    assert len(rows(home / "x", "timing.jsonl")) == ROUNDS + 1
    assert not list((home / "x").glob(".checkpoint*"))


def test_two_processes_do_not_write_to_one_folder(
    refused: Callable[..., str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.2)
    with RunFolder(home / "x").locked():
        message = (
            "x is in use: another process is writing to it. Wait for this process, or choose another folder with "
            "--out (in Python, out)."
        )
        assert refused(3, "run", "tiny.toml", "--out", "x") == message
        assert refused(3, "compare", "tiny.toml", "--out", "x") == message
        assert sorted(path.name for path in (home / "x").iterdir()) == [".lock"]


def test_the_lock_waits_for_a_process_that_is_about_to_end(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.time, "sleep", lambda seconds: first.__exit__(None, None, None))
    first = RunFolder(home / "x").locked()
    first.__enter__()
    with RunFolder(home / "x").locked():
        monkeypatch.setattr(files, "LOCK_SECONDS", -1.0)
        monkeypatch.setattr(files.time, "sleep", lambda seconds: pytest.fail("it waits for longer"))
        with pytest.raises(RunFolderError, match="another process is writing"), RunFolder(home / "x").locked():
            pass


# -------------------------------------------------------------------------------------- a comparison is cut short


def children(process: subprocess.Popen[str]) -> list[int]:
    """Return the processes that a process started; empty once it is gone."""
    try:
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    except FileNotFoundError:
        return []
    return [int(word) for word in listed.split()]


def runs_still(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc to find workers")


@pytest.fixture
def comparison(slow: list[str]) -> list[str]:
    return ["compare", "tiny.toml", *slow, "--formats", "none"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The comparison with one worker, uninterrupted."""
    home = tmp_path_factory.mktemp("whole")
    (home / "tiny.toml").write_text(TINY, encoding="utf-8")
    command = ["compare", str(home / "tiny.toml"), *slowed(home), "--out", str(home / "whole"), "--workers", "1", "-q"]
    assert CliRunner().invoke(main, [*command, "--formats", "none"]).exit_code == 0
    found = runs(home / "whole")
    assert sorted(found) == ["runs/entropy/seed-0", "runs/uniform/seed-0"]
    return found


def begun(folder: Path) -> int:
    return max((lines(path) for path in folder.glob("runs/*/*/rounds.jsonl")), default=0)


@pytest.mark.slow
@needs_proc
def test_a_comparison_survives_ctrl_c_and_kill(
    fedreach: Command, start: Start, home: Path, comparison: list[str], whole: dict[str, dict[str, bytes]]
) -> None:
    command = [*comparison, "--out", "x", "--workers", "2", "-q"]
    interrupted = start(*command)
    wait_until(lambda: begun(home / "x") > 10)
    interrupted.send_signal(2)
    _, said = interrupted.communicate()
    assert interrupted.returncode == 130
    assert said.count("error: ") == 1
    assert "Interrupted. Rerun the command to resume it." in said

    before = begun(home / "x")
    killed = start(*command)
    wait_until(lambda: begun(home / "x") > before + 3 or killed.poll() is not None)
    workers = children(killed)
    assert len(workers) == 2
    killed.kill()
    killed.wait()
    wait_until(lambda: not any(map(runs_still, workers)), seconds=10)  # no orphan goes on

    again = fedreach(*command)
    assert again.exit_code == 0, again.output
    assert runs(home / "x") == whole
    assert not (home / "x" / "workers.log").exists()


@pytest.mark.slow
@needs_proc
def test_a_run_whose_worker_dies_resumes(
    start: Start, home: Path, comparison: list[str], whole: dict[str, dict[str, bytes]]
) -> None:
    command = [*comparison, "--out", "x", "--workers", "1"]
    process = start(*command)
    wait_until(lambda: begun(home / "x") > 5)
    (worker,) = children(process)
    os.kill(worker, 9)
    _, said = process.communicate()
    assert process.returncode == 0, said
    log = (home / "x" / "workers.log").read_text()
    assert "its process died (signal SIGKILL); FedReach resumes it from its last checkpoint." in log
    assert runs(home / "x") == whole


@pytest.mark.slow
@needs_proc
def test_a_comparison_interrupted_at_a_random_moment_ends_the_same(
    fedreach: Command, start: Start, home: Path, comparison: list[str], whole: dict[str, dict[str, bytes]]
) -> None:
    command = [*comparison, "--out", "x", "--workers", "2", "-q"]
    draw = random.Random(0)
    process = start(*command)
    time.sleep(draw.uniform(0.5, 5.0))
    process.send_signal(draw.choice([2, 9]))
    process.wait()
    assert fedreach(*command).exit_code == 0
    assert runs(home / "x") == whole


def test_a_comparison_runs_only_what_is_new(fedreach: Command, home: Path) -> None:
    command = ["compare", "tiny.toml", "--out", "c", "--formats", "none"]
    assert fedreach(*command).exit_code == 0
    first = runs(home / "c")
    seconds = time.monotonic()
    again = fedreach(*command)
    assert again.exit_code == 0
    assert "  Resumed   4/4 runs were already finished" in again.stderr
    assert "never train" not in again.stderr  # nor are the data read
    assert time.monotonic() - seconds < 30
    more = fedreach(*command, "--seeds", 3, "--add-seeds", "--set", "methods.equal.weighting=equal")
    assert more.exit_code == 0
    assert "  Resumed   4/9 runs were already finished" in more.stderr
    assert "  Training  9/9 runs, " in more.stderr
    now = runs(home / "c")
    assert len(now) == 9
    assert {name: now[name] for name in first} == first
    fewer = fedreach(*command, "--seeds", 1)
    assert fewer.exit_code == 3
    assert "2 of these seeds are missing now" in fewer.stderr
    without = fedreach(*command, "--seeds", 3)  # a method less is another question, and nothing is thrown away
    assert without.exit_code == 0
    assert "6/6 runs were already finished" in without.stderr
    assert len(runs(home / "c")) == 9
