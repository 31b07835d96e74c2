"""A comparison on Ray gives the bytes of the local one, whatever dies; and says what is wrong before it begins."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedreach._util.errors import ConfigError
from fedreach.experiment.ray import TOKEN, Site, check_reachable, unfit, versions

from ..conftest import Command, Start, exact, wait_until  # noqa: TID252 (tests are no package that has a name)

PAGE = Path(__file__).parents[2] / "docs" / "running.md"
SLOW = """\
import time

def slow(view, k, rng):
    time.sleep(0.1)
    return rng.choice(view.ids, size=k, replace=False)
"""
FATAL = """\
import os

def fatal(view, k, rng):
    os.kill(os.getpid(), 9)
"""

# ------------------------------------------------------------------------------------------------ without a cluster


def test_what_is_asked_of_ray_is_checked_before_anything_is_written(
    fedreach: Command, refused: Callable[..., str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = fedreach("compare", "tiny.toml", "--executor", "rya")
    assert (unknown.exit_code, "'rya' is not one of 'local', 'ray'" in unknown.stderr) == (2, True)
    said = refused(2, "compare", "tiny.toml", "--address", "auto")
    assert said == "--address 'auto' needs --executor ray."
    monkeypatch.setitem(sys.modules, "ray", None)
    said = refused(2, "compare", "tiny.toml", "--executor", "ray")
    assert said == "--executor ray needs Ray, which is not installed. Run: pip install 'fedreach[ray]'"
    assert not (home / "runs").exists()


@pytest.mark.parametrize("address", ["head", "http://head:1", "head:port", "ray://head"])
def test_an_address_is_auto_or_a_host_and_its_port(address: str) -> None:
    with pytest.raises(ConfigError, match=rf"must be auto, HOST:PORT or ray://HOST:PORT; got '{address}'"):
        check_reachable(address)


@pytest.mark.parametrize("prefix", ["", "ray://"])
def test_an_address_where_nothing_answers_is_refused_at_once(prefix: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{prefix}127.0.0.1:{server.getsockname()[1]}"
        check_reachable(address)
    with pytest.raises(ConfigError, match=r"No Ray cluster answers at .* Start a cluster there with `ray start"):
        check_reachable(address)


def test_a_node_must_see_the_folder_and_have_the_same_versions(tmp_path: Path) -> None:
    site = Site(tmp_path, "this one", versions(), tmp_path, {})
    assert "cannot read the folder" in str(unfit(site))
    (tmp_path / TOKEN).write_text("another of the same name", encoding="utf-8")
    assert "cannot read the folder" in str(unfit(site))
    (tmp_path / TOKEN).write_text("this one", encoding="utf-8")
    assert unfit(site) is None
    older = site._replace(versions={**versions(), "torch": "0.1"})
    assert re.search(
        r"has fedreach .*, torch [2-9].*, and this machine has .*, torch 0\.1\. Install", str(unfit(older))
    )


# --------------------------------------------------------------------------------------------------- with a cluster


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ray of this test only: its files lie under a short path, as a socket's name has at most 107 characters."""
    pytest.importorskip("ray")
    folder = tempfile.mkdtemp(prefix="fr")
    monkeypatch.setenv("RAY_TMPDIR", folder)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield
    shutil.rmtree(folder, ignore_errors=True)


def comparison(home: Path, out: str, *more: object) -> list[str]:
    """Return a comparison of four runs that take some seconds each."""
    (home / "slow.py").write_text(SLOW, encoding="utf-8")
    chosen = {"rounds": 30, "method.selection": "slow.py:slow", "run.checkpoint_seconds": 0.3}
    options = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
    return ["compare", "tiny.toml", *options, "--formats", "none", "--out", out, *map(str, more)]


def runs(folder: Path) -> dict[str, bytes]:
    """Return all that must be the same in two comparisons."""
    found = {str(path.relative_to(folder)): exact(path) for path in sorted(folder.glob("runs/*/*"))}
    files = {f"{run}/{name}": content for run, files in found.items() for name, content in files.items()}
    return files | {"comparison.json": (folder / "comparison.json").read_bytes()}


def rounds(home: Path, out: str = "x") -> int:
    return sum(path.read_bytes().count(b"\n") for path in (home / out).glob("runs/*/*/rounds.jsonl"))


