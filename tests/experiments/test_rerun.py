"""Runs of a method are made again: the old ones are kept aside, the others stay, and an interruption costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Refused

from fedreach._util.errors import ConfigError, RunFolderError
from fedreach.experiment.compare import compare
from fedreach.experiment.load import load
from fedreach.experiment.workers import ComparisonCallback, ComparisonStatus

from .inline import Inline
from .test_extend import all_files

CODE = "def weigh(reports):{comment}\n    return [{value} for _ in reports.ids]\n"


def compared(home: Path, *options: str, rerun: Sequence[str] = (), **more: Any) -> ComparisonStatus:
    """Compare in this process; `uniform` weighs by code of one's own."""
    experiment = load(home / "tiny.toml", ["rounds=2", "engine.name=sequential", *options])
    return compare(experiment, out=home / "x", base=home, executor=Inline(), rerun=rerun, **more)


def code(home: Path, value: str = "1.0", comment: str = "") -> None:
    (home / "own.py").write_text(CODE.format(value=value, comment=comment))


def weighed(home: Path) -> None:
    """Have `uniform` weigh by code of one's own."""
    toml = (home / "tiny.toml").read_text()
    (home / "tiny.toml").write_text(toml.replace("[methods.uniform]", '[methods.uniform]\nweighting = "own.py:weigh"'))


def stamps(home: Path, method: str) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in home.glob(f"x/runs/{method}/*/result.json")}


def test_the_others_stay_and_nothing_is_lost(home: Path) -> None:
    compared(home)
    before, others = all_files(home / "x"), stamps(home, "uniform")
    assert compared(home, rerun=["entropy"]).skipped == 2
    assert all_files(home / "x") == before  # nothing was changed, so the same came out
    assert stamps(home, "uniform") == others
    aside = home / "x" / "rerun" / "entropy-1"
    assert sorted(path.name for path in aside.glob("seed-*")) == ["seed-0", "seed-1"]
    compared(home, rerun=["entropy"])
    assert sorted(path.name for path in (home / "x" / "rerun").glob("*")) == ["entropy-1", "entropy-2"]


class Stops(ComparisonCallback):
    """Interrupts a comparison once so many runs have finished."""

    def __init__(self, after: int) -> None:
        self.after = after

    def update(self, status: ComparisonStatus) -> None:
        if len(status.finished) == self.after and status.ended is not None:
            raise KeyboardInterrupt


def test_an_interrupted_redo_goes_on(home: Path) -> None:
    three = "seeds=[0, 1, 2]"
    compared(home, three)
    with pytest.raises(KeyboardInterrupt):
        compared(home, three, rerun=["entropy"], callbacks=[Stops(4)])
    done = stamps(home, "entropy")
    assert len(done) == 2  # a run has ended before the callback is told of the one before it
    status = compared(home, three, rerun=["entropy"])
    assert status.skipped == 5  # those that were made again are not made a third time
    assert {path: stamps(home, "entropy")[path] for path in done} == done
    assert [path.name for path in (home / "x" / "rerun").glob("*")] == ["entropy-1"]


def test_a_comment_goes_on_and_a_changed_meaning_says_which_file_and_what_to_do(home: Path) -> None:
    code(home)
    weighed(home)
    compared(home)
    before = all_files(home / "x")
    code(home, comment="  # each counts the same")
    assert compared(home).skipped == 4
    code(home, value="float(len(reports.ids)) + reports.ids[0]")
    with pytest.raises(RunFolderError) as error:
        compared(home)
    assert "since then, own.py:weigh was changed" in str(error.value)
    assert "--rerun uniform (in Python, rerun=['uniform'])" in str(error.value)
    assert all_files(home / "x") == before
    status = compared(home, rerun=["uniform"])
    assert (status.skipped, len(status.finished)) == (2, 4)


def test_what_a_setting_was_chosen_by_is_made_again_too(home: Path) -> None:
    code(home)
    weighed(home)
    tune, one = 'tune={"local.lr"=[0.1, 0.3]}', "seeds=[0]"
    compared(home, tune, one)
    code(home, value="float(reports.ids[0] + 1)")
    with pytest.raises(RunFolderError, match=r"own\.py:weigh was changed.*--rerun uniform"):
        compared(home, tune, one)
    status = compared(home, tune, one, rerun=["uniform"])
    assert (status.skipped, len(status.finished)) == (1, 2)
    assert len([*(home / "x" / "rerun" / "uniform-1" / "tuning" / "seed-0").glob("local.lr=*")]) == 2


def test_only_methods_that_are_there_are_redone(refused: Refused, home: Path) -> None:
    with pytest.raises(ConfigError, match=r"Unknown method 'entropi' to rerun\. Did you mean 'entropy'"):
        compared(home, rerun=["entropi"])
    assert "Did you mean 'entropy'" in refused(2, "compare", "tiny.toml", "--rerun", "entropi", "--out", "x")
    assert not (home / "x" / "runs").exists()
