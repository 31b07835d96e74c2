"""A run folder on a medium that nobody may write to is read like any other, and a report says where it could go."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedreach import open as open_comparison
from fedreach.deploy.saved import load
from fedreach.report.read import read_run

from ..conftest import Command, Refused  # noqa: TID252 (tests are no package that has a name)
from ..report.made_up import compared  # noqa: TID252


def read_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the system refuse to write anything below a folder, also to somebody who may write everywhere."""

    def refuse_below(path: Any) -> None:
        if isinstance(path, str | os.PathLike) and folder in Path(path).absolute().parents:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            for path in arguments[:2]:
                refuse_below(path)
            return function(*arguments, **options)

        return call

    for name in ("mkdir", "unlink", "rename", "replace", "link", "truncate", "symlink"):
        monkeypatch.setattr(os, name, guarded(getattr(os, name)))
    whole, low = io.open, os.open

    def opened(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if set(mode) & set("wax+"):
            refuse_below(path)
        return whole(path, mode, *arguments, **options)

    def low_opened(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            refuse_below(path)
        return low(path, flags, *arguments, **options)

    monkeypatch.setattr(io, "open", opened)
    monkeypatch.setattr("builtins.open", opened)
    monkeypatch.setattr(os, "open", low_opened)


@pytest.fixture
def stored(fedreach: Command, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A comparison, of one run, that lies where nobody may write."""
    run = "runs/uniform/seed-0"
    assert fedreach("run", "tiny.toml", "--out", f"stored/{run}", "-q").exit_code == 0
    compared(home / "stored", {"run": {"0": run}})
    read_only(home / "stored", monkeypatch)
    with pytest.raises(OSError, match="Read-only"):
        (home / "stored" / "x").write_text("x")
    return home / "stored"


def test_it_is_read_and_its_models_loaded(stored: Path) -> None:
    assert open_comparison(stored).table() is not None
    run = stored / "runs" / "uniform" / "seed-0"
    assert read_run(run).last_round == 4
    assert load(run, "best").training is False


def test_a_report_goes_elsewhere_and_says_so(stored: Path, home: Path, fedreach: Command, refused: Refused) -> None:
    said = refused(3, "report", "stored", "--formats", "none")
    assert "stored/report cannot be written: Read-only file system. Choose another folder" in said
    assert "--out" in said
    done = fedreach("report", "stored", "--formats", "none", "--out", "mine")
    assert done.exit_code == 0, done.output
    assert (home / "mine" / "report" / "index.html").exists()


def test_a_run_says_that_its_folder_cannot_be_written(stored: Path, refused: Refused) -> None:
    said = refused(3, "run", "tiny.toml", "--out", "stored/runs/uniform/seed-0")
    assert "cannot be written: Read-only file system. Mount the disk with write access" in said
