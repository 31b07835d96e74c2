"""Which engine a run takes where the experiment leaves that open, and that runs keep to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedreach.engines.native import library
from fedreach.runs.folder import RunFolder

Command = Callable[..., Any]


def note(folder: Path, name: str | None) -> None:
    RunFolder(folder).write_json("engine.json", {"name": name})


def noted(folder: Path) -> str:
    name: str = json.loads((folder / "engine.json").read_text(encoding="utf-8"))["name"]
    return name


def explained(fedreach: Command, *more: str) -> str:
    done = fedreach("run", "tiny.toml", "--out", "x", "--explain", *more)
    assert done.exit_code == 0, done.output
    said: str = done.stdout
    return said


def test_a_run_is_explained_and_nothing_is_trained_or_written(fedreach: Command, home: Path) -> None:
    lines = explained(fedreach).splitlines()
    assert lines[0].startswith("  Data      digits: 1,437 examples, 10 classes")
    assert "6 participate and hold out 20%, 6 never train" in lines[1]
    assert "s per round" in lines[-1]
    assert "sequential" in lines[-1]  # what the others would take
    told = json.loads(explained(fedreach, "--json"))
    assert told["why"].startswith(f"engine {told['engine']}: {told['engine']} ")
    assert sorted(path.name for path in home.iterdir()) == ["tiny.toml"]


def test_a_run_notes_the_engine_that_it_takes(fedreach: Command, home: Path) -> None:
    done = fedreach("run", "tiny.toml", "--out", "x")
    assert done.exit_code == 0, done.output
    assert "engine" not in done.stderr
    assert f"engine {noted(home / 'x')}: stored in x/engine.json" in explained(fedreach)


def test_an_engine_that_the_experiment_names_is_not_noted(fedreach: Command, home: Path) -> None:
    named = ["--set", "engine.name=sequential"]
    assert "engine sequential: set by the experiment" in explained(fedreach, *named)
    assert fedreach("run", "tiny.toml", "--out", "x", *named).exit_code == 0
    assert not (home / "x" / "engine.json").exists()


def test_a_run_goes_on_with_the_engine_that_was_noted(fedreach: Command, home: Path) -> None:
    note(home / "x", "sequential")
    assert "engine sequential: stored in x/engine.json" in explained(fedreach)
    fedreach("run", "tiny.toml", "--out", "x")
    fedreach("run", "tiny.toml", "--out", "y", "--set", "engine.name=sequential")
    for name in ("rounds.jsonl", "last.safetensors"):
        assert (home / "x" / name).read_bytes() == (home / "y" / name).read_bytes()


@pytest.mark.slow
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


@pytest.mark.slow
def test_methods_with_parts_that_an_engine_cannot_train_by_take_another(fedreach: Command, home: Path) -> None:
    """And agree on it: all of them are computed alike, and the others as ever."""
    (home / "own.py").write_text(
        "def brier(outputs, targets):\n"
        "    correct = outputs.softmax(-1).gather(-1, targets[..., None])[..., 0]\n"
        "    return (1 - correct) ** 2\n\n"
        "import fedreach as fr\n\n"
        "class Halved(fr.LocalSolver):\n"
        "    def correct(self, gradient, params, broadcast):\n"
        "        return gradient / 2\n",
        encoding="utf-8",
    )
    methods = "[methods.uniform]\n[methods.own]\nloss = 'own.py:brier'\n[methods.halved]\nsolver = 'own.py:Halved'\n"
    text = (home / "tiny.toml").read_text(encoding="utf-8").partition("[methods")[0]
    (home / "three.toml").write_text(text + methods, encoding="utf-8")
    done = fedreach("compare", "three.toml", "--out", "x", "--seeds", 1, "--formats", "none", "--quiet")
    assert done.exit_code == 0, done.output
    notes = {path.name: json.loads(path.read_text("utf-8"))["name"] for path in (home / "x").glob("engine*.json")}
    assert notes.pop("engine.json") == "native"
    assert notes.keys() == {"engine-without-native-manual.json", "engine-without-native.json"}
    assert set(notes.values()) <= {"sequential", "vmap", "manual"}


def test_a_note_that_names_no_engine_is_refused(refused: Callable[..., str], home: Path) -> None:
    for name in ("chian", None):
        note(home / "x", name)
        assert f"x/engine.json must name an engine; got {name!r}. Remove the file" in refused(
            3, "run", "tiny.toml", "--out", "x"
        )


def test_a_noted_engine_that_cannot_be_used_here_is_named_with_its_place(
    refused: Callable[..., str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    library._load_once.cache_clear()
    note(home / "x", "native")
    try:
        told = refused(2, "run", "tiny.toml", "--out", "x")
    finally:
        library._load_once.cache_clear()
    assert "the compiler 'no-such-compiler' from the environment variable CC was not found" in told
    assert "x/engine.json names that engine. Remove the file" in told


OWN_MODEL = """
import numpy as np
from torch import nn


