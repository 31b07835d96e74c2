"""A path is relative to the TOML file that it stands in, and elsewhere to where the user stands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedreach.experiment.load import load

from ..conftest import TINY, Command, Refused  # noqa: TID252 (tests are no package that has a name)

OWN = """\
def first(view, k, rng):
    return view.ids[view.available][:k]
"""
PART = "method.selection=own.py:first"
SHORT = ["--set", "rounds=1", "--set", "evaluation.every=1", "--quiet"]


@pytest.fixture
def apart(home: Path) -> Path:
    """The experiment lies in ``study/``, the user's files where the user stands."""
    (home / "study").mkdir()
    (home / "study" / "tiny.toml").write_text(TINY, encoding="utf-8")
    (home / "own.py").write_text(OWN, encoding="utf-8")
    np.savez("own.npz", x=np.eye(60, dtype=np.float32), y=np.arange(60) % 3)
    return home


@pytest.mark.parametrize("config", [[], ["tiny.toml"], ["study/tiny.toml"]])
def test_code_named_by_set_is_looked_for_where_the_user_stands(
    fedreach: Command, apart: Path, config: list[str]
) -> None:
    done = fedreach("run", *config, "--set", PART, *SHORT, "--out", "x")
    assert done.exit_code == 0, done.output
    assert [Path(name).name for name in json.loads(Path("x/run.json").read_text())["code"]] == ["own.py:first"]


def test_code_named_by_a_file_is_looked_for_beside_it(fedreach: Command, refused: Refused, apart: Path) -> None:
    text = TINY.replace("cohort_size = 3", 'cohort_size = 3\nselection = "own.py:first"')
    (apart / "study" / "tiny.toml").write_text(text, encoding="utf-8")
    told = refused(2, "run", "study/tiny.toml", *SHORT, "--out", "x")
    assert "Paths in a TOML file are relative to that file; other paths are relative to the current folder." in told
    (apart / "own.py").rename(apart / "study" / "own.py")
    assert fedreach("run", "study/tiny.toml", *SHORT, "--out", "x").exit_code == 0


def test_data_and_partitions_named_by_set_are_looked_for_where_the_user_stands(fedreach: Command, apart: Path) -> None:
    assert fedreach("partition", "study/tiny.toml", "--set", "data=own.npz", "--save", "p.npz").exit_code == 0
    files = ["--set", "data=own.npz", "--set", "partition.file=p.npz"]
    done = fedreach("run", "study/tiny.toml", *files, *SHORT, "--out", "x")
    assert done.exit_code == 0, done.output


def test_what_set_names_stands_in_the_experiment_as_its_file_would_say_it(apart: Path) -> None:
    (apart / "own.py").write_text("def by_root(reports):\n    return reports.metrics['num_examples']\n")
    weighting = "method.weighting={name='product',parts=['own.py:by_root','equal']}"
    e = load(Path("study/tiny.toml"), [weighting, f"data.folder={apart}", "server_data.file=mine.npz"])
    assert dict(e.method)["weighting"].options["parts"] == ["../own.py:by_root", "equal"]
    assert e.data.folder == str(apart)  # an absolute one stays
    assert e.server_data is not None
    assert e.server_data.file == "../mine.npz"


def test_a_stored_run_with_code_of_its_own_is_run_again_from_where_it_was_run(fedreach: Command, apart: Path) -> None:
    assert fedreach("run", "tiny.toml", "--set", PART, *SHORT, "--out", "x").exit_code == 0
    assert fedreach("run", "x/run.json", "--quiet", "--out", "y").exit_code == 0
    assert Path("x/rounds.jsonl").read_bytes() == Path("y/rounds.jsonl").read_bytes()


def test_a_partition_that_cannot_be_saved_is_not_shown_either(fedreach: Command, home: Path) -> None:
    for path in (".", "absent/p.npz"):
        done = fedreach("partition", "tiny.toml", "--save", path)
        assert done.exit_code == 3
        assert done.stdout == ""


def test_one_client_participates_and_one_never_trains(fedreach: Command, home: Path) -> None:
    one = ["--set", "partition.clients=2", "--set", "population.participants=1", "--set", "method.cohort_size=1"]
    shown = fedreach("partition", "tiny.toml", *one).stdout
    assert "1 participates and holds out 20%, 1 never trains" in shown