def workers(home: Path) -> list[int]:
    """Return the worker processes whose command was given in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = b"fedreach.experiment.worker" in (process / "cmdline").read_bytes()
            if ours and (process / "cwd").resolve() == home.resolve():
                found.append(int(process.name))
        except OSError:  # it ended meanwhile
            continue
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def whole(fedreach: Command, home: Path) -> dict[str, bytes]:
    """The comparison on this machine."""
    done = fedreach(*comparison(home, "whole", "--workers", 2))
    assert done.exit_code == 0, done.output
    found = runs(home / "whole")
    assert sum(name.endswith("result.json") for name in found) == 4
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_dying_workers_a_killed_comparison_and_ctrl_c_change_no_byte(
    start: Start, home: Path, whole: dict[str, bytes]
) -> None:
    command = comparison(home, "x", "--executor", "ray", "--workers", 2)
    killed = start(*command)
    wait_until(lambda: rounds(home) > 5)
    killed.kill()
    killed.wait()
    wait_until(lambda: not workers(home), seconds=15)  # no orphan goes on

    before = rounds(home)
    interrupted = start(*command)
    wait_until(lambda: rounds(home) > before + 5)
    interrupted.send_signal(signal.SIGINT)
    _, said = interrupted.communicate()
    assert interrupted.returncode == 130
    assert said.count("error: ") == 1
    assert "Interrupted. Rerun the command to resume it." in said
    assert not workers(home)

    before = rounds(home)
    going = start(*command)
    wait_until(lambda: rounds(home) > before + 5)
    os.kill(workers(home)[0], signal.SIGKILL)  # a run's process
    before = rounds(home)
    wait_until(lambda: rounds(home) > before + 5)
    os.kill(parent(workers(home)[-1]), signal.SIGKILL)  # Ray's process, which holds a run's
    _, said = going.communicate()
    assert going.returncode == 0, said
    assert "failed" not in said
    assert "Warning" not in said
    told = (home / "x" / "workers.log").read_text(encoding="utf-8")
    assert told.count("its process died (signal SIGKILL); FedReach resumes it from its last checkpoint.") == 1
    assert told.count("its process died (Ray lost its worker or its node); FedReach resumes") == 1
    assert runs(home / "x") == whole
    assert not (home / "x" / TOKEN).exists()


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_a_run_whose_process_dies_each_time_fails_after_three_tries(start: Start, home: Path) -> None:
    (home / "fatal.py").write_text(FATAL, encoding="utf-8")
    fatal = ["--set", "methods.entropy.selection=fatal.py:fatal", "--seeds", 1]
    process = start("compare", "tiny.toml", "--formats", "none", "--out", "x", "--executor", "ray", *fatal)
    _, said = process.communicate()
    assert process.returncode == 1
    assert "entropy, seed 0: its process died (signal SIGKILL, as in all 3 tries); " in said
    assert "1 of 2 runs failed. Finished runs are kept." in said
    assert (home / "x" / "runs" / "uniform" / "seed-0" / "result.json").exists()


@pytest.fixture
def cluster(quiet: None) -> Iterator[str]:
    """The address of a cluster of one node with two CPUs, a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--num-cpus=2"]
    command += ["--node-ip-address=127.0.0.1", f"--port={port}", "--include-dashboard=false"]
    head = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", start_new_session=True
    )

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(answers)
        yield f"127.0.0.1:{port}"
    finally:
        head.terminate()  # which ends the node's other processes, too
        head.wait(timeout=60)


@pytest.mark.slow
def test_a_cluster_is_joined_by_its_address(start: Start, home: Path, cluster: str, whole: dict[str, bytes]) -> None:
    joined = ["--executor", "ray", "--address", cluster]
    done = start(*comparison(home, "x", *joined))
    _, said = done.communicate()
    assert done.returncode == 0, said
    assert runs(home / "x") == whole

    for option, message in {
        "engine.threads=3": "A run requires 3 CPUs (engine.threads), more than any node of the Ray cluster has",
        "engine.device=cuda": "A run requires 1 CPU (engine.threads) and a GPU, more than any node",
        "engine.device=cuda:1": "with --executor ray, because each run has its own GPU; got 'cuda:1'",
    }.items():
        process = start("compare", "tiny.toml", "--out", "y", "--set", option, *joined)
        _, said = process.communicate()
        assert process.returncode == 2, said
        assert message in said
        assert said.count("error: ") == 1
    hidden = "import fedreach.experiment.ray as r; r.TOKEN = '.unshared'"
    process = start("compare", "tiny.toml", "--out", "z", *joined, before=hidden)
    _, said = process.communicate()
    assert process.returncode == 2, said
    assert re.search(r"Node \S+ of the Ray cluster cannot read the folder \S+/z of this comparison", said)
    assert list((home / "z").glob("runs/*/*/rounds.jsonl")) == []
    assert not workers(home)


@pytest.mark.slow
def test_the_commands_of_the_page_run(start: Start, home: Path, cluster: str) -> None:
    (home / "tiny.toml").rename(home / "comparison.toml")
    lines = re.findall(r"^fedreach (compare .*--executor ray.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        words = [cluster if word == "auto" else word for word in shlex.split(line, comments=True)]
        words = ["1" if word.isdigit() else word.replace("threads=4", "threads=2") for word in words]
        done = start(*words, "--seeds", 1, "--formats", "none")
        printed, said = done.communicate()
        assert done.returncode == 0, said
        assert "Report  runs/" in printed


@pytest.mark.slow
def test_a_local_ray_rejects_those_without_its_token() -> None:
    """Ray listens on all interfaces, so without a token any machine of the network could run code here."""
    program = (
        "import os, subprocess, sys\n"
        "from fedreach.experiment.ray import OnRay\n"
        "join = 'import ray; ray.init(sys.argv[1], log_to_driver=False)'\n"
        "with OnRay()._ray(1) as ray:\n"
        "    address = ray.get_runtime_context().gcs_address\n"
        "    for token in (True, False):\n"
        "        others = {k: v for k, v in os.environ.items() if token or not k.startswith('RAY_')}\n"
        "        call = [sys.executable, '-W', 'ignore', '-c', 'import sys; ' + join, address]\n"
        "        print(subprocess.run(call, env=others, capture_output=True, timeout=120).returncode == 0)\n"
        "print([name for name in os.environ if name.startswith('RAY_AUTH')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], check=False, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.splitlines() == ["True", "False", "[]"], done.stderr
