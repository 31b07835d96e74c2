"""Names are shown so that none moves the cursor of a terminal; a file's name need not be an experiment's."""

from __future__ import annotations

from pathlib import Path

from ..conftest import TINY, Command, Refused  # noqa: TID252 (tests are no package that has a name)

OWN = r"""
import numpy as np
from fedreach.data.datasets import from_arrays

def wards():
    x = np.eye(60, dtype=np.float32)
    labels = np.array(["calm\x07", "\x1b[2Jill", "well\u202e"])[np.arange(60) % 3]
    owners = np.array(["\x1b]0;north", "so\u200cuth", "ea\tst"])[np.arange(60) // 20]
    return from_arrays(x, labels, owners=owners)

def lost():
    raise ValueError("\x1b[2Jnothing\nthere\x07")
"""


def test_partition_shows_names_as_they_are_written(fedreach: Command, home: Path) -> None:
    (home / "own.py").write_text(OWN, encoding="utf-8")
    wards = ["--set", "data=own.py:wards", "--set", "partition={name='natural'}", "--verbose"]
    done = fedreach("partition", *wards, "--set", "population.participants=2", "--set", "method.cohort_size=2")
    assert done.exit_code == 0, done.output
    assert done.output.replace("\n", "").replace("\u200c", "").isprintable()
    for name in (r"\x1b[2Jill", r"\x1b]0;north", r"ea\tst", r"well\u202e"):
        assert name in "".join(done.output.split()), done.output


def test_an_error_message_moves_no_cursor(refused: Refused, home: Path) -> None:
    (home / "own.py").write_text(OWN, encoding="utf-8")
    told = refused(1, "partition", "--set", "data=own.py:lost")
    assert told.replace("\n", "").isprintable()


def test_a_file_may_be_called_what_an_experiment_may_not(fedreach: Command, home: Path) -> None:
    (home / ".aux.toml").write_text(TINY.replace("name =", "# name ="), encoding="utf-8")
    assert fedreach("run", ".aux.toml", "--set", "rounds=1", "--set", "evaluation.every=1", "--quiet").exit_code == 0
    assert [path.name for path in (home / "runs").iterdir()] == ["experiment-run-seed-0"]
