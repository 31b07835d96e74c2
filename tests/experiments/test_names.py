"""What an experiment is called, and that nothing of one comes into the folder of another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..conftest import TINY, Command, Refused  # noqa: TID252 (tests are no package that has a name)

SHORT = TINY.replace('name = "tiny"\n', "").replace("rounds = 4", "rounds = 1").replace("seeds = [0, 1]", "seeds = [0]")
QUICK = ["--workers", 1, "--formats", "none", "--quiet"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def two(home: Path) -> Path:
    """Two experiments without a name, which differ in a rate alone."""
    (home / "slow.toml").write_text(SHORT, encoding="utf-8")
    (home / "fast.toml").write_text(SHORT.replace("lr = 0.1", "lr = 0.5"), encoding="utf-8")
    return home


def test_two_files_in_one_folder_are_two_comparisons(fedreach: Command, two: Path) -> None:
    first = fedreach("compare", "slow.toml", *QUICK)
    assert first.exit_code == 0, first.output
    before = contents(two / "runs" / "slow")
    assert any("report" in path for path in before)
    second = fedreach("compare", "fast.toml", *QUICK)
    assert second.exit_code == 0, second.output
    assert contents(two / "runs" / "slow") == before
    assert json.loads((two / "runs" / "fast" / "comparison.json").read_text())["name"] == "fast"


def test_runs_are_named_after_their_file_unless_it_says_otherwise(fedreach: Command, two: Path) -> None:
    for more, name in (([], "slow"), (["--set", "name=mine"], "mine")):
        told = json.loads(fedreach("run", "slow.toml", "--json", *more).stdout)
        assert told["folder"] == f"runs/{name}-run-seed-0"
    stored = json.loads(fedreach("run", "runs/mine-run-seed-0/run.json", "--json", "--seed", 1).stdout)
    assert stored["folder"] == "runs/mine-run-seed-1"


def test_a_comparison_of_the_same_name_leaves_the_other_alone(fedreach: Command, refused: Refused, two: Path) -> None:
    for file in ("slow", "fast"):
        text = (two / f"{file}.toml").read_text()
        (two / f"{file}.toml").write_text('name = "same"\n' + text, encoding="utf-8")
    assert fedreach("compare", "slow.toml", *QUICK).exit_code == 0
    before = contents(two / "runs")
    assert "has results of another experiment. config.local.lr: stored 0.1, now 0.5." in refused(
        3, "compare", "fast.toml"
    )
    others = SHORT.replace("uniform", "equal").replace("[methods.entropy]", "[methods.other]")
    (two / "others.toml").write_text('name = "same"\n' + others, encoding="utf-8")
    told = refused(3, "compare", "others.toml")
    assert "runs/same has results of another comparison, with uniform, entropy and without equal, other." in told
    assert "Choose another folder with --out (in Python, out), or give this experiment another `name`." in told
    assert contents(two / "runs") == before


def test_a_method_that_failed_may_be_left_out(fedreach: Command, two: Path) -> None:
    broken = "[methods.broken.local]\nlr = 1e6\n[methods.broken.server]\nname = 'average'\nlr = 1e38\n"
    (two / "slow.toml").write_text(SHORT + broken, encoding="utf-8")
    assert fedreach("compare", "slow.toml", *QUICK).exit_code == 1
    (two / "slow.toml").write_text(SHORT, encoding="utf-8")
    done = fedreach("compare", "slow.toml", *QUICK)
    assert done.exit_code == 0, done.output
