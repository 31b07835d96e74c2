"""Runs on Flower are tracked as their experiment says, and a tracker that fails is in nobody's way there either."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedreach.flower.experiment import FlowerExperiment

from .in_process import InProcess
from .same import rows_of
from .test_equal import TINY

OWN = """
import fedreach as fr


class Notes(fr.Callback):
    def begin(self, run, data, engine, folder):
        self.file = (folder / "notes.txt").open("w")

    def round(self, row, timing, lost):
        print("round", row.round, file=self.file)

    def end(self, result):
        print("end", result.status, file=self.file)

    def close(self, error):
        print("close", type(error).__name__, file=self.file)
        self.file.close()


class Bad(Notes):
    def round(self, row, timing, lost):
        raise OSError("no room")
"""


def tracked(folder: Path, *names: str) -> FlowerExperiment:
    (folder / "tiny.toml").write_text(TINY)
    (folder / "own.py").write_text(OWN)
    return FlowerExperiment(folder / "tiny.toml", overrides=(f"run.trackers={list(names)}",))


def test_a_run_that_goes_on_leaves_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    ways = {"timeout": 5.0, "patience": 5.0}
    setup = tracked(tmp_path, "own.py:Notes", "own.py:Bad")
    grid = InProcess(setup.client_app(), range(8))
    strategy = setup.strategy(tmp_path / "x", **ways)
    second = strategy.configure_evaluate

    def stopped(number: int, *given: object) -> object:
        if number == 3:
            raise KeyboardInterrupt
        return second(number, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(strategy, "configure_evaluate", stopped)
    with pytest.raises(KeyboardInterrupt):
        strategy.run(grid)
    assert (tmp_path / "x" / "notes.txt").read_text().splitlines()[-1] == "close KeyboardInterrupt"
    assert "tracker 'own.py:Bad' failed in `round`: OSError: no room (own.py, line 22)." in heard.text
    setup.strategy(tmp_path / "x", **ways).run(grid)
    assert (tmp_path / "x" / "notes.txt").read_text().splitlines() == [
        *(f"round {number}" for number in range(5)),
        "end finished",
        "close NoneType",
    ]
    tracked(tmp_path).strategy(tmp_path / "unadapted", **ways).run(grid)
    assert rows_of(tmp_path / "x") == rows_of(tmp_path / "unadapted")
