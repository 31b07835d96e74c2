"""What a user's part raises is told as that part's, with file and line; what the disk refuses is told as that."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import pytest
from tests.conftest import Command, Refused, Start, exact
from tests.experiments.component_errors import ERRORS, PARTS, every, tried

import fedreach as fr
from fedreach._util import row_store
from fedreach._util.errors import DISK, ComponentError
from fedreach.experiment.load import load
from fedreach.experiment.run import run
from fedreach.runs.callbacks import Callback
from fedreach.runs.schema import RoundRow, Timing


@pytest.mark.parametrize("kind", PARTS)
def test_a_part_that_cannot_open_its_file_is_not_told_as_our_disk(home: Path, kind: str) -> None:
    counts = tried(home, [(kind, "OSError")])
    assert (counts.told, counts.wrong) == (1, [])


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_of_a_part_is_told_with_its_place(home: Path, error: str) -> None:
    counts = tried(home, [("selection", error)])
    assert (counts.told, counts.wrong) == (1, [])


@pytest.mark.slow
def test_every_error_of_every_kind_of_part_is_told_with_its_place(home: Path) -> None:
    counts = tried(home, every())
    assert counts.wrong == []
    assert counts.injected == counts.told == len(PARTS) * len(ERRORS)


# ------------------------------------------------------------------------------------------- wherever a part is run

RAISES = """\
def other(view, k, rng):
    return open("nowhere")

def interrupts(view, k, rng):
    raise KeyboardInterrupt

class Leaves:
    def __init__(self):
        raise SystemExit(0)
"""


@pytest.mark.slow
def test_of_several_runs_in_processes_those_that_fail_are_told_and_the_others_are_reported(
    refused: Refused, home: Path
) -> None:
    (home / "mine.py").write_text(RAISES)
    parts = ["--set", "methods.wrong.selection=mine.py:other", "--set", "methods.hasty.selection=mine.py:interrupts"]
    said = refused(1, "compare", "tiny.toml", *parts, "--seeds", "1", "-q", "--formats", "none", "--out", "x")
    assert "2 of 4 runs failed. Finished runs are kept." in said
    runs = home / "x" / "runs"
    assert "mine.py, line 2, in other: FileNotFoundError" in (runs / "wrong" / "seed-0" / "result.json").read_text()
    assert json.loads((runs / "uniform" / "seed-0" / "result.json").read_text())["status"] == "finished"


def test_a_part_that_ends_the_program_does_not_end_it_as_if_all_was_well(refused: Refused, home: Path) -> None:
    (home / "mine.py").write_text(RAISES)
    option = "method.selection=mine.py:Leaves"
    assert "cannot be created: SystemExit: 0." in refused(2, "run", "tiny.toml", "--set", option)
    assert "SystemExit" in refused(2, "verify", "mine.py:Leaves", "--kind", "selection")


def test_a_part_that_ends_the_program_breaks_the_law_that_tried_it(fedreach: Command, home: Path) -> None:
    (home / "mine.py").write_text(
        "from fedreach.federation.selection.random import Uniform\nclass Quits(Uniform):\n"
        "    def select(self, *given):\n        raise SystemExit(0)\n"
    )
    done = fedreach("verify", "mine.py:Quits")
    assert done.exit_code == 1
    assert "SystemExit" in done.output


def test_python_is_told_the_place_of_an_error_in_a_part_without_a_name(home: Path) -> None:
    """And has the error itself, with its traceback, as the cause."""
    data = fr.load("digits").partition("iid", clients=6, participants=4)
    with pytest.raises(
        ComponentError, match=r"test_component_errors\.py, line \d+, in <lambda>: KeyError: 'key'\."
    ) as told:
        list(fr.run(data, {"selection": lambda view, k, rng: {}["key"]}, model="linear", rounds=1, cohort_size=2))
    assert isinstance(told.value.__cause__, KeyError)


# ------------------------------------------------------------------------------------------------ what the disk does

REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.EIO)
NAMES = [errno.errorcode[number] for number in REFUSALS]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EMFILE])
def test_what_the_disk_refuses_is_told_by_its_name_with_what_to_do_and_nothing_is_lost(
    fedreach: Command, refused: Refused, home: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    command = ["run", "tiny.toml", "-q", "--set", "rounds=1", "--out"]
    assert fedreach(*command, "whole").exit_code == 0
    replace = os.replace

    def refuse(source: Path, target: Path) -> None:
        if Path(target).name == "checkpoint.safetensors":
            raise OSError(number, os.strerror(number), str(source), None, str(target))
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", refuse)
        said = refused(3, *command, "x")
    assert f"x/checkpoint.safetensors cannot be written: {os.strerror(number)}. {DISK[number]}, then rerun" in said
    assert fedreach(*command, "x").exit_code == 0
    assert exact(home / "x") == exact(home / "whole")


@pytest.mark.parametrize("number", REFUSALS, ids=NAMES)
def test_what_the_disk_refuses_elsewhere_is_told_with_the_file(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*given: object, **more: object) -> None:
        raise OSError(number, os.strerror(number), "some/file")

    monkeypatch.setattr("fedreach.experiment.run.run", refuse)
    assert refused(3, "run", "tiny.toml").startswith(f"some/file: {os.strerror(number)}. {DISK[number]}, then rerun")


@pytest.mark.slow
def test_too_few_open_files_are_told_as_that(start: Start) -> None:
    """After libraries are loaded, as these open files, too."""
    before = "import os, resource, fedreach.experiment.run, fedreach.api.terminal\n"
    before += "free = os.dup(0)\nos.close(free)\nresource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, free + 1))\n"
    process = start("run", "tiny.toml", "-q", "--out", "x", before=before)
    _, said = process.communicate()
    assert (process.returncode, said.count("error: ")) == (3, 1), said
    assert "Too many open files" in said
    assert "Traceback" not in said


def test_a_disk_that_is_full_when_clients_memory_is_written_is_told_as_that(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that writes files of its own is called by the same step."""

    def full(path: Path | None, **more: object) -> IO[bytes]:
        return open("/dev/full", "r+b", buffering=0)  # noqa: PTH123 (RowFile closes it)

    monkeypatch.setattr(row_store, "_open_file", full)
    monkeypatch.setattr(row_store.files, "sync", lambda file: None)  # which a device has no use for
    said = refused(3, "run", "tiny.toml", "--set", "method.solver=scaffold", "--out", "x")
    assert said.startswith("x/memory.rows cannot be written: No space left on device. Free some space, then rerun")


class Watches(Callback):
    """A callback that opens a file of its own."""

    def round(self, row: RoundRow, timing: Timing, lost: Mapping[int, str]) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "mine.log")


def test_what_a_callback_raises_is_told_as_that_of_a_callback(home: Path) -> None:
    with pytest.raises(
        ComponentError, match=r"test_component_errors\.py, line \d+, in round: PermissionError: .*'mine\.log'"
    ):
        run(load(home / "tiny.toml").resolved(), seed=0, folder=home / "x", base=home, callbacks=[Watches()])
