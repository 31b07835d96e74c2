"""A pipe, a socket, a device or a folder in place of a file is refused at once, and not waited for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fedreach._util.errors import FedReachError
from fedreach.data.assignment import Partition
from fedreach.data.datasets import from_npz
from fedreach.data.stored import open_stored
from fedreach.data.table_source import read_table
from fedreach.deploy.predictions import _read
from fedreach.deploy.saved import load as load_model
from fedreach.experiment.load import read
from fedreach.wireless.planning import _rows

READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "experiment": (".toml", read),
    "run as experiment": (".json", read),
    "table": (".csv", read_table),
    "packed table": (".csv.gz", read_table),
    "Parquet": (".parquet", read_table),
    "arrays": (".npz", from_npz),
    "stored data": (".json", open_stored),
    "partition": (".npz", Partition.load),
    "rows to predict": (".npz", lambda path: _read(path, None)),  # type: ignore[arg-type]
    "exported model": (".safetensors", load_model),
    "clients of a radio": (".csv", _rows),
}


@pytest.fixture(params=["pipe", "socket", "device", "folder"])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as open_socket:
        kinds: dict[str, Callable[[Path], object]] = {
            "pipe": os.mkfifo,
            "socket": lambda path: open_socket.bind(str(path)),
            "device": lambda path: path.symlink_to("/dev/zero"),
            "folder": Path.mkdir,
        }
        yield kinds[request.param]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_regular_file_is_refused(name: str, make: Callable[[Path], object]) -> None:
    ending, reader = READERS[name]
    path = Path(f"x{ending}")
    make(path)
    with pytest.raises((FedReachError, OSError)) as caught:
        reader(path)
    assert "x" in str(caught.value)


def test_a_huge_experiment_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    path.touch()
    os.truncate(path, 2**40)
    with pytest.raises(FedReachError, match="Is larger than 100 MB"):
        read(path)


def test_a_link_to_a_regular_file_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((4, 2)), y=np.arange(4) % 2)
    (tmp_path / "link.npz").symlink_to(tmp_path / "x.npz")
    assert len(from_npz(tmp_path / "link.npz").train_y)
