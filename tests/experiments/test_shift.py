"""`[shift]` in an experiment: training does not see it, all engines and rules do, and a run knows its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import Command, rows

SHIFT = """
[shift]
name = "composed"
share = 0.5
parts = [{ name = "brightness", strength = 0.3 }, { name = "rotation", strength = 20.0 }]
"""
OWN = '''
from dataclasses import dataclass

import fedreach as fr


@dataclass(frozen=True)
class Upside(fr.Shift):
    """Turn images upside down."""

    def shifted(self, examples, scale, rng):
        return examples.seen_as(scale.stored(scale.pixels("Upside", examples.x)[:, :, ::-1]))
'''
RIGHT = """
from dataclasses import dataclass

import fedreach as fr


@dataclass(frozen=True)
class Right(fr.Metric):
    name: str = "right"

    def of(self, labels, logits):
        return float((logits.argmax(axis=1) == labels).mean())
"""


def add(home: Path, text: str) -> None:
    path = home / "tiny.toml"
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


def run(fedreach: Command, home: Path, out: str, *more: str) -> Path:
    done = fedreach("run", "tiny.toml", "--method", "uniform", "--out", out, "--quiet", *more)
    assert done.exit_code == 0, done.output
    return home / out


def unseen_scores(folder: Path) -> list[float]:
    return [row["unseen_loss"] for row in rows(folder) if "unseen_loss" in row]


def test_training_is_the_same_to_the_byte_and_unseen_clients_are_not(fedreach: Command, home: Path) -> None:
    before = run(fedreach, home, "before")
    assert "shift" not in json.loads((before / "federation.json").read_text())
    add(home, SHIFT)
    after = run(fedreach, home, "after")
    for name in ("last.safetensors", "best.safetensors"):
        assert (before / name).read_bytes() == (after / name).read_bytes(), name
    for old, new in zip(rows(before), rows(after), strict=True):
        changed = {key for key in old | new if old.get(key) != new.get(key)}
        assert all(key.startswith(("unseen_", "participation_gap")) for key in changed), changed
    assert unseen_scores(before) != unseen_scores(after)
    record = json.loads((after / "federation.json").read_text())
    assert (record["shift"]["share"], len(record["shift"]["clients"]), len(record["unseen"])) == (0.5, 3, 6)
    assert set(record["shift"]["clients"]) < set(record["unseen"])
    assert "Rotation(strength=20.0)" in record["shift"]["kind"]


def test_a_folder_of_a_run_without_a_shift_is_not_gone_on_with(fedreach: Command, home: Path) -> None:
    run(fedreach, home, "out")
    run(fedreach, home, "out")  # finished
    add(home, SHIFT)
    refused = fedreach("run", "tiny.toml", "--method", "uniform", "--out", "out", "--quiet")
    assert refused.exit_code != 0
    assert "has results of another experiment. config.shift" in refused.output


@pytest.mark.parametrize("engine", ["native", "manual", "vmap"])
def test_all_engines_see_the_shift(fedreach: Command, home: Path, engine: str) -> None:
    add(home, SHIFT)
    plain = run(fedreach, home, "unadapted", "--set", "engine.name=sequential")
    other = run(fedreach, home, engine, "--set", f"engine.name={engine}", "--set", "engine.threads=2")
    assert unseen_scores(other) == pytest.approx(unseen_scores(plain), rel=1e-4)


def test_adaptation_sees_the_shift(fedreach: Command, home: Path) -> None:
    more = ("--set", "method.adaptation={name='label_shift', guard=false}")
    before = run(fedreach, home, "before", *more)
    add(home, SHIFT)
    after = run(fedreach, home, "after", *more)
    columns = [json.loads((folder / "adaptation.json").read_text())["columns"]["last"] for folder in (before, after)]
    assert {key for key in columns[0] if columns[0][key] != columns[1].get(key)} != set()
    for key, value in columns[0].items():
        if key.startswith(("id_", "test_")):
            assert columns[1][key] == value, key
    assert columns[0]["unseen_unadapted_loss"] != columns[1]["unseen_unadapted_loss"]
    assert columns[1]["unseen_unadapted_accuracy"] == pytest.approx(rows(after)[-1]["unseen_accuracy"], abs=1e-8)


def test_permuted_labels_are_what_everybody_scores_by(fedreach: Command, home: Path) -> None:
    add(home, '[shift]\nname = "permuted_labels"\n')
    (home / "mine.py").write_text(RIGHT, encoding="utf-8")
    own = ("--set", "evaluation.metrics=['mine.py:Right']", "--set", "method.adaptation=bbse")
    after = run(fedreach, home, "after", *own)
    last, adapted = rows(after)[-1], json.loads((after / "adaptation.json").read_text())["columns"]["last"]
    assert last["unseen_accuracy"] < 0.4 < last["participant_accuracy"]
    assert last["unseen_right"] == pytest.approx(last["unseen_accuracy"], abs=1e-8)
    assert adapted["unseen_unadapted_accuracy"] < 0.4 < adapted["participant_unadapted_accuracy"]


def test_your_own_shift_from_a_file_is_part_of_what_the_run_is(fedreach: Command, home: Path) -> None:
    (home / "mine.py").write_text(OWN, encoding="utf-8")
    add(home, '[shift]\nname = "mine.py:Upside"\n')
    folder = run(fedreach, home, "out")
    assert list(json.loads((folder / "run.json").read_text())["code"]) == ["mine.py:Upside"]
    assert json.loads((folder / "federation.json").read_text())["shift"]["kind"] == "Upside()"


def test_mistakes_in_the_section_are_said_in_words(fedreach: Command, home: Path) -> None:
    add(home, SHIFT)
    for change, said in {
        "shift.name=blurr": "unknown shift 'blurr'. Did you mean 'blur'?",
        "shift.share=2.0": "less than or equal to 1",
        "shift.parts[0].strength=7.0": "Brightness.strength must be in [-1, 1]; got 7.0.",
        "shift.parts[1].degrees=7.0": "no such option",
        "shift.parts=[]": "at least one shift",
    }.items():
        done = fedreach("run", "tiny.toml", "--method", "uniform", "--out", "out", "--set", change)
        assert done.exit_code == 2, done.output
        assert said in done.output, done.output
    done = fedreach("run", "tiny.toml", "--method", "uniform", "--out", "out", "--set", "population.participants=12")
    assert "all clients participate" in done.output
