"""`fedreach doctor` sees what is missing, says what mends it, and ends with 0 only where the core works."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from fedreach.engines.native import library

from ..conftest import Command  # noqa: TID252 (tests are no package that has a name)


def looked_at(fedreach: Command, code: int, *arguments: object) -> dict[str, dict[str, Any]]:
    done = fedreach("doctor", *arguments, "--json")
    assert done.exit_code == code, done.output
    told = json.loads(done.stdout)
    assert told["works"] is (code == 0)
    return {check["name"]: check for check in told["checks"]}


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    there = metadata.version

    def version(name: str) -> str:
        if name in names:
            raise metadata.PackageNotFoundError(name)
        return there(name)

    monkeypatch.setattr(metadata, "version", version)


def test_a_sound_machine_ends_with_0_and_nothing_stays_behind(fedreach: Command, home: Path) -> None:
    before = sorted(home.rglob("*"))
    checks = looked_at(fedreach, 0)
    assert all(check["works"] for check in checks.values() if check["core"])
    assert {"packages", "torch", "run folder"} == {name for name, check in checks.items() if check["core"]}
    assert sorted(home.rglob("*")) == before


def test_a_missing_compiler_is_named_and_breaks_nothing(
    fedreach: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setattr(library, "library", library._build_or_load)  # what was found before is remembered
    engine = looked_at(fedreach, 0)["C engine"]
    assert not engine["works"]
    assert "no-such-compiler" in engine["found"]
    assert "C compiler" in engine["fix"]


def test_a_missing_extra_is_named_with_the_command_that_brings_it(
    fedreach: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "tensorboard")
    extra = looked_at(fedreach, 0)["extra tracking"]
    assert (extra["works"], extra["found"]) == (False, "not installed: tensorboard")
    assert extra["fix"] == "pip install 'fedreach[tracking]'"


def test_a_missing_package_of_the_core_ends_with_1(
    fedreach: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "scipy")
    packages = looked_at(fedreach, 1)["packages"]
    assert packages["fix"] == "pip install scipy"


def test_a_run_folder_that_cannot_be_written_ends_with_1(fedreach: Command, home: Path) -> None:
    (home / "taken").write_text("a file", encoding="utf-8")
    assert not looked_at(fedreach, 1, "--out", "taken/runs")["run folder"]["works"]
    done = fedreach("doctor", "--out", "taken/runs")
    assert done.exit_code == 1
    assert "BROKEN  run folder" in done.stdout
    assert " fix: make " in done.stdout


def test_a_data_folder_that_is_not_there_is_named(
    fedreach: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDREACH_DATA", str(home / "absent"))
    folder = looked_at(fedreach, 0)["data folder"]
    assert (folder["works"], folder["fix"]) == (False, f"mkdir -p {home / 'absent'}")
