"""One run over many processes leaves the folder that one process leaves, whatever happens to them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedreach.cli import main

from ..conftest import EXACT, TINY, rows, wait_until  # noqa: TID252 (tests are no package that has a name)
from ..launching import ended, start_ranks  # noqa: TID252

Ranks = list["subprocess.Popen[str]"]
Start = Callable[..., Ranks]

RICH = """
[methods.rich]
selection = { name = "power_of_choice", candidates = 5 }
weighting = "disagreement"
solver = "scaffold"
"""
OWN = """\
import os, time, torch

def slow(view, k, rng):
    time.sleep(0.03)
    return rng.choice(view.ids, size=k, replace=False)

class Fragile(torch.nn.Linear):
    def forward(self, x):
        if os.environ.get("RANK") == "1" and self.training and torch.is_grad_enabled():
            raise ArithmeticError("the second process cannot count")
        return super().forward(x.flatten(1))

def fragile(sample_shape, num_classes):
    return Fragile(64, num_classes)
"""
ALONE = ["--set", "engine.name=sequential"]  # one client a group, so that there is work for all
SLOW = [*ALONE, "--set", "rounds=40", "--set", "method.selection=own.py:slow", "--set", "run.checkpoint_seconds=0.2"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distributed")
    (folder / "tiny.toml").write_text(TINY + RICH, encoding="utf-8")
    (folder / "own.py").write_text(OWN, encoding="utf-8")
    return folder


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Start the ranks of a run; what still runs at the end of a test is ended."""
    started: Ranks = []

    def call(size: int, *arguments: object) -> Ranks:
        ranks = start_ranks(size, "-m", "fedreach", "run", "tiny.toml", *arguments, folder=home)
        started.extend(ranks)
        return ranks

    yield call
    for rank in started:
        with rank:
            rank.kill()


