"""Which engine a run takes where the experiment leaves that open, and that runs keep to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedreach.engines.native import library

Command = Callable[..., Any]


def note(folder: Path, name: str | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "engine.json").write_text(json.dumps({"format": 2, "name": name}), encoding="utf-8")


def noted(folder: Path) -> str:
    name: str = json.loads((folder / "engine.json").read_text(encoding="utf-8"))["name"]
    return name


def test_a_run_notes_the_engine_that_it_takes_and_says_why(fedreach: Command, home: Path) -> None:
    done = fedreach("run", "tiny.toml", "--out", "x", "--explain")
    assert done.exit_code == 0, done.output
    name = noted(home / "x")
    assert f"engine {name}: {name} " in done.stderr
    assert "s a round" in done.stderr
    assert "sequential" in done.stderr  # what the others would take
    assert "engine" not in fedreach("run", "tiny.toml", "--out", "y").stderr


def test_an_engine_that_the_experiment_names_is_not_noted(fedreach: Command, home: Path) -> None:
    done = fedreach("run", "tiny.toml", "--out", "x", "--explain", "--set", "engine.name=sequential")
    assert "engine sequential: the experiment says so" in done.stderr
    assert not (home / "x" / "engine.json").exists()


def test_a_run_goes_on_with_the_engine_that_was_noted(fedreach: Command, home: Path) -> None:
    note(home / "x", "sequential")
    done = fedreach("run", "tiny.toml", "--out", "x", "--explain")
    assert "engine sequential: noted in x/engine.json" in done.stderr
    fedreach("run", "tiny.toml", "--out", "y", "--set", "engine.name=sequential")
    for name in ("rounds.jsonl", "last.safetensors"):
        assert (home / "x" / name).read_bytes() == (home / "y" / name).read_bytes()


def test_all_runs_of_a_comparison_take_the_engine_that_was_noted_for_it(fedreach: Command, home: Path) -> None:
    note(home / "noted", "sequential")
    for out, *more in (("noted",), ("named", "--set", "engine.name=sequential"), ("open",)):
        done = fedreach("compare", "tiny.toml", "--out", out, "--seeds", 1, "--formats", "none", "--quiet", *more)
        assert done.exit_code == 0, done.output
    assert noted(home / "open") == "native"  # nothing else comes near for so small a model
    runs = sorted(path.relative_to(home / "named") for path in (home / "named" / "runs").glob("*/seed-*"))
    assert runs
    for run in runs:
        one, other = ((home / out / run / "rounds.jsonl").read_bytes() for out in ("noted", "named"))
        assert one == other
        assert not (home / "open" / run / "engine.json").exists()


def test_a_note_that_names_no_engine_is_refused(refused: Callable[..., str], home: Path) -> None:
    for name in ("chian", None):
        note(home / "x", name)
        assert f"x/engine.json must name an engine; got {name!r}. Remove it" in refused(
            3, "run", "tiny.toml", "--out", "x"
        )


def test_a_noted_engine_that_cannot_be_used_here_is_named_with_its_place(
    refused: Callable[..., str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    library._found.cache_clear()
    note(home / "x", "native")
    try:
        told = refused(2, "run", "tiny.toml", "--out", "x")
    finally:
        library._found.cache_clear()
    assert "CC names 'no-such-compiler', which is not there" in told
    assert "named by x/engine.json: remove that file" in told
