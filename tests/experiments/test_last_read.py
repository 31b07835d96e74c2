"""A worker keeps the data set that it read last: what is read again, and that no run leaves a trace in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.conftest import TINY

from fedreach.experiment.build import Builder
from fedreach.experiment.load import load
from fedreach.experiment.run import run
from fedreach.experiment.schema import Experiment
from fedreach.experiment.worker import LastRead

OWN = """\
import numpy as np
from fedreach.data.datasets import from_arrays

def data():
    return from_arrays(np.eye(8), [0, 1] * 4, name="own")
"""
NOISY = ["noise=symmetric", "noise.rate=0.3", "server_data.examples=20", "population.exclude_clients=[3]"]


@pytest.fixture
def experiment(home: Path) -> Experiment:
    (home / "tiny.toml").write_text(TINY, encoding="utf-8")
    return load(home / "tiny.toml").resolved()


def changed(experiment: Experiment, base: Path, *settings: str) -> Builder:
    return Builder(load(base / "tiny.toml", settings).resolved(), base)


def test_the_same_section_is_read_once_and_another_anew(experiment: Experiment, home: Path) -> None:
    read = LastRead()
    first = read(Builder(experiment, home))
    assert read(changed(experiment, home, "rounds=7")) is first
    second = read(changed(experiment, home, "data=breast_cancer"))
    assert second.name == "breast_cancer"
    assert read(Builder(experiment, home)) is not first


def test_a_file_of_one_folder_is_not_that_of_another(home: Path) -> None:
    for number, folder in enumerate(("one", "two")):
        (home / folder).mkdir()
        np.savez(home / folder / "own.npz", x=np.full((4, 2), number, np.float32), y=np.arange(4) % 2)
    (home / "tiny.toml").write_text(TINY + '\n[data]\nname = "own.npz"\n', encoding="utf-8")
    here = load(home / "tiny.toml").resolved()
    read = LastRead()
    assert [read(Builder(here, home / folder)).train_x[0, 0] for folder in ("one", "two")] == [0, 1]


def test_a_function_is_called_for_each_run(experiment: Experiment, home: Path) -> None:
    (home / "own.py").write_text(OWN)
    own = changed(experiment, home, "data=own.py:data")
    read = LastRead()
    assert read(own) is not read(own)


def test_what_could_not_be_read_is_tried_again(experiment: Experiment, home: Path) -> None:
    late = changed(experiment, home, "data=late.npz")
    read = LastRead()
    with pytest.raises(Exception, match=r"late\.npz"):
        read(late)
    np.savez(home / "late.npz", x=np.ones((4, 2), np.float32), y=np.arange(4) % 2)
    assert len(read(late).train_x) == 4


def test_a_run_with_noise_and_server_data_leaves_no_trace_in_it(experiment: Experiment, home: Path) -> None:
    """The next run of the same worker computes what it computes alone, bit for bit."""
    read = LastRead()
    noisy = changed(experiment, home, *NOISY).experiment
    run(noisy, seed=0, folder=home / "noisy", base=home, read=read)
    run(experiment, seed=0, folder=home / "after", base=home, read=read)
    run(experiment, seed=0, folder=home / "alone", base=home)
    after, alone = (sorted((home / name).glob("*.safetensors")) for name in ("after", "alone"))
    assert len(after) == len(alone) > 0
    assert [path.read_bytes() for path in after] == [path.read_bytes() for path in alone]