def plain(home: Path, *arguments: object) -> None:
    """Run the same in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        result = CliRunner().invoke(main, ["run", "tiny.toml", *map(str, arguments)])
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="module")
def uninterrupted(home: Path) -> dict[str, bytes]:
    plain(home, *SLOW, "--out", "uninterrupted")
    return content(home / "uninterrupted")


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in (*EXACT, "run.json")}


def begun(folder: Path) -> bool:
    path = folder / "rounds.jsonl"
    return path.exists() and path.read_bytes().count(b"\n") > 8


# -------------------------------------------------------------------------------------------- the same bytes


def same_as_alone(start: Start, home: Path, size: int) -> None:
    options = [*ALONE, "--method", "rich", "--set", "evaluation.every=1"]
    out = f"of {size}"
    (first, said, told), *others = ended(start(size, *options, "--out", out))
    assert (first, others) == (0, [(0, "", "")] * (size - 1)), told
    assert "round 4/4" in told
    assert f"Run     {out}" in said
    plain(home, *options, "--out", f"alone {size}")
    assert content(home / out) == content(home / f"alone {size}")
    assert {row["round"] for row in rows(home / out, "timing.jsonl")} == set(range(5))


@pytest.mark.slow
def test_two_ranks_write_the_bytes_of_one_and_only_the_first_speaks(start: Start, home: Path) -> None:
    same_as_alone(start, home, 2)


@pytest.mark.slow
def test_two_ranks_train_again_on_all_rows_to_the_bytes_of_one(start: Start, home: Path) -> None:
    options = [*ALONE, "--method", "rich", "--set", "evaluation.every=1", "--set", "population.refit=true"]
    (first, said, told), other = ended(start(2, *options, "--out", "refitted of 2"))
    assert (first, other) == (0, (0, "", "")), told
    assert "The exported model was trained on all rows" in said
    plain(home, *options, "--out", "refitted alone")
    for name in ("refit.safetensors", *EXACT):
        assert (home / "refitted of 2" / name).read_bytes() == (home / "refitted alone" / name).read_bytes(), name


@pytest.mark.slow
def test_so_do_four_ranks(start: Start, home: Path) -> None:
    same_as_alone(start, home, 4)


@pytest.mark.slow
def test_a_finished_run_is_not_repeated_by_many_ranks_either(start: Start, home: Path) -> None:
    plain(home, "--out", "finished")
    before = content(home / "finished"), rows(home / "finished", "timing.jsonl")
    (code, _, told), other = ended(start(2, "--out", "finished"))
    assert (code, other) == (0, (0, "", ""))
    assert "round" not in told
    assert (content(home / "finished"), rows(home / "finished", "timing.jsonl")) == before


# -------------------------------------------------------------------------------------------------- failures


@pytest.mark.slow
def test_what_fails_on_another_rank_is_said_by_the_first(start: Start, home: Path) -> None:
    ranks = start(
        2, *ALONE, "--set", "model.name=own.py:fragile", "--set", "method.cohort_size=6", "--out", "fragile", "-q"
    )
    (code, said, told), other = ended(ranks)
    assert (code, said) == (1, "")
    assert told.startswith("error: Rank 1: Client ")
    assert re.search(
        r" in round 1: the second process cannot count\. The error occurred in own\.py, line \d+, in forward\.\n$",
        told,
    )
    assert other == (1, "", "")
    assert '"status": "failed"' in (home / "fragile" / "result.json").read_text()


@pytest.mark.slow
def test_a_rank_that_was_started_for_something_else_is_refused(start: Start, home: Path) -> None:
    (home / "other").mkdir()
    (home / "other" / "tiny.toml").write_text(TINY.replace("lr = 0.1", "lr = 0.2"), encoding="utf-8")
    code = "import os, sys\nif os.environ['RANK'] == '1': os.chdir('other')\nfrom fedreach.cli import main\nmain()"
    (code, _, told), other = ended(start_ranks(2, "-c", code, "run", "tiny.toml", "--out", "differs", folder=home))
    assert code == 2
    assert "error: Rank 1: This rank differs from rank 0 in config." in told
    assert other == (1, "", "")


@pytest.mark.slow
def test_a_wrong_option_is_told_once(start: Start) -> None:
    (code, said, told), other = ended(start(2, "--set", "local.lr=-1"))
    assert (code, said, told.count("error: ")) == (2, "", 1)
    assert other == (1, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_that_is_killed_ends_the_run_and_nothing_is_lost(
    start: Start, home: Path, uninterrupted: dict[str, bytes], size: int
) -> None:
    out = f"killed {size}"
    ranks = start(size, *SLOW, "--out", out, "-q")
    wait_until(lambda: begun(home / out))
    ranks[-1].kill()
    (code, _, told), *others = ended(ranks)
    assert code == 1
    assert told.startswith("error: ")
    assert "does not respond: its process ended, or its machine is unreachable." in told
    assert "Traceback" not in told
    assert [other[0] for other in others] == [1] * (size - 2) + [-signal.SIGKILL]
    assert not (home / out / "result.json").exists()
    assert (home / out / "rounds.jsonl").read_bytes() != uninterrupted["rounds.jsonl"]
    plain(home, *SLOW, "--out", out, "--resume")  # by another number of ranks, too
    assert content(home / out) == uninterrupted


@pytest.mark.slow
def test_the_others_end_where_the_first_is_killed(start: Start, home: Path, uninterrupted: dict[str, bytes]) -> None:
    ranks = start(2, *SLOW, "--out", "first", "-q")
    wait_until(lambda: begun(home / "first"))
    ranks[0].kill()
    assert ended(ranks) == [(-signal.SIGKILL, "", ""), (1, "", "")]
    assert [code for code, *_ in ended(start(2, *SLOW, "--out", "first", "-q"))] == [0, 0]
    assert content(home / "first") == uninterrupted


@pytest.mark.slow
def test_ctrl_c_writes_the_checkpoint(start: Start, home: Path, uninterrupted: dict[str, bytes]) -> None:
    never = [*SLOW, "--set", "run.checkpoint_seconds=1000.0"]  # only the interrupt itself writes one
    ranks = start(2, *never, "--out", "c", "-q")
    wait_until(lambda: begun(home / "c"))
    for rank in ranks:  # as a terminal does
        rank.send_signal(signal.SIGINT)
    (code, _, told), other = ended(ranks)
    assert code == 130
    assert told == "error: Interrupted. Rerun the command to resume it.\n"
    assert other == (-signal.SIGINT, "", "")
    before = len(rows(home / "c"))
    plain(home, *never, "--out", "c", "--resume")
    assert len([row for row in rows(home / "c") if row["round"] < before]) == before
    same = content(home / "c")
    del same["run.json"]  # it says how often a checkpoint is written
    assert same == {name: uninterrupted[name] for name in EXACT}


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_torchrun_starts_the_ranks_again_and_the_run_ends_as_if_nothing_had_happened(
    home: Path, uninterrupted: dict[str, bytes], victim: int
) -> None:
    out = f"again {victim}"
    killer = (  # the victim ends itself once, in the middle of the run
        "import os, signal, threading, time\nfrom pathlib import Path\n"
        "def watch():\n"
        f"    rows = Path({out!r}, 'rounds.jsonl')\n"
        "    while not rows.exists() or rows.read_bytes().count(b'\\n') < 9:\n        time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"if os.environ['RANK'] == '{victim}' and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    threading.Thread(target=watch, daemon=True).start()\n"
        "from fedreach.cli import main\nmain()\n"
    )
    (home / "killed_once.py").write_text(killer, encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "--max-restarts", "1", "killed_once.py", "run", "tiny.toml", *SLOW, "--out", out]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert content(home / out) == uninterrupted