class Noisy(nn.Linear):
    def __init__(self, sample_shape, num_classes):
        super().__init__(sample_shape[0] if len(sample_shape) == 1 else 64, num_classes)

    def forward(self, x):
        x = x.flatten(1)
        return super().forward(x + 0.1 * x.new_tensor(np.random.normal(size=tuple(x.shape))))
"""


def test_a_run_says_in_one_line_why_it_is_trained_slowly(fedreach: Command, home: Path) -> None:
    """And what a model does in evaluation; a run that is resumed says it no more."""
    (home / "noisy.py").write_text(OWN_MODEL, encoding="utf-8")
    own = ["--set", "model.name=noisy.py:Noisy"]
    done = fedreach("run", "tiny.toml", "--out", "x", *own)
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert lines[0] == "warning: engine sequential: the model draws random numbers by numpy"
    assert lines[1].startswith("warning: the model draws random numbers in evaluation. ")
    assert len(lines) == 2
    fedreach("run", "tiny.toml", "--out", "y", "--set", "engine.name=sequential", *own)
    for name in ("rounds.jsonl", "last.safetensors"):
        assert (home / "x" / name).read_bytes() == (home / "y" / name).read_bytes()


def test_an_engine_that_is_named_gives_way_to_torch_where_it_computes_something_else(
    fedreach: Command, home: Path
) -> None:
    (home / "noisy.py").write_text(OWN_MODEL, encoding="utf-8")
    own = ["--set", "model.name=noisy.py:Noisy"]
    done = fedreach("run", "tiny.toml", "--out", "x", *own, "--set", "engine.name=vmap")
    told = "vmap computes different results from torch for this model: the model draws random numbers by numpy"
    assert told in done.stderr
    fedreach("run", "tiny.toml", "--out", "y", *own, "--set", "engine.name=sequential")
    for name in ("rounds.jsonl", "last.safetensors"):
        assert (home / "x" / name).read_bytes() == (home / "y" / name).read_bytes()


@pytest.mark.parametrize("engine", ["auto", "vmap"])
def test_an_engine_is_examined_once_for_a_run(
    engine: str, fedreach: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = ["--set", f"engine.name={engine}"]
    assert fedreach("run", "tiny.toml", "--out", "x", *named).exit_code == 0
    (home / "x" / "result.json").unlink()  # as if it was interrupted
    monkeypatch.setattr("fedreach.engines.choice.Examination", None)
    done = fedreach("run", "tiny.toml", "--out", "x", *named)
    assert done.exit_code == 0, done.output


def test_a_model_that_is_edited_is_examined_again(fedreach: Command, home: Path) -> None:
    """The note of its engine stays, which was examined with other code."""
    named = ["--set", "model.name=noisy.py:Noisy", "--set", "engine.name=vmap", "--set", "local.lr=0.05"]
    quiet = OWN_MODEL.replace("x + 0.1 * x.new_tensor(np.random.normal(size=tuple(x.shape)))", "x")
    (home / "noisy.py").write_text(quiet, encoding="utf-8")
    assert fedreach("run", "tiny.toml", "--out", "x", *named).exit_code == 0
    engine = (home / "x" / "engine.json").read_text(encoding="utf-8")
    (home / "noisy.py").write_text(OWN_MODEL, encoding="utf-8")
    (home / "y").mkdir()
    (home / "y" / "engine.json").write_text(engine, encoding="utf-8")
    assert "draws random numbers by numpy" in fedreach("run", "tiny.toml", "--out", "y", *named).stderr


@pytest.mark.slow
def test_an_engine_that_is_noted_gives_way_too_and_the_explanation_agrees(fedreach: Command, home: Path) -> None:
    (home / "noisy.py").write_text(OWN_MODEL, encoding="utf-8")
    own = ["--set", "model.name=noisy.py:Noisy"]
    note(home / "x", "vmap")
    told = "vmap computes different results from torch for this model: the model draws random numbers by numpy"
    assert told in explained(fedreach, *own)
    done = fedreach("run", "tiny.toml", "--out", "x", *own)
    assert done.exit_code == 0, done.output
    assert f"warning: engine sequential: {told}" in done.stderr
    fedreach("run", "tiny.toml", "--out", "z", *own, "--set", "engine.name=sequential")
    assert (home / "x" / "last.safetensors").read_bytes() == (home / "z" / "last.safetensors").read_bytes()
