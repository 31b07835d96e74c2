"""Names of clients and classes in run folders, on the terminal and in figures; nothing of them where there are none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import Command, rows

from fedreach.data.sets import load
from fedreach.report.figures.clients import names_of
from fedreach.report.read import read

NAMES = [f"ward {letter}" for letter in "hgfedcba"]  # by the alphabet the other way round than by number
CLASSES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TOML = """\
rounds = 2
seeds = [0]
[data]
name = "{file}"
[partition]
name = "natural"
[population]
participants = 4
[engine]
name = "sequential"
[model]
name = "linear"
[evaluation]
every = 1
[methods.uniform]
cohort_size = 2
adaptation = "label_shift"
"""


@pytest.fixture
def digits(home: Path) -> Path:
    """Write the digits by clients with names, and by the ids that these get."""
    d = load("digits")
    owner = np.arange(len(d.train_y)) % len(NAMES)
    x = d.train_x.astype(np.float32).reshape(len(d.train_y), -1) / 16
    np.savez(home / "named.npz", x=x, y=d.train_y, client=np.array(NAMES)[owner])
    np.savez(home / "plain.npz", x=x, y=d.train_y, client=len(NAMES) - 1 - owner)
    np.savez(home / "words.npz", x=x, y=np.array(CLASSES)[d.train_y], client=np.array(NAMES)[owner])
    for file in ("named", "plain", "words"):
        (home / f"{file}.toml").write_text(TOML.format(file=f"{file}.npz"), encoding="utf-8")
    return home


def run(fedreach: Command, file: str) -> Path:
    result = fedreach("compare", f"{file}.toml", "--formats", "none", "--out", file)
    assert result.exit_code == 0, result.output
    return Path(file) / "runs" / "uniform" / "seed-0"


@pytest.mark.slow
def test_names_stand_beside_ids_and_say_what_is_held_out_alone(fedreach: Command, digits: Path) -> None:
    named, plain = run(fedreach, "named"), run(fedreach, "plain")
    record = json.loads((named / "federation.json").read_text())
    assert record["client_names"] == sorted(NAMES)
    for file in ("clients.jsonl", "adapted.jsonl"):
        lines, others = rows(named, file), rows(plain, file)
        for line, other in zip(lines, others, strict=True):
            assert line["names"] == [sorted(NAMES)[client] for client in line["ids"]]
            assert "names" not in other
            assert [line[key] for key in ("round", "ids")] == [other[key] for key in ("round", "ids")]
    other = json.loads((plain / "federation.json").read_text())
    assert not {"client_names", "class_names", "preparation"} & other.keys()
    for key in ("label_counts", "sizes", "participants", "unseen"):
        assert other[key] == record[key]


@pytest.mark.slow
def test_names_stand_on_the_terminal_and_in_figures(fedreach: Command, digits: Path) -> None:
    shown = fedreach("partition", "words.toml", "--verbose").output
    assert "ward a" in shown
    assert "seven" in shown
    assert "ward" not in fedreach("partition", "plain.toml", "--verbose").output
    result = fedreach("compare", "words.toml", "--out", "page")
    assert result.exit_code == 0, result.output
    page = next(Path("page").rglob("index.html")).read_text(encoding="utf-8")
    for word in ("ward a", "seven"):
        assert word in page
    comparison = read([Path("page")])
    assert names_of(comparison) == tuple(sorted(NAMES))
